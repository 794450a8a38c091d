"""PoLO in an Accelerate loop: `prepare` as ever, and `attached` instead of `Prover.attach`.

    prover = polo.Prover("enrolment/", key="alice.key", store="proof/")
    with attached(prover, accelerator, model, optimizer, resume_from=newest):
        for epoch in range(prover.epoch, epochs):
            train_one_epoch(...)
            prover.end_epoch(evaluate=lambda: accuracy(model))
            accelerator.save_state(f"state-{epoch}")
    proof = prover.finish()

A loop that does not use `save_state` needs none of this: `Prover.attach` takes what `prepare`
returns, and the proof keeps optimizer, schedulers (`also`) and random generators by itself.
"""

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from polo.errors import ChainError, FormatError, MissingError
from polo.integrations.loop import module_for, refuse_sharding, unmarked_position
from polo.prover import Prover
from polo.prover.position import Position
from polo.prover.sealing import Evaluate
from polo.storage import atomic
from polo.weights.files import open_plain

try:
    from accelerate import DistributedType
except ImportError as error:
    raise MissingError(
        "this needs Accelerate", advice="pip install 'polo-proof[accelerate]'"
    ) from error

POSITION = "polo.json"
"""The proof's position, in each folder that `save_state` writes."""

_MOST_BYTES = 4096


@contextmanager
def attached(
    prover: Prover,
    accelerator: Any,
    model: Any,
    optimizer: Any,
    *,
    evaluate: Evaluate | None = None,
    also: Mapping[str, Any] | None = None,
    parent: str | Path | None = None,
    resume_from: str | Path | None = None,
) -> Iterator[None]:
    """Attach to what `prepare` returned, and keep the proof's position in saved states.

    Without `resume_from` a proof in the store is resumed from its last sealed shard. With it the
    state is loaded, and goes on as it is if nothing was sealed since; if something was, the last
    sealed shard is put back. Either way `prover.epoch` says where to go on.

    Args:
        prover: The prover.
        accelerator: The `Accelerator`.
        model: The model, as prepared.
        optimizer: The optimizer, as prepared.
        evaluate: Measures the sealed weights, unless `end_epoch` brings its own.
        also: Further objects with `state_dict`: schedulers, as prepared.
        parent: The proof or file that the model was bought as.
        resume_from: A folder that `save_state` wrote; it is loaded here, not before.
    """
    for kind in (DistributedType.FSDP, DistributedType.DEEPSPEED, DistributedType.MEGATRON_LM):
        refuse_sharding(str(kind.value), accelerator.distributed_type == kind)
    found = module_for(accelerator.unwrap_model(model), prover.terms, optimizer)
    position = None
    if resume_from is not None:
        saved = _read(Path(resume_from))
        accelerator.load_state(str(resume_from))
        position = saved or unmarked_position(prover, found)
    hooks = (
        accelerator.register_save_state_pre_hook(
            lambda models, weights, folder: _write(Path(folder), prover)
        ),
        accelerator.register_load_state_pre_hook(_refuse_loading),
    )
    try:
        with prover.attach(
            found, optimizer, evaluate=evaluate, also=also, parent=parent, position=position
        ):
            yield
    finally:
        for hook in hooks:
            hook.remove()


def _write(folder: Path, prover: Prover) -> None:
    with atomic.replacing(folder / POSITION) as file:
        file.write(json.dumps(prover.position().to_json()).encode())


def _read(folder: Path) -> Position | None:
    path = folder / POSITION
    if not path.exists():
        return None
    with open_plain(path) as file:
        text = file.read(_MOST_BYTES)
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise FormatError(f"is no position of a proof: {error}", place=str(path)) from error
    return Position.from_json(value, str(path))


def _refuse_loading(models: Any, folder: str) -> None:
    del models
    raise ChainError(
        "load_state() would change the model under the prover's hands",
        place=folder,
        advice="Give the folder to attached(..., resume_from=FOLDER), which loads it.",
    )
