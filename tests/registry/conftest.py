"""What the tests of the registry share: both databases, an open registry, and who asks it."""

import importlib.util
import os
import secrets
import shutil
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest
from starlette.testclient import TestClient

import polo
from polo.protocol import requests as protocol
from polo.registry import migrations
from polo.registry.app import create_app
from polo.registry.callers import SCOPES
from polo.registry.context import Registry
from polo.registry.database import Database
from polo.registry.schema import metadata
from polo.registry.serving import server_of
from polo.registry.settings import Settings
from polo.registry.tokens import service as tokens


def _load(name: str) -> Any:
    """A module beside this one, there for tests as `import name`."""
    spec = importlib.util.spec_from_file_location(name, Path(__file__).with_name(f"{name}.py"))
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


postgres_server = _load("postgres")
_load("live_chain")

NOW = 1_800_000_000


class Clock:
    """A clock that the tests set; it never goes by itself."""

    def __init__(self, now: int = NOW) -> None:
        self.now = now

    def __call__(self) -> int:
        return self.now

    def advance(self, seconds: int) -> None:
        self.now += seconds


class Signing(httpx2.Auth):
    """Signs every request as an identity does."""

    requires_request_body = True

    def __init__(self, identity: Any, origin: str, clock: Callable[[], int]) -> None:
        self.identity, self.origin, self.clock = identity, origin, clock

    def auth_flow(self, request: Any) -> Any:
        request.headers["Authorization"] = protocol.sign(
            self.identity,
            request.method,
            self.origin,
            request.url.raw_path.decode(),
            request.content,
            time=self.clock(),
            nonce=secrets.token_bytes(16),
        )
        yield request


class Asking:
    """A client that asks as somebody: `get`, `post`, `patch`, `delete`, `request`."""

    def __init__(
        self, client: Any, auth: Any = None, headers: dict[str, str] | None = None
    ) -> None:
        self.client, self.auth, self.headers = client, auth, headers or {}

    def request(self, method: str, url: str, **options: Any) -> Any:
        headers = {**self.headers, **options.pop("headers", {})}
        if self.auth is not None:
            options.setdefault("auth", self.auth)
        return self.client.request(method, url, headers=headers, **options)

    def get(self, url: str, **options: Any) -> Any:
        return self.request("GET", url, **options)

    def post(self, url: str, **options: Any) -> Any:
        return self.request("POST", url, **options)

    def patch(self, url: str, **options: Any) -> Any:
        return self.request("PATCH", url, **options)

    def delete(self, url: str, **options: Any) -> Any:
        return self.request("DELETE", url, **options)


@pytest.fixture(scope="session")
def postgres() -> Iterator[Any]:
    """A PostgreSQL server; `.create()` makes a database in it. Skips where it is not installed."""
    if postgres_server.binaries() is None:
        pytest.skip("PostgreSQL's server is not installed: tools/system-packages.sh postgresql")
    with postgres_server.running() as server:
        yield server


@pytest.fixture(scope="session")
def migrated(postgres: Any) -> str:
    """The name of a database at the latest migration, to copy."""
    postgres.execute("create database polo_template")
    database = Database(postgres.url("polo_template"))
    migrations.upgrade(database)
    database.close()
    return "polo_template"


@pytest.fixture(scope="session")
def migrated_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same as a file of SQLite's."""
    path = tmp_path_factory.mktemp("migrated") / "registry.sqlite"
    database = Database(f"sqlite:///{path}")
    migrations.upgrade(database)
    database.close()
    return path


@pytest.fixture(params=["sqlite", "postgresql"])
def empty_url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """The URL of an empty database, once of each kind."""
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path / 'data' / 'registry.sqlite'}"
        return
    server = request.getfixturevalue("postgres")
    url = server.create()
    yield url
    server.drop(url)


@pytest.fixture(params=["sqlite", "postgresql"])
def database_url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """The URL of a database of a new registry, once of each kind."""
    if request.param == "sqlite":
        path = tmp_path / "data" / "registry.sqlite"
        path.parent.mkdir(mode=0o700)
        shutil.copyfile(request.getfixturevalue("migrated_file"), path)
        yield f"sqlite:///{path}"
        return
    server = request.getfixturevalue("postgres")
    url = server.borrow(request.getfixturevalue("migrated"))
    yield url
    server.give_back(url, [table.name for table in reversed(metadata.sorted_tables)])


@pytest.fixture
def clock() -> Clock:
    """The registry's clock; `clock.advance(60)`."""
    return Clock()


@pytest.fixture
def settings(tmp_path: Path, database_url: str) -> Settings:
    """Settings of a new registry. A test module may have its own fixture of this name."""
    return Settings(
        data=tmp_path / "data",
        database=database_url,
        origin="registry.test/log",
        rate=100_000,
        guest_rate=100_000,
    )


@pytest.fixture
def registry(settings: Settings, clock: Clock) -> Iterator[Registry]:
    """An open registry, over SQLite and over PostgreSQL."""
    opened = Registry.open(settings, migrate=True, clock=clock)
    yield opened
    opened.close()


@pytest.fixture
def client(registry: Registry) -> Iterator[TestClient]:
    """Asks the registry in this process, as nobody in particular; `with` its lifespan."""
    with TestClient(create_app(registry), raise_server_exceptions=False) as inside:
        yield inside


@pytest.fixture
def client_of(client: TestClient, registry: Registry) -> Callable[..., Asking]:
    """Gives a client whose requests an identity signs; registers it unless told not to."""

    def make(identity: polo.Identity, *, name: str = "somebody", register: bool = True) -> Asking:
        auth = Signing(identity, registry.settings.origin, registry.clock)
        asking = Asking(client, auth)
        if register:
            answer = asking.post("/v1/identities", json={"name": name})
            assert answer.status_code == 201, answer.text
        return asking

    return make


@pytest.fixture
def token_of(registry: Registry) -> Callable[..., str]:
    """Makes a token: `token_of("operator")`, `token_of("auditor", scopes=("read",), days=1)`."""

    def make(role: str, *, scopes: tuple[str, ...] = SCOPES, days: int = 30) -> str:
        with registry.database.begin() as connection:
            _, secret = tokens.make(
                connection, role, role, scopes, days=days, actor="test", now=registry.clock()
            )
        return secret

    return make


@pytest.fixture
def person(client: TestClient, token_of: Callable[..., str]) -> Callable[..., Asking]:
    """Gives a client with a token: `person("operator")`."""

    def make(role: str, **options: Any) -> Asking:
        return Asking(client, headers={"Authorization": f"Bearer {token_of(role, **options)}"})

    return make


@pytest.fixture
def served(registry: Registry) -> Iterator[str]:
    """The registry on a loopback port, by the server that people run; gives its address."""
    server = server_of(registry, port=0)
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    deadline = time.monotonic() + 20
    while not server.started:
        assert thread.is_alive(), "the server did not start"
        assert time.monotonic() < deadline, "the server did not start in time"
        time.sleep(0.01)
    port = server.servers[0].sockets[0].getsockname()[1]
    yield f"http://127.0.0.1:{port}"
    server.should_exit = True
    thread.join(30)
    assert not thread.is_alive()


@pytest.fixture(autouse=True)
def _no_settings_from_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("POLO_REGISTRY_")]:
        monkeypatch.delenv(name)
