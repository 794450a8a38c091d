"""Testing stored checkpoints on the task's public data. Needs torch."""

import contextlib
import itertools
from collections.abc import Collection, Generator, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from polo import tasks
from polo.checks import Check, Status, problem
from polo.errors import PoloError, TaskError
from polo.protocol.detection import MILLION
from polo.protocol.layout import Layout
from polo.protocol.records import Manifest
from polo.tasks import Task
from polo.verifier.policy import Policy
from polo.verifier.walking import Seen, ahead
from polo.weights.base import base_root
from polo.weights.checkpoint import HeldCheckpoint, checkpoint_of
from polo.weights.hashing import commit

if TYPE_CHECKING:
    import torch

    from polo.weights.loading import Loader

MANY = 16
"""From so many tests on it pays to build a second model."""


@dataclass(frozen=True)
class Loaded:
    """A model that a checkpoint was loaded into, or why it was not."""

    model: "torch.nn.Module"
    problem: Check | None = None


class Bench:
    """A task's model, into which one checkpoint after another is loaded."""

    def __init__(
        self, manifest: Manifest, layout: Layout, task: Task | str | None, policy: Policy
    ) -> None:
        self._manifest = manifest
        self._layout = layout
        self._policy = policy
        self._problem: Check | None = None
        self._model: torch.nn.Module | None = None
        self._loaders: dict[int, Loader] = {}
        self._stream: torch.cuda.Stream | None = None
        if policy.accuracy == "none":
            self._problem = Check(
                "accuracy", Status.NOTE, "not tested, as the policy says; floors were not checked"
            )
            return
        try:
            self._task, self._model = model_of(manifest, layout, task)
        except Exception as error:  # The task is the verifier's own and may fail as it likes.
            self._problem = obstacle("accuracy", error)

    @property
    def ready(self) -> bool:
        """Whether checkpoints can be tested."""
        return self._model is not None

    def problems(self) -> Iterator[Check]:
        """Why nothing can be tested, if so."""
        if self._problem:
            yield self._problem

    def spare(self, tests: int) -> "torch.nn.Module | None":
        """A second model to load into while the first one is tested; None if it would not pay.

        Args:
            tests: How many tests there will be.
        """
        if self._model is None or tests < MANY or self._manifest.terms.base is not None:
            return None
        device = next((p.device for p in self._model.parameters()), None)
        if device is None or not _is_apart(device):
            return None
        try:
            import torch

            other: torch.nn.Module = self._task.build_model()
            if checkpoint_of(other).layout != self._layout or _shared(self._model, other):
                return None
            if device.type == "cuda":
                # What is asked for on the usual stream would wait for the test under way there.
                self._stream = torch.cuda.Stream(device)
        except Exception:  # One model is enough.
            return None
        self._release()
        return other

    def loaded(
        self, walk: Iterator[Seen], wanted: Collection[int], spare: "torch.nn.Module"
    ) -> Generator[tuple[Seen, Loaded | None]]:
        """The same checkpoints, each loaded while the one before is tested.

        Args:
            walk: The checkpoints, each of which must stay until the next but one is asked for.
            wanted: Those to load, if their roots hold.
            spare: What `spare` returned.
        """
        import torch

        assert self._model is not None
        models = itertools.cycle((self._model, spare))

        def load(one: Seen) -> Loaded | None:
            if one.number not in wanted or one.root != self._root_of(one):
                return None
            model = next(models)
            try:
                with torch.cuda.stream(self._stream):
                    found = self._load(model, one, staged=True)
                if self._stream:
                    self._stream.synchronize()
            except Exception as error:  # A device that has failed fails at everything.
                return Loaded(model, _untested(error, one.number))
            return found

        return ahead((one, load(one)) for one in walk)

    def test(self, one: Seen, loaded: Loaded | None = None) -> Iterator[Check]:
        """Measure one shard's weights, whose root holds.

        Args:
            one: The weights.
            loaded: The model that they are in already, if they are in one.
        """
        assert self._model is not None
        shard = one.number
        if loaded is None or (loaded.problem and loaded.problem.status is Status.UNDECIDED):
            # Beside a test there may have been too little memory for it.
            loaded = self._load(loaded.model if loaded else self._model, one)
        if loaded.problem:
            yield loaded.problem
            return
        try:
            measured = float(self._task.evaluate(loaded.model))
        except Exception as error:  # The task is the verifier's own; the weights are not.
            yield _untested(error, shard)
            return
        finally:
            self._release()
        if not 0 <= measured <= 1:
            detail = f"the task measured {measured}, which is no rate from 0 to 1"
            yield Check("accuracy", Status.FAILED, detail, shard=shard)
            return
        terms = self._manifest.terms.task
        floor = terms.floor_of(shard) / MILLION
        yield Check(
            "accuracy",
            Status.PASSED if measured >= floor else Status.FAILED,
            f"{terms.metric} {measured:.4f}, at least {floor:.4f} asked",
            shard=shard,
            figures={"measured": measured, "floor": floor},
        )
        claimed = self._manifest.shards[shard - 1].metrics.get(terms.metric)
        if claimed is None:
            return
        claim = claimed / MILLION
        close = abs(claim - measured) <= self._policy.tolerance
        yield Check(
            "claim",
            Status.PASSED if close else Status.FAILED,
            f"the prover says {claim:.4f}, measured {measured:.4f}",
            shard=shard,
            figures={"claimed": claim, "measured": measured},
        )

    def _load(self, model: "torch.nn.Module", one: Seen, *, staged: bool = False) -> Loaded:
        """Put weights into a model, and see that they are what was hashed."""
        from polo.weights.loading import Loader, NotLoadedError

        try:
            loader = self._loaders.get(id(model))
            if loader is None:
                # It remembers where the model has its tensors.
                loader = self._loaders[id(model)] = Loader(model, staged=staged)
            loader.load(one.checkpoint, check=isinstance(one.checkpoint, HeldCheckpoint))
            if not self._as_seen(model, one):
                # Or the model did not take them, which is told apart where it costs memory.
                loader.load(one.checkpoint, check=True)
                detail = "the file changed while it was verified"
                return Loaded(model, Check("accuracy", Status.FAILED, detail, shard=one.number))
        except NotLoadedError as error:
            return Loaded(model, problem("accuracy", error, shard=one.number))
        except Exception as error:  # The model is the verifier's own; the weights are not.
            return Loaded(model, _untested(error, one.number))
        return Loaded(model)

    def _as_seen(self, model: "torch.nn.Module", one: Seen) -> bool:
        """Whether the loaded weights are those that were hashed; a file may have changed since."""
        if isinstance(one.checkpoint, HeldCheckpoint):
            return True
        return commit(checkpoint_of(model), threads=self._policy.threads).root == one.root

    def _root_of(self, one: Seen) -> bytes:
        return self._manifest.root_before(one.number + 1)

    def _release(self) -> None:
        """What is loaded into a model comes after all that was asked of it so far."""
        if self._stream:
            import torch

            # A device that has failed says so to whoever asks it for something.
            with contextlib.suppress(Exception):
                self._stream.wait_stream(torch.cuda.current_stream(self._stream.device))


def _is_apart(device: "torch.device") -> bool:
    """Whether a device tests while this processor loads."""
    return device.type == "cuda"


def _shared(one: "torch.nn.Module", other: "torch.nn.Module") -> bool:
    """Whether two models have any memory in common: a task may hand out the same one twice."""
    there, here = (
        {t.untyped_storage().data_ptr() for t in m.state_dict().values() if t.numel()}
        for m in (one, other)
    )
    return bool(there & here)


def _untested(error: Exception, shard: int) -> Check:
    detail = f"the task could not test it: {type(error).__name__}: {error}"
    return Check("accuracy", Status.UNDECIDED, detail, shard=shard)


def model_of(
    manifest: Manifest, layout: Layout, task: Task | str | None
) -> "tuple[Task, torch.nn.Module]":
    """The verifier's own task that the terms name, and its model, freshly built.

    Args:
        manifest: What the proof says.
        layout: The layout of its checkpoints.
        task: The task or its name, if the verifier gave one.
    """
    found = _find(manifest, task)
    model = found.build_model()
    if checkpoint_of(model).layout != layout:
        raise TaskError("the task's model has another layout than the terms")
    check_base(manifest, model)
    return found, model


def check_base(manifest: Manifest, model: "torch.nn.Module") -> None:
    """Refuse a task whose model does not stand on the base that the terms name."""
    named, there = manifest.terms.base, base_root(model)
    if named == there:
        return
    if named is None:
        raise TaskError("the task's model is an adapter, and the terms name no base for it")
    wanted = f"an adapter on the base {named.hex()[:16]}…"
    if there is None:
        raise TaskError(f"the terms are about {wanted}, and the task's model has no base")
    raise TaskError(
        f"the terms are about {wanted}; the task here stands on {there.hex()[:16]}…",
        advice="Give the task the very base model that the terms were made for.",
    )


def obstacle(name: str, error: Exception) -> Check:
    """Why the task or its model is not here, as a check that could not be decided."""
    if isinstance(error, PoloError):
        return problem(name, error, Status.UNDECIDED)
    if isinstance(error, ImportError):
        way_out = ", or verify with --accuracy none" if name == "accuracy" else ""
        detail = f"{name} could not be tested: {error}"
        return Check(name, Status.UNDECIDED, detail, advice=f"Install torch{way_out}.")
    detail = f"the task could not build its model: {type(error).__name__}: {error}"
    return Check(name, Status.UNDECIDED, detail)


def _find(manifest: Manifest, task: Task | str | None) -> Task:
    terms = manifest.terms.task
    if task is None or isinstance(task, str):
        if task is None and ":" in terms.name:
            # A name out of a proof is never imported as a module.
            raise TaskError(
                f"the terms name the task {terms.name!r}", advice="Give it with --task."
            )
        task = tasks.load(task or terms.name)
    if (task.name, task.version) != (terms.name, terms.version):
        raise TaskError(
            f"the terms are about {terms.name} version {terms.version}; the task here is "
            f"{task.name} version {task.version}"
        )
    return task
