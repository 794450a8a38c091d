"""Looks a registry over, running or not, and changes nothing.

Each check ends in lines that say what was found and, where something is wrong, what to do.
"""

import os
import shutil
import stat
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from sqlalchemy import Connection, func, make_url, select, text
from sqlalchemy.exc import SQLAlchemyError

from polo.errors import PoloError
from polo.registry import migrations
from polo.registry.commitments.chains import about_secret
from polo.registry.context import wall_clock
from polo.registry.database import Database
from polo.registry.enrolments import past
from polo.registry.jobs import presence
from polo.registry.log import service as log
from polo.registry.objects import Objects, key_of
from polo.registry.operations.auditing import Audit
from polo.registry.operations.backup import snapshot
from polo.registry.schema import challenges, enrolments, issuer_keys, jobs, objects
from polo.registry.settings import Settings
from polo.registry.tasks import offers
from polo.registry.tasks.service import Tasks
from polo.registry.uploads import upkeep
from polo.registry.vault import KEY_FILE, LOG, Vault

OK = "ok"
WARNING = "warning"
BAD = "bad"

SAMPLE = 200
"""Entries, receipts, secrets and files that are looked at, unless all are asked for."""

LATE = 600
"""Seconds after which waiting work counts as stuck."""

_ROOM = 2**30
_DRIFT = 5
_MOST_FAULTS = 20


@dataclass(frozen=True)
class Line:
    """One thing that was looked at.

    Attributes:
        about: What.
        state: `ok`, `warning` or `bad`.
        found: How it is.
        advice: What to do; empty if nothing is.
    """

    about: str
    state: str
    found: str
    advice: str = ""


def examine(
    settings: Settings, *, everything: bool = False, clock: Callable[[], int] = wall_clock
) -> Iterator[Line]:
    """Look over the registry that the settings name.

    Args:
        settings: The settings.
        everything: Look at every entry, receipt, secret and file, and read the files' bytes,
            instead of a sample.
        clock: Gives the time.
    """
    yield from _folder(settings)
    yield from _room(settings)
    yield from _exposure(settings)
    yield from _tasks(settings)
    vault = None
    for line in _key_file(settings):
        yield line
        if line.state != BAD:
            vault = Vault.in_folder(settings.data)
    file = make_url(settings.database).database if settings.database[:6] == "sqlite" else None
    if file and not Path(file).exists():  # To open it would make it.
        yield Line("database", BAD, f"{file} is not there", "polo registry serve makes it.")
        return
    database = Database(settings.database)
    try:
        yield from _Patient(settings, database, vault, everything, clock()).lines()
    except SQLAlchemyError as error:
        yield Line(
            "database",
            BAD,
            f"does not answer: {str(getattr(error, 'orig', error)).splitlines()[0][:200]}",
            "Is it running, and is the setting database right?",
        )
    finally:
        database.close()


class _Patient:
    """What is looked at inside the database."""

    def __init__(
        self,
        settings: Settings,
        database: Database,
        vault: Vault | None,
        everything: bool,
        now: int,
    ) -> None:
        self.settings = settings
        self.database = database
        self.vault = vault
        self.everything = everything
        self.sample = None if everything else SAMPLE
        self.now = now

    def lines(self) -> Iterator[Line]:
        found, wanted = migrations.current(self.database), migrations.latest()
        if found != wanted:
            told = f"is at {found or 'nothing'}, and this version needs {wanted}"
            yield Line("database", BAD, told, "Make a backup, then: polo registry migrate.")
            return
        yield Line("database", OK, f"{self.database.engine.dialect.name} at {found}")
        with snapshot(self.database) as connection:
            yield from self._damage(connection)
            yield from self._keys(connection)
            yield from self._log(connection)
            yield from self._objects(connection)
            yield from self._orphans()
            yield from self._jobs(connection)
            yield from self._queues(connection)
            yield from self._challenges(connection)
            yield from self._clock(connection)

    def _damage(self, connection: Connection) -> Iterator[Line]:
        if not self.database.is_sqlite:
            return
        check = "integrity_check" if self.everything else "quick_check"
        told = connection.execute(text(f"PRAGMA {check}(1)")).scalar_one()
        if told != "ok":
            advice = "Stop the registry, keep the file, and restore a backup."
            yield Line("database file", BAD, f"is damaged: {told[:200]}", advice)

    def _keys(self, connection: Connection) -> Iterator[Line]:
        if self.vault is None:
            return
        try:
            self.vault.log_key(connection)
            self.vault.issuer(connection)
            query = select(enrolments.c.id, enrolments.c.secret).order_by(
                enrolments.c.issued.desc()
            )
            count = 0
            for row in connection.execute(query.limit(self.sample)):
                self.vault.open(bytes(row.secret), about_secret(row.id))
                count += 1
        except PoloError as error:
            yield Line("keys", BAD, str(error), error.advice)
        else:
            yield Line("keys", OK, f"issuer and log key open, and secrets of {count} enrolments")

    def _log(self, connection: Connection) -> Iterator[Line]:
        key = connection.execute(
            select(issuer_keys.c.key).where(issuer_keys.c.use == LOG, issuer_keys.c.until.is_(None))
        ).scalar()
        if key is None:
            return
        head = log.newest(connection)
        origin = head.origin if head else self.settings.origin
        if origin != self.settings.origin:
            told = f"the log here is {origin!r}, and these settings name {self.settings.origin!r}"
            advice = f"Give what the registry is started with, or --set origin={origin}"
            yield Line("origin", WARNING, told, advice)
        audit = Audit(connection, origin, bytes(key), self.sample)
        faults = list(islice(audit.faults(), _MOST_FAULTS))
        for fault in faults:
            advice = "Stop the registry, keep everything as it is, and restore a backup elsewhere."
            yield Line("log", BAD, fault, advice)
        if not faults:
            looked = "all" if self.everything else "a sample"
            yield Line("log", OK, f"{head.size if head else 0} entries; {looked} looked at")

    def _objects(self, connection: Connection) -> Iterator[Line]:
        store = Objects(self.settings.objects)
        query = select(objects.c.sha256, objects.c.size).distinct()
        if self.sample is not None:
            query = query.order_by(objects.c.sha256.desc()).limit(self.sample)
        rows = connection.execute(query).all()
        faults = 0
        for sha256, size in rows:
            told = self._object(store, sha256, size)
            if told and faults < _MOST_FAULTS:
                advice = "Bring it back from a backup (tar -xf BACKUP objects/sha256/…)."
                yield Line("files", BAD, f"{sha256[:16]}… {told}", advice)
            faults += bool(told)
        if not faults:
            yield Line("files", OK, f"{len(rows)} looked at")

    def _object(self, store: Objects, sha256: str, size: int) -> str:
        """What is wrong with a file; nothing if it is empty."""
        try:
            found = store.size(key_of(sha256))
            if found is None:
                return "is not there"
            if found != size:
                return f"has {found} bytes instead of {size}"
            if self.everything:
                store.check(key_of(sha256))
        except PoloError as error:
            return error.message
        return ""

    def _jobs(self, connection: Connection) -> Iterator[Line]:
        late = self.now - LATE
        counts = [
            ("broken", jobs.c.state == "broken", "Read why in the column error of table jobs."),
            (
                "waiting for more than ten minutes",
                (jobs.c.state == "waiting") & (jobs.c.due < late),
                "Is the registry running, and are there workers for the queue?",
            ),
            (
                "held by a process that is gone",
                (jobs.c.state == "running") & (jobs.c.held_until < late),
                "Whoever takes the queue next does them again: is anybody running?",
            ),
        ]
        told = False
        for what, condition, advice in counts:
            query = select(jobs.c.kind, func.count()).where(condition).group_by(jobs.c.kind)
            for kind, count in connection.execute(query):
                told = True
                yield Line("jobs", WARNING, f"{count} {kind} {what}", advice)
        if not told:
            yield Line("jobs", OK, "none is stuck")

    def _queues(self, connection: Connection) -> Iterator[Line]:
        needed = {"cpu"}
        with suppress(PoloError):  # Told above.
            needed |= {offer.queue for offer in offers.load(self.settings.tasks).values()}
        lacking = presence.unserved(connection, self.settings, self.now, needed)
        for queue in lacking:
            advice = f"polo registry worker --queue {queue.queue}, on a machine that has one."
            if self.settings.jobs == "inside":
                advice = "Let workers do it (setting jobs), or add it to the setting queues."
            yield Line("queues", WARNING, str(queue), advice)
        if not lacking:
            yield Line("queues", OK, f"{', '.join(sorted(needed))} served")

    def _orphans(self) -> Iterator[Line]:
        """Files that no row names; to list them all takes long where there are many."""
        found = upkeep.orphans(self.database, Objects(self.settings.objects))
        count = sum(1 for _ in islice(found, self.sample))
        if count:
            told = f"{count} that no row names, for more than a day"
            yield Line("files", WARNING, told, "Upkeep removes them, once a day: is it running?")

    def _challenges(self, connection: Connection) -> Iterator[Line]:
        query = select(func.count()).where(
            challenges.c.state == "open", challenges.c.due < self.now - LATE
        )
        if count := connection.execute(query).scalar_one():
            told = f"{count} are past their time and still open"
            yield Line("challenges", WARNING, told, "Upkeep is not running: see jobs.")
        if count := past.stuck_answers(connection):
            told = f"{count} have an answer that could not be checked, and their trainers wait"
            advice = "Read why on the operator's page or in the events (challenge.stuck), give the "
            advice += "queue a machine that can tell, and have them checked again there."
            yield Line("challenges", WARNING, told, advice)

    def _clock(self, connection: Connection) -> Iterator[Line]:
        head = log.newest(connection)
        if head and head.time > self.now + _DRIFT:
            told = f"the log's newest checkpoint is from {head.time - self.now} s in the future"
            yield Line("clock", BAD, told, "Set this machine's clock, by NTP.")
        elif not self.database.is_sqlite:
            there = connection.execute(text("select extract(epoch from clock_timestamp())"))
            drift = int(there.scalar_one()) - self.now
            state, advice = (OK, "") if abs(drift) <= _DRIFT else (WARNING, "Set both by NTP.")
            yield Line("clock", state, f"{drift} s from the database's", advice)
        else:
            yield Line("clock", OK, "not behind the log")


def _folder(settings: Settings) -> Iterator[Line]:
    try:
        found = settings.data.stat()
    except OSError as error:
        told = f"{settings.data}: {error.strerror}"
        yield Line("folder", BAD, told, "Check the setting data; polo registry serve makes it.")
        return
    if found.st_mode & 0o077:
        told = f"{settings.data}: others may look into it ({stat.filemode(found.st_mode)})"
        yield Line("folder", BAD, told, f"chmod 700 {settings.data}")
    elif found.st_uid != os.geteuid():
        told = f"{settings.data}: belongs to another user than the one who asks"
        yield Line("folder", WARNING, told, "Ask as the user that the registry runs as.")
    else:
        yield Line("folder", OK, str(settings.data))


def _key_file(settings: Settings) -> Iterator[Line]:
    path = settings.data / KEY_FILE
    if not path.exists():
        advice = "Put back the one that belongs to this database; without it no secret opens."
        yield Line("data key", BAD, f"{path} is not there", advice)
        return
    try:
        Vault.in_folder(settings.data)
    except PoloError as error:
        yield Line("data key", BAD, str(error), error.advice)
    else:
        yield Line("data key", OK, "for its owner's eyes alone")


def _room(settings: Settings) -> Iterator[Line]:
    if not settings.data.exists():
        return
    usage = shutil.disk_usage(settings.data)
    told = f"{usage.free / 2**30:.1f} GiB free of {usage.total / 2**30:.1f}"
    if usage.free < _ROOM:
        yield Line("disk", BAD, told, "Make room: a full disk stops commitments.")
    elif usage.free < usage.total / 20:
        yield Line("disk", WARNING, told, "Make room, or lower keep_days.")
    else:
        yield Line("disk", OK, told)


def _tasks(settings: Settings) -> Iterator[Line]:
    """What is offered and cannot be used; each task is built in a process of its own."""
    try:
        tasks = Tasks(settings.data, settings.tasks, tested=settings.verify_accuracy != "none")
    except PoloError as error:
        yield Line("tasks", BAD, str(error), error.advice)
        return
    fit = []
    for name in sorted(tasks.offers):
        if (trouble := tasks.trouble(name)) is None:
            fit.append(name)
        else:
            advice = f"Nobody is enrolled for it. {trouble.advice} Or offer others: setting tasks."
            yield Line("tasks", WARNING, str(trouble), advice)
    if fit:
        yield Line("tasks", OK, f"{', '.join(fit)} can be enrolled for")


def _exposure(settings: Settings) -> Iterator[Line]:
    inside = settings.host in ("127.0.0.1", "::1", "localhost")
    if not inside and not settings.secure:
        advice = "Put a proxy with TLS in front, and set public_url to its https:// address."
        yield Line("network", WARNING, f"answers on {settings.host} without TLS", advice)
