"""Tables, as Markdown, CSV and LaTeX."""

import csv
import io
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

_LATEX = {
    "\\": r"\textbackslash{}", "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_",
    "{": r"\{", "}": r"\}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}",
    "η": r"$\eta$", "λ": r"$\lambda$", "σ": r"$\sigma$", "±": r"$\pm$", "×": r"$\times$",
    "≥": r"$\geq$", "≤": r"$\leq$", "−": "$-$", "–": "--", "→": r"$\rightarrow$",
    "δ": r"$\delta$", "✓": r"\checkmark", "✗": r"$\times$", "<": "$<$", ">": "$>$", "|": "$|$",
}  # fmt: skip


@dataclass(frozen=True)
class Table:
    """Cells under heads.

    Attributes:
        title: What it shows.
        head: Names of columns.
        rows: Cells, row by row.
        words: What a reader should know of it.
    """

    title: str
    head: Sequence[str]
    rows: Sequence[Sequence[str]]
    words: str = ""


def markdown(table: Table) -> str:
    r"""The table alone, without its title.

    >>> print(markdown(Table("t", ("a", "b"), [("1", "2 | 3")])))
    | a | b |
    | --- | --- |
    | 1 | 2 \| 3 |
    """
    lines = [table.head, ["---"] * len(table.head), *table.rows]
    cells = ([cell.strip().replace("|", r"\|") for cell in line] for line in lines)
    return "\n".join("| " + " | ".join(line) + " |" for line in cells)


def _titled(table: Table) -> str:
    return "\n\n".join(
        part for part in (f"### {table.title}", table.words, markdown(table)) if part
    )


def _csv(table: Table) -> str:
    """Title and words as comments, head, rows."""
    out = io.StringIO()
    out.writelines(f"{line}\n" for line in _comment("#", table.title, table.words))
    csv.writer(out, lineterminator="\n").writerows([table.head, *table.rows])
    return out.getvalue().rstrip("\n")


def _comment(sign: str, *texts: str) -> list[str]:
    """Texts as comments, line by line."""
    return [f"{sign} {line}".rstrip() for text in texts for line in text.splitlines()]


def _latex(table: Table) -> str:
    """A `tabular` with rules of booktabs, inside a `table`; words before it as comments."""
    lines = [_row(table.head), r"\midrule", *map(_row, table.rows)]
    columns = "l" * len(table.head)
    return "\n".join(
        [*_comment("%", table.words), r"\begin{table}", r"\centering",
         rf"\caption{{{_escaped(table.title)}}}",
         rf"\begin{{tabular}}{{{columns}}}", r"\toprule", *lines, r"\bottomrule",
         r"\end{tabular}", r"\end{table}"]
    )  # fmt: skip


def _row(cells: Sequence[str]) -> str:
    return " & ".join(_escaped(cell.strip()) for cell in cells) + r" \\"


def _escaped(text: str) -> str:
    plain = re.sub(r"\*\*|`", "", text)
    return "".join(_LATEX.get(letter, letter) for letter in plain)


FORMATS: dict[str, Callable[[Table], str]] = {"md": _titled, "csv": _csv, "latex": _latex}
"""How a table is written."""
