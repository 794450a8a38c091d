"""What the operator offers: which tasks, and on which terms.

The file that the setting `tasks` names has a table for each task. A prover chooses the task and,
within `bits`, the size of its marks; everything else is the operator's.

    [digits]
    shards = 50
    bits = { usual = 1024, least = 256, most = 4096 }
    history = "streaming"
    checkpoints = 0.1
    replays = 0.2
    recipe = { rate = 0.05, batch = 64, draws = 8 }
"""

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from polo.errors import FormatError, StoreError, TermsError
from polo.protocol.canonical import encode
from polo.protocol.detection import MILLION

USUAL = ("digits", "lab-cifar")
"""What is offered where the operator says nothing."""

HISTORIES = ("any", "all", "streaming", "after-close")
_MAX_FILE = 2**20
_LEAST_BITS, _MOST_BITS = 128, 4096

_WORDS = ("scheme", "reduction", "key", "start")
_WHOLE = ("shards", "fewest_shards", "fewest_steps", "every", "block", "log2_p")
_NUMBERS = ("strength", "load", "embed", "verify", "budget", "margin", "noise_fraction")
_SECONDS = ("fastest", "answer_within")
_RECEIPTS = (*_SECONDS, "quorum", "keep")
_PARTS = ("checkpoints", "replays")
KEYS = {
    *_WORDS, *_WHOLE, *_NUMBERS, *_SECONDS, *_PARTS,
    "bits", "noise", "carrier", "progress", "uniqueness", "history", "recipe", "quorum",
    "keep", "gpu",
}  # fmt: skip
"""What a task's table may have. docs/operate.md says what each means."""


@dataclass(frozen=True)
class Bits:
    """How large marks may be.

    Attributes:
        usual: What is taken where the prover says nothing; None for what suits the scheme.
        least: Fewest.
        most: Most.
    """

    usual: int | None = None
    least: int = _LEAST_BITS
    most: int = _MOST_BITS

    @classmethod
    def of(cls, value: Any, place: str) -> Self:
        """One number that is fixed, or a table of the three."""
        table = {"usual": value, "least": value, "most": value} if _whole(value) else value
        if (
            not isinstance(table, dict)
            or table.keys() - {"usual", "least", "most"}
            or not all(_whole(item) and item > 0 for item in table.values())
        ):
            raise FormatError("bits are a number, or a table of usual, least, most", place=place)
        bits = cls(**table)
        if not bits.least <= (bits.usual or bits.least) <= bits.most:
            raise FormatError("bits: least, usual and most contradict each other", place=place)
        return bits


@dataclass(frozen=True)
class Offer:
    """One task, and the terms it is offered on.

    Attributes:
        task: Its registered name.
        bits: How large marks may be.
        history: What is kept of the checkpoints.
        options: What goes to `polo.make_terms` as it is.
        receipts: Settings of level receipts beside the log's: fastest, checkpoints, replays, …
        recipe: How steps are done, where level replay is asked for.
        gpu: Whether verifying it needs a graphics card.
    """

    task: str
    bits: Bits = Bits()
    history: str = "any"
    options: Mapping[str, Any] = field(default_factory=dict)
    receipts: Mapping[str, int] = field(default_factory=dict)
    recipe: Mapping[str, Any] | None = None
    gpu: bool = False

    @property
    def queue(self) -> str:
        """Where jobs that run the task's own code are put."""
        return "gpu" if self.gpu else "cpu"

    @classmethod
    def of(cls, task: str, table: Any) -> Self:
        """The offer in a table of the file."""
        if not isinstance(table, dict):
            raise FormatError("is no table", place=f"tasks: {task}")
        for key, value in table.items():
            place = f"tasks: {task}.{key}"
            if key not in KEYS:
                raise FormatError("there is no such option", place=place, advice=_advice())
            if not _fits(key, value):
                raise FormatError(f"{value!r} is not what this option can be", place=place)
        rest = {"bits", "history", "recipe", "gpu", *_RECEIPTS, *_PARTS}
        receipts = {key: table[key] for key in _RECEIPTS if key in table}
        receipts |= {key: round(table[key] * MILLION) for key in _PARTS if key in table}
        offer = cls(
            task,
            Bits.of(table["bits"], f"tasks: {task}.bits") if "bits" in table else Bits(),
            table.get("history", _usual_history(table)),
            {key: value for key, value in table.items() if key not in rest},
            receipts,
            table.get("recipe"),
            table.get("gpu", False),
        )
        offer.check()
        return offer

    def check(self) -> None:
        """Refuse an offer under which nobody could be accepted, or nothing would be drawn."""
        place, replays = f"tasks: {self.task}.replays", self.receipts.get("replays")
        if replays and self.recipe is None:
            raise TermsError("replays need a recipe", place=place)
        if replays and self.history != "streaming":
            raise TermsError(
                f"with history {self.history!r} steps are drawn at the close, and never before",
                place=place,
                advice="Leave replays out, or set history to streaming.",
            )
        if self.history != "streaming":
            return
        if self.recipe is not None and not replays:
            raise TermsError(
                "with history streaming checkpoints are gone when the chain is closed, so steps "
                "must be drawn while it grows",
                place=place,
                advice="Say from which part of the shards: replays = 0.2, say, or 1 for all.",
            )
        if self.options.get("progress"):
            raise TermsError(
                "level progress looks at all checkpoints, and with history streaming they are gone",
                place=f"tasks: {self.task}.progress",
                advice="Set history to all.",
            )
        tolerance = (self.recipe or {}).get("tolerance")
        if replays and tolerance and self.options.get("start") != "derived":
            raise TermsError(
                "where rounding is forgiven, samples are compared on an untaught model, which only "
                "a drawn start gives while the chain grows",
                place=f"tasks: {self.task}.recipe.tolerance",
                advice="Set start to derived, or leave the tolerance out.",
            )

    def key(self) -> bytes:
        """What terms that only torch can make depend on, as bytes."""
        plain = {name: repr(value) for name, value in self.options.items()}
        return encode({"task": self.task, "bits": self.bits.usual or 0, "options": plain})


def load(path: str) -> dict[str, Offer]:
    """All offers, by task.

    Args:
        path: The operator's file; empty for the usual offers.
    """
    if not path:
        return {name: Offer(name) for name in USUAL}
    try:
        with Path(path).open("rb") as file:
            text = file.read(_MAX_FILE + 1)
    except OSError as error:
        raise StoreError(f"cannot be read: {error.strerror}", place=path) from error
    try:
        tables = tomllib.loads(text[:_MAX_FILE].decode())
    except (UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise FormatError(f"is no TOML: {error}", place=path) from error
    return {name: Offer.of(name, table) for name, table in tables.items()}


def _usual_history(table: Mapping[str, Any]) -> str:
    """What is kept where the operator does not say."""
    if table.get("replays"):
        return "streaming"
    return "all" if "recipe" in table or table.get("progress") else "any"


def _fits(key: str, value: Any) -> bool:
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if key in _WORDS:
        return isinstance(value, str)
    if key in _WHOLE or key in _RECEIPTS:
        return _whole(value) and (value >= 0 or key == "log2_p")
    if key in _NUMBERS:
        return number
    if key in _PARTS:
        return number and 0 <= value <= 1
    if key == "noise":
        return isinstance(value, list) and len(value) == 2
    if key == "carrier":
        return isinstance(value, list) and all(isinstance(item, str) for item in value)
    if key == "history":
        return value in HISTORIES
    kinds: dict[str, type] = {"progress": bool, "uniqueness": bool, "recipe": dict, "gpu": bool}
    return isinstance(value, kinds.get(key, object))


def _whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _advice() -> str:
    return f"Options are {', '.join(sorted(KEYS))}."
