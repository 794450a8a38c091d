"""Commitments in the background: handed in, challenged, answered, and tried again till it works."""

import logging
import threading
from concurrent.futures import Future
from pathlib import Path

from polo.client.client import Asked, Client
from polo.client.closing import answer_checkpoints, close
from polo.client.enrolled import LiveEnrolment
from polo.client.http import Patience
from polo.errors import OutageError, PoloError, RegistryError
from polo.protocol import signing
from polo.protocol.entries import Entry
from polo.protocol.records import Shard
from polo.receipts import Answer, Submission

logger = logging.getLogger("polo.client")

BACKOFF = Patience(first=0.2, most=60.0)
"""How long to wait between tries while the registry is away; there is no last try."""

POLL = Patience(first=0.2, most=3.0)
"""How long to wait between looks while a challenge is being judged."""

_JOIN = 5.0


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
        delivery = _Delivery(submission, self._entry(submission))
        self._thread = threading.Thread(
            target=self._deliver, args=(delivery, future), name="polo-receipts", daemon=True
        )
        self._thread.start()
        return future

    def finish(self, folder: Path) -> None:
        """Close the chain, check the nonces, and show the checkpoints that are drawn now."""
        manifest = close(self._client, folder, self._signer)
        answer_checkpoints(self._client, manifest, folder)

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
                    self.trouble = ""
                    if answer:
                        future.set_result(answer)
                        return
                    waits, pause = BACKOFF.waits(), next(looks)
                self._stopped.wait(pause)
        except BaseException as error:
            future.set_exception(error)

    def _say(self, delivery: "_Delivery", trouble: str) -> None:
        if not self.trouble:
            logger.info("shard %d is not committed yet: %s", delivery.number, trouble)
        self.trouble = trouble

    def _once(self, delivery: "_Delivery") -> Answer | None:
        """Do what is left to do; None while the registry is still judging."""
        if delivery.opening_due and self._enrolment.record.terms.history == "streaming":
            self._bring(delivery, "opening")
            delivery.opening_due = False
        if delivery.waits_for and not self._is_judged(delivery.waits_for):
            return None
        record = self._enrolment.record
        answer = self._client.commit(delivery.entry, record, self._memory, tries=1)
        if isinstance(answer, Asked):
            self._respond(delivery, answer)
            return None
        return answer

    def _respond(self, delivery: "_Delivery", asked: Asked) -> None:
        """Answer a challenge: the receipt comes when the registry has judged it."""
        if asked.kind != "checkpoint":
            raise RegistryError(
                f"asks for a {asked.kind} of shard {delivery.number} in the middle of training",
                code="challenge.kind",
                place=self._client.url,
                advice="This version answers that after the close only. Ask the operator for "
                "other terms; the sealed shards are safe.",
            )
        logger.info("the registry asks for the checkpoint of shard %d", delivery.number)
        upload = self._bring(delivery, "checkpoint")
        try:
            self._client.answer(asked.id, upload)
        except RegistryError as error:
            # An earlier try, or an earlier run, has answered it.
            if isinstance(error, OutageError) or error.code != "challenge.over":
                raise
        delivery.waits_for = asked.id

    def _is_judged(self, challenge: str) -> bool:
        """Whether an answer was judged; refuses to wait for a receipt that will not come."""
        said = self._client.challenge(challenge)
        if said.get("state") == "failed":
            raise RegistryError(
                f"its challenge ended badly: {str(said.get('detail', ''))[:300]}",
                code="challenge.failed",
                place=self._client.url,
                advice="The chain has failed there, and gets no more receipts.",
            )
        return said.get("state") == "passed"

    def _bring(self, delivery: "_Delivery", kind: str) -> str:
        file = delivery.submission.files.get(kind)
        if file is None:
            raise PoloError(
                f"the {kind} of shard {delivery.number} is not here any more",
                place=str(delivery.submission.folder),
            )
        return self._client.upload(
            delivery.submission.folder / file.path,
            enrolment=self._enrolment.id,
            kind=kind,
            shard=delivery.number,
            tries=2,
        )


class _Delivery:
    """A commitment on its way, and what was done for it."""

    def __init__(self, submission: Submission, entry: Entry) -> None:
        self.submission = submission
        self.entry = entry
        self.number = submission.number
        self.opening_due = submission.number > 0
        self.waits_for = ""
