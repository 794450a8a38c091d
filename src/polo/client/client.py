"""`polo.Client`: a registry, as a program sees it."""

import hashlib
import json
import re
import secrets
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from polo.client.checking import LogMemory, checked_answer
from polo.client.enrolled import Address, LiveEnrolment
from polo.client.http import MAX_PAGE, Connection, Patience, distrust
from polo.client.uploads import Tell, upload
from polo.errors import PoloError, RegistryError, SignatureError
from polo.keys import Identity
from polo.protocol import canonical, requests, signing
from polo.protocol.entries import Entry, with_opening
from polo.protocol.layout import Layout
from polo.protocol.records import Enrolment, Manifest
from polo.receipts import Answer

if TYPE_CHECKING:
    import httpx2

PATIENCE = Patience()
_MAX_HASHES = 128


@dataclass(frozen=True)
class Asked:
    """A challenge: the receipt waits until it is answered.

    Attributes:
        id: What the registry calls it.
        kind: What is asked for: the `checkpoint`, or a `replay`.
        due: Until when, in seconds since 1970.
    """

    id: str
    kind: str
    due: int


class Client:
    """Talks to a registry, signs what it sends, and checks what it is told.

        client = polo.Client("https://registry.example", "alice.key")
        client.register("Alice")
        client.enrol("digits").save("enrolment/")

    Requests are tried again while the registry is away or busy, and never after a refusal.

    Args:
        url: The registry's address.
        identity: Who asks: a key file, or the key; None to look at what everybody may see.
        origin: The registry's name, if it is known; else it is asked.
        patience: How often to try, and how long to wait.
        transport: What carries the requests instead of the network, as in tests.
    """

    def __init__(
        self,
        url: str,
        identity: signing.Signer | str | Path | None = None,
        *,
        origin: str | None = None,
        patience: Patience = PATIENCE,
        transport: "httpx2.BaseTransport | None" = None,
    ) -> None:
        signer = Identity.load(identity) if isinstance(identity, (str, Path)) else identity
        self._connection = Connection(
            url, signer, origin=origin, patience=patience, transport=transport
        )

    @property
    def url(self) -> str:
        """The registry's address."""
        return self._connection.url

    def close(self) -> None:
        """Let go of the network."""
        self._connection.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    # The registry itself

    def registry(self) -> dict[str, Any]:
        """What the registry says of itself: its name, its log's key, and all its public keys."""
        return self._get("/v1/keys", signed=False)

    def tasks(self) -> list[dict[str, Any]]:
        """The tasks that one can enrol for."""
        return self._list("/v1/tasks", "items")

    # Identities

    def register(self, name: str) -> dict[str, Any]:
        """Register this client's key, unless it is registered already."""
        try:
            return self._post("/v1/identities", {"name": name})
        except RegistryError as error:
            if error.code != "identity.known":
                raise
            return self.whoami()

    def identity(self, identity: str) -> dict[str, Any]:
        """What the registry knows of an identity."""
        return self._get(f"/v1/identities/{identity}")

    def whoami(self) -> dict[str, Any]:
        """The identity that this client's key belongs to; refused if it has another key by now."""
        key = self._key().hex()
        found = self._get("/v1/identities", query={"key": key}, signed=False)
        if found.get("key") != key:
            raise SignatureError(
                "this key was replaced by another, and does not count any more",
                place=self.url,
                advice=f"Use the key that begins with {str(found.get('key'))[:16]}.",
            )
        return found

    def rotate(self, new: signing.Signer | str | Path) -> dict[str, Any]:
        """Put another key in the place of this client's, which goes on with the new one.

        The old key counts no more, and cannot come back. Chains that were enrolled with it are
        still signed by it, so keep it until they are closed.

        Args:
            new: The new private key: a key file, or the key.
        """
        signer = Identity.load(new) if isinstance(new, (str, Path)) else new
        old, number = self._key(), str(self.whoami().get("id"))
        message = requests.rotation_message(number, old, signer.public_key)
        body = {"key": signer.public_key.hex(), "signature": signer.sign(message).hex()}
        try:
            said = self._post(f"/v1/identities/{number}/rotate", body)
        except RegistryError:
            # A try whose answer was lost has been taken: the old key is refused since then.
            said = self._get(f"/v1/identities/{number}", signed=False)
            if said.get("key") != body["key"]:
                raise
        self._connection.signer = signer
        return said

    def revoke(self, reason: str = "") -> dict[str, Any]:
        """Give this client's identity up, for ever: nothing is accepted from it any more."""
        number = self.whoami().get("id")
        return self._post(f"/v1/identities/{number}/revoke", {"reason": reason})

    # Enrolments

    def enrol(self, task: str, *, once: str | None = None, **options: Any) -> LiveEnrolment:
        """Enrol for a task, under the terms that the registry makes.

        Args:
            task: The task.
            once: A word of your own: with the same word the same enrolment comes again, within a
                day, however often this is called. By default every call makes one, whose tries
                are one all the same.
            options: What the registry lets one choose: `bits` of a mark; `data`, the record of
                the training data where terms ask for replay; `parent`, the enrolment of the
                closed chain that training goes on from.
        """
        body = {"task": task, **{k: v for k, v in options.items() if v is not None}}
        # The word is for this body: with another one it would be another request's.
        given = f"{once or secrets.token_hex(16)} {json.dumps(body, sort_keys=True)}"
        word = hashlib.sha256(given.encode()).hexdigest()
        said = self._post("/v1/enrolments", body, {"Idempotency-Key": word})
        record = self._record(said, Enrolment, "enrolment")
        layout = self._record(said, Layout, "layout")
        if record.identity != self._key() or layout.digest != record.terms.layout:
            raise distrust("enrolled another key, or another model", place=self.url)
        origin = self._connection.origin
        assert origin is not None  # The request was signed for it.
        enrolment = LiveEnrolment(record, Address(self.url, origin))
        enrolment.check()
        return enrolment

    def enrolments(self) -> Iterator[dict[str, Any]]:
        """The enrolments that one may see, page by page."""
        return self._pages("/v1/enrolments")

    def enrolment(self, enrolment: str) -> dict[str, Any]:
        """How an enrolment stands."""
        return self._get(f"/v1/enrolments/{enrolment}")

    def close_chain(self, manifest: Manifest) -> dict[str, Any]:
        """Close a chain with its manifest; closing it again with the same one changes nothing."""
        path = f"/v1/enrolments/{manifest.enrolment.digest.hex()}/close"
        return self._json(self._connection.ask("POST", path, body=manifest.to_bytes(), **_JSON))

    def withdraw(self, enrolment: str) -> dict[str, Any]:
        """Give an open chain up."""
        return self._post(f"/v1/enrolments/{enrolment}/withdraw", {})

    def secret(self, enrolment: str) -> bytes:
        """κ, which the registry shows after the close, so that its nonces can be checked."""
        said = self._get(f"/v1/enrolments/{enrolment}/secret").get("secret")
        try:
            return bytes.fromhex(said)  # type: ignore[arg-type]
        except (TypeError, ValueError) as error:
            raise distrust("its secret is no hexadecimal", place=self.url) from error

    # Commitments

    def commit(
        self, entry: Entry, enrolment: Enrolment, memory: LogMemory, *, opening: bytes = b"",
        tries: int | None = None,
    ) -> Answer | Asked:  # fmt: skip
        """Commit to a start or a shard; the same entry leads to the same answer, however often.

        Args:
            entry: The signed entry.
            enrolment: What it is committed under.
            memory: What was seen of the log; all of the answer is held against it.
            opening: The file of the shard's opening, if it is to travel along.
            tries: Most tries, if other than usual.
        """
        path = f"/v1/enrolments/{entry.enrolment.hex()}/commitments"
        body, kind = entry.to_bytes(), _JSON
        if opening:
            body, kind = with_opening(body, opening), _OCTETS
        reply = self._connection.ask("POST", path, body=body, tries=tries, **kind)
        said = self._json(reply)
        if reply.status == 202:
            return self._asked(said.get("challenge"))
        return checked_answer(said, entry, enrolment, memory, self.consistency, place=self.url)

    def commitments(self, enrolment: str) -> Iterator[dict[str, Any]]:
        """What was committed under an enrolment, oldest first."""
        return self._pages(f"/v1/enrolments/{enrolment}/commitments")

    # Uploads and challenges

    def upload(
        self,
        path: Path | str,
        *,
        enrolment: str,
        kind: str,
        shard: int | None = None,
        tell: Tell = lambda *_: None,
        tries: int | None = None,
    ) -> str:
        """Bring a file to the registry, or what is missing of it there; returns the upload's id.

        Args:
            path: The file.
            enrolment: The enrolment that it belongs to.
            kind: `opening`, `checkpoint`, `answer`, `proof` or `record`.
            shard: The shard that it belongs to.
            tell: Told of progress: what, how much, of how much.
            tries: Most tries of each request.
        """
        return upload(
            self._connection, Path(path), enrolment=enrolment, kind=kind, shard=shard, tell=tell,
            tries=tries,
        )  # fmt: skip

    def challenges(self, enrolment: str) -> list[dict[str, Any]]:
        """The challenges of an enrolment, oldest first."""
        return self._list(f"/v1/enrolments/{enrolment}/challenges", "challenges")

    def challenge(self, challenge: str) -> dict[str, Any]:
        """A challenge: what is asked for, and how it stands."""
        return self._get(f"/v1/challenges/{challenge}")

    def answer(self, challenge: str, upload: str) -> dict[str, Any]:
        """Answer a challenge with an upload."""
        return self._post(f"/v1/challenges/{challenge}/answer", {"upload": upload})

    # Verifications and scans

    def verify(self, enrolment: str, upload: str | None = None) -> dict[str, Any]:
        """Have a closed chain verified; it is a job, see `verification`.

        Args:
            enrolment: The enrolment.
            upload: An uploaded bundle to verify; by default what the registry holds of the proof.
        """
        return self._post(f"/v1/enrolments/{enrolment}/verifications", {"upload": upload})

    def verifications(self, enrolment: str) -> list[dict[str, Any]]:
        """The verifications of an enrolment, oldest first."""
        return self._list(f"/v1/enrolments/{enrolment}/verifications", "verifications")

    def verification(self, verification: str) -> dict[str, Any]:
        """How a verification stands, with its verdict at the end."""
        return self._get(f"/v1/verifications/{verification}")

    def report(self, verification: str) -> bytes:
        """The verdict as a page."""
        path = f"/v1/verifications/{verification}/report"
        return self._connection.ask("GET", path, limit=MAX_PAGE).body

    def scan(self, what: str | Path) -> dict[str, Any]:
        """Look for marks of other chains in a model; it is a job, see `scanned`.

        Args:
            what: An enrolment of yours, by its id, for its last checkpoint; or the path of a
                safetensors file, which is sent, and removed there when it was looked at.
        """
        if isinstance(what, str) and re.fullmatch("[0-9a-f]{64}", what):
            return self._post("/v1/scans", {"enrolment": what})
        raw = {"Content-Type": "application/octet-stream"}
        return self._json(self._connection.ask("POST", "/v1/scans", body=Path(what), headers=raw))

    def scanned(self, scan: str) -> dict[str, Any]:
        """How a scan stands, with what it found at the end."""
        return self._get(f"/v1/scans/{scan}")

    # The log

    def consistency(self, old: int, new: int) -> list[bytes]:
        """The registry's proof that its log of one size goes on from another."""
        said = self._get("/v1/log/consistency", query={"old": old, "new": new}, signed=False)
        hashes = said.get("path")
        try:
            if not isinstance(hashes, list) or len(hashes) > _MAX_HASHES:
                raise ValueError("no list of hashes")
            return [bytes.fromhex(item) for item in hashes]
        except (TypeError, ValueError) as error:
            raise distrust("no proof of consistency", place=self.url) from error

    # Inside

    def _get(
        self, path: str, *, query: Mapping[str, object] | None = None, signed: bool = True
    ) -> dict[str, Any]:
        return self._json(self._connection.ask("GET", path, query=query, signed=signed))

    def _post(
        self, path: str, body: dict[str, Any], headers: Mapping[str, str] | None = None
    ) -> dict[str, Any]:
        return self._json(self._connection.ask("POST", path, json_body=body, headers=headers))

    def _json(self, reply: Any) -> dict[str, Any]:
        found: dict[str, Any] = reply.json(self.url)
        return found

    def _list(self, path: str, name: str) -> list[dict[str, Any]]:
        return self._items(self._get(path), name)

    def _items(self, said: Mapping[str, Any], name: str) -> list[dict[str, Any]]:
        items = said.get(name)
        if not isinstance(items, list) or not all(isinstance(item, dict) for item in items):
            raise distrust("no list, where one belongs", place=self.url)
        return items

    def _pages(self, path: str) -> Iterator[dict[str, Any]]:
        """The items of all pages of a list."""
        after: object = None
        while True:
            said = self._get(path, query={"after": after})
            items = self._items(said, "items")
            yield from items
            if not items or said.get("next") in (None, after):
                return
            after = said["next"]

    def _asked(self, said: object) -> Asked:
        if not isinstance(said, dict):
            raise distrust("neither a receipt nor a challenge", place=self.url)
        due = said.get("due")
        return Asked(str(said.get("id")), str(said.get("kind")), due if type(due) is int else 0)

    def _record(self, said: Mapping[str, Any], kind: Any, name: str) -> Any:
        try:
            return kind.from_bytes(canonical.encode(said.get(name)), name)
        except PoloError as error:
            raise distrust(f"its {name} cannot be read: {error}", place=self.url) from error

    def _key(self) -> bytes:
        if self._connection.signer is None:
            raise SignatureError(
                "this needs a key", place=self.url, advice="Give one: polo.Client(URL, KEY)."
            )
        return self._connection.signer.public_key


_JSON: dict[str, Any] = {"headers": {"Content-Type": "application/json"}}
_OCTETS: dict[str, Any] = {"headers": {"Content-Type": "application/octet-stream"}}
