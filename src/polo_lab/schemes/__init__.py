"""What a scheme costs and what it withstands, measured on real tasks.

`courses` says what is trained and how, `training` trains it with a prover attached, and `measures`
looks at what came out: marks that are still there, an overwriter, a forger, a classifier.
`polo-lab run schemes` runs all of it and records it.
"""
