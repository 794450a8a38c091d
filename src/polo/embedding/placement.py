"""Where a mark sits in a live model: gathering its weights, adding to their gradients."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from polo.errors import WeightsError
from polo.protocol.carrier import Carrier
from polo.weights.checkpoint import canonical_names

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True)
class _Part:
    """The blocks of one parameter: which rows of the mark, which weights of the parameter."""

    parameter: torch.nn.Parameter
    rows: torch.Tensor
    elements: torch.Tensor
    blocks: torch.Tensor


class Placement:
    """The blocks of one mark inside a model's parameters."""

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
            parameter = parameters[carrier.layout.tensors[tensor].name]
            rows, starts = (torch.tensor(column) for column in zip(*found, strict=True))
            elements = starts[:, None] + torch.arange(self.block)
            device = parameter.device
            self._parts.append(
                _Part(
                    parameter,
                    rows.to(device),
                    elements.to(device),
                    (starts // self.block).to(device),
                )
            )

    @property
    def device(self) -> torch.device:
        """Where the mark is computed: the device of its first part."""
        return self._parts[0].parameter.device

    def gather(self, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        """The mark's weights, as blocks × weights."""
        values = torch.empty(self.count, self.block, dtype=dtype, device=self.device)
        for part in self._parts:
            picked = self._pick(part.parameter.detach(), part)
            values[part.rows.to(self.device)] = picked.to(device=self.device, dtype=dtype)
        return values

    def add_to_gradients(self, gradient: torch.Tensor) -> None:
        """Add a gradient, as blocks × weights, to `p.grad` where there is one."""
        for part in self._parts:
            target = part.parameter.grad
            if target is None or target.is_sparse:
                continue
            rows = gradient[part.rows.to(gradient.device)].to(target)
            if target.is_contiguous():
                view = target.view(-1)[: target.numel() // self.block * self.block]
                view.view(-1, self.block).index_add_(0, part.blocks, rows)
            else:
                where = torch.unravel_index(part.elements, target.shape)
                target.index_put_(where, rows, accumulate=True)

    @torch.no_grad()
    def write(self, values: torch.Tensor) -> None:
        """Put weights, as blocks × weights, back into the model."""
        for part in self._parts:
            rows = values[part.rows.to(values.device)].to(part.parameter)
            where = torch.unravel_index(part.elements, part.parameter.shape)
            part.parameter.index_put_(where, rows)

    def rounded(self, values: torch.Tensor) -> torch.Tensor:
        """Weights as the parameters' own types would keep them, in double precision."""
        kept = values.clone()
        for part in self._parts:
            rows = part.rows.to(values.device)
            kept[rows] = values[rows].to(part.parameter.dtype).to(values.dtype)
        return kept

    def _pick(self, tensor: torch.Tensor, part: _Part) -> torch.Tensor:
        if tensor.is_contiguous():
            view = tensor.view(-1)[: tensor.numel() // self.block * self.block]
            return view.view(-1, self.block)[part.blocks]
        return tensor[torch.unravel_index(part.elements, tensor.shape)]


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
