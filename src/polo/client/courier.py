"""Commitments in the background: handed in, challenged, answered, and tried again till it works."""

import logging
import threading
from concurrent.futures import Future
from pathlib import Path

from polo.client.client import Asked, Client
from polo.client.closing import answer_checkpoints, asks_replay, close
from polo.client.enrolled import LiveEnrolment
from polo.client.http import Patience, distrust
from polo.errors import OutageError, PoloError, RegistryError
from polo.protocol import signing
from polo.protocol.challenge import Challenge
from polo.protocol.entries import Entry
from polo.protocol.records import Shard
from polo.receipts import Answer, Submission

logger = logging.getLogger("polo.client")

BACKOFF = Patience(first=0.2, most=60.0)
"""How long to wait between tries while the registry is away; there is no last try."""

POLL = Patience(first=0.2, most=3.0)
"""How long to wait between looks while a challenge is being judged."""

ATTACHED = 768 * 1024
"""Bytes of an opening that travels in one request with its entry; a larger one is uploaded."""

_JOIN = 5.0
_TOO_LARGE = 413


class LiveNonces:
    """Gets nonces from a registry, each by a receipt for the shard before it.

    One thread at a time hands one commitment in. It never touches the proof; whoever trains takes
    the answer from the future.

    Args:
        enrolment: The enrolment.
        client: The registry.
        signer: The enrolled key.

    Attributes:
        trouble: Why no answer comes; empty if nothing is wrong.
    """

    def __init__(self, enrolment: LiveEnrolment, client: Client, signer: signing.Signer) -> None:
        self.trouble = ""
        self._enrolment = enrolment
        self._client = client
        self._signer = signer
        self._memory = enrolment.memory()
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None

    def commit(self, submission: Submission) -> "Future[Answer]":
        """Hand a commitment in, in the background; see `polo.receipts.NonceSource`."""
        self._join()
        self._stopped.clear()
        self.trouble = ""
        future: Future[Answer] = Future()
        streams = self._enrolment.record.terms.history == "streaming"
        delivery = _Delivery(submission, self._entry(submission), streams=streams)
        self._thread = threading.Thread(
            target=self._deliver, args=(delivery, future), name="polo-receipts", daemon=True
        )
        self._thread.start()
        return future

    def finish(self, folder: Path, *, wait: float = 0.0) -> None:
        """Close the chain, check the nonces, and show the checkpoints that are drawn now."""
        manifest = close(self._client, folder, self._signer, wait=wait)
        answer_checkpoints(self._client, manifest, folder)
        if asks_replay(manifest):
            logger.warning(
                "the registry draws steps to run again now, and a chain that does not answer has "
                "failed: polo submit %s --key KEY --data DATA --arrays ARRAYS",
                folder,
            )

    def close(self) -> None:
        """Stop; what was not answered is handed in again when the proof is gone on with."""
        self._join()
        self._client.close()

    def _join(self) -> None:
        if self._thread:
            self._stopped.set()
            self._thread.join(_JOIN)
            self._thread = None

    def _entry(self, submission: Submission) -> Entry:
        about, digest = submission.about, self._enrolment.record.digest
        if isinstance(about, Shard):
            entry = Entry(digest, None, about, submission.files["opening"].sha256)
        else:
            entry = Entry(digest, about, None, None)
        return signing.sign(entry, self._signer)

    def _deliver(self, delivery: "_Delivery", future: "Future[Answer]") -> None:
        """Try until there is an answer, a refusal, or nobody waits any more."""
        waits, looks = BACKOFF.waits(), POLL.waits()
        try:
            while not self._stopped.is_set():
                try:
                    answer = self._once(delivery)
                except OutageError as error:
                    self._say(delivery, str(error))
                    pause = max(next(waits), error.retry_after)
                else:
                    if answer:
                        self.trouble = ""
                        future.set_result(answer)
                        return
                    self._say(delivery, delivery.stuck)
                    waits, pause = BACKOFF.waits(), next(looks)
                self._stopped.wait(pause)
        except BaseException as error:
            future.set_exception(error)

    def _say(self, delivery: "_Delivery", trouble: str) -> None:
        if trouble and not self.trouble:
            logger.info("shard %d is not committed yet: %s", delivery.number, trouble)
        self.trouble = trouble

    def _once(self, delivery: "_Delivery") -> Answer | None:
        """Do what is left to do; None while the registry is still judging."""
        if delivery.opening_due:
            if not delivery.attached:
                self._bring(delivery, "opening")
            if "record" in delivery.submission.files:
                # Steps may be drawn from it as soon as the entry is in the log.
                self._bring(delivery, "record")
            delivery.opening_due = False
        if delivery.replay and not self._showed(delivery, *delivery.replay):
            return None
        if delivery.waits_for and not self._is_judged(delivery, delivery.waits_for):
            return None
        answer = self._committed(delivery)
        delivery.attached = False
        if isinstance(answer, Asked):
            self._respond(delivery, answer)
            return None
        return answer

    def _committed(self, delivery: "_Delivery") -> Answer | Asked:
        """Commit, with the opening if it is small and the registry takes it so."""
        entry, record, opening = delivery.entry, self._enrolment.record, b""
        if delivery.attached:
            opening = self._file(delivery, "opening").read_bytes()
        try:
            return self._client.commit(entry, record, self._memory, opening=opening, tries=1)
        except RegistryError as error:
            if not opening or error.status != _TOO_LARGE:
                raise
        delivery.attached = False
        self._bring(delivery, "opening")
        return self._client.commit(entry, record, self._memory, tries=1)

    def _respond(self, delivery: "_Delivery", asked: Asked) -> None:
        """Answer a challenge: the receipt comes when the registry has judged it."""
        if asked.kind == "replay":
            self._begin_replay(delivery, asked)
            return
        if asked.kind != "checkpoint":
            raise RegistryError(
                f"asks for a {asked.kind} of shard {delivery.number}, whatever that is",
                code="challenge.kind",
                place=self._client.url,
                advice="Use a version of PoLO that knows it; the sealed shards are safe.",
            )
        logger.info("the registry asks for the checkpoint of shard %d", delivery.number)
        self._answer(delivery, asked.id, self._bring(delivery, "checkpoint"))

    def _answer(self, delivery: "_Delivery", challenge: str, upload: str) -> None:
        try:
            self._client.answer(challenge, upload)
        except RegistryError as error:
            # An earlier try, or an earlier run, has answered it.
            if isinstance(error, OutageError) or error.code != "challenge.over":
                raise
        delivery.waits_for = challenge

    def _begin_replay(self, delivery: "_Delivery", asked: Asked) -> None:
        """Have the steps that were drawn run again; the answer is sent when it is there."""
        said = self._client.challenge(asked.id)
        if said.get("state") != "open":
            delivery.waits_for = asked.id
            return
        if delivery.submission.respond is None:
            raise RegistryError(
                f"has drawn steps of shard {delivery.number} to run again before its receipt",
                code="challenge.kind",
                place=self._client.url,
                advice="Go on with training on the same store, which answers it, or give --data "
                "and --arrays to polo submit. An unanswered challenge is a failed one.",
            )
        try:
            challenge = Challenge.from_json(said.get("record"), "challenge")
        except PoloError as error:
            raise distrust(f"its challenge: {error}", place=self._client.url) from error
        future = delivery.submission.respond(challenge, delivery.entry.leaf)
        delivery.replay = asked.id, future

    def _showed(self, delivery: "_Delivery", challenge: str, future: "Future[Path]") -> bool:
        """Send the answer to a replay, once it is computed; whether it was."""
        if not future.done():
            return False
        upload = self._client.upload(
            future.result(),
            enrolment=self._enrolment.id,
            kind="answer",
            shard=delivery.number,
            tries=2,
        )
        self._answer(delivery, challenge, upload)
        delivery.replay = None
        return True

    def _is_judged(self, delivery: "_Delivery", challenge: str) -> bool:
        """Whether an answer was judged; refuses to wait for a receipt that will not come."""
        said = self._client.challenge(challenge)
        state, detail = said.get("state"), str(said.get("detail") or "")[:300]
        if state == "failed":
            raise RegistryError(
                f"its challenge ended badly: {detail}",
                code="challenge.failed",
                place=self._client.url,
                advice="The chain has failed there, and gets no more receipts.",
            )
        stuck = state == "answered" and detail
        delivery.stuck = f"the registry could not check what was shown: {detail}" if stuck else ""
        return state == "passed"

    def _bring(self, delivery: "_Delivery", kind: str) -> str:
        return self._client.upload(
            self._file(delivery, kind),
            enrolment=self._enrolment.id,
            kind=kind,
            shard=delivery.number,
            tries=2,
        )

    def _file(self, delivery: "_Delivery", kind: str) -> Path:
        file = delivery.submission.files.get(kind)
        if file is None:
            raise PoloError(
                f"the {kind} of shard {delivery.number} is not here any more",
                place=str(delivery.submission.folder),
            )
        return delivery.submission.folder / file.path


class _Delivery:
    """A commitment on its way, and what was done for it."""

    def __init__(self, submission: Submission, entry: Entry, *, streams: bool) -> None:
        self.submission = submission
        self.entry = entry
        self.number = submission.number
        self.opening_due = streams and submission.number > 0
        opening = submission.files.get("opening")
        small = opening is not None and opening.size <= ATTACHED
        self.attached = self.opening_due and small
        self.waits_for = ""
        self.stuck = ""
        self.replay: tuple[str, Future[Path]] | None = None
