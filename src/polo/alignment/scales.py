"""Which positive scalings leave a network's function alone: a small linear system per group.

Every operation put an equation on the logarithms of scales. All solutions are scalings; those
that differ in the weights, and not only inside the network, are what counts.
"""

import itertools
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from polo.alignment import axes
from polo.alignment.axes import Atom, Scale, Term

_TINY = 1e-8

Equation = list[tuple[float, Scale]]


def expand(equations: Sequence[Sequence[tuple[float, Term]]]) -> dict[Atom, list[Equation]]:
    """Equations on labels as equations on single scales, by the atom they are about."""
    found: dict[Atom, list[Equation]] = {}
    for equation in equations:
        columns = [list(axes.leaves(term)) for _, term in equation]
        atoms = [[leaf.atom for leaf in column] for column in columns]
        if any(one != atoms[0] for one in atoms):
            # Labels that were frozen since they do not agree: nothing there may be scaled.
            for leaf in (leaf for column in columns for leaf in column):
                found.setdefault(leaf.atom, []).append([(1.0, leaf.scale)])
            continue
        for row in zip(*columns, strict=True):
            terms = [(c, leaf.scale) for (c, _), leaf in zip(equation, row, strict=True)]
            found.setdefault(row[0].atom, []).append(terms)
    return found


def solutions(equations: Sequence[Equation], wanted: Sequence[Scale]) -> list[dict[Scale, float]]:
    """A basis of all solutions, as far as the wanted unknowns go, without zeros."""
    order = {scale: at for at, scale in enumerate(wanted)}
    for equation in equations:
        for _, scale in equation:
            order.setdefault(scale, len(order))
    system = np.zeros((max(1, len(equations)), len(order)))
    for row, equation in enumerate(equations):
        for coefficient, scale in equation:
            system[row, order[scale]] += coefficient
    _, singular, basis = np.linalg.svd(system)
    rank = int((singular > _TINY * max(1.0, float(singular[0]))).sum())
    reduced = _reduced(basis[rank:, : len(wanted)].copy())
    return [
        {scale: float(value) for scale, value in zip(wanted, row, strict=True) if value}
        for row in reduced
    ]


def _reduced(rows: NDArray[np.float64]) -> NDArray[np.float64]:
    """Reduced row echelon form, without rows of zeros: each solution as sparse as it can be."""
    done = 0
    for column in range(rows.shape[1]):
        if done == len(rows):
            break
        pivot = done + int(np.abs(rows[done:, column]).argmax())
        if abs(rows[pivot, column]) < _TINY:
            continue
        rows[[done, pivot]] = rows[[pivot, done]]
        rows[done] /= rows[done, column]
        others = np.arange(len(rows)) != done
        rows[others] -= np.outer(rows[others, column], rows[done])
        done += 1
    return _sparser(np.round(rows[:done], 6))


def _sparser(rows: NDArray[np.float64]) -> NDArray[np.float64]:
    """The same solutions by vectors with fewer entries: each touches what belongs together."""
    changed = True
    while changed:
        changed = False
        for one, two in itertools.permutations(range(len(rows)), 2):
            for column in np.flatnonzero(rows[one] * rows[two]):
                ratio = rows[one, column] / rows[two, column]
                other = np.round(rows[one] - ratio * rows[two], 6)
                if np.count_nonzero(other) < np.count_nonzero(rows[one]):
                    rows[one], changed = other, True
                    break
    for row in rows:
        row /= row[np.flatnonzero(row)[0]]
    return rows
