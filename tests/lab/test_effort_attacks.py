"""Attacks on evidence of effort, on the tiny task, where every segment is run again."""

import contextlib
import statistics
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from polo.errors import WeightsError
from polo.evidence.replay import challenge as drawing
from polo.evidence.replay.timeline import Timeline
from polo.storage.folder import ProofFolder
from polo_lab.attacks.effort import ATTACKS, keeping
from polo_lab.attacks.effort.answering import Respondent
from polo_lab.attacks.effort.carrying import loaded
from polo_lab.attacks.effort.forging import Forgery
from polo_lab.attacks.effort.games import KINDS as GAMES
from polo_lab.attacks.effort.games import Game
from polo_lab.attacks.effort.grafts import usual
from polo_lab.attacks.effort.grinding import fit
from polo_lab.attacks.effort.idling import Idling
from polo_lab.attacks.effort.inflation import Inflation
from polo_lab.attacks.effort.interpolation import Interpolation
from polo_lab.attacks.effort.loudness import HighRate, LoudSamples
from polo_lab.attacks.effort.masking import Masking
from polo_lab.attacks.effort.reuse import Reuse
from polo_lab.attacks.effort.silence import SilentSamples, SwallowedCopies
from polo_lab.attacks.effort.skipping import Skipping
from polo_lab.attacks.effort.snapshot import Snapshot, between, copied, length, put
from polo_lab.attacks.effort.stillness import StandingStill, StraightLines
from polo_lab.attacks.effort.subset import TinySubset
from polo_lab.attacks.effort.sure_samples import choose
from polo_lab.attacks.effort.walking import scatter
from polo_lab.effort.case import Attempt, Case
from polo_lab.effort.catalogue import Key
from polo_lab.effort.judging import judge
from polo_lab.effort.plan import Plan

EVERYTHING = 1000
PLAN = Plan("momentum", "constant", 0.05, shards=3, batch=32, every=1, draws=EVERYTHING, seals=3)

REFUSED_BY = {
    "inflation from a stolen start": {"start/start", "replay/segment", "progress/downhill"},
    "single graft, denied": {"replay/record", "replay/segment"},
    "single graft, admitted": {"replay/segment"},
    "single graft, momentum": {"replay/segment"},
    "single graft, sealing": {"replay/sealing"},
    "idle steps, identity": {"replay/record", "replay/segment"},
    "idle steps, no rate": {"replay/segment"},
    "tiny subset of 16, plain copies": {"replay/data"},
    "silent samples, 90%": {"replay/copies"},
    "swallowed copies, 20% of a batch": {"replay/copies"},
    "reused segments, own": {"replay/record", "replay/segment"},
    "grinding, 32 roots a shard": {"replay/sealing", "replay/segment"},
    "spoofed replay, near": {"start/start"},
    "answering game, silence": {"replay/segment"},
    # Now and then the way to the loud model ends so far away that no segment need be run.
    "saturated data, by momentum": set(),
    "saturated data, by aimed": set(),
}
"""Checks that must be among those that refuse an attack; all others end at a segment."""

DEAR = "swallowed copies, 36% of a batch"
"""What may pass, for more than half of the steps."""

OPEN = {
    "labels that the loss leaves out, by rounding": "it names another machine, and is left open",
    "labels that the loss leaves out, all but 4 places": "the same",
    "tiny subset of 16, varied copies": "half of a batch may be copies, and all was trained",
    "tiny subset of 16, relabelled copies": "the same",
    "loud samples, 3%": "the tiny task refuses nothing, and all of it was trained",
    "a rate that silences units": "the tiny task's units live on, and all of it was trained",
    "a rate at which weights stand still": "rows meet in the tiny task, and all of it was trained",
    "a rate at which weights stand still, nearly": "the same",
    "straight lines between gradients": "the same",
}
"""Attacks that are not refused as lies, and why."""


@pytest.fixture(scope="module")
def make(request: Any, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Case]:
    """Cases of the tiny task; options go to the plan."""
    made: dict[str, Case] = {}
    task = request.getfixturevalue("task")

    def case(levels: tuple[str, ...] = ("chain", "progress", "replay"), **options: Any) -> Case:
        key = f"{levels} {options}"
        if key not in made:
            plan = replace(PLAN, **options)
            made[key] = Case(task, plan, 5, tmp_path_factory.mktemp("case") / "case", levels)
        return made[key]

    return case


def run(attack: Any, case: Case, folder: Path) -> Attempt:
    """What an attack shows. The noise of its seals is the system's; with some of it, weights that
    are driven hard end as no numbers, and then there is no proof to judge."""
    for number in range(5):
        with contextlib.suppress(WeightsError):
            return attack.run(case, folder / f"proof-{number}")  # type: ignore[no-any-return]
    raise AssertionError(f"{attack.name} has come to no proof in five attempts")


def faults_of(case: Case, attack: Any, folder: Path) -> tuple[str, set[str]]:
    found = judge(case, run(attack, case, folder), folder / "answer")
    return found.outcome, set(found.faults)


def honest(case: Case, folder: Path) -> Forgery:
    """The forger's own tools, used honestly."""
    forgery = Forgery(case, folder)
    forgery.begin()
    for _ in range(forgery.shards):
        forgery.train(forgery.segments)
        forgery.seal()
    return forgery


@pytest.mark.parametrize("optimizer", ["sgd", "momentum", "adam"])
def test_what_a_forger_trains_is_accepted(
    make: Callable[..., Case], optimizer: str, tmp_path: Path
) -> None:
    case = make(levels=("chain", "replay"), optimizer=optimizer, rate=0.005)
    attempt = honest(case, tmp_path / "proof").finish()
    found = judge(case, attempt, tmp_path / "answer")
    assert found.outcome == "accepted", found.headline
    assert attempt.gradient_steps == case.steps


@pytest.mark.slow
@pytest.mark.parametrize("attack", ATTACKS, ids=lambda attack: attack.name)
def test_no_cheap_attack_is_accepted(
    make: Callable[..., Case], attack: Any, tmp_path: Path
) -> None:
    case = make()
    attempt = run(attack, case, tmp_path)
    found = judge(case, attempt, tmp_path / "answer")
    if attack.name in OPEN:
        assert found.outcome == "undecided" or attempt.gradient_steps >= case.steps
    elif attack.name == DEAR:
        assert attempt.gradient_steps > case.steps / 2
    else:
        assert found.outcome == "rejected"
        assert REFUSED_BY.get(attack.name, {"replay/segment"}) <= set(found.faults)


@pytest.mark.parametrize("attack", [Inflation("drawn"), Interpolation("curved")])
def test_a_forgery_costs_no_step_and_the_chain_alone_accepts_it(
    make: Callable[..., Case], attack: Any, tmp_path: Path
) -> None:
    case = make()
    attempt = run(attack, case, tmp_path)
    assert attempt.gradient_steps == 0
    found = judge(case, attempt, tmp_path / "answer")
    assert (found.levels["chain"], found.levels["start"]) == ("passed", "passed")
    assert found.levels["replay"] == "failed"


def test_names_are_told_apart_and_can_name_folders() -> None:
    names = [attack.name for attack in ATTACKS]
    assert len(set(names)) == len(names)
    assert not any("/" in name for name in names)
    told = ("description", "knowledge", "data", "budget")
    assert all(getattr(attack, name) for attack in ATTACKS for name in told)


@pytest.mark.parametrize("share", [0.1, 0.25, 0.5])
def test_skipping_escapes_as_often_as_verdicts_say(
    make: Callable[..., Case], share: float, tmp_path: Path
) -> None:
    case = make(levels=("chain", "replay"), draws=6, top=0, seals=0)
    attempt = Skipping(share, "small").run(case, tmp_path / "proof")
    folder = ProofFolder(attempt.proof)
    timeline = Timeline.load(folder, folder.manifest())
    assert isinstance(attempt.respond, Respondent)
    faked, total = attempt.respond.faked, timeline.segments
    assert len(faked) == round(share * total)
    tries = 2000
    free = sum(
        not faked & set(drawing.draw_from(timeline, ends=False).segments) for _ in range(tries)
    )
    expected = drawing.escape(len(faked) / total, 6, total)
    spread = (expected * (1 - expected) / tries) ** 0.5
    assert abs(free / tries - expected) < 5 * spread + 1e-3


@pytest.mark.slow
@pytest.mark.parametrize("kind", GAMES)
def test_games_with_answers_are_lost(make: Callable[..., Case], kind: str, tmp_path: Path) -> None:
    case = make(levels=("chain", "replay"))
    outcome, faults = faults_of(case, Game(kind), tmp_path)
    assert outcome == "rejected"
    assert faults & {"replay/segment", "replay/draw"}


def test_an_optimizer_carries_weights_wherever_it_is_told(
    make: Callable[..., Case], tmp_path: Path
) -> None:
    for optimizer in ("momentum", "adam"):
        case = make(levels=("chain", "replay"), optimizer=optimizer, rate=0.001, passes=4)
        forgery = Forgery(case, tmp_path / optimizer)
        start = forgery.begin().model
        target = copied(start)
        scatter(target, 2.0, torch.Generator().manual_seed(0))
        names = [name for name, value in start.items() if value.dim() > 1]
        forgery.train_and_edit(partial(loaded, forgery, target, forgery.steps - 1))
        before = length(forgery.now.model, target, names)
        forgery.train(forgery.segments - 1)
        assert length(forgery.now.model, target, names) < 0.3 * before


def test_grinding_gains_what_chance_gives(make: Callable[..., Case], tmp_path: Path) -> None:
    case = make(levels=("chain", "replay"))
    forgery = Forgery(case, tmp_path / "proof")
    state = forgery.begin()
    found = []
    for number in range(64):
        state.model["0.weight"].view(-1)[0] = number / 64
        found.append(fit(forgery, state))
    bits = forgery.terms.scheme.bits
    assert abs(statistics.mean(found) - bits / 2) < 5 * (bits / 4 / 64) ** 0.5
    assert 0 < max(found) - bits / 2 < 5 * (bits / 4) ** 0.5


def test_sure_samples_have_no_gradient(make: Callable[..., Case]) -> None:
    case = make()
    chosen = choose(case, case.victim.state)
    model = case.task.build_model().eval()
    model.load_state_dict(dict(chosen.model))
    scores = model(torch.from_numpy(chosen.columns["point"])).detach().requires_grad_()
    labels = torch.from_numpy(chosen.columns["label"])
    torch.nn.functional.cross_entropy(scores, labels).backward()
    assert (scores.grad == 0).all(1).double().mean() > 0.95
    assert len({row.tobytes() for row in chosen.columns["point"]}) == case.samples


def test_a_usual_claim_is_a_middling_one(make: Callable[..., Case], tmp_path: Path) -> None:
    forgery = Forgery(make(), tmp_path / "proof")
    forgery.begin()
    forgery.train(5)
    model, rest = usual(forgery)
    assert sorted(move for move, _ in forgery.claims).index(model) == 2
    assert sorted(move for _, move in forgery.claims).index(rest) == 2


@pytest.mark.parametrize("attack", [Idling("no loss"), Reuse("own"), Reuse("other")])
def test_large_states_are_kept_in_files(
    make: Callable[..., Case], attack: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    case = make(levels=("chain", "replay"))
    monkeypatch.setattr(keeping, "LARGE", 0)
    attempt = run(attack, case, tmp_path)
    assert isinstance(attempt.respond, Respondent)
    kept = list(tmp_path.glob("proof*-kept/*.pt"))
    assert len(kept) >= case.plan.shards
    before = {path: path.read_bytes() for path in kept}
    # A state shown is the recorded one, or the answer would be refused for that.
    found = judge(case, attempt, tmp_path / "answer")
    assert found.levels["replay"] == "failed"
    assert "replay/draw" not in found.faults
    assert {path: path.read_bytes() for path in kept} == before


def test_tied_tensors_are_one_after_being_kept(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    tied = torch.arange(4.0)
    state = Snapshot({"one": tied, "other": tied, "third": torch.ones(1)}, {"m/one": torch.ones(4)})
    for least in (0, keeping.LARGE):
        monkeypatch.setattr(keeping, "LARGE", least)
        found = keeping.Keeping(tmp_path / "kept").keep(state)()
        assert found.model["one"].data_ptr() == found.model["other"].data_ptr()
        assert torch.equal(found.model["one"], tied)
        assert found.rest.keys() == state.rest.keys()
    assert len(list((tmp_path / "kept").iterdir())) == 1


def test_costs_are_counted_in_samples(make: Callable[..., Case], tmp_path: Path) -> None:
    case = make(levels=("chain", "replay"))
    masked = Masking(0.25).run(case, tmp_path / "masked")
    assert masked.gradient_steps == pytest.approx(case.steps / 4, rel=0.4)
    # Batch-norm makes the rows of a batch meet, so a subset saves nothing here.
    assert TinySubset(8).run(case, tmp_path / "subset").gradient_steps == case.steps


def test_halfway_between_two_models_keeps_the_counters() -> None:
    one = {"w": torch.zeros(2), "n": torch.tensor(3)}
    other = {"w": torch.ones(2), "n": torch.tensor(9)}
    found = between(one, other, 0.25)
    assert found["w"].tolist() == [0.25, 0.25]
    assert found["n"] == 3
    assert between(one, other, 0.75)["n"] == 9


@pytest.mark.slow
@pytest.mark.parametrize(
    ("task", "attack", "fault"),
    [
        ("cancer", SilentSamples(0.1), "replay/copies"),
        ("cancer", SwallowedCopies(0.2), "replay/copies"),
        ("digits-mlp", LoudSamples(75.0, 0.03), "replay/segment"),
    ],
    ids=["silent", "swallowed", "loud"],
)
def test_data_that_make_steps_cheap_are_refused(
    task: str, attack: Any, fault: str, tmp_path: Path
) -> None:
    case = Key(task, "momentum", "constant", 11).case(tmp_path / "case")
    attempt = run(attack, case, tmp_path)
    assert attempt.gradient_steps < 0.5 * case.steps
    found = judge(case, attempt, tmp_path / "answer")
    assert found.outcome == "rejected"
    assert fault in found.faults


def test_shared_rows_come_out_as_if_each_had_been_passed(tmp_path: Path) -> None:
    """What the forger computes of one row for all is what the task's own step computes."""
    case = Key("cancer", "momentum", "constant", 3).case(tmp_path / "case")
    ends = []
    for shared in (True, False):
        forgery = SilentSamples(0.1).begun(case, tmp_path / str(shared), shared=shared)
        forgery.begin()
        forgery.train(3)
        ends.append(torch.cat([p.detach().flatten() for p in forgery.engine.model.parameters()]))
    assert torch.allclose(*ends, rtol=1e-5, atol=1e-7)
    assert ends[0].isfinite().all()


@pytest.mark.slow
def test_a_network_that_a_high_rate_made_smaller_is_refused(tmp_path: Path) -> None:
    case = Key("digits-mlp", "adam", "cosine", 3).case(tmp_path / "case")
    attempt = run(HighRate(), case, tmp_path)
    assert attempt.gradient_steps < 0.5 * case.steps
    found = judge(case, attempt, tmp_path / "answer")
    # Now and then a batch that silent units have left little of does not tell one sample either.
    assert "replay/width" in found.faults
    assert set(found.faults) <= {"replay/width", "replay/effect"}, "nothing else is wrong with it"
    assert found.accuracy is not None
    assert found.accuracy > 0.9


@pytest.mark.slow
@pytest.mark.parametrize(
    ("attack", "tolerance"),
    [(StandingStill(), 0), (StandingStill(near=True), 20_000), (StraightLines(), 20_000)],
    ids=["still", "nearly", "straight-lines"],
)
def test_steps_that_can_be_foreseen_are_not_accepted(
    attack: StandingStill, tolerance: int, tmp_path: Path
) -> None:
    case = Key("cancer", "adam", "cosine", 3, tolerance).case(tmp_path / "case")
    attempt = run(attack, case, tmp_path)
    assert attempt.gradient_steps < 0.5 * case.steps
    found = judge(case, attempt, tmp_path / "answer")
    assert found.outcome != "accepted"
    assert "replay/width" in found.faults
    assert found.accuracy is not None
    assert found.accuracy > 0.9


def test_loud_samples_silence_a_network(tmp_path: Path) -> None:
    case = Key("digits-mlp", "momentum", "constant", 11).case(tmp_path / "case")
    forgery = LoudSamples(75.0, 0.03).begun(case, tmp_path / "proof")
    first = forgery.begin()
    forgery.train(20)
    batch = forgery.who.source.batch(range(64))

    def moved() -> int:
        return sum(int((slope != 0).sum()) for slope in forgery.engine.slopes(0, batch).values())

    silenced = moved()
    put(forgery.engine, first)
    assert silenced < 0.5 * moved()
