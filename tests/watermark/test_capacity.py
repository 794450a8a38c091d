"""What fits into a model, and in which words the rest is refused."""

import math
from typing import Any

import pytest
import torch
from torch import nn

import polo
from polo.errors import CapacityError, PoloError, TermsError
from polo.protocol.layout import CHUNK_BYTES, Layout, Tensor
from polo.watermark import capacity

LAYOUT = Layout(
    CHUNK_BYTES,
    (
        Tensor("bias", "F32", (4096,)),
        Tensor("conv.weight", "BF16", (8, 4, 3, 3)),
        Tensor("ids", "I64", (64, 64)),
        Tensor("linear.weight", "F32", (64, 64)),
        Tensor("small.weight", "F32", (5, 51)),
    ),
    (),
)


def test_every_tensor_is_judged_in_words() -> None:
    judged = {item.tensor.name: item for item in capacity(LAYOUT, block=256).judged}
    assert [name for name, item in judged.items() if item.carries] == [
        "conv.weight",
        "linear.weight",
    ]
    assert "biases and norm scales" in judged["bias"].reason
    assert "I64" in judged["ids"].reason
    assert "255 weights" in judged["small.weight"].reason
    assert "256" in judged["small.weight"].reason


def test_what_is_not_trained_cannot_carry() -> None:
    found = capacity(LAYOUT, block=256, trainable={"linear.weight", "bias"})
    assert found.names == ("linear.weight",)
    judged = capacity(LAYOUT, block=256, trainable=()).judged
    assert "not trained" in {i.tensor.name: i.reason for i in judged}["linear.weight"]


@pytest.mark.parametrize(
    ("load", "bits"), [(125_000, 544), (250_000, 1088), (1_000_000, 4352), (3_906, 0), (3_907, 17)]
)
def test_bits_at_a_load_are_whole_bits_of_whole_blocks(load: int, bits: int) -> None:
    found = capacity(LAYOUT, block=256)
    assert found.blocks == 16 + 1
    assert found.bits_at(load) == bits


@pytest.mark.parametrize("block", [16, 64, 256, 2048])
def test_rests_of_tensors_are_not_counted(block: int) -> None:
    sizes = [288, 4096, 255]
    expected = sum(size // block for size in sizes)
    assert capacity(LAYOUT, block=block).blocks == expected


def test_objections_say_what_is_wrong_and_how_much_there_is() -> None:
    found = capacity(LAYOUT, block=256)
    assert found.objection(544, 125_000) == ""
    assert "no multiple of the 32" in found.objection(100, 125_000)
    assert "carry 544" in found.objection(576, 125_000)
    assert "no bit" in found.objection(64, 1_000)
    assert "no tensor" in capacity(LAYOUT, block=256, trainable=()).objection(64, 125_000)


def test_share_is_the_part_of_the_blocks_that_a_mark_takes() -> None:
    found = capacity(LAYOUT, block=256)
    assert found.share(272, 125_000) == 0.5
    assert capacity(LAYOUT, block=256, trainable=()).share(64, 125_000) == float("inf")


class Task:
    name, version, metric, floor = "odd", 1, "accuracy", ()

    def __init__(self, model: nn.Module) -> None:
        self._model = model

    def build_model(self) -> nn.Module:
        return self._model

    def evaluate(self, model: nn.Module) -> float:
        return 0.0


@pytest.mark.parametrize(
    ("model", "bits", "words"),
    [
        (nn.Linear(64, 64), 4096, "do not fit"),
        (nn.Linear(64, 64), 100, "no multiple"),
        (nn.LayerNorm(4096), 256, "no tensor"),
        (nn.Linear(64, 64).requires_grad_(False), 256, "no tensor"),
    ],
)
def test_terms_are_refused_before_training_with_advice(
    model: nn.Module, bits: int, words: str
) -> None:
    with pytest.raises(CapacityError, match=words) as caught:
        polo.make_terms(Task(model), bits=bits)
    assert caught.value.advice


@pytest.mark.parametrize(("load", "words"), [(2, "more than one bit"), (-0.5, "no bit")])
def test_loads_that_there_are_not_are_named(load: float, words: str) -> None:
    with pytest.raises(CapacityError, match=words) as caught:
        polo.make_terms(Task(nn.Linear(64, 64)), load=load)
    assert "Use a load of at" in caught.value.advice


def test_carriers_are_known_tensors_in_the_order_of_the_layout() -> None:
    task = Task(nn.Sequential(nn.Linear(64, 64), nn.Linear(64, 64)))
    assert polo.make_terms(task, carrier="1.weight").carrier == ("1.weight",)
    twice = ["1.weight", "0.weight", "1.weight"]
    assert polo.make_terms(task, carrier=twice).carrier == ("0.weight", "1.weight")
    for carrier, words in ((["1.wieght"], "1.wieght: the model has no such"), ([], "no carrier")):
        with pytest.raises(PoloError, match=words) as caught:
            polo.make_terms(task, carrier=carrier)
        assert "polo validate" in caught.value.advice


def test_named_carriers_must_hold_the_mark() -> None:
    task = Task(nn.Sequential(nn.Linear(64, 64), nn.LayerNorm(64), nn.Linear(64, 16)))
    with pytest.raises(CapacityError, match="256 bits do not fit") as caught:
        polo.make_terms(task, bits=256, carrier=["2.weight"])
    assert "It would fit at a load of 0.25" in caught.value.advice
    with pytest.raises(CapacityError, match="cannot carry a mark of the scheme ednn") as caught:
        polo.make_terms(task, bits=64, carrier=["0.weight", "1.weight"])
    assert caught.value.place == "1.weight"


@pytest.mark.parametrize(
    ("given", "place"),
    [
        ({"bits": 64.0}, "bits"), ({"bits": "64"}, "bits"), ({"bits": True}, "bits"),
        ({"load": "x"}, "load"), ({"scheme": ["ednn"]}, "scheme"), ({"every": 1.5}, "every"),
        ({"embed": 1.5}, "embed"), ({"verify": 0}, "verify"), ({"embed": "high"}, "embed"),
    ],
)  # fmt: skip
def test_what_is_of_the_wrong_kind_is_named(given: dict[str, Any], place: str) -> None:
    with pytest.raises(TermsError) as caught:
        polo.make_terms(Task(nn.Linear(64, 64)), **given)
    assert caught.value.place == place


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"budget": 1.5}, "budget: 1.5 is not from 0 to 1"),
        ({"budget": -0.1}, "budget: -0.1 is not from 0 to 1"),
        ({"margin": 2}, "margin: 2 is not from 0 to 1"),
        ({"strength": -1}, "strength: -1 is not from 0 to 1000"),
        ({"strength": 4e-7}, "strength: 4e-07 would become 0"),
        ({"every": 0}, "every: 0 is not from 1 to 1024"),
        ({"every": 2000}, "every: 2000 is not from 1 to 1024"),
        ({"noise": (0.04, 3.0)}, "noise: 3 is not from 0 to 1"),
        ({"noise_fraction": 1.1}, "noise_fraction: 1.1 is not from 0 to 1"),
        ({"strength": math.nan}, "strength: nan is not from 0 to 1000"),
        ({"budget": math.inf}, "budget: inf is not from 0 to 1"),
        ({"block": 100}, "block: blocks of 100 weights"),
    ],
)
def test_numbers_that_terms_cannot_hold_are_refused_in_the_users_units(
    given: dict[str, Any], words: str
) -> None:
    with pytest.raises(TermsError, match=words) as caught:
        polo.make_terms(Task(nn.Linear(64, 64)), **given)
    assert "usual" in caught.value.advice or "every step" in caught.value.advice


def test_fewer_shards_than_are_asked_for_are_refused_with_advice() -> None:
    with pytest.raises(TermsError, match="at most 2 shards are allowed, and at least 3") as caught:
        polo.make_terms(Task(nn.Linear(64, 64)), shards=2, fewest_shards=3)
    assert "fewest_shards" in caught.value.advice


def test_no_strength_at_all_is_a_strength() -> None:
    assert polo.make_terms(Task(nn.Linear(64, 64)), strength=0.0).scheme.strength == 0


@pytest.mark.parametrize("load", [0.0625, 0.125, 0.25, 0.5, 1.0])
def test_terms_at_any_load_take_whole_blocks(load: float) -> None:
    terms = polo.make_terms(Task(nn.Linear(64, 64)), bits=256, load=load)
    assert terms.scheme.blocks * terms.scheme.bits_per_block == 256
    assert terms.scheme.bits_per_block == 256 * load


def test_terms_that_can_never_be_met_are_refused() -> None:
    with pytest.raises(PoloError, match="would not verify"):
        polo.make_terms(Task(nn.Linear(64, 64)), bits=32, log2_p=-64)


def test_tied_weights_count_once_under_their_first_name() -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a = nn.Linear(64, 64, bias=False)
            self.z = nn.Linear(64, 64, bias=False)
            self.z.weight = self.a.weight

    found = polo.capacity_of(Tied())
    assert (found.names, found.blocks) == (("a.weight",), 16)


def test_wrapped_models_have_the_capacity_of_what_they_wrap() -> None:
    model = nn.Linear(64, 64)
    assert polo.capacity_of(nn.DataParallel(model)) == polo.capacity_of(model)


def test_a_child_called_module_beside_a_buffer_can_carry() -> None:
    class Odd(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.module = nn.Linear(64, 64)
            self.register_buffer("scale", torch.ones(1))

    assert polo.capacity_of(Odd()).names == ("module.weight",)


class RootMeanSquareNorm(nn.Module):
    """A norm layer that somebody wrote."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))


class Scales(nn.Module):
    """Norm layers of several makers, beside vectors that only look like their scales."""

    def __init__(self) -> None:
        super().__init__()
        self.batch = nn.BatchNorm2d(64)
        self.layer = nn.LayerNorm(128)
        self.own = RootMeanSquareNorm(32)
        self.prelu = nn.PReLU(256)
        self.linear = nn.Linear(64, 64)
        self.plain = nn.LayerNorm(64, elementwise_affine=False)


def test_the_scales_of_a_live_model_are_known_from_its_norm_layers() -> None:
    found = polo.capacity_of(Scales(), scheme="fedipr")
    assert (found.block, found.names) == (64, ("batch.weight", "layer.weight"))
    assert polo.capacity_of(Scales(), scheme="fedipr", block=16).blocks == 4 + 8 + 2
    reasons = {item.tensor.name: item.reason for item in found.judged}
    assert "32 weights" in reasons["own.weight"]
    assert "norm layer" in reasons["prelu.weight"]
    assert "norm layer" in reasons["layer.bias"]
    assert "norm layer" in reasons["linear.weight"]
    assert polo.capacity_of(Scales()).names == ("linear.weight",)


def test_in_a_bare_layout_names_and_shapes_decide() -> None:
    tensors = (
        Tensor("norm.bias", "F32", (64,)),
        Tensor("norm.weight", "F32", (64,)),
        Tensor("scale", "F32", (64,)),
        Tensor("wide.weight", "F32", (64, 64)),
    )
    found = capacity(Layout(CHUNK_BYTES, tensors, ()), block=16, scheme="fedipr")
    assert found.names == ("norm.weight",)


@pytest.mark.parametrize("model", [nn.Linear(64, 64), nn.LayerNorm(32), nn.LayerNorm(64)])
def test_too_few_norm_scales_are_refused_with_another_scheme_named(model: nn.Module) -> None:
    with pytest.raises(CapacityError) as caught:
        polo.make_terms(Task(model), scheme="fedipr")
    assert "fedipr-kernel" in caught.value.advice


def test_blocks_that_go_together_are_counted_together() -> None:
    layout = Layout(CHUNK_BYTES, (Tensor("a.weight", "F32", (64, 88)),), ())
    found = capacity(layout, block=256, scheme="ednn-mean")
    assert (found.blocks, found.together, found.bits_at(31_250)) == (22, 4, 160)
    assert found.objection(160, 31_250) == ""
    assert "4 blocks carry together" in found.objection(8, 31_250)
    assert "carry 160" in found.objection(192, 31_250)
    assert found.advice(100, 31_250) == "Ask for 96 bits."


def test_each_scheme_brings_its_own_defaults_and_the_caller_goes_before_them() -> None:
    usual = polo.make_terms(Task(nn.LayerNorm(1024)), scheme="fedipr")
    assert (usual.scheme.name, usual.scheme.bits, usual.scheme.block) == ("fedipr", 128, 64)
    assert usual.finish.budget == 700_000
    own = polo.make_terms(Task(nn.LayerNorm(1024)), scheme="fedipr", block=16, budget=0.1, bits=64)
    assert (own.scheme.bits, own.scheme.block, own.finish.budget) == (64, 16, 100_000)
    assert own.scheme.load == usual.scheme.load
