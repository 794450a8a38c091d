"""Finding a claimant's tensors in a model whose names may be gone, swapped or turned round."""

import math
import time
from typing import Any

import numpy as np
import pytest

from polo.ownership.matching import Match, MatchedSource, Matcher, Matching, _log2_arrangements
from polo.ownership.sources import found_in
from polo.protocol.carrier import Carrier
from polo.protocol.layout import Tie
from polo.weights.checkpoint import MemoryCheckpoint, checkpoint_of
from polo.weights.found_model import FoundModel

State = dict[str, np.ndarray[Any, Any]]


def state_of(shapes: dict[str, tuple[int, ...]], seed: int = 0) -> State:
    rng = np.random.default_rng(seed)
    return {name: rng.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}


SHAPES: dict[str, tuple[int, ...]] = {
    "embed.weight": (40, 16),
    "layers.0.up.weight": (32, 16),
    "layers.0.down.weight": (16, 32),
    "layers.1.up.weight": (32, 16),
    "layers.1.down.weight": (16, 32),
    "layers.2.square.weight": (24, 24),
    "layers.3.square.weight": (24, 24),
    "conv.weight": (8, 4, 3, 3),
}
OWN = state_of(SHAPES)


def carrier_of(checkpoint: MemoryCheckpoint, block: int = 16) -> Carrier:
    return Carrier(checkpoint.layout, tuple(t.name for t in checkpoint.layout.tensors), block)


def found(state: State) -> FoundModel:
    return found_in(checkpoint_of({name: value.copy() for name, value in state.items()}))


def matched(state: State, own: State = OWN, *, content: bool = True) -> Matching:
    checkpoint = checkpoint_of(own)
    return Matcher(found(state)).match(carrier_of(checkpoint), checkpoint if content else None)


def names(matching: Matching, own: State = OWN) -> dict[str, str]:
    layout = checkpoint_of(own).layout
    return {layout.tensors[at].name: where.name for at, where in matching.matches.items()}


def check_reads_as(matching: Matching, state: State, own: State = OWN) -> None:
    """Whatever was matched, the claimant's tensors are read."""
    source = MatchedSource(found(state), matching)
    layout = checkpoint_of(own).layout
    for at, tensor in enumerate(layout.tensors):
        values = source.weights(at, 0, tensor.elements)
        assert values is not None, tensor.name
        assert np.array_equal(values, own[tensor.name].reshape(-1)), tensor.name
        part = source.weights(at, 5, 16)
        assert part is not None
        assert np.array_equal(part, own[tensor.name].reshape(-1)[5:16])


def test_the_same_names_are_the_same_tensors() -> None:
    for content in (False, True):
        matching = matched(OWN, content=content)
        assert names(matching) == {name: name for name in SHAPES}
        assert (matching.coverage, matching.by_content) == (1.0, 0)
        assert matching.log2_choices == (1.0 if content else 0.0)
        check_reads_as(matching, OWN)


@pytest.mark.parametrize("prefix", ["model.", "net.base.", "a.b.c.d."])
def test_a_prefix_may_be_added_or_taken_off(prefix: str) -> None:
    longer = {prefix + name: value for name, value in OWN.items()}
    matching = matched(longer, content=False)
    assert names(matching) == {name: prefix + name for name in SHAPES}
    assert matching.log2_choices == 0
    check_reads_as(matching, longer)
    back = matched(OWN, longer, content=False)
    assert names(back, longer) == {prefix + name: name for name in SHAPES}


def test_an_end_that_is_no_component_does_not_count() -> None:
    assert matched({"x" + name: v for name, v in OWN.items()}, content=False).matches == {}


def test_an_ambiguous_end_decides_nothing() -> None:
    """Student and teacher in one file; only content can tell."""
    other = state_of(SHAPES, 5)
    both = {"student." + n: v for n, v in OWN.items()} | {"teacher." + n: other[n] for n in SHAPES}
    assert matched(both, content=False).coverage == 0
    matching = matched(both)
    assert names(matching) == {name: "student." + name for name in SHAPES}
    assert matching.by_content == len(SHAPES)
    check_reads_as(matching, both)


def test_the_full_name_counts_for_more_than_an_end() -> None:
    both = {**OWN, **{"teacher." + n: v for n, v in state_of(SHAPES, 5).items()}}
    assert names(matched(both, content=False)) == {name: name for name in SHAPES}


def test_a_name_with_another_shape_is_no_match() -> None:
    resized = {name: value[..., :-1].copy() for name, value in OWN.items()}
    assert matched(resized).matches == {}
    turned = {name: np.ascontiguousarray(value.T) for name, value in OWN.items()}
    assert not any(
        turned[match.name].shape != OWN[match.name].shape
        for match in matched(turned, content=False).matches.values()
    )


def test_a_name_with_the_same_weights_in_another_shape_will_do() -> None:
    """Flattened, or with axes of length one: the order of the weights is the same."""
    for reshaped in (
        {name: value.reshape(-1) for name, value in OWN.items()},
        {name: value[None, ..., None] for name, value in OWN.items()},
    ):
        matching = matched(reshaped)
        assert matching.coverage == 1.0
        assert matching.matches == matched(OWN).matches


def test_a_tied_name_will_do() -> None:
    checkpoint = checkpoint_of({"embed": OWN["embed.weight"]})
    layout = checkpoint.layout.__class__(
        checkpoint.layout.chunk, checkpoint.layout.tensors, (Tie("head", "embed"),)
    )
    carrier = Carrier(layout, ("embed",), 16)
    matching = Matcher(found({"head": OWN["embed.weight"]})).match(carrier, None)
    assert matching.matches == {0: Match("head")}


def test_swapped_names_are_not_believed() -> None:
    swapped = dict(OWN)
    first, second = "layers.2.square.weight", "layers.3.square.weight"
    swapped[first], swapped[second] = OWN[second], OWN[first]
    matching = matched(swapped)
    assert names(matching)[first] == second
    assert matching.by_content == 2
    assert matching.log2_choices > 1
    check_reads_as(matching, swapped)


def test_lost_names_are_found_again() -> None:
    lost = {f"t{at}": value for at, value in enumerate(reversed(OWN.values()))}
    matching = matched(lost)
    assert matching.coverage == 1
    assert matching.by_content == len(SHAPES)
    check_reads_as(matching, lost)


def test_matrices_written_the_other_way_round_are_turned_back() -> None:
    turned = {f"t{at}": np.ascontiguousarray(v.T) if v.ndim == 2 else v
              for at, v in enumerate(OWN.values())}  # fmt: skip
    matching = matched(turned)
    squares = {OWN_INDEX["layers.2.square.weight"], OWN_INDEX["layers.3.square.weight"]}
    assert all(matching.matches[at].transposed for at in squares)
    check_reads_as(matching, turned)


OWN_INDEX = checkpoint_of(OWN).layout.index


def test_square_matrices_turned_under_their_own_names_are_turned_back() -> None:
    turned = {n: np.ascontiguousarray(v.T) if "square" in n else v for n, v in OWN.items()}
    matching = matched(turned)
    check_reads_as(matching, turned)


def test_noise_does_not_confuse_it() -> None:
    """Fine-tuned and quantised weights are still the likeliest."""
    rng = np.random.default_rng(3)
    noisy = {f"t{at}": (v + rng.normal(size=v.shape)).astype(np.float32)
             for at, v in enumerate(OWN.values())}  # fmt: skip
    expected = dict(zip(OWN, noisy, strict=True))
    assert names(matched(noisy)) == expected


# What is charged


def test_the_charge_is_the_number_of_assignments() -> None:
    lost = {f"t{at}": value for at, value in enumerate(OWN.values())}
    ways = 1
    # One embedding and one convolution; four matrices of mirrored shapes; two squares.
    for tensors in (1, 1, 4, 2):
        ways *= math.factorial(tensors) * 2**tensors
    assert matched(lost).log2_choices == pytest.approx(1 + math.log2(ways))


@pytest.mark.parametrize(("tensors", "places"), [(1, 1), (3, 3), (2, 5), (5, 2), (7, 1), (1, 7)])
def test_arrangements_are_counted_right(tensors: int, places: int) -> None:
    few, many = sorted((tensors, places))
    ways = math.perm(many, few) * 2**few
    assert _log2_arrangements(tensors, places) == pytest.approx(math.log2(ways))


@pytest.mark.parametrize("decoys", [1, 5, 40])
def test_decoys_are_charged_for_and_do_not_win(decoys: int) -> None:
    rng = np.random.default_rng(8)
    lost = {f"d{at}": rng.normal(size=(24, 24)).astype(np.float32) for at in range(decoys)}
    lost |= {f"t{at}": value for at, value in enumerate(OWN.values())}
    matching = matched(lost)
    check_reads_as(matching, lost)
    plain = matched({f"t{at}": value for at, value in enumerate(OWN.values())})
    extra = math.log2(math.perm(2 + decoys, 2)) - math.log2(math.perm(2, 2))
    assert matching.log2_choices == pytest.approx(plain.log2_choices + extra)


def test_missing_tensors_under_true_names_cost_no_assignments() -> None:
    """Names leave no candidate over, so there is nothing that content could choose."""
    kept = {name: OWN[name] for name in list(OWN)[::2]}
    matching = matched(kept)
    assert names(matching) == {name: name for name in kept}
    assert matching.by_content == 0
    assert matching.log2_choices <= 1
    sizes = {name: value.size for name, value in OWN.items()}
    assert matching.coverage == pytest.approx(sum(map(sizes.get, kept)) / sum(sizes.values()))


def test_missing_tensors_with_lost_names_are_charged_for() -> None:
    kept = {"t0": OWN["layers.2.square.weight"]}
    matching = matched(kept)
    assert names(matching) == {"layers.2.square.weight": "t0"}
    assert matching.log2_choices == pytest.approx(1 + math.log2(2 * 2))


def test_no_candidate_at_all_costs_nothing() -> None:
    matching = matched({"t": np.zeros((3, 5, 7), np.float32)})
    assert (matching.matches, matching.coverage, matching.log2_choices) == ({}, 0.0, 0.0)


# What a hostile file may hold


@pytest.mark.parametrize("fill", [0.0, 1.0, np.nan, np.inf, 3e38])
def test_odd_contents_do_not_stop_it(fill: float) -> None:
    odd = {f"t{at}": np.full_like(value, fill) for at, value in enumerate(OWN.values())}
    matching = matched(odd)
    assert matching.coverage == 1
    assert len({where.name for where in matching.matches.values()}) == len(SHAPES)


def test_ties_are_broken_without_using_a_tensor_twice() -> None:
    same = {f"t{at}": np.ones((24, 24), np.float32) for at in range(6)}
    matching = matched(same)
    assert len(matching.matches) == 2
    assert len({where.name for where in matching.matches.values()}) == 2


def test_empty_and_scalar_tensors_do_not_stop_it() -> None:
    own = {
        "a": np.zeros((0, 4), np.float32),
        "b": np.array(3, np.float32),
        "c": OWN["conv.weight"],
    }
    other = {"x": own["a"], "y": own["b"], "z": own["c"]}
    checkpoint = checkpoint_of(own)
    matching = Matcher(found(other)).match(carrier_of(checkpoint), checkpoint)
    assert matching.coverage == 1


def many(count: int, prefix: str, shape: tuple[int, ...] = (4, 4), seed: int = 0) -> State:
    values = np.random.default_rng(seed).normal(size=(count, *shape)).astype(np.float32)
    return {f"{prefix}{at:06d}": values[at] for at in range(count)}


def test_more_tensors_of_a_shape_than_content_can_tell_go_by_name() -> None:
    """A mixture of experts has thousands; this once failed beyond 512."""
    own = many(3000, "experts.")
    start = time.perf_counter()
    matching = matched(own, own)
    assert matching.coverage == 1
    assert all(where.name == checkpoint_name(own, at) for at, where in matching.matches.items())
    assert time.perf_counter() - start < 20


def checkpoint_name(own: State, at: int) -> str:
    return list(own)[at]


def test_hundreds_of_tensors_of_a_shape_are_told_by_content() -> None:
    own = many(600, "experts.")
    lost = {f"z{at}": value for at, value in enumerate(own.values())}
    matching = matched(lost, own)
    assert matching.by_content == 600
    check_reads_as(matching, lost, own)


@pytest.mark.parametrize(
    ("own", "there"),
    [
        (many(20_000, "a."), many(20_000, "b.", seed=1)),
        (many(20_000, "a."), many(20_000, "b.a.", seed=1)),
        (many(2, "a."), many(50_000, "b.", seed=1)),
        (many(50_000, "a."), many(2, "b.", seed=1)),
        ({f"s{at}": np.ones((2, 8 + at), np.float32) for at in range(1500)}, many(20_000, "b.")),
        ({"." * 255 + f"{at}": np.ones((4, 4), np.float32) for at in range(2000)},
         {"." * 254 + f"x{at}": np.ones((4, 4), np.float32) for at in range(2000)}),
    ],
    ids=["strangers", "prefixed", "many candidates", "many tensors", "many shapes", "many dots"],
)  # fmt: skip
def test_huge_classes_stay_fast(own: State, there: State) -> None:
    """Compared pair by pair these took minutes to hours."""
    checkpoint, model = checkpoint_of(own), found(there)
    start = time.perf_counter()
    Matcher(model).match(carrier_of(checkpoint), checkpoint)
    assert time.perf_counter() - start < 20
