"""Replay while a chain grows: one shard, drawn from as soon as its entry is in a registry's log.

The registry has the records of all shards so far and draws from the newest one alone. The answer
shows both checkpoints around it, so that nothing else need be kept, by either side.

Specification: docs/protocol.md, section 22.
"""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from polo.checks import Check, Status
from polo.evidence.replay.check import Replay
from polo.evidence.replay.request import Request
from polo.protocol.challenge import Challenge
from polo.protocol.records import Manifest
from polo.storage.folder import ProofFolder
from polo.tasks import Task
from polo.watermark.mark import carrier_of

Listener = Callable[[str, int, int], None]


def replayed(
    folder: ProofFolder,
    manifest: Manifest,
    challenge: Challenge,
    answer: Path | None,
    *,
    task: Task,
    leaf: bytes,
    device: str | None = None,
    listener: Listener = lambda *_: None,
) -> Iterator[Check]:
    """Run again what was drawn from the newest shard of a chain that is not finished.

    Args:
        folder: Layout, records and nonces of the chain so far.
        manifest: What was committed to so far; nobody need have signed it.
        challenge: What was drawn.
        answer: Folder of the prover's answer; None if it cannot be read.
        task: The verifier's task.
        leaf: Leaf of the newest shard's entry in the log.
        device: Where to run; by default where it was trained, if such a device is here.
        listener: Hears about progress.
    """
    numbers = range(1, len(manifest.shards) + 1)
    nonces = {number: folder.nonce(number) for number in numbers}
    carrier = carrier_of(manifest.terms, folder.layout())
    request = Request(challenge, answer, device)
    level = Replay(folder, manifest, carrier, nonces, task, request, listener, leaf=leaf)
    yield from level.opening()
    yield from level.newest()
    yield from level.closing()


def objection(checks: Sequence[Check]) -> Check | None:
    """The check that speaks against a shard: a failed one, else one that could not be decided.

    That something was drawn and passed is needed, too; without it nothing was shown.
    """
    for status in (Status.FAILED, Status.UNDECIDED):
        for check in checks:
            if check.status is status:
                return check
    if not any(check.name == "draw" and check.status is Status.PASSED for check in checks):
        return Check("draw", Status.UNDECIDED, "nothing was run again", level="replay")
    return None
