"""Measuring evidence of effort: cases, the honest run, what a verifier says of an attempt."""
