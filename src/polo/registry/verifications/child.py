"""The process that touches what provers sent: verifies, tests, draws, runs again. Needs torch.

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
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from polo.errors import PoloError

if TYPE_CHECKING:
    from polo.protocol.challenge import Challenge
    from polo.protocol.layout import Layout
    from polo.protocol.records import Manifest

PROOF, REPORT = "proof", "report.html"
CHECKPOINT, MANIFEST, LAYOUT = "checkpoint.safetensors", "manifest.json", "layout.json"
CHALLENGE, ANSWER, ANSWER_FILE = "challenge.json", "answer", "answer.tar"
REQUEST, RESULT = "request.json", "result.json"

_PR_SET_PDEATHSIG = 1
_PR_SET_NO_NEW_PRIVS = 38
_TELL_EVERY = 0.5


def main() -> int:
    """Do what the request asks for."""
    return serve({"verify": _verify, "checkpoint": _checkpoint, "draw": _draw, "replay": _replay})


def serve(doing: Mapping[str, Callable[[dict[str, Any]], dict[str, Any]]]) -> int:
    """Do what the request in the folder asks for, within its limits.

    Args:
        doing: What there is to do, by name.
    """
    _die_with_parent()
    os.umask(0o077)
    os.chdir(sys.argv[1])
    request = json.loads(Path(REQUEST).read_bytes())
    _limit(request["memory"], request["seconds"], request["file"])
    try:
        result = doing[request["do"]](request)
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
        streamed=dict(request["streamed"]),
        listener=_tell,
    )
    verdict = dataclasses.replace(verdict, proof=request["name"])
    Path(REPORT).write_text(render(verdict), encoding="utf-8")
    return {"verdict": verdict.to_json(), "proof": _digest(proof)}


def _checkpoint(request: dict[str, Any]) -> dict[str, Any]:
    """Whether a checkpoint has the root that was committed to, and is as good as the terms ask."""
    from polo.protocol.layout import Layout
    from polo.protocol.records import Manifest

    layout = Layout.from_bytes(Path(LAYOUT).read_bytes(), LAYOUT)
    manifest = Manifest.from_bytes(Path(MANIFEST).read_bytes(), MANIFEST)
    result = _weighed(request, manifest, layout, request["shard"], Path(CHECKPOINT))
    if "undecided" in result:
        return {"error": result["undecided"], "kind": "TaskError"}
    return result


def _weighed(
    request: dict[str, Any], manifest: "Manifest", layout: "Layout", number: int, path: Path
) -> dict[str, Any]:
    """Whether a file holds the weights of a shard, and they are as good as the terms ask."""
    from polo.checks import Status
    from polo.verifier import Policy, walking
    from polo.verifier.accuracy import Bench
    from polo.verifier.hashers import Hashers
    from polo.weights.files import FileCheckpoint

    root = manifest.root_before(number + 1)
    with Hashers(layout, 1) as hashers, FileCheckpoint.canonical(path, layout) as checkpoint:
        untested = request["accuracy"] == "none" or not number
        looked_at = [] if untested else [number]
        [one] = walking.seen(iter([(number, checkpoint)]), hashers, looked_at=looked_at)
        if isinstance(one.root, PoloError):
            return {"passed": False, "detail": str(one.root)}
        if one.root != root:
            return {"passed": False, "detail": "its root is not the one that was committed to"}
        detail = f"root {root.hex()[:16]}… as committed to"
        if untested:
            return {"passed": True, "detail": detail}
        bench = Bench(manifest, layout, request["task"], Policy())
        checks = [*bench.problems(), *(bench.test(one) if bench.ready else ())]
    for check in checks:
        if check.status is Status.FAILED:
            return {"passed": False, "detail": check.sentence()}
        if check.status is Status.UNDECIDED:
            return {"undecided": check.sentence()}
    return {"passed": True, "detail": "; ".join([detail, *(check.detail for check in checks)])}


def _replay(request: dict[str, Any]) -> dict[str, Any]:
    """Whether the drawn steps of the newest shard come out as they were recorded."""
    from polo.checks import Status
    from polo.evidence.replay import live
    from polo.protocol.challenge import sealed_file
    from polo.storage.folder import ProofFolder
    from polo.verifier.accuracy import model_of

    challenge, folder = _challenge(), ProofFolder(PROOF)
    assert challenge is not None
    manifest, layout = folder.manifest(), folder.layout()
    task, _ = model_of(manifest, layout, request["task"])
    answer, leaf = _answer(challenge), bytes.fromhex(request["leaf"])
    checks = list(
        live.replayed(folder, manifest, challenge, answer, task=task, leaf=leaf, listener=_tell)
    )
    against = live.objection(checks)
    if against is not None and against.status is Status.FAILED:
        return {"passed": False, "detail": against.sentence()}
    if against is not None:
        return {"undecided": against.sentence()}
    assert answer is not None
    number = len(manifest.shards)
    result = _weighed(request, manifest, layout, number, answer / sealed_file(number))
    if result.get("passed"):
        shown = next(check.detail for check in checks if check.name == "draw")
        result["detail"] = f"{shown}; {result['detail']}"
    return result


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


def _limit(memory: int, seconds: int, file: int) -> None:
    # Of data, not of addresses: graphics drivers reserve addresses without end.
    resource.setrlimit(resource.RLIMIT_DATA, (memory, memory))
    resource.setrlimit(resource.RLIMIT_CPU, (16 * seconds, 16 * seconds))
    resource.setrlimit(resource.RLIMIT_FSIZE, (file, file))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def _die_with_parent() -> None:
    """Whoever asked and was killed will ask again; two at a time would be one too many."""
    parent = os.getppid()
    libc = ctypes.CDLL(None)
    libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)


if __name__ == "__main__":
    sys.exit(main())
