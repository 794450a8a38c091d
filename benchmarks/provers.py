"""`python -m benchmarks.provers`: many provers at once, in a process of their own.

Reads a JSON object from standard input: `address`, `port`, `origin`, `seconds`, and `provers`, each
with its private key, enrolment, and first shard. Every prover has one connection, signs each entry
and each request as it goes, and waits for the receipt before it goes on. Writes the latencies.
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
from polo.protocol.records import Enrolment


async def prove(prover: Prover, asked: dict[str, Any], first: int, until: float) -> list[float]:
    """Commit one shard after the other; seconds that each took from signing to receipt."""
    reader, writer = await asyncio.open_connection(asked["address"], asked["port"])
    path = f"/v1/enrolments/{prover.id}/commitments"
    head = f"POST {path} HTTP/1.1\r\nHost: bench\r\nContent-Type: application/json\r\n"
    took, number = [], first
    while time.monotonic() < until:
        began = time.monotonic()
        body = prover.entry(number).to_bytes()
        signed = requests.sign(
            prover.key, "POST", asked["origin"], path, body,
            time=int(time.time()), nonce=secrets.token_bytes(16),
        )  # fmt: skip
        lines = f"{head}Authorization: {signed}\r\nContent-Length: {len(body)}\r\n\r\n"
        writer.write(lines.encode() + body)
        answer = await reader.readuntil(b"\r\n\r\n")
        length = next(
            int(line[16:])
            for line in answer.lower().split(b"\r\n")
            if line.startswith(b"content-l")
        )
        content = await reader.readexactly(length)
        if not answer.startswith(b"HTTP/1.1 200") or b'"receipt":{' not in content:
            raise RuntimeError(f"{answer[:40]!r} {content[:300]!r}")
        took.append(time.monotonic() - began)
        number += 1
    writer.close()
    return took


async def run(asked: dict[str, Any]) -> dict[str, Any]:
    """All provers at once."""
    provers = []
    for item in asked["provers"]:
        key = Ed25519PrivateKey.from_private_bytes(bytes.fromhex(item["key"]))
        record = Enrolment.from_json(item["enrolment"], "enrolment")
        provers.append((Prover(Identity(key), record), item["first"]))
    began, cpu = time.monotonic(), time.process_time()
    until = began + asked["seconds"]
    found = await asyncio.gather(*(prove(who, asked, first, until) for who, first in provers))
    return {
        "seconds": time.monotonic() - began,
        "cpu": time.process_time() - cpu,
        "took": [list(item) for item in found],
    }


if __name__ == "__main__":
    json.dump(asyncio.run(run(json.load(sys.stdin))), sys.stdout)
