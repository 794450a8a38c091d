"""The drawn start: W_0 is an initialisation that the enrolment fixes to the last bit.

The issuer's signature and the commitment to its nonces go into the seed, so nobody knew W_0 before
the enrolment, and no training can have gone into it. It says nothing about what comes after W_0.

    polo.draw_start(model, "enrolment/")
    with prover.attach(model, optimizer): ...

Specification: docs/protocol.md, section 14.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from polo.checks import Check, Status, counted, problem
from polo.client.enrolled import load_enrolment
from polo.errors import PoloError, TermsError
from polo.evidence.rules import Kept, Rule, drawn_bytes
from polo.protocol.digest import tagged, u32
from polo.protocol.layout import Layout
from polo.protocol.records import Enrolment, Manifest
from polo.weights.checkpoint import Checkpoint, checkpoint_of
from polo.weights.hashing import commit

if TYPE_CHECKING:
    import torch


class Enrolled(Protocol):
    """What holds a signed enrolment, such as `polo.OfflineEnrolment`."""

    @property
    def record(self) -> Enrolment:
        """The signed enrolment."""


class Drawn:
    """A checkpoint that is drawn while it is read; it takes no memory of its own.

    Args:
        built: The model as it was built, for its layout and for tensors that are kept.
        rules: The rule of every tensor, in the order of the layout.
        seed: What `start_seed` returned.
    """

    def __init__(self, built: Checkpoint, rules: Sequence[Rule], seed: bytes) -> None:
        self._built = built
        self._rules = rules
        self._seed = seed

    @property
    def layout(self) -> Layout:
        """Names, types and shapes."""
        return self._built.layout

    @property
    def kept(self) -> tuple[str, ...]:
        """Tensors that are not drawn but as the task builds them."""
        pairs = zip(self.layout.tensors, self._rules, strict=True)
        return tuple(tensor.name for tensor, rule in pairs if isinstance(rule, Kept))

    def read(self, tensor: int, start: int, stop: int) -> bytes | memoryview:
        """Bytes `start` to `stop` of a tensor's canonical bytes."""
        rule = self._rules[tensor]
        if isinstance(rule, Kept):
            return self._built.read(tensor, start, stop)
        own = tagged("polo/start-tensor/1", self._seed, u32(tensor))
        return drawn_bytes(rule, self.layout.tensors[tensor], own, start, stop)


def start_seed(enrolment: Enrolment) -> bytes:
    """What W_0 is drawn from."""
    return tagged("polo/start/1", enrolment.digest)


def drawn(model: "torch.nn.Module", seed: bytes) -> Drawn:
    """The start of a model's architecture; the model itself is not touched.

    Args:
        model: A model of the architecture. Of its values only those of rule `Kept` count.
        seed: What `start_seed` returned.
    """
    from polo.evidence.layers import rules_of

    built = checkpoint_of(model)
    return Drawn(built, rules_of(model, built.layout), seed)


def draw(model: "torch.nn.Module", seed: bytes) -> None:
    """Fill a model with the start that a seed fixes: parameters and persistent buffers.

    Args:
        model: The model, on any device.
        seed: 32 bytes.

    Raises:
        WeightsError: No rule is known for a tensor; nothing was changed then.
    """
    from polo.weights.loading import load_into

    load_into(model, drawn(model, seed))


def draw_start(model: "torch.nn.Module", enrolment: Enrolment | Enrolled | str | Path) -> None:
    """Fill a model with the start that its enrolment fixes.

    Call it before `Prover.attach` where the terms ask for a drawn start. What an optimizer holds
    stays valid, since the values are changed in place.

    Args:
        model: The model, as the task builds it.
        enrolment: What the issuer handed over: a folder, or the object.
    """
    if isinstance(enrolment, (str, Path)):
        enrolment = load_enrolment(enrolment)
    record = enrolment if isinstance(enrolment, Enrolment) else enrolment.record
    if record.terms.start.kind == "parent":
        raise TermsError(
            "the terms name a model to start from, so there is nothing to draw",
            advice="Load that model: polo.load_weights(model, PROOF)",
        )
    draw(model, start_seed(record))


def check(
    manifest: Manifest, model: "torch.nn.Module", *, threads: int | None = None
) -> Iterator[Check]:
    """Whether a chain starts from the initialisation that its enrolment fixes.

    Args:
        manifest: What the proof says.
        model: The verifier's own model of the task, freshly built.
        threads: How many threads hash.
    """
    try:
        start = drawn(model, start_seed(manifest.enrolment))
        root = commit(start, threads=threads).root
    except PoloError as error:
        # The model is the verifier's own; that it cannot be drawn is not the prover's fault.
        yield problem("start", error, Status.UNDECIDED)
        return
    if root != manifest.start.root:
        detail = "the chain does not start from the initialisation that the enrolment fixes"
        yield Check("start", Status.FAILED, detail)
        return
    detail = (
        "drawn: W_0 is the initialisation that the enrolment fixes; it cannot have been trained"
    )
    if start.kept:
        detail += f"; {counted(len(start.kept), 'tensor')} kept as the task's model has it"
    yield Check("start", Status.PASSED, detail, figures={"kept": len(start.kept)})
