"""Experiments: many runs, recorded one by one, and the page that is made of them.

`python -m polo_lab.experiments effort` runs honest trainings and attacks on evidence of effort;
`python -m polo_lab.experiments.report` makes docs/results.md of what was recorded.
"""
