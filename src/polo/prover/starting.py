"""Where a chain starts: the weights must be those that the terms name, if they name any."""

from pathlib import Path

from polo.errors import PoloError, WeightsError
from polo.protocol.records import Terms
from polo.storage.model import Fitted, last_checkpoint
from polo.weights.hashing import Commitment, commit, diff


def check_start(terms: Terms, start: Commitment, parent: str | Path | None) -> None:
    """Refuse weights that are not the parent that the terms name.

    Args:
        terms: The terms.
        start: What the model holds now.
        parent: The proof or file that the model was bought as, to name what differs.
    """
    wanted = terms.start.parent
    if wanted is None or start.root == wanted:
        return
    raise WeightsError(
        f"the terms name the model to start from, and this is not it{_difference(start, parent)}",
        advice="Load the model you bought, and change nothing: polo.load_weights(model, PROOF)",
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
