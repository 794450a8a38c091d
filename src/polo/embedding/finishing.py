"""The finishing step δW: the smallest edit that turns the wrong bits, within a budget.

For every group it solves min ‖δ‖² subject to A(w + δ) ≥ t, where row i of A reads bit i and is
positive when the bit is right. Wrong bits must reach a margin; right bits may not get worse
than the margin or than they were. The dual problem has one variable per bit and is well
conditioned for random signs, so accelerated projected gradient ascent reaches double precision
in some tens of products; all groups are solved at once.
"""

import torch

_SWEEPS = 400
_TOLERANCE = 1e-9
_DROPPED = 0.1


def correct(
    wanted: torch.Tensor, weights: torch.Tensor, *, margin: float, budget: float
) -> torch.Tensor:
    """Weights with as many wrong bits turned right as the budget allows.

    Args:
        wanted: A, as groups × bits × weights, double precision.
        weights: w, as groups × weights, double precision.
        margin: What a turned bit's sum must reach, relative to its group's norm.
        budget: Most ‖δ‖ of a group, relative to its norm.
    """
    norms = weights.norm(dim=1, keepdim=True)
    sums = torch.bmm(wanted, weights.unsqueeze(2)).squeeze(2)
    wrong = sums <= 0
    if not bool(wrong.any()):
        return weights
    least = margin * norms
    short = torch.where(wrong, least - sums, torch.minimum(sums, least) - sums)
    gram = torch.bmm(wanted, wanted.transpose(1, 2))
    while True:
        delta = torch.bmm(_multipliers(gram, short).unsqueeze(1), wanted).squeeze(1)
        over = delta.norm(dim=1, keepdim=True) > budget * norms
        active = wrong & (short > 0)
        if not bool((over & active.any(dim=1, keepdim=True)).any()):
            return weights + torch.where(over, torch.zeros_like(delta), delta)
        short = _give_up_hardest(short, active & over)


def _give_up_hardest(short: torch.Tensor, active: torch.Tensor) -> torch.Tensor:
    """Let the farthest tenth of the active bits of each group stay wrong."""
    kept = short.clone()
    for group in active.any(dim=1).nonzero().flatten().tolist():
        bits = active[group].nonzero().flatten()
        count = max(1, int(_DROPPED * len(bits)))
        hardest = bits[short[group, bits].topk(count).indices]
        kept[group, hardest] = -torch.inf
    return kept


def _multipliers(gram: torch.Tensor, short: torch.Tensor) -> torch.Tensor:
    """Dual variables y ≥ 0 that maximise y·c − ½ yᵀGy, by accelerated projected ascent."""
    step = 1 / torch.linalg.matrix_norm(gram, ord=float("inf")).clamp(min=1e-300).unsqueeze(1)
    free = torch.isfinite(short)
    target = torch.where(free, short, torch.zeros_like(short))
    y = torch.zeros_like(target)
    ahead, momentum = y, 1.0
    scale = float(target.abs().max())
    for _ in range(_SWEEPS):
        residual = target - torch.bmm(gram, ahead.unsqueeze(2)).squeeze(2)
        following = torch.where(free, (ahead + step * residual).clamp(min=0), 0)
        faster = (1 + (1 + 4 * momentum**2) ** 0.5) / 2
        change = following - y
        ahead = following + (momentum - 1) / faster * change
        y, momentum = following, faster
        if float((change / step).abs().max()) <= _TOLERANCE * scale:
            break
    return y
