"""Tasks that the registry offers: plug-ins that its operator installed (entry points `polo.tasks`).

`offers` is what the operator says, `building` what only torch can tell, done in a process of its
own and kept in the data folder, so that the server itself never loads torch.
"""
