"""The scenes of the quickstart: what a proof withstands, and what it does not.

Each scene is an attack by somebody who holds the files: it edits a copy of the proof, or makes a
proof of its own, and lets the verifier judge.
"""

import hashlib
import shutil
import time
from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from safetensors.torch import save_file

from polo.cli.alibi import Alibi, copied
from polo.embedding.embedder import Embedder
from polo.embedding.placement import parameters_of
from polo.evidence.replay.timeline import LEVEL
from polo.evidence.start import draw_start
from polo.keys import Identity
from polo.privacy import obfuscation
from polo.protocol import chain, signing
from polo.protocol.commitment import Opening
from polo.protocol.detection import MILLION
from polo.protocol.records import (
    File,
    FinishTerms,
    Manifest,
    Nonce,
    Retention,
    Start,
)
from polo.prover.sealing import Effort, Sealed, Setting, seal
from polo.receipts import OfflineEnrolment
from polo.storage.folder import MANIFEST_FILE, ProofFolder, checkpoint_path, evidence_path
from polo.storage.writer import ProofWriter
from polo.watermark.mark import Mark, carrier_of
from polo.weights.checkpoint import checkpoint_of
from polo.weights.hashing import commit


@dataclass(frozen=True)
class Forgery:
    """A chain that was never trained.

    Attributes:
        path: Its proof folder.
        shards: Number of forged shards.
        seconds: What the forging itself took: marks, edits and commitments, without disk.
        alibi: What the thief says it trained; None where the terms do not ask.
        master: The secret of its obfuscation.
    """

    path: Path
    shards: int
    seconds: float
    alibi: Alibi | None
    master: bytes


def flip_weight(proof: Path, out: Path, key: Identity, shard: int) -> Path:
    """The prover changes one weight of one checkpoint afterwards, and signs again."""
    shutil.copytree(proof, out)
    path = out / checkpoint_path(shard)
    data = bytearray(path.read_bytes())
    data[-1] ^= 0x40
    path.write_bytes(data)
    _sign_again(out, key, lambda manifest: _with_digest(manifest, checkpoint_path(shard), data))
    return out


def swap_shards(proof: Path, out: Path, key: Identity, shard: int) -> Path:
    """The prover exchanges a shard with the one after it, and signs again."""
    shutil.copytree(proof, out)

    def swapped(manifest: Manifest) -> Manifest:
        shards = list(manifest.shards)
        shards[shard - 1], shards[shard] = shards[shard], shards[shard - 1]
        return replace(manifest, shards=tuple(shards))

    _sign_again(out, key, swapped)
    return out


def forge(
    model: torch.nn.Module,
    enrolment: OfflineEnrolment,
    key: Identity,
    out: Path,
    *,
    shards: int,
    evaluate: Callable[[], float],
    before: Callable[[int, Mark], None] | None = None,
) -> Forgery:
    """Somebody who only has a finished model makes up a whole chain, without one training step.

    It begins with the start that the enrolment fixes, as it must, and goes on with the stolen
    weights. The finishing step alone presses each mark; the steps it declares never happened, and
    its record of them is an alibi.

    Args:
        model: The stolen model, which the marks are pressed into.
        enrolment: The forger's enrolment.
        key: The forger's key.
        out: The proof folder to write.
        shards: How many shards to make up.
        evaluate: Measures the model, after every shard.
        before: May change the model before a shard's mark is pressed into it, or press it itself;
            told both.
    """
    terms, source = enrolment.record.terms, enrolment.nonces
    writer = ProofWriter(out, key, Retention("all", 1, False))
    master = writer.secret
    forger = _Forger(model, enrolment, master)
    beginning = deepcopy(model)
    draw_start(beginning, enrolment)
    checkpoint = checkpoint_of(beginning)
    root = commit(checkpoint).root
    asked = any(item.level == LEVEL for item in terms.evidence)
    alibi = Alibi(terms, beginning) if asked else None
    promise = obfuscation.secret_commitment(obfuscation.secret_of(master, 1))
    start = Start(root, promise, None)
    writer.begin(
        Manifest(enrolment.record, start, (), writer.retention, (), False, 0, None),
        checkpoint.layout,
        checkpoint,
    )
    seconds = 0.0
    for number in range(1, shards + 1):
        nonce = source.of(number)
        assert nonce is not None
        began = time.perf_counter()
        sealed, opening = forger.shard(nonce, root, before)
        seconds += time.perf_counter() - began
        pressed, after = forger.pressed, copied(model)
        metrics = {terms.task.metric: round(evaluate() * MILLION)}
        made_up, files = replace(sealed.record, metrics=metrics), {}
        if alibi:
            seed = chain.seed_of(enrolment.record, nonce, previous=sealed.record.previous)
            record = alibi.shard(seed, pressed, after)
            made_up = replace(made_up, evidence={LEVEL: record.digest})
            files[evidence_path(LEVEL, number)] = record.encode()
        writer.seal(made_up, sealed.checkpoint, opening, nonce, files)
        root = sealed.commitment.root
    writer.finish(0)
    writer.close()
    return Forgery(out, shards, seconds, alibi, master)


def steal(
    model: torch.nn.Module,
    path: Path,
    *,
    train: Callable[[torch.nn.Module], None],
    pruned: float,
) -> torch.nn.Module:
    """A thief's copy: trained a little further, its smallest weights cut, saved in bfloat16."""
    copy = deepcopy(model)
    train(copy)
    matrices = [tensor for tensor in copy.parameters() if tensor.dim() > 1]
    sizes = torch.cat([tensor.detach().abs().reshape(-1) for tensor in matrices])
    threshold = sizes.kthvalue(max(1, int(pruned * len(sizes)))).values
    with torch.no_grad():
        for tensor in matrices:
            tensor[tensor.abs() <= threshold] = 0
        for tensor in copy.parameters():
            tensor.copy_(tensor.bfloat16())
    save(copy, path, dtype=torch.bfloat16)
    return copy


def save(model: torch.nn.Module, path: Path, *, dtype: torch.dtype | None = None) -> None:
    """Save a model as safetensors, its floating tensors as `dtype`."""
    state = {
        name: tensor.detach().to(dtype if tensor.is_floating_point() else None).contiguous()
        for name, tensor in model.state_dict().items()
    }
    save_file(state, path)


class _Forger:
    """Presses marks by the finishing step alone.

    Attributes:
        pressed: The weights before the last sealing, with the mark in them.
    """

    def __init__(self, model: torch.nn.Module, enrolment: OfflineEnrolment, master: bytes) -> None:
        self._model = model
        self._terms = enrolment.record.terms
        self._enrolment = enrolment.record
        self._master = master
        self._parameters = parameters_of(model)
        self._carrier = carrier_of(self._terms, checkpoint_of(model).layout)
        self.pressed = copied(model)

    def shard(
        self, nonce: Nonce, previous: bytes, before: Callable[[int, Mark], None] | None
    ) -> tuple[Sealed, Opening]:
        """One shard that took no training."""
        seed = chain.seed_of(self._enrolment, nonce, previous=previous)
        # The budget of the finishing step binds nobody who writes their own code.
        loose = replace(self._terms, finish=FinishTerms(MILLION, self._terms.finish.margin))
        embedder = Embedder(loose, self._carrier, seed, self._parameters)
        if before:
            before(nonce.shard, embedder.mark)
        if not embedder.read().reaches(self._terms.thresholds.embed):
            embedder.apply(embedder.finish())
        self.pressed = copied(self._model)
        sealed = seal(
            self._model,
            self._parameters,
            embedder,
            None,
            setting=Setting(
                terms=self._terms,
                carrier=self._carrier,
                nonce=nonce,
                previous=previous,
                master=self._master,
                sigma=self._terms.noise.least,
            ),
            effort=Effort(1, self._terms.shards.fewest_steps),
            evaluate=None,
        )
        where = self._carrier.leaves(embedder.mark.blocks)
        return sealed, sealed.commitment.open(sealed.checkpoint, where)


def _sign_again(proof: Path, key: Identity, change: Callable[[Manifest], Manifest]) -> None:
    manifest = change(ProofFolder(proof).manifest())
    (proof / MANIFEST_FILE).write_bytes(signing.sign(manifest, key).to_bytes())


def _with_digest(manifest: Manifest, name: str, data: bytes | bytearray) -> Manifest:
    fresh = File(name, len(data), hashlib.sha256(data).digest())
    files = tuple(fresh if file.path == name else file for file in manifest.files)
    return replace(manifest, files=files)
