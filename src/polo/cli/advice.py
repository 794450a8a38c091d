"""What `polo validate` says about its advice, and about what forging costs."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console

    from polo.cli.subject import Subject
    from polo.embedding.forging import Hardness
    from polo.protocol.records import Terms
    from polo.watermark.advice import Advice

HARDLY = (
    "forging costs this model nothing: ask for replay (polo enrol --data) or for live receipts; "
    "the chain alone shows no effort"
)


@dataclass(frozen=True)
class Forging:
    """What forging one mark costs a model.

    Attributes:
        planned: Under the terms that are planned; None where they do not fit or nothing is known.
        advised: Under those that are advised; likewise.
        same: Whether these are the same terms.
        unknown: What is not known of it, why, and what to run; empty if all is.
    """

    planned: "Hardness | None"
    advised: "Hardness | None"
    same: bool
    unknown: str


def forging_of(
    subject: "Subject", terms: "Terms | None", advice: "Advice | None", shards: int
) -> Forging:
    """Measure what can be measured.

    Args:
        subject: The model.
        terms: The terms that are planned; None if they do not fit.
        advice: What suits the model.
        shards: Shards planned.
    """
    advised = advice and subject.terms(
        scheme=advice.scheme,
        bits=advice.bits,
        load=advice.load / 1e6,
        block=advice.block,
        shards=shards,
    )
    if not subject.measurable:
        return Forging(None, None, terms == advised, subject.unknown)
    planned = subject.forging(terms) if terms else None
    if terms == advised:
        return Forging(planned, planned, True, subject.unknown)
    return Forging(planned, subject.forging(advised) if advised else None, False, subject.unknown)


def advice_json(advice: "Advice | None", forging: "Hardness | None") -> dict[str, Any] | None:
    """Advice as JSON, with what forging then costs."""
    if advice is None:
        return None
    return {
        "scheme": advice.scheme,
        "bits": advice.bits,
        "load": advice.load / 1e6,
        "block": advice.block,
        "share": advice.share,
        "reasons": list(advice.reasons),
        "forging": forging_json(forging),
    }


def forging_json(found: "Hardness | None") -> dict[str, Any] | None:
    """A forge-hardness as JSON."""
    if found is None:
        return None
    return {
        "metric_before": found.before,
        **{
            name: {
                "edit": cost.edit,
                "eta": cost.eta,
                "accepted": cost.accepted,
                "metric": cost.metric,
            }
            for name, cost in (("all_bits", found.whole), ("enough_bits", found.least))
        },
        "costs_nothing": found.free if found.before is not None else None,
    }


def print_advice(console: "Console", advice: "Advice | None") -> None:
    """Say what suits the model, why, and how to ask for it."""
    if advice is None:
        console.print("\n[bold]advice:[/] no scheme's marks fit into this model")
        return
    console.print(
        f"\n[bold]advice:[/] scheme {advice.scheme}, {advice.bits} bits at a load of "
        f"{advice.load / 1e6:g}, blocks of {advice.block}: {advice.share:.1%} of the carrier"
    )
    for reason in advice.reasons:
        _print_under(console, reason)
    _print_under(
        console,
        f"polo enrol … --scheme {advice.scheme} --bits {advice.bits} "
        f"--load {advice.load / 1e6:g} --block {advice.block}",
    )


def print_forging(console: "Console", forging: Forging) -> None:
    """Say what a forger's edit does, and what is not known of it."""
    if forging.planned is not None:
        when = "as planned and as advised" if forging.same else "as planned"
        _print_cost(console, forging.planned, when)
    if forging.advised is not None and not forging.same:
        _print_cost(console, forging.advised, "as advised")
    if forging.unknown:
        from rich.markup import escape

        console.print(f"\n[bold]forging:[/] {escape(forging.unknown)}")


def _print_cost(console: "Console", found: "Hardness", when: str) -> None:
    console.print(
        f"\n[bold]forging[/] one mark {when}, without data or training, moves the marked weights "
        f"by {found.whole.edit:.0%} to turn every bit and by {found.least.edit:.0%} to turn enough "
        "of them for a verifier"
    )
    if found.before is None:
        return
    _print_under(
        console,
        f"measured: {found.before:.4f} before, {found.whole.metric:.4f} with every bit turned, "
        f"{found.least.metric:.4f} with enough of them",
    )
    _print_under(console, _price(found))


def _price(found: "Hardness") -> str:
    """What a forger pays, where it was measured."""
    if found.free:
        return f"[yellow]{HARDLY}[/]"
    if not found.least.accepted:
        return "no such edit made a mark that a verifier would accept"
    assert found.lost is not None
    return (
        f"a forger gives up {100 * found.lost:.1f} points for each mark; whoever can pay that in "
        "accuracy can forge"
    )


def _print_under(console: "Console", text: str) -> None:
    """Print below a head line, and stay there when lines are broken."""
    from rich.padding import Padding

    console.print(Padding(text, (0, 0, 0, 4), expand=False))
