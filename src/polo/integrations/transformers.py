"""PoLO in the Transformers `Trainer`: one callback.

    trainer = Trainer(model=model, args=args, train_dataset=data, callbacks=[
        PoloCallback("enrolment/", key="alice.key", store="proof/", evaluate=accuracy)
    ])

The proof's position travels inside `trainer_state.json`, so `resume_from_checkpoint` goes on with
the proof, too; see `polo.integrations.loop` for what happens when the two differ.
"""

from pathlib import Path
from typing import Any

from polo.errors import ChainError, FormatError, MissingError, TermsError
from polo.integrations.loop import Loop, Measure, View, refuse_sharding
from polo.protocol import signing
from polo.prover import Progress, Proof
from polo.prover.options import checked_steps
from polo.receipts import EnrolmentSource

try:
    from transformers import TrainerCallback
    from transformers.trainer_callback import ExportableState
except ImportError as error:
    raise MissingError(
        "PoloCallback needs Transformers and Accelerate",
        advice="pip install 'polo-proof[transformers]'",
    ) from error


class PoloCallback(TrainerCallback, ExportableState):
    """Presses marks while a `Trainer` trains, seals at the end of each epoch, and finishes.

    After a sealed shard the Trainer is asked to save, unless its `save_strategy` is `no`: its
    newest checkpoint is then the sealed shard.

    Args:
        enrolment: What the issuer handed over: a folder, or the object.
        key: The prover's key: a file, or the object.
        store: The proof folder.
        evaluate: Measures the model that the terms were made for; called on sealed weights.
        every: Also try to seal after every so many of the Trainer's steps.
        extend: Train on from the last sealed shard although the Trainer starts anew.
        view: Makes what the terms were made for of the model, where it is no module inside it:
            by default a PEFT model's adapter, if the terms are about that.
        options: What else `polo.Prover` takes: `retention`, `deltas`, `sigma`, `on_seal`,
            `registry`, `on_outage`.
    """

    def __init__(
        self,
        enrolment: EnrolmentSource | str | Path | None,
        *,
        key: signing.Signer | str | Path | None,
        store: str | Path | None,
        evaluate: Measure | None = None,
        every: int | None = None,
        extend: bool = False,
        view: View | None = None,
        **options: Any,
    ) -> None:
        # `state` hands out None, which the Trainer calls this with if it makes callbacks anew.
        if enrolment is None or key is None or store is None:
            raise TermsError(
                "PoloCallback needs an enrolment, a key and a store, and cannot be made anew from "
                "a checkpoint",
                advice="Leave restore_callback_states_from_checkpoint off: the proof finds its "
                "place by itself.",
            )
        self._every = checked_steps("every", every)
        self._loop = Loop(
            enrolment,
            key=key,
            store=store,
            evaluate=evaluate,
            extend=extend,
            view=view,
            options=options,
        )

    @property
    def proof(self) -> Proof | None:
        """The finished proof, once training has ended."""
        return self._loop.proof

    def close(self) -> None:
        """Let go of the store after training was broken off; the proof can be resumed."""
        self._loop.close()

    def state(self) -> dict[str, Any]:
        """What the Trainer keeps of this callback in its checkpoints."""
        nothing = {"enrolment": None, "key": None, "store": None}
        return {"args": nothing, "attributes": {"position": self._loop.position()}}

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Attach to the Trainer's model and optimizer."""
        del control
        refuse_sharding("DeepSpeed", bool(getattr(args, "deepspeed", None)))
        refuse_sharding("FSDP", bool(getattr(args, "fsdp", None)))
        saved = state.stateful_callbacks.get(type(self).__name__)
        if isinstance(saved, list):
            raise ChainError(
                "this Trainer has several PoloCallbacks, or its checkpoint had",
                advice="One run, one proof: give the Trainer one PoloCallback.",
            )
        # Without a checkpoint the entry is this callback's own, and tells of an earlier run.
        restored = state.global_step > 0
        self._loop.begin(
            kwargs["model"],
            kwargs["optimizer"],
            restored=restored,
            position=_saved_position(saved) if restored else None,
            made=state.global_step,
        )
        # A checkpoint from before this callback has no such entry, and saving asks for it.
        state.stateful_callbacks[type(self).__name__] = self.state()

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> Any:
        """Seal in the middle of an epoch, if that was asked for."""
        del kwargs
        if self._every and state.global_step % self._every == 0:
            return _save_after(self._loop.check(state.global_step), args, control)
        return control

    def on_epoch_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> Any:
        """Seal."""
        del kwargs
        return _save_after(self._loop.end_epoch(state.global_step), args, control)

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Close the proof; by now the model may hold the best checkpoint, so nothing is sealed."""
        del args, state, control, kwargs
        self._loop.finish()


def _saved_position(saved: Any) -> Any:
    """What a checkpoint holds of `PoloCallback.state`; None if it was saved without a proof."""
    if saved is None:
        return None
    try:
        return saved["attributes"]["position"]
    except (TypeError, KeyError, IndexError) as error:
        raise FormatError(
            "what the checkpoint holds of PoloCallback is not what PoloCallback saved",
            place="trainer_state.json",
            advice="Restore another checkpoint.",
        ) from error


def _save_after(progress: Progress | None, args: Any, control: Any) -> Any:
    """Have the Trainer save what was just sealed."""
    if progress and progress.sealed and args.save_strategy != "no":
        control.should_save = True
    return control
