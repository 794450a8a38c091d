"""Level replay for verifiers: what the record alone must fulfil, then what was drawn, run again."""

from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from secrets import SystemRandom

from polo.checks import Check, Status, counted, problem
from polo.errors import FormatError, MissingError, PoloError, StoreError, TaskError
from polo.evidence.replay import asking
from polo.evidence.replay.distinct import LEAST_DISTINCT, distinct_bound, duplicates
from polo.evidence.replay.engine import quiet_generators
from polo.evidence.replay.motion import Motion
from polo.evidence.replay.recipe import Recipe
from polo.evidence.replay.request import Request
from polo.evidence.replay.rerun import Attempt, Rerun
from polo.evidence.replay.shown import Samples, Shown, State
from polo.evidence.replay.state import digest_of
from polo.evidence.replay.timeline import LEVEL, Timeline
from polo.keys import Ed25519Verifier
from polo.privacy import obfuscation
from polo.protocol import signing
from polo.protocol.carrier import Carrier
from polo.protocol.challenge import ANSWER_FILE, Answer, Challenge, Place
from polo.protocol.detection import MILLION
from polo.protocol.records import Manifest, Nonce
from polo.storage.folder import ProofFolder
from polo.tasks import Task
from polo.weights.checkpoint import Checkpoint

Listener = Callable[[str, int, int], None]
Reading = Future[tuple[State, Samples]]


_RANDOM = SystemRandom()
_TRIED = 16
"""Segments in which a sample is exchanged, to see whether it matters."""

_THREADS = 4
"""Threads that read and hash beside the runs: a few segments ahead, one behind."""

_SMALL = 2**29
"""Bytes of a model up to which several states at a time are no burden."""


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
    ) -> None:
        self._manifest = manifest
        self._carrier = carrier
        self._request = request
        self._tell = listener
        self.timeline = Timeline.load(folder, manifest)
        if not self.timeline.records:
            raise StoreError("no shard is sealed yet, so there is nothing to run again")
        self._rerun = Rerun(manifest, self.timeline, carrier, nonces, task, request.device)
        self._motion = Motion(self.timeline, carrier, self._rerun.trained)
        self._shown: Shown | None = None
        self._answer: Answer | None = None
        self._seen: set[int] = set()
        self._tried: frozenset[Place] = frozenset()
        # Each segment ahead holds a state in memory.
        self._lookahead = 3 if carrier.layout.size < _SMALL else 1
        self._sealed: dict[int, Check] = {}

    def opening(self) -> Iterator[Check]:
        """What must hold before anything is run: the record, the challenge, the answer."""
        yield from self.timeline.checks()
        challenge, answer = self._request.challenge, self._request.answer
        if challenge is None:
            yield asking.undrawn()
        elif found := asking.unfit(challenge, self.timeline):
            yield found
        elif answer is None:
            yield from asking.unanswered(challenge, self.timeline)
        elif not answer.is_dir():
            yield asking.absent(answer)
        else:
            shown = Shown(answer, challenge, self._carrier.layout, self._rerun.rest_layout)
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
            else:
                self._shown = shown

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
            yield from self._astray(number + 1, challenge, self._shown)
        if self._shown and challenge and number in challenge.sealings and seed:
            self._sealed[number] = self._sealing(number, checkpoint, self._shown)
            yield self._sealed[number]

    def _astray(self, shard: int, challenge: Challenge, shown: Shown) -> Iterator[Check]:
        """Drawn states that the recorded moves cannot have led to, or away from."""
        places = [place for place in challenge.segments if place.shard == shard]
        record = self.timeline.records.get(shard)
        if record is None or not places:
            return

        def look(place: Place) -> str:
            try:
                start = shown.model(place, record.boundaries[place.segment])
            except PoloError:
                return ""  # Said when the segment is run.
            return self._motion.astray(place, start)

        with ThreadPoolExecutor(_THREADS) as pool:
            for place, detail in zip(places, pool.map(look, places), strict=True):
                if detail:
                    found = Check("segment", Status.FAILED, detail, shard, level=LEVEL)
                    yield asking.placed(found, place, always=False)

    def closing(self) -> Iterator[Check]:
        """The drawn segments, run again."""
        yield from self._unseen()
        challenge, shown = self._request.challenge, self._shown
        if shown is None or challenge is None:
            return
        undone = list(self._undone(challenge))
        yield from undone
        data, always = _Data(self.timeline.recipe), self.timeline.required()
        count = min(_TRIED, len(challenge.segments))
        self._tried = frozenset(_RANDOM.sample(challenge.segments, count))
        segments: list[Check] = []
        with quiet_generators(), ThreadPoolExecutor(_THREADS) as pool:
            for at, (place, check) in enumerate(self._segments(challenge, shown, pool, data)):
                self._tell("running segments again", at, len(challenge.segments))
                segments.append(asking.placed(check, place, always=place in always))
                yield segments[-1]
        yield from data.checks()
        done = (*undone, *self._sealed.values(), *segments)
        if all(check.status is Status.PASSED for check in done):
            yield asking.drawn(challenge, self.timeline, segments)

    def _unseen(self) -> Iterator[Check]:
        """Records that no checkpoint could be held against."""
        for shard in self.timeline.records:
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
        self, challenge: Challenge, shown: Shown, pool: ThreadPoolExecutor
    ) -> Iterator[tuple[Place, Reading | None]]:
        """Segments with what the answer shows of them, read and hashed ahead of the runs."""
        waiting: list[tuple[Place, Reading | None]] = []
        for place in challenge.segments:
            known = self._rerun.knows(place.shard)
            reading = pool.submit(self._rerun.read, place, shown) if known else None
            waiting.append((place, reading))
            if len(waiting) > self._lookahead:
                yield waiting.pop(0)
        yield from waiting

    def _segments(
        self, challenge: Challenge, shown: Shown, pool: ThreadPoolExecutor, data: "_Data"
    ) -> Iterator[tuple[Place, Check]]:
        """The drawn segments, run again; each is judged while the next one runs."""
        running: tuple[Place, Attempt | Check] | None = None
        for place, reading in self._ahead(challenge, shown, pool):
            begun = self._attempt(place, reading, pool, data)
            if running:
                yield running[0], self._judged(running[1], shown, ends=challenge.ends)
            running = place, begun
        if running:
            yield running[0], self._judged(running[1], shown, ends=challenge.ends)

    def _attempt(
        self,
        place: Place,
        reading: Reading | None,
        pool: ThreadPoolExecutor,
        data: "_Data",
    ) -> Attempt | Check:
        """One segment, run again; whatever goes wrong is said of this segment."""
        if reading is None:
            detail = "the nonce of its shard does not hold, so it could not be run again"
            return Check("segment", Status.UNDECIDED, detail, place.shard, level=LEVEL)
        try:
            state, samples = reading.result()
            data.add(samples)
            exchange = samples.exchanged(_RANDOM) if place in self._tried else None
            attempt = self._rerun.attempt(place, state, samples, pool, exchange=exchange)
            data.note(place, attempt.effect)
            return attempt
        except Exception as error:
            self._rerun.forget()
            return _trouble("segment", error, place.shard)

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


class _Data:
    """What the shown samples are: different ones, of which training depends."""

    def __init__(self, recipe: Recipe) -> None:
        self._samples = recipe.samples
        self._least = recipe.effect / MILLION
        self._seen: dict[int, bytes] = {}
        self._effects: dict[Place, bool] = {}
        self._ran = False

    def add(self, samples: Samples) -> None:
        """Take note of a segment's samples."""
        self._seen |= samples.opening.contents()

    def note(self, place: Place, effect: bool | None) -> None:
        """Take note of whether a sample of a segment that was run made a difference."""
        self._ran = True
        if effect is not None:
            self._effects[place] = effect

    def checks(self) -> Iterator[Check]:
        """What can be said of the data once all segments were run."""
        if self._seen:
            yield self._distinct()
        if self._effects:
            yield self._effect()
        elif self._ran:
            detail = "no sample could be exchanged for another, so nobody knows whether they matter"
            yield Check("effect", Status.UNDECIDED, detail, level=LEVEL)

    def _effect(self) -> Check:
        """Whether steps depend on their samples; else they cost nothing to make up."""
        idle = [place for place, changed in self._effects.items() if not changed]
        share = 1 - len(idle) / len(self._effects)
        detail = f"in {len(self._effects)} segments one sample was exchanged for another; it "
        detail += f"changed the step in {share:.0%}, at least {self._least:.0%} asked"
        if idle:
            detail += f"; not in {idle[0]}"
        status = Status.PASSED if share >= self._least else Status.FAILED
        figures = {"tried": len(self._effects), "changed": share}
        advice = "Losses that are flat where a sample is learned (hinges) need a lower `effect`."
        advice = advice if status is Status.FAILED else ""
        return Check("effect", status, detail, figures=figures, advice=advice, level=LEVEL)

    def _distinct(self) -> Check:
        """Whether what was shown can come from as many different samples as were declared."""
        shown, repeated = len(self._seen), duplicates(self._seen.values())
        possible = distinct_bound(shown, repeated, self._samples)
        detail = f"{counted(shown, 'sample')} of {self._samples} were shown, {repeated} of them "
        detail += f"twice under other numbers; at most {possible:.0%} can be distinct"
        status = Status.PASSED if possible >= LEAST_DISTINCT else Status.FAILED
        figures = {"shown": shown, "repeated": repeated, "distinct": possible}
        return Check("data", status, detail, figures=figures, level=LEVEL)


def _trouble(name: str, error: Exception, shard: int) -> Check:
    """An error as a check: what an answer shows is the prover's word, a task the verifier's."""
    if isinstance(error, PoloError):
        own = isinstance(error, (TaskError, MissingError))
        status = Status.UNDECIDED if own else Status.FAILED
        return problem(name, error, status, shard=shard, level=LEVEL)
    detail = f"the task could not run it: {type(error).__name__}: {str(error)[:500]}"
    return Check(name, Status.UNDECIDED, detail, shard, level=LEVEL)
