"""The prover's data: what a model is trained on, committed to sample by sample.

Specification: docs/protocol.md, section 16.1.
"""

import hmac
import os
import secrets
from collections.abc import Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from polo.errors import FormatError, LimitError, StoreError, WeightsError
from polo.evidence.replay.samples import SampleOpening, columns_of, leaf, row_bytes, tensors
from polo.evidence.replay.tree import Tree
from polo.protocol.digest import SIZE, u64
from polo.protocol.effort import MAX_SAMPLES, Column, DataRecord, check_columns, data_root
from polo.storage import atomic
from polo.weights.files import open_plain

if TYPE_CHECKING:
    import torch

RECORD_FILE = "data.json"

_BLOCK_BYTES = 16 * 2**20
_MAX_RECORD = 64 * 1024

_LOOKED_AT, _TOGETHER = 2**28, 2**22
"""Values of a column that are looked at for NaN and infinity, at most; and so many at a time."""


class DataSource:
    """Samples in named arrays, and the salted tree over them.

    The arrays are kept as they are given and read row by row; maps of files are fine. Beside them
    it holds 64 bytes per sample.

    Args:
        columns: An array per column; the first dimension counts the samples. Numpy arrays, or
            torch tensors in main memory.
        secret: 32 bytes that the salts come from. Who knows it can test whether some sample is
            among the data.
    """

    def __init__(self, columns: Mapping[str, Any], secret: bytes) -> None:
        if len(secret) != SIZE:
            raise ValueError(f"a secret of {len(secret)} bytes instead of {SIZE}")
        self._arrays = {name: _array(name, columns[name]) for name in sorted(columns)}
        self._secret = secret
        self.columns: tuple[Column, ...] = columns_of(self._arrays)
        check_columns(self.columns, "data")
        counts = {name: len(values) for name, values in self._arrays.items()}
        if len(set(counts.values())) > 1:
            raise WeightsError(f"columns of different lengths: {counts}", place="data")
        self.samples = next(iter(counts.values()))
        if not 0 < self.samples <= MAX_SAMPLES:
            raise LimitError(f"{self.samples} samples; from 1 to {MAX_SAMPLES}", place="data")

    @classmethod
    def create(cls, path: str | Path, columns: Mapping[str, Any]) -> Self:
        """Commit to data under a new secret, and write what `load` needs into a new folder.

        Only `data.json` is for others: it is what an issuer puts into the terms.
        """
        folder = Path(path)
        source = cls(columns, secrets.token_bytes(SIZE))
        if (folder / RECORD_FILE).exists():
            raise StoreError(
                "holds a commitment already",
                place=str(path),
                advice="Give a new folder: an enrolment may name the root of this one.",
            )
        record = source.record.to_bytes()
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        private = {"secret": source._secret, "leaves": source._tree.leaves}
        for name, data in private.items():
            with atomic.replacing(folder / name, mode=0o600) as file:
                file.write(data)
        atomic.write(folder / RECORD_FILE, record)
        return source

    @classmethod
    def load(cls, path: str | Path, columns: Mapping[str, Any]) -> Self:
        """The same data again, without hashing them: `check` does that, and `open` for its rows."""
        folder = Path(path)
        record = load_record(folder / RECORD_FILE)
        source = cls(columns, _read(folder / "secret", SIZE))
        if (source.columns, source.samples) != (record.columns, record.samples):
            raise WeightsError(
                "these arrays do not have the types, shapes or number of samples that were "
                "committed to",
                place=str(folder),
            )
        source.__dict__["_tree"] = Tree(_read(folder / "leaves", SIZE * record.samples))
        if source.root != record.root:
            raise FormatError("the leaves do not lead to the root", place=str(folder))
        return source

    def not_finite(self) -> str:
        """The first column that holds NaN or infinity, in as much of it as is soon looked through.

        Nobody who is shown such samples accepts them.
        """
        for name, values in self._arrays.items():
            if values.dtype.kind != "f":
                continue
            rows = max(1, _TOGETHER // max(1, values[:1].size))
            last = min(len(values), rows * (_LOOKED_AT // _TOGETHER))
            if not all(np.isfinite(values[at : at + rows]).all() for at in range(0, last, rows)):
                return name
        return ""

    @property
    def root(self) -> bytes:
        """The root that terms name."""
        return self.record.root

    @cached_property
    def record(self) -> DataRecord:
        """What an issuer is told about the data."""
        root = data_root(self.columns, self.samples, self._tree.root)
        return DataRecord(root, self.samples, self.columns)

    def rows(self, indices: ArrayLike) -> dict[str, NDArray[Any]]:
        """Some samples, column by column, copied."""
        at = np.asarray(indices, dtype=np.int64)
        return {name: _native(values[at]) for name, values in self._arrays.items()}

    def batch(self, indices: ArrayLike) -> dict[str, "torch.Tensor"]:
        """Some samples as a task's training step takes them."""
        return tensors(self.rows(indices))

    def open(self, indices: ArrayLike) -> SampleOpening:
        """Samples with what leads to the root; their numbers are distinct and increasing."""
        at = np.asarray(indices, dtype=np.int64)
        rows, salts = self.rows(at), tuple(self._salt(index) for index in at.tolist())
        for index, salt, row in zip(at.tolist(), salts, row_bytes(rows), strict=True):
            if leaf(index, salt, row) != self._tree.leaf(index):
                raise _changed(index)
        return SampleOpening(at, rows, salts, tuple(self._tree.multiproof(at.tolist())))

    def check(self) -> None:
        """Refuse data that are not what was committed to, every sample of them."""
        for index, found in enumerate(self._leaves()):
            if found != self._tree.leaf(index):
                raise _changed(index)

    @cached_property
    def _tree(self) -> Tree:
        return Tree(b"".join(self._leaves()))

    def _leaves(self) -> Iterator[bytes]:
        width = sum(column.size for column in self.columns)
        block = max(1, _BLOCK_BYTES // width)
        for start in range(0, self.samples, block):
            part = {name: values[start : start + block] for name, values in self._arrays.items()}
            for index, row in enumerate(row_bytes(part), start):
                yield leaf(index, self._salt(index), row)

    def _salt(self, index: int) -> bytes:
        return hmac.digest(self._secret, b"polo/sample-salt/1" + u64(index), "sha256")


def load_record(path: str | Path) -> DataRecord:
    """Read the public record of data, `data.json`."""
    with open_plain(Path(path)) as file:
        data = file.read(_MAX_RECORD + 1)
    if len(data) > _MAX_RECORD:
        raise LimitError("too large for a record of data", place=str(path))
    return DataRecord.from_bytes(data, str(path))


def _array(name: str, values: Any) -> NDArray[Any]:
    """An array of a column, or a tensor as one; nothing is copied."""
    if not isinstance(values, np.ndarray):
        try:
            values = values.detach().numpy()
        except (AttributeError, TypeError, RuntimeError) as error:
            raise WeightsError(
                f"neither a numpy array nor a tensor in main memory that numpy can hold: {error}",
                place=f"column {str(name)[:64]}",
            ) from error
    if not values.ndim:
        raise WeightsError("has no dimension of samples", place=f"column {str(name)[:64]}")
    return values  # type: ignore[no-any-return]


def _native(values: NDArray[Any]) -> NDArray[Any]:
    return np.ascontiguousarray(values, dtype=values.dtype.newbyteorder("="))


def _changed(index: int) -> WeightsError:
    return WeightsError(
        "is not what was committed to: the data have changed",
        place=f"sample {index}",
        advice="Give the arrays that data.json was made from, in the same order.",
    )


def _read(path: Path, size: int) -> bytes:
    """A file of a known size."""
    with open_plain(path) as file:
        if os.fstat(file.fileno()).st_size != size:
            raise FormatError(f"expected {size} bytes", place=str(path))
        return file.read(size)
