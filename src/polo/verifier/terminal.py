"""A verdict on a terminal, with rich. Nothing else of the verifier needs rich.

What a verdict says may come from a hostile prover: it is printed as plain text, never as markup,
and control characters are spelt out, so that no file name can move the cursor or hide a line.
"""

from collections.abc import Sequence

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from polo.checks import Check, Status, listed, plain
from polo.verifier import owners
from polo.verifier.findings import figure, is_shard_note, places_of, shortened
from polo.verifier.rows import ShardRow, selected, shard_rows, untested
from polo.verifier.verdict import Outcome, Verdict

MOST_SHARDS = 30
MOST_PROBLEMS = 20
MOST_OWNERS = 12
WIDEST = 100
_OUTCOMES = {
    Outcome.ACCEPTED: ("✓", "bold green"),
    Outcome.REJECTED: ("✕", "bold red"),
    Outcome.UNDECIDED: ("?", "bold blue"),
}
_STATUSES = {
    Status.PASSED: ("✓", "green"),
    Status.FAILED: ("✕", "red"),
    Status.UNDECIDED: ("?", "blue"),
    Status.NOTE: ("i", "dim"),
}
_AMBER = "yellow"
_SPELT = str.maketrans(
    {
        "→": "->",
        "×": "x",
        "±": "+-",
        "✓": "+",
        "·": "-",
        "✕": "x",
        "η": "eta",
        "–": "-",
        "…": "...",
        "’": "'",
    }
)


def show(verdict: Verdict, console: Console) -> None:
    """Print a verdict: outcome, what it does not show, shards, problems, notes.

    Args:
        verdict: The verdict.
        console: Where to print; at most 100 columns of it are used.
    """
    _Page(console).show(verdict)


class _Page:
    """Prints within the console's width and with the characters its encoding has."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._width = min(console.width, WIDEST)

    def show(self, verdict: Verdict) -> None:
        rows = shard_rows(verdict)
        self._headline(verdict, rows)
        if rows:
            self._shards(verdict, rows)
        self._levels(verdict)
        self._owners(verdict)
        self._problems(verdict, brief=not rows)
        for check in verdict.of(Status.PASSED):
            if check.name in ("base", "delivered"):
                what = check.place or check.name
                self._line(("✓ ", "green"), (f"{what}: {check.detail}", ""))
        for check in verdict.of(Status.NOTE):
            if check.name == "residual" or is_shard_note(check):
                continue
            where = f" ({check.place})" if check.ancestor else ""
            self._line(("i ", "dim"), (f"{check.name}{where}: {check.detail}", "dim"))

    def _headline(self, verdict: Verdict, rows: Sequence[ShardRow]) -> None:
        glyph, style = _OUTCOMES[verdict.outcome]
        words, _, rest = verdict.headline().partition(": ")
        self._line((f"{glyph} ", style), (words, style), (f": {rest}", ""))
        if verdict.outcome != Outcome.ACCEPTED:
            return
        caution = verdict.caution
        self._line(("! ", _AMBER), (f"{verdict.in_short()} ", f"bold {_AMBER}"),
                   (f"{caution[:1].upper()}{caution[1:]}.", _AMBER))  # fmt: skip
        if levels := list(verdict.closers()):
            close = f"What would close it: terms that also ask for {listed(levels)}."
            self._line(("  ", ""), (close, _AMBER))
        if missing := untested(verdict, rows):
            self._line(("! ", _AMBER), (missing, _AMBER))

    def _shards(self, verdict: Verdict, rows: Sequence[ShardRow]) -> None:
        metric = str(verdict.facts.get("metric", "accuracy"))[:16]
        table = Table(box=box.SIMPLE_HEAD, pad_edge=False, header_style="dim")
        for head in ("shard", "bits matched", "η", "log2 p", f"{metric} / floor"):
            table.add_column(self._text(head), justify="right", overflow="fold")
        table.add_column(self._text("status"))
        before = 0
        for row in selected(rows, first=3, worst=5, last=10, most=MOST_SHARDS):
            self._gap(table, before, row.shard, verdict)
            self._row(table, row)
            before = row.shard
        if verdict.shown is not None:
            self._gap(table, before, int(verdict.facts.get("shards", 0)) + 1, verdict)
        self._console.print(table, width=self._width)

    def _gap(self, table: Table, before: int, shard: int, verdict: Verdict) -> None:
        """A line for the shards between two rows."""
        if (missing := shard - before - 1) > 0:
            short = verdict.shown is not None and len(verdict.shown) <= MOST_SHARDS
            words = "not shown" if short else "left out"
            skipped = f"{missing} shard{'' if missing == 1 else 's'} {words}"
            table.add_row(self._text("…"), "", "", "", "", self._text(skipped, "dim"))

    def _row(self, table: Table, row: ShardRow) -> None:
        matches, bits = figure(row.mark, "matches"), figure(row.mark, "bits")
        measured, floor = figure(row.accuracy, "measured"), figure(row.accuracy, "floor")
        status = row.status or Status.UNDECIDED
        glyph, style = _STATUSES[status]
        cells = (
            str(row.shard),
            "–" if matches is None or bits is None else f"{matches:.0f}/{bits:.0f}",
            _number(figure(row.mark, "eta"), 4),
            _number(figure(row.mark, "log2_p"), 1),
            _number(measured, 4) + ("" if floor is None else f" / {floor:.2f}"),
        )
        table.add_row(
            *(self._text(cell) for cell in cells), self._text(f"{glyph} {row.words}", style)
        )

    def _levels(self, verdict: Verdict) -> None:
        """A line for each level, where there are several."""
        if len(verdict.levels) < 2:
            return
        wide = max(map(len, verdict.levels))
        for level in verdict.levels:
            glyph, style = _STATUSES[verdict.ended(level)]
            first = (f"{glyph} {level:<{wide}}  ", style)
            self._line(first, (verdict.found(level), ""))

    def _owners(self, verdict: Verdict) -> None:
        if len(verdict.owners) < 2:
            return
        for owner in owners.selected(verdict.owners, MOST_OWNERS):
            if isinstance(owner, int):
                self._line(("  ", ""), (f"… {owner} owners left out", "dim"))
                continue
            how = f"{owners.shards_of(owner):<16} {owner.how}, enrolled {owners.date_of(owner)}"
            self._line(("· ", "dim"), (f"{owner.label}  ", ""), (how, "dim"))

    def _problems(self, verdict: Verdict, *, brief: bool) -> None:
        found = verdict.problems()
        if brief and len(found) == 1:
            # The headline says it already.
            self._advice(found[0])
            return
        for group, more in shortened(found, MOST_PROBLEMS):
            for at, checks in enumerate(group):
                # Checks of one group mostly have the same advice: the last one gives it.
                same = at + 1 < len(group) and group[at + 1][0].advice == checks[0].advice
                self._problem(checks, advise=not same)
            if more:
                self._line(("  ", ""), (f"… and {more} more", "dim"))

    def _problem(self, checks: Sequence[Check], *, advise: bool) -> None:
        """One check, or some that say the same of different segments."""
        check = checks[0]
        glyph, style = _STATUSES[check.status]
        where = ", ".join(check.where)
        if len(checks) > 1:
            where = f"{len(checks)} times: {places_of(checks)}"
        title = f"{check.name} ({where})" if where else check.name
        self._line((f"{glyph} ", style), (title, f"bold {style}"),
                   (f": {check.detail or check.status.value}", ""))  # fmt: skip
        if advise:
            self._advice(check)

    def _advice(self, check: Check) -> None:
        if check.advice:
            self._line(("  ", ""), ("what to do: ", "bold"), (check.advice, ""))

    def _line(self, first: tuple[str, str], *parts: tuple[str, str]) -> None:
        """A paragraph whose second and further lines are indented like the first."""
        text = Text.assemble(*(self._text(*part) for part in parts))
        start = self._text(*first)
        for line in text.wrap(self._console, self._width - len(start)):
            line.rstrip()
            self._console.print(Text.assemble(start, line), soft_wrap=True)
            start = Text(" " * len(start))

    def _text(self, text: str, style: str = "") -> Text:
        """Plain text, spelt with what the console's encoding has."""
        text, coding = plain(text), self._console.encoding
        if not coding.startswith("utf"):
            text = text.translate(_SPELT).encode(coding, "replace").decode(coding)
        return Text(text, style=style)


def _number(value: float | None, digits: int) -> str:
    return "–" if value is None else f"{value:.{digits}f}"
