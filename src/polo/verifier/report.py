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
from collections.abc import Sequence
from typing import Any

from polo.checks import MEANINGS, Check, Status
from polo.verifier import charts, owners, sections, strips
from polo.verifier.charts import CLASSES, GLYPHS, Markup, joined, tag
from polo.verifier.findings import figure, is_shard_note, places_of, shortened
from polo.verifier.rows import shard_rows
from polo.verifier.verdict import Outcome, Verdict

MOST_PROBLEMS = 40
MOST_ROWS = 1000
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"
_OUTCOMES = {Outcome.ACCEPTED: "passed", Outcome.REJECTED: "failed", Outcome.UNDECIDED: "open"}
_ICONS = {
    Outcome.ACCEPTED: "M15 25l7 7l12 -15",
    Outcome.REJECTED: "M17 17l14 14m0 -14l-14 14",
    Outcome.UNDECIDED: "M18.5 19.5a5.5 5.5 0 1 1 7.5 5.1q-2 .9 -2 3.2v.7m0 5v.1",
}
_FACTS = {
    "identity": "Prover",
    "issuer": "Issuer of the terms",
    "task": "Task",
    "scheme": "Watermark",
    "shards": "Shards",
    "start": "Start",
    "base": "Base model of the adapter",
    "bundle": "What was shown",
    "final_root": "Root of the last checkpoint",
    "issued": "Enrolled",
    "verified": "Verified",
    "version": "Verified with PoLO",
    "policy": "Verifier's policy",
}
_STARTS = {
    "free": "free: it may have been trained before",
    "parent": "a model that the terms name",
    "derived": "drawn from the enrolment, untrained",
}


def render(verdict: Verdict) -> str:
    """The verdict as one self-contained HTML page."""
    rows = shard_rows(verdict)
    parts = [_header(verdict)]
    if verdict.outcome == Outcome.ACCEPTED:
        parts.append(sections.caution(verdict, rows))
    parts += [_problems(verdict), _notes(verdict), _facts(verdict), owners.section(verdict)]
    parts += sections.level_sections(verdict, rows)
    parts += [sections.table(verdict), _checks(verdict), _json(verdict)]
    words = f"PoLO verdict: {verdict.outcome.words.lower()}"
    style = importlib.resources.files("polo.verifier").joinpath("report.css").read_text("utf-8")
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", http_equiv="Content-Security-Policy", content=_POLICY),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", name="color-scheme", content="light dark"),
        tag("title", words),
        tag("style", Markup(charts.STYLE + strips.STYLE + style)),
    )
    brand = tag("p", tag("b", "PoLO"), " verdict on ", verdict.proof, class_="brand")
    foot = tag("footer", "This page loads nothing and runs nothing. It holds no nonces.")
    page = tag("html", head, tag("body", tag("main", brand, *parts, foot)), lang="en")
    return f"<!doctype html>\n{page}\n"


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
    small, _, sentence = verdict.headline().removeprefix(outcome.words).partition(": ")
    if small:
        words += [Markup(" "), tag("small", small.strip())]
    counts = Counter(check.status for check in verdict.checks)
    said = ", ".join(_count(counts[status], status) for status in GLYPHS if counts[status])
    total = f"{len(verdict.checks)} check{'' if len(verdict.checks) == 1 else 's'}"
    text = tag(
        "div",
        tag("h1", *words),
        tag("p", sentence[:1].upper() + sentence[1:] + "."),
        sections.chips(verdict),
        tag("p", f"{total}: {said}" if said else "no checks", class_="quiet"),
    )
    return tag("header", icon, text, class_=shape)


def _count(number: int, status: Status) -> str:
    if status == Status.NOTE:
        return f"{number} note{'' if number == 1 else 's'}"
    return f"{number} {status.value}"


def _problems(verdict: Verdict) -> Markup:
    found = verdict.problems()
    if not found:
        return Markup("")
    several = len(verdict.levels) > 1
    parts = [tag("h2", "What stands in the way")]
    for group, more in shortened(found, MOST_PROBLEMS):
        items = [_problem(checks, several=several) for checks in group]
        parts.append(tag("ul", *items, class_="problems"))
        if more:
            rest = f"… and {more} more of {group[0][0].name}, listed below under all checks."
            parts.append(tag("p", rest, class_="quiet"))
    return tag("section", *parts, class_="long")


def _problem(checks: Sequence[Check], *, several: bool) -> Markup:
    """One check, or some that say the same of different segments."""
    check = checks[0]
    title = [tag("b", check.name), Markup(" · "), check.status.value]
    where = [f"level {check.level}"] if several else []
    where += check.where if len(checks) == 1 else [f"{len(checks)} times", places_of(checks)]
    if check.place and len(checks) == 1:
        where[-1] = tag("code", check.place)
    for part in where:
        title += [Markup(" · "), part]
    parts = [tag("p", *title), tag("p", check.detail or check.status.value)]
    if check.advice:
        parts.append(tag("p", tag("b", "What to do: "), check.advice, class_="advice"))
    parts.append(tag("p", "When it passes: ", MEANINGS.get(check.name, ""), class_="quiet"))
    return tag("li", *parts, class_=f"is-{CLASSES[check.status]}")


def _notes(verdict: Verdict) -> Markup:
    notes = [
        tag("li", tag("b", check.name), f" ({check.place})" if check.ancestor else "",
            f": {check.detail}")
        for check in verdict.of(Status.NOTE)
        if not is_shard_note(check)
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
    if key == "start":
        return joined(_STARTS.get(str(value), str(value)))
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
        tag("span", f" {GLYPHS[status]} {counts[status]}", class_=f"is-{CLASSES[status]}")
        for status in GLYPHS
        if counts[status]
    ]
    summary = tag(
        "summary",
        tag("b", name),
        tag("span", MEANINGS.get(name, "")),
        tag("span", *said, class_="counts"),
    )
    ordered = sorted(
        checks, key=lambda c: (c.status == Status.PASSED, c.shard, figure(c, "segment") or 0)
    )
    columns = {
        "Shard": any(c.shard for c in checks),
        "Segment": any("segment" in c.figures for c in checks),
        "Place": any(c.place for c in checks),
    }
    names = ("Shard", "Segment", "Result", "Found", "Place")
    heads = [head for head in names if columns.get(head, True)]
    table = tag(
        "table",
        tag("thead", tag("tr", *(tag("th", h, scope="col", class_=h.lower()) for h in heads))),
        tag("tbody", *(_check_row(check, heads) for check in ordered[:MOST_ROWS])),
    )
    rest = f"… and {len(checks) - MOST_ROWS} more, in the data below."
    more = [tag("p", rest, class_="quiet")] if len(checks) > MOST_ROWS else []
    return tag("details", summary, tag("div", table, *more, class_="rows"), class_="group")


def _check_row(check: Check, heads: Sequence[str]) -> Markup:
    result = f"{GLYPHS[check.status]} {check.status.value}"
    cells = {
        "Shard": tag("td", str(check.shard) if check.shard else "–"),
        "Segment": tag("td", str(check.figures.get("segment", "–"))),
        "Result": tag("td", result, class_=f"is-{CLASSES[check.status]}"),
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
