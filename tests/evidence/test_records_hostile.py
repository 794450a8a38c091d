"""Records that lie, and manifests that do: each ends in a verdict that names shard and segment."""

import shutil
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import polo
from polo.evidence.replay import answer as answers
from polo.evidence.replay import challenge as challenges
from polo.evidence.replay.record import Boundary
from polo.evidence.replay.recorder import Recorder
from polo.evidence.replay.timeline import Timeline
from polo.protocol.challenge import Challenge, Place
from polo.storage.folder import ProofFolder, evidence_path
from polo.verifier import Outcome, Status

DRAWN = Place(2, 1)
"""The segment that records lie about."""


@pytest.fixture
def lying(
    lean: Any, asked: tuple[Challenge, Path], answer: Path, tmp_path: Path
) -> Callable[..., polo.Verdict]:
    """Changes the record of a shard, signs for it, answers with true states, and verifies."""

    def make(shard: int = 2, data: bytes | None = None, **fields: Any) -> polo.Verdict:
        made = lean.copied(tmp_path)
        data = replace(made.record(shard), **fields).encode() if data is None else data
        made.rewrite(shard, data)
        challenge = replace(asked[0], proof=made.manifest.digest)
        made.resign(answer, challenge=challenge.digest)
        return made.verify(challenge, answer)

    return make


def with_move(record: Any, at: int, kind: int, factor: float) -> Any:
    moves = [list(pair) for pair in record.moves]
    moves[at][kind] = min(2**63 - 1, round(moves[at][kind] * factor))
    return tuple(tuple(pair) for pair in moves)


@pytest.mark.parametrize("factor", [0.5, 0.99, 1.01, 3.0])
@pytest.mark.parametrize("which", [0, 1], ids=["weights", "optimizer"])
def test_moves_that_lie(
    which: int,
    factor: float,
    lean: Any,
    lying: Callable[..., polo.Verdict],
    failures: Callable[..., Any],
) -> None:
    verdict = lying(moves=with_move(lean.record(2), 1, which, factor))
    check = next(check for check in failures(verdict) if check.name == "segment")
    assert (check.shard, check.figures["segment"]) == (2, 1)
    assert "; the record says" in check.detail or "; the moves between add up" in check.detail


def test_a_state_that_the_moves_before_do_not_reach(
    lean: Any, lying: Callable[..., polo.Verdict], failures: Callable[..., Any]
) -> None:
    found = failures(lying(moves=with_move(lean.record(2), 0, 0, 0.1)))
    assert any("away from the checkpoint before its shard" in check.detail for check in found)


def test_an_endless_move(
    lean: Any, lying: Callable[..., polo.Verdict], failures: Callable[..., Any]
) -> None:
    found = failures(lying(moves=with_move(lean.record(2), 0, 0, 2.0**62)))
    assert any("endlessly far in its segment 0" in check.detail for check in found)


def test_a_sealing_whose_move_lies(
    lean: Any, lying: Callable[..., polo.Verdict], failures: Callable[..., Any]
) -> None:
    """Even within what noise could be, the drawn sealing tells."""
    found = failures(lying(moves=with_move(lean.record(2), -1, 0, 1.005)))
    assert [(check.name, check.shard) for check in found] == [("sealing", 2)]
    assert "the record says" in found[0].detail


def test_a_sealing_farther_than_its_noise(
    lean: Any, lying: Callable[..., polo.Verdict], failures: Callable[..., Any]
) -> None:
    found = failures(lying(moves=with_move(lean.record(2), -1, 0, 50.0)))
    assert ("record", 2) in [(check.name, check.shard) for check in found]
    assert any("finishing step and noise move them by" in check.detail for check in found)


def test_moves_too_small_for_the_way(
    lean: Any, lying: Callable[..., polo.Verdict], failures: Callable[..., Any]
) -> None:
    moves = ((1, 1), (1, 1), (1, 1), lean.record(2).moves[-1])
    check = next(check for check in failures(lying(moves=moves)) if check.name == "record")
    assert check.shard == 2
    assert "its recorded moves add up to" in check.detail


RECORDS: dict[str, tuple[Callable[[Any], dict[str, Any]], str]] = {
    "link of the optimizer": (
        lambda record: {
            "boundaries": (Boundary(record.boundaries[0].model, bytes(32)), *record.boundaries[1:])
        },
        "the optimizer's state at its start is not what shard 1 ended with",
    ),
    "start": (
        lambda record: {
            "boundaries": (Boundary(bytes(32), record.boundaries[0].rest), *record.boundaries[1:])
        },
        "its first recorded state is not the checkpoint that it starts from",
    ),
    "a state twice": (
        lambda record: {
            "boundaries": (
                *record.boundaries[:3],
                Boundary(record.boundaries[0].model, record.boundaries[3].rest),
            )
        },
        "the model at its boundary 3 is that of boundary 0 of shard 2 again",
    ),
}


@pytest.mark.parametrize("how", RECORDS)
def test_records_with_broken_links(
    how: str, lean: Any, lying: Callable[..., polo.Verdict], failures: Callable[..., Any]
) -> None:
    change, message = RECORDS[how]
    found = [c for c in failures(lying(**change(lean.record(2)))) if c.name == "record"]
    assert [(check.shard, check.detail) for check in found] == [(2, message)]


def test_a_record_that_ends_in_a_state_nobody_had(
    lean: Any, lying: Callable[..., polo.Verdict], only_failure: Callable[..., Any]
) -> None:
    boundaries = list(lean.record(2).boundaries)
    boundaries[2] = Boundary(bytes(32), boundaries[2].rest)
    check = only_failure(lying(boundaries=tuple(boundaries)))
    assert (check.name, check.shard, check.figures["segment"]) == ("segment", 2, 1)
    boundaries[2] = Boundary(lean.record(2).boundaries[2].model, bytes(32))
    assert "came out otherwise" in check.detail


FILES: dict[str, tuple[Callable[[bytes], bytes], str]] = {
    "cut": (lambda data: data[:-1], "a record of 3 segments has"),
    "longer": (lambda data: data + b"\0", "a record of 3 segments has"),
    "more segments": (lambda data: data + bytes(80), "a record of 3 segments has"),
    "empty": (lambda data: b"", "a record of 3 segments has"),
    "another header": (lambda data: data[:12] + b"\0" + data[13:], "header"),
    "platform of junk": (lambda data: data[:-512] + b"\xff" * 512, "platform"),
    "no platform": (lambda data: data[:-512] + b" " * 512, ""),
    "platform of lists": (lambda data: data[:-512] + b'{"device":[]}'.ljust(512), "platform"),
}


@pytest.mark.parametrize("how", FILES)
def test_records_that_are_none(
    how: str, lean: Any, lying: Callable[..., polo.Verdict], only_failure: Callable[..., Any]
) -> None:
    change, message = FILES[how]
    check = only_failure(lying(data=change(lean.record(2).encode())))
    assert check.level == "replay"
    assert evidence_path("replay", 2) in check.place
    assert message in check.detail


def test_a_record_that_the_shard_does_not_commit_to(
    lean: Any, tmp_path: Path, failures: Callable[..., Any], only_failure: Callable[..., Any]
) -> None:
    made = lean.copied(tmp_path)
    made.rewrite(2, made.record(2).encode(), digest=bytes(32))
    check = only_failure(made.verify(made.everything()))
    assert "not the record that the shard commits to" in check.detail
    made.sign(replace(made.manifest, shards=(replace(made.manifest.shards[0], evidence={}),)))
    assert failures(made.verify(made.everything()))


@pytest.mark.parametrize("steps", [0, 7, 9, 10, 2**31, 2**53 - 1])
def test_steps_that_were_not_run(
    steps: int,
    lean: Any,
    asked: tuple[Challenge, Path],
    answer: Path,
    tmp_path: Path,
    failures: Callable[..., Any],
) -> None:
    """Nine steps make as many segments as eight do: the last one, run again, tells."""
    made = lean.copied(tmp_path)
    shards = (made.manifest.shards[0], replace(made.manifest.shards[1], steps=steps))
    made.sign(replace(made.manifest, shards=shards))
    places = (Place(1, 0), Place(2, 2))
    challenge = replace(asked[0], proof=made.manifest.digest, segments=places)
    for part in ("model", "rest", "samples", "end-model", "end-rest"):
        shutil.move(answer / DRAWN.file(part), answer / Place(2, 2).file(part))
    made.resign(answer, challenge=challenge.digest)
    began = time.monotonic()
    found = failures(made.verify(challenge, answer))
    assert time.monotonic() - began < 5
    assert any(check.level == "replay" for check in found)
    if steps in (7, 9):
        assert ("segment", 2) in [(check.name, check.shard) for check in found]
    else:
        assert any(evidence_path("replay", 2) in check.place for check in found)


def test_thousands_of_shards_are_refused_at_once(
    lean: Any, tmp_path: Path, failures: Callable[..., Any]
) -> None:
    made = lean.copied(tmp_path)
    (one, last), manifest = made.manifest.shards, made.manifest
    shards = [one, last]
    shards += [replace(last, shard=number, steps=2**30) for number in range(3, 3001)]
    made.sign(replace(manifest, shards=tuple(shards)))
    began = time.monotonic()
    found = failures(made.verify(made_challenge(made)))
    assert time.monotonic() - began < 20
    assert any("segments in the chain" in c.detail or "cannot be opened" in c.detail for c in found)


def made_challenge(made: Any) -> Challenge:
    return Challenge(made.manifest.digest, (Place(1, 0),), (1,), False, 0)


def test_shards_with_strange_numbers(
    lean: Any, tmp_path: Path, failures: Callable[..., Any]
) -> None:
    made = lean.copied(tmp_path)
    first, second = made.manifest.shards
    for numbers in ((2, 1), (1, 1), (1, 9999)):
        shards = (replace(first, shard=numbers[0]), replace(second, shard=numbers[1]))
        made.sign(replace(made.manifest, shards=shards))
        assert any(check.name == "order" for check in failures(made.verify(made_challenge(made))))


def test_a_nonce_that_is_not_here_decides_nothing_of_its_shard(
    lean: Any,
    asked: tuple[Challenge, Path],
    answer: Path,
    tmp_path: Path,
    open_checks: Callable[..., Any],
) -> None:
    made = lean.copied(tmp_path)
    name = "nonces/000002.json"
    (made.path / name).unlink()
    kept = tuple(file for file in made.manifest.files if file.path != name)
    made.sign(replace(made.manifest, files=kept))
    challenge = replace(asked[0], proof=made.manifest.digest)
    made.resign(answer, challenge=challenge.digest)
    found = open_checks(made.verify(challenge, answer))
    named = [(check.name, check.shard) for check in found]
    assert named == [("nonce", 2), ("sealing", 2), ("segment", 2)]


def inject(optimizer: Any) -> None:
    """Put a made-up momentum into an optimizer: the next steps go where it points."""
    drawing = torch.Generator().manual_seed(5)
    for parameter in optimizer.param_groups[0]["params"]:
        buffer = optimizer.state[parameter]["momentum_buffer"]
        buffer.copy_(torch.randn(buffer.shape, generator=drawing) * 0.6)


def test_a_made_up_momentum_is_found_by_the_segment_before_the_jump(
    training: Callable[..., Any],
    recipe_of: Callable[..., Any],
    honest: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The jump itself is right; who lies about the optimizer's move hides where it came from."""
    recipe = recipe_of(draws=1, top=1, seals=0)
    run = training(tmp_path / "proof", recipe=recipe)
    real = Recorder.after_step

    def faking(self: Recorder) -> None:
        if run.prover.shards == 1 and self.steps == 2:
            inject(run.optimizer)
        real(self)

    monkeypatch.setattr(Recorder, "after_step", faking)
    run.epochs(2)
    run.prover.finish()
    made = replace(honest, path=tmp_path / "proof", recipe=recipe)
    moves = made.record(2).moves
    assert moves[1][0] == max(move for x in (1, 2) for move, _ in made.record(x).moves)
    lie = replace(made.record(2), moves=((moves[0][0], moves[2][1]), *moves[1:]))
    made.rewrite(2, lie.encode())
    timeline = Timeline.load(ProofFolder(made.path), made.manifest)
    drawn = challenges.draw_from(timeline, ends=False)
    challenge = replace(drawn, segments=tuple(sorted(timeline.required())))
    assert Place(2, 0) in challenge.segments
    show = answers._Respondent._show

    def forged(self: Any, engine: Any, place: Place, boundary: int, prefix: str) -> None:
        if place == Place(2, 1):
            inject(engine.optimizer)
        show(self, engine, place, boundary, prefix)

    monkeypatch.setattr(answers._Respondent, "_show", forged)
    monkeypatch.setattr(answers._Respondent, "_check", lambda *_: None)
    verdict = made.verify(challenge, made.answer(challenge, tmp_path / "answer"))
    found = {
        (check.shard, check.figures["segment"]): check.status
        for check in verdict.checks
        if check.name == "segment"
    }
    assert found[2, 1] is Status.PASSED
    assert found[2, 0] is Status.FAILED
    assert verdict.outcome is Outcome.REJECTED
