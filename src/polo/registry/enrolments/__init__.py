"""Enrolments: terms that the registry signs for a prover, and the life of a chain until its close.

A chain is `open` until its prover closes it with the manifest or withdraws it, or until it fails a
challenge. The secret κ, out of which its nonces come, is shown when the chain is closed.
"""
