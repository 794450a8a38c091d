"""`polo verify` and `polo show`."""

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Parameter

from polo.cli.devices import checked_device
from polo.cli.output import Flag, print_json, progress_bar, size
from polo.cli.tasks import load_task
from polo.errors import StoreError

if TYPE_CHECKING:
    from polo.protocol.challenge import Challenge
    from polo.protocol.records import Bundle, Manifest


def verify(
    proof: Path,
    /,
    *,
    trust: Annotated[list[Path] | None, Parameter(negative="")] = None,
    task: str | None = None,
    accuracy: Literal["all", "sample", "none"] = "all",
    model: Path | None = None,
    whole: Flag = False,
    final_only: Flag = False,
    challenge: Path | None = None,
    answer: Path | None = None,
    device: str | None = None,
    report: Path | None = None,
    json: Flag = False,
) -> int:
    """Check a proof offline and explain the verdict.

    Examples:
    polo verify proof --trust issuer.pub

    polo verify proof --model delivered.safetensors --report report.html

    polo verify bob.polo --trust issuer.pub

    polo verify proof --trust issuer.pub --challenge challenge.json --answer answer

    Exit code 0 accepted, 1 rejected, 2 could not decide.

    Parameters
    ----------
    proof
        The proof folder, or a bundle.
    trust
        Public key of an issuer to trust, besides those in your trust store. May be repeated.
    task
        The task, if it is not the registered one that the terms name: a name, or module:object.
    accuracy
        Which checkpoints to test: all, a random sample, or none.
    model
        A delivered model (safetensors): is it exactly what the proof ends in?
    final_only
        Look only for all marks in the final model (or --model): ownership, and nothing else.
    whole
        Accept only a whole proof; a disclosure then cannot be decided.
    challenge
        What you drew with polo challenge, where the terms ask for replay.
    answer
        The prover's answer to it. Without one the challenge counts as failed.
    device
        Where to run drawn segments again: cpu or cuda; by default where they were trained.
    report
        Write the verdict as a web page.
    json
        Print JSON.
    """
    from polo.keys import Trust, TrustStore
    from polo.verifier import Policy
    from polo.verifier import verify as run

    if report and report.resolve().is_relative_to(proof.resolve()):
        raise StoreError(
            "a report inside the proof would be a file that nobody signed",
            place=str(report),
            advice="Write it somewhere else.",
        )
    if report and (report.is_dir() or not report.absolute().parent.is_dir()):
        raise StoreError(
            "is a folder, no file" if report.is_dir() else "is in a folder that does not exist",
            place=str(report),
            advice="Give a file to write, in a folder that exists: --report report.html",
        )
    if answer and not challenge:
        raise StoreError(
            "an answer without the challenge that it answers",
            place=str(answer),
            advice="Give the file that you drew, too: --challenge challenge.json.",
        )
    trusted: list[Trust] = [TrustStore(), *(trust or [])]
    with progress_bar() as tell:
        verdict = run(
            proof,
            trust=trusted,
            task=load_task(task) if task else None,
            policy=Policy(
                accuracy, whole=whole, final_only=final_only, device=checked_device(device)
            ),
            model=model,
            challenge=_challenge(challenge),
            answer=answer,
            listener=tell,
        )
    if json:
        print_json(verdict.to_json())
    else:
        from rich.console import Console

        from polo.verifier.terminal import show as show_verdict

        show_verdict(verdict, Console(highlight=False))
    if report:
        from polo.verifier.report import render

        report.write_text(render(verdict), encoding="utf-8")
        if not json:
            print(f"report: {report}")
    return int(verdict.outcome)


def _challenge(path: Path | None) -> "Challenge | None":
    if path is None:
        return None
    from polo.evidence.replay.challenge import load

    return load(path)


def show(proof: Path, /, *, json: Flag = False) -> None:
    """Show what a proof says, without checking it.

    Example: polo show proof

    Parameters
    ----------
    proof
        The proof folder, or a bundle.
    json
        Print JSON.
    """
    from polo.storage.bundle import glance

    bundle, manifest = glance(proof)
    if json:
        print_json(manifest.to_json())
        return
    from rich.console import Console

    console = Console(highlight=False)
    console.print("[yellow]nothing here is checked; polo verify does that[/]\n")
    for name, value in _facts(manifest, bundle).items():
        console.print(f"{name:<10} {value}", markup=False, soft_wrap=True)
    console.print(_table(manifest))


def _facts(manifest: "Manifest", bundle: "Bundle | None") -> dict[str, str]:
    from polo.protocol.records import identity_of
    from polo.verifier.verdict import described

    terms = manifest.terms
    issued = time.strftime("%Y-%m-%d", time.gmtime(min(manifest.enrolment.issued, 2**35)))
    stored = sum(file.size for file in manifest.files)
    state = "closed" if manifest.finished else "not closed"
    part = {"shown": described(bundle, len(manifest.shards))} if bundle else {}
    return {
        **part,
        "identity": identity_of(manifest.enrolment.identity).hex(),
        "issuer": f"{identity_of(manifest.enrolment.issuer).hex()}, {issued}",
        "task": f"{terms.task.name}, version {terms.task.version}",
        "scheme": f"{terms.scheme.name}, {terms.scheme.bits} bits, {terms.scheme.key} keys",
        "evidence": ", ".join(item.level for item in terms.evidence),
        "kept": f"{manifest.retention.kind}, {len(manifest.files)} files, {size(stored)}",
        "shards": f"{len(manifest.shards)} of at most {terms.shards.most}, {state}",
    }


def _table(manifest: "Manifest") -> Any:
    from rich.table import Table

    metric = manifest.terms.task.metric
    table = Table("shard", "epochs", "steps", "bits read", metric, "root", box=None)
    for shard in manifest.shards:
        claimed = shard.metrics.get(metric)
        table.add_row(
            str(shard.shard),
            str(shard.epochs),
            str(shard.steps),
            f"{shard.matches}/{manifest.terms.scheme.bits}",
            "–" if claimed is None else f"{claimed / 1e6:.4f}",
            shard.root.hex()[:16] + "…",
        )
    return table
