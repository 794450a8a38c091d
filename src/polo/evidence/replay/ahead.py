"""What every step of training needs, computed for some steps at a time."""

from collections.abc import Callable
from typing import Generic, TypeVar

Value = TypeVar("Value")

STEPS = 16


class Ahead(Generic[Value]):
    """Values by step.

    Between two steps a processor has forgotten all code but training's, so that one value by itself
    takes many times as long as one among several.

    Args:
        compute: Gives the value of a step; of some steps nobody asks for it.
    """

    def __init__(self, compute: Callable[[int], Value]) -> None:
        self._compute = compute
        self._known: tuple[int, list[Value]] = 0, []

    def __call__(self, step: int) -> Value:
        """The value of a step."""
        first, values = self._known
        if not first <= step < first + len(values):
            first, values = step, [self._compute(each) for each in range(step, step + STEPS)]
            # In one go: several threads may ask.
            self._known = first, values
        return values[step - first]
