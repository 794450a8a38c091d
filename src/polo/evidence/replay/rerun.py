"""Running again what an answer shows, and comparing it with what was recorded.

Where the verifier's platform is the prover's, states must come out to the bit. Elsewhere they may
differ as far as honest repetitions of the same segment differ here, relative to how far the segment
moves: a small step gives a small allowance, so that a forged path cannot hide in small steps.

Specification: docs/protocol.md, sections 17.8 and 17.9.
"""

import functools
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch

from polo.checks import Check, Status, counted
from polo.errors import FormatError
from polo.evidence.replay import calibration, platform
from polo.evidence.replay.engine import Ended, Engine, Shard
from polo.evidence.replay.likeness import Likeness, likeness
from polo.evidence.replay.order import Order
from polo.evidence.replay.products import Products
from polo.evidence.replay.record import Record
from polo.evidence.replay.shown import Samples, Shown, State
from polo.evidence.replay.state import MOVE_ONE, SATURATED, Snapshot, digest_of
from polo.evidence.replay.teaching import Width
from polo.evidence.replay.timeline import LEVEL, Timeline
from polo.protocol import chain
from polo.protocol.carrier import Carrier
from polo.protocol.challenge import Place
from polo.protocol.detection import MILLION
from polo.protocol.records import Manifest, Nonce
from polo.tasks import Task
from polo.tasks.training import Screening, inputs_of
from polo.weights.checkpoint import Checkpoint
from polo.weights.hashing import commit

_SEALING_TOLERANCE = 1e-5
_MOVE_TOLERANCE = 1e-3


@dataclass(frozen=True)
class Attempt:
    """A segment that was run again.

    Attributes:
        place: The segment.
        state: What it started from.
        samples: What it trained on.
        ended: Waits for how it ended.
        effect: How far exchanging one sample took its first step, as a share of that step, or
            infinity where that does not matter; None if that was not tried.
    """

    place: Place
    state: State
    samples: Samples
    ended: Callable[[], Ended]
    effect: float | None


class Rerun:
    """A verifier's engine, and what it is fed with.

    Args:
        manifest: What the proof says.
        timeline: Its records, of at least one shard.
        carrier: Its carrier.
        nonces: The nonces that hold, by shard.
        task: The verifier's task.
        device: Where to run; by default where it was trained, if such a device is here.

    Attributes:
        device: Where the first shard is run.
        trained: Names of the parameters that are trained.
        rest_layout: The layout of the optimizer's state; None if it keeps none.
    """

    def __init__(
        self,
        manifest: Manifest,
        timeline: Timeline,
        carrier: Carrier,
        nonces: Mapping[int, Nonce],
        task: Task,
        device: str | None,
    ) -> None:
        self._manifest = manifest
        self._timeline = timeline
        self._carrier = carrier
        self._nonces = nonces
        self._task = task
        self._device = device
        self._engine: Engine | None = None
        engine = self._prepared(timeline.records[1])
        self.device = engine.device
        self.trained = engine.trained
        self.rest_layout = engine.rest_layout
        self._parts = calibration.parts_of(carrier.layout, engine.rest_layout, engine.trained)

    def knows(self, shard: int) -> bool:
        """Whether the nonce of a shard holds; without it nothing of the shard can be run."""
        return shard in self._nonces

    def seed(self, number: int) -> bytes:
        """The seed of a shard."""
        previous = self._manifest.root_before(number)
        return chain.seed_of(self._manifest.enrolment, self._nonces[number], previous=previous)

    def forget(self) -> None:
        """Make a new engine next time; who knows what a task that failed has done to this one."""
        self._engine = None

    def close(self) -> None:
        """Let go of the engine."""
        if self._engine:
            self._engine.close()
        self._engine = None

    def read(self, place: Place, shown: Shown) -> tuple[State, Samples]:
        """What an answer shows of a segment."""
        record, span = self._timeline.records[place.shard], self._timeline.span(place)
        recipe, root = self._timeline.recipe, self._manifest.terms.data
        assert root is not None
        state = shown.start(place, record.boundaries[place.segment])
        order = Order(self.seed(place.shard), recipe.samples, recipe.batch)
        steps = range(span.first, span.first + span.steps)
        columns = self._task.columns  # type: ignore[attr-defined]
        samples = shown.samples(place, order, steps, columns, root)
        # Here, where segments are read ahead, and not where the next one waits to be run.
        _ = samples.opening.contents
        return state, samples

    def attempt(
        self,
        place: Place,
        state: State,
        samples: Samples,
        *,
        exchange: Mapping[str, torch.Tensor] | None = None,
    ) -> "Attempt":
        """Run a segment; its digests are taken in the background, while the next one runs.

        Args:
            place: The segment.
            state: What it starts from, as it was recorded.
            samples: What it trains on.
            exchange: Its first batch with one sample exchanged, to see whether samples matter.
        """
        record = self._timeline.records[place.shard]
        with platform.adopted(record.platform):
            engine = self._prepared(record)
            engine.restore(state.model, state.rest)
            self._screen(samples)
            before = engine.copied() if exchange else None
            other = self._step(engine, place, before, exchange) if exchange and before else None
            # Where nothing is forgiven, nobody asks by how much a step was changed.
            since = before if self._timeline.recipe.tolerance else None
            changed: list[float] = []
            engine.enter(self._shard(place.shard))
            ended = engine.segment(
                self._timeline.span(place).first,
                samples.tensors(),
                start=record.boundaries[place.segment],
                stepped=(lambda: changed.append(engine.differs_from(other, since)))
                if other
                else None,
            )
        return Attempt(place, state, samples, ended, changed[0] if changed else None)

    def judged(self, attempt: "Attempt", shown: Shown, *, ends: bool) -> Check:
        """Whether a segment came out as it was recorded.

        Args:
            attempt: The segment, run again.
            shown: The answer, for the state at the end where the platform is another one.
            ends: Whether the states at the ends were asked for.
        """
        place = attempt.place
        recorded = self._timeline.records[place.shard].boundaries[place.segment + 1]
        ended = attempt.ended()
        if ended.boundary == recorded:
            return self._moved(place, ended.moves, None)
        return self._inexact(place, attempt.state, attempt.samples, shown, ends=ends)

    def _inexact(
        self, place: Place, state: State, samples: Samples, shown: Shown, *, ends: bool
    ) -> Check:
        """A segment that came out otherwise than recorded, run once more: is it the platform?"""
        record = self._timeline.records[place.shard]
        recorded = record.boundaries[place.segment + 1]
        with platform.adopted(record.platform):
            engine = self._prepared(record)
            end = State.copy_of(self._run(engine, place, state, samples))
            if (digest_of(end.model), digest_of(end.rest)) == (recorded.model, recorded.rest):
                return self._moved(place, self._measured(state, end), None)
            differing = platform.same(
                platform.parse(record.platform, "record"), platform.describe(engine.device)
            )
            if not differing and self._settled(engine, place, state, samples, end):
                task = self._manifest.terms.task
                detail = "came out otherwise than recorded, on the platform it was trained on, by "
                detail += f"the steps of {task.name} version {task.version}"
                return _failed("segment", detail, place.shard)
            why = differing[0] if differing else "here it comes out otherwise each time"
            detail = f"came out otherwise than recorded, on another platform ({why})"
            if not self._timeline.recipe.tolerance:
                detail += "; the terms allow no deviation at all"
                return _open(
                    "segment", detail, place.shard, "Verify on a platform like the prover's."
                )
            if not ends:
                advice = "Draw a challenge that asks for the ends of segments, too: --ends."
                return _open("segment", detail, place.shard, advice)
            their = shown.end(place, recorded)
            return self._compared(engine, place, state, samples, end, their)

    def sealing(self, number: int, before: Checkpoint, after: Checkpoint, secret: bytes) -> Check:
        """The sealing of a shard, done again: W_x must come out.

        Args:
            number: The shard.
            before: The weights before it, whose digest is the recorded one.
            after: W_x.
            secret: The opened secret of its obfuscation.
        """
        record, shard = self._timeline.records[number], self._manifest.shards[number - 1]
        with platform.adopted(record.platform):
            engine = self._prepared(record)
            engine.restore(before, None)
            start = engine.copied()
            engine.enter(self._shard(number))
            engine.seal(secret, shard.noise.sigma)
            went, _ = engine.moves_since(start)
            sealed, _ = engine.state()
            here = platform.describe(engine.device)
        if commit(sealed).root != shard.root:
            gap = calibration.distance(sealed, after, before, self._trained)
            close = gap <= _SEALING_TOLERANCE and not self._touched(before, after)
            if not (close and platform.same(platform.parse(record.platform, "record"), here)):
                detail = "finishing step and noise, done again, do not give the sealed weights: "
                return _failed("sealing", detail + f"{gap:.3g} of its move apart", number)
        said = record.moves[-1][0]
        if not _alike(said, went):
            detail = f"moved the weights by {_length(went)}; the record says {_length(said)}"
            return _failed("sealing", detail, number)
        detail = "finishing step and committed noise, done again, give the sealed weights"
        return Check("sealing", Status.PASSED, detail, number, level=LEVEL)

    @property
    def _trained(self) -> tuple[int, ...]:
        (found,) = (part.tensors for part in self._parts if part.name == calibration.WEIGHTS)
        return found

    def _touched(self, before: Checkpoint, after: Checkpoint) -> bool:
        """Whether anything but trained weights differs between two models."""
        weights = [part for part in self._parts if part.name == calibration.WEIGHTS]
        return bool(calibration.unlike(State(before, None), State(after, None), weights))

    def _run(self, engine: Engine, place: Place, state: State, samples: Samples) -> State:
        """Run a segment from a state; what comes out changes with the next run."""
        engine.restore(state.model, state.rest)
        engine.enter(self._shard(place.shard))
        engine.run(self._timeline.span(place).first, samples.tensors())
        return State(*engine.state())

    def _screen(self, samples: Samples) -> None:
        """Refuse samples that the task refuses."""
        if isinstance(self._task, Screening):
            for batch in samples.tensors():
                if word := self._task.refused(batch):
                    raise FormatError(f"holds samples that the task refuses: {word[:200]}")

    def harmless(self, place: Place, state: State, samples: Samples) -> bool:
        """Whether a segment can be run from its state on zeros instead of its samples."""
        record = self._timeline.records[place.shard]
        try:
            with platform.adopted(record.platform):
                engine = self._prepared(record)
                engine.restore(state.model, state.rest)
                engine.enter(self._shard(place.shard))
                if isinstance(self._task, Screening):
                    # Whatever it says of zeros: that it can say anything is asked here.
                    for batch in samples.blank():
                        self._task.refused(batch)
                engine.run(self._timeline.span(place).first, samples.blank())
        except Exception:
            return False
        finally:
            self.forget()
        return True

    def likeness(
        self, samples: Samples, start: State, drawing: random.Random, *, forgiven: bool
    ) -> Likeness | None:
        """How many samples of a segment's largest batch teach different things.

        A model that has learned them finds nothing in most samples, and no two such ones differ.

        Args:
            samples: The samples of a segment.
            start: An untaught model.
            drawing: The verifier's own randomness.
            forgiven: Whether the segment passed within an allowance, and not to the bit.
        """
        record = self._timeline.records[1]
        with platform.adopted(record.platform):
            engine = self._prepared(record)
            engine.restore(start.model, start.rest)
            engine.enter(self._shard(1))
            return likeness(
                functools.partial(engine.slopes, 0),
                samples.largest(),
                inputs_of(self._task),  # type: ignore[arg-type]
                tolerance=self._timeline.recipe.tolerance / MILLION if forgiven else 0.0,
                drawing=drawing,
            )

    def width(self, place: Place, samples: Samples, state: State, *, forgiven: float) -> Width:
        """Part of the products of a segment's first step that must be made.

        Args:
            place: The segment.
            samples: Its samples.
            state: The state that it starts from.
            forgiven: What it was allowed to be off by, as a share of its move.
        """
        span = self._timeline.span(place)
        with platform.adopted(self._timeline.records[place.shard].platform):
            engine = self._prepared(self._timeline.records[place.shard])
            engine.restore(state.model, state.rest)
            engine.enter(self._shard(place.shard))
            batch = next(samples.tensors())
            with Products(engine.model) as products:
                slopes = engine.copied_slopes(span.first, batch)
            depths, near = engine.depths(span.first, span.steps, batch, slopes, forgiven=forgiven)
            exact = products.left(slopes, depths)
            return Width(products.left(slopes), exact, 0.0 if near else exact)

    def _step(
        self, engine: Engine, place: Place, before: Snapshot, batch: Mapping[str, torch.Tensor]
    ) -> Snapshot:
        """What the first step of a segment makes of another batch; the engine is put back."""
        engine.enter(self._shard(place.shard))
        engine.run(self._timeline.span(place).first, iter([batch]))
        other = engine.copied()
        engine.rewind(before)
        return other

    def _settled(
        self, engine: Engine, place: Place, state: State, samples: Samples, end: State
    ) -> bool:
        """Whether the segment comes out the same a second time: kernels need not be exact."""
        again = self._run(engine, place, state, samples)
        return digest_of(again.model) == digest_of(end.model)

    def _compared(
        self,
        engine: Engine,
        place: Place,
        state: State,
        samples: Samples,
        end: State,
        shown: State,
    ) -> Check:
        """A segment that came out otherwise than recorded: by rounding, or by a lie?"""

        def repeat(number: int) -> State:
            rest = calibration.Jittered(state.rest, number) if state.rest is not None else None
            start = State(calibration.Jittered(state.model, number), rest)
            return self._run(engine, place, start, samples)

        if name := calibration.unlike(end, shown, self._parts):
            detail = f"ended with another {name[:200]} than was recorded"
            return _failed("segment", detail, place.shard)
        most = self._timeline.recipe.tolerance / MILLION
        found = calibration.calibrate(end, state, repeat, shown=shown, parts=self._parts, most=most)
        if found.close:
            return self._moved(place, self._measured(state, shown), found)
        detail = f"ended {found.distance:.3g} of its move away from what was recorded "
        detail += f"({found.part}); {found.allowed:.3g} is allowed, honest repetitions differ by "
        detail += f"{found.drift:.3g}"
        if found.honest:
            advice = "Verify on a platform like the prover's; here rounding alone goes as far."
            return _open("segment", detail, place.shard, advice)
        return _failed("segment", detail, place.shard)

    def _measured(self, start: State, end: State) -> tuple[int, int]:
        """How far two states are apart, as records say it."""
        model = calibration.model_move(start.model, end.model, self._parts)
        return model, calibration.rest_move(start, end, self._parts)

    def _moved(
        self, place: Place, went: tuple[int, int], comparison: calibration.Comparison | None
    ) -> Check:
        """A segment that came out as recorded; its recorded moves must be the true ones, too."""
        record, span = self._timeline.records[place.shard], self._timeline.span(place)
        for what, said, moved in zip(
            ("weights", "optimizer's state"), record.moves[place.segment], went, strict=True
        ):
            if not _alike(said, moved):
                detail = f"moved the {what} by {_length(moved)}; the record says {_length(said)}"
                return _failed("segment", detail, place.shard)
        detail = f"{counted(span.steps, 'step')}, run again, the same to the bit"
        figures: dict[str, float | int | str] = {"move": went[0] / MOVE_ONE}
        if comparison:
            detail = f"{counted(span.steps, 'step')}, run again on another platform, "
            detail += f"{comparison.distance:.2g} of its move apart ({comparison.allowed:.2g} "
            detail += "allowed)"
            figures |= {"distance": comparison.distance, "allowed": comparison.allowed}
        return Check("segment", Status.PASSED, detail, place.shard, figures=figures, level=LEVEL)

    def _shard(self, number: int) -> Shard:
        before = self._timeline.before(number)
        return Shard(number, self.seed(number), before, self._nonces[number])

    def _prepared(self, record: Record) -> Engine:
        """The engine, on the device that a shard was trained on, if such a device is here."""
        device = platform.device_for(record.platform, self._device)
        if self._engine is None or self._engine.device != device or self._engine.stumbled:
            recipe, terms = self._timeline.recipe, self._manifest.terms
            self._engine = Engine(self._task, terms, self._carrier, recipe, device=device)
        return self._engine


def _alike(said: int, went: int) -> bool:
    """Whether a recorded move is the true one, up to rounding."""
    return abs(said - went) <= _MOVE_TOLERANCE * went + 1


def _length(move: int) -> str:
    return "an endless move" if move == SATURATED else f"{move / MOVE_ONE:.4g}"


def _failed(name: str, detail: str, shard: int) -> Check:
    return Check(name, Status.FAILED, detail, shard, level=LEVEL)


def _open(name: str, detail: str, shard: int, advice: str) -> Check:
    return Check(name, Status.UNDECIDED, detail, shard, advice=advice, level=LEVEL)
