"""Who came first? The rule of containment.

Log time alone does not say it: somebody can register idle chains early and press all their old
marks into a stolen copy later. But nobody can press marks into checkpoints that another has
already committed to. So A's marks are looked for in B's committed checkpoints, and B's in A's: the
ancestor's marks are in the other's checkpoints, and not the reverse.

A model that carries both chains' marks, while neither chain contains the other, was edited after
both had committed; then it belongs to the chain whose committed weights it descends from.
"""

import contextlib
import enum
import math
from collections import Counter
from collections.abc import Generator, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from polo.errors import FormatError, PoloError
from polo.keys import Trust, TrustStore, trusted_keys
from polo.ownership.claim import Claim, Finding, Tries
from polo.ownership.claimant import Claimant, DerivedMark
from polo.ownership.identification import Listener, aligner_for, identify, newest_checkpoint
from polo.ownership.matching import MatchedSource, Matcher, bare
from polo.ownership.reading import read_mark
from polo.ownership.sources import CheckpointSource, floats, found_in
from polo.protocol.carrier import Carrier
from polo.protocol.combination import log2_selections
from polo.storage import history
from polo.storage.ancestors import lineage
from polo.storage.bundle import opened
from polo.weights.checkpoint import Checkpoint
from polo.weights.files import FileCheckpoint
from polo.weights.found import open_found
from polo.weights.found_model import FoundModel
from polo.weights.hashing import commit

if TYPE_CHECKING:
    from polo.ownership.aligned import Aligner

DESCENDS = 0.5
STRANGER = 0.2
"""Likeness of a model to a chain's last weights: from where on it descends from them, and up to
where it has nothing to do with them."""

_PIECE = 2**20


class Order(enum.Enum):
    """Who came first."""

    FIRST = "the first came first"
    SECOND = "the second came first"
    UNRELATED = "neither chain contains the other"
    UNDECIDED = "could not decide"

    @property
    def exit_code(self) -> int:
        """0 where somebody came first, 1 where the chains are not related, 2 undecided."""
        return {Order.UNRELATED: 1, Order.UNDECIDED: 2}.get(self, 0)


@dataclass(frozen=True)
class Contained:
    """One chain's marks in the other's committed checkpoints.

    Attributes:
        claim: The strongest of the claims, one per checkpoint, corrected for all of them.
        checkpoint: The shard whose checkpoint it was read from.
        looked: Number of checkpoints that were looked at.
        unaligned: Why the last of them could not be aligned, where that was asked for.
    """

    claim: Claim
    checkpoint: int
    looked: int
    unaligned: str = ""

    @property
    def finding(self) -> Finding:
        """Whether the marks are there."""
        return self.claim.finding if self.looked else Finding.UNDECIDED


@dataclass(frozen=True)
class Comparison:
    """What came of comparing two chains.

    It is no boolean, and using it as one raises: ask for `order`.

    Attributes:
        proofs: The two proofs.
        owners: Their identities.
        first_in_second: The first chain's marks in the second's checkpoints.
        second_in_first: The reverse.
        in_model: Both chains' marks in a model, if one was given.
        likeness: Of that model to either chain's last committed weights, from −1 to 1.
        order: Who came first.
        reason: Why, in a sentence.
        advice: What would decide it.
    """

    proofs: tuple[str, str]
    owners: tuple[str, str]
    first_in_second: Contained
    second_in_first: Contained
    in_model: tuple[Claim, Claim] | None
    likeness: tuple[float | None, float | None]
    order: Order
    reason: str
    advice: str = ""

    def __bool__(self) -> bool:
        raise TypeError("a comparison is no boolean; ask for its order")

    def headline(self) -> str:
        """The result in one sentence."""
        if self.order in (Order.FIRST, Order.SECOND):
            winner = self.proofs[0 if self.order is Order.FIRST else 1]
            contained = Finding.CLAIM in (
                self.first_in_second.finding,
                self.second_in_first.finding,
            )
            words = "CAME FIRST" if contained else "OWNS THE MODEL"
            return f"{winner} {words}: {self.reason}"
        words = "UNRELATED" if self.order is Order.UNRELATED else "COULD NOT DECIDE"
        return f"{words}: {self.reason}"

    def to_json(self) -> dict[str, Any]:
        """The result as JSON."""
        return {
            "format": "polo/comparison/1",
            "order": self.order.name.lower(),
            "exit_code": self.order.exit_code,
            "headline": self.headline(),
            "proofs": list(self.proofs),
            "owners": list(self.owners),
            "first_in_second": _contained_json(self.first_in_second),
            "second_in_first": _contained_json(self.second_in_first),
            "in_model": [claim.to_json() for claim in self.in_model or ()],
            "likeness": list(self.likeness),
            "advice": self.advice,
        }


def compare(
    first: str | Path,
    second: str | Path,
    *,
    model: str | Path | None = None,
    trust: Trust | Iterable[Trust] | None = None,
    align: bool = False,
    task: Any = None,
    listener: Listener | None = None,
) -> Comparison:
    """Decide which of two chains came first.

    Args:
        first: A proof folder or bundle, with nonces and checkpoints.
        second: Another one.
        model: A model that both claim.
        trust: Whose enrolments to accept; by default the user's own store.
        align: Also look for marks after undoing permutation, scaling and dummy neurons, as in
            `identify`: in the last checkpoint of either chain, and in the model.
        task: The task, or its name, for alignment; by default the one that the terms name.
        listener: Hears about progress.

    Raises:
        PoloError: One of the proofs, or the model, cannot be read or trusted.
    """
    trusted = trusted_keys(TrustStore() if trust is None else trust)
    tell = listener or (lambda *_: None)
    aligner = aligner_for(task) if align else None
    with opened(Path(first)) as one, opened(Path(second)) as two:
        a, b = Claimant(one, trusted), Claimant(two, trusted)
        if a.manifest.enrolment.digest == b.manifest.enrolment.digest:
            raise FormatError("both proofs are of one enrolment", place=str(second))
        names = (str(first), str(second))
        tell("reading the first chain's marks in the second", 0, 2)
        ab = _contained(a, b, names[0], aligner)
        tell("reading the second chain's marks in the first", 1, 2)
        ba = _contained(b, a, names[1], aligner)
        in_model: tuple[Claim, Claim] | None = None
        strangers = 0
        likeness: tuple[float | None, float | None] = (None, None)
        if model is not None:
            settings = {"trust": list(trusted), "align": align, "task": task}
            in_model = _in_model(Path(model), (one, two), names, settings)
            with open_found(Path(model)) as found:
                likeness = (_likeness(a, found), _likeness(b, found))
                strangers = max(_unexplained(a, found), _unexplained(b, found))
        sold = _handed_on(a, b)
    order, reason, advice = _decide(ab, ba, in_model, likeness, strangers)
    advice = sold or advice
    return Comparison(names, (a.owner, b.owner), ab, ba, in_model, likeness, order, reason, advice)


def _decide(
    ab: Contained,
    ba: Contained,
    in_model: tuple[Claim, Claim] | None,
    likeness: tuple[float | None, float | None],
    strangers: int,
) -> tuple[Order, str, str]:
    found = (ab.finding, ba.finding)
    if Finding.UNDECIDED in found and Finding.CLAIM not in found:
        whose = "the second's" if ab.finding is Finding.UNDECIDED else "the first's"
        reason = f"too little is here to read marks in {whose} committed checkpoints"
        return Order.UNDECIDED, reason, "Ask both for the verifier's bundle."
    if found == (Finding.CLAIM, Finding.NO_CLAIM):
        return Order.FIRST, _contains("its", "the other's", ab), ""
    if found == (Finding.NO_CLAIM, Finding.CLAIM):
        return Order.SECOND, _contains("its", "the other's", ba), ""
    if found == (Finding.CLAIM, Finding.CLAIM):
        reason = "each chain's marks are in the other's committed checkpoints"
        return Order.UNDECIDED, reason, "The times of their receipts in a log would break the tie."
    if Finding.CLAIM in found:
        reason = "one direction holds, and the other could not be read"
        return Order.UNDECIDED, reason, "Ask both for the verifier's bundle."
    if unaligned := ab.unaligned or ba.unaligned:
        return Order.UNDECIDED, unaligned, "Ask both for proofs that kept older checkpoints."
    return _by_descent(in_model, likeness, strangers)


def _by_descent(
    in_model: tuple[Claim, Claim] | None,
    likeness: tuple[float | None, float | None],
    strangers: int,
) -> tuple[Order, str, str]:
    apart = "neither chain's marks are in the other's committed checkpoints"
    if in_model is None:
        return Order.UNRELATED, apart, "Give the model that both claim: --model FILE"
    standing = [claim.finding is Finding.CLAIM for claim in in_model]
    if not any(standing):
        return Order.UNRELATED, f"{apart}, and neither's are in the model", ""
    if not all(standing):
        order = Order.FIRST if standing[0] else Order.SECOND
        if Finding.UNDECIDED in (claim.finding for claim in in_model):
            reason = "one chain's marks are in the model, and the other's could not be read"
            return Order.UNDECIDED, reason, "Ask both for the verifier's bundle."
        if in_model[1 if standing[0] else 0].tries.readings == 1:
            # To be absent is what a thief's permuted copy makes the owner's marks look like.
            reason = "one chain's marks are in the model; the other's are not, as it stands"
            return Order.UNDECIDED, reason, "They may be there, permuted or rescaled: add --align."
        mine = likeness[0 if standing[0] else 1]
        if mine is None or mine < DESCENDS:
            reason = (
                "the marks of one chain are in the model, but it does not descend from its weights"
            )
            return Order.UNDECIDED, reason, "Marks can be pressed into anybody's model."
        if strangers:
            reason = f"the file holds {strangers} more tensors that could be the other's"
            return (
                Order.UNDECIDED,
                reason,
                "Ask which of them the model uses, and give those alone.",
            )
        return order, f"{apart}, and only its marks are in the model, aligned or not", ""
    both = f"the model carries both chains' marks, though {apart}"
    for order, own, other in ((Order.FIRST, 0, 1), (Order.SECOND, 1, 0)):
        mine, theirs = likeness[own], likeness[other]
        if mine is not None and theirs is not None and mine >= DESCENDS and theirs <= STRANGER:
            reason = (
                f"{both}: the model descends from its committed weights (likeness {mine:.2f}) and "
                f"not from the other's ({theirs:.2f}), whose marks were pressed in afterwards"
            )
            return order, reason, ""
    return Order.UNDECIDED, both, "Neither chain's last weights tell whom the model descends from."


def _contains(own: str, other: str, held: Contained) -> str:
    return (
        f"{own} marks are in {other} committed checkpoint {held.checkpoint} "
        f"(log2 p = {held.claim.log2_p:.1f}), and not the reverse"
    )


def _contained(
    owner: Claimant, other: Claimant, proof: str, aligner: "Aligner | None"
) -> Contained:
    """One chain's marks in every stored checkpoint of the other whose root is committed to."""
    marks, absent = owner.marks()
    stored = max(1, len(history.stored(other.manifest)))
    tries = Tries(stored, log2_selections=log2_selections(len(marks), owner.shards))
    blank = Claim(proof, owner.owner, owner.issuer, tries=tries, absent=tuple(absent))
    if not marks:
        return Contained(replace(blank, problem="no nonce is here"), 0, 0)
    claims: list[tuple[int, Claim]] = []
    unaligned = ""
    with contextlib.closing(_committed(other)) as kept:
        for number, checkpoint in kept:
            claim = _claim_in(owner, marks, checkpoint, blank)
            if aligner and number == other.shards and claim.finding is not Finding.CLAIM:
                aligned = aligner.better(owner, found_in(checkpoint), claim)
                # Whether marks are contained is told without it, too; that they are not is not.
                unaligned = aligned.problem
                claim = claim if unaligned else aligned
            claims.append((number, claim))
    if not claims:
        return Contained(replace(blank, problem="no committed checkpoint is here"), 0, 0)
    number, strongest = min(claims, key=lambda item: item[1].log2_p)
    if strongest.finding is Finding.NO_CLAIM and claims[0][0] != other.shards:
        # Whoever stole the other's model and committed to it would leave out just that one.
        strongest = replace(strongest, problem="the last committed checkpoint is not here")
    return Contained(strongest, number, len(claims), unaligned)


def _claim_in(
    owner: Claimant, marks: list[DerivedMark], checkpoint: FileCheckpoint, blank: Claim
) -> Claim:
    if checkpoint.layout == owner.layout:
        read = tuple(read_mark(owner, mark, CheckpointSource(checkpoint)) for mark in marks)
        return replace(blank, marks=read, coverage=1.0)
    found = found_in(checkpoint)
    with newest_checkpoint(owner) as reference:
        matching = Matcher(found).match(owner.carrier, reference)
    source = MatchedSource(found, matching)
    read = tuple(read_mark(owner, mark, source) for mark in marks)
    tries = replace(blank.tries, log2_matchings=matching.log2_choices)
    return replace(blank, marks=read, tries=tries, coverage=matching.coverage)


def _committed(claimant: Claimant) -> Generator[tuple[int, FileCheckpoint], None, None]:
    """Stored checkpoints whose root is in the signed chain; others prove nothing."""
    with contextlib.closing(claimant.checkpoints()) as kept:
        for number, checkpoint in kept:
            with contextlib.suppress(PoloError):
                if commit(checkpoint).root == claimant.manifest.root_before(number + 1):
                    yield number, checkpoint


def _in_model(
    model: Path, folders: tuple[Path, Path], names: tuple[str, str], settings: dict[str, Any]
) -> tuple[Claim, Claim]:
    found = identify(model, folders, **settings)
    by_path = {claim.proof: claim for claim in found.claims}
    first, second = (
        replace(by_path[str(folder)], proof=name)
        for folder, name in zip(folders, names, strict=True)
    )
    return first, second


def _likeness(claimant: Claimant, found: FoundModel) -> float | None:
    """Likeness of a model to a chain's last committed weights, over the carrier's tensors."""
    with contextlib.closing(_committed(claimant)) as kept:
        for number, checkpoint in kept:
            if number == claimant.shards:
                return _alike(claimant.carrier, checkpoint, found)
            break
    return None


def _unexplained(claimant: Claimant, found: FoundModel) -> int:
    """Tensors of a carrier's shape beyond those that the layout knows."""
    layout = claimant.layout
    known = [layout.index[tie.name] for tie in layout.ties] + list(range(len(layout.tensors)))
    shapes = Counter(bare(layout.tensors[at].shape) for at in known)
    there = Counter(bare(t.shape) for t in found.tensors.values() if not t.refusal)
    carried = {bare(layout.tensors[at].shape) for at in claimant.carrier.tensors}
    return sum(max(0, there[shape] - shapes[shape]) for shape in carried)


def _handed_on(a: Claimant, b: Claimant) -> str:
    """A sentence if one of the owners bought the model from the other; both have signed it."""
    for seller, buyer, names in ((a, b, ("first", "second")), (b, a, ("second", "first"))):
        if buyer.manifest.transfer is None:
            continue
        try:
            owners = lineage(buyer.folder.path)
        except PoloError:
            continue
        sold = seller.manifest.enrolment.digest
        if any(link.manifest.enrolment.digest == sold for link in owners[:-1]):
            return f"The {names[1]} owner has the model by a transfer from the {names[0]}, signed."
    return ""


def _alike(carrier: Carrier, checkpoint: Checkpoint, found: FoundModel) -> float | None:
    """How alike the signs of two models' weights are: the cosine that so many equal signs suggest.

    Signs, because a few neurons scaled up would decide any cosine of the weights themselves.
    """
    matching = Matcher(found).match(carrier, checkpoint)
    source = MatchedSource(found, matching)
    same = total = 0
    for at in matching.matches:
        elements = carrier.layout.tensors[at].elements
        for start in range(0, elements, _PIECE):
            stop = min(start + _PIECE, elements)
            read = source.weights(at, start, stop)
            assert read is not None
            product = np.sign(floats(checkpoint, at, start, stop)) * np.sign(np.nan_to_num(read))
            same, total = same + int((product > 0).sum()), total + int((product != 0).sum())
    return -math.cos(math.pi * same / total) if total else None


def _contained_json(held: Contained) -> dict[str, Any]:
    return {
        "finding": held.finding.name.lower(),
        "checkpoint": held.checkpoint,
        "checkpoints_looked_at": held.looked,
        "claim": held.claim.to_json(),
    }
