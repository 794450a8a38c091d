"""What somebody writes who has read this package and wants the proof without the training.

A `Forgery` is a prover without scruples. It draws the start, derives orders, marks and noise, and
takes steps exactly as a verifier will run them again (`train`). In between it may put any state in
the place of the one that training would have led to (`jump`), and claim any move for it. Marks can
be pressed by the closed-form edit alone (`pressed`), so that every sealing is a real one and
withstands replay: what does not is the segment that a jump stands for.
"""

import hashlib
import math
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from polo.embedding.embedder import Embedder
from polo.embedding.placement import parameters_of
from polo.evidence import start
from polo.evidence.replay import platform
from polo.evidence.replay.engine import Engine, quiet_generators
from polo.evidence.replay.engine import Shard as Setting
from polo.evidence.replay.record import Boundary, Record
from polo.evidence.replay.state import digest_of, trained_names
from polo.privacy import obfuscation
from polo.protocol import chain
from polo.protocol.detection import MILLION
from polo.protocol.records import FinishRecord, FinishTerms, NoiseRecord, Nonce, Shard, Start
from polo.watermark.mark import carrier_of, derive
from polo.watermark.reading import read, values_of
from polo.weights.checkpoint import checkpoint_of
from polo.weights.hashing import commit
from polo_lab.attacks.effort.answering import Kept, Respondent
from polo_lab.attacks.effort.keeping import Again, Keeping
from polo_lab.attacks.effort.snapshot import Snapshot, put, taken
from polo_lab.attacks.effort.substitute import Substitute
from polo_lab.attacks.effort.writing import Writing
from polo_lab.attacks.state import State
from polo_lab.effort.case import Attempt, Case
from polo_lab.effort.plan import Plan
from polo_lab.effort.training import Enrolled

Claim = tuple[int, int]
"""Moves of model and rest, as a record has them."""


class Forgery:
    """A proof in the making.

    Args:
        case: The case.
        folder: The proof folder to write.
        who: Who makes it; by default the case's attacker.
        machine: What to say about the machine; by default the truth.
        steps: Steps of every shard; by default the fewest that the terms allow.
        plan: The plan of whoever makes it, if it is not the case's.

    Attributes:
        task: The case's task; its `step` can be replaced by another one.
        batch: Looks up the samples of a step; can be replaced, too.
        now: The state at the current boundary.
        shard: Number of the current shard.
        claims: Moves of the current shard's segments so far, as its record will have them.
        keep: Keeps a state until it is asked for.
    """

    def __init__(
        self,
        case: Case,
        folder: Path,
        *,
        who: Enrolled | None = None,
        machine: str | None = None,
        steps: int | None = None,
        plan: Plan | None = None,
    ) -> None:
        self._began = time.perf_counter()
        self.case = case
        self.task = Substitute(case.task)
        self.who = who or case.enrolled
        self.terms = self.who.enrolment.record.terms
        self.steps = steps or self.terms.shards.fewest_steps
        self.recipe = (plan or case.plan).recipe(self.who.source.samples)
        self.layout = checkpoint_of(case.task.build_model()).layout
        self.carrier = carrier_of(self.terms, self.layout)
        self.engine = Engine(self.task, self.terms, self.carrier, self.recipe, device=case.device)
        self.batch = self.who.source.batch
        self.shard = 0
        self.claims: list[Claim] = []
        self._machine = machine or platform.text_of(platform.describe(self.engine.device))
        self._master = hashlib.sha256(str(folder).encode()).digest()
        self._writing = Writing(folder, self.who, self.layout)
        self._boundaries: list[Boundary] = []
        self._kept: dict[int, Kept] = {}
        self.keep = Keeping(folder.with_name(f"{folder.name}-kept")).keep
        self._nonces = {nonce.shard: nonce for nonce in self.who.enrolment.drawn}
        self.now = taken(self.engine)

    @property
    def shards(self) -> int:
        """Shards that the terms ask for."""
        return self.terms.shards.least

    @property
    def segments(self) -> int:
        """Segments of a shard."""
        return self.recipe.segments(self.steps)

    @property
    def segment(self) -> int:
        """The segment of the current shard that comes next."""
        return len(self.claims)

    @property
    def seed(self) -> bytes:
        """The seed of the current shard's mark and order."""
        record, previous = self.who.enrolment.record, self._writing.last_root
        return chain.seed_of(record, self._nonces[self.shard], previous=previous)

    def begin(self, state: State | None = None) -> Snapshot:
        """Put W_0 in place: the drawn one, or another where the attacker dares; enter shard 1."""
        start.draw_start(self.engine.model, self.who.enrolment)
        if state is not None:
            self.engine.model.load_state_dict(dict(state))
        checkpoint = checkpoint_of(self.engine.model)
        self.engine.restore(checkpoint, None)
        promise = obfuscation.secret_commitment(obfuscation.secret_of(self._master, 1))
        self._writing.begin(Start(commit(checkpoint).root, promise, None), checkpoint)
        self._enter(1)
        return self.now

    def train(self, segments: int = 1) -> Snapshot:
        """Take the steps of some segments as a verifier will run them again."""
        for _ in range(segments):
            before, after = self.now, self._run()
            self._append(after, self._moves(before, after))
        return self.now

    def train_and_edit(
        self, edit: Callable[[Snapshot], Snapshot], claim: Claim | None = None
    ) -> Snapshot:
        """Take the steps of one segment, and put another state in the place of their outcome.

        Args:
            edit: Makes the other state of the true one.
            claim: The moves to claim; by default those of an honest segment.
        """
        before, honest = self.now, self._run()
        after = edit(honest)
        self._append(after, claim or self._moves(before, honest), again=self.keep(after))
        return self.now

    @property
    def span(self) -> range:
        """The steps of the next segment."""
        first = self.segment * self.recipe.every
        return range(first, min(first + self.recipe.every, self.steps))

    def jump(
        self, to: Snapshot, claim: Claim | None = None, *, again: Again | None = None
    ) -> Snapshot:
        """Put a state in the place of the one that the next segment would have led to.

        Args:
            to: The state.
            claim: The moves to claim for it; by default the true ones.
            again: Gives the state again, if it need not be kept for that.
        """
        self._append(to, claim or self._moves(self.now, to), again=again or self.keep(to))
        return to

    def pressed(self, snapshot: Snapshot) -> Snapshot:
        """A state with the current shard's mark pressed into it, and nothing else done."""
        put(self.engine, snapshot)
        # The budget of the finishing step binds nobody who writes their own code.
        loose = replace(self.terms, finish=FinishTerms(MILLION, self.terms.finish.margin))
        embedder = Embedder(loose, self.carrier, self.seed, parameters_of(self.engine.model))
        embedder.apply(embedder.finish())
        done = taken(self.engine)
        put(self.engine, self.now)
        return done

    def seal(self, hidden: Snapshot | None = None) -> Snapshot:
        """Seal the shard: a real finishing step and real noise, unless a jump hides in them.

        Args:
            hidden: Weights that the sealing is to end in, in the place of its own.
        """
        before, sealed = self.now, self.previewed()
        claim = self._moves(before, sealed)[0], 0
        if hidden is not None:
            sealed = replace(self.pressed(hidden), rest=before.rest)
        put(self.engine, sealed)
        self._write(self._nonces[self.shard], claim)
        self.now = sealed
        if self.shard < self.shards:
            self._enter(self.shard + 1)
        return self.now

    def previewed(self) -> Snapshot:
        """What sealing would make of the weights now; nothing is sealed."""
        self.engine.seal(obfuscation.secret_of(self._master, self.shard), self.terms.noise.least)
        sealed = replace(taken(self.engine), rest=self.now.rest)
        put(self.engine, self.now)
        return sealed

    def nonce(self, shard: int) -> Nonce:
        """The nonce of a shard; offline a forger knows them all."""
        return self._nonces[shard]

    def finish(self, note: str = "", *, possible: bool = True) -> Attempt:
        """Sign the proof and hand it over.

        Args:
            note: What a reader of the table should know.
            possible: Whether there was anything to leave out.
        """
        proof = self._writing.finish()
        respond = Respondent(
            self.who,
            self.engine,
            every=self.recipe.every,
            master=self._master,
            shards=self._kept,
            batch=self.batch,
        )
        seconds = time.perf_counter() - self._began
        steps = self.task.rows / self.recipe.batch
        return Attempt(proof, respond, seconds, math.ceil(steps), note, possible)

    def _enter(self, number: int) -> None:
        self.shard = number
        self.claims, self._boundaries = [], []
        before = (number - 1) * self.steps
        setting = Setting(number, self.seed, before, self._nonces[number])
        self.engine.enter(setting)
        state = taken(self.engine)
        self._kept[number] = Kept(setting, self.steps, {0: self.keep(state)})
        self._append(state, None)

    def _moves(self, before: Snapshot, after: Snapshot) -> Claim:
        return before.moved_to(after, trained_names(self.engine.model))

    def _run(self) -> Snapshot:
        span, order = self.span, self.engine.order
        with quiet_generators():
            self.engine.run(span.start, (self.batch(order.batch(at)) for at in span))
        return taken(self.engine)

    def _append(self, state: Snapshot, claim: Claim | None, *, again: Again | None = None) -> None:
        model, rest = state.checkpoints()
        self._boundaries.append(Boundary(digest_of(model), digest_of(rest)))
        if claim is not None:
            self.claims.append(claim)
        if again:
            put(self.engine, state)
            self._kept[self.shard].states[self.segment] = again
        self.now = state

    def _write(self, nonce: Nonce, claim: Claim) -> None:
        checkpoint = checkpoint_of(self.engine.model)
        commitment = commit(checkpoint)
        mark = derive(self.terms, self.carrier, self.seed)
        record = Record(tuple(self._boundaries), (*self.claims, claim), self._machine)
        replayed = any(item.level == "replay" for item in self.terms.evidence)
        following = obfuscation.secret_of(self._master, self.shard + 1)
        accuracy = self.case.task.evaluate(self.engine.model)
        shard = Shard(
            shard=self.shard,
            previous=self._writing.last_root,
            root=commitment.root,
            epochs=self.case.plan.passes,
            steps=self.steps,
            matches=read(mark, values_of(mark, self.carrier, checkpoint)).matches,
            metrics={self.terms.task.metric: round(accuracy * MILLION)},
            finish=FinishRecord(0, 0),
            noise=NoiseRecord(self.terms.noise.least, obfuscation.secret_commitment(following)),
            evidence={"replay": record.digest} if replayed else {},
            sealed=int(time.time()),
            receipt=None,
        )
        opening = commitment.open(checkpoint, self.carrier.leaves(mark.blocks))
        self._writing.shard(
            shard, checkpoint, opening, nonce, record.encode() if replayed else None
        )
