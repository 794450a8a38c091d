"""Level progress: its statistics, its rules, and what it says of honest and forged chains."""

import copy
import math
import shutil
import tracemalloc
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats

import polo
from polo.checks import Check, Status
from polo.embedding.placement import parameters_of
from polo.errors import TermsError
from polo.evidence.progress.check import Progress, measure, noise_of
from polo.evidence.progress.judgement import judge
from polo.evidence.progress.rules import KINDS, Rules
from polo.evidence.progress.sample import Sample
from polo.evidence.progress.survey import Findings, ShardFigures, Survey, combined, descent
from polo.protocol import chain
from polo.protocol.carrier import Carrier
from polo.protocol.layout import CHUNK_BYTES, Layout, Tensor
from polo.protocol.records import NoiseTerms
from polo.storage.folder import ProofFolder, nonce_path
from polo.verifier import Outcome
from polo.watermark.mark import carrier_of, derive
from polo.weights.checkpoint import checkpoint_of

ASKED = {"progress": True, "budget": 1.0}
NAMES = ("downhill", "movement", "path", "loss")


def of_level(verdict: polo.Verdict) -> dict[str, Check]:
    """The level's checks on the whole run, by name."""
    found = [check for check in verdict.checks if check.level == "progress" and not check.shard]
    return {check.name: check for check in found}


def statuses(verdict: polo.Verdict) -> dict[str, Status]:
    return {name: check.status for name, check in of_level(verdict).items()}


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
        (np.full(8, 1e300), np.full(8, 1e300)),
        (np.full(8, np.nan), np.ones(8)),
    ],
)
def test_what_has_no_score_scores_nothing(
    update: np.ndarray[Any, Any], slope: np.ndarray[Any, Any]
) -> None:
    assert descent(update, slope) == 0


def test_scores_do_not_depend_on_scale() -> None:
    drawing = np.random.default_rng(1)
    update, slope = drawing.standard_normal((2, 500))
    assert descent(1e-200 * update, 1e-100 * slope) == pytest.approx(descent(update, slope))


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


# Whole proofs.

Move = Callable[[int], None]


@dataclass
class Run:
    """A proof whose shards are made by whatever one likes, and its checkpoints."""

    path: Path
    enrolment: polo.OfflineEnrolment
    issuer: polo.Identity
    task: Any
    model: Any
    optimizer: Any
    states: list[dict[str, torch.Tensor]] = field(default_factory=list)

    def seal(self, key: polo.Identity, shards: int, move: Move, **options: Any) -> None:
        """Seal shards, each after `move`; a step at rate 0 makes the prover believe in one."""
        prover = polo.Prover(self.enrolment, key=key, store=self.path, **options)
        evaluate = partial(self.task.evaluate, self.model)
        self._keep()
        with prover.attach(self.model, self.optimizer, evaluate=evaluate):
            for shard in range(1, shards + 1):
                move(shard)
                rates = [group["lr"] for group in self.optimizer.param_groups]
                for group in self.optimizer.param_groups:
                    group["lr"] = 0.0
                self.task.train_step(self.model, self.optimizer, self._batch())
                for group, rate in zip(self.optimizer.param_groups, rates, strict=True):
                    group["lr"] = rate
                prover.end_epoch()
                self._keep()
        prover.finish()

    def verify(self, **options: Any) -> polo.Verdict:
        options = {"task": self.task, **options}
        return polo.verify(self.path, trust=self.issuer.public_key, **options)

    def train(self, _: int) -> None:
        """An honest epoch."""
        self.task.train_epoch(self.model, self.optimizer)

    def _batch(self) -> dict[str, torch.Tensor]:
        return {name: torch.from_numpy(v) for name, v in self.task.train_columns().items()}

    def _keep(self) -> None:
        self.states.append(copy.deepcopy(dict(self.model.state_dict())))


@pytest.fixture
def begin(
    tmp_path: Path, task: Any, issuer: polo.Identity, enrol: Callable[..., polo.OfflineEnrolment]
) -> Callable[..., Run]:
    def make(seed: int = 0, name: str = "proof", **terms: Any) -> Run:
        torch.manual_seed(seed)
        model = task.build_model()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
        enrolment = enrol(**{**ASKED, **terms})
        return Run(tmp_path / name, enrolment, issuer, task, model, optimizer)

    return make


@pytest.fixture
def loot(task: Any) -> dict[str, torch.Tensor]:
    """Somebody else's finished model."""
    torch.manual_seed(77)
    model = task.build_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    for _ in range(8):
        task.train_epoch(model, optimizer)
    return copy.deepcopy(dict(model.state_dict()))


def test_an_honest_run_passes(begin: Callable[..., Run], alice: polo.Identity) -> None:
    run = begin()
    run.seal(alice, 8, run.train)
    verdict = run.verify()
    assert verdict.outcome is Outcome.ACCEPTED
    assert statuses(verdict) == dict.fromkeys(NAMES, Status.PASSED)
    assert len(verdict.per_shard("movement")) == 8
    assert "progress" in verdict.headline()


def test_the_laboratory_measures_what_a_verifier_measures(
    begin: Callable[..., Run], alice: polo.Identity
) -> None:
    run = begin()
    run.seal(alice, 4, run.train)
    manifest = ProofFolder(run.path).manifest()
    states = [checkpoint_of(state) for state in run.states]
    carrier = carrier_of(manifest.terms, states[0].layout)
    seeds = [
        chain.seed_of(manifest.enrolment, nonce, previous=manifest.root_before(nonce.shard))
        for nonce in run.enrolment.drawn[:4]
    ]
    marks = [derive(manifest.terms, carrier, seed).blocks for seed in seeds]
    found = measure(manifest.terms, carrier, marks, states, run.task)
    said = of_level(run.verify())
    assert said["downhill"].figures["z"] == found.early
    assert said["movement"].figures["moved"] == found.moved
    assert said["loss"].figures["fall"] == found.fall


def inflation(run: Run, loot: dict[str, torch.Tensor], rough: float = 0.0) -> Move:
    """Start from the stolen model and press in marks; noise where one likes."""
    run.model.load_state_dict(loot)

    @torch.no_grad()
    def move(_: int) -> None:
        for weights in run.model.parameters():
            weights += torch.randn_like(weights) * rough * weights.square().mean().sqrt()

    return move


def line(run: Run, loot: dict[str, torch.Tensor], shards: int) -> Move:
    """From the start straight to the stolen model."""
    weights = parameters_of(run.model)
    way = {name: (loot[name] - value).detach() / shards for name, value in weights.items()}

    @torch.no_grad()
    def move(_: int) -> None:
        for name, value in weights.items():
            value += way[name]

    return move


FORGERIES: dict[str, tuple[Callable[[Run, dict[str, torch.Tensor]], Move], set[str]]] = {
    "inflation": (inflation, {"downhill", "movement"}),
    "inflation with noise": (partial(inflation, rough=0.05), {"downhill"}),
    "line": (partial(line, shards=8), {"downhill", "path"}),
}
"""How to forge, and which checks tell."""


@pytest.mark.parametrize("name", FORGERIES)
def test_a_careless_forgery_fails(
    name: str, begin: Callable[..., Run], alice: polo.Identity, loot: dict[str, torch.Tensor]
) -> None:
    run = begin(seed=5)
    make, wrong = FORGERIES[name]
    run.seal(alice, 8, make(run, loot))
    verdict = run.verify()
    assert verdict.outcome is Outcome.REJECTED
    failed = {check.name for check in verdict.of(Status.FAILED)}
    # Noise may let the loss of a model that was trained for too long fall, too.
    assert failed - {"loss"} == wrong


def test_the_same_chains_pass_where_the_level_is_not_asked_for(
    begin: Callable[..., Run], alice: polo.Identity, loot: dict[str, torch.Tensor]
) -> None:
    run = begin(seed=5, progress=False)
    run.seal(alice, 3, inflation(run, loot))
    assert run.verify().outcome is Outcome.ACCEPTED


def test_checkpoints_and_nonces_that_are_missing_leave_it_undecided(
    begin: Callable[..., Run], alice: polo.Identity
) -> None:
    run = begin()
    run.seal(alice, 4, run.train)
    shutil.copytree(run.path, other := run.path.with_name("other"))
    checkpoints = sorted((run.path / "checkpoints").iterdir())
    checkpoints[1].unlink()
    verdict = run.verify()
    assert verdict.outcome is Outcome.UNDECIDED
    found = of_level(verdict)
    assert list(found) == ["evidence"]
    assert "checkpoint 1 is not here" in found["evidence"].detail
    (other / nonce_path(2)).unlink()
    verdict = polo.verify(other, trust=run.issuer.public_key, task=run.task)
    found = of_level(verdict)
    assert found["evidence"].status is Status.UNDECIDED
    assert "shard 2" in found["evidence"].detail
    assert found["evidence"].advice


class Without:
    """A task that holds nothing out."""

    def __init__(self, task: Any) -> None:
        self.name, self.version, self.metric = task.name, task.version, task.metric
        self.floor, self.build_model, self.evaluate = task.floor, task.build_model, task.evaluate


class Broken(Without):
    """A task whose held-out loss cannot be taken."""

    def held_out_loss(self, model: Any) -> Any:
        """Fails."""
        raise RuntimeError("no data today")


class Flat(Without):
    """A task whose held-out loss has no gradient."""

    def held_out_loss(self, model: Any) -> Any:
        """Says nothing about the model."""
        return torch.tensor(1.0)


class Endless(Without):
    """A task whose held-out loss is no number."""

    def held_out_loss(self, model: Any) -> Any:
        """Not a number."""
        return sum(weights.sum() for weights in model.parameters()) * torch.nan


@pytest.mark.parametrize(
    ("holding", "words"),
    [(Without, "no held_out_loss"), (Broken, "no data today"), (Flat, "checkpoint 3")],
)
def test_without_held_out_loss_half_of_it_is_undecided(
    holding: type[Without], words: str, begin: Callable[..., Run], alice: polo.Identity
) -> None:
    run = begin()
    run.seal(alice, 3, run.train)
    verdict = run.verify(task=holding(run.task))
    assert verdict.outcome is Outcome.UNDECIDED
    found = of_level(verdict)
    for name in ("downhill", "loss"):
        assert found[name].status is Status.UNDECIDED
        assert words in found[name].detail
        assert "held_out_loss" in found[name].advice
    assert found["movement"].status is Status.PASSED


def test_a_loss_that_is_no_number_fails(begin: Callable[..., Run], alice: polo.Identity) -> None:
    run = begin()
    run.seal(alice, 3, run.train)
    found = of_level(run.verify(task=Endless(run.task)))
    assert found["loss"].status is Status.FAILED
    assert found["downhill"].status is Status.FAILED
    assert found["downhill"].figures["z"] == 0


def test_bad_settings_in_signed_terms_are_named(
    begin: Callable[..., Run], alice: polo.Identity
) -> None:
    run = begin(progress=SimpleNamespace(to_settings=lambda: {"uphill": "6"}))
    run.seal(alice, 3, run.train)
    verdict = run.verify()
    assert verdict.outcome is not Outcome.ACCEPTED
    found = of_level(verdict)["evidence"]
    assert "uphill" in found.place


def test_a_chain_without_shards_decides_nothing(
    begin: Callable[..., Run], alice: polo.Identity
) -> None:
    run = begin(fewest_shards=1)
    run.seal(alice, 0, run.train)
    folder = ProofFolder(run.path)
    level = Progress(
        folder.manifest(), carrier_of(folder.manifest().terms, folder.layout()), {}, run.task
    )
    assert [check.status for check in level.opening()] == [Status.UNDECIDED]
    assert list(level.closing()) == []
