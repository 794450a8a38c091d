"""Whose chains are in a model: one that a prover uploaded, or a file that somebody found."""
