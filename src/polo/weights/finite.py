"""Finding NaN and infinity in the tensors of a live model."""

from collections.abc import Iterator

import torch

from polo.errors import WeightsError
from polo.weights.checkpoint import MemoryCheckpoint, checkpoint_of


def check_new(model: torch.nn.Module) -> None:
    """Refuse NaN and infinity in a model that training has not begun with.

    Raises:
        WeightsError: There are some; it names the tensor and what to do.
    """
    for name in not_finite(checkpoint_of(model)):
        if name in dict(model.named_parameters(remove_duplicate=False)):
            advice = "Look at how it is initialised, or at the file that it was loaded from."
        else:
            advice = "A mask need not be in the state dict: register_buffer(..., persistent=False)."
            advice += (
                " Or keep it as truth values, and make minus infinity of them where it is used."
            )
        raise WeightsError(
            "its values are not finite (NaN or infinity) before any step, and no proof can hold "
            "such weights",
            place=name,
            advice=advice,
        )


@torch.no_grad()
def not_finite(checkpoint: MemoryCheckpoint) -> Iterator[str]:
    """Names of tensors with NaN or infinity; each device is waited for once."""
    found: dict[torch.device, list[tuple[str, torch.Tensor]]] = {}
    for at, tensor in enumerate(checkpoint.layout.tensors):
        value = checkpoint.tensor(at).detach()
        if value.is_complex():
            value = torch.view_as_real(value)
        # 8-bit floats have no arithmetic; committing to them looks at their bits.
        if value.is_floating_point() and value.element_size() > 1 and value.numel():
            least, most = torch.aminmax(value)
            both = torch.stack((least, most)).double()
            found.setdefault(value.device, []).append((tensor.name, both))
    for pairs in found.values():
        fine = torch.stack([both for _, both in pairs]).isfinite().all(dim=1).tolist()
        yield from (name for (name, _), good in zip(pairs, fine, strict=True) if not good)
