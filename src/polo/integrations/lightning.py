"""PoLO in Lightning: one callback.

    trainer = Trainer(max_epochs=9, callbacks=[
        PoloCallback("enrolment/", key="alice.key", store="proof/", evaluate=accuracy)
    ])

The proof's position travels inside Lightning's checkpoints, so `fit(ckpt_path=…)` goes on with the
proof, too; see `polo.integrations.loop` for what happens when the two differ.
"""

from pathlib import Path
from typing import Any

from polo.errors import FormatError, MissingError, TermsError
from polo.integrations.loop import Loop, Measure, View, refuse_sharding
from polo.protocol import signing
from polo.prover import Proof
from polo.prover.options import checked_steps
from polo.receipts import EnrolmentSource

try:
    from lightning.pytorch.callbacks import Callback
except ImportError as error:
    raise MissingError(
        "PoloCallback needs Lightning", advice="pip install 'polo-proof[lightning]'"
    ) from error

_SHARDING = {
    "DeepSpeedStrategy": "DeepSpeed",
    "FSDPStrategy": "FSDP",
    "ModelParallelStrategy": "model parallelism",
}


class PoloCallback(Callback):
    """Presses marks while Lightning trains, seals at the end of each epoch, and finishes.

    Lightning runs checkpoint callbacks last, so a checkpoint of the end of an epoch holds the
    sealed weights.

    Args:
        enrolment: What the issuer handed over: a folder, or the object.
        key: The prover's key: a file, or the object.
        store: The proof folder.
        evaluate: Measures the model that the terms were made for; called on sealed weights.
        every: Also try to seal after every so many of Lightning's global steps.
        optimizer: Which optimizer trains the model, where there are several.
        extend: Train on from the last sealed shard although Lightning starts anew.
        view: Makes what the terms were made for of the model, where it is no module inside it:
            by default a PEFT model's adapter, if the terms are about that.
        options: What else `polo.Prover` takes: `retention`, `deltas`, `sigma`, `on_seal`,
            `registry`, `on_outage`.
    """

    def __init__(
        self,
        enrolment: EnrolmentSource | str | Path,
        *,
        key: signing.Signer | str | Path,
        store: str | Path,
        evaluate: Measure | None = None,
        every: int | None = None,
        optimizer: int | None = None,
        extend: bool = False,
        view: View | None = None,
        **options: Any,
    ) -> None:
        self._every, self._optimizer = checked_steps("every", every), optimizer
        self._checked = 0
        self._loaded: Any = None
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

    def state_dict(self) -> dict[str, Any]:
        """What Lightning keeps of this callback in its checkpoints."""
        return {"position": self._loop.position()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take up what a checkpoint holds; the model is looked at when training starts."""
        if not isinstance(state_dict, dict):
            raise FormatError(
                "what the checkpoint holds of PoloCallback is not what PoloCallback saved",
                advice="Restore another checkpoint.",
            )
        self._loaded = state_dict.get("position")

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """Forget what an earlier call of Lightning has loaded."""
        del trainer, pl_module, stage
        self._loaded = None

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Attach; model, optimizers and counters are restored by now."""
        strategy = _SHARDING.get(type(trainer.strategy).__name__, "")
        refuse_sharding(strategy, bool(strategy))
        restored, loaded = trainer.ckpt_path is not None, self._loaded
        self._loaded = None
        self._checked = trainer.global_step
        self._loop.begin(
            pl_module,
            self._chosen(trainer.optimizers),
            restored=restored,
            position=loaded if restored else None,
            made=trainer.global_step,
        )

    def on_train_batch_end(self, trainer: Any, *args: Any) -> None:
        """Seal in the middle of an epoch, if that was asked for."""
        del args
        if not self._every or trainer.global_step // self._every == self._checked // self._every:
            return
        self._checked = trainer.global_step
        self._loop.check(trainer.global_step)

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        """Seal."""
        del pl_module
        self._loop.end_epoch(trainer.global_step)

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        """Close the proof; other callbacks may have put other weights in, so nothing is sealed."""
        del trainer, pl_module
        self._loop.finish()

    def on_fit_end(self, trainer: Any, pl_module: Any) -> None:
        """Close the proof of a run that was over when it was restored: nothing was started then."""
        if self._loaded is not None:
            self.on_train_start(trainer, pl_module)
            self._loop.finish()

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        """Let go of the store; the proof can be resumed, also from a checkpoint of this moment."""
        del trainer, pl_module, exception
        self._loop.break_off()

    def _chosen(self, optimizers: list[Any]) -> Any:
        known = range(len(optimizers))
        if self._optimizer not in known and (self._optimizer is not None or len(known) != 1):
            raise TermsError(
                f"there are {len(optimizers)} optimizers, and PoLO follows one",
                advice="Say which one trains the model: PoloCallback(..., optimizer=0).",
            )
        return optimizers[self._optimizer or 0]
