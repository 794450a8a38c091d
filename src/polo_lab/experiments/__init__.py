"""Experiments: many runs, each recorded as one line, and what is made of the lines.

`polo-lab run NAME` measures what is not recorded yet, `polo-lab table NAME` and `polo-lab figure
NAME` show it, `polo-lab docs` writes docs/results.md and docs/schemes.md. An experiment is a module
that is named in `catalogue` and has `EXPERIMENTS`; `experiment` says what belongs to one.
"""
