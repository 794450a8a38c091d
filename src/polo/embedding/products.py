"""Products of small layers with the weights of a mark.

On a GPU they are multiplied and summed, and the matrix library is left out: inside a CUDA graph it
wants a workspace of its own, tens of megabytes, and it may choose another kernel there, so that
a step would not come out the same to the bit. Products go piece by piece: torch reserves twenty
megabytes for a single tensor above one. Elsewhere the matrix library is the fastest.
"""

import torch

MOST = 2**18
"""Numbers of a piece: a megabyte of float32."""


def times(layers: torch.Tensor, units: torch.Tensor) -> torch.Tensor:
    """Layers, as groups × outputs × inputs, of units as groups × inputs."""
    layers = layers.to(units.dtype)
    if not fits(layers):
        return torch.bmm(layers, units.unsqueeze(2)).squeeze(2)
    pieces = zip(_cut(layers, layers[0]), _cut(units, layers[0]), strict=True)
    return _joined([(some * mine.unsqueeze(1)).sum(dim=2) for some, mine in pieces])


def back(layers: torch.Tensor, slopes: torch.Tensor) -> torch.Tensor:
    """The same layers backwards: slopes, as groups × outputs, by inputs."""
    if not fits(layers):
        return torch.bmm(slopes.unsqueeze(1), layers).squeeze(1)
    pieces = zip(_cut(layers, layers[0]), _cut(slopes, layers[0]), strict=True)
    return _joined([(some * mine.unsqueeze(2)).sum(dim=1) for some, mine in pieces])


def each(layer: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
    """One layer, as outputs × inputs, of every row."""
    if not fits(layer.unsqueeze(0)):
        return rows @ layer.T
    return _joined([(some.unsqueeze(1) * layer).sum(dim=2) for some in _cut(rows, layer)])


def across(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    """leftᵀ right: what all rows together say about a layer."""
    if not right.is_cuda:
        return left.T @ right
    columns = _cut(left.T, right)
    return _joined([(some.unsqueeze(2) * right.unsqueeze(0)).sum(dim=1) for some in columns])


def fits(layers: torch.Tensor) -> bool:
    """Whether layers, as groups × outputs × inputs, are multiplied piece by piece."""
    return layers.is_cuda and layers[0].numel() <= MOST


def _cut(rows: torch.Tensor, layer: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Rows in pieces, so that with each one multiplied by a layer a piece is not too large."""
    pieces: tuple[torch.Tensor, ...] = rows.split(max(1, MOST // layer.numel()))
    return pieces


def _joined(pieces: list[torch.Tensor]) -> torch.Tensor:
    return pieces[0] if len(pieces) == 1 else torch.cat(pieces)
