"""`polo validate`: can this model carry the mark, and what will the run cost?"""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from polo.cli import advice as advising
from polo.cli.output import Flag, print_json, size
from polo.cli.subject import Subject, subject_of
from polo.errors import TermsError

if TYPE_CHECKING:
    from rich.console import Console

    from polo.planning import Plan
    from polo.watermark.capacity import Capacity

NAMED = 6


def validate(
    file: Path | None = None,
    /,
    *,
    task: str | None = None,
    model: Path | None = None,
    scheme: str = "ednn",
    bits: int | None = None,
    load: float | None = None,
    block: int | None = None,
    shards: int = 10,
    json: Flag = False,
) -> int:
    """Say which tensors may carry a mark, how many bits fit, and what a run will take.

    Advises a scheme, a size and a load, and says what a forger's edit does: how far it moves the
    marked weights, and with --task and --model what it costs in accuracy.

    Examples:
    polo validate --task digits --bits 1024

    polo validate --task digits --model trained.safetensors

    polo validate model.safetensors

    polo validate model.safetensors --scheme fedipr

    Exit code 0 if the planned mark fits, 1 if it does not.

    Parameters
    ----------
    file
        A model as safetensors.
    task
        A registered task, or module:object, instead of a file.
    model
        With --task, a trained model of it as safetensors: forging one mark into it is measured.
    scheme
        How marks are pressed and read: ednn, ednn-mean, riga, fedipr, fedipr-kernel, signed, or
        one that an installed package offers. The three settings below are what suits it where
        they are not given.
    bits
        Bits of each mark.
    load
        Bits per weight of a block.
    block
        Weights per block.
    shards
        Shards planned.
    json
        Print JSON.
    """
    from polo.enrolment import millionths
    from polo.planning import plan
    from polo.watermark import advice, schemes

    subject = subject_of(file, task, model)
    _check_shards(subject, shards)
    usual = schemes.scheme(scheme).defaults
    bits = usual.bits if bits is None else bits
    load = usual.load if load is None else load
    block = usual.block if block is None else block
    fits = subject.capacity(scheme, block)
    objection = fits.objection(bits, millionths(load))
    terms = planned = None
    if not objection:
        terms = subject.terms(scheme=scheme, bits=bits, load=load, block=block, shards=shards)
        planned = plan(terms, subject.layout, shards=shards)
    best = advice.advise(subject.capacities())
    forging = advising.forging_of(subject, terms, best, shards)
    if json:
        found = _as_json(fits, objection, planned, bits, millionths(load))
        found["advised"] = advising.advice_json(best, forging.advised)
        found["forging"] = advising.forging_json(forging.planned)
        found["forging_unknown"] = forging.unknown
        print_json(found)
    else:
        console = _print(fits, objection, planned, bits, millionths(load))
        advising.print_advice(console, best)
        advising.print_forging(console, forging)
    return 1 if objection else 0


def _check_shards(subject: Subject, shards: int) -> None:
    from polo.protocol.records import MAX_SHARDS

    least = max(1, len(subject.task.floor)) if subject.task else 1
    if shards > MAX_SHARDS:
        raise TermsError(f"--shards {shards} is too many", advice=f"Plan at most {MAX_SHARDS}.")
    if shards < least:
        raise TermsError(
            f"--shards {shards} is too few: "
            + ("one is the least" if least == 1 else f"the task's floor has {least} steps"),
            advice=f"Plan at least {least}.",
        )


def _as_json(
    fits: "Capacity", objection: str, planned: "Plan | None", bits: int, load: int
) -> dict[str, Any]:
    from polo.watermark.capacity import LOADS

    return {
        "fits": not objection,
        "objection": objection,
        "advice": fits.advice(bits, load) if objection else "",
        "tensors": [
            {
                "name": item.tensor.name,
                "dtype": item.tensor.dtype,
                "shape": list(item.tensor.shape),
                "blocks": item.tensor.elements // fits.block if item.carries else 0,
                "reason": item.reason,
            }
            for item in fits.judged
        ],
        "bits_at_load": {str(at / 1e6): fits.bits_at(at) for at in LOADS},
        "plan": planned
        and {
            "checkpoint_bytes": planned.checkpoint,
            "opening_bytes": planned.opening,
            "proof_bytes_all": planned.all_bytes,
            "proof_bytes_thin": planned.thin_bytes,
            "working_bytes": planned.working_bytes,
            "step_seconds": planned.step_seconds,
        },
    }


def _print(
    fits: "Capacity", objection: str, planned: "Plan | None", bits: int, load: int
) -> "Console":
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    from polo.checks import plain
    from polo.watermark.capacity import COMFORTABLE_SHARE, LOADS
    from polo.watermark.fedipr import Fedipr

    console = Console(highlight=False)
    table = Table("may carry a mark", "type", "shape", "blocks", box=None, header_style="bold")
    reasons: dict[str, list[str]] = {}
    for item in fits.judged:
        if item.carries:
            shape, blocks = (
                "×".join(map(str, item.tensor.shape)),
                item.tensor.elements // fits.block,
            )
            table.add_row(escape(plain(item.tensor.name)), item.tensor.dtype, shape, str(blocks))
        else:
            reasons.setdefault(item.reason, []).append(item.tensor.name)
    console.print(table if fits.blocks else "no tensor may carry a mark")
    for reason, names in reasons.items():
        more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
        console.print(
            f"\n[bold]not[/] {escape(plain(', '.join(names[:NAMED])))}{more}:\n    {reason}"
        )
    console.print()
    for at in LOADS:
        console.print(
            f"at {at / 1e6:g} bits per weight one mark holds up to {fits.bits_at(at)} bits"
        )
    if objection:
        console.print(
            f"\n[bold]planned:[/] scheme {fits.scheme}, load {load / 1e6:g}, blocks of "
            f"{fits.block}: {bits} bits [red]do not fit:[/] {objection}"
        )
        console.print(f"what to do: {fits.advice(bits, load)}")
        return console
    assert planned is not None
    share = fits.share(bits, load)
    console.print(
        f"\n[bold]planned:[/] scheme {fits.scheme}, load {load / 1e6:g}, blocks of {fits.block}: "
        f"[green]{bits} bits fit[/], they take {_part(share)} of the carrier's blocks"
    )
    if share > COMFORTABLE_SHARE:
        console.print("[yellow]that is much: each mark will overwrite part of the one before[/]")
        if fits.scheme == Fedipr.name:
            console.print(
                "[yellow]and norm scales that are pressed or edited cost accuracy: on ResNet-18 "
                "several points, whatever λ and budget; on a small network little with "
                "polo enrol --budget 0.2, where fewer epochs seal a shard. After overwriting, "
                "hardly any owner was named by such marks (docs/schemes.md). Or use "
                "fedipr-kernel[/]"
            )
    console.print(
        f"a checkpoint takes {size(planned.checkpoint)}, an opening {size(planned.opening)}"
    )
    console.print(
        f"a proof of {planned.shards} shards takes {size(planned.all_bytes)} with every "
        f"checkpoint, {size(planned.thin_bytes)} thin; beside it up to "
        f"{size(planned.working_bytes)} to resume from"
    )
    if planned.step_seconds is not None:
        console.print(
            f"the mark adds about {planned.step_seconds * 1000:.2f} ms to a step on this machine, "
            "as busy as it is now; where steps are short, enrol with --every 8"
        )
    return console


def _part(share: float) -> str:
    """A part in whole percents.

    >>> _part(0.004), _part(0.25)
    ('less than 1%', '25%')
    """
    return "less than 1%" if share < 0.01 else f"{share:.0%}"
