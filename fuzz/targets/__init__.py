"""One file per target; each has a `TARGET`."""
