"""Terms in words: what the verifier fixed before the training began, and what each is for."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from polo.checks import counted
from polo.protocol.detection import MILLION
from polo.protocol.records import EvidenceTerms, Terms
from polo.registry.pages.render import figure, grouped, span

_STARTS = {
    "free": ("free", "The first weights may have been trained before, by anybody."),
    "derived": ("drawn", "The first weights are drawn from the enrolment, so nobody trained them."),
    "parent": ("a named model", "Training goes on from a model that the terms name."),
}
_HISTORIES = {
    "any": ("as the prover likes", "Checkpoints that were not kept can no longer be tested."),
    "all": ("every checkpoint", "All checkpoints are kept, so that any can be tested later."),
    "streaming": (
        "checked while it grows",
        "Each opening travels with its commitment, and the registry may ask for the whole "
        "checkpoint before it gives the receipt; then the prover may drop it.",
    ),
    "after-close": (
        "checked after the close",
        "The registry draws what it wants to see at the end; the prover keeps everything till "
        "then.",
    ),
}


@dataclass(frozen=True)
class Term:
    """One thing that the terms fix: its name, its value, and what it is for."""

    name: str
    value: str
    meaning: str


@dataclass(frozen=True)
class Level:
    """A level of evidence that the terms ask for."""

    name: str
    shows: str
    does_not_show: str


def explained(terms: Terms) -> Iterator[Term]:
    """The terms, the weightiest first."""
    task, scheme, needed, shards = terms.task, terms.scheme, terms.thresholds, terms.shards
    floor = f"at least {figure(task.floor[-1] / MILLION)} at the end" if task.floor else "no floor"
    yield Term("Task", f"{task.name}, version {task.version}", "What the model learns.")
    yield Term(task.metric.capitalize(), floor, "Measured again on the task’s public test.")
    yield Term(
        "Mark",
        f"{grouped(scheme.bits)} bits, {scheme.name}",
        f"Pressed into {counted(scheme.blocks, 'block')} of {scheme.block} weights in every shard, "
        "at places that nobody knows before the shard begins.",
    )
    yield Term(
        "Mark counts as read",
        f"η ≥ {needed.verify / MILLION:g} and log₂ p ≤ {figure(needed.log2_p, 0)}",
        "So many bits must read right, and luck must reach that no more often than 2 to that "
        "power.",
    )
    yield Term(
        "Shards",
        f"{grouped(shards.least)} to {grouped(shards.most)}",
        f"Each of at least {counted(shards.fewest_steps, 'optimizer step')}."
        if shards.fewest_steps
        else "However few steps one has.",
    )
    yield Term("Start", *_STARTS[terms.start.kind])
    yield Term("History", *_HISTORIES[terms.history])
    yield from _draws(next((x for x in terms.evidence if x.level == "receipts"), None))
    if terms.deposit:
        amount = f"{grouped(terms.deposit.amount)} {terms.deposit.currency}"
        yield Term("Deposit", amount, "In the smallest unit; what the prover stakes.")


def _draws(receipts: EvidenceTerms | None) -> Iterator[Term]:
    """How often the registry looks closer, where the terms say so."""
    settings = {} if receipts is None else receipts.settings
    drawn = {name: _count(settings.get(name)) for name in ("checkpoints", "replays")}
    words = [f"{count / MILLION:.2%} {name}" for name, count in drawn.items() if count]
    if words:
        within = _count(settings.get("answer_within"))
        due = f" An answer is due within {span(within)}." if within else ""
        yield Term(
            "Drawn while it grows",
            " and ".join(words),
            f"The registry decides by its own randomness, after the root is in the log.{due}",
        )
    if (keep := settings.get("keep")) is not None:
        yield Term(
            "Uploaded files",
            f"kept for {counted(_count(keep), 'day')}",
            "After the chain’s end or its last verdict; then the registry removes them. Entries, "
            "receipts and verdicts stay.",
        )
    if fastest := _count(settings.get("fastest")):
        yield Term("Pace", f"at most one shard in {span(fastest)}", "Faster ones are refused.")


def _count(text: str | None) -> int:
    """A whole number of the settings; 0 where there is none."""
    return int(text) if text and text.isascii() and text.isdigit() and len(text) < 16 else 0


def levels(terms: Terms) -> list[Level]:
    """The levels of evidence that are asked for, with what they show and do not."""
    return texts([item.level for item in terms.evidence])


def texts(names: Iterable[str]) -> list[Level]:
    """What levels show and do not, by name."""
    from polo.verifier.levels import LEVEL_TEXTS

    known = {name: LEVEL_TEXTS[name] for name in names if name in LEVEL_TEXTS}
    return [Level(name, text.shows, text.does_not_show) for name, text in known.items()]
