"""The checked start in proofs: who attaches or claims another W_0 is refused."""

import re
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import polo
from polo import cli
from polo.checks import Check, Status
from polo.errors import TermsError, WeightsError
from polo.evidence.rules import Kept, Rule
from polo.evidence.start import check, draw, start_seed
from polo.protocol import signing
from polo.protocol.digest import tagged
from polo.protocol.records import Bundle
from polo.storage.bundle import write_bundle
from polo.storage.folder import ProofFolder
from polo.verifier import Outcome, Policy
from polo.weights.checkpoint import checkpoint_of
from polo.weights.hashing import commit

DRAWN = {"start": "derived"}
UNTESTED = Policy("none")


def starts(verdict: polo.Verdict) -> list[Check]:
    return [check for check in verdict.checks if check.name == "start"]


def only(verdict: polo.Verdict) -> Check:
    (found,) = starts(verdict)
    return found


@pytest.fixture
def made(make_proof: Callable[..., Any]) -> Any:
    """A proof whose start is drawn."""
    return make_proof(terms=DRAWN)


def test_a_drawn_start_is_checked_and_passes(made: Any) -> None:
    verdict = made.verify()
    assert verdict.outcome is Outcome.ACCEPTED, verdict.headline()
    assert only(verdict).status is Status.PASSED
    assert only(verdict).detail == (
        "drawn: W_0 is the initialisation that the enrolment fixes; it cannot have been trained"
    )


@pytest.mark.parametrize("part", [Bundle("public", ()), Bundle("buyer", (2,))])
def test_it_is_checked_in_part_of_a_proof_too(made: Any, tmp_path: Path, part: Bundle) -> None:
    write_bundle(ProofFolder(made.path), tmp_path / "part.polo", part)
    found = polo.verify(tmp_path / "part.polo", trust=made.issuer.public_key, task=made.task)
    assert only(found).status is Status.PASSED


def test_the_seed_is_that_of_the_signed_enrolment(enrol: Callable[..., Any]) -> None:
    one, other = (enrol(start="derived").record for _ in range(2))
    assert start_seed(one) == tagged("polo/start/1", one.digest)
    assert start_seed(one) != start_seed(other)
    assert start_seed(replace(one, signature=bytes(64))) != start_seed(one)


def attach(enrolment: Any, model: nn.Module, alice: polo.Identity, path: Path) -> Any:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    prover = polo.Prover(enrolment, key=alice, store=path)
    try:
        prover.attach(model, optimizer)
    finally:
        prover.close()
    return prover


def test_a_prover_with_another_start_is_refused(
    enrol: Callable[..., Any], task: Any, alice: polo.Identity, tmp_path: Path
) -> None:
    enrolment = enrol(**DRAWN)
    trained = task.build_model()
    polo.draw_start(trained, enrolment)
    task.train_epoch(trained, torch.optim.SGD(trained.parameters(), lr=0.05))
    foreign = task.build_model()
    polo.draw_start(foreign, enrol(**DRAWN))
    for model in (task.build_model(), trained, foreign):
        with pytest.raises(WeightsError, match=r"and this is not it: 0\.") as caught:
            attach(enrolment, model, alice, tmp_path / "proof")
        assert "polo.draw_start(model, enrolment)" in caught.value.advice
        assert not (tmp_path / "proof" / "manifest.json").exists()
    polo.draw_start(trained, enrolment)
    attach(enrolment, trained, alice, tmp_path / "proof")
    assert (tmp_path / "proof" / "manifest.json").exists()


def test_one_bit_of_difference_is_named(
    enrol: Callable[..., Any], task: Any, alice: polo.Identity, tmp_path: Path
) -> None:
    enrolment, model = enrol(**DRAWN), task.build_model()
    polo.draw_start(model, enrolment)
    with torch.no_grad():
        weight = model[3].weight
        weight[5, 7] = torch.nextafter(weight[5, 7], torch.tensor(1.0))
    with pytest.raises(WeightsError, match=r"this is not it: 3\.weight differs"):
        attach(enrolment, model, alice, tmp_path / "proof")


@pytest.mark.parametrize("given", ["folder", "object", "record"])
def test_the_enrolment_may_be_given_in_three_forms(
    enrol: Callable[..., Any], task: Any, tmp_path: Path, given: str
) -> None:
    enrolment, model, wanted = enrol(**DRAWN), task.build_model(), task.build_model()
    enrolment.save(tmp_path / "enrolment")
    forms = {"folder": tmp_path / "enrolment", "object": enrolment, "record": enrolment.record}
    polo.draw_start(model, forms[given])
    draw(wanted, start_seed(enrolment.record))
    roots = [commit(checkpoint_of(each)).root for each in (model, wanted)]
    assert roots[0] == roots[1]


def test_a_start_can_be_drawn_under_free_terms_and_not_under_a_parent(
    enrol: Callable[..., Any], task: Any
) -> None:
    model = task.build_model()
    polo.draw_start(model, enrol())
    with pytest.raises(TermsError, match="nothing to draw") as caught:
        polo.draw_start(model, enrol(parent=bytes(32)))
    assert "polo.load_weights" in caught.value.advice


def test_terms_name_one_start(task: Any) -> None:
    assert polo.make_terms(task, bits=128).start.kind == "free"
    assert polo.make_terms(task, bits=128, **DRAWN).start.kind == "derived"
    with pytest.raises(TermsError, match="not from both"):
        polo.make_terms(task, bits=128, parent=bytes(32), **DRAWN)
    with pytest.raises(TermsError, match="free or derived, not 'parent'"):
        polo.make_terms(task, bits=128, start="parent")


def test_a_forged_start_is_rejected(
    make_proof: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A prover with code of its own begins from a model that learned before."""
    monkeypatch.setattr("polo.prover.resuming.check_start", lambda *_: None)
    monkeypatch.setattr(polo.evidence.start, "start_seed", lambda _: bytes(32))
    made = make_proof(terms=DRAWN)
    monkeypatch.undo()
    verdict = made.verify()
    assert verdict.outcome is Outcome.REJECTED
    assert [check.name for check in verdict.of(Status.FAILED)] == ["start"]
    assert "does not start from the initialisation" in only(verdict).detail


def test_the_start_of_another_enrolment_is_rejected(
    made: Any, alice: polo.Identity, enrol: Callable[..., Any]
) -> None:
    """The chain is signed again under an enrolment that was drawn later."""
    manifest = replace(made.manifest, enrolment=enrol(**DRAWN).record)
    (found,) = check(signing.sign(manifest, alice), made.task.build_model())
    assert found.status is Status.FAILED


def test_a_run_with_a_drawn_start_can_be_resumed(
    enrol: Callable[..., Any],
    task: Any,
    alice: polo.Identity,
    issuer: polo.Identity,
    tmp_path: Path,
) -> None:
    enrolment, path = enrol(**DRAWN), tmp_path / "proof"
    for _ in range(2):
        model = task.build_model()
        polo.draw_start(model, enrolment)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
        prover = polo.Prover(enrolment, key=alice, store=path)
        with prover.attach(model, optimizer, evaluate=lambda model=model: task.evaluate(model)):
            task.train_epoch(model, optimizer)
            assert prover.end_epoch().sealed
        prover.close()
    verdict = polo.verify(path, trust=issuer.public_key, task=task)
    assert verdict.outcome is Outcome.ACCEPTED, verdict.headline()
    assert len(ProofFolder(path).manifest().shards) == 2


class Cast(nn.Sequential):
    """Takes points of any type."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x.to(self[0].weight.dtype)).float()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_other_types_draw_prove_and_verify(
    make_proof: Callable[..., Any], task: Any, dtype: torch.dtype
) -> None:
    other = type(task)(lambda: Cast(*task.build_model()).to(dtype))
    made = make_proof(terms=DRAWN, task=other)
    verdict = made.verify()
    assert verdict.outcome is Outcome.ACCEPTED, verdict.headline()
    assert only(verdict).status is Status.PASSED


class Tokened(nn.Sequential):
    """Has a parameter that no rule speaks of."""

    def __init__(self, *layers: nn.Module) -> None:
        super().__init__(*layers)
        self.token = nn.Parameter(torch.zeros(2))


def no_torch() -> Any:
    raise ModuleNotFoundError("No module named 'torch'")


def bad_build() -> Any:
    raise RuntimeError("boom")


def test_what_the_verifier_lacks_decides_nothing(made: Any) -> None:
    """No task, another version, no torch, a build that fails: never the prover's fault."""
    task = type(made.task)
    older = type("Older", (task,), {"version": 7})
    narrow = task(lambda: nn.Sequential(nn.Linear(16, 4)))
    for given, says in (
        (None, "unknown here"),
        (older(), "version 7"),
        (task(no_torch), "No module named 'torch'"),
        (task(bad_build), "RuntimeError: boom"),
        (narrow, "another layout"),
    ):
        trust = made.issuer.public_key
        verdict = polo.verify(made.path, trust=trust, task=given, policy=UNTESTED)
        assert only(verdict).status is Status.UNDECIDED, says
        assert says in only(verdict).detail
        assert verdict.outcome is Outcome.UNDECIDED


def test_a_model_that_cannot_be_drawn_decides_nothing(make_proof: Callable[..., Any]) -> None:
    made = make_proof(epochs=1)
    model = Tokened(*made.task.build_model())
    (found,) = check(made.manifest, model)
    assert found.status is Status.UNDECIDED
    assert found.place == "token"
    assert "start_rules" in found.advice


class Masked(nn.Sequential):
    """Has a table that is the same in every build."""

    def __init__(self, *layers: nn.Module) -> None:
        super().__init__(*layers)
        self.register_buffer("mask", torch.tril(torch.ones(4, 4)))

    def start_rules(self) -> dict[str, Rule]:
        return {"mask": Kept()}


def test_kept_tensors_are_counted_and_are_the_verifier_s_own(
    make_proof: Callable[..., Any], task: Any, enrol: Callable[..., Any]
) -> None:
    other = type(task)(lambda: Masked(*task.build_model()))
    made = make_proof(terms=DRAWN, task=other)
    verdict = made.verify()
    assert verdict.outcome is Outcome.ACCEPTED, verdict.headline()
    assert only(verdict).detail.endswith("trained; 1 tensor kept as the task's model has it")
    assert only(verdict).figures == {"kept": 1}
    model = other.build_model()
    model.mask.fill_(3.0)
    (found,) = check(made.manifest, model)
    assert found.status is Status.FAILED


def test_the_start_of_an_earlier_owner_is_checked_too(
    made: Any, buy: Callable[..., Any], alice: polo.Identity, bob: polo.Identity, tmp_path: Path
) -> None:
    owned = buy(tmp_path / "bob", bob, seller=made.path, seller_key=alice)
    verdict = owned.made.verify()
    assert verdict.outcome is Outcome.ACCEPTED, verdict.headline()
    details = {check.ancestor: check.detail for check in starts(verdict)}
    assert details[0].endswith("as the terms ask; effort counts from there on")
    assert details[1].startswith("drawn: ")
    # Without the task the earlier start is open, and so is the whole.
    verdict = polo.verify(owned.path, trust=made.issuer.public_key, policy=UNTESTED)
    assert verdict.outcome is Outcome.UNDECIDED
    assert [check.ancestor for check in starts(verdict)] == [0, 1]


def run(*arguments: object) -> int:
    try:
        cli.main([str(argument) for argument in arguments])
    except SystemExit as stop:
        return int(stop.code or 0)
    return 0


def test_the_command_line_enrols_for_a_drawn_start(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("alice", "issuer"):
        assert run("keygen", name) == 0
    order = ["enrol", "--task", "digits", "--identity", "alice.pub", "--issuer", "issuer.key"]
    assert run(*order, "--out", "one", "--start", "derived") == 0
    assert polo.OfflineEnrolment.load("one").record.terms.start.kind == "derived"
    (tmp_path / "odd_task.py").write_text(
        "from torch import nn, ones\nfrom polo.tasks.digits import Digits\n"
        "class Odd(Digits):\n"
        "    def build_model(self):\n"
        "        model = super().build_model()\n"
        "        model.token = nn.Parameter(ones(3))\n"
        "        return model\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    order[2] = "odd_task:Odd"
    capsys.readouterr()
    assert run(*order, "--out", "two", "--start", "derived") != 0
    assert re.search(r"token.*no rule says", capsys.readouterr().err.replace("\n", " "))
    assert run(*order, "--out", "two") == 0
    sys.modules.pop("odd_task", None)
