"""The mark of the current shard in a live model: pressed, read, finished."""

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass

import torch

from polo.embedding.graphs import Graphs
from polo.embedding.placement import Placement
from polo.embedding.presses import GROUP, PRESSES, Watching, press
from polo.errors import WeightsError
from polo.protocol.carrier import Carrier
from polo.protocol.detection import MILLION, Reading
from polo.protocol.records import Terms
from polo.watermark import mark as marks
from polo.watermark import reading as readings
from polo.watermark.offers import blame


@dataclass(frozen=True)
class Finished:
    """What the finishing step would do, or did.

    Attributes:
        reading: The mark after it.
        turned: Bits it turned right.
        largest: Largest relative edit of a group, in millionths.
        values: The weights after it.
    """

    reading: Reading
    turned: int
    largest: int
    values: torch.Tensor


@contextlib.contextmanager
def _as_usual() -> Iterator[None]:
    """Make new tensors on the CPU, and such as can be changed, whatever the loop has set."""
    with torch.device("cpu"), torch.inference_mode(False):
        yield


class Embedder:
    """Presses one mark into a model, step by step."""

    @_as_usual()
    def __init__(
        self,
        terms: Terms,
        carrier: Carrier,
        seed: bytes,
        parameters: dict[str, torch.nn.Parameter],
    ) -> None:
        self.mark = marks.derive(terms, carrier, seed)
        self._placement = Placement(carrier, self.mark.blocks, parameters)
        self._press = press(self.mark, terms, self._placement.device)
        watching = self._press if isinstance(self._press, Watching) else None
        watched = watching.reference(carrier) if watching else ()
        self._reference = Placement(carrier, watched, parameters) if watched else None
        self._watching = watching if watched else None
        self._presses = 0
        self._graphs: Graphs | None = None
        if getattr(self._press, "graphed", False) and self._on_one_gpu():
            self._graphs = Graphs(self._placement.device)

    @torch.no_grad()
    def add_gradient(self, scale: torch.Tensor | float = 1.0) -> None:
        """Add λ∇l_Λ, times the loss scale, to the model's gradients.

        Nothing in here waits for the device.
        """
        device = self._placement.device.type
        if torch.is_autocast_enabled(device):
            # Sums of many weights must not be rounded to few bits because a loop steps in there.
            with torch.autocast(device, enabled=False):
                self.add_gradient(scale)
            return
        self._follow()
        watches = self._watching is not None and self._presses % self._watching.every == 0
        self._presses += 1
        place = self._place(scale) if self._graphs else None
        if place is None or not self._graphs:
            self._add(scale, watches)
        else:
            self._graphs.run((watches, *place), lambda: self._add(scale, watches))

    def _place(self, scale: torch.Tensor | float) -> tuple[object, ...] | None:
        """All that a press depends on beside the parameters; None where it cannot be recorded."""
        gradients = self._placement.gradients_at()
        if gradients is None or not isinstance(scale, torch.Tensor):
            return gradients and (scale, *gradients)
        here = scale.device == self._placement.device
        return (scale.data_ptr(), scale.dtype, *gradients) if here else None

    def _add(self, scale: torch.Tensor | float, watches: bool) -> None:
        values = self._placement.gather()
        unmarked = self._reference.gather() if watches and self._reference else None
        with self._blaming():
            if unmarked is not None and self._watching:
                self._watching.watch(values, unmarked)
            gradient = _like(values, self._press.gradient(values), "gradient()")
        if not isinstance(scale, float) or scale != 1.0:
            gradient = gradient * scale
        self._placement.add_to_gradients(gradient)

    def _follow(self) -> None:
        """Notice parameters that lie elsewhere than before; graphs would look where they were."""
        moved = self._placement.follow()
        if self._reference:
            moved |= self._reference.follow()
        if moved and self._graphs:
            self._graphs.forget()

    def _on_one_gpu(self) -> bool:
        places = [self._placement, *([self._reference] if self._reference else [])]
        return all(place.on_one_gpu() for place in places)

    def idle(self) -> set[str]:
        """Carriers of the mark that get no gradient in this step, or a sparse one."""
        return self._placement.idle()

    @_as_usual()
    @torch.no_grad()
    def read(self) -> Reading:
        """The mark as it is in the model now."""
        values = self._placement.gather(torch.float64)
        if not bool(values.isfinite().all()):
            raise WeightsError(
                "the weights that carry the mark are not finite (NaN or infinity)",
                advice="Training has diverged: lower the learning rate or the mark's strength.",
            )
        return self._read(values)

    @_as_usual()
    @torch.no_grad()
    def finish(self) -> Finished:
        """The finishing step, worked out but not yet applied."""
        before = self._placement.gather(torch.float64).cpu()
        # What the parameters' own type keeps of the edit is what counts.
        with self._blaming():
            wanted = _like(before, self._press.finish(before.clone()), "finish()")
            if not bool(wanted.isfinite().all()):
                raise ValueError("finish() returned numbers that are not finite")
        after = self._placement.rounded(wanted)
        # By group, as the budget goes: with a dense key single blocks may be all zero.
        edit = self._norms(after - before) / self._norms(before).clamp(min=1e-300)
        reading = self._read(after)
        turned = reading.matches - self._read(before).matches
        return Finished(reading, max(0, turned), int(float(edit.max()) * MILLION), after)

    @_as_usual()
    def apply(self, finished: Finished) -> None:
        """Put the finishing step into the model."""
        self._placement.write(finished.values)

    @contextlib.contextmanager
    def _blaming(self) -> Iterator[None]:
        """Name the package whose press raises in here, if it is none of ours."""
        name = self.mark.scheme.name
        try:
            yield
        except Exception as error:
            if name not in PRESSES:
                blame(GROUP, name, error)
            raise

    def _norms(self, values: torch.Tensor) -> torch.Tensor:
        norms: torch.Tensor = values.reshape(self.mark.groups, -1).norm(dim=1)
        return norms

    def _read(self, values: torch.Tensor) -> Reading:
        return readings.read(self.mark, values.cpu().numpy())


def _like(values: torch.Tensor, found: object, what: str) -> torch.Tensor:
    """What a press returned for these weights, if it can be that."""
    shape = tuple(values.shape)
    if not isinstance(found, torch.Tensor):
        raise TypeError(f"{what} returned {type(found).__name__}, and not a tensor of {shape}")
    if found.shape != values.shape:
        raise ValueError(f"{what} returned a tensor of {tuple(found.shape)}, and not of {shape}")
    return found
