"""What `polo validate` advises for a model, and what forging costs it."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from polo.errors import MissingError, WeightsError

if TYPE_CHECKING:
    import torch
    from rich.console import Console

    from polo.embedding.forging import Hardness
    from polo.protocol.layout import Layout
    from polo.protocol.records import Terms
    from polo.tasks import Task
    from polo.watermark.advice import Advice
    from polo.watermark.capacity import Capacity

HARDLY = (
    "forging costs this model nothing: ask for replay (polo enrol --data) or for live receipts; "
    "the chain alone shows no effort"
)


def capacities(subject: "torch.nn.Module | Layout") -> "dict[str, Capacity]":
    """What a model can carry of every built-in scheme, in blocks of the scheme's own size."""
    from polo import enrolment
    from polo.protocol.layout import Layout
    from polo.watermark.capacity import capacity
    from polo.watermark.schemes import SCHEMES

    if isinstance(subject, Layout):
        return {
            name: capacity(subject, block=scheme.defaults.block, scheme=name)
            for name, scheme in SCHEMES.items()
        }
    return {name: enrolment.capacity_of(subject, scheme=name) for name in SCHEMES}


def trained(task: "Task", file: Path) -> "torch.nn.Module":
    """A task's model with the weights of a file."""
    from polo.storage.model import Fitted
    from polo.weights.checkpoint import checkpoint_of
    from polo.weights.files import FileCheckpoint
    from polo.weights.loading import load_into

    model = task.build_model()
    with FileCheckpoint.any(file) as checkpoint:
        try:
            load_into(model, Fitted(checkpoint, checkpoint_of(model).layout, str(file)))
        except WeightsError as error:
            raise WeightsError(
                f"is not of a model of the task {task.name!r}: {error.message}",
                place=error.place,
                advice="Give the task that it was trained for, as safetensors with all tensors.",
            ) from error
    return model


def forging_in(file: Path, terms: "Terms") -> "Hardness | None":
    """What forging does to the weights of a file; None without torch."""
    from polo.weights.files import FileCheckpoint

    try:
        from polo.embedding.forging import edits
    except ImportError:
        return None
    with FileCheckpoint.any(file) as checkpoint:
        return edits(checkpoint, terms)


def forging_of(task: "Task", model: "torch.nn.Module", terms: "Terms") -> "Hardness":
    """What forging one mark costs a trained model."""
    try:
        from polo.embedding.forging import hardness
    except ImportError as error:
        raise MissingError(
            "measuring a model needs torch", advice="pip install 'polo-proof[torch]'"
        ) from error
    return hardness(model, terms, evaluate=lambda: task.evaluate(model))


def advice_json(advice: "Advice | None") -> dict[str, Any] | None:
    """Advice as JSON."""
    if advice is None:
        return None
    return {
        "scheme": advice.scheme,
        "bits": advice.bits,
        "load": advice.load / 1e6,
        "block": advice.block,
        "share": advice.share,
        "reasons": list(advice.reasons),
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
    """Say what suits the model, and why."""
    if advice is None:
        console.print("\n[bold]advice:[/] no scheme's marks fit into this model")
        return
    console.print(
        f"\n[bold]advice:[/] scheme {advice.scheme}, {advice.bits} bits at a load of "
        f"{advice.load / 1e6:g}, blocks of {advice.block}: {advice.share:.1%} of the carrier"
    )
    for reason in advice.reasons:
        console.print(f"    {reason}")


def print_forging(console: "Console", found: "Hardness") -> None:
    """Say what a forger's edit does."""
    console.print(
        f"\n[bold]forging[/] one mark, without data or training, moves the marked weights by "
        f"{found.whole.edit:.0%} to turn every bit and by {found.least.edit:.0%} to turn enough of "
        "them for a verifier"
    )
    if found.before is None:
        console.print("what that does to accuracy: polo validate --task TASK --model FILE")
        return
    console.print(
        f"    measured: {found.before:.4f} before, {found.whole.metric:.4f} with every bit turned, "
        f"{found.least.metric:.4f} with enough of them"
    )
    if found.free:
        console.print(f"    [yellow]{HARDLY}[/]")
    elif not found.least.accepted:
        console.print("    no such edit made a mark that a verifier would accept")
    else:
        assert found.lost is not None
        console.print(
            f"    a forger gives up {100 * found.lost:.1f} points for each mark; whoever can pay "
            "that in accuracy can forge"
        )
