"""Level progress: its statistics, its settings, its rules."""

import math
import tracemalloc
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats

import polo
from polo import cli
from polo.checks import Check, Status
from polo.errors import TermsError
from polo.evidence.progress.check import noise_of
from polo.evidence.progress.judgement import judge
from polo.evidence.progress.rules import KINDS, Rules
from polo.evidence.progress.sample import Sample
from polo.evidence.progress.survey import Findings, ShardFigures, Survey, combined, descent
from polo.protocol.carrier import Carrier
from polo.protocol.layout import CHUNK_BYTES, Layout, Tensor
from polo.protocol.records import NoiseTerms

# The statistic of descent.


@pytest.mark.parametrize("heavy", [False, True])
def test_updates_that_know_nothing_of_the_gradient_give_a_standard_normal(heavy: bool) -> None:
    drawing = np.random.default_rng(4)
    slope = drawing.standard_normal(3000) ** (3 if heavy else 1)
    scores = [descent(drawing.laplace(size=3000), slope) for _ in range(2000)]
    assert abs(np.mean(scores)) < 4 / math.sqrt(2000)
    assert np.var(scores) == pytest.approx(1, abs=0.13)
    assert stats.kstest(scores, "norm").pvalue > 0.001


def test_a_step_against_the_gradient_scores_high_and_one_along_it_low() -> None:
    slope = np.random.default_rng(0).standard_normal(900)
    assert descent(-0.1 * slope, slope) > 15
    assert descent(0.1 * slope, slope) < -15


@pytest.mark.parametrize(
    ("update", "slope"),
    [
        (np.zeros(8), np.ones(8)),
        (np.ones(8), np.zeros(8)),
        (np.zeros(0), np.zeros(0)),
        (np.full(8, np.nan), np.ones(8)),
        (np.array([1e300, -1e300]), np.array([1e300, 1e300])),
    ],
)
def test_what_has_no_score_scores_nothing(
    update: np.ndarray[Any, Any], slope: np.ndarray[Any, Any]
) -> None:
    assert descent(update, slope) == 0


def test_every_weight_that_moved_counts_alike() -> None:
    slope = np.array([1.0, 1e9, -1e-9, 3.0, 0.0])
    update = np.array([-1e-200, -1.0, 1e200, 0.0, 1.0])
    assert descent(update, slope) == 3 / math.sqrt(3)
    assert descent(-update, slope) == -3 / math.sqrt(3)


def test_scores_combine_to_a_standard_normal() -> None:
    drawing = np.random.default_rng(2)
    scores = [combined(list(drawing.standard_normal(7))) for _ in range(2000)]
    assert stats.kstest(scores, "norm").pvalue > 0.001
    assert combined([1.0, None]) is None
    assert combined([]) is None


# The path and the movement.


def carrier(weights: int = 2**16) -> Carrier:
    half = Tensor("a", "F32", (weights // 2,)), Tensor("b", "F32", (weights // 2,))
    return Carrier(Layout(CHUNK_BYTES, half, ()), ("a", "b"), 256)


def survey(
    walk: Sequence[np.ndarray[Any, Any]], noise: float = 0.0, marks: Sequence[int] = ()
) -> Findings:
    """What a survey finds on a walk; the mark of each shard is in the same blocks."""
    sample = Sample(carrier())
    found = Survey(sample, [noise] * (len(walk) - 1), lambda _: marks)
    for values in reversed(walk):
        assert found.expected >= 0
        found.add(values.reshape(len(sample), 256), None, None)
    assert found.expected == -1
    return found.findings()


def points() -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    drawing = np.random.default_rng(5)
    return drawing.standard_normal(2**16), 3 * drawing.standard_normal(2**16)


def noisy(values: np.ndarray[Any, Any], seed: int) -> np.ndarray[Any, Any]:
    """Noise as declared: σ of 0.04 on a quarter of the weights."""
    drawing = np.random.default_rng(seed)
    touched = drawing.random(values.shape) < 0.25
    scale = 0.04 * math.sqrt(np.mean(np.square(values)))
    return values + touched * drawing.standard_normal(values.shape) * scale


NOISE = 0.25 * 0.04**2


@pytest.mark.parametrize("shards", [3, 8, 30])
def test_a_line_is_straight_whatever_noise_is_on_it(shards: int) -> None:
    start, end = points()
    line = [start + (end - start) * share / shards for share in range(shards + 1)]
    found = survey([noisy(point, at) for at, point in enumerate(line)], NOISE)
    assert found.straight == pytest.approx(1, abs=0.01)
    assert found.moved is not None
    assert found.moved > 10


def test_a_walk_without_direction_is_not_straight() -> None:
    drawing = np.random.default_rng(6)
    walk = [np.ones(2**16)]
    for _ in range(16):
        walk.append(walk[-1] + 0.2 * drawing.standard_normal(2**16))
    found = survey(walk, NOISE)
    assert found.straight == pytest.approx(1 / math.sqrt(8), abs=0.02)


def test_noise_alone_moves_as_much_as_noise_does() -> None:
    walk = [points()[0]]
    for seed in range(12):
        walk.append(noisy(walk[-1], seed))
    found = survey(walk, NOISE)
    assert found.moved == pytest.approx(1, abs=0.02)
    assert all(item.outside == pytest.approx(item.noise, rel=0.05) for item in found.shards)


def test_what_happens_inside_a_mark_is_no_movement() -> None:
    still = points()[0].reshape(-1, 256)
    edited = still.copy()
    edited[[3, 200]] += 1
    found = survey([still, edited, still, edited], NOISE, marks=[3, 200])
    assert found.moved == 0
    assert [item.outside for item in found.shards] == [0, 0, 0]
    assert all(item.inside > 0.3 for item in found.shards)


def test_where_every_weight_is_marked_nothing_is_told() -> None:
    start, end = points()
    found = survey([start, end, start, end], NOISE, marks=range(256))
    assert found.moved is None
    assert found.straight is None
    checks = {check.name: check for check in judge(found, Rules()) if not check.shard}
    assert checks["movement"].status is Status.UNDECIDED
    assert checks["path"].status is Status.NOTE


def test_weights_that_never_move_move_nothing() -> None:
    found = survey([points()[0]] * 5)
    assert found.moved == 0
    assert found.straight is None


def test_weights_beyond_double_precision_do_not_disturb() -> None:
    start, end = points()
    found = survey([start, 1e200 * end, start, end])
    assert [check.status for check in judge(found, Rules())][1] is not None


def test_the_noise_that_is_expected_is_the_noise_that_terms_declare() -> None:
    assert noise_of(NoiseTerms(250_000, 40_000, 40_000), 40_000) == pytest.approx(NOISE)
    assert noise_of(NoiseTerms(100_000, 0, 40_000), 40_000) == pytest.approx(25 / 256 * 0.0016)
    assert noise_of(NoiseTerms(0, 0, 0), 0) == 0


class Zeros:
    """A checkpoint that takes no memory."""

    def __init__(self, layout: Layout) -> None:
        self.layout = layout

    def read(self, tensor: int, start: int, stop: int) -> bytes:
        return bytes(stop - start)


def test_memory_does_not_grow_with_the_model() -> None:
    large = carrier(2**27)
    sample = Sample(large, most=2**14)
    found = Survey(sample, [NOISE] * 40, lambda _: (0, 1, 64))
    tracemalloc.start()
    try:
        for _ in range(41):
            found.add(sample.values(Zeros(large.layout)), None, None)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert len(sample) == 64
    assert peak < 16 * 8 * 2**14
    assert found.findings().moved == 0


# The settings.


def test_settings_go_round() -> None:
    rules = Rules(downhill=7.5, moved=2, straight=0.9)
    assert Rules.from_settings(rules.to_settings()) == rules
    assert Rules.from_settings({}) == Rules()
    assert rules.to_settings().keys() == KINDS.keys()


@pytest.mark.parametrize(
    ("settings", "place"),
    [
        ({"uphill": "6"}, "progress.uphill"),
        ({"downhill": "six"}, "progress.downhill"),
        ({"downhill": "-1"}, "progress.downhill"),
        ({"moved": "nan"}, "progress.moved"),
        ({"clear": "1e999"}, "progress.clear"),
        ({"fall": "1"}, "progress.fall"),
        ({"straight": ""}, "progress.straight"),
    ],
)
def test_other_settings_are_refused(settings: dict[str, str], place: str) -> None:
    with pytest.raises(TermsError) as caught:
        Rules.from_settings(settings)
    assert caught.value.place == place


def test_thresholds_out_of_bounds_are_refused() -> None:
    with pytest.raises(TermsError, match="no number"):
        Rules(fall=2.0)


def test_terms_ask_for_every_checkpoint(enrol: Callable[..., polo.OfflineEnrolment]) -> None:
    plain, asked = enrol().record.terms, enrol(progress=True).record.terms
    assert (plain.history, asked.history) == ("any", "all")
    assert [item.level for item in asked.evidence] == ["chain", "progress"]
    own = enrol(progress=Rules(downhill=9)).record.terms.evidence[1]
    assert Rules.from_settings(own.settings) == Rules(downhill=9)


def test_an_issuer_asks_for_it(tmp_path: Path, alice: Any, issuer: Any) -> None:
    issuer.save(tmp_path / "issuer.key")
    polo.keys.save_public(alice.public_key, tmp_path / "alice.pub")
    order = ["enrol", "--task", "digits", "--progress", "--out", tmp_path / "out"]
    order += ["--identity", tmp_path / "alice.pub", "--issuer", tmp_path / "issuer.key"]
    assert cli.run([str(word) for word in order]) == 0
    terms = polo.OfflineEnrolment.load(tmp_path / "out").record.terms
    assert [item.level for item in terms.evidence] == ["chain", "progress"]
    assert terms.history == "all"


# The rules.

GOOD = Findings(
    tuple(ShardFigures(at, 0.1, 0.3, 0.02, 20.0 / at, 2.0 / at) for at in range(1, 9)),
    moved=30.0,
    straight=0.8,
    legs=8,
    start_loss=2.3,
)


def judged(findings: Findings = GOOD, **options: Any) -> dict[str, Check]:
    checks = list(judge(findings, Rules(), **options))
    assert all(check.level == "progress" and check.meaning for check in checks)
    assert all(
        isinstance(value, str) or math.isfinite(value)
        for check in checks
        for value in check.figures.values()
    )
    assert [check.shard for check in checks if check.shard] == [s.shard for s in findings.shards]
    return {check.name: check for check in checks if not check.shard}


def test_a_good_run_passes_and_every_sentence_says_that_it_is_a_heuristic() -> None:
    checks = judged()
    assert list(checks) == ["downhill", "movement", "path", "loss"]
    assert {check.status for check in checks.values()} == {Status.PASSED}
    assert all("heuristic" in check.detail for check in checks.values())


@pytest.mark.parametrize(
    ("name", "changed"),
    [
        ("downhill", {"shards": tuple(replace(item, z=0.5) for item in GOOD.shards)}),
        ("movement", {"moved": 1.05}),
        ("movement", {"moved": math.nan}),
        ("path", {"straight": 0.99}),
        ("loss", {"start_loss": 0.25}),
        ("loss", {"start_loss": math.inf}),
        ("loss", {"shards": (*GOOD.shards[:-1], replace(GOOD.shards[-1], loss=math.nan))}),
    ],
)
def test_each_rule_fails_by_itself(name: str, changed: dict[str, Any]) -> None:
    checks = judged(replace(GOOD, **changed))
    failed = {check.name for check in checks.values() if check.status is Status.FAILED}
    assert failed == {name}


def test_late_shards_decide_nothing() -> None:
    late = tuple(replace(item, z=-3.0) if item.shard > 1 else item for item in GOOD.shards)
    assert judged(replace(GOOD, shards=late))["downhill"].status is Status.PASSED


def test_what_is_learned_in_one_shard_is_enough_of_a_beginning() -> None:
    many = tuple(ShardFigures(at, 0.1, 0.3, 0.02, -2.0, 1.0) for at in range(1, 101))
    found = replace(GOOD, shards=(replace(many[0], z=12.0), *many[1:]))
    assert found.early_shards == 10
    assert found.early == 12
    assert found.whole is not None
    assert found.whole < -15
    assert judged(found)["downhill"].status is Status.PASSED


def test_noise_that_hides_the_path_decides_nothing() -> None:
    checks = judged(replace(GOOD, straight=1.0, moved=4.0))
    assert checks["path"].status is Status.NOTE
    assert "hides" in checks["path"].detail


def test_after_a_parent_little_learning_is_not_held_against_anybody() -> None:
    idle = replace(
        GOOD, shards=tuple(replace(item, z=0.1) for item in GOOD.shards), moved=1.0, start_loss=0.25
    )
    checks = judged(idle, parent=True)
    assert [check.status for check in checks.values()] == [
        Status.UNDECIDED, Status.UNDECIDED, Status.NOTE, Status.UNDECIDED,
    ]  # fmt: skip
    line = judged(replace(GOOD, straight=1.0), parent=True)
    assert line["path"].status is Status.FAILED


def test_a_loss_below_zero_has_no_fall() -> None:
    assert judged(replace(GOOD, start_loss=-1.0))["loss"].status is Status.UNDECIDED
