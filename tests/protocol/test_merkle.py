"""The hash tree against a plain recursion, and multiproofs against every kind of change."""

import hashlib

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from polo.errors import FormatError
from polo.protocol import commitment, merkle
from polo.protocol.layout import CHUNK_BYTES, Layout, Tensor

COUNTS = st.integers(1, 40)


def leaves_of(count):
    return [hashlib.sha256(at.to_bytes(4, "big")).digest() for at in range(count)]


def plain(leaves):
    """RFC 6962, section 2.1, over hashed leaves."""
    if not leaves:
        return hashlib.sha256().digest()
    if len(leaves) == 1:
        return leaves[0]
    at = 1
    while at * 2 < len(leaves):
        at *= 2
    return hashlib.sha256(b"\x01" + plain(leaves[:at]) + plain(leaves[at:])).digest()


def fold(count, wanted, proof):
    return merkle.root_from_multiproof(count, wanted, proof, place="here")


@st.composite
def proofs(draw):
    """Leaves, some wanted ones, and their multiproof."""
    count = draw(COUNTS)
    wanted = sorted(draw(st.sets(st.integers(0, count - 1), min_size=1)))
    leaves = leaves_of(count)
    return leaves, {at: leaves[at] for at in wanted}, merkle.multiproof(leaves, wanted)


@pytest.mark.parametrize("count", range(70))
def test_roots(count):
    assert merkle.root(leaves_of(count)) == plain(leaves_of(count))


def test_a_node_is_no_leaf():
    left, right = leaves_of(2)
    assert merkle.root([left, right]) != hashlib.sha256(b"\x00" + left + right).digest()
    assert merkle.root([left, right]) == hashlib.sha256(b"\x01" + left + right).digest()


@settings(max_examples=100, deadline=None)
@given(proofs())
def test_any_subset_leads_to_the_root(case):
    leaves, wanted, proof = case
    assert fold(len(leaves), wanted, proof) == plain(leaves)
    assert merkle.multiproof_length(len(leaves), sorted(wanted)) == len(proof)


@settings(max_examples=100, deadline=None)
@given(proofs(), st.data())
def test_another_leaf_gives_another_root(case, data):
    leaves, wanted, proof = case
    at = data.draw(st.sampled_from(sorted(wanted)))
    assert fold(len(leaves), wanted | {at: bytes(32)}, proof) != plain(leaves)


@settings(max_examples=100, deadline=None)
@given(proofs(), st.data())
def test_another_index_is_refused_or_gives_another_root(case, data):
    leaves, wanted, proof = case
    old = data.draw(st.sampled_from(sorted(wanted)))
    new = data.draw(st.integers(-2, len(leaves) + 2))
    assume(new not in wanted)
    moved = {at: leaf for at, leaf in wanted.items() if at != old} | {new: wanted[old]}
    assert_no_proof(len(leaves), moved, proof, plain(leaves))


@settings(max_examples=100, deadline=None)
@given(proofs(), st.integers(1, 80))
def test_another_count_is_refused_or_gives_another_root(case, count):
    """The tree alone does not always tell (see below), so the count is hashed with its root."""
    leaves, wanted, proof = case
    assume(count != len(leaves))
    try:
        tree = fold(count, wanted, proof)
    except FormatError:
        return
    honest = commitment.root_of_tree(layout_of(len(leaves)), plain(leaves))
    assert commitment.root_of_tree(layout_of(count), tree) != honest


def layout_of(leaves):
    return Layout(CHUNK_BYTES, (Tensor("w", "U8", (leaves * CHUNK_BYTES,)),), ())


@settings(max_examples=100, deadline=None)
@given(proofs(), st.data())
def test_another_path_is_refused_or_gives_another_root(case, data):
    leaves, wanted, proof = case
    change = data.draw(st.sampled_from(["longer", "shorter", "swapped", "turned"]))
    if change == "longer":
        at = data.draw(st.integers(0, len(proof)))
        other = [*proof[:at], bytes(32), *proof[at:]]
    else:
        assume(len(proof) > (change == "swapped"))
        at = data.draw(st.integers(0, len(proof) - 1))
        other = list(proof)
        if change == "shorter":
            del other[at]
        elif change == "turned":
            other[at] = bytes([proof[at][0] ^ 1]) + proof[at][1:]
        else:
            to = data.draw(st.integers(0, len(proof) - 1).filter(lambda to: to != at))
            other[at], other[to] = proof[to], proof[at]
    assert_no_proof(len(leaves), wanted, other, plain(leaves))


def assert_no_proof(count, wanted, proof, root):
    try:
        found = fold(count, wanted, proof)
    except FormatError:
        return
    assert found != root


def test_errors_name_the_place():
    with pytest.raises(FormatError) as error:
        fold(3, {3: bytes(32)}, [])
    assert error.value.place == "here"


def test_why_the_count_must_be_hashed_elsewhere():
    """One path fits two places: the last leaf of five, and of three."""
    leaves = leaves_of(5)
    proof = merkle.multiproof(leaves, [4])
    assert fold(5, {4: leaves[4]}, proof) == fold(3, {2: leaves[4]}, proof) == plain(leaves)


@pytest.mark.parametrize("wanted", [[], [3], [-1], [1, 0], [1, 1]])
def test_indices_that_make_no_sense(wanted):
    with pytest.raises(FormatError):
        merkle.multiproof(leaves_of(3), wanted)


@pytest.mark.parametrize(("count", "wanted"), [(3, {}), (0, {0: bytes(32)}), (2, {2: bytes(32)})])
def test_leaves_that_are_not_there(count, wanted):
    with pytest.raises(FormatError):
        fold(count, wanted, [])


def test_one_leaf_of_many_takes_few_hashes():
    leaves = leaves_of(1000)
    for at in (0, 511, 512, 999):
        proof = merkle.multiproof(leaves, [at])
        assert len(proof) <= 10
        assert fold(1000, {at: leaves[at]}, proof) == plain(leaves)


@pytest.mark.parametrize("count", [0, 1, 2, 3, 5, 8, 13, 100])
def test_all_single_paths_at_once(count):
    leaves = leaves_of(count)
    assert merkle.paths(leaves) == [merkle.multiproof(leaves, [at]) for at in range(count)]
