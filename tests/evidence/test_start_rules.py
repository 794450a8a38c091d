"""Drawing a start: exact numbers, the right distributions, every layer and every lab model."""

import copy
import importlib.util
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from polo.errors import TaskError, WeightsError
from polo.evidence.layers import LAYERS, rules_of
from polo.evidence.rules import Constant, Kept, Normal, Rule, Uniform, drawn_bytes
from polo.evidence.start import Drawn, draw, drawn
from polo.protocol.digest import tagged, u32
from polo.protocol.layout import Tensor
from polo.tasks.digits import Digits
from polo.weights import dtypes
from polo.weights.checkpoint import checkpoint_of
from polo.weights.hashing import commit
from polo_lab import models

SEED = bytes(range(32))
ROOT = Path(__file__).resolve().parents[2]

LAB: dict[str, Callable[[], nn.Module]] = {
    "mlp": lambda: models.MLP(norm=True),
    "conv": models.ConvNet,
    "vgg": models.VGG,
    "resnet": lambda: models.ResNet(1, 8, (1, 1)),
    "preact": models.PreActResNet,
    "mobilenet": models.MobileNet,
    "densenet": models.DenseNet,
    "vit": models.ViT,
    "gpt": models.GPT,
    "mixer": models.Mixer,
    "lora": lambda: models.add_lora(models.MLP()),
    "digits": lambda: Digits().build_model(),
}

LAYER: dict[str, Callable[[], nn.Module]] = {
    "linear": lambda: nn.Linear(40, 50),
    "linear without bias": lambda: nn.Linear(40, 50, bias=False),
    "conv1d": lambda: nn.Conv1d(8, 12, 5),
    "conv2d in groups": lambda: nn.Conv2d(8, 12, 3, groups=4),
    "conv3d": lambda: nn.Conv3d(3, 8, 3),
    "transposed conv1d": lambda: nn.ConvTranspose1d(8, 12, 5),
    "transposed conv2d": lambda: nn.ConvTranspose2d(8, 6, 3, groups=2),
    "transposed conv3d": lambda: nn.ConvTranspose3d(4, 6, 3),
    "bilinear": lambda: nn.Bilinear(9, 12, 20),
    "embedding": lambda: nn.Embedding(60, 20),
    "embedding with padding": lambda: nn.Embedding(60, 20, padding_idx=-2),
    "embedding bag": lambda: nn.EmbeddingBag(60, 20, padding_idx=0),
    "batch-norm": lambda: nn.BatchNorm2d(7),
    "batch-norm without statistics": lambda: nn.BatchNorm1d(7, track_running_stats=False),
    "instance-norm": lambda: nn.InstanceNorm2d(7, affine=True, track_running_stats=True),
    "layer-norm": lambda: nn.LayerNorm([4, 5]),
    "group-norm": lambda: nn.GroupNorm(2, 8),
    "rms-norm": lambda: nn.RMSNorm(9),
    "rnn": lambda: nn.RNN(10, 20, 2, bidirectional=True),
    "lstm": lambda: nn.LSTM(10, 20, proj_size=6),
    "gru": lambda: nn.GRU(10, 20, bias=False),
    "cell": lambda: nn.LSTMCell(10, 20),
    "attention": lambda: nn.MultiheadAttention(24, 4, add_bias_kv=True),
    "attention of other widths": lambda: nn.MultiheadAttention(24, 4, kdim=10, vdim=14),
    "encoder layer": lambda: nn.TransformerEncoderLayer(24, 4, 48),
    "transformer": lambda: nn.Transformer(16, 2, 1, 1, 32, batch_first=True),
    "prelu": lambda: nn.PReLU(3, 0.125),
}


def load(path: Path) -> Any:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


SECOND = load(ROOT / "tests" / "protocol" / "second_reader.py")
TABLE = SECOND.sampler_table()


def root_of(model: nn.Module) -> bytes:
    return commit(checkpoint_of(model)).root


def plainly(rule: Rule, at: int, tensor: Tensor) -> bytes:
    """A tensor of the start by the reader that shares no code with the library."""
    number = {Uniform: "bound", Normal: "std", Constant: "value"}[type(rule)]
    mantissa, exponent = math.frexp(getattr(rule, number))
    case = {
        **tensor.to_json(),
        "rule": type(rule).__name__.lower(),
        "number": {"mantissa": mantissa, "exponent": exponent},
        "blank": getattr(rule, "blank", None),
    }
    found: bytes = SECOND.drawn_tensor(SEED, at, case, TABLE)
    return found


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64, torch.float16])
@pytest.mark.parametrize("name", ["vit", "gpt", "mobilenet", "digits"])
def test_every_bit_is_that_of_a_plain_reader(name: str, dtype: torch.dtype) -> None:
    model = LAB[name]().to(dtype)
    draw(model, SEED)
    live = checkpoint_of(model)
    rules = rules_of(model, live.layout)
    assert {tensor.dtype for tensor in live.layout.tensors} <= {
        dtypes.name_of_torch(dtype, place=""),
        "I64",
    }
    for at, (rule, tensor) in enumerate(zip(rules, live.layout.tensors, strict=True)):
        assert bytes(live.read(at, 0, tensor.size)) == plainly(rule, at, tensor), tensor.name


def test_only_seed_and_place_decide(in_child: Callable[..., Any]) -> None:
    """A fresh process with another number of threads and other seeds gets the same roots."""
    code = (
        "import sys, torch\n"
        "from polo.evidence.start import draw\n"
        "from polo.weights.checkpoint import checkpoint_of\n"
        "from polo.weights.hashing import commit\n"
        "from polo_lab import models\n"
        "torch.set_num_threads(int(sys.argv[1])); torch.manual_seed(int(sys.argv[1]))\n"
        "for build in (models.ViT, models.VGG, models.GPT):\n"
        "    model = build(); draw(model, bytes(range(32)))\n"
        "    print(commit(checkpoint_of(model), threads=int(sys.argv[1])).root.hex())\n"
    )
    found = in_child(code, 3, bare=True).stdout.split()
    ours = []
    for name in ("vit", "vgg", "gpt"):
        model = LAB[name]()
        draw(model, SEED)
        ours.append(root_of(model).hex())
    assert found == ours
    draw(model, bytes(32))
    assert root_of(model).hex() != ours[-1]


def test_torch_s_generators_are_left_alone() -> None:
    model = models.ViT()
    before = torch.get_rng_state()
    draw(model, SEED)
    assert torch.equal(torch.get_rng_state(), before)


LONG = Tensor("long", "F32", (3, 50_000))


@given(st.integers(0, LONG.size), st.integers(0, LONG.size))
@settings(max_examples=40, deadline=None)
def test_a_part_is_that_part_of_the_whole(one: int, other: int) -> None:
    start, stop = sorted((one, other))
    for rule in (Uniform(0.1), Normal(2.0, 1), Constant(3.0)):
        whole = drawn_bytes(rule, LONG, SEED, 0, LONG.size)
        assert drawn_bytes(rule, LONG, SEED, start, stop) == whole[start:stop]


def values(rule: Any, count: int) -> np.ndarray[Any, Any]:
    tensor = Tensor("t", "F64", (count,))
    return np.frombuffer(drawn_bytes(rule, tensor, SEED, 0, tensor.size), dtype="<f8")


def test_uniform_numbers_are_uniform() -> None:
    count = 400_000
    found = values(Uniform(0.25), count)
    assert np.abs(found).max() <= 0.25
    assert np.abs(found).max() > 0.2499
    assert abs(found.mean()) < 5 * 0.25 / math.sqrt(3 * count)
    assert abs(found.var() / (0.25**2 / 3) - 1) < 5 * math.sqrt(0.8 / count)
    cells = np.histogram(found, bins=256, range=(-0.25, 0.25))[0]
    squares = ((cells - count / 256) ** 2 / (count / 256)).sum()
    assert abs(squares - 255) < 5 * math.sqrt(2 * 255)
    # Neighbours do not depend on each other, within a piece and across its end.
    assert abs((found[1:] * found[:-1]).mean() / found.var()) < 5 / math.sqrt(count)
    assert not np.isin(found[65_536:131_072], found[:65_536]).mean() > 0.001


def test_normal_numbers_are_normal() -> None:
    count = 400_000
    found = values(Normal(0.02), count) / 0.02
    assert np.abs(found).max() <= 6
    assert abs(found.mean()) < 5 / math.sqrt(count)
    assert abs(found.var() - 1) < 5 * math.sqrt(2 / count)
    assert abs((found**4).mean() - 3) < 5 * math.sqrt(96 / count)
    beyond = (np.abs(found) > 1.9609375).mean()
    assert abs(beyond - math.erfc((1.9609375 + 1 / 128) / math.sqrt(2))) < 5 * 0.22 / math.sqrt(
        count
    )


@pytest.mark.parametrize("name", LAYER)
def test_a_layer_begins_as_torch_builds_it(name: str) -> None:
    """Constants to the bit; spreads within what chance allows, bounds kept."""
    torch.manual_seed(5)
    built = [LAYER[name]().state_dict() for _ in range(20)]
    model = LAYER[name]()
    draw(model, SEED)
    for key, found in model.state_dict().items():
        theirs = torch.stack([state[key] for state in built])
        if theirs.unique().numel() == 1:
            assert torch.equal(found, theirs[0]), key
            continue
        assert found.unique().numel() > 0.3 * found.numel() or found.numel() > 200, key
        spread = theirs.std() / found.numel() ** 0.5
        assert abs(found.mean()) < 5 * spread, key
        assert abs(found.std() / theirs.std() - 1) < 5 / math.sqrt(found.numel()), key
        if "embed" not in name and not key.startswith("bias_"):
            assert found.abs().max() <= theirs.abs().max() * 1.02, key


def test_padding_stays_zero() -> None:
    model = nn.Embedding(30, 4, padding_idx=7)
    draw(model, SEED)
    zero = (model.weight == 0).all(dim=1)
    assert zero.nonzero().flatten().tolist() == [7]


def sample(name: str) -> tuple[torch.Tensor, torch.Tensor]:
    torch.manual_seed(3)
    if name == "gpt":
        ids = torch.randint(0, 17, (8, 12))
        return ids, ids
    return torch.rand(16, 1, 8, 8), torch.randint(0, 10, (16,))


@pytest.mark.parametrize("name", LAB)
def test_every_lab_model_draws_and_learns(name: str) -> None:
    model = LAB[name]()
    draw(model, SEED)
    for key, buffer in model.named_buffers():
        assert buffer.unique().tolist() == [float("running_var" in key)], key
    inputs, labels = sample(name)
    scores = model(inputs).flatten(0, -2)
    assert scores.isfinite().all()
    assert 1e-3 < scores.std() < 10
    loss = nn.functional.cross_entropy(scores, labels.flatten())
    assert loss < 6
    loss.backward()
    for key, parameter in model.named_parameters():
        if parameter.requires_grad and "lora_A" not in key:
            assert parameter.grad is not None
            assert parameter.grad.isfinite().all()
            assert parameter.grad.any() or "attention.in_proj_bias" in key, key


def digits_accuracy(seed: int, start: bytes | None) -> float:
    task = Digits()
    torch.manual_seed(seed)
    model = task.build_model()
    if start:
        draw(model, start)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for _ in range(3):
        task.train_epoch(model, optimizer)
    return task.evaluate(model)


@pytest.mark.slow
def test_training_goes_as_well_as_from_torch_s_own_start() -> None:
    theirs = [digits_accuracy(seed, None) for seed in range(3)]
    ours = [digits_accuracy(seed, bytes([seed + 1] * 32)) for seed in range(3)]
    assert min(ours) > 0.95
    assert abs(np.mean(ours) - np.mean(theirs)) < 0.015


class Token(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 3)
        self.token = nn.Parameter(torch.ones(1, 3))


class Counting(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 3)
        self.register_buffer("seen", torch.zeros(()))


@pytest.mark.parametrize(("owner", "name"), [(Token, "token"), (Counting, "seen")])
def test_what_no_rule_speaks_of_is_refused_by_name(owner: type[nn.Module], name: str) -> None:
    model = nn.Sequential(nn.Linear(2, 2), owner())
    before = copy.deepcopy(model.state_dict())
    with pytest.raises(WeightsError, match=f"this tensor of {owner.__name__} begins") as caught:
        draw(model, SEED)
    assert caught.value.place == f"1.{name}"
    assert f"{{'{name}': Normal(0.02)}}" in caught.value.advice
    for key, value in model.state_dict().items():
        assert torch.equal(value, before[key])


def test_a_parametrised_weight_is_refused_and_not_guessed() -> None:
    model = nn.Sequential(nn.utils.parametrizations.weight_norm(nn.Linear(4, 4)))
    with pytest.raises(WeightsError) as caught:
        draw(model, SEED)
    assert "parametrizations.weight.original0" in caught.value.place


def ruled(rules: dict[str, Rule], base: type[nn.Module] = Token) -> nn.Module:
    kind = type("Ruled", (base,), {"start_rules": lambda self: rules})
    model: nn.Module = kind()
    return model


def test_a_module_says_itself_how_it_begins() -> None:
    model = ruled({"token": Constant(0.5), "linear.bias": Constant(2.0)})
    draw(model, SEED)
    assert model.state_dict()["token"].unique().tolist() == [0.5]
    assert model.state_dict()["linear.bias"].unique().tolist() == [2.0]
    assert model.state_dict()["linear.weight"].unique().numel() == 9
    outer = nn.Sequential(model)
    outer.start_rules = lambda: {"0.token": Constant(0.25)}
    draw(outer, SEED)
    assert model.state_dict()["token"].unique().tolist() == [0.25]
    assert model.state_dict()["linear.bias"].unique().tolist() == [2.0]


def test_rules_for_what_is_not_there_are_refused() -> None:
    model = ruled({"token": Constant(0.5), "tokens": Constant(0.5)})
    with pytest.raises(TaskError, match="Ruled name 'tokens'"):
        draw(model, SEED)


@pytest.mark.parametrize(
    ("rule", "dtype", "shape"),
    [
        (Uniform(1.0), torch.int64, (3,)),
        (Normal(1.0), torch.complex64, (3,)),
        (Constant(0.5), torch.int64, (3,)),
        (Constant(-1.0), torch.int8, (3,)),
        (Constant(2.0), torch.bool, (3,)),
        (Constant(0.0), torch.float8_e4m3fn, (3,)),
        (Normal(1.0, 3), torch.float32, (3, 2)),
        (Normal(1.0, 0), torch.float32, ()),
    ],
)
def test_rules_that_do_not_fit_their_tensor_are_refused(
    rule: Rule, dtype: torch.dtype, shape: tuple[int, ...]
) -> None:
    model = nn.Module()
    model.register_buffer("odd", torch.zeros(shape).to(dtype))
    model.start_rules = lambda: {"odd": rule}
    with pytest.raises(WeightsError, match="cannot be drawn") as caught:
        draw(model, SEED)
    assert caught.value.place == "odd"
    model.start_rules = lambda: {"odd": Kept()}
    draw(model, SEED)


@pytest.mark.parametrize("value", [-1.0, math.inf, math.nan])
@pytest.mark.parametrize("rule", [Uniform, Normal])
def test_rules_take_numbers(rule: Any, value: float) -> None:
    with pytest.raises(TaskError, match="no number"):
        rule(value)


def test_tied_tensors_are_drawn_once_and_stay_tied() -> None:
    model = models.GPT()
    draw(model, SEED)
    assert model.head.weight is model.tokens.weight
    live = checkpoint_of(model)
    assert [(tie.alias, tie.name) for tie in live.layout.ties] == [("tokens.weight", "head.weight")]
    # What the model says of one name holds for the tensor; without it the first name decides.
    assert rules_of(model, live.layout)[live.layout.index["head.weight"]] == Normal(0.1)
    model.start_rules = lambda: {"positions.weight": Normal(0.1)}
    rules = rules_of(model, live.layout)
    assert rules[live.layout.index["head.weight"]] == Uniform(1 / math.sqrt(32))


def test_a_module_under_two_names_is_drawn_once() -> None:
    shared = nn.Linear(4, 4)
    model = nn.Sequential(shared, nn.ReLU(), shared)
    draw(model, SEED)
    assert len(checkpoint_of(model).layout.tensors) == 2
    single = nn.Sequential(nn.Linear(4, 4))
    draw(single, SEED)
    assert torch.equal(single[0].weight, shared.weight)


def test_wrappers_change_nothing() -> None:
    plain, wrapped = models.ViT(), models.ViT()
    draw(plain, SEED)
    wrapped.blocks[0] = torch.compile(wrapped.blocks[0], backend="eager")
    draw(torch.compile(wrapped, backend="eager"), SEED)
    assert root_of(wrapped) == root_of(plain)


def test_memory_order_changes_nothing() -> None:
    plain, strided = models.ConvNet(), models.ConvNet().to(memory_format=torch.channels_last)
    draw(plain, SEED)
    draw(strided, SEED)
    assert not strided.conv2.weight.is_contiguous()
    assert root_of(strided) == root_of(plain)


class Masked(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.register_buffer("mask", torch.tril(torch.ones(4, 4)).bool())
        self.register_buffer("cache", torch.full((2,), 9.0), persistent=False)

    def start_rules(self) -> dict[str, Rule]:
        return {"mask": Kept()}


def test_what_is_kept_and_what_is_not_saved_stays() -> None:
    model = Masked()
    draw(model, SEED)
    assert model.mask.sum() == 10
    assert model.cache.tolist() == [9.0, 9.0]
    assert drawn(model, SEED).kept == ("mask",)


def test_the_model_is_not_touched_by_looking() -> None:
    model = models.ViT()
    before = root_of(model)
    start = drawn(model, SEED)
    assert isinstance(start, Drawn)
    root = commit(start).root
    assert root_of(model) == before != root
    draw(model, SEED)
    assert root_of(model) == root


def test_own_seeds_differ_by_tensor_and_by_start() -> None:
    tensor = Tensor("t", "F32", (8,))
    seeds = {tagged("polo/start-tensor/1", start, u32(at)) for start in (SEED, bytes(32))
             for at in range(3)}  # fmt: skip
    assert len({drawn_bytes(Uniform(1.0), tensor, seed, 0, 32) for seed in seeds}) == 6


def test_every_kind_of_layer_is_in_the_specification() -> None:
    text = (ROOT / "docs" / "protocol.md").read_text(encoding="utf-8").partition("## 14.")[2]
    kinds = {kind for group, _ in LAYERS for kind in group}
    concrete = [value for value in vars(nn).values() if isinstance(value, type)]
    for kind in concrete:
        if not issubclass(kind, tuple(kinds)) or kind.__name__.startswith("Lazy"):
            continue
        if kind not in (nn.RNNBase, nn.RNNCellBase):
            assert f"`{kind.__name__}`" in text, kind
