"""The proof on disk: atomic writes, openings, deltas, retention, resume."""
