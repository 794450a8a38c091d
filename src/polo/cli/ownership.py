"""`polo identify` and `polo compare`: whose model is this, and who came first."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from polo.cli.output import Flag, print_json, progress_bar
from polo.cli.tasks import load_task

if TYPE_CHECKING:
    from rich.console import Console

    from polo.ownership import Claim, Comparison, Identification
    from polo.ownership.containment import Contained

MOST_CLAIMS = 10
MOST_MARKS = 20
_STYLES = ("bold green", "bold", "bold blue")
_GLYPHS = ("✓", "–", "?")

Several = Annotated[list[Path] | None, Parameter(negative="", consume_multiple=True)]


def identify(
    model: Path,
    /,
    *,
    proof: Annotated[list[Path], Parameter(negative="", consume_multiple=True)],
    trust: Several = None,
    align: Flag = False,
    base: Path | None = None,
    task: str | None = None,
    json: Flag = False,
) -> int:
    """Say whose model this is: look for every mark of the given proofs in it.

    The model may be a safetensors or GGUF file or a Hugging Face folder; cast, quantised, pruned,
    fine-tuned, averaged, renamed or incomplete. Pickles are refused.

    Examples:
    polo identify found.safetensors --proof proof --trust issuer.pub

    polo identify found/ --proof mine.polo theirs.polo

    polo identify permuted.safetensors --proof proof --align

    polo identify merged.safetensors --proof adapter-proof --base base.safetensors

    Exit code 0 where a claim stands, 1 where none does, 2 where it could not be decided.

    Parameters
    ----------
    model
        The found model.
    proof
        Proof folders or bundles, with nonces: whose marks to look for. Takes several.
    trust
        Public keys of issuers to trust, besides those in your trust store.
    align
        If no claim stands, undo permuted, rescaled and added neurons first. Needs torch, scipy,
        the task, and a proof that kept older checkpoints.
    base
        The base model as safetensors, if a proof is of an adapter (LoRA) that may have been merged
        into it. Needs scipy, and a proof that kept older checkpoints.
    task
        The task for alignment, if it is not the registered one that the terms name.
    json
        Print JSON.
    """
    from polo.keys import TrustStore
    from polo.ownership import identify as run

    with progress_bar() as tell:
        result = run(
            model,
            proof,
            trust=[TrustStore(), *(trust or [])],
            align=align,
            base=base,
            task=load_task(task) if task else None,
            listener=tell,
        )
    if json:
        print_json(result.to_json())
    else:
        _show(result, _console())
    return int(result.finding)


def compare(
    first: Path,
    second: Path,
    /,
    *,
    model: Path | None = None,
    trust: Several = None,
    align: Flag = False,
    task: str | None = None,
    json: Flag = False,
) -> int:
    """Decide which of two chains came first, by containment.

    The ancestor's marks are in the other's committed checkpoints, and not the reverse.

    Examples:
    polo compare mine theirs --trust issuer.pub

    polo compare mine theirs --model disputed.safetensors

    Exit code 0 where one of them came first or owns the model, 1 where they are unrelated, 2 where
    it could not be decided.

    Parameters
    ----------
    first
        A proof folder or bundle, with nonces and checkpoints.
    second
        Another one.
    model
        A model that both claim.
    trust
        Public keys of issuers to trust, besides those in your trust store.
    align
        Undo permuted, rescaled and added neurons where marks are not found. Needs torch, scipy, the
        task, and proofs that kept older checkpoints.
    task
        The task for alignment, if it is not the registered one that the terms name.
    json
        Print JSON.
    """
    from polo.keys import TrustStore
    from polo.ownership import compare as run

    with progress_bar() as tell:
        found = run(
            first,
            second,
            model=model,
            trust=[TrustStore(), *(trust or [])],
            align=align,
            task=load_task(task) if task else None,
            listener=tell,
        )
    if json:
        print_json(found.to_json())
    else:
        _show_comparison(found, _console())
    return found.order.exit_code


def _console() -> "Console":
    from rich.console import Console

    return Console(highlight=False, soft_wrap=True)


def _show(result: "Identification", console: "Console") -> None:
    from polo.ownership import Finding

    shown = [claim for claim in result.claims if not claim.screened][:MOST_CLAIMS]
    if len(result.claims) != 1:
        _line(console, int(result.finding), result.headline())
    _dim(console, f"{result.model}: {result.description}")
    for claim in shown:
        _show_claim(claim, console, marks=len(shown) == 1 or claim.finding is Finding.CLAIM)
    if left := len(result.claims) - len(shown):
        _dim(console, f"\n{left} more chains without a claim")
    if result.screen:
        power = result.screen.surely
        _dim(
            console,
            "a screen of some hundred bits came first; a chain whose marks read at η = 0.62 gets "
            f"through it with probability {power:.4f} or more",
        )


def _show_claim(claim: "Claim", console: "Console", *, marks: bool) -> None:
    _line(console, int(claim.finding), claim.sentence())
    if claim.problem:
        _advice(console, claim.advice)
        return
    _dim(console, f"  proof {claim.proof}, terms signed by {claim.issuer}")
    _dim(console, f"  found {claim.coverage:.0%} of the carrier; {claim.how}")
    if claim.absent:
        _dim(console, f"  {len(claim.absent)} marks were not looked for: their nonces are not here")
    if tries := claim.tries.sentence():
        _dim(console, f"  log2 p = {claim.log2_combined:.1f} before correction for {tries}")
    if any(not mark.live for mark in claim.marks):
        from polo.protocol.combination import GRINDING_BITS

        _dim(
            console,
            f"  offline marks are granted 2^{GRINDING_BITS} tries each: a prover can grind them",
        )
    if marks:
        console.print(_marks(claim))
    _advice(console, claim.advice)


def _marks(claim: "Claim") -> Any:
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, header_style="dim")
    for head in ("mark", "bits matched", "η", "log2 p"):
        table.add_column(head, justify="right")
    chosen = claim.marks if len(claim.marks) <= MOST_MARKS else claim.marks[-MOST_MARKS:]
    if left := len(claim.marks) - len(chosen):
        table.add_row("…", f"{left} older", "", "")
    for mark in chosen:
        reading = mark.reading
        if not reading.bits:
            table.add_row(str(mark.shard), "not found", "–", "–")
            continue
        table.add_row(
            str(mark.shard),
            f"{reading.matches}/{reading.bits}",
            f"{reading.eta:.4f}",
            f"{reading.log2_p:.1f}",
        )
    return table


def _show_comparison(found: "Comparison", console: "Console") -> None:
    _line(console, found.order.exit_code, found.headline())
    pairs = (
        (found.first_in_second, found.proofs[0], found.proofs[1]),
        (found.second_in_first, found.proofs[1], found.proofs[0]),
    )
    for held, own, other in pairs:
        _dim(console, f"  marks of {own} in {other}: {_held(held)}")
    for claim, like in zip(found.in_model or (), found.likeness, strict=False):
        cosine = "–" if like is None else f"{like:.3f}"
        _dim(
            console,
            f"  marks of {claim.proof} in the model: log2 p = {claim.log2_p:.1f}; likeness of the "
            f"model to its last weights {cosine}",
        )
    _advice(console, found.advice)


def _held(held: "Contained") -> str:
    if not held.looked:
        return f"could not be read ({held.claim.problem})"
    figures = f"η = {held.claim.eta:.4f}, log2 p = {held.claim.log2_p:.1f}"
    return f"{figures} in checkpoint {held.checkpoint}, the strongest of {held.looked}"


def _line(console: "Console", code: int, text: str) -> None:
    from polo.checks import plain

    words, colon, rest = plain(text).partition(": ")
    console.print(f"{_GLYPHS[code]} {words}", style=_STYLES[code], markup=False, end="")
    console.print(f"{colon}{rest}", markup=False)


def _dim(console: "Console", text: str) -> None:
    from polo.checks import plain

    for line in text.split("\n"):
        console.print(plain(line), style="dim", markup=False)


def _advice(console: "Console", advice: str) -> None:
    from polo.checks import plain

    if advice:
        console.print(f"  what to do: {plain(advice)}", markup=False)
