"""How often a shortcut escapes: what verdicts state, and what draws show.

A forgery is made once, with a known set of faked segments, and challenged many times: whether a
challenge asks for one of them takes no running again. A few challenges are answered and verified.
"""

import json
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self

from polo.evidence.replay import challenge as drawing
from polo.evidence.replay.timeline import Timeline
from polo.storage.folder import ProofFolder
from polo_lab.attacks.effort.answering import Respondent
from polo_lab.attacks.effort.detour import Detour
from polo_lab.attacks.effort.skipping import Skipping
from polo_lab.effort.case import Attack, Attempt, Case
from polo_lab.effort.catalogue import Key
from polo_lab.effort.judging import judge
from polo_lab.effort.plan import OPTIMIZERS
from polo_lab.effort.training import respond
from polo_lab.experiments.rows import HONEST

TASK = "digits-long"
SHORTCUTS: tuple[Attack, ...] = (Skipping(0.1), Skipping(0.25), Detour())


@dataclass(frozen=True)
class Escape:
    """One forgery, or one honest run, and how it fared.

    Attributes:
        attack: Name of the attack, or `honest`.
        optimizer: The optimizer of its case.
        seed: The seed of its case.
        segments: Segments of the chain.
        drawn: How many of them are drawn.
        faked: How many of them are faked.
        stated: Chance of escape that a verdict states for so many.
        challenges: Challenges that were drawn.
        missed: Those of them that ask for no faked segment.
        verified: Challenges that were answered and verified.
        accepted: Those of them that ended in an accepted proof.
    """

    attack: str
    optimizer: str
    seed: int
    segments: int
    drawn: int
    faked: int
    stated: float
    challenges: int
    missed: int
    verified: int
    accepted: int

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> Self:
        """From plain values."""
        return cls(**values)


def run(header: dict[str, object], *, runs: int, challenges: int, verified: int, out: Path) -> int:
    """Measure, and write down each forgery when it is done; 0 if all honest runs were accepted.

    Args:
        header: What to write down about the machine and the command.
        runs: Cases; each has an honest run and a forgery of every kind.
        challenges: Challenges to draw of each forgery.
        verified: Challenges of each that are answered and verified.
        out: The file of JSON lines to add to.
    """
    wrong = 0
    with out.open("a", encoding="utf-8") as file:
        print(json.dumps({"run": header}), file=file, flush=True)
        for row in _rows(runs, challenges, verified):
            print(json.dumps({"escape": asdict(row)}), file=file, flush=True)
            print(row, flush=True)
            wrong += row.attack == HONEST and row.accepted < row.verified
    return int(wrong > 0)


def _rows(runs: int, challenges: int, verified: int) -> Iterator[Escape]:
    for seed in range(runs):
        key = Key(TASK, OPTIMIZERS[seed % len(OPTIMIZERS)], "constant", seed)
        with tempfile.TemporaryDirectory(prefix="polo-lab-") as temporary:
            case = key.case(Path(temporary) / "case")
            victim = case.victim
            honest = Attempt(victim.proof, respond(case.task, victim), 0.0, 0)
            found = _measured(case, honest, challenges, verified)
            yield Escape(HONEST, key.optimizer, seed, **found)
            for attack in SHORTCUTS:
                attempt = attack.run(case, Path(temporary) / attack.name)
                found = _measured(case, attempt, challenges, verified)
                yield Escape(attack.name, key.optimizer, seed, **found)


def _measured(case: Case, attempt: Attempt, challenges: int, verified: int) -> dict[str, Any]:
    folder = ProofFolder(attempt.proof)
    timeline = Timeline.load(folder, folder.manifest())
    faked = attempt.respond.faked if isinstance(attempt.respond, Respondent) else set()
    total, drawn = timeline.segments, timeline.recipe.draws
    asked = (drawing.draw_from(timeline, ends=False).segments for _ in range(challenges))
    judged = [
        judge(case, attempt, attempt.proof.with_name(f"{attempt.proof.name}-answer-{number}"))
        for number in range(verified)
    ]
    return {
        "segments": total,
        "drawn": drawn,
        "faked": len(faked),
        "stated": drawing.overlooked(len(faked), drawn, total),
        "challenges": challenges,
        "missed": sum(not faked & set(places) for places in asked),
        "verified": verified,
        "accepted": sum(found.outcome == "accepted" for found in judged),
    }


def read(path: Path) -> tuple[list[dict[str, Any]], list[Escape]]:
    """Headers and rows of a file of JSON lines."""
    lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    found = [Escape.from_json(line["escape"]) for line in lines if "escape" in line]
    return [line["run"] for line in lines if "run" in line], found


def record(lines: Path, path: Path) -> None:
    """Keep the rows of a file of JSON lines as a document."""
    runs, found = read(lines)
    rows = ",\n".join(json.dumps(asdict(row)) for row in found)
    text = f'{{\n"runs": {json.dumps(runs, ensure_ascii=False)},\n"rows": [\n{rows}\n]\n}}\n'
    path.write_text(text, encoding="utf-8")


def load(path: Path) -> tuple[list[dict[str, Any]], Sequence[Escape]]:
    """What was recorded; nothing if there is no such document."""
    if not path.exists():
        return [], []
    value = json.loads(path.read_text(encoding="utf-8"))
    return value["runs"], [Escape.from_json(row) for row in value["rows"]]
