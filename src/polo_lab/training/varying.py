"""Images shifted and mirrored, each by itself."""

import torch
from torch.nn import functional

from polo_lab.training.course import Augmentation


def edged(images: torch.Tensor, augmentation: Augmentation) -> torch.Tensor:
    """Images with channels last, with black edges around them if those may come into view."""
    if augmentation.filling == "reflect":
        return images
    return functional.pad(images, (0, 0, *(augmentation.pad,) * 4))


def places(
    shifts: torch.Tensor,
    mirrored: torch.Tensor,
    size: tuple[int, int],
    augmentation: Augmentation,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Which rows and columns of an image with edges each image consists of.

    Args:
        shifts: How far down and across each begins, 2 × images × 1.
        mirrored: Whether each is mirrored, images × 1.
        size: Height and width of an image.
        augmentation: How images are varied.
    """
    height, width = size
    rows, along = (torch.arange(length, device=shifts.device) for length in size)
    rows, columns = shifts[0] + rows, shifts[1] + torch.where(mirrored, along.flip(0), along)
    if augmentation.filling != "reflect":
        return rows, columns
    return _reflected(rows - augmentation.pad, height), _reflected(
        columns - augmentation.pad, width
    )


def picked(
    images: torch.Tensor, which: torch.Tensor, rows: torch.Tensor, columns: torch.Tensor
) -> torch.Tensor:
    """Windows of images with channels last, in one lookup."""
    return images[which[:, None, None], rows[:, :, None], columns[:, None, :]]


def varied(images: torch.Tensor, augmentation: Augmentation) -> torch.Tensor:
    """A batch of images with channels last, varied; what is drawn comes from torch's generators."""
    count, height, width = images.shape[:3]
    device = images.device
    shifts = torch.randint(0, 2 * augmentation.pad + 1, (2, count, 1), device=device)
    mirrored = torch.rand(count, 1, device=device) < 0.5 * augmentation.mirror
    found = places(shifts, mirrored, (height, width), augmentation)
    return picked(edged(images, augmentation), torch.arange(count, device=device), *found)


def _reflected(at: torch.Tensor, length: int) -> torch.Tensor:
    """Places beyond either end, counted back from there."""
    last = length - 1
    return last - (last - at.abs()).abs()
