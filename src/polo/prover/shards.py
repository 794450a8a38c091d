"""Sealing a shard as one act: edited, committed to and written, or as if nothing had been."""

from dataclasses import replace
from functools import partial

import torch

from polo.embedding.embedder import Embedder, Finished
from polo.evidence.replay.timeline import LEVEL
from polo.privacy.noising import Noise
from polo.protocol.records import Nonce, Shard, Terms
from polo.prover.recording import Recording
from polo.prover.sealing import Effort, Evaluate, Sealed, Setting, noise_of, seal
from polo.prover.training import Training
from polo.storage import state
from polo.storage.folder import evidence_path
from polo.storage.writer import ProofWriter


class Sealer:
    """Seals the shards of one proof.

    Args:
        terms: The terms.
        writer: The store.
        recording: What records steps for replay, if the terms ask for it.
        sigma: σ of the obfuscation, in millionths.
    """

    def __init__(
        self,
        terms: Terms,
        writer: ProofWriter,
        recording: Recording | None,
        sigma: int,
    ) -> None:
        self._terms = terms
        self._writer = writer
        self._recording = recording
        self._sigma = sigma
        self._noise: Noise | None = None

    def expect(self, training: Training, nonce: Nonce) -> None:
        """A shard has begun that will be sealed: its noise can be drawn meanwhile."""
        self.close()
        self._noise = noise_of(self._terms, self._writer.secret, nonce)
        if self._sigma and self._noise.fraction:
            self._noise.draw_ahead(training.parameters, training.carrier.layout)

    def close(self) -> None:
        """No shard is expected any more."""
        noise, self._noise = self._noise, None
        if noise:
            noise.close()

    def seal(
        self,
        training: Training,
        embedder: Embedder,
        finished: Finished | None,
        *,
        nonce: Nonce,
        effort: Effort,
        total: int,
        evaluate: Evaluate | None,
    ) -> Shard:
        """Seal a shard; whatever fails before it is written, the weights stay as they were.

        Args:
            training: The model and its optimizer.
            embedder: The shard's mark in the model.
            finished: The finishing step, if one is needed.
            nonce: The shard's nonce.
            effort: What the shard took.
            total: Optimizer steps of the whole chain.
            evaluate: Measures the sealed weights.

        Returns:
            The shard's record, still without a receipt.
        """
        parameters = training.parameters
        before = {name: p.detach().to("cpu", copy=True) for name, p in parameters.items()}
        try:
            if self._recording:
                self._recording.finish()
            setting = self._setting(training, nonce)
            done = seal(
                training.model,
                parameters,
                embedder,
                finished,
                setting=setting,
                effort=effort,
                evaluate=evaluate,
                replayed=self._recording is not None,
            )
            # By its hash: fused optimizers and merging write past torch's count of writes.
            training.base.check_all()
            if self._recording:
                self._recording.check_sealing()
            return self._write(training, embedder, done, nonce, total)
        except BaseException:
            if self._sealed < nonce.shard:
                with torch.no_grad():
                    for name, parameter in parameters.items():
                        parameter.copy_(before[name])
            raise

    def _write(
        self, training: Training, embedder: Embedder, done: Sealed, nonce: Nonce, total: int
    ) -> Shard:
        """Put what was sealed into the store."""
        root = done.commitment.root
        where = training.carrier.leaves(embedder.mark.blocks)
        opening = done.commitment.open(done.checkpoint, where)
        record, evidence = done.record, {}
        if self._recording:
            recorded = self._recording.sealed()
            record = replace(record, evidence={LEVEL: recorded.digest})
            evidence[evidence_path(LEVEL, nonce.shard)] = recorded.encode()
            self._recording.keep_rest(self._writer.state_path, nonce.shard)
        path, tree = self._writer.training_state(nonce.shard), training.state(root, total)
        # Another thread is on another stream, which does not wait for what was asked on this one.
        for device in {p.device for p in training.parameters.values() if p.is_cuda}:
            torch.cuda.synchronize(device)
        kept = partial(state.write_state, path, tree)
        self._writer.seal(record, done.checkpoint, opening, nonce, evidence, beside=kept)
        return record

    def _setting(self, training: Training, nonce: Nonce) -> Setting:
        manifest = self._writer.manifest
        assert manifest is not None
        return Setting(
            terms=self._terms,
            carrier=training.carrier,
            nonce=nonce,
            previous=manifest.last_root,
            master=self._writer.secret,
            sigma=self._sigma,
            noise=self._noise,
        )

    @property
    def _sealed(self) -> int:
        manifest = self._writer.manifest
        return len(manifest.shards) if manifest else 0
