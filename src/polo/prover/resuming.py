"""Beginning a proof with its W_0, and going on from the last sealed shard."""

import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from polo.errors import StoreError
from polo.privacy import obfuscation
from polo.protocol.records import Enrolment, Manifest, Start
from polo.prover.position import Position
from polo.prover.starting import check_start
from polo.prover.training import Training
from polo.storage import state
from polo.storage.folder import ProofFolder
from polo.storage.writer import ProofWriter
from polo.weights.checkpoint import checkpoint_of
from polo.weights.finite import check_new
from polo.weights.hashing import commit
from polo.weights.loading import load_into

logger = logging.getLogger("polo.prover")


def begin(
    training: Training,
    writer: ProofWriter,
    enrolment: Enrolment,
    parent: str | Path | None,
) -> None:
    """Begin a proof with the weights that training starts from.

    Args:
        training: The model and its optimizer.
        writer: The store.
        enrolment: The enrolment.
        parent: The proof or file that the model was bought as, to name what differs.
    """
    check_new(training.model)
    checkpoint = checkpoint_of(training.model)
    commitment = commit(checkpoint)
    check_start(enrolment, commitment, training.model, parent)
    root = commitment.root
    secret = obfuscation.secret_of(writer.secret, 1)
    start = Start(root, obfuscation.secret_commitment(secret), None)
    manifest = Manifest(enrolment, start, (), writer.retention, (), False, 0, None)
    state.write_state(writer.training_state(0), training.state(root, 0))
    writer.begin(manifest, checkpoint.layout, checkpoint)


@dataclass(frozen=True)
class Stand:
    """Where training goes on.

    Attributes:
        epochs: Epochs of the shard that is not sealed yet.
        steps: Its optimizer steps.
        total: Optimizer steps of the whole chain.
        behind: Steps of sealed shards that somebody else's checkpoint had not seen.
    """

    epochs: int
    steps: int
    total: int
    behind: int


def resume(
    training: Training, writer: ProofWriter, position: Position | None, *, recorded: bool
) -> Stand:
    """Go on from the position if nothing was sealed since, else from the last sealed shard.

    Args:
        training: The model and its optimizer.
        writer: The store, which holds a proof.
        position: Where the proof stood when somebody else saved what model and optimizer hold.
        recorded: Whether steps are recorded for replay, so that the state must be exact.
    """
    manifest = writer.manifest
    assert manifest is not None
    _check_secret(writer, manifest)
    since = position.sealed_since(manifest) if position else 0
    # Under replay a shard must have been recorded from its beginning.
    if position and not since and not recorded:
        if position.is_of(training.model):
            return Stand(position.epochs, position.steps, position.total, 0)
        logger.warning(
            "the checkpoint that was restored did not bring the weights of shard %d back; the "
            "proof does",
            len(manifest.shards),
        )
    total, behind = _put_back(training, writer, manifest, recorded=recorded), 0
    if position and since:
        behind = position.steps_since(manifest)
        logger.warning(
            "the checkpoint that was restored is older than shard %d of the proof by %d steps: "
            "weights and optimizer come from that shard",
            len(manifest.shards), behind,
        )  # fmt: skip
    return Stand(0, 0, total, behind)


def _put_back(
    training: Training, writer: ProofWriter, manifest: Manifest, *, recorded: bool
) -> int:
    """Put weights, optimizer and generators back to the last sealed shard; returns its steps."""
    shard, root = len(manifest.shards), manifest.last_root
    with ProofFolder(writer.path).checkpoint(shard, training.carrier.layout) as checkpoint:
        if commit(checkpoint).root != root:
            raise StoreError(
                f"the stored weights of shard {shard} are damaged", place=str(writer.path)
            )
        load_into(training.model, checkpoint, check=True)
    path = writer.training_state(shard)
    if path.exists():
        return _restore(training, _read(path), path, root)
    if recorded:
        raise StoreError(
            "the optimizer's state is not beside the proof any more; under replay training "
            "cannot go on without it",
            place=str(path),
            advice="Bring that folder back, or start a new proof.",
        )
    logger.warning("no training state beside the proof: optimizer and generators are new")
    return 0


def _restore(training: Training, saved: dict[str, Any], path: Path, root: bytes) -> int:
    """Put optimizer, further objects and generators back; returns the steps made."""
    if saved["root"] != root.hex():
        raise StoreError(
            "this training state belongs to another run",
            place=str(path),
            advice="Bring the right state folder back, or remove this file to go on without.",
        )
    _load_optimizer(training, saved["optimizer"], path)
    for name, item in training.also.items():
        if name in saved["also"]:
            _load(repr(name), item, saved["also"][name], path)
        else:
            logger.warning("%r was not saved beside the proof: it stays as it is", name)
    try:
        state.restore_random(saved["random"])
    except (KeyError, TypeError, ValueError, RuntimeError, AttributeError) as error:
        raise _damaged(path) from error
    steps: int = saved["steps"]
    return steps


def _read(path: Path) -> dict[str, Any]:
    """What `Training.state` returned, as far as its outline goes."""
    saved = state.read_state(path)
    kinds = {"root": str, "optimizer": dict, "also": dict, "random": dict, "steps": int}
    if not isinstance(saved, dict) or any(
        not isinstance(saved.get(name), kind) for name, kind in kinds.items()
    ):
        raise _damaged(path)
    return saved


def _damaged(path: Path) -> StoreError:
    return StoreError(
        "the saved training state is damaged",
        place=str(path),
        advice="Bring the right state folder back, or remove this file to go on without.",
    )


def _load_optimizer(training: Training, saved: Any, path: Path) -> None:
    optimizer = training.optimizer
    # Loading may add to the defaults, and schedulers have added to the groups.
    wanted = optimizer.defaults.keys() & optimizer.param_groups[0].keys()
    _load("the optimizer", training.stateful, saved, path)
    if any(wanted - group.keys() for group in optimizer.param_groups):
        raise _other_kind("the optimizer", path)


def _load(what: str, item: Any, saved: Any, path: Path) -> None:
    try:
        item.load_state_dict(saved)
    except Exception as error:
        # Whatever an object of the user's finds wrong with the state of another kind.
        raise _other_kind(what, path) from error


def _other_kind(what: str, path: Path) -> StoreError:
    return StoreError(
        f"what was saved of {what} does not fit the one that was given to attach()",
        place=str(path),
        advice="Make it as in the run that is resumed: same class, same groups of parameters. To "
        "go on with a new one, remove this file; the sealed shards are safe.",
    )


def _check_secret(writer: ProofWriter, manifest: Manifest) -> None:
    """Refuse to go on with another secret than the chain has committed to."""
    sealed = manifest.shards
    promised = sealed[-1].noise.next_secret if sealed else manifest.start.secret
    secret = obfuscation.secret_of(writer.secret, len(sealed) + 1)
    if obfuscation.secret_commitment(secret) != promised:
        raise StoreError(
            "the secret that this proof was begun with is not here any more",
            place=str(writer.state_path),
            advice="Bring that folder back; without it the proof stands but cannot go on.",
        )
