"""Changing tar files: what members hold, and what their headers say."""

import hashlib
import json
import random
from dataclasses import dataclass, field, replace
from typing import Any

from fuzz import mutation

BLOCK = 512
_NAMES = (
    "../x", "/tmp/x", "x", "bundle.json", "manifest.json", "layout.json", "./bundle.json", "a//b",
    "nonces/../x", "checkpoints/000001.safetensors", "ancestors/000001/bundle.json", "C:\\x",
    "\udc80",
)  # fmt: skip
_KINDS = b"01234567xgLKSDVM\0"


@dataclass(frozen=True)
class Member:
    """One member: the fields of its header as text, and what it holds."""

    name: str
    data: bytes
    kind: int = ord("0")
    link: str = ""
    size: int | None = None
    changes: dict[int, bytes] = field(default_factory=dict)

    def pack(self) -> bytes:
        """Header with a checksum that fits, then the data."""
        size = len(self.data) if self.size is None else self.size
        octal = (
            b"%011o\0" % size if 0 <= size < 8**11 else b"\x80" + (size % 2**88).to_bytes(11, "big")
        )
        head = bytearray(
            self.name.encode("utf-8", "surrogateescape")[:100].ljust(100, b"\0")
            + b"0000644\0" + b"0000000\0" * 2 + octal + b"00000000000\0" + b" " * 8
            + bytes([self.kind]) + self.link.encode()[:100].ljust(100, b"\0")
            + b"ustar  \0" + bytes(247)
        )  # fmt: skip
        for at, fresh in self.changes.items():
            head[at : at + len(fresh)] = fresh
        head = head[:BLOCK]
        head[148:156] = b"%06o\0 " % (sum(head[:148]) + 8 * ord(" ") + sum(head[156:]))
        return bytes(head) + self.data + bytes(-len(self.data) % BLOCK)


def pack(members: list[Member]) -> bytes:
    """A whole archive, filled up as tar does."""
    body = b"".join(member.pack() for member in members) + bytes(2 * BLOCK)
    return body + bytes(-len(body) % (20 * BLOCK))


def split(data: bytes) -> list[Member]:
    """The members of an archive that is not broken too badly."""
    found, at = [], 0
    while at + BLOCK <= len(data) and any(head := data[at : at + BLOCK]):
        name = head[:100].rstrip(b"\0").decode("utf-8", "surrogateescape")
        size = int(head[124:135], 8)
        found.append(Member(name, data[at + BLOCK : at + BLOCK + size], head[156]))
        at += BLOCK + size + -size % BLOCK
    return found


def mutate(data: bytes, rng: random.Random) -> bytes:
    """One or two members are changed in what they hold, or in what their header says."""
    if not rng.randrange(5):
        return mutation.raw(data, rng)
    members = split(data)
    for _ in range(rng.choice((1, 1, 2))):
        at = rng.randrange(len(members))
        rng.choice((_content, _content, _content, _head, _order))(members, at, rng)
    return pack(members)


def _content(members: list[Member], at: int, rng: random.Random) -> None:
    """Change what a member holds; sometimes the manifest is made to list it so."""
    member = members[at]
    change = mutation.document if member.name.endswith(".json") else mutation.raw
    members[at] = replace(member, data=change(member.data, rng))
    if rng.randrange(2):
        _list_again(members, members[at])


def _list_again(members: list[Member], changed: Member) -> None:
    for at, member in enumerate(members):
        if member.name == "manifest.json":
            manifest: Any = json.loads(member.data)
            for file in manifest["files"]:
                if file["path"] == changed.name:
                    digest = hashlib.sha256(changed.data).hexdigest()
                    file |= {"size": len(changed.data), "sha256": digest}
            members[at] = replace(member, data=mutation.spell(manifest))


def _head(members: list[Member], at: int, rng: random.Random) -> None:
    member = members[at]
    members[at] = rng.choice(
        (
            replace(member, name=rng.choice(_NAMES)),
            replace(member, kind=rng.choice(_KINDS), link=rng.choice(_NAMES[:2])),
            replace(member, size=rng.choice((0, 1, len(member.data) + 1, 2**33, 2**63, 2**87))),
            replace(member, changes={rng.randrange(BLOCK - 8): rng.randbytes(rng.choice((1, 8)))}),
        )
    )


def _order(members: list[Member], at: int, rng: random.Random) -> None:
    kind = rng.randrange(4)
    if kind == 0:
        members.insert(rng.randrange(len(members) + 1), members[at])
    elif kind == 1 and len(members) > 1:
        del members[at]
    elif kind == 2:
        rng.shuffle(members)
    else:
        members.insert(at, Member(rng.choice(_NAMES), b"x"))
