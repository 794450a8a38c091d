"""Moving weights by the optimizer's own state: honest steps that lead wherever the forger likes."""

from polo_lab.attacks.effort.forging import Forgery
from polo_lab.attacks.effort.snapshot import Snapshot, copied
from polo_lab.attacks.effort.walking import plausible_rest
from polo_lab.attacks.state import State

_LARGE = 1.0
"""Adam's average of squares, so large that gradients hardly count beside it."""


def loaded(forgery: Forgery, target: State, steps: int, now: Snapshot) -> Snapshot:
    """The end of the next segment, with an optimizer that carries the weights to a target.

    Gradients of the steps on the way come on top; the forger can aim again.

    Args:
        forgery: The proof.
        target: Where the weights are to be.
        steps: After how many further steps they are to be there.
        now: The state as training left it.
    """
    recipe = forgery.recipe
    first = (forgery.shard - 1) * forgery.steps + (forgery.segment + 1) * recipe.every
    adam = recipe.algorithm != "sgd"
    reach = _reach(forgery, first, steps, adam=adam)
    rest = plausible_rest(forgery.engine, now.model, now.model, first)
    for name, value in rest.items():
        key, _, parameter = name.partition("/")
        if key in ("momentum_buffer", "exp_avg"):
            way = now.model[parameter].double() - target[parameter].double()
            value.copy_(way / reach)
        elif key == "exp_avg_sq":
            value.fill_(_LARGE)
    return Snapshot(copied(now.model), rest)


def can_carry(forgery: Forgery) -> bool:
    """Whether the optimizer has a state that moves weights."""
    return forgery.recipe.algorithm != "sgd" or forgery.recipe.momentum > 0


def _reach(forgery: Forgery, first: int, steps: int, *, adam: bool) -> float:
    """How far a momentum of one goes in so many steps, if no gradient is added."""
    recipe, far = forgery.recipe, 0.0
    momentum, square = 1.0, _LARGE
    for step in range(first, first + steps):
        momentum *= recipe.betas[0] if adam else recipe.momentum
        if not adam:
            part = momentum * (recipe.momentum if recipe.nesterov else 1.0)
            far += recipe.rate(step) * part
            continue
        square *= recipe.betas[1]
        corrected = momentum / (1 - recipe.betas[0] ** (step + 1))
        spread = (square / (1 - recipe.betas[1] ** (step + 1))) ** 0.5
        far += recipe.rate(step) * corrected / (spread + recipe.eps)
    return far
