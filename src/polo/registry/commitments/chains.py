"""What never changes about an enrolled chain, read once and kept at hand."""

import functools
import threading
from collections import OrderedDict
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

from sqlalchemy import Connection, select

from polo.errors import FormatError
from polo.evidence.receipts.rules import replays
from polo.keys import Identity
from polo.protocol.layout import Layout
from polo.protocol.records import Enrolment, Terms
from polo.registry.database import Database
from polo.registry.schema import enrolments
from polo.registry.vault import Vault

if TYPE_CHECKING:
    from polo.evidence.replay.recipe import Recipe

KEPT = 4096
"""Chains that are kept at hand."""


@dataclass(frozen=True)
class Chain:
    """The fixed part of an enrolment, opened for use.

    Attributes:
        id: The enrolment's digest, in hexadecimal.
        record: The signed enrolment.
        secret: κ, out of which all nonces come.
        issuer: The key that signs its receipts.
        layout_bytes: The layout, as it is stored.
    """

    id: str
    record: Enrolment
    secret: bytes = field(repr=False)
    issuer: Identity
    layout_bytes: bytes = field(repr=False)

    @property
    def terms(self) -> Terms:
        """The terms it runs under."""
        return self.record.terms

    @cached_property
    def layout(self) -> Layout:
        """Names, types and shapes of its checkpoints."""
        return _layout(self.layout_bytes)

    @cached_property
    def receipts(self) -> dict[str, str]:
        """The settings of level receipts."""
        found = [item.settings for item in self.terms.evidence if item.level == "receipts"]
        return dict(found[0]) if found else {}

    def number(self, name: str) -> int:
        """A whole number out of these settings; 0 where it is not set."""
        text = self.receipts.get(name, "0")
        if not text.isdecimal():
            raise FormatError(f"{text!r} is no whole number", place=f"receipts.{name}")
        return int(text)

    @cached_property
    def fastest(self) -> int:
        """Fewest seconds between two commitments."""
        return self.number("fastest")

    @cached_property
    def draws(self) -> bool:
        """Whether a commitment may be answered by a challenge."""
        return bool(self.number("checkpoints") or self.number("replays"))

    @property
    def streams(self) -> bool:
        """Whether openings come with the commitments."""
        return self.terms.history == "streaming"

    @cached_property
    def replays(self) -> int:
        """Millionths of the shards from which steps are drawn while the chain grows."""
        return replays(self.terms)

    @cached_property
    def recipe(self) -> "Recipe | None":
        """How steps are done, where level replay is asked for."""
        from polo.evidence.replay.recipe import Recipe  # numpy, without which the server starts

        found = [item.settings for item in self.terms.evidence if item.level == "replay"]
        return Recipe.from_settings(found[0], "terms") if found else None


class Chains:
    """The chains that were used last.

    Args:
        database: Where they are.
        vault: Opens their secrets.
    """

    def __init__(self, database: Database, vault: Vault) -> None:
        self._database = database
        self._vault = vault
        self._kept: OrderedDict[str, Chain] = OrderedDict()
        self._layouts: dict[bytes, bytes] = {}  # Few: every chain of a task has the same.
        self._lock = threading.Lock()

    def at_hand(self, enrolment: str) -> Chain | None:
        """The chain, if it was used lately; never waits for the database."""
        with self._lock:
            chain = self._kept.get(enrolment)
            if chain is not None:
                self._kept.move_to_end(enrolment)
            return chain

    def get(self, enrolment: str) -> Chain | None:
        """The chain, if there is such an enrolment."""
        if chain := self.at_hand(enrolment):
            return chain
        with self._database.read() as connection:
            return self.load(connection, enrolment)

    def load(self, connection: Connection, enrolment: str) -> Chain | None:
        """Like `get`, inside a transaction of the caller's."""
        if chain := self.at_hand(enrolment):
            return chain
        columns = (enrolments.c.record, enrolments.c.layout, enrolments.c.secret)
        row = connection.execute(select(*columns).where(enrolments.c.id == enrolment)).first()
        if row is None:
            return None
        record = Enrolment.from_bytes(bytes(row.record), "enrolment")
        layout = bytes(row.layout)
        chain = Chain(
            enrolment,
            record,
            self._vault.open(bytes(row.secret), about_secret(enrolment)),
            self._vault.issuer_of(connection, record.issuer),
            self._layouts.setdefault(layout, layout),
        )
        with self._lock:
            self._kept[enrolment] = chain
            while len(self._kept) > KEPT:
                self._kept.popitem(last=False)
        return chain


@functools.lru_cache(64)
def _layout(data: bytes) -> Layout:
    return Layout.from_bytes(data, "layout")


def about_secret(enrolment: str) -> str:
    """What the vault binds an enrolment's secret to."""
    return f"secret of {enrolment}"
