"""Answers and challenges that lie: each ends in a clear verdict that names the place."""

import json
import os
import random
import weakref
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import polo
from polo.checks import Check
from polo.embedding.presses import PRESSES
from polo.errors import LimitError, PoloError, TaskError
from polo.evidence.replay import challenge as challenges
from polo.evidence.replay import check as level
from polo.evidence.replay import shown
from polo.evidence.replay.rerun import Rerun
from polo.evidence.replay.timeline import Timeline
from polo.protocol.challenge import MAX_PLACES, Answer, Challenge, Place, Secret, sealing_file
from polo.storage.folder import ProofFolder
from polo.verifier import Outcome, Status
from polo.weights.checkpoint import MemoryCheckpoint
from polo.weights.files import FileCheckpoint, write_checkpoint

DRAWN = Place(2, 1)
"""The segment that answers lie about."""


def flip(path: Path, at: int = -1) -> None:
    """Turn one bit of a file."""
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)


def swap(one: Path, other: Path) -> None:
    one.write_bytes(other.read_bytes())


def cut(path: Path) -> None:
    os.truncate(path, path.stat().st_size - 1)


def grow(path: Path) -> None:
    with path.open("ab") as file:
        file.write(b"\0")


def sparse(path: Path) -> None:
    os.truncate(path, 2**40)


def other_layout(path: Path) -> None:
    weights = MemoryCheckpoint({"w": np.zeros(path.stat().st_size // 4, dtype=np.float32)})
    with path.open("wb") as file:
        write_checkpoint(weights, file.write)


def link(path: Path) -> None:
    elsewhere = path.parent.with_name(f"{path.parent.name}-{path.name}.moved")
    path.rename(elsewhere)
    path.symlink_to(elsewhere)


def pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


SPOILT: dict[str, tuple[Callable[[Path], None], str]] = {
    "one bit": (flip, "not the state that was recorded"),
    "cut": (cut, "bytes; a checkpoint of this layout has"),
    "longer": (grow, "bytes; a checkpoint of this layout has"),
    "a terabyte": (sparse, "bytes; a checkpoint of this layout has"),
    "empty": (lambda path: path.write_bytes(b""), "bytes; a checkpoint of this layout has"),
    "another layout": (other_layout, "bytes; a checkpoint of this layout has"),
    "another header": (lambda path: flip(path, 12), "header is not the canonical one"),
    "missing": (Path.unlink, "was asked for and is not shown"),
    "link": (link, "is a link"),
    "pipe": (pipe, "not a plain file"),
    "folder": (folder, "not a plain file"),
}


@pytest.mark.parametrize("how", SPOILT)
def test_a_state_that_is_not_the_recorded_one(
    how: str,
    lean: Any,
    asked: tuple[Challenge, Path],
    answer: Path,
    only_failure: Callable[..., Any],
) -> None:
    spoil, message = SPOILT[how]
    part = "rest" if how in ("cut", "missing") else "model"
    spoil(answer / DRAWN.file(part))
    check = only_failure(lean.verify(asked[0], answer))
    assert (check.name, check.shard, check.figures["segment"]) == ("segment", 2, 1)
    assert message in check.detail
    assert check.place == DRAWN.file(part)
    assert check.sentence().startswith(f"segment (shard 2, segment 1, {check.place}): ")


@pytest.mark.parametrize("name", ["evil.pkl", ".hidden", "000099-0000000000.model.safetensors"])
def test_what_belongs_to_no_answer_is_refused(
    name: str, lean: Any, asked: tuple[Challenge, Path], answer: Path
) -> None:
    assert lean.verify(asked[0], answer).outcome is Outcome.ACCEPTED
    (answer / name).write_bytes(b"")
    verdict = lean.verify(asked[0], answer)
    assert verdict.outcome is Outcome.REJECTED
    [check] = [one for one in verdict.of(Status.FAILED) if one.name == "draw"]
    assert (check.place, check.advice) == (name, "Remove it.")
    assert "belongs to no answer to this challenge" in check.detail


@pytest.mark.parametrize("how", ["one bit", "cut", "missing", "pipe"])
def test_weights_before_a_sealing_that_are_not_the_recorded_ones(
    how: str,
    lean: Any,
    asked: tuple[Challenge, Path],
    answer: Path,
    only_failure: Callable[..., Any],
) -> None:
    spoil, message = SPOILT[how]
    spoil(answer / sealing_file(1))
    check = only_failure(lean.verify(asked[0], answer))
    assert (check.name, check.shard, check.place) == ("sealing", 1, sealing_file(1))
    assert message in check.detail


def test_states_of_other_boundaries(
    lean: Any, asked: tuple[Challenge, Path], answer: Path, failures: Callable[..., Any]
) -> None:
    swap(answer / DRAWN.file("model"), answer / DRAWN.file("end-model"))
    swap(answer / sealing_file(2), answer / sealing_file(1))
    found = failures(lean.verify(asked[0], answer))
    assert [(check.name, check.shard) for check in found] == [("sealing", 2), ("segment", 2)]
    assert {check.detail for check in found} == {"is not the state that was recorded"}


def batch_at(path: Path, lean: Any) -> int:
    """Where the rows of shown samples begin."""
    return 8 + int.from_bytes(path.read_bytes()[:8], "little")


SAMPLES: dict[str, tuple[Callable[[Path, Any], None], str]] = {
    "another label": (
        lambda path, lean: flip(path, batch_at(path, lean)),
        "do not lead to the root",
    ),
    "another salt": (lambda path, lean: flip(path, -40_0), "do not lead to the root"),
    "another path": (lambda path, lean: flip(path), "do not lead to the root"),
    "others": (lambda path, lean: swap(path, path.with_name(Place(1, 0).file("samples"))), ""),
    "cut": (lambda path, lean: cut(path), "samples of these steps take"),
    "header": (lambda path, lean: flip(path, 12), "header of the samples"),
    "missing": (lambda path, lean: path.unlink(), "was asked for and is not shown"),
    "link": (lambda path, lean: link(path), "is a link"),
    "pipe": (lambda path, lean: pipe(path), "not a plain file"),
}


@pytest.mark.parametrize("how", SAMPLES)
def test_batches_that_do_not_match_their_root(
    how: str,
    lean: Any,
    asked: tuple[Challenge, Path],
    answer: Path,
    only_failure: Callable[..., Any],
) -> None:
    spoil, message = SAMPLES[how]
    spoil(answer / DRAWN.file("samples"), lean)
    check = only_failure(lean.verify(asked[0], answer))
    assert (check.name, check.shard, check.figures["segment"]) == ("segment", 2, 1)
    assert message in check.detail
    assert check.place.endswith(DRAWN.file("samples"))


def test_samples_of_other_numbers_with_their_own_proof(
    lean: Any, asked: tuple[Challenge, Path], answer: Path, only_failure: Callable[..., Any]
) -> None:
    """Real samples with real salts, only not those that the order asks for."""
    from polo.evidence.replay.samples import encode_opening

    path = answer / DRAWN.file("samples")
    for first in range(0, 160):
        opening = lean.source.open(np.arange(first, first + 96))
        if len(encode_opening(opening)) == path.stat().st_size:
            break
    path.write_bytes(encode_opening(opening))
    check = only_failure(lean.verify(asked[0], answer))
    assert (check.name, check.figures["segment"]) == ("segment", 1)


SIGNED: dict[str, tuple[Callable[[Path], None], str]] = {
    "unsigned": (
        lambda path: path.write_bytes(
            replace(Answer.from_bytes(path.read_bytes(), ""), signature=bytes(64)).to_bytes()
        ),
        "signature",
    ),
    "missing": (Path.unlink, "cannot be opened"),
    "pipe": (pipe, "not a plain file"),
    "junk": (lambda path: path.write_bytes(b"{}"), ""),
    "another format": (
        lambda path: path.write_bytes(path.read_bytes().replace(b"answer/1", b"answer/2")),
        "polo/answer",
    ),
    "large": (lambda path: path.write_bytes(b" " * (5 * 2**20)), ""),
    "huge": (sparse, "bytes"),
}


def draw_of(verdict: polo.Verdict, challenge: Challenge) -> Any:
    """What is wrong with an answer as a whole; all that was asked for counts as not answered."""
    first, *others = verdict.of(Status.FAILED)
    assert {check.name for check in others} == {"segment", "sealing"}
    named = [(c.shard, c.figures["segment"]) for c in others if c.name == "segment"]
    assert named == [(place.shard, place.segment) for place in challenge.segments]
    assert (first.name, first.level) == ("draw", "replay")
    return first


@pytest.mark.parametrize("how", SIGNED)
def test_an_answer_that_is_not_signed_by_the_prover(
    how: str, lean: Any, asked: tuple[Challenge, Path], answer: Path
) -> None:
    spoil, message = SIGNED[how]
    spoil(answer / "answer.json")
    check = draw_of(lean.verify(asked[0], answer), asked[0])
    assert "answer.json" in check.place
    assert message in check.detail


def test_an_answer_of_somebody_else_or_to_something_else(
    lean: Any, asked: tuple[Challenge, Path], answer: Path, bob: polo.Identity
) -> None:
    lean.resign(answer, key=bob)
    assert "signature" in draw_of(lean.verify(asked[0], answer), asked[0]).detail
    lean.resign(answer, challenge=bytes(32))
    assert "another challenge" in draw_of(lean.verify(asked[0], answer), asked[0]).detail
    later = replace(asked[0], made=asked[0].made + 1)
    assert "another challenge" in draw_of(lean.verify(later, asked[1]), later).detail


def test_an_answer_with_files_of_another_challenge_is_called_that(
    lean: Any, asked: tuple[Challenge, Path], answer: Path
) -> None:
    """Not one of its files, whichever comes first, that belongs to no answer to this one."""
    (answer / "000001-0000000099.model.safetensors").write_bytes(b"")
    later = replace(asked[0], made=asked[0].made + 1)
    check = draw_of(lean.verify(later, answer), later)
    assert (check.place, check.detail) == ("answer.json", "it answers another challenge")


def test_secrets_that_were_not_committed_to(
    lean: Any, asked: tuple[Challenge, Path], answer: Path, only_failure: Callable[..., Any]
) -> None:
    own = Answer.from_bytes((answer / "answer.json").read_bytes(), "answer").secrets
    lies: dict[str, tuple[Secret, ...]] = {
        "is not the one that was committed to": (own[0], Secret(2, bytes(32))),
        "of its noise is not the one": (own[0], Secret(2, own[0].secret)),
        "is not shown": own[:1],
    }
    for message, secrets in lies.items():
        lean.resign(answer, secrets=secrets)
        check = only_failure(lean.verify(asked[0], answer))
        assert (check.name, check.shard, check.place) == ("sealing", 2, "answer.json")
        assert message in check.detail


def stepping(task: Any, steps: int) -> Any:
    class Stepping(type(task)):  # type: ignore[misc]
        def train_step(self, model: Any, optimizer: Any, batch: Any) -> None:
            for _ in range(steps):
                super().train_step(model, optimizer, batch)

    return Stepping()


def raising(task: Any) -> Any:
    class Raising(type(task)):  # type: ignore[misc]
        def train_step(self, model: Any, optimizer: Any, batch: Any) -> None:
            raise RuntimeError("out of memory")

    return Raising()


def growing(task: Any) -> Any:
    class Growing(type(task)):  # type: ignore[misc]
        def train_step(self, model: Any, optimizer: Any, batch: Any) -> None:
            super().train_step(model, optimizer, batch)
            model.register_buffer("seen", torch.zeros(1))

    return Growing()


def screening(task: Any) -> Any:
    class Screening(type(task)):  # type: ignore[misc]
        def refused(self, batch: Any) -> str:
            raise KeyError("no such column")

    return Screening()


OWN_TASKS: dict[str, tuple[Callable[[Any], Any], str]] = {
    "two steps": (lambda task: stepping(task, 2), "made 2 optimizer steps instead of one"),
    "no step": (lambda task: stepping(task, 0), "optimizer step"),
    "cannot screen": (screening, "KeyError: 'no such column'"),
    "raises": (raising, "RuntimeError: out of memory"),
    "another layout": (growing, "changes which tensors the model has"),
}


@pytest.mark.parametrize("how", OWN_TASKS)
def test_a_task_that_does_not_do_decides_nothing(
    how: str, lean: Any, asked: tuple[Challenge, Path], open_checks: Callable[..., Any]
) -> None:
    change, message = OWN_TASKS[how]
    found = open_checks(lean.verify(*asked, task=change(lean.task)))
    assert [(c.name, c.shard, c.figures["segment"]) for c in found] == [
        ("segment", 1, 0),
        ("segment", 2, 1),
    ]
    assert all(message in check.detail for check in found)


def test_a_task_of_another_version_or_without_steps(
    lean: Any, asked: tuple[Challenge, Path], open_checks: Callable[..., Any]
) -> None:
    newer, bare = type(lean.task)(), type("Bare", (), {})()
    newer.version = 2
    for name in ("name", "version", "metric", "floor", "build_model", "evaluate"):
        setattr(bare, name, getattr(lean.task, name))
    for task, message in ((newer, "version 2"), (bare, "cannot be replayed")):
        found = open_checks(lean.verify(*asked, task=task))
        assert {check.level for check in found} >= {"replay"}
        assert any(message in check.detail for check in found)
    other = type(lean.task)(lambda: nn.Linear(16, 4))
    found = open_checks(lean.verify(*asked, task=other))
    assert any("another layout" in check.detail for check in found)


def test_an_answer_is_refused_to_another_version_of_the_task(lean: Any, tmp_path: Path) -> None:
    """Before anything is computed, and both versions are named."""
    newer = type(lean.task)()
    newer.version = 2
    with pytest.raises(TaskError, match=r"tiny version 1; the task here is tiny version 2"):
        lean.answer(lean.everything(), tmp_path / "answer", task=newer)
    assert not (tmp_path / "answer").exists()


def test_a_step_of_another_version_is_a_failure(
    lean: Any, asked: tuple[Challenge, Path], failures: Callable[..., Any]
) -> None:
    """Who trained by another step than the task's own is caught, whatever was signed."""

    class Softer(type(lean.task)):  # type: ignore[misc]
        def train_step(self, model: Any, optimizer: Any, batch: Any) -> None:
            points = batch["point"] * (1 + 1e-6)
            super().train_step(model, optimizer, {**batch, "point": points})

    found = failures(lean.verify(*asked, task=Softer()))
    assert [(check.name, check.shard) for check in found] == [("segment", 1), ("segment", 2)]
    assert {check.detail for check in found} == {
        "came out otherwise than recorded, on the platform it was trained on, by the steps of "
        "tiny version 1"
    }


def test_challenges_that_do_not_fit(
    honest: Any, answered: tuple[Challenge, Path], open_checks: Callable[..., Any]
) -> None:
    challenge, answer = answered
    places = challenge.segments
    timeline = Timeline.load(ProofFolder(honest.path), honest.manifest)
    left_out = max(timeline.required())
    unasked = next(place for place in places if place not in timeline.required())
    misfits = {
        "another proof": replace(challenge, proof=bytes(32)),
        "segment 3 of shard 2, which the proof does not have": replace(
            challenge, segments=(*places, Place(2, 3))
        ),
        "segment 0 of shard 9, which": replace(challenge, segments=(*places, Place(9, 0))),
        "sealing of shard 3, which there is not": replace(challenge, sealings=(1, 2, 3)),
        f"leaves out {left_out}": replace(
            challenge, segments=tuple(place for place in places if place != left_out)
        ),
        "leaves out segment 0 of shard 1": replace(challenge, segments=places[1:]),
        "leaves out the sealing with the largest move": replace(
            challenge, sealings=tuple({1, 2} - timeline.required_sealings())
        ),
    }
    for message, misfit in misfits.items():
        (check,) = open_checks(honest.verify(misfit, answer))
        assert check.name == "draw"
        assert message in check.detail
        assert "polo challenge" in check.advice
    assert unasked


def test_challenges_that_ask_for_too_little(
    train: Callable[..., Any],
    recipe_of: Callable[..., Any],
    tmp_path: Path,
    open_checks: Callable[..., Any],
) -> None:
    made = train(tmp_path / "proof", recipe=recipe_of(draws=4, top=0, seals=2))
    everything = made.everything()
    for message, misfit in {
        "asks for 3 segments, fewer than the 4": replace(
            everything, segments=everything.segments[:3]
        ),
        "asks for 1 sealing, fewer than the 2": replace(
            everything,
            sealings=tuple(
                Timeline.load(ProofFolder(made.path), made.manifest).required_sealings()
            ),
        ),
    }.items():
        (check,) = open_checks(made.verify(misfit))
        assert message in check.detail


def test_a_file_that_is_swapped_after_it_was_read(
    lean: Any, asked: tuple[Challenge, Path], answer: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is hashed is what is used: a file that changes between two looks is refused."""
    real = FileCheckpoint.close

    def swapping(self: FileCheckpoint) -> None:
        real(self)
        if self._path.parent == answer:
            self._path.write_bytes(bytes(self._path.stat().st_size))

    monkeypatch.setattr(FileCheckpoint, "close", swapping)
    verdict = lean.verify(asked[0], answer)
    assert verdict.outcome is Outcome.REJECTED
    assert {check.detail for check in verdict.of(Status.FAILED)} == {
        "the header is not the canonical one"
    }


def test_a_checkpoint_that_is_swapped_after_its_root_was_read(
    lean: Any, asked: tuple[Challenge, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from polo.verifier import verification

    made, real = lean.copied(tmp_path), verification.commit
    weights = sorted((made.path / "checkpoints").iterdir())

    def swapping(checkpoint: Any, **options: Any) -> Any:
        found = real(checkpoint, **options)
        for path in weights:
            flip(path)
        return found

    assert made.verify(*asked).outcome is Outcome.ACCEPTED
    monkeypatch.setattr(verification, "commit", swapping)
    verdict = made.verify(*asked)
    replayed = [check for check in verdict.checks if check.level == "replay"]
    assert not [check for check in replayed if check.status is Status.FAILED]


def test_few_states_are_in_memory_at_a_time(
    honest: Any, answered: tuple[Challenge, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    alive: weakref.WeakSet[Any] = weakref.WeakSet()
    most = made = 0
    real = shown.HeldCheckpoint.__init__

    def counting(self: Any, *arguments: Any) -> None:
        nonlocal most, made
        real(self, *arguments)
        alive.add(self)
        made += 1
        most = max(most, len(alive))

    monkeypatch.setattr(shown.HeldCheckpoint, "__init__", counting)
    monkeypatch.setattr(level, "_SMALL", 0)  # As for a model of which few fit into memory.
    assert honest.verify(*answered).outcome is Outcome.ACCEPTED
    assert made >= 14
    # Three segments, each weights and optimizer: one that runs, one before it, one ahead.
    assert most <= 8


@pytest.mark.slow
def test_any_bit_of_an_answer_counts(
    lean: Any, asked: tuple[Challenge, Path], answer: Path, failures: Callable[..., Any]
) -> None:
    rng = random.Random(7)
    names = sorted(path.name for path in answer.iterdir() if "end-" not in path.name)
    for _ in range(60):
        path = answer / rng.choice(names)
        before = path.read_bytes()
        flip(path, rng.randrange(len(before)))
        assert failures(lean.verify(asked[0], answer))
        path.write_bytes(before)
    assert lean.verify(asked[0], answer).outcome is Outcome.ACCEPTED


def test_documents_have_bounds(lean: Any, tmp_path: Path) -> None:
    challenge = lean.everything()
    path = tmp_path / "challenge.json"
    most = {
        **challenge.to_json(),
        "segments": [{"segment": at, "shard": 1} for at in range(MAX_PLACES + 1)],
    }
    path.write_bytes(json.dumps(most, separators=(",", ":"), sort_keys=True).encode())
    with pytest.raises(PoloError):
        challenges.load(path)
    os.truncate(path, 2**34)
    with pytest.raises(LimitError, match="bytes"):
        challenges.load(path)
    for places in ((Place(1, 1), Place(1, 0)), (Place(1, 0), Place(1, 0))):
        challenges.save(replace(challenge, segments=places), path)
        with pytest.raises(PoloError, match="not sorted, or appear twice"):
            challenges.load(path)
    pipe(path)
    with pytest.raises(PoloError, match="plain file"):
        challenges.load(path)


def test_terms_that_ask_for_more_than_a_challenge_holds(
    lean: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(challenges, "MAX_PLACES", 0)
    with pytest.raises(LimitError, match="the terms ask for"):
        challenges.draw(lean.path)


def test_a_verifier_that_cannot_record_blames_nobody(
    lean: Any,
    asked: tuple[Challenge, Path],
    open_checks: Callable[..., Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def full(self: Any, job: Any) -> None:
        raise OSError("no space left on device")

    monkeypatch.setattr("polo.evidence.replay.notary.Notary.note", full)
    found = open_checks(lean.verify(*asked))
    assert [check.name for check in found] == ["segment", "segment"]
    assert all("this machine could not record it" in check.detail for check in found)
    assert all("memory" in check.advice for check in found)


def test_no_segment_hides_behind_one_that_cannot_be_read(
    lean: Any, asked: tuple[Challenge, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    real, first = Rerun.read, Place(1, 0)

    def read(self: Rerun, place: Place, shown: Any) -> Any:
        if place != first:
            raise ValueError("what nobody thought of")
        return real(self, place, shown)

    def failing(self: Rerun, attempt: Any, shown: Any, *, ends: bool) -> Check:
        return Check("segment", Status.FAILED, "made up", attempt.place.shard, level="replay")

    monkeypatch.setattr(Rerun, "read", read)
    monkeypatch.setattr(Rerun, "judged", failing)
    verdict = lean.verify(*asked)
    assert verdict.outcome is Outcome.REJECTED
    found = {check.shard: check for check in verdict.checks if check.name == "segment"}
    assert found[1].detail == "made up"
    assert "what nobody thought of" in found[2].detail


def test_a_verifier_that_cannot_press_blames_nobody(
    lean: Any,
    asked: tuple[Challenge, Path],
    open_checks: Callable[..., Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delitem(PRESSES, "ednn")
    verdict = lean.verify(*asked)
    assert verdict.outcome is Outcome.UNDECIDED
    found = [check for check in open_checks(verdict) if "can press marks" in check.detail]
    assert {check.name for check in found} == {"segment", "sealing"}
    assert all("polo.presses" in check.advice for check in found)
