"""What one press of a mark is made of: memory, launches, and no waiting for the device."""

import gc
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from benchmarks.figures import Figure, Target, amount_of, missing
from polo import make_terms
from polo.embedding.embedder import Embedder
from polo.embedding.placement import parameters_of
from polo.watermark import carrier_of
from polo.watermark.schemes import SCHEMES
from polo.weights import checkpoint_of

BITS = 2048
_SEED = bytes(range(32))
_MEMORY = Target("at most", 20.0)
_NONE = Target("at most", 0.0)
_LOADS = {"fedipr": 0.5}
"""Norm scales are few: at the default load 2048 bits do not fit into those of ResNet-18."""

_PRESSES = 4
"""Presses that are looked at: some schemes do part of their work in every fourth one only."""

_SETTLED = 10
"""Presses after which all that is ever recorded of them has been."""

_WAITS = ("Synchronize", "Memcpy HtoD", "Memcpy DtoH")


@dataclass(frozen=True)
class Case:
    """How a mark is pressed in.

    Attributes:
        scheme: Its scheme.
        key: The kind of its key.
        bits: Bits of it.
    """

    scheme: str
    key: str = "block"
    bits: int = BITS

    @property
    def title(self) -> str:
        """What figures call it."""
        return f"{self.scheme}, dense key" if self.key == "dense" else self.scheme


def known(names: Iterable[str] = SCHEMES) -> list[str]:
    """Those of some schemes that are built in."""
    return [name for name in names if name in SCHEMES]


def embedder_of(model: nn.Module, case: Case) -> Embedder:
    """What presses a mark into a model."""
    layout = checkpoint_of(model).layout
    terms = make_terms(
        layout,
        scheme=case.scheme,
        bits=case.bits,
        key=case.key,
        load=_LOADS.get(case.scheme),
    )
    return Embedder(terms, carrier_of(terms, layout), _SEED, parameters_of(model))


def figures(model: nn.Module, cases: Sequence[Case]) -> Iterator[Figure]:
    """Memory, launches and waits of each case."""
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    on_gpu = next(model.parameters()).is_cuda
    # The workspace of the matrix library is there in any training, and no part of a press.
    square = torch.ones(8, 8, device=next(model.parameters()).device)
    torch.mm(square, square)
    for case in cases:
        yield _memory(model, case)
        embedder = embedder_of(model, case)
        for _ in range(_SETTLED):
            embedder.add_gradient()
        yield from _on_device(case, embedder) if on_gpu else _operations(case, embedder)


def _memory(model: nn.Module, case: Case) -> Figure:
    on_gpu = next(model.parameters()).is_cuda
    gc.collect()
    before = _reserved() if on_gpu else 0
    embedder = embedder_of(model, case)
    for _ in range(_SETTLED):
        embedder.add_gradient()
    kept = _reserved() - before if on_gpu else _held(embedder, model)
    details = {}
    if on_gpu:
        details["MB that it holds"] = _held(embedder, model) / 1e6
    return amount_of(
        f"{case.title}: memory that a press keeps",
        "MB",
        [kept / 1e6],
        target=_MEMORY,
        note=f"{case.bits} bits; "
        + ("reserved on the device" if on_gpu else "tensors that it holds"),
        details=details,
    )


def _reserved() -> int:
    """Bytes that torch has taken of the device and cannot give back."""
    gc.collect()
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    return torch.cuda.memory_reserved()


def _held(embedder: Embedder, model: nn.Module) -> int:
    """Bytes of all tensors that an embedder holds and the model does not."""
    storages = {p.untyped_storage().data_ptr() for p in model.parameters()}
    found, seen, left = 0, {id(model)}, [embedder]
    while left:
        item: Any = left.pop()
        if id(item) in seen or isinstance(item, (type, nn.Parameter)):
            continue
        seen.add(id(item))
        if isinstance(item, torch.Tensor):
            storage = item.untyped_storage()
            if storage.data_ptr() not in storages:
                storages.add(storage.data_ptr())
                found += storage.nbytes()
        elif isinstance(item, (dict, list, tuple)) or type(item).__module__.startswith("polo."):
            left += gc.get_referents(item)
    return found


def _on_device(case: Case, embedder: Embedder) -> Iterator[Figure]:
    """Launches and waits of a press, as the profiler sees them."""
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        for _ in range(_PRESSES):
            embedder.add_gradient()
    except RuntimeError as error:
        name = f"{case.title}: waits for the device"
        yield missing(name, "waits", f"it waits: {error}"[:300], _NONE)
        return
    finally:
        torch.cuda.set_sync_debug_mode("default")
    # No wait inside the profiled part: the profiler collects what ran when it is left.
    with torch.profiler.profile() as profile:
        for _ in range(_PRESSES):
            embedder.add_gradient()
    # The profiler's own: a buffer that it asks for, and its wait when it is left.
    own = ("Activity Buffer Request", "cudaDeviceSynchronize")
    events = [event for event in profile.events() or [] if event.name not in own]
    launches = [event.name for event in events if event.device_type.name == "CUDA"]
    waits = [event.name for event in events if any(word in event.name for word in _WAITS)]
    yield amount_of(
        f"{case.title}: launches of a press",
        "launches",
        [len(launches) / _PRESSES],
        details={name[:60]: launches.count(name) / _PRESSES for name in sorted(set(launches))},
    )
    yield amount_of(
        f"{case.title}: waits for the device",
        "waits",
        [len(waits)],
        target=_NONE,
        note="set_sync_debug_mode('error') was on before that",
    )


class _Asked(TorchDispatchMode):
    """Counts operations that would be launches: all but views and empty tensors."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.names: list[str] = []

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        name = func._schema.name.removeprefix("aten::")
        if not func.is_view and not name.startswith(("empty", "new_empty", "detach", "split")):
            self.names.append(name)
        return func(*args, **(kwargs or {}))


def _operations(case: Case, embedder: Embedder) -> Iterator[Figure]:
    with _Asked() as asked:
        for _ in range(_PRESSES):
            embedder.add_gradient()
    yield amount_of(
        f"{case.title}: operations of a press",
        "operations",
        [len(asked.names) / _PRESSES],
        details={name: asked.names.count(name) / _PRESSES for name in sorted(set(asked.names))},
    )
