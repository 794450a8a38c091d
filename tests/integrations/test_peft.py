"""A proof of an adapter: the view, its base, and everything that must be refused."""

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import peft
import pytest
import torch
from torch import nn

import polo
from polo.checks import Status
from polo.errors import WeightsError
from polo.integrations.peft import Adapter, adapter
from polo.storage.folder import ProofFolder
from polo.weights import checkpoint_of, commit, open_found
from polo.weights.base import base_root
from polo.weights.files import FileCheckpoint

LAYERS = ("0", "2")


def plain(seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(
        nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 4)
    )


def wrapped(base: nn.Module | None = None, name: str = "default", **options: Any) -> Any:
    settings = {"r": 8, "lora_alpha": 16, "target_modules": list(LAYERS), **options}
    torch.manual_seed(1)
    return peft.get_peft_model(base or plain(), peft.LoraConfig(**settings), adapter_name=name)


def view_of(seed: int = 0, **options: Any) -> Adapter:
    return adapter(wrapped(plain(seed), **options))


@pytest.fixture
def subject(task: Any) -> Any:
    """The tiny task, with adapters on a fixed base."""
    return type(task)(view_of)


@pytest.fixture
def prove(
    subject: Any, tmp_path: Path, alice: polo.Identity, enrol: Callable[..., Any]
) -> Callable[..., Any]:
    """Trains a view for some epochs; `spoil` is called after each."""

    def run(
        view: nn.Module | None = None,
        *,
        spoil: Callable[[Any], None] = lambda _: None,
        epochs: int = 4,
        **terms: Any,
    ) -> Any:
        enrolment = enrol(task=subject, **{"block": 64, "bits": 128, **terms})
        view = view or subject.build_model()
        optimizer = torch.optim.Adam(view.parameters(), lr=0.01)
        prover = polo.Prover(enrolment, key=alice, store=tmp_path / "proof")
        try:
            with prover.attach(view, optimizer, evaluate=lambda: subject.evaluate(view)):
                for _ in range(epochs):
                    subject.train_epoch(view, optimizer)
                    spoil(view)
                    prover.end_epoch()
            return prover.finish()
        finally:
            prover.close()

    return run


def test_the_view_holds_what_peft_saves_and_nothing_else(tmp_path: Path) -> None:
    model = wrapped()
    view = adapter(model)
    model.save_pretrained(tmp_path)
    with FileCheckpoint.any(tmp_path / "adapter_model.safetensors") as saved:
        assert saved.layout == checkpoint_of(view).layout
        assert commit(saved).root == commit(checkpoint_of(view)).root


def test_its_parameters_are_the_models_own() -> None:
    model = wrapped()
    view = adapter(model)
    trained = {id(p) for p in model.parameters() if p.requires_grad}
    assert {id(p) for p in view.parameters()} == trained
    assert not view.train(False).model.training
    assert view.double().model.get_base_model()[4].weight.dtype == torch.float64
    assert all(p.dtype == torch.float64 for p in view.parameters())
    assert view(torch.zeros(2, 16, dtype=torch.float64)).shape == (2, 4)


def test_the_adapters_name_does_not_matter() -> None:
    one, other = adapter(wrapped()), adapter(wrapped(name="mine"))
    assert checkpoint_of(one).layout == checkpoint_of(other).layout
    assert base_root(one) == base_root(other)


def test_the_base_has_the_root_that_it_had_without_the_adapter() -> None:
    bare = commit(checkpoint_of(plain())).root
    assert base_root(view_of()) == bare
    assert base_root(view_of(modules_to_save=["4"])) == bare
    assert base_root(view_of(seed=5)) != bare
    assert base_root(plain()) is None


def test_a_copy_stands_alone() -> None:
    view = view_of()
    twin = copy.deepcopy(view)
    with torch.no_grad():
        next(twin.parameters()).add_(1)
    shared = {id(p) for p in twin.model.parameters()}
    assert all(id(p) in shared for p in twin.parameters())
    assert not torch.equal(next(twin.parameters()), next(view.parameters()))


def test_saved_modules_belong_to_the_adapter() -> None:
    view = view_of(modules_to_save=["4"])
    names = [tensor.name for tensor in checkpoint_of(view).layout.tensors]
    assert "base_model.model.4.weight" in names
    assert len(names) == 6


def test_tied_weights_of_the_base_are_hashed_once() -> None:
    def tied() -> nn.Module:
        model = plain()
        model.append(nn.Linear(64, 64))
        model[5].weight = model[2].weight
        return model

    view = adapter(wrapped(tied(), target_modules=["0"]))
    assert base_root(view) == commit(checkpoint_of(tied())).root
    assert len(checkpoint_of(view.base_state()).layout.ties) == 1


def test_an_adapter_is_proved_and_verified(prove: Any, subject: Any, issuer: Any) -> None:
    proof = prove()
    assert proof.shards >= 2
    assert proof.manifest.terms.base == base_root(subject.build_model())
    sizes = [f.stat().st_size for f in (proof.path / "checkpoints").iterdir()]
    assert max(sizes) < 8_000  # the adapter's 1664 weights, without the base's 5512
    verdict = polo.verify(proof.path, trust=issuer.public_key, task=subject)
    assert verdict.outcome is polo.Outcome.ACCEPTED, verdict.problems()
    base = next(check for check in verdict.checks if check.name == "base")
    assert base.status is Status.PASSED
    assert verdict.facts["base"] == proof.manifest.terms.base.hex()


def test_a_checkpoint_of_the_proof_loads_into_peft(prove: Any, tmp_path: Path) -> None:
    proof, fresh = prove(), wrapped(name="again")
    last = proof.path / "checkpoints" / f"{proof.shards:06d}.safetensors"
    with open_found(last) as found:
        state = {name: torch.from_numpy(found.values(name)) for name in found.tensors}
    result = peft.set_peft_model_state_dict(fresh, state, adapter_name="again")
    assert result.unexpected_keys == []
    assert commit(checkpoint_of(adapter(fresh))).root == proof.manifest.last_root


def test_a_run_goes_on_where_it_was_sealed(
    subject: Any, tmp_path: Path, alice: Any, issuer: Any, enrol: Any
) -> None:
    enrolment = enrol(task=subject, block=64, bits=128)
    for total in (2, 4):
        view = subject.build_model()
        optimizer = torch.optim.Adam(view.parameters(), lr=0.01)
        prover = polo.Prover(enrolment, key=alice, store=tmp_path / "proof")
        with prover.attach(view, optimizer, evaluate=lambda: subject.evaluate(view)):  # noqa: B023
            for _ in range(prover.epoch, total):
                subject.train_epoch(view, optimizer)
                prover.end_epoch()
        if total == 2:
            prover.close()
    proof = prover.finish()
    assert proof.shards == 4
    assert commit(checkpoint_of(view)).root == proof.manifest.last_root
    verdict = polo.verify(proof.path, trust=issuer.public_key, task=subject)
    assert verdict.outcome is polo.Outcome.ACCEPTED


def test_a_drawn_start_of_an_adapter(prove: Any, subject: Any, issuer: Any, enrol: Any) -> None:
    enrolment = enrol(task=subject, block=64, bits=128, start="derived")
    view = subject.build_model()
    polo.draw_start(view, enrolment)
    state = view.state_dict()
    assert not state["base_model.model.0.lora_B.weight"].any()
    assert state["base_model.model.0.lora_A.weight"].abs().max() <= 0.25


def test_another_base_is_refused(prove: Any) -> None:
    with pytest.raises(WeightsError, match=r"the base model is .*, and the terms name"):
        prove(view_of(seed=5))


def test_an_adapter_of_another_rank_is_refused(prove: Any) -> None:
    with pytest.raises(WeightsError, match="not those the terms were made for"):
        prove(view_of(r=4))


def test_an_adapter_on_more_layers_is_refused(prove: Any) -> None:
    with pytest.raises(WeightsError, match="not those the terms were made for"):
        prove(view_of(target_modules=["0", "2", "4"]))


def test_the_whole_model_instead_of_the_view_is_refused(prove: Any) -> None:
    with pytest.raises(WeightsError, match="this model has no base") as refused:
        prove(wrapped())
    assert "adapter(model)" in refused.value.advice


def test_terms_without_a_base_refuse_an_adapter(
    subject: Any, enrol: Any, alice: Any, tmp_path: Path
) -> None:
    view = subject.build_model()
    holder = nn.Module()
    holder.base_model = view.base_model
    bare = type(subject)(lambda: holder)
    enrolment = enrol(task=bare, block=64, bits=128)
    optimizer = torch.optim.Adam(view.parameters(), lr=0.01)
    with pytest.raises(WeightsError, match="the terms name no base"):
        polo.Prover(enrolment, key=alice, store=tmp_path / "p").attach(view, optimizer)


def write(view: Any) -> None:
    with torch.no_grad():
        view.model.get_base_model()[4].weight.add_(0.01)


def write_unseen(view: Any) -> None:
    view.model.get_base_model()[4].weight.data[0, 0] += 0.01


def thaw(view: Any) -> None:
    view.model.get_base_model()[4].weight.requires_grad_(True)


def write_fused(view: Any) -> None:
    weight = view.model.get_base_model()[4].weight
    weight.grad = torch.ones_like(weight)
    torch.optim.AdamW([weight], fused=True).step()


def merge(view: Any) -> None:
    view.model.merge_adapter()
    view.model.unmerge_adapter()


@pytest.mark.parametrize("spoil", [write_unseen, write_fused, merge])
def test_nothing_is_sealed_on_a_base_that_was_changed_unseen(
    prove: Any, spoil: Any, tmp_path: Path
) -> None:
    with pytest.raises(WeightsError, match="the base is no longer the one"):
        prove(spoil=spoil)
    assert ProofFolder(tmp_path / "proof").manifest().shards == ()


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (write, "the base was changed while the adapter was trained"),
        (write_unseen, "the base is no longer the one"),
        (thaw, "this tensor of the base would be trained"),
    ],
)
def test_a_base_that_is_trained_beside_the_adapter_is_noticed(
    prove: Any, spoil: Any, words: str
) -> None:
    with pytest.raises(WeightsError, match=words):
        prove(spoil=spoil)


def test_norm_statistics_of_the_base_count_as_its_weights(
    task: Any, tmp_path: Path, alice: Any, enrol: Any
) -> None:
    def build() -> Any:
        base = nn.Sequential(nn.Linear(16, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Linear(64, 4))
        torch.manual_seed(0)
        for layer in (base[0], base[3]):
            layer.reset_parameters()
        return adapter(wrapped(base, target_modules=["0", "3"]))

    subject = type(task)(build)
    enrolment = enrol(task=subject, block=64, bits=64, log2_p=-32)
    view = build()
    optimizer = torch.optim.Adam(view.parameters(), lr=0.01)
    prover = polo.Prover(enrolment, key=alice, store=tmp_path / "proof")
    prover.attach(view, optimizer)
    with pytest.raises(WeightsError, match=r"1\.num_batches_tracked: the base was changed"):
        subject.train_epoch(view, optimizer)
    prover.close()


def test_what_else_is_trained_is_refused() -> None:
    model = wrapped()
    model.get_base_model()[4].weight.requires_grad_(True)
    with pytest.raises(WeightsError, match="is no part of the adapter that PEFT saves"):
        adapter(model)


def test_a_merged_adapter_is_refused() -> None:
    model = wrapped()
    model.merge_adapter()
    with pytest.raises(WeightsError, match="merged into the base"):
        adapter(model)


def test_two_active_adapters_are_refused() -> None:
    model = wrapped()
    model.add_adapter("more", peft.LoraConfig(target_modules=["0"]))
    model.base_model.set_adapter(["default", "more"])
    with pytest.raises(WeightsError, match="2 adapters are active"):
        adapter(model)


def test_what_is_no_peft_model_is_refused() -> None:
    with pytest.raises(WeightsError, match="Sequential is no PEFT model"):
        adapter(plain())


def test_a_verifier_with_another_base_does_not_decide(
    prove: Any, subject: Any, issuer: Any
) -> None:
    proof = prove()
    other = type(subject)(lambda: view_of(seed=5))
    verdict = polo.verify(proof.path, trust=issuer.public_key, task=other)
    assert verdict.outcome is polo.Outcome.UNDECIDED
    assert "base: the terms are about an adapter on the base" in verdict.headline()
    assert not verdict.per_shard("accuracy")


def test_a_verifier_whose_task_has_no_base_does_not_decide(
    prove: Any, subject: Any, issuer: Any
) -> None:
    proof = prove()
    holder = nn.Module()
    holder.base_model = subject.build_model().base_model
    other = type(subject)(lambda: holder)
    verdict = polo.verify(proof.path, trust=issuer.public_key, task=other)
    assert verdict.outcome is polo.Outcome.UNDECIDED
    assert "the task's model has no base" in verdict.headline()


def test_without_accuracy_the_base_is_only_named(prove: Any, subject: Any, issuer: Any) -> None:
    proof = prove()
    policy = polo.Policy(accuracy="none")
    verdict = polo.verify(proof.path, trust=issuer.public_key, task=subject, policy=policy)
    assert verdict.outcome is polo.Outcome.ACCEPTED
    note = next(check for check in verdict.checks if check.name == "base")
    assert note.status is Status.NOTE
    assert proof.manifest.terms.base.hex()[:16] in note.detail
