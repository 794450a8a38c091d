"""What fits into a model, and in which words the rest is refused."""

import pytest
import torch
from torch import nn

import polo
from polo.errors import CapacityError, PoloError
from polo.protocol.layout import CHUNK_BYTES, Layout, Tensor
from polo.watermark import capacity
from polo.weights import carriers

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
    judged = {item.tensor.name: item for item in carriers.assess(LAYOUT, block=256)}
    assert [name for name, item in judged.items() if item.carries] == [
        "conv.weight",
        "linear.weight",
    ]
    assert "biases and norm scales" in judged["bias"].reason
    assert "I64" in judged["ids"].reason
    assert "255 weights" in judged["small.weight"].reason
    assert "256" in judged["small.weight"].reason


def test_what_is_not_trained_cannot_carry() -> None:
    assert carriers.choose(LAYOUT, block=256, trainable={"linear.weight", "bias"}) == (
        "linear.weight",
    )
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
