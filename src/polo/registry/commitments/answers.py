"""What answers an entry: its receipt, the next nonce, and its place in the log."""

import functools
import json
from dataclasses import dataclass
from typing import ClassVar

from polo.protocol import canonical, nonces
from polo.protocol.entries import Entry, nonce_after
from polo.protocol.records import Nonce, Receipt
from polo.registry.commitments.chains import Chain


@dataclass(frozen=True)
class Waiting:
    """The entry is in the log; its receipt waits until a challenge is answered.

    Attributes:
        challenge: The challenge's id.
        kind: What is asked for.
        due: Until when, in seconds since 1970.
    """

    STATUS: ClassVar = 202

    challenge: str
    kind: str
    due: int

    def body(self) -> bytes:
        """The answer's body."""
        asked = {"id": self.challenge, "kind": self.kind, "due": self.due}
        return canonical.encode({"challenge": asked})


@dataclass(frozen=True)
class Place:
    """Where an entry stands in the log, and the proof of it.

    Attributes:
        index: Its place.
        size: Size of the tree that the path leads to the root of.
        path: Hashes from the leaf up.
        checkpoint: The signed checkpoint of that tree.
    """

    index: int
    size: int
    path: list[bytes]
    checkpoint: str

    def body(self, entry: bytes) -> bytes:
        """The canonical bytes of the `Inclusion` of an entry."""
        path = ",".join(f'"{item.hex()}"' for item in self.path)
        parts = (
            f'{{"checkpoint":{_quoted(self.checkpoint)},"entry":'.encode(),
            entry,
            f',"index":{self.index},"path":[{path}],"size":{self.size}}}'.encode(),
        )
        return b"".join(parts)


@dataclass(frozen=True)
class Receipted:
    """The whole answer.

    Attributes:
        entry: The entry's bytes.
        receipt: The receipt's bytes.
        nonce: The next shard's nonce; None where it is not for whoever asks.
        place: Its place in the log.
    """

    STATUS: ClassVar = 200

    entry: bytes
    receipt: bytes
    nonce: Nonce | None
    place: Place

    def body(self) -> bytes:
        """The answer's body. Entry and receipt go in as they are: their bytes are canonical."""
        nonce = _nonce_bytes(self.nonce) if self.nonce else b"null"
        inclusion = self.place.body(self.entry)
        return b"".join(
            (b'{"inclusion":', inclusion, b',"nonce":', nonce, b',"receipt":', self.receipt, b"}")
        )


Answer = Waiting | Receipted


def _nonce_bytes(nonce: Nonce) -> bytes:
    """The canonical bytes of a live nonce, which has no path."""
    text = (
        f'{{"format":"{Nonce.FORMAT}","nonce":"{nonce.nonce.hex()}","path":[],'
        f'"salt":"{nonce.salt.hex()}","shard":{nonce.shard}}}'
    )
    return text.encode()


def receipt_of(
    chain: Chain, entry: Entry, leaf: bytes, *, origin: str, index: int, time: int
) -> tuple[bytes, Nonce]:
    """The signed receipt of an entry, as bytes, and the nonce that it promises.

    The same entry in the same place always gives the same ones.

    Args:
        chain: The chain.
        entry: The entry.
        leaf: Its leaf hash.
        origin: The log's name.
        index: Its place in the log.
        time: When it got there.
    """
    nonce = nonce_after(chain.secret, entry.number, leaf)
    # Written by hand, since this is done for every commitment: a record would be encoded twice.
    first = (
        f'{{"enrolment":"{chain.id}","format":"{Receipt.FORMAT}","index":{index},'
        f'"next_nonce":"{nonces.leaf(nonce).hex()}","origin":{_quoted(origin)},'
        f'"root":"{entry.root.hex()}","shard":{entry.number}'
    )
    last = f',"time":{time}}}'
    signature = chain.issuer.sign(f"polo signature 1\n{first}{last}".encode())
    return f'{first},"signature":"{signature.hex()}"{last}'.encode(), nonce


@functools.lru_cache(maxsize=64)
def _quoted(text: str) -> str:
    """A text as canonical JSON has it; one origin, or one checkpoint, is in many answers."""
    return json.dumps(text, ensure_ascii=False)
