"""`polo registry`: run a registry, and look after it."""

import errno
import importlib
import os
import signal
import socket
import sys
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import App, Parameter

from polo.cli.output import Flag, print_json
from polo.errors import FormatError, MissingError, StoreError

if TYPE_CHECKING:
    from polo.registry.context import Registry
    from polo.registry.settings import Settings

registry = App(name="registry", help="Run a registry, and look after it.")
keys = App(name="keys", help="The registry's own keys.")
registry.command(keys)


@Parameter(name="*")
@dataclass(frozen=True)
class Options:
    """Where the settings come from.

    Attributes:
        file: A TOML file with settings; by default POLO_REGISTRY_FILE.
        data: The registry's folder.
        database: URL of the database; by default SQLite in the folder.
        settings: Any other setting, as NAME=VALUE; may be given more than once.
    """

    file: Path | None = None
    data: Path | None = None
    database: str | None = None
    settings: Annotated[list[str], Parameter(name="--set", negative="", show_default=False)] = (
        field(default_factory=list)
    )


DEFAULT = Options()


@registry.command
def serve(
    *,
    host: str | None = None,
    port: int | None = None,
    public_url: str | None = None,
    migrate: Flag = False,
    options: Options = DEFAULT,
) -> None:
    """Run a registry until it is told to stop.

    The first start makes the folder, the database and the keys, and prints the
    operator's first token, once. SIGTERM lets running requests end.

    Examples:
    polo registry serve

    polo registry serve --file /etc/polo/registry.toml

    Parameters
    ----------
    host
        Address to listen on; by default this machine alone.
    port
        Port to listen on.
    public_url
        Where others reach the registry, such as https://polo.example.
    migrate
        Bring the database up to date first; the registry's own SQLite file always is.
    """
    need_parts("serving")
    from polo.registry import observing
    from polo.registry.context import Registry
    from polo.registry.tasks import offers

    settings = load(options, host=host, port=port, public_url=public_url)
    offers.load(settings.tasks)  # A mistake in it is better told now than to the first trainer.
    before = os.umask(0o077)  # Whatever is made from here on is its owner's alone.
    try:
        with _listen(settings) as listening:
            if not settings.port:
                free = listening.getsockname()[1]
                settings = load(options, host=host, port=free, public_url=public_url)
            with closing(Registry.open(settings, migrate=migrate)) as opened:
                observing.log_to(sys.stderr, settings.log_level)
                _run(opened, listening)
    finally:
        os.umask(before)


@registry.command
def migrate(*, to: str = "head", options: Options = DEFAULT) -> None:
    """Bring the database to the shape that this version needs. Make a backup first.

    Parameters
    ----------
    to
        The revision to go to; an older one takes the database back, and loses what is newer.
    """
    need_parts()
    from polo.registry import migrations
    from polo.registry.database import Database

    settings = load(options)
    database = Database(settings.database)
    try:
        before = migrations.current(database)
        migrations.move(database, to)
        after = migrations.current(database)
    finally:
        database.close()
    print(f"database: {before or 'empty'} -> {after or 'empty'}")


@keys.command
def rotate(*, log: Flag = False, json: Flag = False, options: Options = DEFAULT) -> None:
    """Make a new issuer key, or a new key of the log; what old ones signed stays valid.

    A running registry takes the new issuer key for its next enrolment, and a
    new key of the log for its next checkpoint. The log's old key signs a note
    that names the new one, which polo log audit follows.

    Examples:
    polo registry keys rotate

    polo registry keys rotate --log

    Parameters
    ----------
    log
        Change the log's key instead of the issuer's.
    json
        Print JSON.
    """
    need_parts()
    opened = _open(options)
    try:
        now = opened.clock()
        key = _rotated(opened, log, now)
    finally:
        opened.close()
    if json:
        print_json({"log" if log else "issuer": key, "since": now})
    elif log:
        print(f"checkpoints are signed by {key}")
        print("witnesses and auditors who know the old key follow: GET /v1/log/rollovers")
    else:
        print(f"new enrolments are signed by {key}")
        print("verifiers who trust the old key need the new one, too: GET /v1/keys")


def _rotated(opened: "Registry", log: bool, now: int) -> str:
    """The new key, as others will write it."""
    from polo.protocol.log_notes import NoteKey
    from polo.registry.commitments.sequencer import LOCK
    from polo.registry.events.service import note
    from polo.registry.log import keys as log_keys

    origin = opened.settings.origin
    with opened.database.begin() as connection:
        opened.database.lock(connection, LOCK)  # No checkpoint may come in between.
        opened.database.lock(connection, "keys")
        if log:
            fresh = log_keys.rotate(opened.vault, connection, origin, now)
            key = NoteKey(origin, fresh.public_key).text
        else:
            fresh = opened.vault.rotate(connection, now)
            key = fresh.public_key.hex()
        action = "keys.log-rotated" if log else "keys.rotated"
        note(connection, action, fresh.id, key, actor="operator at the machine", now=now)
    return key


@registry.command
def token(
    name: str,
    /,
    *,
    role: Literal["auditor", "operator"] = "operator",
    scope: Annotated[list[Literal["read", "write", "admin"]] | None, Parameter(negative="")] = None,
    days: int | None = None,
    json: Flag = False,
    options: Options = DEFAULT,
) -> None:
    """Make a token for a person or a script, and print it, this once.

    Example: polo registry token "Ada, audits" --role auditor --scope read

    Parameters
    ----------
    name
        Whose it is, and what for.
    role
        What it may do: auditors look, operators run the registry.
    scope
        read, write, admin (make tokens, give roles); by default all three.
    days
        How long it is good for; by default the setting's.
    json
        Print JSON.
    """
    need_parts()
    from polo.registry.callers import SCOPES
    from polo.registry.tokens import service

    if not 0 < len(name) <= 128 or (days is not None and not 1 <= days <= 3650):
        raise FormatError("a token has a name of 1 to 128 letters, for 1 to 3650 days")
    opened = _open(options)
    try:
        with opened.database.begin() as connection:
            made, secret = service.make(
                connection,
                name,
                role,
                scope or SCOPES,
                days=days or opened.settings.token_days,
                actor="operator at the machine",
                now=opened.clock(),
            )
    finally:
        opened.close()
    if json:
        print_json({"id": made.id, "token": secret, "expires": made.expires})
    else:
        print(secret)


def _open(options: Options) -> "Registry":
    """The registry that the settings name, which must have been started before."""
    from polo.registry.context import Registry
    from polo.registry.vault import KEY_FILE

    settings = load(options)
    if not (settings.data / KEY_FILE).exists():
        raise StoreError(
            "there is no registry here",
            place=str(settings.data),
            advice="Name its folder: --data FOLDER; polo registry serve makes a new one.",
        )
    return Registry.open(settings)


def load(options: Options, **flags: object) -> "Settings":
    """The settings that file, environment and flags say."""
    from polo.registry.settings import Settings, names

    chosen = {"data": options.data, "database": options.database}
    others: dict[str, str] = {}
    for item in options.settings:
        name, equals, value = item.partition("=")
        if not equals or name not in names():
            raise FormatError(
                f"{item[:80]!r} sets nothing",
                place="--set",
                advice="Write NAME=VALUE; docs/operate.md lists the names.",
            )
        others[name] = value
    given: dict[str, Any] = {**chosen, **flags}
    given = {name: value for name, value in given.items() if value is not None}
    return Settings.load(options.file, **{**others, **given})


def need_parts(part: str = "context") -> None:
    """Say what to install where the registry's packages are not there.

    Args:
        part: The module of the registry that is needed; the whole server takes a second to import.
    """
    try:
        importlib.import_module(f"polo.registry.{part}")
    except ModuleNotFoundError as error:
        raise MissingError(
            f"a registry needs {error.name}, which is not installed",
            advice="pip install 'polo-proof[registry]'",
        ) from error


def _listen(settings: "Settings") -> socket.socket:
    """Take the port before anything is made, so that a port in use changes nothing."""
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    try:
        return socket.create_server((settings.host, settings.port), family=family, backlog=1024)
    except OSError as error:
        in_use = error.errno == errno.EADDRINUSE
        # The exception's own words say the address a second time, as Python writes it.
        why = os.strerror(error.errno) if error.errno and error.errno > 0 else str(error)
        raise StoreError(
            f"cannot listen there: {why}",
            place=f"{settings.host}:{settings.port}",
            advice=("Is a registry running there already? " if in_use else "")
            + "Choose another --host or --port.",
        ) from error


def _greet(opened: "Registry") -> None:
    """Say where the registry is and, if nobody has a token yet, give the first one."""
    from polo.registry.callers import SCOPES
    from polo.registry.tokens import service

    settings = opened.settings
    with opened.database.begin() as connection:
        opened.database.lock(connection, "first token")
        secret = None
        if not service.are_there_any(connection):
            _, secret = service.make(
                connection,
                "first operator",
                "operator",
                SCOPES,
                days=settings.token_days,
                actor="registry",
                now=opened.clock(),
            )
    print(f"registry {settings.origin} at {settings.public_url}")
    print(f"folder   {settings.data}  (back up {settings.data / 'data.key'}, apart)")
    if secret:
        print(f"token    {secret}")
        print(f"         the operator's, good for {settings.token_days} days, shown this once")
    sys.stdout.flush()


def _run(opened: "Registry", listening: socket.socket) -> None:
    from polo.registry.serving import SWITCH, server_of

    sys.setswitchinterval(SWITCH)
    server = server_of(opened, started=lambda: _greet(opened))
    for number in (signal.SIGTERM, signal.SIGINT):
        # The server takes these over while it runs, and raises them again when it has ended:
        # by then everything was done in order, which is no failure.
        signal.signal(number, lambda *_: None)
    signal.signal(signal.SIGHUP, server.handle_exit)
    try:
        server.run(sockets=[listening])
    except SystemExit as error:  # uvicorn's way to say so; `polo.cli` takes it for a reader gone.
        raise _not_started() from error
    if not server.started:
        raise _not_started()


def _not_started() -> StoreError:
    return StoreError("the registry could not start", advice="Its log says why.")
