"""Options of a prover, held against the terms before anything is written."""

from polo.errors import TermsError
from polo.evidence.receipts.rules import replays
from polo.protocol.detection import MILLION
from polo.protocol.records import MAX_SHARDS, Retention, Terms
from polo.storage import delta


def checked_sigma(terms: Terms, sigma: float | None) -> int:
    """σ of the obfuscation in millionths; by default the least that the terms allow."""
    bounds = terms.noise
    if sigma is None:
        return bounds.least
    wanted = round(sigma * MILLION)
    if not bounds.least <= wanted <= bounds.most:
        raise TermsError(
            f"σ = {sigma:g} is outside the terms' bounds, {bounds.least / MILLION:g} to "
            f"{bounds.most / MILLION:g}"
        )
    return wanted


def checked_interval(check_every: int | None, *, replayed: bool) -> int | None:
    """Steps between checks; under replay a shard ends where an epoch does."""
    if checked_steps("check_every", check_every) and replayed:
        raise TermsError("check_every: under replay shards are sealed at the end of an epoch")
    return check_every


def checked_steps(name: str, steps: int | None) -> int | None:
    """A number of steps, or None.

    Args:
        name: What the option is called.
        steps: What was given.
    """
    if steps is None or (type(steps) is int and steps >= 1):
        return steps
    raise TermsError(f"{name} = {steps!r}: give a number of steps, or None")


def checked_retention(terms: Terms, kept: str | int, *, deltas: bool, live: bool) -> Retention:
    """What to keep; all of it where the terms ask for all checkpoints.

    Args:
        terms: The terms.
        kept: What the user wants to keep.
        deltas: Whether older checkpoints become deltas.
        live: Whether there are receipts, so that checkpoints can be dropped after them.
    """
    if kept == "streaming":
        if not live:
            raise TermsError(
                "retention 'streaming': offline there is no receipt to drop checkpoints after",
                advice="Use 'thin', or enrol at a registry: polo enrol --registry URL",
            )
        # Of live proofs a checkpoint goes when the receipt of the next one has come, and not
        # before: thin then means that at most two are ever there.
        kept = "thin"
    retention = _retention(kept, deltas)
    if terms.history in ("all", "after-close") and (
        retention.kind == "thin" or retention.every > 1
    ):
        raise TermsError("the terms ask for all checkpoints", advice="Keep them: retention='all'.")
    replayed = any(item.level == "replay" for item in terms.evidence)
    if replayed and not replays(terms) and (retention.kind == "thin" or retention.every > 1):
        raise TermsError(
            "steps are drawn when the proof is closed, from any shard, which takes all checkpoints",
            advice="Keep them: retention='all'.",
        )
    return retention


def _retention(kept: str | int, deltas: bool) -> Retention:
    if deltas:
        delta.require()
    if isinstance(kept, int):
        if not 1 <= kept <= MAX_SHARDS:
            raise TermsError(f"retention {kept}: keep every k-th checkpoint, k from 1")
        return Retention("every", kept, deltas)
    if kept not in ("all", "thin"):
        raise TermsError(f"retention {kept!r}: use 'all', 'thin', 'streaming', or an integer")
    return Retention(kept, 1, deltas)
