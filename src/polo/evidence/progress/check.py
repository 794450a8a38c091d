"""Level progress in a verification: fed checkpoint by checkpoint, then judged."""

from collections.abc import Iterator, Mapping, Sequence

from polo.checks import Check, Status, counted
from polo.evidence.progress.heldout import held_out_loss_of
from polo.evidence.progress.judgement import judge
from polo.evidence.progress.rules import LEVEL, Rules
from polo.evidence.progress.sample import Sample, Values
from polo.evidence.progress.survey import Findings, Survey
from polo.protocol import chain
from polo.protocol.carrier import Carrier
from polo.protocol.detection import MILLION
from polo.protocol.records import Manifest, NoiseTerms, Nonce, Terms
from polo.tasks import Task
from polo.watermark.mark import derive
from polo.weights.checkpoint import Checkpoint

_ADVICE = "Ask the prover for the whole proof, with every checkpoint and nonce."


class Progress:
    """The level, fed with the checkpoints of a proof, newest first.

    Args:
        manifest: What the proof says.
        carrier: Its carrier.
        nonces: The nonces that hold, by shard.
        task: The verifier's own task.
        device: Where to take gradients; by default where the task builds its model.
    """

    def __init__(
        self,
        manifest: Manifest,
        carrier: Carrier,
        nonces: Mapping[int, Nonce],
        task: Task,
        device: str | None = None,
    ) -> None:
        settings = next(item.settings for item in manifest.terms.evidence if item.level == LEVEL)
        self._rules = Rules.from_settings(settings, f"terms.evidence.{LEVEL}")
        self._manifest = manifest
        self._carrier = carrier
        self._nonces = nonces
        self._sample = Sample(carrier)
        noise = [noise_of(manifest.terms.noise, shard.noise.sigma) for shard in manifest.shards]
        self._survey = Survey(self._sample, noise, self._blocks)
        self._held_out = held_out_loss_of(task, device)
        self._trouble = "" if self._held_out else "the task has no held_out_loss"
        self._stopped = False

    def opening(self) -> Iterator[Check]:
        """Whether everything is here that the level needs."""
        shards = len(self._manifest.shards)
        without = [number for number in range(1, shards + 1) if number not in self._nonces]
        if not shards:
            yield self._stop("there is no shard to look at")
        elif without:
            what = counted(len(without), "nonce")
            yield self._stop(
                f"{what} did not hold or are not here, the first of shard {without[0]}"
            )

    def see(self, number: int, checkpoint: Checkpoint) -> Iterator[Check]:
        """A checkpoint whose root holds; 0 is the start."""
        if self._stopped:
            return
        if number != self._survey.expected:
            yield self._stop(f"checkpoint {self._survey.expected} is not here")
            return
        loss, slope = self._measured(number, checkpoint)
        self._survey.add(self._sample.values(checkpoint), slope, loss)

    def closing(self) -> Iterator[Check]:
        """The checks, once all checkpoints have been seen."""
        if self._stopped:
            return
        if self._survey.expected >= 0:
            yield self._stop(f"checkpoint {self._survey.expected} is not here")
            return
        parent = self._manifest.terms.start.kind == "parent"
        yield from judge(self._survey.findings(), self._rules, parent=parent, trouble=self._trouble)

    def _measured(self, number: int, checkpoint: Checkpoint) -> tuple[float | None, Values | None]:
        if self._trouble or self._held_out is None:
            return None, None
        try:
            return self._held_out.at(checkpoint, self._sample)
        except Exception as error:  # The task is the verifier's own; the weights are not.
            said = f"{type(error).__name__}: {error}"
            self._trouble = f"held-out loss could not be taken at checkpoint {number}: {said}"
            return None, None

    def _blocks(self, shard: int) -> Sequence[int]:
        previous = self._manifest.root_before(shard)
        seed = chain.seed_of(self._manifest.enrolment, self._nonces[shard], previous=previous)
        return derive(self._manifest.terms, self._carrier, seed).blocks

    def _stop(self, reason: str) -> Check:
        self._stopped = True
        detail = f"{reason}, so progress could not be looked at"
        return Check("evidence", Status.UNDECIDED, detail, advice=_ADVICE, level=LEVEL)


def noise_of(terms: NoiseTerms, sigma: int) -> float:
    """Mean square of a shard's declared noise, relative to a tensor's mean square."""
    return (terms.fraction * 256 // MILLION) / 256 * (sigma / MILLION) ** 2


def measure(
    terms: Terms,
    carrier: Carrier,
    marks: Sequence[Sequence[int]],
    checkpoints: Sequence[Checkpoint],
    task: Task,
) -> Findings:
    """The level's numbers of a run that is in memory.

    Args:
        terms: The terms; their least σ is taken for the declared one.
        carrier: The carrier.
        marks: The blocks of each shard's mark, the first one first.
        checkpoints: W_0, W_1, …
        task: The task; without held-out data there are neither losses nor alignment.
    """
    sample, held_out = Sample(carrier), held_out_loss_of(task)
    noise = noise_of(terms.noise, terms.noise.least)
    survey = Survey(sample, [noise] * len(marks), lambda shard: marks[shard - 1])
    for checkpoint in reversed(checkpoints):
        loss, slope = held_out.at(checkpoint, sample) if held_out else (None, None)
        survey.add(sample.values(checkpoint), slope, loss)
    return survey.findings()
