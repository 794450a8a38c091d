"""Settings of a registry: from a TOML file, then the environment, then flags.

The later one wins. A variable is named like its setting: `POLO_REGISTRY_PORT` is `port`. What each
one means, and what to set for real use, is in docs/operate.md.
"""

import dataclasses
import os
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from ipaddress import ip_address, ip_network
from pathlib import Path
from typing import Any, Self
from urllib.parse import urlsplit

from polo.errors import FormatError, StoreError

PREFIX = "POLO_REGISTRY_"
JOBS = ("inside", "procrastinate")
MIB = 1024 * 1024

_MAX_FILE = MIB
_ORIGIN = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/-]{0,127}")


def default_data() -> Path:
    """The folder of a registry that was told nothing: `$XDG_DATA_HOME/polo-registry`."""
    base = os.environ.get("XDG_DATA_HOME")
    return Path(base) / "polo-registry" if base else Path("~/.local/share/polo-registry")


@dataclass(frozen=True)
class Settings:
    """Everything an operator can set. Empty words become the default that the text names.

    Attributes:
        data: Folder of the data key and, by default, of the database and the files.
        host: Address to listen on.
        port: Port to listen on.
        public_url: Where others reach the registry; by default `http://host:port`.
        database: URL of the database; by default SQLite in `data`.
        objects: URL of the file store; by default a folder in `data`.
        origin: Name of the registry and of its log, for ever; by default from `public_url`.
        jobs: Who does long work: `inside` this process, or `procrastinate` workers.
        queues: Which queues the server does itself with `jobs` inside: `cpu`, `gpu`; by default
            `gpu` where the machine has one.
        max_body: Largest body of an ordinary request, in bytes.
        max_piece: Largest piece of an upload, in bytes.
        max_upload: Largest file, in bytes.
        rate: Requests a second that each registered key may make.
        guest_rate: Requests a second for each address that is not signed in.
        body_seconds: Seconds that a client has to send a body.
        header_seconds: Seconds that a client has to send a request's head.
        connections: Connections at the same time; more are answered 503.
        shutdown_seconds: Seconds that running requests get when the registry is stopped.
        upload_days: Days after which an unfinished upload is removed.
        keep_days: Days that files of a finished chain are kept, unless its terms say more.
        verify_seconds: Seconds that one verification may take.
        verify_memory: Memory of one verification in bytes, beside what the weights take.
        verify_accuracy: Which checkpoints a verification tests: `all`, `sample` or `none`.
        verify_environment: Names of further variables of the environment that tasks need.
        max_found: Largest file in bytes that a stranger may have scanned on the pages.
        max_enrolments: Enrolments, open or of the last day, that one identity may have.
        max_failed: Chains of one identity that may have failed or be stuck before it is enrolled
            no more.
        token_days: Days that a token is good for, unless it is made for fewer.
        session_hours: Hours after which a person signs in again.
        trusted_proxies: Addresses or networks whose `X-Forwarded-For` is believed.
        tasks: A TOML file of the tasks that are offered and the terms that they are offered on; by
            default digits and lab-cifar on usual terms.
        witnesses: Keys (`name+id+key`) of the witnesses whose cosignatures are taken.
        log_level: Least level that is logged: `debug`, `info`, `warning`, `error`.
    """

    data: Path = field(default_factory=default_data)
    host: str = "127.0.0.1"
    port: int = 8440
    public_url: str = ""
    database: str = ""
    objects: str = ""
    origin: str = ""
    jobs: str = "inside"
    queues: tuple[str, ...] = ()
    max_body: int = MIB
    max_piece: int = 8 * MIB
    max_upload: int = 64 * 1024 * MIB
    rate: int = 100
    guest_rate: int = 20
    body_seconds: int = 30
    header_seconds: int = 10
    connections: int = 1000
    shutdown_seconds: int = 20
    upload_days: int = 7
    keep_days: int = 365
    verify_seconds: int = 6 * 3600
    verify_memory: int = 16 * 1024 * MIB
    verify_accuracy: str = "all"
    verify_environment: tuple[str, ...] = ()
    max_found: int = 8 * 1024 * MIB
    max_enrolments: int = 1000
    max_failed: int = 20
    token_days: int = 90
    session_hours: int = 12
    trusted_proxies: tuple[str, ...] = ()
    tasks: str = ""
    witnesses: tuple[str, ...] = ()
    log_level: str = "info"

    def __post_init__(self) -> None:
        data = self.data.expanduser().absolute()
        host = f"[{self.host}]" if ":" in self.host else self.host
        public = (self.public_url or f"http://{host}:{self.port}").rstrip("/")
        self._set("data", data)
        self._set("public_url", public)
        self._set("database", self.database or f"sqlite:///{data / 'registry.sqlite'}")
        self._set("objects", self.objects or f"file://{data / 'objects'}")
        parts = urlsplit(public)
        self._set("origin", self.origin or (parts.netloc + parts.path))
        self._check(parts.scheme)

    def _set(self, name: str, value: object) -> None:
        object.__setattr__(self, name, value)

    def _check(self, scheme: str) -> None:
        if self.jobs not in JOBS:
            raise _wrong("jobs", f"{self.jobs!r} is neither of {', '.join(JOBS)}")
        if self.jobs == "procrastinate" and self.database.startswith("sqlite"):
            advice = "Set database to postgresql://…, or jobs to inside."
            raise FormatError("workers need PostgreSQL", place="setting jobs", advice=advice)
        if unknown := set(self.queues) - {"cpu", "gpu"}:
            raise _wrong("queues", f"{min(unknown)!r} is neither cpu nor gpu")
        if scheme not in ("http", "https"):
            raise _wrong("public_url", f"{self.public_url!r} does not begin with http(s)://")
        if not _ORIGIN.fullmatch(self.origin):
            raise _wrong("origin", f"{self.origin!r} is no name of a log, such as polo.example/log")
        if self.verify_accuracy not in ("all", "sample", "none"):
            raise _wrong("verify_accuracy", f"{self.verify_accuracy!r} is not all, sample or none")
        if self.log_level not in ("debug", "info", "warning", "error"):
            raise _wrong("log_level", f"{self.log_level!r} is no level")
        for setting in dataclasses.fields(self):
            value = getattr(self, setting.name)
            if isinstance(value, int) and value < (0 if setting.name == "port" else 1):
                raise _wrong(setting.name, f"{value} is too small")
        if self.port > 65535:
            raise _wrong("port", f"{self.port} is no port: they end at 65535")
        for network in self.trusted_proxies:
            try:
                ip_network(network, strict=False)
            except ValueError as error:
                raise _wrong("trusted_proxies", str(error)) from error

    @property
    def secure(self) -> bool:
        """Whether others reach the registry by https, so that cookies may insist on it."""
        return self.public_url.startswith("https://")

    @property
    def embedded(self) -> bool:
        """Whether the database is the registry's own SQLite file, which migrates itself."""
        return self.database == f"sqlite:///{self.data / 'registry.sqlite'}"

    def is_proxy(self, address: str) -> bool:
        """Whether what this address says about where a request came from is believed."""
        try:
            asked = ip_address(address)
        except ValueError:
            return False
        return any(asked in ip_network(item, strict=False) for item in self.trusted_proxies)

    @classmethod
    def load(
        cls,
        file: Path | None = None,
        environment: Mapping[str, str] | None = None,
        **flags: Any,
    ) -> Self:
        """Read the settings.

        Args:
            file: A TOML file; by default `POLO_REGISTRY_FILE`, or none.
            environment: Where to look for `POLO_REGISTRY_…`; by default the process's.
            flags: Settings from the command line; None is not set.
        """
        environment = os.environ if environment is None else environment
        given = environment.get(PREFIX + "FILE")
        file = file or (Path(given) if given else None)
        values = _from_file(file) if file else {}
        values |= _from_environment(environment)
        values |= {name: value for name, value in flags.items() if value is not None}
        return cls(**{name: _typed(name, value) for name, value in values.items()})


def names() -> tuple[str, ...]:
    """The names of all settings."""
    return tuple(setting.name for setting in dataclasses.fields(Settings))


def _from_file(path: Path) -> dict[str, Any]:
    try:
        with path.open("rb") as file:
            text = file.read(_MAX_FILE + 1)
    except OSError as error:
        raise StoreError(f"cannot be read: {error.strerror}", place=str(path)) from error
    try:
        values = tomllib.loads(text[:_MAX_FILE].decode())
    except (UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise FormatError(f"is no TOML: {error}", place=str(path)) from error
    for name in values:
        if name not in names():
            raise FormatError(
                f"there is no setting {name!r}", place=str(path), advice=", ".join(names())
            )
    return values


def _from_environment(environment: Mapping[str, str]) -> dict[str, str]:
    found = {name: environment.get(PREFIX + name.upper()) for name in names()}
    return {name: value for name, value in found.items() if value}


def _typed(name: str, value: Any) -> Any:
    default = getattr(Settings, name, None)
    if name == "data" and isinstance(value, (str, Path)):
        return Path(value)
    if isinstance(default, tuple):
        items = value.replace(",", " ").split() if isinstance(value, str) else value
        if isinstance(items, (list, tuple)) and all(isinstance(item, str) for item in items):
            return tuple(items)
    elif isinstance(default, int):
        if isinstance(value, str) and re.fullmatch(r"[0-9]{1,18}", value):
            return int(value)
        if isinstance(value, int) and not isinstance(value, bool):
            return value
    elif isinstance(value, str):
        return value
    raise _wrong(name, f"{value!r} is not what this setting can be")


def _wrong(name: str, message: str) -> FormatError:
    return FormatError(message, place=f"setting {name}", advice="See docs/operate.md.")
