"""Answering a challenge: the prover recomputes what was drawn, and shows it.

States between two checkpoints are not kept. They are computed again from the checkpoint that began
the shard, which takes at most as long as training did; the samples of other steps are not shown.

Specification: docs/protocol.md, section 17.7.
"""

import shutil
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

from polo.errors import ChainError, SignatureError, StoreError, TaskError, TermsError
from polo.evidence.replay import asking, platform
from polo.evidence.replay.data import DataSource
from polo.evidence.replay.engine import Engine, Shard, quiet_generators
from polo.evidence.replay.samples import encode_opening
from polo.evidence.replay.state import digest_of
from polo.evidence.replay.timeline import Timeline
from polo.privacy import obfuscation
from polo.protocol import chain, signing
from polo.protocol.challenge import (
    ANSWER_FILE,
    Answer,
    Challenge,
    Place,
    Secret,
    sealed_file,
    sealing_file,
)
from polo.protocol.digest import SIZE
from polo.protocol.records import Manifest
from polo.storage import atomic, history
from polo.storage.folder import ProofFolder, rest_path, state_path_of
from polo.tasks import Task
from polo.watermark.mark import carrier_of
from polo.weights.checkpoint import Checkpoint
from polo.weights.files import FileCheckpoint, open_plain, write_checkpoint

Listener = Callable[[str, int, int], None]


def answer(
    proof: str | Path,
    challenge: Challenge,
    *,
    task: Task,
    data: DataSource,
    key: signing.Signer,
    out: str | Path,
    device: str | None = None,
    listener: Listener = lambda *_: None,
    leaf: bytes | None = None,
) -> Path:
    """Write the answer to a challenge into a new folder.

    Args:
        proof: The prover's own proof; what is private lies beside it.
        challenge: What the verifier drew.
        task: The task, which runs the steps again.
        data: The data, with their secret.
        key: The prover's key.
        out: Folder to write, which must not exist yet.
        device: Where to compute; by default where it was trained.
        listener: Hears about progress.
        leaf: Leaf of the newest shard's entry in a registry's log, where the registry has drawn
            from that shard before it gives the receipt.
    """
    folder = Path(out)
    respondent = _Respondent(
        Path(proof), challenge, task, data, key, device, folder, listener, leaf
    )
    try:
        folder.mkdir(parents=True, mode=0o700)
    except FileExistsError as error:
        raise StoreError("is there already", place=str(out), advice="Give a new one.") from error
    try:
        with quiet_generators():
            respondent.shards()
        signed = signing.sign(Answer(challenge.digest, respondent.secrets()), key)
        atomic.write(folder / ANSWER_FILE, signed.to_bytes())
    except BaseException:
        # Half an answer would be taken for a whole one, and be in the way of the next.
        shutil.rmtree(folder, ignore_errors=True)
        raise
    return folder


class _Respondent:
    """Recomputes the shards that something was drawn from, newest first."""

    def __init__(
        self,
        proof: Path,
        challenge: Challenge,
        task: Task,
        data: DataSource,
        key: signing.Signer,
        device: str | None,
        out: Path,
        listener: Listener,
        leaf: bytes | None,
    ) -> None:
        self._folder = ProofFolder(proof)
        self._state = state_path_of(proof)
        self._challenge = challenge
        self._data = data
        self._out = out
        self._tell = listener
        self._manifest = self._folder.manifest()
        self._live = leaf is not None
        if challenge.proof != (self._manifest.digest if leaf is None else leaf):
            raise ChainError(
                "the challenge was drawn from another proof, or from an earlier state of this one",
                place=str(proof),
            )
        _check_means(self._manifest, task, data, key)
        self._master = _secret(self._state / "secret")
        self._timeline = Timeline.load(self._folder, self._manifest, leaf=leaf)
        # Nobody is shown more than the terms say: a registry learns no other shard's secrets.
        if self._live and (found := asking.immodest(challenge, self._timeline)):
            raise ChainError(found, place=f"shard {len(self._manifest.shards)}")
        self._layout = self._folder.layout()
        self._carrier = carrier_of(self._manifest.terms, self._layout)
        self._task = task
        self._device = device
        self._engine: Engine | None = None

    def secrets(self) -> tuple[Secret, ...]:
        """Secrets of the sealings that were drawn."""
        wanted = self._challenge.sealings
        return tuple(Secret(shard, obfuscation.secret_of(self._master, shard)) for shard in wanted)

    def shards(self) -> None:
        """Show everything that was drawn."""
        wanted, done = self._challenge.shards, 0
        for number, checkpoint in history.checkpoints(self._folder, self._manifest, self._layout):
            if self._live and number in self._challenge.sealings:
                self._put(sealed_file(number), checkpoint)
            if number + 1 in wanted:
                self._tell("computing again", done, len(wanted))
                with platform.adopted(self._timeline.records[number + 1].platform, own=True):
                    self._shard(number + 1, checkpoint)
                done += 1
        if done < len(wanted):
            raise StoreError("checkpoints that a shard began with are not here any more")

    def _shard(self, number: int, start: Checkpoint) -> None:
        engine = self._prepared(number)
        with ExitStack() as stack:
            engine.restore(start, self._rest(number - 1, engine, stack))
        nonce = self._folder.nonce(number)
        seed = chain.seed_of(
            self._manifest.enrolment, nonce, previous=self._manifest.root_before(number)
        )
        engine.enter(Shard(number, seed, self._timeline.before(number), nonce))
        at = 0
        for place in (place for place in self._challenge.segments if place.shard == number):
            span = self._timeline.span(place)
            self._run(engine, at, span.first)
            self._show(engine, place, place.segment, "")
            self._show_samples(engine, place, range(span.first, span.first + span.steps))
            at = span.first
            if self._challenge.ends:
                self._run(engine, at, span.first + span.steps)
                self._show(engine, place, place.segment + 1, "end-")
                at = span.first + span.steps
        if number in self._challenge.sealings:
            self._run(engine, at, self._manifest.shards[number - 1].steps)
            self._show_sealing(engine, number)

    def _prepared(self, number: int) -> Engine:
        """The engine, on the device that the shard was trained on."""
        device = platform.device_for(self._timeline.records[number].platform, self._device)
        if self._engine is None or self._engine.device != device:
            recipe, terms = self._timeline.recipe, self._manifest.terms
            self._engine = Engine(self._task, terms, self._carrier, recipe, device=device)
        return self._engine

    def _rest(self, shard: int, engine: Engine, stack: ExitStack) -> Checkpoint | None:
        """The optimizer's state at the end of a shard, from beside the proof."""
        if shard == 0 or engine.rest_layout is None:
            return None
        path = self._state / rest_path(shard)
        return stack.enter_context(FileCheckpoint.canonical(path, engine.rest_layout))

    def _run(self, engine: Engine, first: int, stop: int) -> None:
        batches = (self._data.batch(engine.order.batch(step)) for step in range(first, stop))
        engine.run(first, batches)

    def _show(self, engine: Engine, place: Place, boundary: int, prefix: str) -> None:
        model, rest = engine.state()
        self._check(engine, place, boundary, model, rest)
        self._put(place.file(f"{prefix}model"), model)
        if rest is not None:
            self._put(place.file(f"{prefix}rest"), rest)

    def _show_samples(self, engine: Engine, place: Place, steps: range) -> None:
        opening = self._data.open(engine.order.distinct(steps))
        atomic.write(self._out / place.file("samples"), encode_opening(opening))

    def _show_sealing(self, engine: Engine, number: int) -> None:
        last = len(self._timeline.records[number].boundaries) - 1
        model, rest = engine.state()
        self._check(engine, Place(number, last), last, model, rest)
        self._put(sealing_file(number), model)

    def _check(
        self,
        engine: Engine,
        place: Place,
        boundary: int,
        model: Checkpoint,
        rest: Checkpoint | None,
    ) -> None:
        """Refuse to show a state that is not the recorded one: it would be rejected."""
        recorded = self._timeline.records[place.shard].boundaries[boundary]
        if (digest_of(model), digest_of(rest)) != (recorded.model, recorded.rest):
            there = platform.parse(self._timeline.records[place.shard].platform, "record")
            apart = ", ".join(platform.same(there, platform.describe(engine.device)))
            raise ChainError(
                f"the state at boundary {boundary} does not come out as it was recorded"
                + (f", on another platform than here ({apart})" if apart else ""),
                place=f"shard {place.shard}",
                advice="Are these the arrays it was trained on, and is this the machine? Was every "
                "batch taken from prover.sampler, and does your loop do exactly what the task's "
                "train_step does?",
            )

    def _put(self, name: str, checkpoint: Checkpoint) -> None:
        with atomic.replacing(self._out / name, mode=0o600) as file:
            write_checkpoint(checkpoint, file.write)


def _check_means(manifest: Manifest, task: Task, data: DataSource, key: signing.Signer) -> None:
    """Refuse before hours of computing what could not lead to an answer."""
    terms = manifest.terms
    if key.public_key != manifest.enrolment.identity:
        raise SignatureError(
            "this key is not the one that was enrolled", advice="Sign with the key of the proof."
        )
    if (task.name, task.version) != (terms.task.name, terms.task.version):
        raise TaskError(
            f"the terms are about {terms.task.name} version {terms.task.version}; the task here is "
            f"{task.name} version {task.version}"
        )
    if data.root != terms.data:
        raise TermsError(
            "the data are not those that the terms name by their root",
            advice="Load the same arrays, with the secret that made the enrolled data.json.",
        )


def _secret(path: Path) -> bytes:
    """The secret that a prover keeps beside a proof."""
    with open_plain(path) as file:
        return file.read(SIZE)
