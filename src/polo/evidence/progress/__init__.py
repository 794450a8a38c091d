"""Level progress: do the checkpoints look like training? Heuristics, and no data is shown.

Specification: docs/protocol.md, section 15.
"""
