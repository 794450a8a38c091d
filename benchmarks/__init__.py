"""Benchmarks: how fast and how small PoLO is, measured against what it is compared with.

Every figure comes from alternations (A B A B …) in one process on one machine and is given as a
ratio with its spread. `python -m benchmarks` runs them all; README.md says how to read them.
"""
