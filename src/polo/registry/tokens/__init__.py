"""Tokens: how people and their scripts prove who they are, and sessions on the pages."""
