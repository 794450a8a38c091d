"""`python -m benchmarks.provers`: many provers at once, in a process of their own.

Reads a JSON object from standard input: `address`, `port`, `origin`, `seconds`, `openings`, and
`provers`, each with its private key, enrolment, and first shard. Every prover has one connection,
signs each entry and each request as it goes, and waits for the receipt before it goes on; with
openings it makes a checkpoint that carries the mark, and sends the opening along. Writes how long
each commitment took.
"""

import asyncio
import json
import secrets
import sys
import time
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from benchmarks.chains import Prover
from polo.keys import Identity
from polo.protocol import requests
from polo.protocol.entries import with_opening
from polo.protocol.records import Enrolment, Nonce

_JSON, _OCTETS = "application/json", "application/octet-stream"


class Connection:
    """One prover's connection."""

    def __init__(self, prover: Prover, asked: dict[str, Any]) -> None:
        self.prover, self.asked = prover, asked

    async def open(self) -> None:
        """Connect."""
        self._in, self._out = await asyncio.open_connection(
            self.asked["address"], self.asked["port"]
        )

    async def send(self, method: str, path: str, body: bytes, kind: str = _JSON) -> bytes:
        """Send a signed request; the answer's body."""
        signed = requests.sign(
            self.prover.key, method, self.asked["origin"], path, body,
            time=int(time.time()), nonce=secrets.token_bytes(16),
        )  # fmt: skip
        head = [f"{method} {path} HTTP/1.1", "Host: bench", f"Content-Type: {kind}"]
        head += [f"Authorization: {signed}", f"Content-Length: {len(body)}", "", ""]
        self._out.write("\r\n".join(head).encode() + body)
        answer = await self._in.readuntil(b"\r\n\r\n")
        lines = answer.lower().split(b"\r\n")
        length = next(int(line[15:]) for line in lines if line.startswith(b"content-length:"))
        content = await self._in.readexactly(length)
        if not answer.startswith(b"HTTP/1.1 2"):
            raise RuntimeError(f"{answer[:40]!r} {content[:300]!r}")
        return content

    def close(self) -> None:
        """Hang up."""
        self._out.close()


async def bare(connection: Connection, first: int, until: float) -> list[float]:
    """Commit one shard after the other; seconds that each took from signing to receipt."""
    prover, took, number = connection.prover, [], first
    path = f"/v1/enrolments/{prover.id}/commitments"
    while time.monotonic() < until:
        began = time.monotonic()
        content = await connection.send("POST", path, prover.entry(number).to_bytes())
        if b'"receipt":{' not in content:
            raise RuntimeError(repr(content[:300]))
        took.append(time.monotonic() - began)
        number += 1
    return took


async def opened(connection: Connection, until: float) -> list[float]:
    """The same, from the start on, with the openings of real marks."""
    from benchmarks.opened import marked

    prover, took = connection.prover, []
    path = f"/v1/enrolments/{prover.id}/commitments"
    entry, number = prover.entry(0), 0
    answer = json.loads(await connection.send("POST", path, entry.to_bytes()))
    while time.monotonic() < until:
        number += 1
        root, file = marked(prover, Nonce.from_json(answer["nonce"], "nonce"), entry.root)
        entry = prover.entry(number, previous=entry.root, root=root, opening=file)
        began = time.monotonic()
        body = with_opening(entry.to_bytes(), file)
        answer = json.loads(await connection.send("POST", path, body, kind=_OCTETS))
        took.append(time.monotonic() - began)
    return took


async def run(asked: dict[str, Any]) -> dict[str, Any]:
    """All provers at once."""
    working = []
    for item in asked["provers"]:
        key = Ed25519PrivateKey.from_private_bytes(bytes.fromhex(item["key"]))
        record = Enrolment.from_json(item["enrolment"], "enrolment")
        connection = Connection(Prover(Identity(key), record), asked)
        await connection.open()
        working.append((connection, item["first"]))
    began, cpu = time.monotonic(), time.process_time()
    until = began + asked["seconds"]
    if asked["openings"]:
        found = await asyncio.gather(*(opened(each, until) for each, _ in working))
    else:
        found = await asyncio.gather(*(bare(each, first, until) for each, first in working))
    for each, _ in working:
        each.close()
    spent = {"seconds": time.monotonic() - began, "cpu": time.process_time() - cpu}
    return {**spent, "took": found}


if __name__ == "__main__":
    json.dump(asyncio.run(run(json.load(sys.stdin))), sys.stdout)
