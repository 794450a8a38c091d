"""Every fuzz target, driven by hypothesis instead of atheris: the same promises, bounded time."""

import functools
import random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fuzz import mutation, promises
from fuzz.__main__ import NAMES
from fuzz.driver import load
from fuzz.target import Target

FEW = {"proof": 12, "bundle": 60, "state": 60, "records": 60}
"""Examples of the targets that take more than a millisecond or two."""

USUAL = 120
FACTOR = 4
"""How many times as many the slow test tries."""


@functools.cache
def seeds(name: str) -> tuple[bytes, ...]:
    return tuple(load(name).seeds())


@st.composite
def inputs(draw: st.DrawFn, name: str) -> bytes:
    """A seed that was changed a few times, as the fuzzer changes it; now and then any bytes."""
    if draw(st.integers(0, 15)) == 0:
        return draw(st.binary(max_size=256))
    data = draw(st.sampled_from(seeds(name)))
    for number in draw(st.lists(st.integers(0, 2**32), max_size=4)):
        data = load(name).changed(data, random.Random(number))[: load(name).most_bytes]
    return data


def search(name: str, examples: int) -> None:
    target = load(name)

    @settings(
        max_examples=examples, deadline=None, suppress_health_check=list(HealthCheck), database=None
    )
    @given(inputs(name))
    def keeps_its_promises(data: bytes) -> None:
        with promises.frugal(target.most_mib):
            target.check(data)

    keeps_its_promises()


@pytest.mark.parametrize("name", NAMES)
def test_seeds_are_accepted_and_changed_ones_keep_the_promises(name: str) -> None:
    for seed in seeds(name):
        load(name).check(seed)
    search(name, FEW.get(name, USUAL))


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_many_changed_inputs_keep_the_promises(name: str) -> None:
    search(name, FACTOR * FEW.get(name, USUAL))


@pytest.mark.parametrize("name", NAMES)
def test_mutators_never_fail_and_seldom_leave_an_input_as_it_was(name: str) -> None:
    target: Target = load(name)
    rng = random.Random(0)
    same = 0
    for _ in range(200):
        data = rng.choice(seeds(name))
        same += target.changed(data, rng) == data
    assert same < 40
    for junk in (b"", b"\0", b"[]", b"{}", b"null", bytes(600)):
        target.changed(junk, rng)


def test_a_tree_is_changed_in_every_way() -> None:
    rng = random.Random(0)
    tree = {"a": [1, {"b": "text"}], "c": True}
    found = {mutation.spell(mutation.tree(tree, rng)) for _ in range(500)}
    assert len(found) > 300
    assert any(b'"b"' not in spelled for spelled in found)
    assert any(b"NaN" in spelled for spelled in found)
    assert mutation.spell(tree) == b'{"a":[1,{"b":"text"}],"c":true}'
