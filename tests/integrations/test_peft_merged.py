"""An adapter that was merged into its base, or turned, is still its trainer's."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import peft
import pytest
import torch
from safetensors.torch import save_file
from torch.nn import functional
from transformers import LlamaConfig, LlamaForCausalLM

import polo
from polo.integrations.peft import adapter, save_base
from polo.ownership import Finding
from polo.ownership.merged import _fit
from polo.weights import commit

CODES, WINDOW = 64, 24
STRENGTH = {"ednn": 0.001, "signed": 0.4}


def base_model(seed: int = 0) -> Any:
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=CODES,
        hidden_size=128,
        intermediate_size=192,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        tie_word_embeddings=True,
    )
    return LlamaForCausalLM(config)


def wrapped(seed: int = 0, **options: Any) -> Any:
    base = base_model(seed)
    torch.manual_seed(7)
    settings = {"r": 4, "target_modules": ["q_proj", "v_proj", "up_proj"], **options}
    return peft.get_peft_model(base, peft.LoraConfig(**settings))


class Sequences:
    """Guess the next of codes that count upwards by threes."""

    name = "sequences"
    version = 1
    metric = "accuracy"
    floor = (0.0,)

    def build_model(self) -> Any:
        return adapter(wrapped())

    def batch(self, seed: int) -> torch.Tensor:
        start = torch.randint(CODES, (8, 1), generator=torch.Generator().manual_seed(seed))
        return (start + 3 * torch.arange(WINDOW)) % CODES

    def train(self, model: Any, optimizer: Any, seeds: range) -> None:
        for seed in seeds:
            ids = self.batch(seed)
            optimizer.zero_grad()
            logits = model(ids).logits[:, :-1]
            functional.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten()).backward()
            optimizer.step()

    def evaluate(self, model: Any) -> float:
        ids = self.batch(10**6)
        with torch.no_grad():
            guessed = model(ids).logits[:, :-1].argmax(-1)
        return float((guessed == ids[:, 1:]).double().mean())


class Case(NamedTuple):
    """A finished proof of an adapter, and its model."""

    proof: Any
    model: Any
    base: Path
    trust: bytes

    def identify(self, path: Path, **options: Any) -> Any:
        options = {"base": self.base, **options}
        return polo.identify(path, [self.proof.path], trust=self.trust, **options)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("merged")


def trained(
    folder: Path, name: str, key: polo.Identity, task: Any = None, **terms: Any
) -> tuple[Any, Any, Any]:
    task, issuer = task or Sequences(), polo.Identity.generate()
    settings = {"bits": 256, "block": 64, "shards": 8, "margin": 0.05, **terms}
    agreed = polo.make_terms(task, **settings)
    enrolment = polo.enrol(agreed, identity=key.public_key, issuer=issuer)
    view = task.build_model()
    optimizer = torch.optim.AdamW(view.parameters(), lr=2e-3)
    prover = polo.Prover(enrolment, key=key, store=folder / name)
    with prover.attach(view, optimizer, evaluate=lambda: task.evaluate(view)):
        for epoch in range(4):
            task.train(view, optimizer, range(8 * epoch, 8 * epoch + 8))
            prover.end_epoch()
    return prover.finish(), view.model, issuer


@pytest.fixture(scope="module", params=["ednn", "signed"])
def case(request: pytest.FixtureRequest, folder: Path) -> Case:
    """A trained adapter under each scheme that is meant for adapters."""
    key = polo.Identity.generate()
    proof, model, issuer = trained(
        folder, request.param, key, scheme=request.param, strength=STRENGTH[request.param]
    )
    assert proof.shards >= 2
    base = folder / f"{request.param}-base.safetensors"
    save_base(adapter(wrapped()), base)
    return Case(proof, model, base, issuer.public_key)


def save(model: Any, path: Path, cast: Callable[[Any], Any] = lambda value: value) -> Path:
    state = {name: cast(value.clone()) for name, value in model.state_dict().items()}
    state.pop("lm_head.weight", None)
    save_file(state, path)
    return path


def merged(case: Case) -> Any:
    model = wrapped()
    state = peft.get_peft_model_state_dict(case.model)
    peft.set_peft_model_state_dict(model, {n: v.clone() for n, v in state.items()})
    return model.merge_and_unload()


def test_the_adapter_itself_is_named(case: Case, tmp_path: Path) -> None:
    case.model.save_pretrained(tmp_path)
    found = case.identify(tmp_path, base=None)
    assert found.finding is Finding.CLAIM
    assert found.claims[0].how == "tensors matched by name"


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_merged_model_is_named(case: Case, tmp_path: Path, dtype: Any) -> None:
    path = save(merged(case), tmp_path / "merged.safetensors", lambda value: value.to(dtype))
    without = case.identify(path, base=None)
    assert without.finding is not Finding.CLAIM
    assert "--base" in without.claims[0].advice
    found = case.identify(path)
    assert found.finding is Finding.CLAIM, found.claims[0]
    assert "adapter taken out of the model" in found.claims[0].how
    assert found.claims[0].coverage == 1.0
    assert len(found.claims[0].marks) == case.proof.shards


def test_a_merged_model_that_was_trained_further_is_named(case: Case, tmp_path: Path) -> None:
    model = merged(case).requires_grad_(True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    Sequences().train(model, optimizer, range(900, 908))
    assert case.identify(save(model, tmp_path / "m.safetensors")).finding is Finding.CLAIM


def test_a_turned_adapter_is_named(case: Case, tmp_path: Path) -> None:
    torch.manual_seed(3)
    state = {n: v.clone() for n, v in peft.get_peft_model_state_dict(case.model).items()}
    for name in [name for name in state if name.endswith("lora_A.weight")]:
        turn = torch.linalg.qr(torch.randn(4, 4))[0] + 0.1 * torch.randn(4, 4)
        up = name.replace("lora_A", "lora_B")
        state[name], state[up] = turn @ state[name], state[up] @ torch.linalg.inv(turn)
    save_file(state, tmp_path / "turned.safetensors")
    assert case.identify(tmp_path / "turned.safetensors", base=None).finding is not Finding.CLAIM
    assert case.identify(tmp_path / "turned.safetensors").finding is Finding.CLAIM


def test_unrelated_models_are_nobodys(case: Case, tmp_path: Path) -> None:
    """The base itself, another base, and an adapter that was trained without PoLO."""
    plain = wrapped()
    Sequences().train(plain, torch.optim.AdamW(plain.parameters(), lr=5e-3), range(100, 132))
    others = [base_model(), base_model(9), plain.merge_and_unload()]
    for at, model in enumerate(others):
        found = case.identify(save(model, tmp_path / f"{at}.safetensors"))
        assert found.finding is Finding.NO_CLAIM, (at, found.claims[0])


def test_the_base_of_the_task_serves_as_well(case: Case, tmp_path: Path) -> None:
    path = save(merged(case), tmp_path / "merged.safetensors")
    found = case.identify(path, base=None, align=True, task=Sequences())
    assert found.finding is Finding.CLAIM


def test_only_the_base_that_the_terms_name_is_taken(case: Case, tmp_path: Path) -> None:
    """Who could choose the base would choose one that leaves the marks over."""
    unrelated = base_model(9)
    chosen = unrelated.state_dict()
    for (name, value), (_, own) in zip(
        merged(case).state_dict().items(), base_model().state_dict().items(), strict=True
    ):
        chosen[name] = chosen[name] - (value - own)
    chosen.pop("lm_head.weight")
    save_file(chosen, tmp_path / "chosen.safetensors")
    path = save(unrelated, tmp_path / "unrelated.safetensors")
    found = case.identify(path, base=tmp_path / "chosen.safetensors")
    assert found.finding is Finding.UNDECIDED
    assert "is not the base" in found.claims[0].problem


def test_a_file_as_transformers_saves_it_is_the_base(case: Case, tmp_path: Path) -> None:
    """It leaves out the output layer, which is tied to the table of tokens."""
    base_model().save_pretrained(tmp_path / "base")
    path = save(merged(case), tmp_path / "merged.safetensors")
    assert case.identify(path, base=tmp_path / "base").finding is Finding.CLAIM


def test_a_base_that_cannot_be_read_is_asked_for(case: Case, tmp_path: Path) -> None:
    path = save(base_model(), tmp_path / "found.safetensors")
    found = case.identify(path, base=tmp_path / "nowhere.safetensors")
    assert found.finding is Finding.UNDECIDED
    assert "nowhere.safetensors" in found.claims[0].problem
    assert "Give the base to the bit" in found.claims[0].advice


def test_a_base_with_many_tables_is_not_hashed_for_each(
    case: Case, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tables = {f"m{at}.embed_tokens.weight": torch.zeros(4, 4) for at in range(200)}
    save_file(tables, tmp_path / "many.safetensors")
    calls = []

    def counted(checkpoint: Any) -> Any:
        calls.append(checkpoint)
        return commit(checkpoint)

    monkeypatch.setattr("polo.ownership.merged.commit", counted)
    path = save(base_model(), tmp_path / "found.safetensors")
    found = case.identify(path, base=tmp_path / "many.safetensors")
    assert "is not the base" in found.claims[0].problem
    assert len(calls) < 10


def test_weights_that_are_not_finite_decide_nothing(case: Case, tmp_path: Path) -> None:
    path = save(merged(case), tmp_path / "nan.safetensors", lambda value: value * float("nan"))
    found = case.identify(path)
    assert found.finding is Finding.UNDECIDED
    assert "not finite" in found.claims[0].problem


class Pictures:
    """A convolution with an adapter, whose halves are no matrices."""

    name = "pictures"
    version = 1
    metric = "accuracy"
    floor = (0.0,)

    def build_model(self) -> Any:
        torch.manual_seed(0)
        base = torch.nn.Sequential(torch.nn.Conv2d(64, 64, 3), torch.nn.ReLU())
        return adapter(peft.get_peft_model(base, peft.LoraConfig(r=4, target_modules=["0"])))

    def train(self, model: Any, optimizer: Any, seeds: range) -> None:
        for seed in seeds:
            drawn = torch.randn(4, 64, 5, 5, generator=torch.Generator().manual_seed(seed))
            optimizer.zero_grad()
            model(drawn).square().mean().backward()
            optimizer.step()

    def evaluate(self, model: Any) -> float:
        return 1.0


def test_an_adapter_of_a_convolution_is_no_error(folder: Path, tmp_path: Path) -> None:
    task, key = Pictures(), polo.Identity.generate()
    proof, model, issuer = trained(folder, "pictures", key, task=task, bits=128)
    assert proof.shards >= 2
    save_base(task.build_model(), tmp_path / "base.safetensors")
    case = Case(proof, model, tmp_path / "base.safetensors", issuer.public_key)
    (claim,) = case.identify(save(model.merge_and_unload(), tmp_path / "merged")).claims
    assert claim.finding is Finding.UNDECIDED
    assert "has no LoRA pairs of matrices" in claim.problem


def test_who_attaches_the_whole_model_is_told_of_the_view(tmp_path: Path) -> None:
    key, issuer = polo.Identity.generate(), polo.Identity.generate()
    terms = polo.make_terms(Sequences(), bits=256, block=64)
    enrolment = polo.enrol(terms, identity=key.public_key, issuer=issuer)
    model, prover = wrapped(), polo.Prover(enrolment, key=key, store=tmp_path / "proof")
    with pytest.raises(polo.PoloError, match="this model has no base") as caught:
        prover.attach(model, torch.optim.AdamW(model.parameters()))
    assert "adapter(model)" in caught.value.advice
    prover.close()


@pytest.mark.parametrize(
    ("down", "up", "fit"),
    [
        ((4, 64), (128, 4), True),
        ((512, 4096), (4096, 512), True),
        ((513, 4096), (4096, 513), False),
        ((4, 64), (128, 5), False),
        ((0, 64), (128, 0), False),
        ((64,), (64,), False),
        ((4, 64, 3, 3), (64, 4, 1, 1), False),
    ],
)
def test_pairs_are_matrices_of_a_moderate_rank(
    down: tuple[int, ...], up: tuple[int, ...], fit: bool
) -> None:
    assert _fit(down, up) is fit
