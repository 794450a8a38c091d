"""Reading a registry's log over HTTP: its checkpoint, tiles, bundles of entries, enrolments."""

import functools
from typing import TYPE_CHECKING

from polo.client.http import Connection, Patience, distrust
from polo.errors import PoloError, RegistryError, SignatureError
from polo.protocol import log_tiles
from polo.protocol.entries import MAX_CHECKPOINT
from polo.protocol.fields import Bytes, Integer, ListOf, Text
from polo.protocol.log_notes import Note, NoteKey
from polo.protocol.log_rollover import MAX_ROLLOVERS
from polo.protocol.log_tiles import HASH_BYTES, MAX_BUNDLE, WIDTH, Tile
from polo.protocol.log_tree import MAX_SIZE, Lookup
from polo.protocol.records import Enrolment

if TYPE_CHECKING:
    import httpx2

_GONE = (401, 403, 404, 410)
_NOTE = Text(MAX_CHECKPOINT, r"[^\x00-\x09\x0b-\x1f]*")


class LogReader:
    """A log, by the address of its registry; for one audit, since tiles are remembered.

    Args:
        url: The registry's address; that of the log itself, which ends in `/log`, will do.
        patience: How often to try.
        transport: What carries the requests, instead of the network.
    """

    def __init__(
        self,
        url: str,
        *,
        patience: Patience | None = None,
        transport: "httpx2.BaseTransport | None" = None,
    ) -> None:
        self._connection = Connection(
            url.rstrip("/").removesuffix("/log"),
            None,
            origin=None,
            patience=patience or Patience(),
            transport=transport,
        )
        self.url = self._connection.url
        self.hashes = functools.lru_cache(64)(self._hashes)

    def close(self) -> None:
        """Let go of the network."""
        self._connection.close()

    def key(self) -> NoteKey:
        """The log's key, as the registry itself says; who knows better should not ask it."""
        said = self._connection.ask("GET", "/v1/keys").json(self.url)
        place = f"{self.url}/v1/keys"
        return NoteKey.parse(str(said.get("log")), place=place)

    def rollovers(self) -> list[Note]:
        """What the log's keys signed about each other; none where the registry shows none."""
        path = "/v1/log/rollovers"
        try:
            said = self._connection.ask("GET", path).json(self.url)
        except RegistryError as error:
            if error.status in _GONE:
                return []
            raise
        place = f"{self.url}{path}"
        texts = ListOf(_NOTE, MAX_ROLLOVERS).read(said.get("rollovers"), place)
        return [Note.parse(text, place=place) for text in texts]

    def checkpoint(self) -> Note | None:
        """The newest checkpoint, whoever signed it; None if the log is empty."""
        try:
            data = self._bytes("checkpoint", 4 * MAX_CHECKPOINT)
        except RegistryError as error:
            if error.code == "log.empty":
                return None
            raise
        try:
            return Note.parse(data.decode(), place=f"{self.url}/log/checkpoint")
        except UnicodeDecodeError as error:
            raise distrust("a checkpoint that is no text", place=self.url) from error

    def entries(self, tile: Tile) -> list[bytes]:
        """The entries of a bundle."""
        whole, data = self._tile(tile, MAX_BUNDLE)
        return log_tiles.entries_of(data, whole)[: tile.width]

    def _hashes(self, tile: Tile) -> list[bytes]:
        """The hashes of a tile."""
        whole, data = self._tile(tile, WIDTH * HASH_BYTES)
        return log_tiles.hashes_of(data, whole)[: tile.width]

    def lookup(self, size: int) -> Lookup:
        """Subtrees of the log of this size, from its tiles."""
        return log_tiles.lookup_in(size, self.hashes)

    def enrolment(self, digest: bytes) -> Enrolment | None:
        """An enrolment, if the registry shows it.

        Raises:
            SignatureError: It shows another one.
        """
        path = f"/v1/enrolments/{digest.hex()}"
        try:
            said = self._connection.ask("GET", path).json(self.url)
        except RegistryError as error:
            if error.status in _GONE:
                return None
            raise
        found = Enrolment.from_json(said.get("enrolment"), f"{self.url}{path}")
        if found.digest != digest:
            raise SignatureError("the registry shows another enrolment", place=f"{self.url}{path}")
        return found

    def inclusion(self, index: int, quorum: int) -> tuple[int, tuple[bytes, ...], str] | None:
        """Size, path and checkpoint of the first tree over an entry that so many cosigned.

        Returns:
            None if they have not yet.
        """
        try:
            query = {"index": index, "quorum": quorum}
            said = self._connection.ask("GET", "/v1/log/inclusion", query=query).json(self.url)
        except RegistryError as error:
            if error.status in _GONE:
                return None
            raise
        place = f"{self.url}/v1/log/inclusion"
        path = ListOf(Bytes(32), 64).read(said.get("path"), place)
        size = Integer(1, MAX_SIZE).read(said.get("size"), place)
        note = _NOTE.read(said.get("checkpoint"), place)
        return size, path, note

    def cosign(self, note: Note) -> None:
        """Hand a checkpoint in that a witness signed; the registry keeps lines it knows."""
        kind = {"Content-Type": "text/plain; charset=utf-8"}
        body = str(note).encode()
        self._connection.ask("POST", "/v1/log/cosignatures", body=body, headers=kind)

    def _tile(self, tile: Tile, limit: int) -> tuple[Tile, bytes]:
        """A tile or bundle; the whole one where a part of it is not served any more."""
        try:
            return tile, self._bytes(tile.path, limit)
        except RegistryError as error:
            if error.status not in _GONE or tile.width == WIDTH:
                raise
            refusal: PoloError = error
        whole = Tile(tile.level, tile.index)
        try:
            return whole, self._bytes(whole.path, limit)
        except RegistryError as error:
            raise refusal from error

    def _bytes(self, path: str, limit: int) -> bytes:
        try:
            return self._connection.ask("GET", f"/log/{path}", limit=limit).body
        except RegistryError as error:
            error.place = f"{self.url}/log/{path}"
            raise
