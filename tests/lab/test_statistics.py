"""Exact intervals against scipy's beta quantiles and against what they promise."""

import math

import pytest

from polo_lab.experiments.statistics import clopper_pearson, median


@pytest.mark.parametrize(
    ("hits", "trials"),
    [(0, 1), (1, 1), (0, 30), (30, 30), (0, 300), (1, 300), (150, 300), (299, 300), (20, 2000)],
)
@pytest.mark.parametrize("confidence", [0.9, 0.95, 0.99])
def test_interval_is_the_beta_quantiles(hits: int, trials: int, confidence: float) -> None:
    beta = pytest.importorskip("scipy.stats").beta
    tail = (1 - confidence) / 2
    low = beta.ppf(tail, hits, trials - hits + 1) if hits else 0.0
    high = beta.ppf(1 - tail, hits + 1, trials - hits) if hits < trials else 1.0
    assert clopper_pearson(hits, trials, confidence) == pytest.approx((low, high), abs=1e-12)


def test_no_hit_has_a_closed_form() -> None:
    assert clopper_pearson(0, 300)[1] == pytest.approx(1 - 0.025 ** (1 / 300), abs=1e-12)


def test_interval_covers_as_often_as_it_says() -> None:
    trials, p = 40, 0.07
    chances = [math.comb(trials, k) * p**k * (1 - p) ** (trials - k) for k in range(trials + 1)]
    intervals = [clopper_pearson(hits, trials) for hits in range(trials + 1)]
    covered = [chances[k] for k, (low, high) in enumerate(intervals) if low <= p <= high]
    assert sum(covered) >= 0.95


@pytest.mark.parametrize(("hits", "trials"), [(1, 0), (0, 0), (-1, 5), (6, 5)])
def test_nonsense_is_refused(hits: int, trials: int) -> None:
    with pytest.raises(ValueError, match="trials"):
        clopper_pearson(hits, trials)


def test_median() -> None:
    assert median([3]) == 3
    assert median([4, 1, 3, 2]) == 2.5
