"""What PoLO is compared with, working, on the same trainer and the same replay engine."""
