"""A second reader of logs, after sections 18 to 20 of docs/protocol.md; nothing of PoLO in it."""

import base64
import hashlib
import hmac
import json
import re

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey


class RefusedError(Exception):
    """What was shown does not hold."""


def need(condition, why):
    if not condition:
        raise RefusedError(why)


def holds(key, message, signature):
    try:
        Ed25519PublicKey.from_public_bytes(key).verify(signature, message)
    except (InvalidSignature, ValueError):
        return False
    return True


# Section 18


def entry_leaf(data):
    return hashlib.sha256(b"\x00" + data).digest()


def read_entry(data):
    entry = json.loads(data)
    need((entry["start"] is None) != (entry["shard"] is None), "a start or a shard")
    need((entry["opening"] is None) == (entry["shard"] is None), "an opening")
    need((entry["start"] or entry["shard"])["receipt"] is None, "a receipt")
    return entry


def secret_commitment(secret):
    label = b"polo/live-secret/1"
    return hashlib.sha256(bytes([len(label)]) + label + secret).digest()


def live_nonce(secret, data):
    """Nonce and salt that answer an entry."""
    leaf = entry_leaf(data)
    made = (hmac.new(secret, label + leaf, hashlib.sha256).digest() for label in (
        b"polo/live-nonce/1", b"polo/live-salt/1",
    ))  # fmt: skip
    return tuple(made)


# Section 19: the tree, by the recursive definitions of RFC 6962


def node(left, right):
    return hashlib.sha256(b"\x01" + left + right).digest()


def cut(size):
    power = 1
    while 2 * power < size:
        power *= 2
    return power


def root_by_path(leaf, index, size, path):
    need(0 <= index < size, "no such entry")
    if size == 1:
        need(not path, "a path too long")
        return leaf
    need(path, "a path too short")
    *below, last = path
    left = cut(size)
    if index < left:
        return node(root_by_path(leaf, index, left, below), last)
    return node(last, root_by_path(leaf, index - left, size - left, below))


def roots_by_proof(old, old_root, new, proof):
    """The old and the new root that a proof of consistency leads to."""
    if old == 0:
        need(not proof, "a proof too long")
        return hashlib.sha256(b"").digest(), None
    return _both(old, new, list(proof), old_root)


def _both(old, new, proof, known):
    if old == new:
        if known is None:
            need(len(proof) == 1, "a proof of another length")
            (known,) = proof
        else:
            need(not proof, "a proof too long")
        return known, known
    need(proof, "a proof too short")
    *below, last = proof
    left = cut(new)
    if old <= left:
        before, after = _both(old, left, below, known)
        return before, node(after, last)
    before, after = _both(old - left, new - left, below, None)
    return node(last, before), node(last, after)


def tile_path(level, index, width):
    groups = []
    while True:
        index, group = divmod(index, 1000)
        groups.insert(0, f"{group:03d}")
        if not index:
            break
    name = "/".join(["x" + group for group in groups[:-1]] + groups[-1:])
    part = f".p/{width}" if width < 256 else ""
    return f"tile/{'entries' if level is None else level}/{name}{part}"


def read_bundle(data):
    found = []
    while data:
        size = data[0] * 256 + data[1]
        found.append(data[2 : 2 + size])
        data = data[2 + size :]
    return found


# Section 19: notes


def read_key(text):
    """Name, id, kind and key of a key for notes."""
    name, short, rest = re.fullmatch(r"([^+\s]+)\+([0-9a-f]{8})\+(.+)", text).groups()
    body = base64.b64decode(rest, validate=True)
    full = hashlib.sha256(name.encode() + b"\n" + body).hexdigest()
    need(len(body) == 33 and full[:8] == short, "a key that is not its own")
    return name, bytes.fromhex(short), body[0], body[1:]


def read_checkpoint(note, log, witness=None):
    """Origin, size and root of a checkpoint, and when the witness cosigned it."""
    at = note.rindex("\n\n")
    text, lines = note[: at + 1], note[at + 2 :].splitlines()
    signatures = []
    for line in lines:
        dash, name, body = line.split(" ")
        need(dash == "\u2014", "no signature")
        data = base64.b64decode(body, validate=True)
        signatures.append((name, data[:4], data[4:]))
    name, short, kind, key = read_key(log)
    own = [body for other, number, body in signatures if (other, number) == (name, short)]
    need(kind == 1 and own, "the log did not sign")
    need(all(holds(key, text.encode(), body) for body in own), "a false signature")
    origin, size, root, end = text.split("\n")
    need(end == "" and str(int(size)) == size, "no checkpoint")
    return origin, int(size), base64.b64decode(root), cosigned(text, signatures, witness)


def cosigned(text, signatures, witness):
    if witness is None:
        return None
    name, short, kind, key = read_key(witness)
    times = []
    for other, number, body in signatures:
        if (other, number) == (name, short):
            time = int.from_bytes(body[:8], "big")
            message = f"cosignature/v1\ntime {time}\n{text}".encode()
            need(kind == 4 and holds(key, message, body[8:]), "a false cosignature")
            times.append(time)
    return min(times, default=None)


def is_included(item, entry_bytes, log, origin):
    """Whether one inclusion leads from its entry to the checkpoint that the log signed."""
    try:
        found, size, root, _ = read_checkpoint(item["checkpoint"], log)
        path = [bytes.fromhex(part) for part in item["path"]]
        leaf = entry_leaf(entry_bytes)
        same = root_by_path(leaf, item["index"], item["size"], path) == root
    except RefusedError:
        return False
    return same and found == origin and size == item["size"]


# Section 20


STATEMENT = {
    "format", "enrolment", "root", "origin", "size", "chains", "unread", "time", "claims",
    "signature",
}  # fmt: skip
COUNTS = ("size", "chains", "unread", "time")


def read_statement(data):
    found = json.loads(data)
    need(found.keys() == STATEMENT, "other fields")
    need(found["format"] == "polo/uniqueness/1", "another format")
    need(all(type(found[name]) is int and 0 <= found[name] < 2**53 for name in COUNTS), "a count")
    need(len(found["claims"]) <= 1000, "too many claims")
    for claim in found["claims"]:
        need(claim.keys() == {"enrolment", "earlier", "relation", "rarity"}, "other fields")
        need(claim["relation"] in ("own", "parent", "none"), "a relation")
        need(type(claim["earlier"]) is bool and 0 <= claim["rarity"] <= 10**9, "a claim")
    return found


def is_unique(found, manifest, signed_by, digest):
    """Whether the check of the level passes; the two functions are those of section 3."""
    enrolment, last = manifest["enrolment"], manifest["shards"][-1]
    if not signed_by(found, enrolment["issuer"]):
        return False
    if (found["enrolment"], found["root"]) != (digest(enrolment).hex(), last["root"]):
        return False
    if last["receipt"] is not None and found["size"] <= last["receipt"]["index"]:
        return False
    return not any(c["earlier"] and c["relation"] == "none" for c in found["claims"])
