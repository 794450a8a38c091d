"""Reading an adapter's marks where its matrices are not there as they were sealed.

Somebody folds a LoRA pair into the base's weights, or puts another basis between its two halves.
The product is still there: merged − base, or B A. It is cut into a pair again, brought into the
basis of an older checkpoint, and read. The base must be the one that the terms name: the owner who
could choose another would choose one that leaves the marks over.
"""

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from polo import tasks
from polo.alignment.unmerging import factors, turned
from polo.errors import PoloError, WeightsError
from polo.ownership.claim import Claim
from polo.ownership.claimant import Claimant
from polo.ownership.referenced import marks_against, named, stronger
from polo.ownership.sources import floats
from polo.protocol.layout import Layout, Tie
from polo.weights.base import HasBase
from polo.weights.checkpoint import Checkpoint, checkpoint_of
from polo.weights.files import FileCheckpoint
from polo.weights.formats import format_of, pickle_refusal, real_path
from polo.weights.found_model import FoundModel, Values
from polo.weights.hashing import commit

DOWN, UP = ".lora_A.weight", ".lora_B.weight"
MOST_REFERENCES = 64
MOST_RANK = 512
"""Pairs of a higher rank are left out: a basis of so many directions takes minutes to find."""

_PREFIX = "base_model.model."
_BASE_ADVICE = "Give the base to the bit, as one safetensors file in the type that it was used in."
_HEAD = "lm_head.weight"
_TRIES = 4
"""Tables that the head may be tied to; each costs a hash of the whole file."""

_TABLES = ("embed_tokens.weight", "wte.weight", "word_embeddings.weight", "embed_in.weight")
_USUAL_TABLES = ("model.embed_tokens.weight", "transformer.wte.weight")

Pair = tuple[Values, Values]


@dataclass(frozen=True)
class Found:
    """What was found of an adapter: pairs in any basis, and tensors that are there as they are."""

    pairs: Mapping[str, Pair]
    plain: Mapping[str, Values]

    def in_frame(self, reference: Mapping[str, Values]) -> dict[str, Values]:
        """Every tensor, pairs in the basis of an older checkpoint."""
        framed = dict(self.plain)
        for stem, pair in self.pairs.items():
            older = reference[stem + DOWN], reference[stem + UP]
            framed[stem + DOWN], framed[stem + UP] = turned(pair, older)
        return framed


class Unmerger:
    """Reads found models again, with adapters taken out of them.

    Args:
        base: File of the base; by default the base of the task.
        task: The task, or its name; by default the one that the claimant's terms name.
    """

    def __init__(self, base: Path | None, task: tasks.Task | str | None = None) -> None:
        self._base = base
        self._task = task

    def better(self, claimant: Claimant, found: FoundModel, claim: Claim) -> Claim:
        """The stronger of a claim and the same claim unmerged; both count as tries."""
        try:
            there = self._found(claimant, found)
            marks, numbers = marks_against(claimant, there.in_frame, MOST_REFERENCES)
        except PoloError as error:
            hint = error.advice or "Give a proof that kept older checkpoints."
            problem = f"no claim as it stands, and the adapter could not be taken out: {error}"
            return replace(claim, problem=problem, advice=hint)
        how = f"adapter taken out of the model, in the basis of W_{', W_'.join(map(str, numbers))}"
        return stronger(claim, claimant, marks, coverage=_coverage(claimant, there), how=how)

    def _found(self, claimant: Claimant, found: FoundModel) -> Found:
        beside, rest = _beside(claimant, found)
        plain = dict(_plain(claimant, found))
        if rest:
            with self._opened(claimant) as base:
                beside |= dict(_merged(claimant, found, base, rest))
        if not beside and not plain and not _stems(claimant):
            raise WeightsError("the adapter has no LoRA pairs of matrices, which can be taken out")
        if not beside and not plain:
            raise WeightsError("none of the weights that the adapter changes is in the model")
        return Found(beside, plain)

    @contextlib.contextmanager
    def _opened(self, claimant: Claimant) -> Iterator[Checkpoint]:
        """The base that the terms name."""
        wanted = claimant.manifest.terms.base
        if wanted is None:
            raise WeightsError("the terms name no base, so a merged adapter cannot be taken out")
        if self._base is None:
            yield self._of_task(claimant, wanted)
            return
        path = real_path(self._base)
        path = path / "model.safetensors" if path.is_dir() else path
        if path.exists() and format_of(path) == "pickle":
            raise pickle_refusal(path)
        with _opened_base(path) as file:
            yield _bound(file, wanted, str(self._base))

    def _of_task(self, claimant: Claimant, wanted: bytes) -> Checkpoint:
        asked = self._task if self._task is not None else claimant.manifest.terms.task.name
        task = tasks.load(asked) if isinstance(asked, str) else asked
        model: Any = task.build_model()
        base = checkpoint_of(model.base_state()) if isinstance(model, HasBase) else None
        if base is None or commit(base).root != wanted:
            raise WeightsError(
                f"the model of task {task.name!r} does not stand on the base that the terms name",
                advice="Give the base: --base FILE.safetensors",
            )
        return base


def _opened_base(path: Path) -> FileCheckpoint:
    try:
        return FileCheckpoint.any(path)
    except PoloError as error:
        error.advise(error.advice or _BASE_ADVICE)
        raise


class _Tied:
    """A file under a layout that has its tensors and may tie further names to them."""

    def __init__(self, file: FileCheckpoint, ties: tuple[tuple[str, str], ...]) -> None:
        self._file = file
        own = {tensor.name: (at, tensor) for at, tensor in enumerate(file.layout.tensors)}
        named: dict[str, tuple[int, Any]] = dict(own)
        pairs = []
        for one, other in ties:
            at, tensor = own[one] if one in own else own[other]
            first, second = sorted((one, other), key=str.encode)
            named.pop(second, None)
            named[first] = (at, replace(tensor, name=first))
            pairs.append(Tie(second, first))
        ordered = sorted(named.values(), key=lambda item: item[1].name.encode())
        self._at = [at for at, _ in ordered]
        tensors = tuple(tensor for _, tensor in ordered)
        self.layout = Layout(file.layout.chunk, tensors, tuple(pairs))

    def read(self, tensor: int, start: int, stop: int) -> bytes:
        return self._file.read(self._at[tensor], start, stop)


def _bound(file: FileCheckpoint, wanted: bytes, place: str) -> Checkpoint:
    """The file as the checkpoint that has the root; files do not say which tensors are tied.

    Whatever is tried, only the base itself has its root.
    """
    there = set(file.layout.index)
    tables = [name for name in there if name.endswith(_TABLES)] or list(_USUAL_TABLES)
    tried: list[tuple[tuple[str, str], ...]] = [()]
    if _HEAD in there or tables[0] in there:
        tried += [((_HEAD, table),) for table in sorted(tables, key=lambda n: (len(n), n))[:_TRIES]]
    for ties in tried:
        candidate = _Tied(file, ties)
        if commit(candidate).root == wanted:
            return candidate
    raise WeightsError(
        f"is not the base {wanted.hex()[:16]}… that the terms name",
        place=place,
        advice=_BASE_ADVICE,
    )


def _stems(claimant: Claimant) -> list[str]:
    """Pairs of matrices; what is only called so, or is of convolutions, is left out."""
    index = claimant.layout.index
    downs = [name.removesuffix(DOWN) for name in index if name.endswith(DOWN)]
    pairs = [stem for stem in downs if stem + UP in index]
    return [
        stem for stem in pairs if _fit(_shape(claimant, stem + DOWN), _shape(claimant, stem + UP))
    ]


def _fit(down: tuple[int, ...], up: tuple[int, ...]) -> bool:
    return len(down) == len(up) == 2 and down[0] == up[1] and 0 < down[0] <= MOST_RANK


def _target(stem: str) -> str:
    return f"{stem.removeprefix(_PREFIX)}.weight"


def _beside(claimant: Claimant, found: FoundModel) -> tuple[dict[str, Pair], list[str]]:
    """Pairs that are there as pairs, and the others."""
    pairs, rest = {}, []
    for stem in _stems(claimant):
        names = named(found, stem + DOWN), named(found, stem + UP)
        shapes = [found.tensors[name].shape if name else None for name in names]
        if shapes == [_shape(claimant, stem + DOWN), _shape(claimant, stem + UP)]:
            pairs[stem] = found.values(names[0]), found.values(names[1])
        else:
            rest.append(stem)
    return pairs, rest


def _merged(
    claimant: Claimant, found: FoundModel, base: Checkpoint, stems: list[str]
) -> Iterator[tuple[str, Pair]]:
    for stem in stems:
        at, there = base.layout.index.get(_target(stem)), named(found, _target(stem))
        rank, inputs = _shape(claimant, stem + DOWN)
        shape = (_shape(claimant, stem + UP)[0], inputs)
        if at is None or not there or base.layout.tensors[at].shape != found.tensors[there].shape:
            continue
        before = floats(base, at, 0, base.layout.tensors[at].elements)
        with np.errstate(all="ignore"):
            change = found.values(there).astype(float) - before.reshape(found.tensors[there].shape)
        # Some libraries keep weights as inputs × outputs; of a square one nobody can tell.
        change = change.T if change.shape == shape[::-1] != shape else change
        if change.shape == shape and rank <= min(shape):
            yield stem, factors(change, rank)


def _plain(claimant: Claimant, found: FoundModel) -> Iterator[tuple[str, Values]]:
    """Whole modules that were trained with the adapter: merging leaves them as they are."""
    for tensor in claimant.carrier.tensors:
        name = claimant.layout.tensors[tensor].name
        there = "" if "lora_" in name else named(found, name.removeprefix(_PREFIX))
        if there and found.tensors[there].shape == claimant.layout.tensors[tensor].shape:
            yield name, found.values(there)


def _shape(claimant: Claimant, name: str) -> tuple[int, ...]:
    return claimant.layout.tensors[claimant.layout.index[name]].shape


def _coverage(claimant: Claimant, there: Found) -> float:
    """Part of the carrier's weights that was found."""
    halves = {stem + end for stem in there.pairs for end in (DOWN, UP)}
    carrier = [claimant.layout.tensors[at] for at in claimant.carrier.tensors]
    have = sum(t.elements for t in carrier if t.name in halves or t.name in there.plain)
    return have / sum(tensor.elements for tensor in carrier)
