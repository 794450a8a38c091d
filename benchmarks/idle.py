"""Idle chains: signed proof folders with real marks, made without any training.

Roots and nonces are all it takes to derive marks. So made-up roots stand for checkpoints that never
were; enrolment, nonces, layout and signatures are real.
"""

import dataclasses
import hashlib
import random
from dataclasses import dataclass
from pathlib import Path

import torch

from benchmarks.resnet import ResNetDigits
from polo import Identity, make_terms
from polo.embedding.embedder import Embedder
from polo.embedding.placement import parameters_of
from polo.protocol import chain, nonces, signing
from polo.protocol.detection import MILLION
from polo.protocol.layout import Layout
from polo.protocol.records import (
    Enrolment,
    File,
    FinishRecord,
    FinishTerms,
    Manifest,
    NoiseRecord,
    Nonce,
    Retention,
    Shard,
    Start,
    Terms,
)
from polo.storage.folder import (
    LAYOUT_FILE,
    MANIFEST_FILE,
    checkpoint_path,
    nonce_path,
    opening_path,
)
from polo.watermark import carrier_of
from polo.weights import checkpoint_of

MARKS = 50
BITS = 2048
_SOME_DAY = 1_700_000_000


@dataclass(frozen=True)
class IdleChain:
    """A chain that nobody trained.

    Attributes:
        prover: Whose it is.
        enrolment: Its enrolment.
        drawn: Its nonces.
        roots: Roots of the start and of every shard.
    """

    prover: Identity
    enrolment: Enrolment
    drawn: tuple[Nonce, ...]
    roots: tuple[bytes, ...]

    def press(self, model: torch.nn.Module) -> None:
        """Press all marks into a model, by the finishing step alone."""
        terms, parameters = self.enrolment.terms, parameters_of(model)
        carrier = carrier_of(terms, checkpoint_of(model).layout)
        lavish = dataclasses.replace(terms, finish=FinishTerms(MILLION, terms.finish.margin))
        for nonce, root in zip(self.drawn, self.roots, strict=False):
            seed = chain.seed_of(self.enrolment, nonce, previous=root)
            embedder = Embedder(lavish, carrier, seed, parameters)
            embedder.apply(embedder.finish())


class Issuer:
    """Enrols provers for ResNet-18, and writes their chains."""

    def __init__(self) -> None:
        task = ResNetDigits()
        self.key = Identity.generate()
        self.terms: Terms = make_terms(task, bits=BITS, shards=MARKS)
        self.layout: Layout = checkpoint_of(task.build_model()).layout

    def enrol(self, seed: int) -> IdleChain:
        """A new chain; the same seed draws the same nonces and roots."""
        drawing, prover = random.Random(seed), Identity.generate()
        promised, drawn = nonces.draw(MARKS, drawing.randbytes)
        key = self.key.public_key
        enrolment = Enrolment(self.terms, prover.public_key, promised, _SOME_DAY, key)
        roots = tuple(drawing.randbytes(32) for _ in range(MARKS + 1))
        return IdleChain(prover, signing.sign(enrolment, self.key), drawn, roots)

    def write(self, made: IdleChain, path: Path, last: Path, root: bytes = b"") -> Path:
        """Write a chain as a thin proof without its openings.

        Args:
            made: The chain.
            path: The proof folder.
            last: The file of the checkpoint that it ends in; it is linked, not copied.
            root: That checkpoint's root; without one a made-up root stays.
        """
        for folder in ("nonces", "checkpoints"):
            (path / folder).mkdir(parents=True)
        (path / checkpoint_path(MARKS)).hardlink_to(last)
        roots = (*made.roots[:-1], root) if root else made.roots
        listed = [_put(path, LAYOUT_FILE, self.layout.to_bytes())]
        listed += [_put(path, nonce_path(nonce.shard), nonce.to_bytes()) for nonce in made.drawn]
        listed += [File(opening_path(x), 1, bytes(32)) for x in range(1, MARKS + 1)]
        listed.append(File(checkpoint_path(MARKS), last.stat().st_size, bytes(32)))
        manifest = Manifest(
            enrolment=made.enrolment,
            start=Start(roots[0], bytes(32), None),
            shards=tuple(_shard(x, roots, self.terms) for x in range(1, MARKS + 1)),
            retention=Retention("thin", 1, False),
            files=tuple(sorted(listed, key=lambda file: file.path)),
            finished=True,
            outside=0,
            transfer=None,
        )
        (path / MANIFEST_FILE).write_bytes(signing.sign(manifest, made.prover).to_bytes())
        return path


def _put(folder: Path, name: str, data: bytes) -> File:
    (folder / name).write_bytes(data)
    return File(name, len(data), hashlib.sha256(data).digest())


def _shard(number: int, roots: tuple[bytes, ...], terms: Terms) -> Shard:
    return Shard(
        shard=number,
        previous=roots[number - 1],
        root=roots[number],
        epochs=1,
        steps=1000,
        matches=terms.scheme.bits,
        metrics={terms.task.metric: MILLION * 9 // 10},
        finish=FinishRecord(0, 0),
        noise=NoiseRecord(terms.noise.least, bytes(32)),
        evidence={},
        sealed=_SOME_DAY,
        receipt=None,
    )
