"""Auditing a registry's log: everything in it is read, and nothing is believed.

An audit computes the root from all entries and compares it with the signed one, looks whether the
log went on from where it was before, and checks every entry: who signed it, and that it goes on
where the chain's last entry ended. What it knows then it keeps in a small file, so that the next
audit reads only what is new.

Specification: docs/protocol.md, section 19.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

from polo.client.log_reader import LogReader
from polo.errors import FormatError, PoloError, RegistryError, SignatureError
from polo.keys import Ed25519Verifier
from polo.protocol import log_tree, merkle, signing
from polo.protocol.entries import MAX_CHECKPOINT, Entry, leaf_hash
from polo.protocol.fields import Bytes, Integer, ListOf, Nested, Record, Text, of
from polo.protocol.log_notes import Checkpoint, Note, NoteKey
from polo.protocol.log_rollover import Lineage
from polo.protocol.log_tiles import HEIGHT, WIDTH, Tile, tiles_of
from polo.protocol.log_tree import MAX_SIZE
from polo.protocol.records import MAX_SHARDS

MOST_FINDINGS = 100
_NOTE = Text(MAX_CHECKPOINT, r"[^\x00-\x09\x0b-\x1f]*")

Listener = Callable[[str, int, int], None]


@dataclass(frozen=True)
class Chain(Record):
    """Where a chain stands in the log: its newest shard, its root, and the entry's place."""

    enrolment: bytes = of(Bytes(32))
    shard: int = of(Integer(0, MAX_SHARDS))
    root: bytes = of(Bytes(32))
    index: int = of(Integer(0, MAX_SIZE))


@dataclass(frozen=True)
class Audited(Record):
    """What an audit keeps for the next one.

    Attributes:
        key: The log's key.
        checkpoint: The checkpoint up to which everything was read.
        tiles: Roots of all whole runs of 256 entries.
        tail: Leaf hashes of the entries after them.
        chains: Where every chain stands.
    """

    FORMAT = "polo/audited/1"

    key: str = of(Text(512))
    checkpoint: str = of(_NOTE)
    tiles: tuple[bytes, ...] = of(ListOf(Bytes(32), 2**18))
    tail: tuple[bytes, ...] = of(ListOf(Bytes(32), WIDTH - 1))
    chains: tuple[Chain, ...] = of(ListOf(Nested(Chain), 2**17))

    @property
    def size(self) -> int:
        """Entries that were read."""
        return len(self.tiles) * WIDTH + len(self.tail)


@dataclass(frozen=True)
class Finding:
    """Something wrong with the log; `entry` is the entry's place, None for the log as a whole."""

    detail: str
    entry: int | None = None

    def __str__(self) -> str:
        return self.detail if self.entry is None else f"entry {self.entry}: {self.detail}"


@dataclass
class Report:
    """What an audit found.

    Attributes:
        checkpoint: The signed checkpoint that was audited; None if there is none to speak of.
        note: The same, as text.
        since: Entries that an earlier audit had read.
        read: Entries that were read now.
        chains: Chains in the log.
        keys: The log's keys, the newest last, as far as they lead from the one that was known.
        unsigned: Entries whose signature was not checked, as the registry shows no enrolment.
        findings: Everything that is wrong, at most 100 of them.
        audited: What to keep for the next audit; None if something is wrong.
    """

    checkpoint: Checkpoint | None = None
    note: str = ""
    since: int = 0
    read: int = 0
    chains: int = 0
    keys: tuple[NoteKey, ...] = ()
    unsigned: int = 0
    findings: list[Finding] = field(default_factory=list)
    audited: Audited | None = None

    def add(self, detail: str, entry: int | None = None) -> None:
        """Note something wrong."""
        if len(self.findings) < MOST_FINDINGS:
            self.findings.append(Finding(detail, entry))


def audit(
    reader: LogReader,
    key: NoteKey,
    *,
    before: Audited | None = None,
    since: Iterable[Note] = (),
    listener: Listener | None = None,
) -> Report:
    """Audit a log.

    Args:
        reader: The log.
        key: Its key, or one that it had: newer ones are followed as the older signed for them.
        before: What an earlier audit kept.
        since: Older checkpoints, which the log must go on from.
        listener: Hears how much is done.

    Raises:
        RegistryError: The log could not be read.
        FormatError: What was kept, or an older checkpoint, is none of this log.
    """
    return _Audit(reader, key, before, listener or (lambda *_: None)).run(since)


class _Audit:
    """One audit of a log."""

    def __init__(
        self, reader: LogReader, key: NoteKey, before: Audited | None, listener: Listener
    ) -> None:
        self._reader = reader
        self._key = key
        self._tell = listener
        self._verifier = Ed25519Verifier()
        self._before = before
        self._report = Report(since=before.size if before else 0)
        self._tiles = list(before.tiles) if before else []
        self._tail: list[bytes] = []
        self._chains = {item.enrolment: item for item in before.chains} if before else {}
        self._provers: dict[bytes, bytes | None] = {}
        self._lineage = self._followed()
        if before is not None:
            self._check_kept(before)

    def _followed(self) -> Lineage:
        """The log's keys, from the known one on; a change that its keys did not sign is refused."""
        place = f"{self._reader.url}/v1/log/rollovers"
        try:
            return Lineage.of(self._key, self._reader.rollovers(), self._verifier, place=place)
        except RegistryError:
            raise
        except PoloError as error:
            self._report.add(f"a change of its key is not to be believed: {error.message}")
            return Lineage((self._key,))

    def _check_kept(self, before: Audited) -> None:
        """Refuse what was kept of another log, or was changed since."""
        place = "kept audit"
        note = Note.parse(before.checkpoint, place=place)
        old = self._opened(note, place)
        if before.key not in {key.text for key in self._lineage.keys} or old.size != before.size:
            raise FormatError("is of another log", place=place)
        if old.root != _root(before.tiles, before.tail):
            raise FormatError("was changed since it was written", place=place)

    def run(self, since: Iterable[Note]) -> Report:
        report, place = self._report, f"{self._reader.url}/log/checkpoint"
        older = [self._opened(note, "older checkpoint") for note in since]
        note = self._reader.checkpoint()
        if note is None:
            if report.since or any(item.size for item in older):
                report.add("the log is empty, and had entries before")
            return report
        report.note = str(note)
        try:
            head = self._opened(note, place)
        except SignatureError as error:
            report.add(f"its checkpoint is not to be believed: {error.message}")
            return report
        report.checkpoint = head
        if head.size < report.since:
            report.add(f"it has {head.size} entries, and had {report.since} before")
            return report
        self._read(head)
        self._compare(head)
        for item in (*older, *(change.at for change in self._lineage.rollovers)):
            self._check_older(item, head)
        self._sum_up(head)
        return report

    def _opened(self, note: Note, place: str) -> Checkpoint:
        return self._lineage.open(note, self._verifier, place=place)

    def _sum_up(self, head: Checkpoint) -> None:
        report = self._report
        report.read, report.chains = head.size - report.since, len(self._chains)
        report.keys = self._lineage.keys
        if not report.findings:
            chains = tuple(self._chains[name] for name in sorted(self._chains))
            key = self._lineage.newest.text
            report.audited = Audited(
                key, report.note, tuple(self._tiles), tuple(self._tail), chains
            )

    def _read(self, head: Checkpoint) -> None:
        """Read what is new, from the beginning of the run of 256 that it begins in."""
        for tile in tiles_of(head.size, None, since=self._report.since):
            self._tell("reading the log", tile.start, head.size)
            try:
                entries = self._reader.entries(tile)
                leaves = [leaf_hash(entry) for entry in entries]
                self._compare_tile(tile, leaves)
            except FormatError as error:
                self._report.add(f"{error.place}: {error.message}", tile.start)
                return
            for at, entry in enumerate(entries):
                if tile.start + at >= self._report.since:
                    self._enter(tile.start + at, entry)
            if len(leaves) == WIDTH:
                self._tiles.append(merkle.root(leaves))
            else:
                self._tail = leaves

    def _compare_tile(self, tile: Tile, leaves: list[bytes]) -> None:
        """Entries against their hashes in the tree, and against what was there before."""
        served = self._reader.hashes(Tile(0, tile.index, tile.width))
        for at, (leaf, hashed) in enumerate(zip(leaves, served, strict=False)):
            if leaf != hashed:
                self._report.add("it is not what the tree was made of", tile.start + at)
        if self._before and tile.index == len(self._before.tiles):
            for at, (leaf, old) in enumerate(zip(leaves, self._before.tail, strict=False)):
                if leaf != old:
                    self._report.add("it is another than at the last audit", tile.start + at)

    def _compare(self, head: Checkpoint) -> None:
        """The root of what was read against the signed one; where they differ, look where."""
        if len(self._tiles) * WIDTH + len(self._tail) != head.size:
            return  # A tile says too little, which is noted already.
        if _root(self._tiles, self._tail) == head.root:
            return
        self._report.add("its entries do not lead to the root that it signed")
        lookup = self._reader.lookup(head.size)
        known = len(self._before.tiles) if self._before else 0
        for at, own in enumerate(self._tiles):
            try:
                same = lookup(HEIGHT, at) == own
            except FormatError as error:
                self._report.add(f"{error.place}: {error.message}")
                return
            if not same:
                said = "was changed since the last audit" if at < known else "is not what it signed"
                self._report.add(f"it or one of the {WIDTH - 1} after it {said}", at * WIDTH)

    def _check_older(self, older: Checkpoint, head: Checkpoint) -> None:
        if older.size > head.size:
            self._report.add(f"it has {head.size} entries, and had signed {older.size}")
            return
        try:
            proof = log_tree.consistency(older.size, head.size, self._reader.lookup(head.size))
            log_tree.check_consistency(
                older.size, older.root, head.size, head.root, proof, place=self._reader.url
            )
        except (SignatureError, FormatError) as error:
            self._report.add(f"it was forked: {error.message}")

    def _enter(self, index: int, data: bytes) -> None:
        """One entry: it is a commitment, goes on from the last one, and its prover signed it."""
        try:
            entry = Entry.from_bytes(data, f"entry {index}")
        except PoloError as error:
            self._report.add(f"is no commitment: {error.message}", index)
            return
        for fault in _faults(entry, self._chains.get(entry.enrolment)):
            self._report.add(f"{fault}, in the chain {entry.enrolment.hex()[:16]}…", index)
        self._check_signature(index, entry)
        self._chains[entry.enrolment] = Chain(entry.enrolment, entry.number, entry.root, index)

    def _check_signature(self, index: int, entry: Entry) -> None:
        try:
            prover = self._prover(entry.enrolment)
            if prover is None:
                self._report.unsigned += 1
            else:
                signing.check(entry, prover, self._verifier, place=f"entry {index}")
        except RegistryError:
            raise
        except PoloError as error:
            self._report.add(error.message, index)

    def _prover(self, enrolment: bytes) -> bytes | None:
        if enrolment not in self._provers:
            found = self._reader.enrolment(enrolment)
            self._provers[enrolment] = found.identity if found else None
        return self._provers[enrolment]


def _faults(entry: Entry, last: Chain | None) -> Iterator[str]:
    """What is wrong with an entry after the last one of its chain."""
    expected = last.shard + 1 if last else 0
    if last and entry.number <= last.shard:
        yield f"shard {entry.number} again, after shard {last.shard} in entry {last.index}"
    elif entry.number != expected:
        yield f"shard {entry.number} where shard {expected} comes next"
    elif entry.shard and last and entry.shard.previous != last.root:
        yield f"shard {entry.number} does not start where entry {last.index} ended"


def _root(tiles: Iterable[bytes], tail: Iterable[bytes]) -> bytes:
    """The root over runs of 256 entries and what comes after them."""
    runs, rest = list(tiles), list(tail)

    def lookup(level: int, index: int) -> bytes:
        if level >= HEIGHT:
            return merkle.root(runs[index << level - HEIGHT : index + 1 << level - HEIGHT])
        first = (index << level) - len(runs) * WIDTH
        return merkle.root(rest[first : first + (1 << level)])

    return log_tree.root_of(len(runs) * WIDTH + len(rest), lookup)
