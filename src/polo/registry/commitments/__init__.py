"""Commitments: entries that provers sign, noted in the log, and the receipts that answer them.

One thread, the `Sequencer`, takes all entries that are waiting, checks and appends them in one
transaction, signs one checkpoint for all of them, and answers only when everything is on the disk.
"""
