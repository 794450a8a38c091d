"""Replay of the newest shard alone, before a chain is finished: what passes, and what is named."""

import shutil
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from polo.checks import Check, Status
from polo.errors import ChainError, TaskError, TermsError
from polo.evidence.replay import asking, live, platform
from polo.evidence.replay import challenge as challenges
from polo.evidence.replay.recipe import Recipe
from polo.evidence.replay.record import Boundary, Record
from polo.evidence.replay.timeline import Timeline
from polo.protocol.challenge import Challenge, Place, sealed_file, sealing_file
from polo.prover.answering import Answering, task_for
from polo.prover.options import checked_retention
from polo.storage.answers import pack, unpack
from polo.storage.folder import ProofFolder, checkpoint_path
from polo.verifier import effort_section
from polo.verifier.verdict import Verdict

LEAF = bytes(range(32))
FIRST = Place(2, 0).file("model")


def drawn(made: Any, **changes: Any) -> Challenge:
    """What a registry may draw from shard 2."""
    challenge = Challenge(LEAF, (Place(2, 0), Place(2, 1), Place(2, 2)), (2,), True, 1_700_000_000)
    return replace(challenge, **changes)


def replayed(made: Any, challenge: Challenge, answer: Path | None, **options: Any) -> list[Check]:
    folder, settings = ProofFolder(made.path), {"task": made.task, "leaf": LEAF, **options}
    return list(live.replayed(folder, made.manifest, challenge, answer, **settings))


@pytest.fixture(scope="module")
def shown(honest: Any, tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Path]:
    """A proof of which two checkpoints are left, and the answer from it. Not to be changed."""
    made = honest.copied(tmp_path_factory.mktemp("streaming"))
    (made.path / checkpoint_path(0)).unlink()
    left = [file for file in made.manifest.files if file.path != checkpoint_path(0)]
    made.sign(replace(made.manifest, files=tuple(left)))
    out = tmp_path_factory.mktemp("shown") / "answer"
    return made, made.answer(drawn(made), out, leaf=LEAF)


@pytest.fixture
def spoilt(shown: tuple[Any, Path], tmp_path: Path) -> Path:
    """A copy of the answer, to be changed."""
    return Path(shutil.copytree(shown[1], tmp_path / "answer"))


def test_two_checkpoints_are_all_it_takes(shown: tuple[Any, Path], tmp_path: Path) -> None:
    made, answer = shown
    pack(answer, drawn(made), tmp_path / "answer.tar")
    unpack(tmp_path / "answer.tar", drawn(made), tmp_path / "answer")
    checks = replayed(made, drawn(made), tmp_path / "answer")
    assert live.objection(checks) is None
    (draw,) = (check for check in checks if check.name == "draw")
    assert draw.detail.startswith("3 of 3 segments (8 of 8 steps) and 1 sealing")
    assert {check.shard for check in checks if check.name in ("segment", "sealing")} == {2}


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)


def other_weights(path: Path) -> None:
    shutil.copy(path.with_name(FIRST), path)


@pytest.mark.parametrize(
    ("name", "spoil", "check", "words"),
    [
        (sealed_file(2), Path.unlink, "root", "was asked for and is not shown"),
        (sealed_file(2), flip, "root", "its root is not the one"),
        (sealed_file(2), other_weights, "root", "its root is not the one"),
        (sealed_file(2), lambda path: path.write_bytes(b"{}"), "root", ""),
        (FIRST, flip, "root", "its root is not the one"),
        (sealing_file(2), flip, "sealing", "is not the state that was recorded"),
        (Place(2, 1).file("model"), flip, "segment", "is not the state that was recorded"),
        (Place(2, 1).file("rest"), Path.unlink, "segment", "was asked for and is not shown"),
        (Place(2, 2).file("samples"), flip, "segment", ""),
        ("answer.json", flip, "draw", ""),
    ],
)
def test_answers_that_lie_fail_by_name(
    shown: tuple[Any, Path], spoilt: Path, name: str, spoil: Any, check: str, words: str
) -> None:
    spoil(spoilt / name)
    found = live.objection(replayed(shown[0], drawn(shown[0]), spoilt))
    assert found is not None
    assert (found.status, found.name) == (Status.FAILED, check)
    assert words in found.detail
    assert check == "draw" or found.shard == 2
    if check == "segment":
        assert f"segment {int(name[7:17])}" in found.sentence()


def test_no_answer_fails_every_segment(shown: tuple[Any, Path]) -> None:
    checks = replayed(shown[0], drawn(shown[0]), None)
    failed = [check.name for check in checks if check.status is Status.FAILED]
    assert failed == ["segment"] * 3 + ["sealing"]


def test_half_of_every_step_is_named(shown: tuple[Any, Path]) -> None:
    """The verifier's own task does what was declared; the forger's did something else."""
    made = shown[0]

    class Other(type(made.task)):  # type: ignore[misc]
        def train_step(self, model: Any, optimizer: Any, batch: Any) -> None:
            half = {name: values[: len(values) // 2] for name, values in batch.items()}
            super().train_step(model, optimizer, half)

    found = live.objection(replayed(*shown[:1], drawn(made), shown[1], task=Other()))
    assert found is not None
    assert (found.status, found.name, found.shard) == (Status.FAILED, "segment", 2)


@pytest.mark.parametrize(
    "changes",
    [
        {"proof": bytes(32)},
        {"segments": (Place(1, 0), Place(2, 0), Place(2, 1), Place(2, 2))},
        {"sealings": (1, 2)},
        {"segments": (Place(2, 1), Place(2, 2))},
        {"segments": (Place(2, 0), Place(2, 1), Place(2, 9))},
        {"sealings": ()},
    ],
    ids=[
        "another leaf",
        "another shard",
        "its sealing",
        "not the first",
        "none such",
        "no sealing",
    ],
)
def test_nothing_else_is_asked_or_shown(
    shown: tuple[Any, Path], tmp_path: Path, changes: dict[str, Any]
) -> None:
    """A registry is shown no other shard's samples and secrets, and cannot be content with less."""
    made, challenge = shown[0], drawn(shown[0], **changes)
    with pytest.raises(ChainError):
        made.answer(challenge, tmp_path / "answer", leaf=LEAF)
    assert not (tmp_path / "answer").exists()
    found = live.objection(replayed(made, challenge, shown[1]))
    assert found is not None
    assert (found.status, found.name) == (Status.UNDECIDED, "draw")


def test_the_draw_is_over_the_newest_shard(honest: Any) -> None:
    timeline = Timeline.load(ProofFolder(honest.path), honest.manifest, leaf=LEAF)
    challenge = challenges.draw_from(timeline, ends=False)
    assert challenge.proof == LEAF
    assert {place.shard for place in challenge.segments} == {2}
    assert Place(2, 0) in challenge.segments
    assert challenge.sealings == (2,)
    assert asking.unfit(challenge, timeline) is None


def test_on_another_platform_samples_are_compared_on_the_drawn_start(
    shown: tuple[Any, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    made, real = shown[0], platform.describe

    class Turned(type(made.task)):  # type: ignore[misc]
        def train_step(self, model: Any, optimizer: Any, batch: Any) -> None:
            turned = {name: values.flip(0) for name, values in batch.items()}
            super().train_step(model, optimizer, turned)

    monkeypatch.setattr(platform, "describe", lambda device: {**real(device), "name": "abacus"})
    checks = replayed(made, drawn(made), shown[1], task=Turned())
    assert live.objection(checks) is None, [check.sentence() for check in checks]
    assert {check.status for check in checks if check.name == "copies"} == {Status.PASSED}


@pytest.fixture
def timeline() -> Callable[..., Timeline]:
    """The records of a chain whose shards have ten segments each."""

    def make(shards: int, replays: int) -> Timeline:
        record = Record((Boundary(b"", b""),) * 11, ((1, 0),) * 11, "{}")
        receipts = SimpleNamespace(level="receipts", settings={"replays": str(replays)})
        level = SimpleNamespace(level="replay", settings={})
        terms = SimpleNamespace(history="streaming", evidence=(receipts, level))
        each = tuple(SimpleNamespace(steps=10) for _ in range(shards))
        manifest: Any = SimpleNamespace(shards=each, terms=terms)
        recipe = Recipe(samples=64, every=1, draws=5)
        return Timeline(manifest, recipe, dict.fromkeys(range(1, shards + 1), record))

    return make


def test_what_escapes_follows_from_the_terms(timeline: Callable[..., Timeline]) -> None:
    some = asking.grown({2: 6, 3: 7}, timeline(20, 250_000))
    assert some.status is Status.PASSED
    assert "13 segments of shards 2 and 3, out of 20 shards" in some.detail
    assert some.figures["escape_shard"] == 0.75
    assert some.figures["escape_tenth"] == pytest.approx(0.75**2)
    assert some.figures["escape_single"] == pytest.approx(1 - 0.25 * 0.5)
    every = asking.grown({1: 6}, timeline(1, 1_000_000))
    assert every.figures["escape_shard"] == 0
    assert every.figures["escape_single"] == pytest.approx(0.5)
    none = asking.grown({}, timeline(3, 250_000))
    assert none.status is Status.UNDECIDED
    assert "no step was run again" in none.detail


def test_the_thread_that_trains_computes_the_answer(
    shown: tuple[Any, Path], tmp_path: Path
) -> None:
    """Asked on one thread, computed on another; what goes wrong comes back to who asked."""
    made = shown[0].copied(tmp_path)
    answering = Answering(made.path, made.task, made.source, made.key)
    answering.work()
    with ThreadPoolExecutor(1) as courier:
        asked = courier.submit(answering.ask, drawn(made), LEAF).result()
        wrong = courier.submit(answering.ask, drawn(made), bytes(32)).result()
    assert not asked.done()
    answering.work()
    with pytest.raises(ChainError, match="another proof"):
        wrong.result(0)
    again = answering.ask(drawn(made), LEAF)
    answering.work()
    packed = again.result(0)
    assert asked.result(0) == packed
    unpack(packed, drawn(made), tmp_path / "answer")
    assert live.objection(replayed(made, drawn(made), tmp_path / "answer")) is None
    second = answering.ask(replace(drawn(made), made=1), LEAF)
    answering.work()
    with pytest.raises(ChainError, match="draws again"):
        second.result(0)
    answering.clear()
    assert not packed.exists()
    assert sorted(path.name for path in packed.parent.iterdir() if "replay" in path.name) == []


def test_the_report_is_amber_where_shards_were_not_drawn_from(
    timeline: Callable[..., Timeline],
) -> None:
    def page(shards: int, run: dict[int, int], rate: int) -> str:
        found = timeline(shards, rate)
        checks = (asking.grown(run, found),)
        verdict = Verdict("proof", checks, {}, ("chain", "receipts", "replay"), None, ())
        assert verdict.ended("replay") is Status.PASSED
        return " ".join(map(str, effort_section.replay(verdict))) + " ".join(
            words for _, words in verdict.gaps()
        )

    some = page(4, {2: 6}, 250_000)
    assert 'class="amber"' in some
    assert "No step of 3 shards was run again" in some
    assert "one that was faked escapes with probability 0.75" in some
    every = page(2, {1: 6, 2: 6}, 1_000_000)
    assert "amber" not in every
    assert "2 of 2" in every
    assert "one that was faked escapes" not in every


@pytest.fixture
def terms(honest: Any) -> Callable[..., Any]:
    """Terms that ask for replay, with a history and a share of shards that are drawn from."""

    def make(history: str, replays: int) -> Any:
        agreed = honest.manifest.terms
        receipts = SimpleNamespace(level="receipts", settings={"replays": str(replays)})
        return SimpleNamespace(
            task=agreed.task, history=history, evidence=(*agreed.evidence, receipts)
        )

    return make


def test_checkpoints_are_let_go_only_where_steps_are_drawn_before(
    terms: Callable[..., Any],
) -> None:
    options = {"deltas": False, "live": True}
    assert checked_retention(terms("streaming", 1), "streaming", **options).kind == "thin"
    for history, replays in (("streaming", 0), ("any", 500_000), ("all", 0)):
        with pytest.raises(TermsError, match="all checkpoints"):
            checked_retention(terms(history, replays), "streaming", **options)
        with pytest.raises(TermsError, match="all checkpoints"):
            checked_retention(terms(history, replays), 3, **options)
        assert checked_retention(terms(history, replays), "all", **options).kind == "all"


def test_a_task_that_cannot_answer_is_refused_before_training(
    honest: Any, terms: Callable[..., Any]
) -> None:
    agreed, real = terms("streaming", 1), honest.task
    assert task_for(agreed, real) is real
    with pytest.raises(TaskError, match=r"not here.*unknown here"):
        task_for(agreed, None)
    other = SimpleNamespace(name=real.name, version=real.version + 1)
    with pytest.raises(TaskError, match="the terms are about"):
        task_for(agreed, other)  # type: ignore[arg-type]
    idle = SimpleNamespace(name=real.name, version=real.version)
    with pytest.raises(TaskError, match="no train_step"):
        task_for(agreed, idle)  # type: ignore[arg-type]


def test_more_than_the_terms_say_is_not_shown(timeline: Callable[..., Timeline]) -> None:
    found = timeline(2, 1_000_000)
    places = tuple(Place(2, segment) for segment in range(10))
    newest = Timeline(found.manifest, found.recipe, found.records, leaf=LEAF)
    most = 5 + len(newest.required())
    challenge = Challenge(LEAF, places[:most], (2,), False, 1)
    assert asking.immodest(challenge, newest) == ""
    greedy = replace(challenge, segments=places)
    assert f"asks for 10 segments; the terms for {most}" in asking.immodest(greedy, newest)
    assert "with a tolerance" in asking.immodest(replace(challenge, ends=True), newest)
