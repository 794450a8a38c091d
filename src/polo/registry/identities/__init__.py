"""Identities: keys that registered, their rotation, their revocation."""
