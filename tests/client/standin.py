"""A small registry on a loopback port that can go away, ask for checkpoints, and lie.

It keeps everything in memory and shares no code with the real one; what it shares with it is the
protocol. `lie` names what it says wrong from then on.
"""

import hashlib
import http.server
import json
import secrets
import threading
import time
from collections.abc import Callable
from typing import Any
from urllib.parse import parse_qs, urlsplit

import polo
from polo.keys import Ed25519Verifier
from polo.protocol import log_tree, nonces, requests, signing
from polo.protocol.entries import Entry, leaf_hash, live_nonce, without_opening
from polo.protocol.log_notes import Checkpoint, NoteKey, sign_checkpoint
from polo.protocol.records import Enrolment, Manifest, Receipt
from polo.protocol.uniqueness import Uniqueness

ORIGIN = "registry.test/log"


class Refusal(Exception):  # noqa: N818
    """An answer that says no."""

    def __init__(self, status: int, code: str, detail: str = "", **headers: str) -> None:
        super().__init__(detail)
        self.status, self.code, self.detail, self.headers = status, code, detail, headers


class StandIn:
    """The registry.

    Attributes:
        lie: What it says wrong: nonce, receipt, root, inclusion, fork, secret, or nothing.
        asks: Shards whose checkpoint it asks for.
        busy: How many requests it still answers by 503.
        requests: Method and path of everything that it was asked.
    """

    def __init__(self) -> None:
        self.issuer, self.log_key = polo.Identity.generate(), polo.Identity.generate()
        self.lie, self.busy = "", 0
        self.asks: set[int] = set()
        self.together_at_most: int | None = None
        self.requests: list[tuple[str, str]] = []
        self.secrets: dict[str, bytes] = {}
        self.enrolments: dict[str, Enrolment] = {}
        self.chains: dict[str, list[bytes]] = {}
        self.manifests: dict[str, bytes] = {}
        self.scanned = ""
        self.entries: list[bytes] = []
        self.uploads: dict[str, dict[str, Any]] = {}
        self.answered: set[str] = set()
        self.identities: dict[bytes, str] = {}
        self.spent: set[bytes] = set()
        self.offer: Callable[[str, bytes], tuple[Any, Any]] | None = None
        self._lock = threading.Lock()
        self._server: http.server.ThreadingHTTPServer | None = None
        self.port = 0
        self.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def vkey(self) -> str:
        return NoteKey(ORIGIN, self.log_key.public_key).text

    def start(self) -> None:
        """Listen, on the port of before if there was one."""
        registry = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *arguments: Any) -> None:
                pass

            def handle_one(self) -> None:
                registry.handle(self)

            do_GET = do_POST = do_PATCH = handle_one  # noqa: N815

        class Server(http.server.ThreadingHTTPServer):
            daemon_threads = True
            allow_reuse_address = True

            def handle_error(self, *arguments: Any) -> None:
                pass

        self._server = Server(("127.0.0.1", self.port), Handler)
        self.port = self._server.server_address[1]
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()

    def stop(self) -> None:
        """Go away; what was noted stays."""
        if self._server:
            self._server.shutdown()
            self._server.server_close()
            self._server = None

    def enrol(self, terms: Any, key: bytes) -> Enrolment:
        """Sign terms for a key."""
        from polo.enrolment import enrol_live

        secret = secrets.token_bytes(32)
        record = enrol_live(terms, identity=key, issuer=self.issuer, secret=secret, issued=1)
        name = record.digest.hex()
        self.secrets[name], self.enrolments[name], self.chains[name] = secret, record, []
        return record

    def handle(self, request: Any) -> None:
        length = int(request.headers.get("Content-Length") or 0)
        body = request.rfile.read(length)
        with self._lock:
            if self._server is None:
                request.close_connection = True
                return
            try:
                status, said, headers = self._answer(request, body)
            except Refusal as refusal:
                status, headers = refusal.status, refusal.headers
                said = {"code": refusal.code, "detail": refusal.detail, "advice": ""}
        data = json.dumps(said).encode()
        if self._server is None:
            request.close_connection = True
            return
        request.send_response(status)
        request.send_header(
            "Content-Type", "application/problem+json" if status >= 400 else "application/json"
        )
        request.send_header("Content-Length", str(len(data)))
        for name, value in headers.items():
            request.send_header(name.replace("_", "-"), value)
        request.end_headers()
        request.wfile.write(data)

    def _answer(self, request: Any, body: bytes) -> tuple[int, Any, dict[str, str]]:
        self.requests.append((request.command, request.path))
        if self.busy:
            self.busy -= 1
            raise Refusal(503, "registry.busy", "come back", Retry_After="0")
        parts = urlsplit(request.path)
        where = parts.path.strip("/").split("/")[1:]
        if where == ["keys"]:
            return 200, {"origin": ORIGIN, "log": self.vkey, "keys": []}, {}
        if where == ["log", "consistency"]:
            query = parse_qs(parts.query)
            return 200, self._consistency(int(query["old"][0]), int(query["new"][0])), {}
        key = self._caller(request, body)
        if where == ["identities"]:
            self.identities[key] = json.loads(body)["name"]
            return 201, {"id": "x"}, {}
        if key not in self.identities:
            raise Refusal(401, "caller.unknown-key", "no such identity")
        if where[0] == "uploads":
            return 200, self._upload(request, where[1:], body), {}
        if where[0] == "scans":
            return 200, self._scan(where[1:], body), {}
        if where[0] == "challenges":
            return 200, self._challenge(request.command, where[1], body), {}
        return self._enrolment(request, where[1:], body, key)

    def _caller(self, request: Any, body: bytes) -> bytes:
        given = requests.Authorization.parse(request.headers.get("Authorization", ""))
        message = requests.message(
            request.command,
            ORIGIN,
            request.path,
            requests.body_digest(body),
            given.time,
            given.nonce,
        )
        if not Ed25519Verifier().verify(given.key, message, given.signature):
            raise Refusal(401, "caller.bad-signature", "not signed")
        if not given.is_fresh(int(time.time())):
            raise Refusal(401, "caller.stale", "signed long ago")
        if given.nonce in self.spent:
            raise Refusal(401, "caller.replayed", "again")
        self.spent.add(given.nonce)
        return given.key

    def _enrolment(
        self, request: Any, where: list[str], body: bytes, key: bytes
    ) -> tuple[int, Any, dict[str, str]]:
        if not where:
            assert self.offer
            terms, layout = self.offer(json.loads(body)["task"], key)
            record = self.enrol(terms, key)
            said = {"id": record.digest.hex(), "enrolment": record.to_json()}
            return 201, {**said, "layout": layout.to_json()}, {}
        name = where[0]
        if len(where) == 1:
            state = "closed" if name in self.manifests else "open"
            shards = max(0, len(self.chains[name]) - 1)
            return 200, {"id": name, "state": state, "shards": shards}, {}
        if where[1] == "commitments":
            if request.command == "GET":
                return 200, {"items": [], "next": None}, {}
            if request.headers["Content-Type"] == "application/octet-stream":
                if self.together_at_most is not None and len(body) > self.together_at_most:
                    raise Refusal(413, "body.too-large", "too much at once")
                body, opening = without_opening(body)
                digest = hashlib.sha256(opening).hexdigest()
                self.uploads[digest] = {
                    "kind": "opening",
                    "sha256": digest,
                    "data": opening,
                    "size": len(opening),
                }
            return self._commit(name, body)
        if where[1] in ("challenges", "verifications"):
            return 200, {where[1]: []}, {}
        if where[1] == "close":
            Manifest.from_bytes(body, "manifest")
            if self.manifests.setdefault(name, body) != body:
                raise Refusal(409, "enrolment.closed", "closed with another manifest")
            return 200, {"id": name, "state": "closed"}, {}
        if where[1] == "secret":
            secret = bytes(32) if self.lie == "secret" else self.secrets[name]
            return 200, {"secret": secret.hex()}, {}
        raise Refusal(404, "resource.missing", "nothing here")

    def _commit(self, name: str, body: bytes) -> tuple[int, Any, dict[str, str]]:
        entry, chain = Entry.from_bytes(body, "entry"), self.chains[name]
        record = self.enrolments[name]
        signing.check(entry, record.identity, Ed25519Verifier(), place="entry")
        if entry.number < len(chain):
            if chain[entry.number] != body:
                raise Refusal(409, "commitment.differs", "another entry stands in the log")
        elif entry.number > len(chain):
            raise Refusal(409, "commitment.out-of-order", "not its turn")
        else:
            if record.terms.history == "streaming" and entry.opening is not None:
                there = [
                    item["sha256"] for item in self.uploads.values() if item["kind"] == "opening"
                ]
                if entry.opening.hex() not in there:
                    raise Refusal(409, "commitment.missing-opening", "bring it first")
            chain.append(body)
            self.entries.append(body)
        asked = f"{entry.number:032x}"
        if entry.number in self.asks and asked not in self.answered:
            return 202, {"challenge": {"id": asked, "kind": "checkpoint", "due": 2**40}}, {}
        return 200, self._receipt(name, entry, body), {}

    def _receipt(self, name: str, entry: Entry, body: bytes) -> dict[str, Any]:
        nonce = live_nonce(self.secrets[name], entry)
        if self.lie == "chosen":  # A nonce of its own choice, promised in the receipt.
            nonce = live_nonce(bytes(32), entry)
        index = self.entries.index(body)
        receipt = Receipt(
            entry.enrolment, entry.number, bytes(32) if self.lie == "root" else entry.root,
            1_800_000_000 + index, ORIGIN, index, nonces.leaf(nonce),
        )  # fmt: skip
        signer = self.log_key if self.lie == "receipt" else self.issuer
        if self.lie == "nonce":
            nonce = live_nonce(bytes(32), entry)
        leaves = [leaf_hash(item) for item in self.entries]
        if self.lie == "fork":
            leaves = [leaf_hash(b"other" + bytes([at])) for at in range(len(leaves) - 1)] + leaves[
                -1:
            ]
        lookup = _lookup(leaves)
        path = log_tree.inclusion(index, len(leaves), lookup)
        if self.lie == "inclusion":
            path = [bytes(32) for _ in path] or [bytes(32)]
        head = Checkpoint(ORIGIN, len(leaves), log_tree.root_of(len(leaves), lookup))
        inclusion = {
            "checkpoint": str(sign_checkpoint(head, self.log_key)),
            "entry": entry.to_json(),
            "index": index,
            "path": [item.hex() for item in path],
            "size": len(leaves),
        }
        return {
            "receipt": signing.sign(receipt, signer).to_json(),
            "nonce": nonce.to_json(),
            "inclusion": inclusion,
        }

    def _consistency(self, old: int, new: int) -> dict[str, Any]:
        if new > len(self.entries):
            raise Refusal(404, "log.missing", "not so many")
        lookup = _lookup([leaf_hash(item) for item in self.entries])
        return {"path": [item.hex() for item in log_tree.consistency(old, new, lookup)]}

    def _upload(self, request: Any, where: list[str], body: bytes) -> dict[str, Any]:
        if not where:
            wanted = json.loads(body)
            for name, item in self.uploads.items():
                if (item["sha256"], item["kind"]) == (wanted["sha256"], wanted["kind"]):
                    return {"id": name, "received": len(item["data"])}
            name = secrets.token_hex(16)
            self.uploads[name] = {**wanted, "data": b""}
            return {"id": name, "received": 0}
        item = self.uploads[where[0]]
        if request.command == "PATCH":
            if int(request.headers["Upload-Offset"]) != len(item["data"]):
                raise Refusal(409, "upload.offset", "elsewhere")
            item["data"] += body
        return {"id": where[0], "received": len(item["data"])}

    def _scan(self, where: list[str], body: bytes) -> dict[str, Any]:
        """Looks nowhere, and says that there is nobody else in the last checkpoint."""
        if not where:
            self.scanned = json.loads(body)["enrolment"]
            return {"id": "scan", "state": "waiting"}
        last = Entry.from_bytes(self.chains[self.scanned][-1], "entry")
        held = [item for item in self.uploads.values() if item["kind"] == "checkpoint"]
        assert held[-1]["shard"] == last.number
        size, root = len(self.entries), bytes(32) if self.lie == "statement" else last.root
        said = Uniqueness(last.enrolment, root, ORIGIN, size, 1, 0, 1_800_000_000, ())
        return {"state": "done", "statement": signing.sign(said, self.issuer).to_json()}

    def _challenge(self, method: str, name: str, body: bytes) -> dict[str, Any]:
        if method == "POST":
            item = self.uploads[json.loads(body)["upload"]]
            assert item["kind"] == "checkpoint"
            assert len(item["data"]) == item["size"]
            self.answered.add(name)
        return {"id": name, "state": "passed" if name in self.answered else "open"}


def _lookup(leaves: list[bytes]) -> Callable[[int, int], bytes]:
    _, nodes = log_tree.Frontier().grown(leaves)
    found = {(node.level, node.index): node.hash for node in nodes}
    return lambda level, index: found[level, index]
