"""The registry: enrols provers, notes their commitments in a public log, verifies, answers.

A folder per domain, each with `service.py` (what it does, against the database) and `routes.py`
(its REST resource under `/v1`): `identities`, `tokens`, `tasks`, `enrolments`, `commitments`,
`log`, `uploads`, `challenges`, `verifications`, `scans`, `events`. Beside them `pages` (what people
see), `jobs` (long work), `operations` (backup, restore, doctor), and what all of them stand on:
`settings`, `schema`, `database`, `vault` (keys and secrets at rest), `objects` (files), `problems`
(errors as people get them), `callers` (who is asking), `limits`, `observing`.
"""
