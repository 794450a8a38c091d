"""The process that touches what provers sent: verifies, tests a checkpoint, draws. Needs torch.

Run as a program with a folder: it reads `request.json` there and writes `result.json`. Progress
goes to standard output, a JSON object a line. It is given no secret but the nonces of the one proof
it verifies.
"""

import ctypes
import json
import os
import resource
import signal
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from polo.errors import PoloError

if TYPE_CHECKING:
    from polo.protocol.challenge import Challenge

PROOF, REPORT = "proof", "report.html"
CHECKPOINT, MANIFEST, LAYOUT = "checkpoint.safetensors", "manifest.json", "layout.json"
CHALLENGE, ANSWER, ANSWER_FILE = "challenge.json", "answer", "answer.tar"
REQUEST, RESULT = "request.json", "result.json"

_PR_SET_PDEATHSIG = 1
_TELL_EVERY = 0.5


def main() -> int:
    """Do what the request asks for."""
    _die_with_parent()
    os.chdir(sys.argv[1])
    request = json.loads(Path(REQUEST).read_bytes())
    _limit(request["memory"], request["seconds"])
    doing = {"verify": _verify, "checkpoint": _checkpoint, "draw": _draw}[request["do"]]
    try:
        result = doing(request)
    except PoloError as error:
        result = {"error": str(error), "kind": type(error).__name__}
    temporary = Path(RESULT + ".partial")
    temporary.write_text(json.dumps(result))
    temporary.replace(RESULT)
    return 0


def _verify(request: dict[str, Any]) -> dict[str, Any]:
    import dataclasses

    from polo.verifier import Policy, verify
    from polo.verifier.report import render

    proof, challenge = Path(PROOF), _challenge()
    verdict = verify(
        proof,
        trust=[bytes.fromhex(key) for key in request["trust"]],
        task=request["task"],
        policy=Policy(request["accuracy"]),
        challenge=challenge,
        answer=_answer(challenge) if challenge else None,
        listener=_tell,
    )
    verdict = dataclasses.replace(verdict, proof=request["name"])
    Path(REPORT).write_text(render(verdict), encoding="utf-8")
    return {"verdict": verdict.to_json(), "proof": _digest(proof)}


def _checkpoint(request: dict[str, Any]) -> dict[str, Any]:
    """Whether a checkpoint has the root that was committed to, and is as good as the terms ask."""
    from polo.checks import Status
    from polo.protocol.layout import Layout
    from polo.protocol.records import Manifest
    from polo.verifier import Policy
    from polo.verifier.accuracy import Bench
    from polo.weights.files import FileCheckpoint
    from polo.weights.hashing import commit

    layout = Layout.from_bytes(Path(LAYOUT).read_bytes(), LAYOUT)
    manifest = Manifest.from_bytes(Path(MANIFEST).read_bytes(), MANIFEST)
    number = request["shard"]
    root = manifest.root_before(number + 1)
    with FileCheckpoint.canonical(Path(CHECKPOINT), layout) as checkpoint:
        try:
            found = commit(checkpoint).root
        except PoloError as error:
            return {"passed": False, "detail": str(error)}
        if found != root:
            return {"passed": False, "detail": "its root is not the one that was committed to"}
        detail = f"root {root.hex()[:16]}… as committed to"
        if request["accuracy"] == "none" or not number:
            return {"passed": True, "detail": detail}
        bench = Bench(manifest, layout, request["task"], Policy())
        checks = [*bench.problems(), *(bench.test(number, checkpoint, root) if bench.ready else ())]
    for check in checks:
        if check.status is Status.FAILED:
            return {"passed": False, "detail": check.sentence()}
        if check.status is Status.UNDECIDED:
            return {"error": check.sentence(), "kind": "TaskError"}
    return {"passed": True, "detail": "; ".join([detail, *(check.detail for check in checks)])}


def _draw(request: dict[str, Any]) -> dict[str, Any]:
    """The segments and sealings to run again; the records in the proof are all that is needed."""
    from polo.evidence.replay.challenge import draw

    return {"challenge": draw(Path(PROOF)).to_json()}


def _challenge() -> "Challenge | None":
    from polo.evidence.replay.challenge import load

    return load(CHALLENGE) if Path(CHALLENGE).exists() else None


def _answer(challenge: "Challenge") -> Path | None:
    from polo.storage import answers

    if not Path(ANSWER_FILE).exists():
        return None
    try:
        answers.unpack(ANSWER_FILE, challenge, ANSWER)
    except PoloError as error:
        # What cannot be read answers nothing, and an unanswered challenge is a failed one.
        print(error.diagnostics(), file=sys.stderr)
        return None
    Path(ANSWER_FILE).unlink()
    return Path(ANSWER)


def _digest(proof: Path) -> str:
    """Digest of the manifest that was verified; of one that cannot be read there is none."""
    from polo.storage.bundle import glance

    try:
        return glance(proof)[1].digest.hex()
    except PoloError:
        return ""


_told = 0.0


def _tell(doing: str, done: int, total: int) -> None:
    global _told
    if time.monotonic() - _told > _TELL_EVERY or done + 1 >= total:
        _told = time.monotonic()
        line = json.dumps({"doing": doing, "done": done, "total": total})
        os.write(1, line.encode() + b"\n")


def _limit(memory: int, seconds: int) -> None:
    # Of data, not of addresses: graphics drivers reserve addresses without end.
    resource.setrlimit(resource.RLIMIT_DATA, (memory, memory))
    resource.setrlimit(resource.RLIMIT_CPU, (16 * seconds, 16 * seconds))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def _die_with_parent() -> None:
    """Whoever asked and was killed will ask again; two at a time would be one too many."""
    parent = os.getppid()
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


if __name__ == "__main__":
    sys.exit(main())
