"""The object a trainer holds."""

import logging
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol, Self

import torch

from polo.embedding.embedder import Embedder, Finished
from polo.embedding.hook import StepHook, inner
from polo.embedding.placement import check_trained, parameters_of
from polo.errors import ChainError, SignatureError, StoreError, TermsError, WeightsError
from polo.evidence.replay.data import DataSource
from polo.evidence.replay.order import Sampler
from polo.evidence.replay.recipe import Recipe
from polo.evidence.replay.timeline import LEVEL
from polo.keys import Identity
from polo.privacy import obfuscation
from polo.protocol import chain, signing
from polo.protocol.detection import MILLION, Reading
from polo.protocol.records import (
    MAX_SHARDS,
    Enrolment,
    Manifest,
    Nonce,
    Retention,
    Shard,
    Start,
)
from polo.prover.monitor import EmbeddingWarning, Monitor
from polo.prover.recording import recording_of
from polo.prover.sealing import Effort, Evaluate, Setting, seal
from polo.prover.starting import check_start
from polo.receipts import NonceSource, OfflineEnrolment
from polo.storage import delta, state
from polo.storage.folder import ProofFolder, evidence_path
from polo.storage.writer import ProofWriter
from polo.watermark.mark import carrier_of
from polo.weights.checkpoint import checkpoint_of
from polo.weights.hashing import commit
from polo.weights.loading import load_into

logger = logging.getLogger("polo.prover")


class EnrolmentSource(Protocol):
    """An enrolment and where its nonces come from."""

    @property
    def record(self) -> Enrolment:
        """The signed enrolment."""

    @property
    def nonces(self) -> NonceSource:
        """The source of nonces."""


@dataclass(frozen=True)
class Proof:
    """A proof that has been finished.

    Attributes:
        path: Its folder, to hand over.
        manifest: What it says.
    """

    path: Path
    manifest: Manifest

    @property
    def shards(self) -> int:
        """Number of sealed shards."""
        return len(self.manifest.shards)

    @property
    def outside(self) -> int:
        """Optimizer steps after the last sealed shard, which the proof does not cover."""
        return self.manifest.outside


@dataclass(frozen=True)
class Progress:
    """What a check of the current shard found.

    Attributes:
        shard: Its number.
        reading: The mark as it was before any finishing step.
        sealed: The shard's record if it was sealed.
    """

    shard: int
    reading: Reading
    sealed: Shard | None


@dataclass
class Timings:
    """Seconds spent on top of the user's training."""

    embedding: float = 0.0
    recording: float = 0.0
    sealing: float = 0.0


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

    Args:
        enrolment: What the issuer handed over: a folder, or the object.
        key: The prover's key: a file, or the object.
        store: The proof folder. What is private lies beside it in `<store>.state`.
        retention: Checkpoints to keep: `all`, an integer k for every k-th, or `thin` for
            openings and the last one.
        deltas: Store older checkpoints as lossless deltas.
        sigma: σ of the obfuscation relative to a tensor's root mean square; by default the
            least that the terms allow.
        check_every: Also try to seal every so many optimizer steps. What is saved then is the
            state inside the step, before a scheduler or scaler moves on; resuming is exact to
            the bit only for shards sealed at the end of an epoch.
        on_seal: Called with each sealed shard's record.
        data: The training data, where the terms ask for replay; batches then come from `sampler`
            and learning rates from the terms.
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
    ) -> None:
        if isinstance(enrolment, (str, Path)):
            enrolment = OfflineEnrolment.load(enrolment)
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
        self.on_seal = list(on_seal)
        self._nonces = enrolment.nonces
        self._sigma = self._checked_sigma(sigma)
        if check_every is not None and check_every < 1:
            raise TermsError(f"check_every = {check_every}: give a number of steps, or None")
        self._check_every = check_every
        self._recording = recording_of(self.terms, data)
        if check_every and self._recording:
            raise TermsError("check_every: under replay shards are sealed at the end of an epoch")
        kept = _retention(retention, deltas)
        if self.terms.history == "all" and (kept.kind == "thin" or kept.every > 1):
            raise TermsError(
                "the terms ask for all checkpoints", advice="Keep them: retention='all'."
            )
        self._writer = ProofWriter(store, signer, kept)
        self._monitor = Monitor(self.terms)
        self._model: torch.nn.Module | None = None
        self._optimizer: torch.optim.Optimizer | None = None
        self._also: Mapping[str, Any] = {}
        self._evaluate: Evaluate | None = None
        self._hook: StepHook | None = None
        self._embedder: Embedder | None = None
        self._nonce: Nonce | None = None
        self._epochs = self._steps = self._total_steps = 0
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
    def shards(self) -> int:
        """Number of sealed shards."""
        return len(self._writer.manifest.shards) if self._writer.manifest else 0

    @property
    def epoch(self) -> int:
        """Epochs done: those of the sealed shards and of the current one."""
        sealed = self._writer.manifest.shards if self._writer.manifest else ()
        return sum(shard.epochs for shard in sealed) + self._epochs

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
    ) -> "Attachment":
        """Hook into an optimizer; begins or resumes the proof the first time.

        Calling it again moves the hook to the model and optimizer given, for instance after
        they were copied, and keeps the shard as it is.

        Args:
            model: The model.
            optimizer: The optimizer that trains it.
            evaluate: Measures the sealed weights, unless `end_epoch` brings its own.
            also: Further objects with `state_dict` to save and restore: schedulers, scalers.
            parent: The proof or file that the model was bought as. Where the terms name a model to
                start from and this is not it, the error can then name the tensor that differs.
        """
        if self._finished:
            raise ChainError("this proof is finished; make a new Prover to go on with it")
        _refuse_several_ranks()
        parameters = parameters_of(model)
        layout = checkpoint_of(model).layout
        if layout.digest != self.terms.layout:
            raise WeightsError(
                "the model's tensors (names, types, shapes) are not those the terms were made for",
                advice=f"Build the model as the task {self.terms.task.name!r} does.",
            )
        self._carrier = carrier_of(self.terms, layout)
        check_trained(parameters, self._carrier, inner(optimizer))
        self._model, self._optimizer = model, inner(optimizer)
        given = {id(p) for group in self._optimizer.param_groups for p in group["params"]}
        self._parameters = {name: p for name, p in parameters.items() if id(p) in given}
        self._also = also or {}
        self._evaluate = evaluate or self._evaluate
        if self._recording:
            if self._steps:
                raise ChainError("under replay a model can be moved between shards only")
            self._recording.attach(model, self._optimizer, self._also)
        if not self._started:
            if self._writer.manifest is None:
                self._begin(parent)
            else:
                self._resume()
            self._started = True
        self._place()
        self.detach()
        self._failed = False
        self._hook = StepHook(self._optimizer, self._before_step, self._after_step)
        return Attachment(self)

    def detach(self) -> None:
        """Take the hook off the optimizer; the proof stays as it is."""
        if self._hook:
            self._steps -= self._hook.skipped_steps()
            self._hook.detach()
            self._hook = None

    def end_epoch(self, evaluate: Evaluate | None = None) -> Progress | None:
        """Note the end of an epoch, and seal the shard if its mark has settled.

        Args:
            evaluate: Measures the model; called on the sealed weights.

        Returns:
            What was found; None when the terms allow no further shard.
        """
        self._evaluate = evaluate or self._evaluate
        self._epochs += 1
        return self._check()

    def finish(self, evaluate: Evaluate | None = None) -> Proof:
        """Seal the tail if possible, close the proof, and let go of the store.

        Steps that could not be sealed are outside the proof; `Proof.outside` counts them.
        """
        if not self._started:
            raise ChainError("finish() before attach(): there is nothing to prove")
        if self._finished:
            raise ChainError("this proof is finished already")
        self._evaluate = evaluate or self._evaluate
        steps = self._shard_steps()
        if steps and not self._failed:
            self._check()
            steps = self._shard_steps()
        self.detach()
        manifest = self._writer.finish(steps)
        self._finished = True
        self.close()
        if steps:
            logger.warning("%d steps after shard %d are outside the proof", steps, self.shards)
        return Proof(self._writer.path, manifest)

    def close(self) -> None:
        """Let go of the store without closing the proof; it can be resumed."""
        self.detach()
        if self._recording:
            self._recording.close()
        self._writer.close()

    def _begin(self, parent: str | Path | None) -> None:
        checkpoint = checkpoint_of(self._live_model())
        commitment = commit(checkpoint)
        check_start(self.enrolment, commitment, self._live_model(), parent)
        root = commitment.root
        secret = obfuscation.secret_of(self._writer.secret, 1)
        answer = self._nonces.commit(0, root)
        start = Start(root, obfuscation.secret_commitment(secret), answer.receipt)
        manifest = Manifest(self.enrolment, start, (), self._writer.retention, (), False, 0, None)
        state.write_state(self._writer.training_state(0), self._training_state(root))
        self._writer.begin(manifest, checkpoint.layout, checkpoint)
        self._nonce = answer.nonce

    def _resume(self) -> None:
        """Put weights, optimizer and generators back to the last sealed shard."""
        shard = self.shards
        self._check_secret(shard + 1)
        model = self._live_model()
        with ProofFolder(self._writer.path).checkpoint(shard, self._carrier.layout) as checkpoint:
            if commit(checkpoint).root != self._root():
                raise StoreError(
                    f"the stored weights of shard {shard} are damaged", place=str(self._writer.path)
                )
            load_into(model, checkpoint)
        path = self._writer.training_state(shard)
        if path.exists():
            self._restore(state.read_state(path), path)
        elif self._recording:
            raise StoreError(
                "the optimizer's state is not beside the proof any more; under replay training "
                "cannot go on without it",
                place=str(path),
                advice="Bring that folder back, or start a new proof.",
            )
        else:
            logger.warning("no training state beside the proof: optimizer and generators are new")
        self._nonce = self._nonces.commit(shard, self._root()).nonce
        logger.info("resumed after shard %d, epoch %d", shard, self.epoch)

    def _restore(self, saved: dict[str, Any], path: Path) -> None:
        """Put optimizer, further objects and generators back."""
        assert self._optimizer is not None
        if saved["root"] != self._root().hex():
            raise StoreError(
                "this training state belongs to another run",
                place=str(path),
                advice="Bring the right state folder back, or remove this file to go on without.",
            )
        self._optimizer.load_state_dict(saved["optimizer"])
        for name, item in self._also.items():
            if name in saved["also"]:
                item.load_state_dict(saved["also"][name])
            else:
                logger.warning("%r was not saved beside the proof: it stays as it is", name)
        state.restore_random(saved["random"])
        self._total_steps = saved["steps"]

    def _check_secret(self, shard: int) -> None:
        """Refuse to go on with another secret than the chain has committed to."""
        manifest = self._writer.manifest
        assert manifest is not None
        sealed = manifest.shards
        promised = sealed[-1].noise.next_secret if sealed else manifest.start.secret
        secret = obfuscation.secret_of(self._writer.secret, shard)
        if obfuscation.secret_commitment(secret) != promised:
            raise StoreError(
                "the secret that this proof was begun with is not here any more",
                place=str(self._writer.state_path),
                advice="Bring that folder back; without it the proof stands but cannot go on.",
            )

    def _place(self) -> None:
        """Derive the current shard's mark and find its weights in the model."""
        shard = self.shards + 1
        if self._nonce is None or shard > self.terms.shards.most:
            self._embedder = None
            logger.info("the terms allow no shard %d", shard)
            return
        seed = chain.seed_of(self.enrolment, self._nonce, previous=self._root())
        self._embedder = Embedder(self.terms, self._carrier, seed, self._parameters)
        if self._recording:
            self._recording.begin(seed, first=shard == 1)

    def _before_step(self, scale: torch.Tensor | float) -> None:
        self._catch_up()
        if self._embedder and self._recording:
            self._recording.before_step(self._total_steps)
        if self._embedder and self._total_steps % self.terms.scheme.every == 0:
            began = time.perf_counter()
            self._embedder.add_gradient(scale)
            self.timings.embedding += time.perf_counter() - began

    def _after_step(self) -> None:
        self._steps += 1
        self._total_steps += 1
        if self._embedder and self._recording:
            self._recording.after_step(self._steps)
        if self._embedder is None and self._steps == 1:
            warnings.warn(
                f"all {self.shards} shards that the terms allow are sealed; from here on training "
                "is outside the proof",
                EmbeddingWarning,
                stacklevel=2,
            )
        if self._check_every and self._steps % self._check_every == 0:
            self._check()

    def _check(self) -> Progress | None:
        """Read the mark; finish and seal if that suffices."""
        self._catch_up()
        if self._embedder is None:
            return None
        began = time.perf_counter()
        shard, goal = self.shards + 1, self.terms.thresholds.embed
        reading = self._embedder.read()
        sealed = None
        if self._shard_steps() >= max(1, self.terms.shards.fewest_steps):
            finished = None if reading.reaches(goal) else self._embedder.finish()
            if finished is None or finished.reading.reaches(goal):
                sealed = self._seal(self._embedder, finished)
            else:
                self._monitor.waiting(shard, reading)
        self.timings.sealing += time.perf_counter() - began
        return Progress(shard, reading, sealed)

    def _seal(self, embedder: Embedder, finished: Finished | None) -> Shard:
        """Seal the current shard: all of it, or the model stays as it was."""
        number = self.shards + 1
        before = {name: p.detach().cpu().clone() for name, p in self._parameters.items()}
        try:
            record, following = self._write_shard(embedder, finished)
        except BaseException:
            if self.shards < number:
                with torch.no_grad():
                    for name, parameter in self._parameters.items():
                        parameter.copy_(before[name])
            raise
        self._advance(following)
        logger.info(
            "sealed shard %d: %d of %d bits, root %s",
            number, record.matches, self.terms.scheme.bits, record.root.hex()[:16],
        )  # fmt: skip
        for callback in self.on_seal:
            callback(record)
        return record

    def _write_shard(
        self, embedder: Embedder, finished: Finished | None
    ) -> tuple[Shard, Nonce | None]:
        """Edit the model, commit to it, and write it; returns the next shard's nonce, too."""
        assert self._nonce is not None
        if self._recording:
            self._recording.finish()
        done = seal(
            self._live_model(),
            self._parameters,
            embedder,
            finished,
            setting=Setting(
                terms=self.terms,
                carrier=self._carrier,
                nonce=self._nonce,
                previous=self._root(),
                master=self._writer.secret,
                sigma=self._sigma,
            ),
            effort=Effort(self._epochs, self._shard_steps()),
            evaluate=self._evaluate,
        )
        if self._recording:
            self._recording.check_sealing()
        number, root = done.record.shard, done.commitment.root
        where = self._carrier.leaves(embedder.mark.blocks)
        opening = done.commitment.open(done.checkpoint, where)
        answer = self._nonces.commit(number, root)
        record, evidence = replace(done.record, receipt=answer.receipt), {}
        if self._recording:
            recorded = self._recording.sealed()
            record = replace(record, evidence={LEVEL: recorded.digest})
            evidence[evidence_path(LEVEL, number)] = recorded.encode()
            self._recording.keep_rest(self._writer.state_path, number)
            self.timings.recording = self._recording.seconds
        state.write_state(self._writer.training_state(number), self._training_state(root))
        self._writer.seal(record, done.checkpoint, opening, self._nonce, evidence)
        return record, answer.nonce

    def _advance(self, nonce: Nonce | None) -> None:
        """Go on to the next shard."""
        self._nonce = nonce
        self._epochs = self._steps = 0
        self._monitor.sealed()
        self._place()

    def _catch_up(self) -> None:
        """After an interrupt between writing a shard and noticing it, notice it now."""
        if self._nonce is not None and self._nonce.shard <= self.shards:
            self._advance(self._nonces.commit(self.shards, self._root()).nonce)

    def _shard_steps(self) -> int:
        """Steps of the current shard, without those that a scaler skipped."""
        if self._hook:
            self._steps -= self._hook.skipped_steps()
        return self._steps

    def _root(self) -> bytes:
        manifest = self._writer.manifest
        assert manifest is not None
        return manifest.root_before(len(manifest.shards) + 1)

    def _live_model(self) -> torch.nn.Module:
        if self._model is None:
            raise ChainError("no model is attached")
        return self._model

    def _training_state(self, root: bytes) -> dict[str, Any]:
        assert self._optimizer is not None
        return {
            "root": root.hex(),
            "optimizer": self._optimizer.state_dict(),
            "also": {name: item.state_dict() for name, item in self._also.items()},
            "random": state.random_state(),
            "steps": self._total_steps,
        }

    def _checked_sigma(self, sigma: float | None) -> int:
        bounds = self.terms.noise
        if sigma is None:
            return bounds.least
        wanted = round(sigma * MILLION)
        if not bounds.least <= wanted <= bounds.most:
            raise TermsError(
                f"σ = {sigma:g} is outside the terms' bounds, {bounds.least / MILLION:g} to "
                f"{bounds.most / MILLION:g}"
            )
        return wanted


class Attachment:
    """What `Prover.attach` returns: a context that takes the hook off at its end.

    Leaving it by an exception never seals anything, not even in a later `finish`.
    """

    def __init__(self, prover: Prover) -> None:
        self._prover = prover

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._prover.detach()
        self._prover._failed = kind is not None


def _refuse_several_ranks() -> None:
    """Sealing edits the weights of this process alone, so replicas would drift apart."""
    distributed = torch.distributed
    if distributed.is_available() and distributed.is_initialized():
        ranks = distributed.get_world_size()
        if ranks > 1:
            raise ChainError(
                f"this run has {ranks} ranks; this release proves training on one",
                advice="Train on one rank, or wait for the distributed integration.",
            )


def _retention(kept: str | int, deltas: bool) -> Retention:
    if deltas:
        delta.require()
    if isinstance(kept, int):
        if not 1 <= kept <= MAX_SHARDS:
            raise TermsError(f"retention {kept}: keep every k-th checkpoint, k from 1")
        return Retention("every", kept, deltas)
    if kept not in ("all", "thin"):
        raise TermsError(f"retention {kept!r}: use 'all', 'thin', or an integer")
    return Retention(kept, 1, deltas)
