"""Obfuscation of sealed weights."""
