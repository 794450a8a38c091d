"""The finishing step δW: the smallest edit that turns the wrong bits, within a budget.

For every group it solves min ‖δ‖² subject to A(w + δ) ≥ t, where row i of A reads bit i and is
positive when the bit is right. Wrong bits must reach a margin; right bits may not get worse
than the margin or than they were. The dual problem has one variable per bit, and few rounds of
guessing which constraints bind solve it exactly; all groups are solved at once.
"""

import torch

_ROUNDS = 60
_TOLERANCE = 1e-9
_SOLVED = 1e-6
_RIDGE = 1e-12
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
    if not budget or not bool((sums <= 0).any()):
        return weights
    return weights + smallest_edit(wanted, sums, norms, margin=margin, budget=budget)


def smallest_edit(
    wanted: torch.Tensor, sums: torch.Tensor, norms: torch.Tensor, *, margin: float, budget: float
) -> torch.Tensor:
    """The edit δ itself, for sums that need not be A times the weights.

    Args:
        wanted: A, what an edit adds to the sums, as groups × bits × weights.
        sums: What the bits' sums are without an edit, as groups × bits.
        norms: Norms of the groups' weights, as groups × 1.
        margin: As in `correct`.
        budget: As in `correct`.
    """
    wrong = sums <= 0
    least = margin * norms
    short = torch.where(wrong, least - sums, torch.minimum(sums, least) - sums)
    gram = torch.bmm(wanted, wanted.transpose(1, 2))
    while True:
        multipliers, solved = _multipliers(gram, short)
        delta = torch.bmm(multipliers.unsqueeze(1), wanted).squeeze(1)
        over = ~solved | (delta.norm(dim=1, keepdim=True) > budget * norms)
        active = wrong & (short > 0)
        if not bool((over & active.any(dim=1, keepdim=True)).any()):
            return torch.where(over, torch.zeros_like(delta), delta)
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


def _multipliers(gram: torch.Tensor, short: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Dual variables y ≥ 0 with Gy ≥ c, and equal to c where y is positive.

    A primal-dual active set: guess which constraints bind, solve for them exactly, and let the
    signs of what comes out make the next guess. A group whose guess repeats is solved. Random
    signs settle in a few rounds. Bits that contradict each other have no solution, and a group
    may cycle; so the second tensor says for which groups Gy ≥ c was reached.
    """
    free = torch.isfinite(short)
    target = torch.where(free, short, 0)
    size = target.abs().amax(dim=1, keepdim=True)
    binds = free & (short > 0)
    diagonal = torch.eye(gram.shape[1], dtype=gram.dtype, device=gram.device)
    # Two bits with one key would make the system singular; so small a ridge shares between them.
    ridge = _RIDGE * torch.diag_embed(gram.diagonal(dim1=1, dim2=2))
    for _ in range(_ROUNDS):
        both = binds.unsqueeze(1) & binds.unsqueeze(2)
        system = torch.where(both, gram + ridge, diagonal)
        y = torch.linalg.solve_ex(system, torch.where(binds, target, 0))[0]
        left = target - torch.bmm(gram, y.unsqueeze(2)).squeeze(2)
        following = free & torch.where(binds, y > 0, left > _TOLERANCE * size)
        if bool((following == binds).all()):
            break
        binds = following
    y = y.clamp(min=0)
    left = target - torch.bmm(gram, y.unsqueeze(2)).squeeze(2)
    return y, (~free | (left <= _SOLVED * size)).all(dim=1, keepdim=True)
