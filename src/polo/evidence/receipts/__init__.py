"""Level receipts: every checkpoint was in a registry's log before the next nonce existed."""
