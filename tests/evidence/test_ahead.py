"""Values of steps, some at a time."""

from polo.evidence.replay.ahead import STEPS, Ahead
from polo.evidence.replay.order import Order
from polo.evidence.replay.recipe import Recipe


def test_every_step_has_its_value_whatever_was_asked_before() -> None:
    asked: list[int] = []
    ahead = Ahead(lambda step: asked.append(step) or step * step)  # type: ignore[func-returns-value]
    for step in (0, 1, STEPS - 1, STEPS, 3, 2, 10**9, 10**9 + 5, 0):
        assert ahead(step) == step * step
    assert asked.count(3) > 1


def test_steps_in_a_row_are_computed_once() -> None:
    asked: list[int] = []
    ahead = Ahead(asked.append)
    for step in range(5, 5 + 4 * STEPS):
        ahead(step)
    assert asked == list(range(5, 5 + 4 * STEPS))


def test_seeds_and_rates_do_not_depend_on_where_one_begins() -> None:
    one, other = Order(b"s" * 32, 100, 8), Order(b"s" * 32, 100, 8)
    assert [one.seed(step) for step in range(40)] == [
        other.seed(step) for step in range(39, -1, -1)
    ][::-1]
    assert one == other
    assert len({one.seed(step) for step in range(40)}) == 40
    recipe = Recipe(samples=100, batch=8, schedule="cosine", total=50, warmup=5)

    class Optimizer:
        param_groups = ({"lr": 0.0},)

    found = []
    for step in (7, 49, 0, 8, 200):
        recipe.set_rate(Optimizer(), step)  # type: ignore[arg-type]
        found.append(Optimizer.param_groups[0]["lr"])
    assert found == [recipe.rate(step) for step in (7, 49, 0, 8, 200)]
