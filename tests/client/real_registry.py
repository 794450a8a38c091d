"""The real registry for the client's tests, and an enrolment of the tiny task at it.

No registry offers the tiny task, since only these tests have its code; its terms are put straight
into the database. Everything after that goes over the wire.
"""

import secrets
import threading
import time
from pathlib import Path
from typing import Any

from sqlalchemy import insert, select

import polo
from polo.client.enrolled import Address, LiveEnrolment
from polo.enrolment import enrol_live
from polo.evidence.receipts.rules import Rules
from polo.protocol.log_notes import NoteKey
from polo.registry.commitments.chains import about_secret
from polo.registry.context import Registry
from polo.registry.identities import service as identities
from polo.registry.schema import enrolments, identity_keys
from polo.registry.serving import server_of
from polo.registry.settings import Settings
from polo.weights.checkpoint import checkpoint_of

ORIGIN = "registry.test/log"


def settings_of(folder: Path, tasks: str = "", **settings: Any) -> Settings:
    """Settings of a registry in a folder, which offers these tasks."""
    if tasks:
        offers = folder / "tasks.toml"
        offers.write_text(tasks)
        settings["tasks"] = str(offers)
    usual = {"origin": ORIGIN, "rate": 10_000, "guest_rate": 10_000}
    return Settings(data=folder / "registry", **{**usual, **settings})


class Served:
    """The real registry on a loopback port; it can be stopped and started."""

    def __init__(self, folder: Path, tasks: str, **settings: Any) -> None:
        self._settings = settings_of(folder, tasks, **settings)
        self.port = 0
        self._thread: threading.Thread | None = None
        self.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> None:
        self.registry = Registry.open(self._settings, migrate=True)
        self._server = server_of(self.registry, port=self.port)
        self._thread = threading.Thread(target=self._server.run, daemon=True)
        self._thread.start()
        deadline = time.monotonic() + 20
        while not self._server.started:
            assert self._thread.is_alive()
            assert time.monotonic() < deadline
            time.sleep(0.01)
        self.port = self._server.servers[0].sockets[0].getsockname()[1]

    def stop(self) -> None:
        if self._thread is None:
            return
        self._server.should_exit = True
        self._thread.join(30)
        assert not self._thread.is_alive()
        self._thread = None
        self.registry.close()


def enrol_tiny(
    registry: Registry,
    url: str,
    task: Any,
    key: polo.Identity,
    folder: Path,
    *,
    receipts: dict[str, Any] | None = None,
    **options: Any,
) -> LiveEnrolment:
    """Enrol a key for the tiny task; options go to `make_terms`."""
    now, origin = registry.clock(), registry.settings.origin
    with registry.database.begin() as connection:
        log = NoteKey(origin, registry.vault.log_key(connection).public_key)
        known = select(identity_keys.c.identity).where(identity_keys.c.key == key.public_key)
        if connection.execute(known).first() is None:
            identities.register(connection, key.public_key, "tiny", request=None, now=now)
        rules = Rules(origin=origin, log=log, **(receipts or {}))
        usual = {"bits": 128, "shards": 12, "strength": 0.02, "budget": 1.0}
        secret = secrets.token_bytes(32)
        record = enrol_live(
            polo.make_terms(task, receipts=rules, **{**usual, **options}),
            identity=key.public_key,
            issuer=registry.vault.issuer(connection),
            secret=secret,
            issued=now,
        )
        name = record.digest.hex()
        layout = checkpoint_of(task.build_model()).layout
        values: dict[str, Any] = {"id": name, "identity": key.id, "task": task.name, "shards": 0}
        values |= {"record": record.to_bytes(), "layout": layout.to_bytes(), "state": "open"}
        values |= {"issued": now, "changed": now}
        sealed = registry.vault.seal(secret, about_secret(name))
        connection.execute(insert(enrolments).values(**values, secret=sealed))
    return LiveEnrolment(record, Address(url, origin)).save(folder)
