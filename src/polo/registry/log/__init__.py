"""The log: one append-only tree over the entries of all chains, published as tiles.

`growing` adds entries inside the sequencer's transaction, `service` answers questions about what
is there, `routes` serves it. Rows of the log are only ever added.
"""
