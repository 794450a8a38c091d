"""Level replay for verifiers: what the record alone must fulfil, then what was drawn, run again."""

import bisect
import itertools
import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from secrets import SystemRandom

import torch

from polo.checks import Check, Status, problem
from polo.errors import FormatError, MissingError, PoloError, StoreError, TaskError
from polo.evidence import start
from polo.evidence.receipts.rules import replays
from polo.evidence.replay import asking
from polo.evidence.replay.engine import quiet_generators
from polo.evidence.replay.motion import Motion
from polo.evidence.replay.request import Request
from polo.evidence.replay.rerun import Attempt, Rerun
from polo.evidence.replay.rooms import Rooms
from polo.evidence.replay.shown import Samples, Shown, State
from polo.evidence.replay.state import digest_of
from polo.evidence.replay.teaching import Teaching, Width
from polo.evidence.replay.timeline import LEVEL, Timeline
from polo.keys import Ed25519Verifier
from polo.privacy import obfuscation
from polo.protocol import signing
from polo.protocol.carrier import Carrier
from polo.protocol.challenge import ANSWER_FILE, Answer, Challenge, Place
from polo.protocol.records import Manifest, Nonce
from polo.storage.folder import ProofFolder
from polo.tasks import Task
from polo.weights.checkpoint import Checkpoint, HeldCheckpoint

Listener = Callable[[str, int, int], None]
Reading = Future[tuple[State, Samples]]


_RANDOM = SystemRandom()
_TRIED = 16
"""Segments in which a sample is exchanged, to see whether it matters."""

_COMPARED = 3
"""Segments whose samples are compared before they are called copies."""

_WIDE, _ROUNDS = 8, 2
"""Points at which it is seen how much of a step must be computed, and how often as many are drawn:
the others only if the first leave a doubt."""

_SMALL = 2**28
"""Bytes of a model up to which several states at a time are no burden."""

_FEWEST, _MOST = 3, 8
"""Segments that are read ahead of such models: on two cores, and at most."""


class Replay:
    """One verification at level replay: it sees every checkpoint, then runs what was drawn.

    Args:
        folder: The proof.
        manifest: Its manifest.
        carrier: Its carrier.
        nonces: The nonces that hold, by shard.
        task: The verifier's task.
        request: Challenge and answer.
        listener: Hears about progress.
        leaf: Leaf of the newest shard's entry, where a registry has drawn from that shard alone
            before it gives the receipt; then `newest` takes the place of `see`.
    """

    def __init__(
        self,
        folder: ProofFolder,
        manifest: Manifest,
        carrier: Carrier,
        nonces: Mapping[int, Nonce],
        task: Task,
        request: Request,
        listener: Listener,
        *,
        leaf: bytes | None = None,
    ) -> None:
        self._manifest = manifest
        self._carrier = carrier
        self._request = request
        self._tell = listener
        self._task = task
        self.timeline = Timeline.load(folder, manifest, leaf=leaf)
        if not self.timeline.records:
            raise StoreError("no shard is sealed yet, so there is nothing to run again")
        self._rerun = Rerun(manifest, self.timeline, carrier, nonces, task, request.device)
        self._motion = Motion(self.timeline, carrier, self._rerun.trained)
        self._shown: Shown | None = None
        self._answer: Answer | None = None
        self._seen: set[int] = set()
        self._tried: frozenset[Place] = frozenset()
        self._small = carrier.layout.size < _SMALL
        # Each segment ahead holds a state in memory, and so do the one that runs and the one that
        # ran before it.
        self._lookahead = _ahead_of(carrier.layout.size) if self._small else 1
        self._sealed: dict[int, Check] = {}
        self._strays: list[Check] = []
        self._looking: deque[tuple[Place, Future[str]]] = deque()
        self._pool = ThreadPoolExecutor(self._lookahead + 1)

    def opening(self) -> Iterator[Check]:
        """What must hold before anything is run: the record, the challenge, the answer."""
        yield from self.timeline.checks()
        challenge, answer = self._request.challenge, self._request.answer
        if challenge is None:
            yield self._undrawn()
        elif found := asking.unfit(challenge, self.timeline):
            yield found
        elif answer is None:
            yield from asking.unanswered(challenge, self.timeline)
        elif not answer.is_dir():
            yield asking.absent(answer)
        else:
            layouts = self._carrier.layout, self._rerun.rest_layout
            rooms = Rooms(pinned=self._rerun.device.startswith("cuda") and self._small)
            shown = Shown(answer, challenge, *layouts, rooms)
            try:
                self._answer = shown.record()
                signing.check(
                    self._answer,
                    self._manifest.enrolment.identity,
                    Ed25519Verifier(),
                    place=ANSWER_FILE,
                )
            except PoloError as error:
                yield problem("draw", error, Status.FAILED, level=LEVEL)
                yield from asking.unanswered(challenge, self.timeline)
            else:
                self._shown = shown

    def _undrawn(self) -> Check:
        """What there is to say where nothing was drawn from the proof."""
        if not replays(self._manifest.terms):
            return asking.undrawn()
        streamed = self._request.streamed
        return asking.elsewhere() if streamed is None else asking.grown(streamed, self.timeline)

    def newest(self) -> Iterator[Check]:
        """The checkpoints around the newest shard, as the answer shows them, seen."""
        shown, (shard,) = self._shown, self.timeline.scope
        if shown is None:
            return
        for number, read in ((shard, shown.sealed), (shard - 1, shown.first)):
            try:
                checkpoint = read(shard, self._manifest.root_before(number + 1))
            except PoloError as error:
                yield problem("root", error, Status.FAILED, shard=shard, level=LEVEL)
                return
            yield from self.see(number, checkpoint)

    def see(self, number: int, checkpoint: Checkpoint) -> Iterator[Check]:
        """What binds a stored checkpoint to the records around it, and its own sealing."""
        self._seen.add(number)
        record = self.timeline.records.get(number + 1)
        if record and digest_of(checkpoint) != record.boundaries[0].model:
            detail = "its first recorded state is not the checkpoint that it starts from"
            yield Check("record", Status.FAILED, detail, number + 1, level=LEVEL)
        seed = self._rerun.seed(number) if self._rerun.knows(number) else None
        yield from self._motion.see(number, checkpoint, seed)
        challenge = self._request.challenge
        if self._shown and challenge:
            self._look(number + 1, challenge, self._shown)
            yield from self._strayed(self._lookahead)
        if self._shown and challenge and number in challenge.sealings and seed:
            self._sealed[number] = self._sealing(number, checkpoint, self._shown)
            yield self._sealed[number]

    def _look(self, shard: int, challenge: Challenge, shown: Shown) -> None:
        """Begin to look where the drawn segments of a shard start, beside the walk."""
        record = self.timeline.records.get(shard)
        if record is None:
            return
        astray = self._motion.astray(shard)

        def look(place: Place) -> str:
            try:
                start = shown.model(place, record.boundaries[place.segment])
            except PoloError:
                return ""  # Said when the segment is run.
            return astray(place, start)

        for place in challenge.segments:
            if place.shard == shard:
                self._looking.append((place, self._pool.submit(look, place)))

    def _strayed(self, waiting: int) -> Iterator[Check]:
        """Drawn states that the recorded moves cannot have led to, or away from.

        Args:
            waiting: How many may still be looked at; each holds weights in memory.
        """
        while len(self._looking) > waiting:
            place, looked = self._looking.popleft()
            if detail := looked.result():
                found = Check("segment", Status.FAILED, detail, place.shard, level=LEVEL)
                self._strays.append(asking.placed(found, place, always=False))
                yield self._strays[-1]

    def closing(self) -> Iterator[Check]:
        """The drawn segments, run again."""
        yield from self._unseen()
        challenge, shown = self._request.challenge, self._shown
        if shown is None or challenge is None:
            return
        yield from self._strayed(0)
        undone = list(self._undone(challenge))
        yield from undone
        data, always = (
            Teaching(self._manifest.terms, self.timeline.recipe),
            self.timeline.required(),
        )
        count = min(_TRIED, len(challenge.segments))
        self._tried = frozenset(_RANDOM.sample(challenge.segments, count))
        segments: list[Check] = []
        with quiet_generators(), self._pool:
            for at, (place, check) in enumerate(self._segments(challenge, shown, data)):
                self._tell("running segments again", at, len(challenge.segments))
                segments.append(asking.placed(check, place, always=place in always))
                data.judged(place, check)
                yield segments[-1]
            self._tell("comparing samples", 0, 1)
            yield from self._compared(shown, data)
            self._tell("measuring steps", 0, 1)
            yield from self._widened(shown, data)
        self._rerun.close()
        yield from data.checks()
        done = (*undone, *self._strays, *self._sealed.values(), *segments)
        if all(check.status is Status.PASSED for check in done):
            yield asking.drawn(challenge, self.timeline, segments)

    def _compared(self, shown: Shown, data: Teaching) -> Iterator[Check]:
        """Samples must differ by more than steps can hide."""
        if not (self._untaught_is_here or self.timeline.recipe.tolerance):
            return  # Nothing is forgiven, and the weights that know no sample yet are not here.
        passed = data.comparable
        places = [place for place in passed if self.timeline.whole(place)] or passed
        for place in _RANDOM.sample(places, min(_COMPARED, len(places))):
            try:
                _, samples = self._rerun.read(place, shown)
                alike = self._rerun.likeness(
                    samples, self._untaught(shown), _RANDOM, forgiven=data.forgiving
                )
                if data.compare(place, alike):
                    return
            except Exception as error:
                self._rerun.forget()
                yield _trouble("copies", error, place.shard)
                return

    def _widened(self, shown: Shown, data: Teaching) -> Iterator[Check]:
        """How much of a step must be computed, at points of the run from its first to its last."""
        known: dict[Place, Width] = {}
        for _ in range(_ROUNDS):
            some = self._points(data.passed)
            fresh = [place for place in dict.fromkeys(some) if place not in known]
            trouble = None
            for place, reading in self._ahead(fresh, shown):
                try:
                    assert reading is not None, "a segment that passed was read before"
                    state, samples = reading.result()
                    off = data.allowed(place)
                    known[place] = self._rerun.width(place, samples, state, forgiven=off)
                except Exception as error:
                    self._rerun.forget()
                    trouble = _trouble("width", error, place.shard)
                    break
            data.measure([known[place] for place in some if place in known])
            if trouble:
                yield trouble
            if trouble or data.surely_wide:
                return

    def _points(self, passed: Iterable[Place]) -> list[Place]:
        """Segments at points of all that passed, from the first to the last."""
        places = sorted(passed, key=lambda at: (at.shard, at.segment))
        found = spread([self.timeline.span(at).steps for at in places], _WIDE)
        return [places[at] for at in found]

    @property
    def _untaught_is_here(self) -> bool:
        return 1 in self.timeline.scope or self._manifest.terms.start.kind == "derived"

    def _untaught(self, shown: Shown) -> State:
        """W_0, which knows nothing yet: shown if shard 1 was drawn from, else drawn again."""
        if 1 in self.timeline.scope:
            return shown.start(Place(1, 0), self.timeline.records[1].boundaries[0])
        if not self._untaught_is_here:
            raise TaskError("only shard 1, or a drawn start, shows how alike samples are")
        drawn = start.drawn(self._task.build_model(), start.start_seed(self._manifest.enrolment))
        return State(HeldCheckpoint.copy_of(drawn), None)

    def _unseen(self) -> Iterator[Check]:
        """Records that no checkpoint could be held against."""
        if self._request.streamed is not None and replays(self._manifest.terms):
            return  # They were held against those of the shards that were drawn from.
        for shard in self.timeline.scope:
            if not {shard - 1, shard} <= self._seen:
                detail = "not both checkpoints around it are here, so the record hangs in the air"
                advice = "Ask the prover for the proof with every checkpoint."
                yield Check("record", Status.UNDECIDED, detail, shard, advice=advice, level=LEVEL)

    def _undone(self, challenge: Challenge) -> Iterator[Check]:
        """Sealings that were asked for and could not be done again."""
        for shard in challenge.sealings:
            if shard not in self._sealed:
                detail = "was asked for; its checkpoint or its nonce is not here, or does not hold"
                yield Check("sealing", Status.UNDECIDED, detail, shard, level=LEVEL)

    def _ahead(
        self, places: Iterable[Place], shown: Shown
    ) -> Iterator[tuple[Place, Reading | None]]:
        """Segments with what the answer shows of them, read and hashed ahead of the runs."""
        waiting: list[tuple[Place, Reading | None]] = []
        for place in places:
            known = self._rerun.knows(place.shard)
            reading = self._pool.submit(self._rerun.read, place, shown) if known else None
            waiting.append((place, reading))
            if len(waiting) > self._lookahead:
                yield waiting.pop(0)
        yield from waiting

    def _segments(
        self, challenge: Challenge, shown: Shown, data: Teaching
    ) -> Iterator[tuple[Place, Check]]:
        """The drawn segments, run again; each is judged while the next one runs."""
        running: tuple[Place, Attempt | Check] | None = None
        for place, reading in self._ahead(challenge.segments, shown):
            begun = self._attempt(place, reading, data)
            if running:
                yield running[0], self._judged(running[1], shown, ends=challenge.ends)
            running = place, begun
        if running:
            yield running[0], self._judged(running[1], shown, ends=challenge.ends)

    def _attempt(
        self,
        place: Place,
        reading: Reading | None,
        data: Teaching,
    ) -> Attempt | Check:
        """One segment, run again; whatever goes wrong is said of this segment."""
        if reading is None:
            detail = "the nonce of its shard does not hold, so it could not be run again"
            return Check("segment", Status.UNDECIDED, detail, place.shard, level=LEVEL)
        try:
            state, samples = reading.result()
        except Exception as error:
            return _trouble("segment", error, place.shard)
        try:
            data.add(samples)
            exchange = samples.exchanged(_RANDOM) if place in self._tried else None
            attempt = self._rerun.attempt(place, state, samples, exchange=exchange)
            data.note(place, attempt.effect)
            return attempt
        except Exception as error:
            self._rerun.forget()
            if isinstance(error, (PoloError, *_OWN)):
                return _trouble("segment", error, place.shard)
            return self._stumbled(place, error, state, samples)

    def _stumbled(self, place: Place, error: Exception, state: State, samples: Samples) -> Check:
        """A step that raised: by what was shown, if it does not on zeros."""
        if not self._rerun.harmless(place, state, samples):
            return _trouble("segment", error, place.shard)
        detail = f"no step can be made on its samples: {type(error).__name__}: {str(error)[:500]}"
        return Check("segment", Status.FAILED, detail, place.shard, level=LEVEL)

    def _judged(self, attempt: Attempt | Check, shown: Shown, *, ends: bool) -> Check:
        if isinstance(attempt, Check):
            return attempt
        try:
            return self._rerun.judged(attempt, shown, ends=ends)
        except Exception as error:
            self._rerun.forget()
            return _trouble("segment", error, attempt.place.shard)

    def _sealing(self, number: int, checkpoint: Checkpoint, shown: Shown) -> Check:
        """The sealing of a shard, done again."""
        try:
            recorded = self.timeline.records[number].boundaries[-1]
            before, secret = shown.sealing(number, recorded), self._secret(number)
            with quiet_generators():
                return self._rerun.sealing(number, before, checkpoint, secret)
        except Exception as error:
            self._rerun.forget()
            return _trouble("sealing", error, number)

    def _secret(self, number: int) -> bytes:
        """The opened secret of a shard's obfuscation, if it is the one committed to before."""
        assert self._answer is not None
        start, shards = self._manifest.start, self._manifest.shards
        promised = shards[number - 2].noise.next_secret if number > 1 else start.secret
        for item in self._answer.secrets:
            if item.shard == number:
                if obfuscation.secret_commitment(item.secret) == promised:
                    return item.secret
                detail = "the secret of its noise is not the one that was committed to before"
                raise FormatError(detail, place=ANSWER_FILE)
        raise FormatError("the secret of its noise is not shown", place=ANSWER_FILE)


_OWN = (MemoryError, OSError, ImportError, torch.OutOfMemoryError, torch.AcceleratorError)
"""Errors of the verifier's own machine."""


def spread(steps: Sequence[int], count: int) -> list[int]:
    """Segments at random points of a run, one in each of so many equal parts of all its steps.

    Args:
        steps: The steps of each segment, laid end to end.
        count: How many points.

    Returns:
        For each point the number of the segment that it lies in.
    """
    ends = list(itertools.accumulate(steps))
    total = ends[-1] if ends else 0
    points = (
        (at * total + _RANDOM.randrange(total)) // count for at in range(count if total else 0)
    )
    return [bisect.bisect_right(ends, point) for point in points]


def _ahead_of(size: int) -> int:
    """Segments to read ahead of a small model, by its bytes: as many as cores and memory have."""
    return max(_FEWEST, min(_MOST, (os.cpu_count() or 1) - 1, _SMALL // max(size, 1)))


def _trouble(name: str, error: Exception, shard: int) -> Check:
    """An error as a check: what an answer shows is the prover's word, a task the verifier's."""
    if isinstance(error, PoloError):
        own = isinstance(error, (TaskError, MissingError))
        status = Status.UNDECIDED if own else Status.FAILED
        return problem(name, error, status, shard=shard, level=LEVEL)
    detail = f"the task could not run it: {type(error).__name__}: {str(error)[:500]}"
    return Check(name, Status.UNDECIDED, detail, shard, level=LEVEL)
