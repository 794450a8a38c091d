"""What the tests of verdicts share: pages that are parsed, and verdicts with levels of effort."""

import random
from collections.abc import Callable, Iterator
from html.parser import HTMLParser
from typing import Any

import pytest

from polo.checks import Check, Status
from polo.evidence.progress.judgement import judge
from polo.evidence.progress.rules import Rules
from polo.evidence.progress.survey import Findings, ShardFigures
from polo.evidence.replay.challenge import escape
from polo.verifier import hashers
from polo.verifier.verdict import Verdict
from polo.weights import sharing

VOID = {"meta", "br"}
EVERYTHING = ("chain", "progress", "replay")
FACTS: dict[str, str | int] = {
    "identity": "44" * 32,
    "issuer": "8e" * 32,
    "task": "digits (version 1)",
    "metric": "accuracy",
    "bits": 256,
    "scheme": "ednn, block keys, 256 bits",
    "eta_verify": "0.7",
    "log2_p_threshold": -64,
    "final_root": "06" * 32,
    "issued": 1_794_774_241,
}
START = {
    "free": Check("start", Status.NOTE, "free: nothing is claimed about the start"),
    "parent": Check("start", Status.PASSED, "parent: it starts from 0102030405060708…"),
    "derived": Check("start", Status.PASSED, "drawn: W_0 is what the enrolment fixes"),
}


class Page(HTMLParser):
    """Collects elements with their attributes and text; refuses bad nesting."""

    def __init__(self, source: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str], list[str]]] = []
        self._open: list[int] = []
        self.feed(source)
        self.close()
        assert not self._open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        names = [name for name, _ in attrs]
        assert len(names) == len(set(names)), f"{tag} has an attribute twice"
        self.elements.append((tag, {name: value or "" for name, value in attrs}, []))
        if tag not in VOID:
            self._open.append(len(self.elements) - 1)

    def handle_endtag(self, tag: str) -> None:
        assert self.elements[self._open.pop()][0] == tag

    def handle_data(self, data: str) -> None:
        for at in self._open:
            self.elements[at][2].append(data)

    def find(self, tag: str, **wanted: str) -> list[str]:
        """Texts of the elements with a tag and these words in their attributes."""
        return [
            "".join(text)
            for name, attributes, text in self.elements
            if name == tag
            and all(w in attributes.get(k.rstrip("_"), "").split() for k, w in wanted.items())
        ]


@pytest.fixture(scope="session")
def read_page() -> Callable[[str], Page]:
    """Parses a page; refuses bad nesting."""
    return Page


def chain_checks(shards: int) -> Iterator[Check]:
    """What level chain finds, newest shard first."""
    yield Check("manifest", Status.PASSED, "format polo/proof/1")
    for shard in range(shards, 0, -1):
        eta = 1 - shard / (20 * shards)
        figures = {"eta": eta, "matches": round(eta * 256), "bits": 256, "log2_p": -200.0 * eta}
        yield Check("mark", Status.PASSED, f"η = {eta:.4f}", shard, figures=figures)
        measured = 0.95 - 0.6 / (shard + 1)
        said = {"measured": measured, "floor": 0.1}
        yield Check("accuracy", Status.PASSED, f"accuracy {measured:.4f}", shard, figures=said)


def progress_checks(shards: int, *, forged: bool = False, parent: bool = False) -> Iterator[Check]:
    """What level progress finds: in a run that learns, or where a finished model was edited."""
    figures = tuple(
        ShardFigures(
            shard,
            outside=0.002 if forged else 0.02 + 0.3 / shard,
            inside=0.05,
            noise=0.002,
            z=random.Random(shard).gauss(0, 1) if forged else 140 / shard,
            loss=0.2 if forged else 0.1 + 2.2 / (shard + 1),
        )
        for shard in range(1, shards + 1)
    )
    start = 0.2 if forged else 2.303
    findings = Findings(figures, 1.0 if forged else 57.0, 0.43, min(shards, 8), start)
    yield from judge(findings, Rules(), parent=parent)


def replay_checks(
    shards: int,
    segments: int,
    draws: int,
    *,
    wrong: tuple[tuple[int, int], ...] = (),
    answered: bool = True,
    inexact: int = 0,
    always: int = 8,
) -> Iterator[Check]:
    """What level replay finds: every shard has so many segments, and the largest come first."""
    for shard in range(1, shards + 1):
        recorded = {"segments": segments, "steps": 10 * segments, "largest": 1.2 / shard}
        detail = f"{segments} segments lie end to end"
        yield Check("record", Status.PASSED, detail, shard, figures=recorded, level="replay")
    places = [(shard, at) for shard in range(1, shards + 1) for at in range(segments)]
    required = set(places[:always])
    drawn = set(random.Random(0).sample(places, min(draws, len(places))))
    asked = sorted(drawn | required | set(wrong))
    for number, (shard, at) in enumerate(asked):
        figures: dict[str, float | int | str] = {
            "segment": at,
            "always": int((shard, at) in required),
        }
        if not answered or (shard, at) in wrong:
            detail = "came out otherwise than recorded, on the platform it was trained on"
            detail = detail if answered else "was asked for, and there is no answer"
            yield Check("segment", Status.FAILED, detail, shard, figures=figures, level="replay")
            continue
        figures["move"] = (1.2 - 0.5 * at / segments) / shard
        if number < inexact:
            figures |= {"distance": 1e-6, "allowed": 1e-5}
        detail = "10 steps, run again, the same to the bit"
        yield Check("segment", Status.PASSED, detail, shard, figures=figures, level="replay")
    if not answered:
        return
    for shard in {1, shards // 2 or 1, shards}:
        detail = "finishing step and committed noise, done again, give the sealed weights"
        yield Check("sealing", Status.PASSED, detail, shard, level="replay")
    seen: dict[str, float | int | str] = {"shown": 1480, "repeated": 7, "distinct": 1.0}
    yield Check("data", Status.PASSED, "1480 samples were shown", figures=seen, level="replay")
    if wrong:
        return
    total = shards * segments
    figures = {
        "segments": total,
        "drawn": draws,
        "run": len(asked),
        "steps": 10 * len(asked),
        "exact": len(asked) - inexact,
        "escape_tenth": escape(0.1, draws, total),
        "escape_single": escape(1 / total, draws, total),
    }
    yield Check("draw", Status.PASSED, "drawn", figures=figures, level="replay")


UNDRAWN = Check(
    "draw",
    Status.UNDECIDED,
    "nothing was drawn yet, so no step was run again",
    level="replay",
    advice="Draw segments (polo challenge PROOF --out challenge.json), let the prover answer.",
)


def effort_verdict(
    *more: Check,
    levels: tuple[str, ...] = EVERYTHING,
    shards: int = 10,
    segments: int = 22,
    draws: int = 44,
    start: str = "derived",
    forged: bool = False,
    drawn: bool = True,
    **replay: Any,
) -> Verdict:
    """A verdict under terms with these levels."""
    checks = list(chain_checks(shards))
    if "progress" in levels:
        checks += progress_checks(shards, forged=forged)
    if "replay" in levels:
        found = list(replay_checks(shards, segments, draws, **replay))
        checks += found if drawn else [*found[:shards], UNDRAWN]
    facts = {**FACTS, "shards": shards, "start": start}
    return Verdict("proof", (*checks, START[start], *more), facts, levels)


@pytest.fixture(name="effort_verdict")
def _effort_verdict() -> Callable[..., Verdict]:
    """Makes verdicts with levels of effort."""
    return effort_verdict


@pytest.fixture
def hashed_by_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    """However little there is to hash, it counts as much."""
    monkeypatch.setattr(sharing, "LARGE", 1)
    monkeypatch.setattr("polo.verifier.files.LARGE", 1)
    monkeypatch.setattr(hashers, "MUCH", 1)
