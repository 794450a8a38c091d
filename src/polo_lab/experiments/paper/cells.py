"""How figures are written into cells."""

from collections.abc import Sequence

from polo_lab.experiments.lines import Line
from polo_lab.experiments.statistics import median


def percent(value: float | None, digits: int = 1) -> str:
    """A part of one, in percent.

    >>> percent(0.9312), percent(None)
    ('93.1 %', '–')
    """
    return "–" if value is None else f"{100 * value:.{digits}f} %"


def points(value: float | None) -> str:
    """A difference of two parts of one, in points.

    >>> points(-0.0031)
    '-0.3'
    """
    return "–" if value is None else f"{100 * value:+.1f}"


def seconds(value: float | None) -> str:
    """Seconds, to three digits.

    >>> seconds(0.01234), seconds(1618.78)
    ('0.0123 s', '1619 s')
    """
    if value is None:
        return "–"
    return f"{value:.0f} s" if value >= 100 else f"{value:.3g} s"


def at_once(line: Line) -> str:
    """How many runs shared the machine, which their times show.

    >>> at_once(Line("timing", {}, "done")), at_once(Line("timing", {}, "done", workers=8))
    ('1', '8')
    """
    return str(max(line.workers, 1))


def ratio(one: float | None, other: float | None, digits: int = 2) -> str:
    """How many times another.

    >>> ratio(3.0, 2.0), ratio(3.0, 0.0)
    ('1.50 ×', '–')
    """
    return f"{one / other:.{digits}f} ×" if one is not None and other else "–"


def part(one: float | None, other: float | None, digits: int = 2) -> str:
    """A part of another, in percent.

    >>> part(1.0, 50.0)
    '2.00 %'
    """
    return f"{100 * one / other:.{digits}f} %" if one is not None and other else "–"


def span(values: Sequence[float], digits: int = 1) -> str:
    """Least to most, in percent, with the median.

    >>> span([0.9, 1.0])
    '95.0 % (90.0 to 100.0)'
    """
    if not values:
        return "–"
    low, high = 100 * min(values), 100 * max(values)
    return f"{100 * median(values):.{digits}f} % ({low:.{digits}f} to {high:.{digits}f})"
