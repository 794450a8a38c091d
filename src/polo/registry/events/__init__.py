"""Audit events: who did what, when. Rows are only ever added."""
