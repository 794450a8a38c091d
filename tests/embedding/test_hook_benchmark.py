"""What the benchmark of the hook makes of its samples."""

from benchmarks import hook
from benchmarks.figures import Target, paired_of

PLAIN = [1.00, 1.02, 0.98, 1.01, 0.99, 1.00, 1.02, 0.98]


def test_what_was_measured_directly_is_held_against_the_same_target() -> None:
    rare = [value * 1.10 for value in PLAIN]
    always = [value * 1.08 for value in PLAIN]
    target = Target("at most", 1.015)
    samples = {"rarely": rare, "plain": PLAIN}
    figure = paired_of("ednn, every 8 steps", samples, "rarely", "plain", target=target)
    together, alone = hook.rarely(figure, always, 8)
    assert alone.name == "ednn, every 8 steps, by these blocks alone"
    assert (together.target, alone.target) == (target, target)
    # Where a press costs most the first time, a model of equal costs says too little.
    assert together.met is True
    assert alone.met is False
    assert alone.to_json()["target"] == {"relation": "at most", "bound": 1.015}
