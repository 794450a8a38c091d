"""Level receipts in a verification: the registry's answers, and what its log shows of them.

Specification: docs/protocol.md, section 19.
"""

import dataclasses
import datetime
import itertools
from collections.abc import Container, Iterator, Mapping
from dataclasses import dataclass, replace

from polo.checks import Check, Status, counted, problem
from polo.errors import FormatError, LimitError, PoloError, SignatureError
from polo.evidence.receipts.rules import LEVEL, Rules
from polo.keys import Ed25519Verifier
from polo.protocol import log_notes, log_tree, signing
from polo.protocol.entries import Entry, Inclusion, Inclusions
from polo.protocol.log_notes import Note
from polo.protocol.records import Manifest, Receipt, Shard, Start
from polo.storage.folder import MANIFEST_FILE, ProofFolder, opening_path, receipts_path
from polo.weights.files import open_plain

MAX_FILE = 256 * 1024
"""Most bytes of a file of inclusions: two entries, two paths, two checkpoints."""

SKEW = 300
"""Seconds by which the clocks of a registry and its witnesses may differ."""

_ASK = "Ask the prover for the complete proof; the registry hands these out again."


@dataclass(frozen=True)
class Kept:
    """A receipt that holds, with its entry in the log.

    Attributes:
        number: Its shard; 0 for the start.
        receipt: The receipt.
        seen: When so many witnesses as the terms ask for had seen the entry; None without them.
    """

    number: int
    receipt: Receipt
    seen: int | None


def receipts(folder: ProofFolder, manifest: Manifest, listed: Container[str]) -> Iterator[Check]:
    """The checks of the level.

    Args:
        folder: The proof.
        manifest: What it says.
        listed: Paths of the files that are here as signed.
    """
    try:
        rules = Rules.of(manifest.terms, manifest.enrolment.issuer)
    except PoloError as error:
        yield problem("evidence", error, level=LEVEL)
        return
    if manifest.enrolment.nonces.kind != "live":
        detail = "the terms ask for receipts, but the nonces were drawn offline"
        yield Check("evidence", Status.FAILED, detail, place="enrolment", level=LEVEL)
        return
    yield from _Level(folder, manifest, rules, listed).checks()


class _Level:
    """One proof's receipts."""

    def __init__(
        self, folder: ProofFolder, manifest: Manifest, rules: Rules, listed: Container[str]
    ) -> None:
        self._folder = folder
        self._manifest = manifest
        self._rules = rules
        self._listed = listed
        self._verifier = Ed25519Verifier()
        self._openings = {file.path: file.sha256 for file in manifest.files}
        self._roots: dict[int, bytes] = {}
        self._kept: list[Kept] = []

    def checks(self) -> Iterator[Check]:
        """All checks, oldest shard first, then those of the chain as a whole."""
        whole = True
        for number, shard in enumerate((None, *self._manifest.shards)):
            about = shard or self._manifest.start
            found, trouble = self._file(max(number, 1))
            for check in (self._receipt(number, about), self._entry(number, about, found, trouble)):
                whole = whole and check.status is Status.PASSED
                yield check
        faults = [*self._out_of_order(), *self._too_early(), *self._unseen()]
        yield from faults
        if not self._rules.witnesses:
            detail = "no witness is asked for: the dates, and that the log shows everybody the "
            detail += "same, are the registry's word"
            yield Check("witness", Status.NOTE, detail, level=LEVEL)
        elif whole and not faults:
            yield self._witnessed()
        if whole and not faults:
            yield self._dates()

    def _file(self, number: int) -> tuple[Mapping[int, Inclusion], PoloError | None]:
        """What the file of a shard shows, by shard, or why it shows nothing."""
        place = receipts_path(number)
        if place not in self._listed:
            return {}, None
        try:
            with open_plain(self._folder.file(place)) as file:
                data = file.read(MAX_FILE + 1)
            if len(data) > MAX_FILE:
                raise LimitError(f"more than {MAX_FILE} bytes", place=place)
            shown = Inclusions.from_bytes(data, place).inclusions
            numbers = [item.entry.number for item in shown]
            expected = {0, 1} if number == 1 else {number}
            if len(set(numbers)) < len(numbers) or not set(numbers) <= expected:
                raise FormatError(f"shows entries of shards {numbers[:9]}", place=place)
        except PoloError as error:
            return {}, error
        return {item.entry.number: item for item in shown}, None

    def _receipt(self, number: int, about: Start | Shard) -> Check:
        receipt, place = about.receipt, f"{MANIFEST_FILE}: {_name(number)}.receipt"
        if receipt is None:
            detail = f"there is no receipt of {_words(number)}"
            return _check("receipt", Status.UNDECIDED, detail, number, place, advice=_ASK)
        try:
            self._check_receipt(receipt, number, about, place)
        except PoloError as error:
            return problem("receipt", error, Status.FAILED, shard=number, level=LEVEL)
        detail = (
            f"{_words(number)}: entry {receipt.index} of {receipt.origin[:80]}, {_day(receipt)}"
        )
        figures = {"index": receipt.index, "time": receipt.time}
        return Check("receipt", Status.PASSED, detail, shard=number, figures=figures, level=LEVEL)

    def _check_receipt(
        self, receipt: Receipt, number: int, about: Start | Shard, place: str
    ) -> None:
        enrolment = self._manifest.enrolment
        signing.check(receipt, enrolment.issuer, self._verifier, place=place)
        if receipt.enrolment != enrolment.digest:
            raise SignatureError("the receipt is for another enrolment", place=place)
        if receipt.shard != number:
            message = f"the receipt is for shard {receipt.shard}"
            raise SignatureError(message, place=place)
        if receipt.root != about.root:
            raise SignatureError("the receipt is for other weights than the chain's", place=place)
        if receipt.origin != self._rules.origin:
            message = f"a receipt of the log {receipt.origin[:80]!r}, which the terms do not name"
            raise SignatureError(message, place=place)

    def _entry(
        self,
        number: int,
        about: Start | Shard,
        found: Mapping[int, Inclusion],
        trouble: PoloError | None,
    ) -> Check:
        place = receipts_path(max(number, 1))
        if trouble is not None:
            return problem("entry", trouble, shard=number, level=LEVEL)
        if number not in found or about.receipt is None:
            detail = f"what shows {_words(number)} in the log is not here"
            return _check("entry", Status.UNDECIDED, detail, number, place, advice=_ASK)
        shown = found[number]
        try:
            self._check_entry(shown.entry, number, about, place)
            seen = self._check_inclusion(shown, about.receipt, place)
        except PoloError as error:
            return problem("entry", error, Status.FAILED, shard=number, level=LEVEL)
        self._kept.append(Kept(number, about.receipt, seen))
        detail = f"{_words(number)} is entry {shown.index} of the log as signed at {shown.size}"
        figures = {"index": shown.index, "size": shown.size, "time": about.receipt.time}
        return Check("entry", Status.PASSED, detail, shard=number, figures=figures, level=LEVEL)

    def _check_entry(self, entry: Entry, number: int, about: Start | Shard, place: str) -> None:
        """What the log holds is what the manifest says, and the prover signed it then."""
        enrolment = self._manifest.enrolment
        if entry.enrolment != enrolment.digest:
            raise SignatureError("the entry is of another enrolment", place=place)
        said, logged = replace(about, receipt=None), entry.shard or entry.start
        if said != logged:
            names = (field.name for field in dataclasses.fields(said))
            other = [name for name in names if getattr(said, name) != getattr(logged, name, None)]
            message = f"the entry says another {', '.join(other)} than the manifest"
            raise SignatureError(message, place=place)
        listed = self._openings.get(opening_path(number)) if number else None
        if listed not in (None, entry.opening):
            raise SignatureError("the entry names another opening than the manifest", place=place)
        signing.check(entry, enrolment.identity, self._verifier, place=place)

    def _check_inclusion(self, shown: Inclusion, receipt: Receipt, place: str) -> int | None:
        """The entry is where the receipt says, in the tree that the log signed.

        Returns:
            When enough witnesses had seen that tree; None if they have not.
        """
        rules = self._rules
        if shown.index != receipt.index:
            message = f"entry {shown.index} is shown, the receipt is for entry {receipt.index}"
            raise SignatureError(message, place=place)
        note = Note.parse(shown.checkpoint, place=place)
        signed = log_notes.open_checkpoint(
            note, rules.log, self._verifier, origin=rules.origin, place=place
        )
        if signed.size != shown.size:
            message = f"the checkpoint is of {signed.size} entries, not {shown.size}"
            raise SignatureError(message, place=place)
        if self._roots.setdefault(signed.size, signed.root) != signed.root:
            message = f"the log signed two different trees of {signed.size} entries: it was forked"
            raise SignatureError(message, place=place)
        log_tree.check_inclusion(
            shown.entry.leaf, shown.index, shown.size, shown.path, signed.root, place=place
        )
        if not rules.witnesses:
            return None
        times = log_notes.cosigned(note, rules.witnesses, self._verifier, place=place).values()
        return sorted(times)[rules.quorum - 1] if len(times) >= rules.quorum else None

    def _out_of_order(self) -> Iterator[Check]:
        """Places and times that do not go forward, or go forward too fast."""
        for before, after in itertools.pairwise(self._kept):
            old, new = before.receipt, after.receipt
            if new.index <= old.index:
                detail = f"entry {new.index} of the log comes after entry {old.index} of "
                yield _dated(after, detail + _words(before.number))
            if new.time < old.time:
                detail = f"its receipt is {old.time - new.time} seconds older than that of "
                yield _dated(after, detail + _words(before.number))
            elif after.number > before.number and new.time - old.time < self._rules.fastest:
                detail = f"it came {new.time - old.time} seconds after {_words(before.number)}; "
                yield _dated(after, f"{detail}the terms ask for {self._rules.fastest} at least")

    def _too_early(self) -> Iterator[Check]:
        """Receipts that say they are younger than what witnesses saw already."""
        for kept in self._kept:
            if kept.seen is not None and kept.receipt.time > kept.seen + SKEW:
                ahead = kept.receipt.time - kept.seen
                yield _dated(kept, f"witnesses saw it {ahead} seconds before its receipt says")

    def _unseen(self) -> Iterator[Check]:
        if not self._rules.witnesses:
            return
        asked = f"{self._rules.quorum} of {len(self._rules.witnesses)} witnesses"
        for kept in self._kept:
            if kept.seen is None:
                detail = f"{_words(kept.number)} was not seen by {asked}, as the terms ask"
                place = receipts_path(max(kept.number, 1))
                advice = "The prover can ask the registry again once they have cosigned."
                yield _check("witness", Status.UNDECIDED, detail, kept.number, place, advice=advice)

    def _witnessed(self) -> Check:
        lag = max((kept.seen or 0) - kept.receipt.time for kept in self._kept)
        lag = max(lag, 0)
        quorum, total = self._rules.quorum, len(self._rules.witnesses)
        detail = f"{quorum} of {total} witnesses saw every entry, at most {lag} seconds after its "
        detail += "receipt: by so much dates can be off"
        figures = {"quorum": quorum, "witnesses": total, "lag": lag}
        return Check("witness", Status.PASSED, detail, figures=figures, level=LEVEL)

    def _dates(self) -> Check:
        first, last = self._kept[0].receipt, self._kept[-1].receipt
        detail = f"{counted(len(self._kept), 'receipt')}, {_day(first)} to {_day(last)}"
        figures = {"receipts": len(self._kept), "first": first.time, "last": last.time}
        figures["fastest"] = self._rules.fastest
        return Check("dates", Status.PASSED, detail, figures=figures, level=LEVEL)


def _check(
    name: str, status: Status, detail: str, number: int, place: str, *, advice: str = ""
) -> Check:
    return Check(name, status, detail, shard=number, place=place, advice=advice, level=LEVEL)


def _dated(kept: Kept, detail: str) -> Check:
    place = "" if kept.number else "start"
    return _check("dates", Status.FAILED, detail, kept.number, place)


def _name(number: int) -> str:
    return f"shards[{number - 1}]" if number else "start"


def _words(number: int) -> str:
    return f"shard {number}" if number else "the start"


def _day(receipt: Receipt) -> str:
    """When a receipt was given, as a person reads it."""
    try:
        moment = datetime.datetime.fromtimestamp(receipt.time, datetime.UTC)
    except (OverflowError, ValueError, OSError):
        return f"{receipt.time} seconds after 1970"
    return f"{moment:%Y-%m-%d %H:%M:%S} UTC"
