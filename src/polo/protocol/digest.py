"""SHA-256 with a label in front, so that no hash can be taken for one of another kind.

Specification: docs/protocol.md, section 1.
"""

import hashlib

SIZE = 32


def tagged(label: str, *parts: bytes) -> bytes:
    """SHA-256 over the length of the label (one byte), the label, and the parts.

    The parts of one label always have the same lengths, so they are not separated.
    """
    name = label.encode("ascii")
    state = hashlib.sha256(bytes([len(name)]) + name)
    for part in parts:
        state.update(part)
    return state.digest()


def u32(value: int) -> bytes:
    """Four bytes, little-endian."""
    return value.to_bytes(4, "little")


def u64(value: int) -> bytes:
    """Eight bytes, little-endian."""
    return value.to_bytes(8, "little")
