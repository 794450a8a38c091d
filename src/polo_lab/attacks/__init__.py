"""Attacks on a marked model, one file each."""
