"""Experiments: many runs, recorded one by one, and the pages that are made of them.

`python -m polo_lab.experiments effort` runs honest trainings and attacks on evidence of effort,
`python -m polo_lab.experiments schemes` trainings with marks of every scheme;
`python -m polo_lab.experiments.report` makes docs/results.md and docs/schemes.md of what was
recorded.
"""
