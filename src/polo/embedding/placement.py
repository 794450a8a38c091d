"""Where a mark sits in a live model: gathering its weights, adding to their gradients."""

from typing import TYPE_CHECKING

import torch

from polo.embedding.staging import Cut, Part, Stage, cut
from polo.errors import WeightsError
from polo.protocol.carrier import Carrier
from polo.weights.checkpoint import canonical_names

if TYPE_CHECKING:
    from collections.abc import Mapping


class Placement:
    """The blocks of one mark inside a model's parameters.

    Nothing here waits for the device, so a training loop can go ahead of it.
    """

    def __init__(
        self,
        carrier: Carrier,
        blocks: tuple[int, ...],
        parameters: "Mapping[str, torch.nn.Parameter]",
    ) -> None:
        self.block = carrier.block
        self.count = len(blocks)
        by_tensor: dict[int, list[tuple[int, int]]] = {}
        for row, block in enumerate(blocks):
            where = carrier.locate(block)
            by_tensor.setdefault(where.tensor, []).append((row, where.element))
        self._parts = []
        for tensor, found in by_tensor.items():
            name = carrier.layout.tensors[tensor].name
            rows, starts = zip(*found, strict=True)
            device = parameters[name].device
            firsts = torch.tensor(starts).to(device)
            self._parts.append((name, Part(parameters[name], rows, firsts, self.block)))
        self._lay()

    @property
    def device(self) -> torch.device:
        """Where the mark is computed: the device of its first part."""
        return self._parts[0][1].starts.device

    def on_one_gpu(self) -> bool:
        """Whether all of it is on one CUDA device."""
        devices = {part.parameter.device for _, part in self._parts}
        return self.device.type == "cuda" and len(devices) == 1

    def gradients_at(self) -> tuple[object, ...] | None:
        """Where the gradients lie and how; None where one of them is not plain memory."""
        found: list[object] = []
        for _, part in self._parts:
            gradient = part.parameter.grad
            if gradient is None:
                found.append(None)
            elif gradient.layout is torch.strided:
                found += (gradient.data_ptr(), gradient.stride(), gradient.dtype)
            else:
                return None
        return tuple(found)

    def idle(self) -> set[str]:
        """Parameters whose gradient nothing can be added to now: there is none, or it is sparse."""
        return {
            name
            for name, part in self._parts
            if part.parameter.grad is None or part.parameter.grad.layout is not torch.strided
        }

    def gather(self, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        """The mark's weights, as blocks × weights."""
        self.follow()
        found = [piece.gather() for piece in self._pieces]
        if self._order is None:
            return found[0].to(dtype)
        values = [rows.to(device=self.device, dtype=dtype) for rows in found]
        return torch.cat(values).index_select(0, self._order)

    def add_to_gradients(self, gradient: torch.Tensor) -> None:
        """Add a gradient, as blocks × weights, to `p.grad` where there is one."""
        if self._order is None:
            self._pieces[0].add(gradient)
            return
        for piece, rows in zip(self._pieces, self._rows, strict=True):
            piece.add(gradient.index_select(0, rows))

    @torch.no_grad()
    def write(self, values: torch.Tensor) -> None:
        """Put weights, as blocks × weights, back into the model."""
        for _, part in self._parts:
            part.write(values[list(part.rows)])

    def rounded(self, values: torch.Tensor) -> torch.Tensor:
        """Weights as the parameters' own types would keep them, in double precision."""
        kept = values.clone()
        for _, part in self._parts:
            rows = list(part.rows)
            kept[rows] = values[rows].to(part.parameter.dtype).to(values.dtype)
        return kept

    def _lay(self) -> None:
        """Find out what can be copied together."""
        together: dict[tuple[torch.device, torch.dtype], list[Cut]] = {}
        self._pieces: list[Stage | Part] = []
        for _, part in self._parts:
            found = cut(part)
            if found is None:
                self._pieces.append(part)
            else:
                kind = part.parameter.device, part.parameter.dtype
                together.setdefault(kind, []).append(found)
        self._pieces += [Stage(cuts) for cuts in together.values()]
        self._seen = [part.parameter.data_ptr() for _, part in self._parts]
        self._kinds = [_kind(part.parameter) for _, part in self._parts]
        self._order: torch.Tensor | None = None
        self._rows = [torch.tensor(piece.rows, device=self.device) for piece in self._pieces]
        if len(self._pieces) > 1:
            self._order = torch.cat(self._rows).argsort()

    def follow(self) -> bool:
        """Whether memory of parameters is another than before, as after loading or moving.

        Raises:
            WeightsError: A parameter is on another device, or of another type or shape.
        """
        if self._seen == [part.parameter.data_ptr() for _, part in self._parts]:
            return False
        for (name, part), kind in zip(self._parts, self._kinds, strict=True):
            if _kind(part.parameter) != kind:
                raise WeightsError(
                    "this parameter was moved, cast or reshaped while the mark was pressed in",
                    place=name,
                    advice="Do so before attaching, or attach again afterwards.",
                )
        self._lay()
        return True


def _kind(parameter: torch.nn.Parameter) -> tuple[torch.device, torch.dtype, torch.Size]:
    return parameter.device, parameter.dtype, parameter.shape


def parameters_of(model: torch.nn.Module) -> dict[str, torch.nn.Parameter]:
    """A model's parameters by canonical name; aliases of tied parameters included."""
    found = dict(model.named_parameters(remove_duplicate=False))
    # The whole state dict decides what is a wrapper's: beside a buffer `scale`, a child called
    # `module` is none, though all parameters are below it.
    short = canonical_names(list(found)) | canonical_names(list(model.state_dict()))
    return {short[name]: parameter for name, parameter in found.items()}


def check_trained(
    parameters: "Mapping[str, torch.nn.Parameter]",
    carrier: Carrier,
    optimizer: torch.optim.Optimizer,
) -> None:
    """Refuse carriers that the model lacks or the optimizer does not train."""
    trained = {id(p) for group in optimizer.param_groups for p in group["params"]}
    for name in carrier.names:
        parameter = parameters.get(name)
        if parameter is None:
            raise WeightsError(
                "the terms name this carrier; the model has no such parameter", place=name
            )
        if not parameter.requires_grad or id(parameter) not in trained:
            raise WeightsError(
                "the terms name this carrier, but it is frozen or unknown to the optimizer",
                place=name,
                advice="Train it, or ask the issuer for terms with other carriers.",
            )
