"""Data: the root by its definition, openings and hostile ones, what is kept, repeated samples."""

import hashlib
import hmac
import os
import random
import stat
import struct
import tracemalloc
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from safetensors import safe_open

from polo.errors import FormatError, LimitError, PoloError, StoreError, WeightsError
from polo.evidence.replay import samples
from polo.evidence.replay.data import DataSource, load_record
from polo.evidence.replay.distinct import LEAST_DISTINCT, distinct_bound, duplicates
from polo.evidence.replay.samples import SampleOpening, check_opening, encode_opening, load_opening
from polo.evidence.replay.tree import Tree
from polo.protocol import canonical, merkle
from polo.protocol.effort import Column, DataRecord

SECRET = bytes(range(32))
COUNT = 23


def arrays(count: int = COUNT) -> dict[str, NDArray[Any]]:
    drawing = np.random.default_rng(count)
    return {
        "label": drawing.integers(0, 10, count),
        "image": drawing.random((count, 2, 3), dtype=np.float32),
        "seen": drawing.random((count, 5)) < 0.5,
    }


@pytest.fixture
def source() -> DataSource:
    return DataSource(arrays(), SECRET)


def root_by_hand(columns: dict[str, NDArray[Any]]) -> bytes:
    """The root, written down as the specification says it."""
    listed = [
        {"name": "image", "dtype": "F32", "shape": [2, 3]},
        {"name": "label", "dtype": "I64", "shape": []},
        {"name": "seen", "dtype": "BOOL", "shape": [5]},
    ]
    leaves = []
    for at in range(len(columns["label"])):
        number = struct.pack("<Q", at)
        salt = hmac.digest(SECRET, b"polo/sample-salt/1" + number, "sha256")
        row = columns["image"][at].astype("<f4").tobytes()
        row += struct.pack("<q", columns["label"][at]) + bytes(columns["seen"][at].tolist())
        leaves.append(hashlib.sha256(b"\0" + number + salt + row).digest())
    label = b"\x0epolo/columns/1"
    digest = hashlib.sha256(label + canonical.encode(listed)).digest()
    count = struct.pack("<Q", len(leaves))
    return hashlib.sha256(b"\x0bpolo/data/1" + digest + count + merkle.root(leaves)).digest()


@pytest.mark.parametrize("count", [1, 2, 3, 8, COUNT])
def test_the_root_is_the_specified_one(count: int) -> None:
    source = DataSource(arrays(count), SECRET)
    assert source.root == root_by_hand(arrays(count))
    assert source.samples == count
    assert source.columns == (
        Column("image", "F32", (2, 3)),
        Column("label", "I64", ()),
        Column("seen", "BOOL", (5,)),
    )


def test_the_same_numbers_in_other_arrays_have_the_same_root(tmp_path: Path) -> None:
    plain = arrays()
    np.save(tmp_path / "image.npy", plain["image"])
    images = {
        "reversed order of names": plain["image"],
        "big-endian": plain["image"].astype(">f4"),
        "columns first": np.asfortranarray(plain["image"]),
        "every second row": np.repeat(plain["image"], 2, axis=0)[::2],
        "a map": np.load(tmp_path / "image.npy", mmap_mode="r"),
        "a tensor": torch.from_numpy(plain["image"]),
        "a tensor with a gradient": torch.from_numpy(plain["image"]).requires_grad_(),
        "a strided tensor": torch.from_numpy(plain["image"].transpose(0, 2, 1).copy()).mT,
    }
    for name, image in images.items():
        source = DataSource(
            {"seen": plain["seen"], "image": image, "label": plain["label"]}, SECRET
        )
        assert source.root == root_by_hand(plain), name
        assert np.array_equal(source.rows([4, 2])["image"], plain["image"][[4, 2]])
        assert torch.equal(source.batch([4, 2])["image"], torch.from_numpy(plain["image"][[4, 2]]))


def test_blocks_of_rows_make_no_difference(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("polo.evidence.replay.data._BLOCK_BYTES", 100)
    assert DataSource(arrays(), SECRET).root == root_by_hand(arrays())


def test_every_part_of_it_is_bound() -> None:
    plain = arrays()
    roots = {DataSource(plain, SECRET).root, DataSource(plain, bytes(32)).root}
    for name in plain:
        other = {**plain, name: plain[name][::-1].copy()}
        roots.add(DataSource(other, SECRET).root)
        renamed = {f"{key}2" if key == name else key: values for key, values in plain.items()}
        roots.add(DataSource(renamed, SECRET).root)
    roots.add(DataSource({**plain, "label": plain["label"].astype(np.uint64)}, SECRET).root)
    roots.add(DataSource({**plain, "image": plain["image"].reshape(COUNT, 6)}, SECRET).root)
    assert len(roots) == 10


def test_equal_samples_have_leaves_of_their_own() -> None:
    source = DataSource({"x": np.zeros((4, 3), np.uint8)}, SECRET)
    assert len({source._tree.leaf(at) for at in range(4)}) == 4


@pytest.mark.parametrize(
    ("columns", "why"),
    [
        ({}, "no columns"),
        ({"x": np.zeros((0, 2))}, "0 samples"),
        ({"x": np.zeros(3), "y": np.zeros(4)}, "different lengths"),
        ({"x": np.float64(1)}, "no array|numpy array"),
        ({"x": np.array(1.0)}, "no dimension of samples"),
        ({"x": [1, 2]}, "neither a numpy array"),
        ({"x": np.array([None])}, "no canonical bytes"),
        ({"x": np.array(["a"])}, "no canonical bytes"),
        ({"x": np.zeros(3, np.complex64)}, "expected one of"),
        ({"x": torch.zeros(3, dtype=torch.bfloat16)}, "neither a numpy array"),
        ({"x": np.zeros((3, 0))}, "expected an integer from 1"),
        ({"x y": np.zeros(3)}, "not of the form"),
        ({"": np.zeros(3)}, "not of the form"),
    ],
)
def test_what_is_no_data(columns: Any, why: str) -> None:
    with pytest.raises(PoloError, match=why) as error:
        DataSource(columns, SECRET)
    assert error.value.place


def test_a_secret_has_32_bytes() -> None:
    with pytest.raises(ValueError, match="31 bytes"):
        DataSource(arrays(), bytes(31))


# The tree


def test_the_tree_is_that_of_the_protocol() -> None:
    drawing = random.Random(0)
    for count in range(1, 40):
        leaves = [drawing.randbytes(32) for _ in range(count)]
        tree = Tree(b"".join(leaves))
        assert (len(tree), tree.root) == (count, merkle.root(leaves))
        for _ in range(12):
            wanted = sorted(drawing.sample(range(count), drawing.randint(1, count)))
            assert tree.multiproof(wanted) == merkle.multiproof(leaves, wanted)


# Openings


def indices(*numbers: int) -> NDArray[np.int64]:
    return np.array(numbers, dtype=np.int64)


def check(source: DataSource, opening: SampleOpening, wanted: NDArray[np.int64]) -> None:
    check_opening(opening, wanted, source.root, source.samples, source.columns, place="segment 3")


def test_any_samples_can_be_shown(source: DataSource, tmp_path: Path) -> None:
    drawing = random.Random(1)
    for _ in range(30):
        wanted = indices(*sorted(drawing.sample(range(COUNT), drawing.randint(1, COUNT))))
        opening = source.open(wanted)
        check(source, opening, wanted)
        path = tmp_path / "samples"
        path.write_bytes(encode_opening(opening))
        read = load_opening(path, source.columns, wanted, samples=COUNT, place="segment 3")
        check(source, read, wanted)
        assert encode_opening(read) == path.read_bytes()
        for name, values in source.rows(wanted).items():
            assert np.array_equal(read.rows[name], values)
            assert read.rows[name].dtype == values.dtype


def test_safetensors_reads_the_file_too(source: DataSource, tmp_path: Path) -> None:
    (tmp_path / "samples").write_bytes(encode_opening(source.open([1, 5])))
    with safe_open(tmp_path / "samples", "np") as file:
        names = ["columns/image", "columns/label", "columns/seen", "path", "salts"]
        assert sorted(file.keys()) == names
        assert np.array_equal(file.get_tensor("columns/image"), source.rows([1, 5])["image"])


def test_an_opening_gives_away_nothing_of_other_samples(source: DataSource) -> None:
    data = encode_opening(source.open([1, 5]))
    others = source.open([at for at in range(COUNT) if at not in (1, 5)])
    assert SECRET not in data
    assert not any(salt in data for salt in others.salts)
    assert not any(bytes(row) in data for row in samples.row_bytes(others.rows))


def test_tensors_lie_where_torch_puts_them(source: DataSource) -> None:
    for value in samples.tensors(source.rows([3, 4, 5])).values():
        assert value.data_ptr() % 64 == 0
        assert not value.requires_grad


def test_other_samples_are_refused(source: DataSource) -> None:
    with pytest.raises(FormatError, match="other samples than those of the steps"):
        check(source, source.open([1, 6]), indices(1, 5))
    # The right numbers on the wrong content.
    opening = replace(source.open([1, 6]), indices=indices(1, 5))
    with pytest.raises(FormatError):
        check(source, opening, indices(1, 5))


def change(rows: Any, name: str, at: int) -> dict[str, NDArray[Any]]:
    changed = {key: values.copy() for key, values in rows.items()}
    changed[name][at] = changed[name][at] + 1 if name != "seen" else ~changed[name][at]
    return changed


HOSTILE: dict[str, Callable[[SampleOpening], SampleOpening]] = {
    "another image": lambda o: replace(o, rows=change(o.rows, "image", 0)),
    "another label": lambda o: replace(o, rows=change(o.rows, "label", 1)),
    "another flag": lambda o: replace(o, rows=change(o.rows, "seen", 2)),
    "the samples in another order": lambda o: replace(
        o, rows={name: values[::-1] for name, values in o.rows.items()}
    ),
    "other salts": lambda o: replace(o, salts=o.salts[::-1]),
    "a salt too few": lambda o: replace(o, salts=o.salts[1:]),
    "another path": lambda o: replace(o, path=(bytes(32), *o.path[1:])),
    "a path in another order": lambda o: replace(o, path=o.path[::-1]),
    "a shorter path": lambda o: replace(o, path=o.path[1:]),
    "a longer path": lambda o: replace(o, path=(*o.path, bytes(32))),
    "a column too few": lambda o: replace(
        o, rows={name: values for name, values in o.rows.items() if name != "seen"}
    ),
    "a column of another type": lambda o: replace(
        o, rows={**o.rows, "label": o.rows["label"].view(np.uint64)}
    ),
    "a column of another shape": lambda o: replace(
        o, rows={**o.rows, "image": o.rows["image"].reshape(-1, 3, 2)}
    ),
    "a column under another name": lambda o: replace(
        o, rows={"picture" if n == "image" else n: values for n, values in o.rows.items()}
    ),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_what_does_not_lead_to_the_root_is_refused(source: DataSource, name: str) -> None:
    wanted = indices(2, 7, 8)
    with pytest.raises(FormatError) as error:
        check(source, HOSTILE[name](source.open(wanted)), wanted)
    assert error.value.place == "segment 3"


def test_another_number_of_samples_or_another_root_is_refused(source: DataSource) -> None:
    wanted = indices(2, 7, 8)
    opening = source.open(wanted)
    for root, count in ((bytes(32), COUNT), (source.root, COUNT + 1), (source.root, COUNT - 1)):
        with pytest.raises(FormatError) as error:
            check_opening(opening, wanted, root, count, source.columns, place="segment 3")
        assert error.value.place == "segment 3"


def test_a_byte_that_is_no_truth_value_is_refused() -> None:
    odd = np.array([[0, 2, 1]], np.uint8).view(np.bool_)
    source = DataSource({"seen": odd}, SECRET)
    with pytest.raises(FormatError, match="column seen holds bytes that are no BOOL"):
        check(source, source.open([0]), indices(0))


# Hostile files


@pytest.fixture
def shown(source: DataSource, tmp_path: Path) -> tuple[bytes, Callable[[bytes], None]]:
    """A file of samples, and what reads and checks such a file."""
    wanted, path = indices(2, 7, 8, 20), tmp_path / "samples"

    def read(data: bytes) -> None:
        path.write_bytes(data)
        opening = load_opening(path, source.columns, wanted, samples=COUNT, place="segment 3")
        check(source, opening, wanted)

    return encode_opening(source.open(wanted)), read


def test_any_other_file_is_refused(shown: tuple[bytes, Callable[[bytes], None]]) -> None:
    good, read = shown
    read(good)
    length = 8 + int.from_bytes(good[:8], "little")
    text = good[8:length]
    hostile = {
        "empty": b"",
        "cut": good[:-1],
        "longer": good + b"\0",
        "only the header": good[:length],
        "a huge header": struct.pack("<Q", 2**63) + good[8:],
        "a header of nothing": struct.pack("<Q", 0) + good[8:],
        "spaces before": good[:8] + b" " + text[:-1] + good[length:],
        "another type": good.replace(b'"F32"', b'"I32"'),
        "another shape": good.replace(b"[4,2,3]", b"[4,3,2]"),
        "another offset": good.replace(b"[0,96]", b"[0,95]"),
        "zeros": bytes(len(good)),
    }
    for name, data in hostile.items():
        assert data != good
        with pytest.raises(FormatError) as error:
            read(data)
        assert error.value.place == "segment 3", name


def test_single_bytes_count(shown: tuple[bytes, Callable[[bytes], None]]) -> None:
    good, read = shown
    for at in range(0, len(good), 3):
        with pytest.raises(FormatError):
            read(good[:at] + bytes([good[at] ^ 1]) + good[at + 1 :])


@settings(deadline=None, suppress_health_check=list(HealthCheck))
@given(st.binary(max_size=2000), st.integers(0, 700))
def test_bytes_of_any_kind(
    shown: tuple[bytes, Callable[[bytes], None]], junk: bytes, keep: int
) -> None:
    good, read = shown
    data = (good[:keep] + junk)[: len(good)].ljust(len(good), b"\0")
    if data != good:
        with pytest.raises(FormatError):
            read(data)


def test_a_file_of_another_size_takes_no_memory(source: DataSource, tmp_path: Path) -> None:
    path = tmp_path / "samples"
    path.write_bytes(b"")
    os.truncate(path, 2**34)
    tracemalloc.start()
    try:
        with pytest.raises(FormatError):
            load_opening(path, source.columns, indices(1), samples=COUNT, place="segment 3")
        assert tracemalloc.get_traced_memory()[1] < 2**20
    finally:
        tracemalloc.stop()


def test_no_plain_file(source: DataSource, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "folder").mkdir()
    (tmp_path / "real").write_bytes(encode_opening(source.open([1])))
    (tmp_path / "link").symlink_to("real")
    for name in ("pipe", "folder", "link", "nothing"):
        with pytest.raises(StoreError):
            load_opening(
                tmp_path / name, source.columns, indices(1), samples=COUNT, place="segment 3"
            )


def test_hashing_large_data_takes_little_memory(tmp_path: Path) -> None:
    large = np.lib.format.open_memmap(
        tmp_path / "x.npy", mode="w+", dtype=np.uint8, shape=(2**12, 2**15)
    )
    source = DataSource({"x": large}, SECRET)
    tracemalloc.start()
    try:
        _ = source.root
        assert tracemalloc.get_traced_memory()[1] < 48 * 2**20 < large.nbytes / 2
    finally:
        tracemalloc.stop()


# What is kept


def test_a_commitment_is_kept_and_found_again(tmp_path: Path) -> None:
    made = DataSource.create(tmp_path / "data", arrays())
    again = DataSource.load(tmp_path / "data", arrays())
    assert again.root == made.root
    assert encode_opening(again.open([3, 9])) == encode_opening(made.open([3, 9]))
    again.check()
    assert made.record == load_record(tmp_path / "data" / "data.json")
    assert DataRecord.from_bytes(made.record.to_bytes(), "data.json") == made.record


def test_two_commitments_to_the_same_data_differ(tmp_path: Path) -> None:
    one = DataSource.create(tmp_path / "one", arrays())
    assert one.root != DataSource.create(tmp_path / "other", arrays()).root


def test_secrets_are_for_their_owner(tmp_path: Path) -> None:
    DataSource.create(tmp_path / "data", arrays())
    modes = {p.name: stat.S_IMODE(p.stat().st_mode) for p in (tmp_path / "data").iterdir()}
    assert modes.keys() == {"secret", "leaves", "data.json"}
    assert modes["secret"] == modes["leaves"] == 0o600
    assert stat.S_IMODE((tmp_path / "data").stat().st_mode) == 0o700
    secret = (tmp_path / "data" / "secret").read_bytes()
    assert secret.hex().encode() not in (tmp_path / "data" / "data.json").read_bytes()


def test_a_commitment_is_never_overwritten(tmp_path: Path) -> None:
    made = DataSource.create(tmp_path / "data", arrays())
    with pytest.raises(StoreError, match="holds a commitment already"):
        DataSource.create(tmp_path / "data", arrays(5))
    assert DataSource.load(tmp_path / "data", arrays()).root == made.root


def test_data_that_changed_are_noticed(tmp_path: Path) -> None:
    made = DataSource.create(tmp_path / "data", arrays())
    other = arrays()
    other["label"][7] += 1
    again = DataSource.load(tmp_path / "data", other)
    assert again.root == made.root
    again.open([6, 8])
    for look in (lambda: again.open([6, 7]), again.check):
        with pytest.raises(WeightsError, match="have changed") as error:
            look()
        assert error.value.place == "sample 7"
    for wrong in (arrays(22), {"label": other["label"]}, {**other, "image": other["label"]}):
        with pytest.raises(WeightsError, match="types, shapes or number"):
            DataSource.load(tmp_path / "data", wrong)


@pytest.mark.parametrize("name", ["secret", "leaves", "data.json"])
def test_files_of_a_commitment_that_are_broken(tmp_path: Path, name: str) -> None:
    DataSource.create(tmp_path / "data", arrays())
    path = tmp_path / "data" / name
    good = path.read_bytes()
    for bad in (b"", good[:-1], good + b"\0", b"\0" * len(good), None):
        path.unlink()
        if bad is not None:
            path.write_bytes(bad)
        if name == "secret" and bad == b"\0" * len(good):
            with pytest.raises(WeightsError, match="have changed"):
                DataSource.load(tmp_path / "data", arrays()).open([0])
        else:
            with pytest.raises(PoloError) as error:
                DataSource.load(tmp_path / "data", arrays())
            assert str(tmp_path) in error.value.place


def test_a_record_that_is_too_large_is_not_parsed(tmp_path: Path) -> None:
    (tmp_path / "data.json").write_bytes(b"[" * 2**17)
    with pytest.raises(LimitError):
        load_record(tmp_path / "data.json")


@pytest.mark.parametrize(
    "changes",
    [
        {"samples": 0},
        {"samples": 2**25 + 1},
        {"columns": []},
        {"columns": [{"name": "b", "dtype": "U8", "shape": []}] * 2},
        {"columns": [{"name": name, "dtype": "U8", "shape": []} for name in "ba"]},
        {"columns": [{"name": "a", "dtype": "BF16", "shape": []}]},
        {"columns": [{"name": "a", "dtype": "U8", "shape": [0]}]},
        {"columns": [{"name": "a", "dtype": "U8", "shape": [2**20, 2**20]}]},
        {"root": "00"},
        {"secret": "00" * 32},
    ],
)
def test_records_out_of_bounds(source: DataSource, changes: dict[str, Any]) -> None:
    with pytest.raises(FormatError):
        DataRecord.from_json({**source.record.to_json(), **changes}, "data.json")


# Repeated samples


def test_repeated_samples_are_counted() -> None:
    values = np.array([[1, 2], [3, 4], [1, 2], [5, 6], [1, 2]], np.uint8)
    opening = DataSource({"x": values}, SECRET).open(range(5))
    found = opening.contents
    assert list(found) == list(range(5))
    assert duplicates(found.values()) == 2
    assert duplicates([]) == 0


def data_with(distinct: int, samples_: int, heavy: bool) -> NDArray[np.int64]:
    """Contents of which a number is distinct: each as often, or one as often as it takes."""
    if heavy:
        return np.maximum(np.arange(samples_) - (samples_ - distinct), 0)
    return np.arange(samples_) % distinct


@pytest.mark.parametrize("heavy", [False, True])
@pytest.mark.parametrize("shown", [10, 100, 500, 999, 1000])
def test_data_of_which_half_is_distinct_pass(shown: int, heavy: bool) -> None:
    drawing = np.random.default_rng(shown)
    contents = data_with(500, 1000, heavy)
    for _ in range(300):
        drawn = drawing.choice(contents, shown, replace=False)
        repeated = shown - len(np.unique(drawn))
        assert distinct_bound(shown, repeated, 1000) >= LEAST_DISTINCT


@pytest.mark.parametrize(("distinct", "shown"), [(10, 100), (50, 300), (400, 1000), (250, 900)])
def test_a_tiny_subset_is_seen(distinct: int, shown: int) -> None:
    drawing = np.random.default_rng(distinct)
    for heavy in (False, True):
        drawn = drawing.choice(data_with(distinct, 1000, heavy), shown, replace=False)
        bound = distinct_bound(shown, shown - len(np.unique(drawn)), 1000)
        assert distinct / 1000 <= bound < LEAST_DISTINCT


def test_the_bound_is_exact_once_all_was_shown() -> None:
    assert distinct_bound(1000, 250, 1000) == 0.75
    assert distinct_bound(1, 0, 1) == distinct_bound(1, 0, 10**6) == 1.0
    with pytest.raises(ValueError, match="of 5 samples"):
        distinct_bound(6, 0, 5)


def test_real_digits_are_distinct_enough() -> None:
    from polo.tasks.digits import Digits

    source = DataSource(Digits().train_columns(), SECRET)
    assert source.columns == Digits.columns
    found = source.open(range(source.samples)).contents
    assert duplicates(found.values()) < source.samples / 100
