"""A whole proof folder, changed by a plan and signed again where the plan says so.

An input is a plan in JSON: `edits`, a list of changes to files, and `sign`, which says who signs
the result (1: files are listed as they are now, 2: the issuer signs, 4: the prover signs). So an
input is short, can be read, and reaches what lies behind the signatures.
"""

import io
import json
import random
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rich.console import Console

import polo
from fuzz import folder_edits, mutation, promises, proofs, sandbox
from fuzz.target import Target
from polo.verifier import report, terminal

ISSUER_SIGNS, PROVER_SIGNS = 2, 4
_WITH_ALL = {"test": 1, "model": 1, "show": 1}


def _original(which: object) -> Path:
    """The proof that a plan begins with: with all checkpoints, thin, or of a bought model."""
    if which == "bought":
        return proofs.bought()
    return proofs.proof(retention="thin", deltas=False) if which == "thin" else proofs.proof()


def check(data: bytes) -> None:
    """A verdict, whatever the folder holds; and none that accepts what nobody signed."""
    try:
        plan = json.loads(data)
        edits, sign = list(plan["edits"]), int(plan["sign"])
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError):
        return
    folder = sandbox.folder("proof") / "proof"
    shutil.copytree(_original(plan.get("proof")), folder)
    changed = folder_edits.apply(folder, edits[:16])
    folder_edits.sign(folder, sign)
    temporary = sandbox.folder("temporary")
    with promises.refusals(), promises.confined(temporary), sandbox.temporary(temporary):
        verdict = polo.verify(
            folder,
            trust=proofs.ISSUER.public_key,
            task=proofs.task(),
            policy=polo.Policy("all" if plan.get("test") else "none"),
            model=folder / "checkpoints/000002.safetensors" if plan.get("model") else None,
        )
    if changed and not sign & (ISSUER_SIGNS | PROVER_SIGNS):
        promises.require(verdict.outcome is not polo.Outcome.ACCEPTED, "changes are noticed")
    if not changed and not sign:
        promises.require(verdict.outcome is polo.Outcome.ACCEPTED, "an honest proof is accepted")
    if plan.get("show"):
        show(verdict)


def show(verdict: polo.Verdict) -> None:
    """A verdict can be shown in every way there is."""
    json.dumps(verdict.to_json(), allow_nan=False)
    report.render(verdict).encode()
    terminal.show(verdict, Console(file=io.StringIO(), width=80))


def plans() -> Iterator[bytes]:
    """Nothing changed, and one change of each kind."""
    rng = random.Random(0)
    for which in ("all", "thin", "bought"):
        for sign in (0, 1, 7):
            yield mutation.spell({"edits": [], "sign": sign, "proof": which})
        for kind in folder_edits.KINDS:
            edit = folder_edits.draw(_original(which), kind, rng)
            yield mutation.spell({"edits": [edit], "sign": 7, "proof": which, **_WITH_ALL})


def mutate(data: bytes, rng: random.Random) -> bytes:
    """Most times one edit more that means something in this folder."""
    plan: Any = json.loads(data)
    if not rng.randrange(3) or not isinstance(plan, dict):
        return mutation.document(data, rng)
    edits = plan.get("edits")
    edits = edits[-8:] if isinstance(edits, list) else []
    kind = rng.choice(folder_edits.KINDS)
    edits.append(folder_edits.draw(_original(plan.get("proof")), kind, rng))
    plan |= {"edits": edits, "sign": rng.choice((0, 1, 5, 7, 7, 7))}
    plan |= {name: int(not rng.randrange(4)) for name in _WITH_ALL}
    return mutation.spell(plan)


TARGET = Target(check, plans, mutate, most_mib=192)
