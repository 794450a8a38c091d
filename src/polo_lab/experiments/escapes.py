"""How often a shortcut escapes: what verdicts state, and what draws show.

A forgery is made once, with a known set of faked segments, and challenged many times: whether a
challenge asks for one of them takes no running again. A few challenges are answered and verified.
"""

from collections.abc import Iterable, Iterator
from typing import Any

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
from polo_lab.experiments.effort_rows import HONEST
from polo_lab.experiments.experiment import Bench, Experiment, Measured
from polo_lab.experiments.lines import Line, Recording, Settings
from polo_lab.experiments.origin import origins
from polo_lab.experiments.statistics import clopper_pearson
from polo_lab.experiments.table import Table, markdown

SHORTCUTS: tuple[Attack, ...] = (Skipping(0.1), Skipping(0.25), Detour())
_HEAD = (
    "run", "optimizer", "segments faked", "drawn", "escape, stated", "escapes, observed",
    "95 % interval", "accepted, of those verified",
)  # fmt: skip

_WORDS = """\
Verdicts state how likely a prover escapes who faked so many segments. Here forgeries on a chain of
many segments, of which it is known which are faked, are challenged again and again: an escape is a
challenge that asks for none of them. That takes no running again; a few challenges of each are
answered and verified in full, where other checks may see what no draw did. The terms have `top` 0:
those of large moves would be run again on top of those drawn, and hardly a forgery would escape."""


def units(quick: bool) -> Iterable[Settings]:
    """An honest run and a forgery of every kind, on a few cases."""
    runs, challenges, verified = (1, 50, 0) if quick else (3, 300, 2)
    task, shortcuts = ("digits-mlp", SHORTCUTS[1:2]) if quick else ("digits-long", SHORTCUTS)
    for seed in range(runs):
        for attack in (HONEST, *(one.name for one in shortcuts)):
            yield {
                "task": task,
                "attack": attack,
                "optimizer": OPTIMIZERS[seed % len(OPTIMIZERS)],
                "seed": seed,
                "challenges": challenges,
                "verified": verified,
            }


def measure(settings: Settings, bench: Bench) -> Measured:
    """Make one forgery, or take the honest run, and challenge it many times."""
    key = Key(settings["task"], settings["optimizer"], "constant", settings["seed"])
    case: Case = bench.once(key, lambda: key.case(bench.folder / "case"))
    if settings["attack"] == HONEST:
        attempt = Attempt(case.victim.proof, respond(case.task, case.victim), 0.0, 0)
    else:
        attack = next(one for one in SHORTCUTS if one.name == settings["attack"])
        attempt = attack.run(case, bench.folder / attack.name)
    return Measured(_challenged(case, attempt, settings["challenges"], settings["verified"]))


def _challenged(case: Case, attempt: Attempt, challenges: int, verified: int) -> dict[str, Any]:
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
        "missed": sum(not faked & set(places) for places in asked),
        "accepted": sum(found.outcome == "accepted" for found in judged),
    }


def wrong(line: Line) -> str:
    """An honest run that was not accepted."""
    row = line.values
    refused = row["attack"] == HONEST and row["accepted"] < row["verified"]
    return "an honest run was not accepted" if refused else ""


def tables(recording: Recording) -> Iterator[Table]:
    """Escapes, stated and observed."""
    if recording.done:
        yield Table(
            "Chances of escape, stated and observed",
            _HEAD,
            [_cells(line.values) for line in recording.done],
            _WORDS,
        )


def sections(recording: Recording) -> Iterator[str]:
    """The part's text, piece by piece; nothing if nothing was recorded."""
    for table in tables(recording):
        yield f"## {table.title}"
        yield table.words
        yield from origins(recording)
        yield markdown(table)


def _cells(row: dict[str, Any]) -> tuple[str, ...]:
    low, high = clopper_pearson(row["missed"], row["challenges"])
    observed: tuple[str, ...] = (
        f"{100 * row['stated']:.2g} %",
        f"{row['missed']} of {row['challenges']}",
        f"{100 * low:.1f} to {100 * high:.1f} %",
    )
    if row["attack"] == HONEST:
        observed = ("–",) * len(observed)
    return (
        row["attack"],
        row["optimizer"],
        f"{row['faked']} of {row['segments']}",
        str(row["drawn"]),
        *observed,
        f"{row['accepted']} of {row['verified']}",
    )


EXPERIMENTS = (
    Experiment(
        name="escapes",
        title="how often a shortcut escapes the draw, stated and observed",
        units=units,
        measure=measure,
        tables=tables,
        group=("task", "optimizer", "seed"),
        wrong=wrong,
        workers=2,
    ),
)
