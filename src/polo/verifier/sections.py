"""The parts of a report about levels of evidence: a section each, and what they leave open."""

from collections.abc import Iterator, Sequence

from polo.checks import Status, counted
from polo.verifier import chain_section, effort_section, receipts_section
from polo.verifier.charts import CLASSES, GLYPHS, Markup, tag
from polo.verifier.findings import HELD
from polo.verifier.levels import FINAL, LEVEL_TEXTS
from polo.verifier.rows import ShardRow, untested
from polo.verifier.verdict import Verdict

_DATA = "That the data was worth learning no proof shows: judge the task, its data and its test."


def caution(verdict: Verdict, rows: Sequence[ShardRow]) -> Markup:
    """What an accepted verdict does not show, and what would close it."""
    gaps = [
        tag("li", tag("b", level), f" does not show {words}.") for level, words in verdict.gaps()
    ]
    if missing := untested(verdict, rows):
        gaps.append(tag("li", missing))
    parts = [
        tag("h2", "What this does not show"),
        tag("p", tag("strong", verdict.in_short())),
        tag("ul", *gaps),
    ]
    if closers := verdict.closers():
        shown = (tag("li", tag("b", name), f": {words}.") for name, words in closers.items())
        parts.append(tag("p", "What would close it: a proof under terms that also ask for"))
        parts.append(tag("ul", *shown))
        late = "The issuer fixes the terms before training; they cannot be added to this proof."
        parts.append(tag("p", late, class_="quiet"))
    if verdict.levels == (FINAL,):
        parts.append(tag("p", "What would close it: verifying the whole proof."))
    elif "replay" in verdict.levels:
        parts.append(tag("p", _DATA))
    return tag("aside", *parts)


def chips(verdict: Verdict) -> Markup:
    """How each level ended, for the head of the page; nothing where there is only one."""
    if len(verdict.levels) < 2:
        return Markup("")
    ends = {level: verdict.ended(level) for level in verdict.levels}
    items = (
        tag("li", f"{GLYPHS[end]} {level}", tag("span", f", {end.value}", class_="spoken"),
            class_=f"is-{CLASSES[end]}")
        for level, end in ends.items()
    )  # fmt: skip
    return tag("ul", *items, class_="chips")


def level_sections(verdict: Verdict, rows: Sequence[ShardRow]) -> Iterator[Markup]:
    """A section for each level that was asked for: its sentence, its figures, its charts."""
    for level in verdict.texts:
        drawn: list[Markup] = []
        if level in ("chain", FINAL):
            drawn = chain_section.drawings(verdict, rows)
        elif level == "receipts":
            drawn = receipts_section.drawings(verdict)
        elif level == "progress":
            drawn = effort_section.progress(verdict)
        elif level == "replay":
            drawn = effort_section.replay(verdict)
        if drawn or len(verdict.levels) > 1:
            yield tag("section", *_head(verdict, level), *drawn, class_="level")


def _head(verdict: Verdict, level: str) -> Iterator[Markup]:
    end, text = verdict.ended(level), verdict.texts[level]
    words = f"{GLYPHS[end]} {end.value}{_part(verdict, end)}"
    title = "Ownership" if level == FINAL else f"Level {level}"
    yield tag("h2", title, tag("span", words, class_=f"end is-{CLASSES[end]}"))
    found = _found(verdict, level)
    yield tag("p", found[:1].upper() + found[1:] + ".")
    shows = "It shows" if end is Status.PASSED else "When it passes, it shows"
    yield tag("p", tag("b", f"{shows}: "), f"{text.shows}.", class_="quiet")
    yield tag("p", *_gap(verdict, level), class_="amber")


def _gap(verdict: Verdict, level: str) -> tuple[Markup, str]:
    """What a level does not show; if another level that was asked for does, that it is no more."""
    left = [words for own, words in verdict.gaps() if own == level]
    own = verdict.texts[level].does_not_show
    if own in left:
        return tag("b", "It does not show: "), f"{'; nor '.join(left)}."
    return tag("b", "By itself it does not show: "), f"{'; nor '.join([own, *left])}."


def _found(verdict: Verdict, level: str) -> str:
    """A sentence on what was found, where the figures follow by themselves."""
    end = verdict.ended(level)
    if end is Status.PASSED and level in HELD:
        return HELD[level](verdict.checks)
    own = [check for check in verdict.checks if check.level == level and check.status is end]
    only = own[0].detail if len(own) == 1 and end is not Status.PASSED else ""
    return only or verdict.found(level)


def _part(verdict: Verdict, end: Status) -> str:
    """What a level passed for, where only part of a proof was there."""
    return " for what was shown" if end is Status.PASSED and verdict.shown is not None else ""


def table(verdict: Verdict) -> Markup:
    """All levels that there are, those that were not asked for included."""
    heads = ("Level", "In this verdict", "Shows", "Does not show")
    final = verdict.levels == (FINAL,)
    shown = verdict.texts if final else LEVEL_TEXTS
    rows = tag(
        "table",
        tag("thead", tag("tr", *(tag("th", head, scope="col") for head in heads))),
        tag("tbody", *(_row(verdict, name) for name in shown)),
        class_="levels",
    )
    text = f"The terms say which of the {counted(len(LEVEL_TEXTS), 'level')} are asked for."
    if final:
        text = "Only ownership was asked for, and none of the levels that terms know."
    return tag("section", tag("h2", "Levels of evidence"), tag("p", text, class_="quiet"), rows)


def _row(verdict: Verdict, level: str) -> Markup:
    asked = level in verdict.levels
    seen = any(check.level == level for check in verdict.checks)
    if not asked:
        result = tag("span", "not asked for")
    elif not seen:
        result = tag("span", "asked for, not checked", class_="is-open")
    else:
        end = verdict.ended(level)
        words = f"{GLYPHS[end]} asked for, {end.value}{_part(verdict, end)}"
        result = tag("span", words, class_=f"is-{CLASSES[end]}")
    text = (LEVEL_TEXTS | verdict.texts)[level]
    return tag(
        "tr",
        tag("td", tag("b", level)),
        tag("td", result),
        tag("td", text.shows, data_is="Shows:"),
        tag("td", text.does_not_show, data_is="Does not show:"),
        class_="on" if asked else "off",
    )
