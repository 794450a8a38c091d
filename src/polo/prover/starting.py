"""Where a chain starts: the weights must be those that the terms ask for, if they ask for any."""

from pathlib import Path

import torch

from polo.errors import PoloError, WeightsError
from polo.evidence.start import drawn, start_seed
from polo.protocol.records import Enrolment
from polo.storage.model import Fitted, last_checkpoint
from polo.weights.hashing import Commitment, commit, diff


def check_start(
    enrolment: Enrolment, start: Commitment, model: torch.nn.Module, parent: str | Path | None
) -> None:
    """Refuse weights that are not the drawn start, or not the parent, that the terms ask for.

    Args:
        enrolment: The terms, and what a drawn start is drawn from.
        start: What the model holds now.
        model: The model.
        parent: The proof or file that the model was bought as, to name what differs.
    """
    wanted = enrolment.terms.start
    if wanted.kind == "derived":
        _check_drawn(enrolment, start, model)
    if wanted.parent is None or start.root == wanted.parent:
        return
    raise WeightsError(
        f"the terms name the model to start from, and this is not it{_difference(start, parent)}",
        advice="Load the model you bought, and change nothing: polo.load_weights(model, PROOF)",
    )


def _check_drawn(enrolment: Enrolment, start: Commitment, model: torch.nn.Module) -> None:
    there = commit(drawn(model, start_seed(enrolment)))
    if there.root != start.root:
        raise WeightsError(
            "the terms ask for the start that is drawn from the enrolment, and this is not it: "
            f"{diff(start, there)[0]} differs",
            advice="Before attach: polo.draw_start(model, enrolment), and change nothing after it.",
        )


def _difference(start: Commitment, parent: str | Path | None) -> str:
    """Where it differs from the parent, as the end of a sentence."""
    if parent is None:
        return ""
    try:
        with last_checkpoint(parent) as checkpoint:
            there = commit(Fitted(checkpoint, start.layout, str(parent)))
    except PoloError as error:
        return f" ({error})"
    differing = diff(start, there)
    return f": {differing[0]} differs" if differing else f"; nor is {parent}"
