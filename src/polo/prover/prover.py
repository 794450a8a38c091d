"""The object a trainer holds."""

import contextlib
import logging
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

import torch

from polo.checks import counted
from polo.client.enrolled import LiveEnrolment, load_enrolment
from polo.errors import (
    ChainError,
    DistrustError,
    RegistryError,
    SignatureError,
    StoreError,
    TermsError,
)
from polo.evidence.receipts.rules import replays
from polo.evidence.replay.data import DataSource
from polo.evidence.replay.order import Sampler
from polo.evidence.replay.recipe import Recipe
from polo.keys import Identity
from polo.protocol import signing
from polo.protocol.records import Shard
from polo.prover import resuming
from polo.prover.answering import Answering, task_for
from polo.prover.attachment import Attachment
from polo.prover.current import CurrentShard
from polo.prover.monitor import EmbeddingWarning
from polo.prover.options import checked_interval, checked_retention, checked_sigma
from polo.prover.position import Position
from polo.prover.receiving import ReceiptWarning, Receiving
from polo.prover.recording import recording_of
from polo.prover.results import Progress, Proof, Timings
from polo.prover.sealing import Evaluate
from polo.prover.shards import Sealer
from polo.prover.training import Training, refuse_several_ranks
from polo.receipts import EnrolmentSource
from polo.storage.folder import ProofFolder
from polo.storage.writer import ProofWriter
from polo.tasks import Task
from polo.weights.checkpoint import checkpoint_of
from polo.weights.hashing import commit

logger = logging.getLogger("polo.prover")


class Prover:
    """Presses a chain of marks into a model while the user trains it.

        prover = polo.Prover("enrolment/", key="alice.key", store="proof/")
        with prover.attach(model, optimizer):
            for epoch in range(prover.epoch, epochs):
                train_one_epoch(...)
                prover.end_epoch(evaluate=lambda: accuracy(model))
        proof = prover.finish()

    Nothing is wrapped: a hook on the optimizer adds the mark's gradient. If the store holds a
    proof already, `attach` puts model, optimizer and random generators back to its last sealed
    shard, and `epoch` says how many epochs are done.

    Attributes:
        behind: Steps of sealed shards that a framework's checkpoint had not seen when `attach` put
            the model on from it to the last sealed shard.

    Args:
        enrolment: What the issuer handed over: a folder, or the object.
        key: The prover's key: a file, or the object.
        store: The proof folder. What is private lies beside it in `<store>.state`.
        retention: Checkpoints to keep: `all`, an integer k for every k-th, or `thin` for
            openings and the last one; with a registry `streaming`, which is thin, each kept until
            the receipt of the next one has come.
        deltas: Store older checkpoints as lossless deltas.
        sigma: σ of the obfuscation relative to a tensor's root mean square; by default the
            least that the terms allow.
        check_every: Also try to seal every so many optimizer steps. What is saved then is the
            state inside the step, before a scheduler or scaler moves on; resuming is exact to
            the bit only for shards sealed at the end of an epoch.
        on_seal: Called with each sealed shard's record.
        data: The training data, where the terms ask for replay; batches then come from `sampler`
            and learning rates from the terms.
        registry: Address of the registry, if it is another than the enrolment names.
        task: The task, where a registry may draw steps while the chain grows: they are run again
            before the receipt comes. By default the registered one that the terms name.
        on_outage: While a registry's receipt is missing: `go on` training without a mark, `wait`
            for it, or `stop` with an error once the registry cannot be reached. Under replay the
            order of samples comes with the receipt, so that going on means to wait.
    """

    def __init__(
        self,
        enrolment: EnrolmentSource | str | Path,
        *,
        key: signing.Signer | str | Path,
        store: str | Path,
        retention: str | int = "all",
        deltas: bool = False,
        sigma: float | None = None,
        check_every: int | None = None,
        on_seal: Sequence[Callable[[Shard], None]] = (),
        data: DataSource | None = None,
        task: Task | None = None,
        registry: str | None = None,
        on_outage: str = "go on",
    ) -> None:
        if isinstance(enrolment, (str, Path)):
            enrolment = load_enrolment(enrolment)
        signer = Identity.load(key) if isinstance(key, (str, Path)) else key
        self.enrolment = enrolment.record
        self.terms = self.enrolment.terms
        if signer.public_key != self.enrolment.identity:
            raise SignatureError(
                "this key is not the one that was enrolled",
                advice="Use the key whose .pub file the issuer got. If it is lost, nobody can go "
                "on with the proof; see Keys in docs/threat-model.md.",
            )
        self.timings = Timings()
        self.behind = 0
        self.on_seal = list(on_seal)
        self._nonces = enrolment.source(signer, registry)
        noise = checked_sigma(self.terms, sigma)
        self._recording = recording_of(self.terms, data)
        every = checked_interval(check_every, replayed=self._recording is not None)
        live = self.enrolment.nonces.kind == "live"
        replaying = task_for(self.terms, task) if replays(self.terms) else None
        kept = checked_retention(self.terms, retention, deltas=deltas, live=live)
        self._writer = ProofWriter(store, signer, kept)
        if isinstance(enrolment, LiveEnrolment):
            enrolment.remember(self._writer.state_path, registry)
        self._receiving = Receiving(
            self._nonces,
            self._writer,
            on_outage=on_outage,
            needed=self._recording is not None,
            answering=Answering(self._writer.path, replaying, data, signer)
            if replaying and data
            else None,
        )
        self._sealer = Sealer(self.terms, self._writer, self._recording, noise)
        self._current = CurrentShard(
            self.enrolment,
            self._writer,
            self._receiving,
            self._recording,
            self._sealer,
            timings=self.timings,
            check_every=every,
            on_seal=self.on_seal,
        )
        self._training: Training | None = None
        self._failed = self._started = self._finished = False
        manifest = self._writer.manifest
        if manifest and manifest.enrolment != self.enrolment:
            self._writer.close()
            raise StoreError(
                "holds a proof under another enrolment",
                place=str(store),
                advice="Give this run a store of its own.",
            )

    @property
    def begun(self) -> bool:
        """Whether the store holds a proof, with or without sealed shards."""
        return self._writer.manifest is not None

    @property
    def shards(self) -> int:
        """Number of sealed shards."""
        return self._current.sealed

    @property
    def epoch(self) -> int:
        """Epochs done: those of the sealed shards and of the current one."""
        return self._current.epoch

    @property
    def steps(self) -> int:
        """Optimizer steps of the current shard."""
        return self._current.steps

    @property
    def sampler(self) -> Sampler:
        """The order of samples that the terms fix, as `batch_sampler` of a DataLoader.

        Each pass over it is one epoch. Only terms that ask for replay have one.
        """
        if self._recording is None:
            raise TermsError("the terms do not ask for replay, so any order of samples will do")
        return self._recording.sampler

    @property
    def recipe(self) -> Recipe:
        """How the terms fix every step; `recipe.optimizer(model)` makes the optimizer.

        Only terms that ask for replay have one.
        """
        if self._recording is None:
            raise TermsError("the terms do not ask for replay, so any optimizer will do")
        return self._recording.recipe

    def attach(
        self,
        model: torch.nn.Module,
        optimizer: torch.optim.Optimizer,
        *,
        evaluate: Evaluate | None = None,
        also: Mapping[str, Any] | None = None,
        parent: str | Path | None = None,
        position: Position | None = None,
    ) -> "Attachment":
        """Hook into an optimizer; begins or resumes the proof the first time.

        Calling it again moves the hook to the model and optimizer given, for instance after
        they were copied, and keeps the shard as it is; refused if the weights are not those that
        the last step led to which the prover saw.

        Args:
            model: The model.
            optimizer: The optimizer that trains it.
            evaluate: Measures the sealed weights, unless `end_epoch` brings its own.
            also: Further objects with `state_dict` to save and restore: schedulers, scalers.
            parent: The proof or file that the model was bought as. Where the terms name a model to
                start from and this is not it, the error can then name the tensor that differs.
            position: What `position` was when somebody else saved the state that model and
                optimizer are in now. If no shard was sealed since, they stay as they are and the
                shard goes on; otherwise the last sealed shard is put back, as without a position.
        """
        if self._finished:
            raise ChainError("this proof is finished; make a new Prover to go on with it")
        refuse_several_ranks()
        training = Training(self.terms, model, optimizer, also or {})
        training.check_free(besides=self._training)
        self._current.check_unchanged(training)
        self._measure_by(evaluate)
        if self._recording:
            if self._current.steps:
                raise ChainError("under replay a model can be moved between shards only")
            self._recording.attach(model, training.optimizer, training.also)
        self.detach()
        self._training = training
        if not self._started:
            self._start(training, parent, position)
        self._current.hook(training)
        self._failed = False
        return Attachment(self)

    def detach(self) -> None:
        """Take the hook off the optimizer; the proof stays as it is."""
        self._current.unhook()

    def end_epoch(self, evaluate: Evaluate | None = None) -> Progress | None:
        """Note the end of an epoch, and seal the shard if its mark has settled.

        Args:
            evaluate: Measures the model; called on the sealed weights.

        Returns:
            What was found; None when the terms allow no further shard, or when a registry has
            not answered yet, so that there is no mark to read.

        Raises:
            ChainError: The optimizer that was attached makes no steps, or none is attached.
            WeightsError: The model is not what was attached any more, or training has diverged;
                nothing was sealed, and the sealed shards are safe.
        """
        self._check_watched("end_epoch")
        self._measure_by(evaluate)
        return self._current.end_epoch()

    def check(self, evaluate: Evaluate | None = None) -> Progress | None:
        """Like `end_epoch`, in the middle of an epoch."""
        self._check_watched("check")
        self._measure_by(evaluate)
        return self._current.check()

    def _measure_by(self, evaluate: Evaluate | None) -> None:
        """From now on measure the model so, if something is given."""
        if evaluate is None:
            return
        if not callable(evaluate):
            raise TermsError(
                f"evaluate is {str(evaluate)[:40]!r}, and not a function that measures the model",
                advice="Write for instance evaluate=lambda: accuracy(model); it is called on the "
                "sealed weights.",
            )
        self._current.evaluate = evaluate

    def _check_watched(self, what: str) -> None:
        """Refuse to seal weights of which nobody knows how they were trained."""
        if not self._started:
            raise ChainError(f"{what}() before attach(): no optimizer is watched yet")
        if not self._current.watched:
            raise ChainError(
                f"{what}() when no optimizer is watched any more: the block of attach() has ended",
                advice="Call it inside of the block, or attach() again before you train on.",
            )

    def position(self, *, sealed: bool = False) -> Position:
        """Where the proof stands, to be kept inside somebody else's checkpoint.

        Args:
            sealed: Where its last sealed shard ended, instead of where it is now.
        """
        manifest = self._writer.manifest
        if manifest is None:
            raise ChainError("position() before attach(): the proof has not begun")
        if sealed:
            total = sum(shard.steps for shard in manifest.shards)
            return Position(self.shards, manifest.last_root, 0, 0, total, manifest.last_root)
        now = self._current
        weights = commit(checkpoint_of(now.training.model)).root
        return Position(self.shards, manifest.last_root, now.epochs, now.steps, now.total, weights)

    def finish(
        self, evaluate: Evaluate | None = None, *, seal: bool = True, wait: float = 300.0
    ) -> Proof:
        """Seal the tail if possible, close the proof, and let go of the store.

        Steps that could not be sealed are outside the proof; `Proof.outside` counts them. With a
        registry the chain is closed there, too; if that is not possible now, a warning says how to
        do it later.

        Args:
            evaluate: Measures the model; called on the sealed weights.
            seal: False leaves the tail outside, as is right where the model holds other weights by
                now than those that were trained last.
            wait: Most seconds to wait for the last receipt, and then as long again for witnesses,
                where the terms name some.

        Raises:
            ChainError: The optimizer that was attached made no step, though the weights have
                changed or an epoch has ended.
            WeightsError: The tail cannot be sealed because training has diverged, or the model is
                not what was attached any more; the sealed shards are safe.
        """
        if not self._started:
            raise ChainError("finish() before attach(): there is nothing to prove")
        if self._finished:
            raise ChainError("this proof is finished already")
        current = self._current
        self._measure_by(evaluate)
        if seal and not self._failed:
            self._seal_tail()
            current.check_any()
        steps = current.steps
        current.training.base.check_all()
        self.detach()
        settled = self._receiving.settle(wait)
        manifest = self._writer.finish(steps)
        self._finished = True
        self._writer.close()
        try:
            self._hand_in(wait, settled=settled)
        finally:
            self.close()
        if steps:
            logger.warning("%d steps after shard %d are outside the proof", steps, self.shards)
        if not manifest.shards:
            logger.warning("no shard was sealed: this proof shows nothing")
        elif missing := self._missing_shards():
            warnings.warn(
                f"{missing}; no verifier accepts the proof so. To train on, make a new Prover on "
                "the same store",
                EmbeddingWarning,
                stacklevel=2,
            )
        return Proof(self._writer.path, ProofFolder(self._writer.path).manifest())

    def close(self) -> None:
        """Let go of the store without closing the proof; it can be resumed."""
        # From the last line to the first, each of them even if another one fails.
        with contextlib.ExitStack() as closing:
            closing.callback(self._writer.close)
            if self._recording:
                closing.callback(self._recording.close)
            closing.callback(self._nonces.close)
            closing.callback(self._sealer.close)
            closing.callback(self.detach)

    def _seal_tail(self) -> None:
        """Seal what was trained since the last shard, if nobody has touched it since."""
        current = self._current
        if not current.steps:
            current.check_stepped()
            return
        # First: who trained on until the weights were spoilt must hear that, too.
        current.check_finite()
        if current.untouched:
            current.check()
        else:
            warnings.warn(
                "the weights were changed after the block of attach() had ended, so the steps "
                "since the last shard cannot be sealed: they are outside the proof",
                EmbeddingWarning,
                stacklevel=3,
            )

    def _missing_shards(self) -> str:
        """What is to be said if fewer shards are sealed than the terms ask for; else nothing."""
        fewest = self.terms.shards.least
        if self.shards >= fewest:
            return ""
        return f"only {counted(self.shards, 'shard')} sealed, and the terms ask for {fewest}"

    def _hand_in(self, wait: float, *, settled: bool) -> None:
        """Close the chain at the registry, or say that it is still to be done."""
        trouble = "" if settled else self._nonces.trouble or "the last receipt has not come"
        if self.enrolment.nonces.kind == "live" and (missing := self._missing_shards()):
            trouble = f"{missing}, and a chain that is closed takes no more"
        elif settled:
            try:
                self._nonces.finish(self._writer.path, wait=wait)
            except DistrustError:
                raise
            except RegistryError as error:
                # Training is over and nothing is lost: no reason to end the program.
                trouble = error.diagnostics()
        if trouble:
            warnings.warn(
                f"the proof is finished, but not closed at the registry: {trouble}\n  later: "
                f"polo submit {self._writer.path} --key KEY",
                ReceiptWarning,
                stacklevel=3,
            )

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        """A prover is neither copied nor pickled: two would write one proof."""
        raise ChainError(
            "a prover cannot be copied or sent to another process; two would write one proof",
            advice="Copy model and optimizer without it, then attach(model, optimizer) again.",
        )

    def _start(
        self, training: Training, parent: str | Path | None, position: Position | None
    ) -> None:
        """Begin the proof, or go on with the one that the store holds."""
        if self._writer.manifest is None:
            if position:
                position.sealed_since(None)
            resuming.begin(training, self._writer, self.enrolment, parent)
        else:
            stand = resuming.resume(
                training, self._writer, position, recorded=self._recording is not None
            )
            current = self._current
            current.epochs, current.steps, current.total = stand.epochs, stand.steps, stand.total
            self.behind = stand.behind
            logger.info("resumed after shard %d, epoch %d", self.shards, self.epoch)
        self._current.ask_for_nonce()
        self._started = True
