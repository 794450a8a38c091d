"""The shard that is being trained: its mark pressed step by step, read, and sealed."""

import contextlib
import logging
import time
import warnings
from collections.abc import Callable

import torch

from polo.embedding.embedder import Embedder, Finished
from polo.embedding.hook import StepHook
from polo.errors import ChainError, WeightsError
from polo.protocol import chain
from polo.protocol.detection import Reading
from polo.protocol.records import Enrolment, Nonce, Shard
from polo.prover.monitor import EmbeddingWarning, Monitor
from polo.prover.receiving import Receiving
from polo.prover.recording import Recording
from polo.prover.results import Progress, Timings
from polo.prover.sealing import BelowFloorError, Effort, Evaluate
from polo.prover.shards import Sealer
from polo.prover.training import Training
from polo.prover.unwatched import Unwatched
from polo.storage import received
from polo.storage.folder import ProofFolder
from polo.storage.writer import ProofWriter

logger = logging.getLogger("polo.prover")


class CurrentShard:
    """The shard in the making, and after each sealing the next one.

    Args:
        enrolment: The enrolment.
        writer: The store.
        receiving: Brings receipts and nonces.
        recording: What records steps for replay, if the terms ask for it.
        sealer: What seals a shard.
        timings: Where to count seconds.
        check_every: Steps between checks inside an epoch; None for none.
        on_seal: Called with each sealed shard's record.

    Attributes:
        evaluate: Measures the sealed weights.
        nonce: The shard's nonce; None until it has come, and where the terms allow no further
            shard.
        epochs: Epochs of the shard.
        total: Optimizer steps of the whole chain, with those that a scaler skipped.
    """

    def __init__(
        self,
        enrolment: Enrolment,
        writer: ProofWriter,
        receiving: Receiving,
        recording: Recording | None,
        sealer: Sealer,
        *,
        timings: Timings,
        check_every: int | None,
        on_seal: list[Callable[[Shard], None]],
    ) -> None:
        self._enrolment = enrolment
        self._terms = enrolment.terms
        self._writer = writer
        self._receiving = receiving
        self._recording = recording
        self._sealer = sealer
        self._timings = timings
        self._check_every = check_every
        self._on_seal = on_seal
        self._monitor = Monitor(enrolment.terms)
        self._training: Training | None = None
        self._hook: StepHook | None = None
        self._unwatched: Unwatched | None = None
        self._embedder: Embedder | None = None
        self._steps = 0
        self._shard = 0
        self._begun = 0
        self._closed = False
        self._left: list[int] | None = None
        self.evaluate: Evaluate | None = None
        self.nonce: Nonce | None = None
        self.epochs = self.total = 0

    @property
    def sealed(self) -> int:
        """Number of sealed shards."""
        return len(self._writer.manifest.shards) if self._writer.manifest else 0

    @property
    def epoch(self) -> int:
        """Epochs done: those of the sealed shards and of this one."""
        done = self._writer.manifest.shards if self._writer.manifest else ()
        return sum(shard.epochs for shard in done) + self.epochs

    @property
    def root(self) -> bytes:
        """Root of the weights that the shard started from."""
        manifest = self._writer.manifest
        assert manifest is not None
        return manifest.last_root

    @property
    def steps(self) -> int:
        """Steps of the shard, without those that a scaler skipped; waits for the device."""
        if self._hook:
            self._steps -= self._hook.skipped_steps()
        return self._steps

    @steps.setter
    def steps(self, count: int) -> None:
        self._steps = count

    @property
    def training(self) -> Training:
        """The model and its optimizer."""
        if self._training is None:
            raise ChainError("no model is attached")
        return self._training

    def ask_for_nonce(self) -> None:
        """Commit to the last shard that was sealed, for the nonce of the next."""
        self.nonce, self._shard = None, self.sealed + 1
        self._receiving.ask()

    def hook(self, training: Training) -> None:
        """Press the mark in every step of an optimizer, from now on."""
        self._training = training
        self._closed = received.is_closed(self._writer.state_path)
        self._place()
        self._receive()
        self._monitor.checked(self._steps, self.total)
        self._begun = self.total
        training.hold()
        self._hook = StepHook(training.optimizer, self._before_step, self._after_step)
        self._unwatched = Unwatched(training.optimizer)

    def unhook(self) -> None:
        """Leave the optimizer alone, even if it cannot be asked how far it came."""
        hook, self._hook = self._hook, None
        try:
            if hook:
                # Unknown, and equal to no model's, unless all of this succeeds.
                self._left = []
                hook.detach()
                if self._unwatched:
                    self._unwatched.detach()
                self._steps -= hook.skipped_steps()
                self._left = self.training.trace()
        finally:
            if self._training:
                self._training.release()

    @property
    def watched(self) -> bool:
        """Whether an optimizer's steps are seen, so that what is sealed is what was trained."""
        return self._hook is not None

    @property
    def untouched(self) -> bool:
        """Whether the weights are those that the last watched step led to."""
        return self.watched or self._left == self.training.trace()

    def check_unchanged(self, training: Training) -> None:
        """Refuse to go on with other weights than those that the last watched step led to.

        Args:
            training: What the hook is about to be moved to.
        """
        if self.watched and self._unwatched:
            self._unwatched.check()
        kept = self.training.trace() if self.watched else self._left
        if kept is not None and kept != training.trace():
            raise ChainError(
                "the weights were changed while no optimizer was watched, so the shard they are "
                "in cannot be sealed",
                advice="Train inside of the block of attach() only. To go on, close() this prover "
                "and make a new one on the same store: its attach() goes back to the last sealed "
                "shard. Or finish() here: steps since that shard are then outside the proof.",
            )

    def end_epoch(self) -> Progress | None:
        """Note the end of an epoch, see whether steps were made, and seal if the mark is in."""
        shard = self.sealed
        self.epochs += 1
        try:
            self._catch_up()
            progress = None
            if self._embedder:
                self._check_training()
                self._monitor.epoch(self.steps, self.total, self._trained)
                if self._recording:
                    self._recording.check_pace()
                progress = self._read_and_seal(self._embedder)
        except BaseException:
            # Whoever mends what is wrong ends the same epoch again.
            if self.sealed == shard:
                self.epochs = max(0, self.epochs - 1)
            raise
        self._monitor.checked(self._steps, self.total)
        return progress

    def check(self) -> Progress | None:
        """Read the mark; finish and seal if that suffices."""
        self._catch_up()
        if self._embedder is None:
            return None
        if not self.steps:
            self._monitor.stepless(self._trained)
        return self._read_and_seal(self._embedder)

    def check_stepped(self) -> None:
        """Refuse a run that was trained though the optimizer that was attached made no step."""
        if self.steps or self.total != self._begun or not self.untouched:
            return
        # Where nothing is to be sealed, a model may have been converted, to be handed out.
        with contextlib.suppress(WeightsError):
            self.training.check()
            self._monitor.stepless(self._trained)

    def check_any(self) -> None:
        """Refuse to close a proof whose epochs have ended without a single step."""
        if self.epochs and not self.sealed and self.total == 0:
            self._monitor.idle()

    def check_finite(self) -> None:
        """Refuse weights with NaN or infinity."""
        shard = self.sealed + 1
        self.training.check_finite(
            f"in shard {shard} after epoch {self.epoch}, {self.total} steps in all"
        )

    def _read_and_seal(self, embedder: Embedder) -> Progress:
        began = time.perf_counter()
        self._check_training()
        if self._unwatched:
            self._unwatched.check()
        shard, goal = self.sealed + 1, self._terms.thresholds.embed
        self.check_finite()
        reading = embedder.read()
        sealed, fewest = None, max(1, self._terms.shards.fewest_steps)
        if self.steps >= fewest:
            self._monitor.graded()
            finished = None if reading.reaches(goal) else embedder.finish()
            if finished is None or finished.reading.reaches(goal):
                sealed = self._sealed_if_good(embedder, finished, reading)
            else:
                self._monitor.waiting(shard, reading)
        else:
            logger.info("shard %d is not sealed yet: %d of %d steps", shard, self.steps, fewest)
        self._timings.sealing += time.perf_counter() - began
        return Progress(shard, reading, sealed)

    def _sealed_if_good(
        self, embedder: Embedder, finished: Finished | None, reading: Reading
    ) -> Shard | None:
        """Seal the shard, unless the model is not as good yet as the terms ask of it."""
        try:
            return self._seal(embedder, finished)
        except BelowFloorError as error:
            self._monitor.waiting(self.sealed + 1, reading, str(error))
            return None

    def _place(self) -> None:
        """Derive the shard's mark and find its weights in the model, if the nonce is there."""
        shard = self.sealed + 1
        if self.nonce is None or shard > self._terms.shards.most:
            self._embedder = None
            if not self._receiving.open:
                logger.info("the terms allow no shard %d", shard)
            return
        seed = chain.seed_of(self._enrolment, self.nonce, previous=self.root)
        training = self.training
        self._embedder = Embedder(self._terms, training.carrier, seed, training.parameters)
        self._sealer.expect(training, self.nonce)
        if self._recording:
            self._recording.begin(seed, first=shard == 1)

    def _before_step(self, scale: torch.Tensor | float) -> None:
        if self._closed:
            raise ChainError(
                "the chain is closed at its registry, so no step more can be part of it",
                place=str(self._writer.path),
                advice="The proof is whole; leave it as it is. To train on from its model, enrol "
                "again with --parent, and give another store.",
            )
        self._catch_up()
        if self._embedder is None:
            return
        # At 0, 1, 2, 4, 8, … steps: a change is noticed soon, and steps cost nothing by it.
        if not self._steps & (self._steps - 1):
            self.training.glance()
            self._monitor.pressed(self._embedder.idle(), graded=self.training.graded)
            if self._recording:
                self._recording.check()
        if self._recording:
            self._recording.before_step(self.total)
        if self.total % self._terms.scheme.every == 0:
            began = time.perf_counter()
            try:
                self._embedder.add_gradient(-scale if self.training.uphill else scale)
            except Exception:
                # Most likely because of such a change; then this says so in plain words.
                self._check_training()
                raise
            self._timings.embedding += time.perf_counter() - began

    def _after_step(self) -> None:
        self._steps += 1
        self.total += 1
        if self._embedder and self._recording:
            self._recording.after_step(self._steps)
        if self._embedder is None and self._steps == 1 and not self._receiving.open:
            warnings.warn(
                f"all {self.sealed} shards that the terms allow are sealed; from here on training "
                "is outside the proof",
                EmbeddingWarning,
                stacklevel=2,
            )
        if self._check_every and self._steps % self._check_every == 0:
            self.check()

    def _check_training(self) -> None:
        """Refuse to go on with a model or an optimizer that is not what was attached."""
        self.training.check()
        if self._recording:
            self._recording.check()

    def _seal(self, embedder: Embedder, finished: Finished | None) -> Shard:
        """Seal the shard: all of it, or the model stays as it was."""
        assert self.nonce is not None
        record = self._sealer.seal(
            self.training,
            embedder,
            finished,
            nonce=self.nonce,
            effort=Effort(self.epochs, self.steps),
            total=self.total,
            evaluate=self.evaluate,
        )
        if self._recording:
            self._timings.recording = self._recording.seconds
        self._advance()
        logger.info(
            "sealed shard %d: %d of %d bits, root %s",
            record.shard, record.matches, self._terms.scheme.bits, record.root.hex()[:16],
        )  # fmt: skip
        for callback in self._on_seal:
            callback(record)
        self._receive()
        return record

    def _advance(self) -> None:
        """Go on to the next shard."""
        self.epochs = self._steps = 0
        self._embedder = None
        self._sealer.close()
        self._monitor.sealed()
        self.ask_for_nonce()

    def _receive(self) -> None:
        """If a nonce is on its way, see whether it has come, and begin to press its mark in."""
        if self._receiving.open:
            self.nonce = self._receiving.take()
            if not self._receiving.open:
                self._place()

    def _catch_up(self) -> None:
        """After an interrupt between writing a shard and noticing it, notice it now."""
        if self._shard <= self.sealed:
            self._advance()
        self._receive()

    def _trained(self) -> bool:
        """Whether the weights are others than those of the last sealed shard."""
        folder = ProofFolder(self._writer.path)
        with folder.checkpoint(self.sealed, self.training.carrier.layout) as kept:
            return self.training.trained_since(kept)
