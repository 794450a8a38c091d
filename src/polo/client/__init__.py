"""Talking to a registry: commitments in the background, uploads that resume, audits of its log."""
