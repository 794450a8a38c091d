"""A verdict as one HTML page: it loads nothing, runs nothing, prints well.

Whatever a verdict says may come from a hostile prover (names of files, tensors and tasks), so the
page is built with `charts.tag`, which escapes all text, and forbids scripts and every kind of
loading by a content policy of its own.
"""

import datetime
import importlib.resources
import json
import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from polo.checks import MEANINGS, Check, Status
from polo.verifier import charts, owners
from polo.verifier.charts import Chart, Markup, Point, joined, tag
from polo.verifier.verdict import FINAL, LEVEL_TEXTS, Outcome, Verdict

MOST_PROBLEMS = 40
MOST_ROWS = 1000
MOST_TILES = 24
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"
_GLYPHS = {Status.PASSED: "✓", Status.FAILED: "✕", Status.UNDECIDED: "?", Status.NOTE: "i"}
_CLASSES = {
    Status.PASSED: "passed",
    Status.FAILED: "failed",
    Status.UNDECIDED: "open",
    Status.NOTE: "note",
}
_OUTCOMES = {Outcome.ACCEPTED: "passed", Outcome.REJECTED: "failed", Outcome.UNDECIDED: "open"}
_ICONS = {
    Outcome.ACCEPTED: "M15 25l7 7l12 -15",
    Outcome.REJECTED: "M17 17l14 14m0 -14l-14 14",
    Outcome.UNDECIDED: "M18.5 19.5a5.5 5.5 0 1 1 7.5 5.1q-2 .9 -2 3.2v.7m0 5v.1",
}
_SEVERITY = (Status.FAILED, Status.UNDECIDED, Status.PASSED)
_RANKS = (*_SEVERITY, Status.NOTE)
_CLOSED_BY = {"chain": ("receipts", "replay"), "receipts": ("replay",), "progress": ("replay",)}
_FACTS = {
    "identity": "Prover",
    "issuer": "Issuer of the terms",
    "task": "Task",
    "scheme": "Watermark",
    "shards": "Shards",
    "bundle": "What was shown",
    "final_root": "Root of the last checkpoint",
    "issued": "Enrolled",
    "verified": "Verified",
    "version": "Verified with PoLO",
    "policy": "Verifier's policy",
}


@dataclass(frozen=True)
class ShardRow:
    """What a verdict says of one shard.

    Attributes:
        shard: Its number.
        status: The worst of its checks; None if it has none.
        mark: The check of its mark, or of the nonce that the mark could not be derived without.
        accuracy: The check of its accuracy.
        claim: The check of what the prover said of its accuracy.
    """

    shard: int
    status: Status | None
    mark: Check | None
    accuracy: Check | None
    claim: Check | None


def render(verdict: Verdict) -> str:
    """The verdict as one self-contained HTML page."""
    rows = shard_rows(verdict)
    parts = [_header(verdict)]
    if verdict.outcome == Outcome.ACCEPTED:
        parts.append(_caution(verdict, rows))
    parts += [_problems(verdict), _notes(verdict), _facts(verdict), owners.section(verdict)]
    parts.append(_charts(verdict, rows))
    parts += [_chain(verdict, rows), _levels(verdict), _checks(verdict), _json(verdict)]
    words = f"PoLO verdict: {verdict.outcome.words.lower()}"
    style = importlib.resources.files("polo.verifier").joinpath("report.css").read_text("utf-8")
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", http_equiv="Content-Security-Policy", content=_POLICY),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", name="color-scheme", content="light dark"),
        tag("title", words),
        tag("style", Markup(charts.STYLE + style)),
    )
    brand = tag("p", tag("b", "PoLO"), " verdict on ", verdict.proof, class_="brand")
    foot = tag("footer", "This page loads nothing and runs nothing. It holds no nonces.")
    page = tag("html", head, tag("body", tag("main", brand, *parts, foot)), lang="en")
    return f"<!doctype html>\n{page}\n"


def shard_rows(verdict: Verdict) -> list[ShardRow]:
    """What is known of each shard that was shown, oldest first; empty if none was looked at."""
    named = {name: verdict.per_shard(name) for name in ("mark", "accuracy", "claim")}
    # Where a nonce is missing there is no check of the mark: the nonce's own stands for it.
    named["mark"] = verdict.per_shard("nonce") | named["mark"] | verdict.per_shard("residual")
    worst: dict[int, Status] = {}
    for check in verdict.checks:
        own = check.shard and not check.ancestor
        if own and (check.status in _SEVERITY or check.name == "residual"):
            so_far = worst.get(check.shard, check.status)
            worst[check.shard] = min(so_far, check.status, key=_RANKS.index)
    if not worst:
        return []
    total = verdict.facts.get("shards")
    # A hostile file name can carry any number, so the count in the manifest goes first.
    last = total if isinstance(total, int) else max((*named["mark"], *named["accuracy"], 0))
    return [
        ShardRow(
            shard,
            worst.get(shard),
            *(named[name].get(shard) for name in ("mark", "accuracy", "claim")),
        )
        for shard in (range(1, last + 1) if verdict.shown is None else verdict.shown)
    ]


def figure(check: Check | None, name: str) -> float | None:
    """A check's number, if there is one and it is finite."""
    value = check.figures.get(name) if check else None
    return value if isinstance(value, (int, float)) and math.isfinite(value) else None


def closers(verdict: Verdict) -> list[str]:
    """Levels, not asked for, that would show what an accepted verdict does not show."""
    wanted = {name for level in verdict.levels for name in _CLOSED_BY.get(level, ())}
    return [level for level in LEVEL_TEXTS if level in wanted and level not in verdict.levels]


def in_short(verdict: Verdict) -> str:
    """What an accepted verdict amounts to, in one line."""
    if verdict.shown is not None:
        return "Order and the marks that were shown, not the model."
    if verdict.levels == (FINAL,):
        return "Ownership of the final model, and nothing else."
    if "replay" in verdict.levels:
        return "Not that the data was worth learning."
    return "Order and ownership, not effort."


def untested(verdict: Verdict, rows: Sequence[ShardRow]) -> str:
    """A sentence if accuracy was not measured on every shard."""
    if verdict.shown is not None:
        text = "The model was not shown: nothing here says how good it is"
        held = any(check.name == "delivered" for check in verdict.of(Status.PASSED))
        more = "" if held else ", or that a file you hold is the one that this proof ends in"
        return f"{text}{more}."
    tested = sum(figure(row.accuracy, "measured") is not None for row in rows)
    if not tested:
        return "Accuracy was not measured, so nothing here says how good the model is."
    if tested < len(rows):
        return f"Accuracy was measured on {tested} of {len(rows)} shards only."
    return ""


def _header(verdict: Verdict) -> Markup:
    outcome = verdict.outcome
    shape = _OUTCOMES[outcome]
    icon = tag(
        "svg",
        tag("circle", class_="disc", cx=24, cy=24, r=24),
        tag("path", class_="stroke", d=_ICONS[outcome]),
        viewBox="0 0 48 48",
        class_=f"is-{shape}",
        aria_hidden="true",
    )
    words = [tag("span", outcome.words.capitalize(), class_=f"is-{shape}")]
    if outcome == Outcome.ACCEPTED:
        level = f"at level {' + '.join(verdict.levels)}"
        if verdict.levels == (FINAL,):
            level = "as ownership of the final model"
        small = level if verdict.shown is None else "as a disclosure"
        words += [Markup(" "), tag("small", small)]
    sentence = verdict.headline().partition(": ")[2]
    counts = Counter(check.status for check in verdict.checks)
    said = ", ".join(_count(counts[status], status) for status in _GLYPHS if counts[status])
    total = f"{len(verdict.checks)} check{'' if len(verdict.checks) == 1 else 's'}"
    text = tag(
        "div",
        tag("h1", *words),
        tag("p", sentence[:1].upper() + sentence[1:] + "."),
        tag("p", f"{total}: {said}" if said else "no checks", class_="quiet"),
    )
    return tag("header", icon, text, class_=shape)


def _count(number: int, status: Status) -> str:
    if status == Status.NOTE:
        return f"{number} note{'' if number == 1 else 's'}"
    return f"{number} {status.value}"


def _caution(verdict: Verdict, rows: Sequence[ShardRow]) -> Markup:
    gaps = [
        tag("li", tag("b", level), f" does not show {text.does_not_show}.")
        for level, text in verdict.texts.items()
    ]
    if missing := untested(verdict, rows):
        gaps.append(tag("li", missing))
    parts = [
        tag("h2", "What this does not show"),
        tag("p", tag("strong", in_short(verdict))),
        tag("ul", *gaps),
    ]
    if levels := closers(verdict):
        shown = (tag("li", tag("b", name), f": {LEVEL_TEXTS[name].shows}.") for name in levels)
        parts.append(tag("p", "What would close it: a proof under terms that also ask for"))
        parts.append(tag("ul", *shown))
        late = "The issuer fixes the terms before training; they cannot be added to this proof."
        parts.append(tag("p", late, class_="quiet"))
    else:
        close = "No proof closes this; judge it by the task, its data and its test."
        if verdict.levels == (FINAL,):
            close = "What would close it: verifying the whole proof."
        parts.append(tag("p", close))
    return tag("aside", *parts)


def _problems(verdict: Verdict) -> Markup:
    found = [*verdict.of(Status.FAILED), *verdict.of(Status.UNDECIDED)]
    if not found:
        return Markup("")
    items = [_problem(check) for check in found[:MOST_PROBLEMS]]
    parts = [tag("h2", "What stands in the way"), tag("ul", *items, class_="problems")]
    if len(found) > MOST_PROBLEMS:
        more = f"… and {len(found) - MOST_PROBLEMS} more, listed below under all checks."
        parts.append(tag("p", more, class_="quiet"))
    return tag("section", *parts, class_="long")


def _problem(check: Check) -> Markup:
    where = [f"shard {check.shard}"] if check.shard else []
    place = [tag("code", check.place)] if check.place else []
    title = [tag("b", check.name), Markup(" · "), check.status.value]
    for part in (*where, *place):
        title += [Markup(" · "), part]
    parts = [tag("p", *title), tag("p", check.detail or check.status.value)]
    if check.advice:
        parts.append(tag("p", tag("b", "What to do: "), check.advice, class_="advice"))
    parts.append(tag("p", "When it passes: ", MEANINGS.get(check.name, ""), class_="quiet"))
    return tag("li", *parts, class_=f"is-{_CLASSES[check.status]}")


def _notes(verdict: Verdict) -> Markup:
    notes = [
        tag("li", tag("b", check.name), f" ({check.place})" if check.ancestor else "",
            f": {check.detail}")
        for check in verdict.of(Status.NOTE)
    ]  # fmt: skip
    if not notes:
        return Markup("")
    return tag("section", tag("h2", "Notes"), tag("ul", *notes))


def _facts(verdict: Verdict) -> Markup:
    if not verdict.facts:
        return Markup("")
    pairs = [
        tag("div", tag("dt", label), tag("dd", _fact(key, verdict.facts[key])))
        for key, label in _FACTS.items()
        if key in verdict.facts
    ]
    if "eta_verify" in verdict.facts and "log2_p_threshold" in verdict.facts:
        limits = f"η ≥ {verdict.facts['eta_verify']} and log₂ p ≤ "
        limits += f"{verdict.facts['log2_p_threshold']}".replace("-", "−")
        pairs.append(tag("div", tag("dt", "A mark counts as read at"), tag("dd", limits)))
    title = "The proof" if verdict.outcome == Outcome.ACCEPTED else "What the proof says of itself"
    return tag("section", tag("h2", title), tag("dl", *pairs))


def _fact(key: str, value: str | int) -> Markup:
    if key in ("issued", "verified") and isinstance(value, int):
        return joined(_date(value))
    if isinstance(value, str) and len(value) > 40 and " " not in value:
        # Shortened by style alone, so that selecting and copying takes the whole of it.
        return tag("code", value, class_="hex", title=value)
    return joined(str(value))


def _date(seconds: int) -> str:
    try:
        moment = datetime.datetime.fromtimestamp(seconds, datetime.UTC)
    except (OverflowError, ValueError, OSError):
        return f"{seconds} seconds after 1970"
    return f"{moment:%Y-%m-%d, %H:%M} UTC"


def _charts(verdict: Verdict, rows: Sequence[ShardRow]) -> Markup:
    if not rows:
        return Markup("")
    metric = str(verdict.facts.get("metric", "accuracy"))
    eta, chance = _limit(verdict, "eta_verify"), _limit(verdict, "log2_p_threshold")
    drawn = (
        ("η", "share of the mark’s bits that read right", _mark_chart(rows, "eta", eta)),
        (
            "log₂ p",
            "chance that unmarked weights read as well",
            _mark_chart(rows, "log2_p", chance),
        ),
        (
            metric.capitalize(),
            "measured here, on the task’s public test",
            _accuracy_chart(rows, metric),
        ),
    )
    figures = (
        tag(
            "figure",
            tag("figcaption", tag("b", name), words),
            charts.draw(chart, f"chart-{at}"),
        )
        for at, (name, words, chart) in enumerate(drawn)
    )
    return tag(
        "section",
        tag("h2", "Shard by shard"),
        charts.legend(*(chart for *_, chart in drawn)),
        tag("div", *figures, class_="charts"),
    )


def _limit(verdict: Verdict, name: str) -> float | None:
    try:
        return float(verdict.facts[name])
    except (KeyError, ValueError):
        return None


def _mark_chart(rows: Sequence[ShardRow], name: str, limit: float | None) -> Chart:
    points = [_point(row.shard, row.mark, name) for row in rows]
    words = "" if limit is None else f"{limit:g}".replace("-", "−")
    if name == "eta":
        return Chart(
            "Detection rate η by shard", points, limit, f"at least {words}", within=(0.5, 1)
        )
    return Chart("log2 p by shard", points, limit, f"at most {words}", at_most=True, within=(0,))


def _accuracy_chart(rows: Sequence[ShardRow], metric: str) -> Chart:
    floor = {row.shard: figure(row.accuracy, "floor") for row in rows}
    return Chart(
        f"{metric} by shard",
        [_point(row.shard, row.accuracy, "measured") for row in rows],
        limit="floor",
        floor={shard: value for shard, value in floor.items() if value is not None},
        claims=[_point(row.shard, row.claim, "claimed") for row in rows if row.claim],
    )


def _point(shard: int, check: Check | None, name: str) -> Point:
    if check is None:
        return Point(shard, None, Status.PASSED)
    tip = f"shard {shard}, {check.status.value}: {check.detail}"
    return Point(shard, figure(check, name), check.status, tip)


def _chain(verdict: Verdict, rows: Sequence[ShardRow]) -> Markup:
    if not rows:
        return Markup("")
    tiles = [charts.tile("0", "start", None, "the weights before the first shard")]
    before = 0
    total = max(rows[-1].shard, int(verdict.facts.get("shards", 0)) if verdict.shown else 0)
    words = "not shown" if verdict.shown and len(rows) <= MOST_TILES else "more"
    for row in selected(rows, first=3, worst=6, last=9, most=MOST_TILES):
        tiles += _gap(before, row.shard, words)
        tiles.append(_tile(row, last=row.shard == total))
        before = row.shard
    tiles += _gap(before, total + 1, words)
    text = "Each mark is derived from the checkpoint before it, so the order cannot be changed."
    items = (tag("li", drawing) for drawing in tiles)
    return tag(
        "section",
        tag("h2", "The chain"),
        tag("p", text, class_="quiet"),
        tag("ol", *items, class_="chain"),
    )


def selected(
    rows: Sequence[ShardRow], *, first: int, worst: int, last: int, most: int
) -> list[ShardRow]:
    """All rows, or if there are more than `most` the first, the worst and the last."""
    if len(rows) <= most:
        return list(rows)
    by_goodness = sorted(rows, key=_goodness)
    bad = [row for row in by_goodness[:worst] if row.status != Status.PASSED]
    kept = {row.shard for row in (*rows[:first], *(bad or by_goodness[:1]), *rows[-last:])}
    # A gap of one shard takes as much room as the shard.
    kept |= {shard + 1 for shard in kept if shard + 2 in kept}
    return [row for row in rows if row.shard in kept]


def _goodness(row: ShardRow) -> tuple[int, float]:
    rank = _SEVERITY.index(row.status) if row.status else 1
    eta = figure(row.mark, "eta")
    return rank, 2.0 if eta is None else eta


def _gap(before: int, shard: int, words: str) -> Iterator[Markup]:
    if missing := shard - before - 1:
        yield charts.tile("", f"{missing} {words}", None, f"shards {before + 1} to {shard - 1}")


def _tile(row: ShardRow, *, last: bool) -> Markup:
    eta = figure(row.mark, "eta")
    mark = row.mark.detail if row.mark else "the mark was not checked"
    status = row.status or Status.UNDECIDED
    below = f"{_GLYPHS[status]} η {eta:.3f}" if eta is not None else f"{_GLYPHS[status]} no η"
    tip = f"shard {row.shard}, {status.value}: {mark}"
    return charts.tile(str(row.shard), below, status, tip, last=last)


def _levels(verdict: Verdict) -> Markup:
    heads = ("Level", "In this verdict", "Shows", "Does not show")
    final = verdict.levels == (FINAL,)
    shown = verdict.texts if final else LEVEL_TEXTS
    table = tag(
        "table",
        tag("thead", tag("tr", *(tag("th", head, scope="col") for head in heads))),
        tag("tbody", *(_level(verdict, name) for name in shown)),
        class_="levels",
    )
    text = "The terms say which of the five are asked for; each is a check of its own."
    if final:
        text = "Only ownership was asked for, and none of the levels that terms know."
    return tag("section", tag("h2", "Levels of evidence"), tag("p", text, class_="quiet"), table)


def _level(verdict: Verdict, name: str) -> Markup:
    asked = name in verdict.levels
    found = {check.status for check in verdict.checks if check.level == name}
    status = next((status for status in _SEVERITY if status in found), None)
    if not asked:
        result = tag("span", "not asked for")
    elif status is None:
        result = tag("span", "asked for, not checked", class_="is-open")
    else:
        part = "" if verdict.shown is None else " for what was shown"
        words = f"{_GLYPHS[status]} asked for, {status.value}{part}"
        result = tag("span", words, class_=f"is-{_CLASSES[status]}")
    text = (LEVEL_TEXTS | verdict.texts)[name]
    return tag(
        "tr",
        tag("td", tag("b", name)),
        tag("td", result),
        tag("td", text.shows, data_is="Shows:"),
        tag("td", text.does_not_show, data_is="Does not show:"),
        class_="on" if asked else "off",
    )


def _checks(verdict: Verdict) -> Markup:
    groups: dict[str, list[Check]] = {name: [] for name in MEANINGS}
    for check in verdict.checks:
        groups.setdefault(check.name, []).append(check)
    shown = (_group(name, checks) for name, checks in groups.items() if checks)
    title = f"All {len(verdict.checks)} checks" if len(verdict.checks) > 1 else "All checks"
    return tag("section", tag("h2", title), *shown, class_="long")


def _group(name: str, checks: Sequence[Check]) -> Markup:
    counts = Counter(check.status for check in checks)
    said = [
        tag("span", f" {_GLYPHS[status]} {counts[status]}", class_=f"is-{_CLASSES[status]}")
        for status in _GLYPHS
        if counts[status]
    ]
    summary = tag(
        "summary",
        tag("b", name),
        tag("span", MEANINGS.get(name, "")),
        tag("span", *said, class_="counts"),
    )
    ordered = sorted(checks, key=lambda check: (check.status == Status.PASSED, check.shard))
    columns = {"Shard": any(c.shard for c in checks), "Place": any(c.place for c in checks)}
    heads = [h for h in ("Shard", "Result", "Found", "Place") if columns.get(h, True)]
    table = tag(
        "table",
        tag("thead", tag("tr", *(tag("th", h, scope="col", class_=h.lower()) for h in heads))),
        tag("tbody", *(_check_row(check, heads) for check in ordered[:MOST_ROWS])),
    )
    rest = f"… and {len(checks) - MOST_ROWS} more, in the data below."
    more = [tag("p", rest, class_="quiet")] if len(checks) > MOST_ROWS else []
    return tag("details", summary, tag("div", table, *more, class_="rows"), class_="group")


def _check_row(check: Check, heads: Sequence[str]) -> Markup:
    result = f"{_GLYPHS[check.status]} {check.status.value}"
    cells = {
        "Shard": tag("td", str(check.shard) if check.shard else "–"),
        "Result": tag("td", result, class_=f"is-{_CLASSES[check.status]}"),
        "Found": tag("td", check.detail),
        "Place": tag("td", tag("code", check.place)),
    }
    return tag("tr", *(cells[head] for head in heads))


def _json(verdict: Verdict) -> Markup:
    # Plain ASCII, so that odd characters survive; no NaN, which is not JSON.
    indent = 1 if len(verdict.checks) <= MOST_ROWS else None
    text = json.dumps(_finite(verdict.to_json()), indent=indent, allow_nan=False)
    summary = tag(
        "summary", tag("b", "JSON"), tag("span", "The verdict for machines."), tag("span", "")
    )
    lines = (joined(line, Markup("\n")) for line in text.split("\n"))
    data = tag("pre", *lines, id="verdict-json")
    return tag("section", tag("h2", "Data"), tag("details", summary, data), class_="long")


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
