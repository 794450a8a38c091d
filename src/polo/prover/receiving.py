"""The commitment that is on its way, and what training does until its answer is there."""

import concurrent.futures
import logging
import time
import warnings
from concurrent.futures import Future
from dataclasses import replace

from polo.errors import OutageError, TermsError
from polo.protocol.records import Nonce
from polo.prover.answering import Answering
from polo.receipts import Answer, NonceSource, answered
from polo.storage.writer import ProofWriter

logger = logging.getLogger("polo.prover")

GRACE = 2.0
"""Seconds that training waits for any receipt; most come much sooner."""

SLOW = 60.0
"""Seconds after which a receipt is worth a word although nothing is known to be wrong."""

ON_OUTAGE = ("go on", "wait", "stop")
_LOOK = 0.25
_SAFE = "The sealed shards are safe; start again on the same store when the registry is back."


class ReceiptWarning(UserWarning):
    """A receipt has not come; the message says what that means for the training."""


class Receiving:
    """Hands the newest shard to the nonce source, and brings the answer into the store.

    Only the thread that trains writes the store; the source's own thread just fetches the answer.

    Args:
        nonces: Where nonces come from.
        writer: The store.
        on_outage: What to do while no receipt comes: `go on` without a mark, `wait`, or `stop`.
        needed: Whether training cannot go on without the nonce, as under replay.
        answering: Runs steps again that a registry draws before it gives a receipt.
    """

    def __init__(
        self,
        nonces: NonceSource,
        writer: ProofWriter,
        *,
        on_outage: str,
        needed: bool,
        answering: Answering | None = None,
    ) -> None:
        if on_outage not in ON_OUTAGE:
            raise TermsError(f"on_outage {on_outage!r}: use {', '.join(map(repr, ON_OUTAGE))}")
        self._nonces = nonces
        self._writer = writer
        self._on_outage = on_outage
        self._needed = needed
        self._answering = answering
        self._open: Future[Answer] | None = None
        self._asked = 0.0
        self._warned = False

    @property
    def open(self) -> bool:
        """Whether an answer is still to come, or to be taken."""
        return self._open is not None

    def ask(self) -> None:
        """Commit to the newest shard, or to the start; what is known already is not asked for."""
        kept = self._writer.answer()
        if kept is None:
            respond = self._answering.ask if self._answering else None
            self._open = self._nonces.commit(replace(self._writer.submission(), respond=respond))
        else:
            self._open = answered(kept)
        self._asked = time.monotonic()

    def take(self) -> Nonce | None:
        """The next nonce; None while training may go on without it.

        Raises:
            RegistryError: The registry refused or lied, or it is away and training is to stop
                then.
        """
        assert self._open is not None
        self._let_come(self._open)
        if not self._open.done():
            return None
        return self._bring_in(self._open.result())

    def settle(self, seconds: float) -> bool:
        """Wait for the answer to the last commitment; whether it came."""
        if self._open is None:
            return True
        if not self._wait(self._open, min(seconds, GRACE)) and seconds > GRACE:
            trouble = self._nonces.trouble or "the registry takes its time"
            told = "no receipt for shard %d yet (%s); waiting for it, at most %.0f s"
            logger.warning(told, self._shard, trouble, seconds)
        if not self._wait(self._open, seconds - GRACE):
            return False
        self._bring_in(self._open.result())
        return True

    def _bring_in(self, answer: Answer) -> Nonce | None:
        manifest = self._writer.manifest
        assert manifest is not None
        newest = manifest.shards[-1] if manifest.shards else manifest.start
        if answer.receipt and newest.receipt is None:
            self._writer.complete(answer)
        if self._answering:
            self._answering.clear()
        if self._warned:
            logger.warning("the receipt of shard %d has come", len(manifest.shards))
        self._open, self._warned = None, False
        return answer.nonce

    def _let_come(self, future: "Future[Answer]") -> None:
        """Wait as long as it is usual, or as the user wants."""
        grace = self._asked + GRACE - time.monotonic()
        if future.done() or (grace > 0 and self._wait(future, grace)):
            return
        if self._on_outage == "go on" and not self._needed:
            self._say("training goes on without a mark until it comes")
            return
        while not future.done():
            if self._on_outage == "stop" and self._nonces.trouble:
                raise OutageError(
                    f"no receipt for shard {self._shard}: {self._nonces.trouble}", advice=_SAFE
                )
            why = "the order of samples comes from it, so " if self._needed else ""
            self._say(f"{why}training waits for it")
            self._wait(future, _LOOK)

    def _wait(self, future: "Future[Answer]", seconds: float) -> bool:
        """Wait for an answer, and run steps again meanwhile if they are asked for."""
        until = time.monotonic() + seconds
        while not future.done() and (left := until - time.monotonic()) > 0:
            if self._answering:
                self._answering.work()
                left = min(left, _LOOK)
            concurrent.futures.wait([future], timeout=left)
        return future.done()

    @property
    def _shard(self) -> int:
        manifest = self._writer.manifest
        return len(manifest.shards) if manifest else 0

    def _say(self, meanwhile: str) -> None:
        """Say once for each receipt that it is late."""
        trouble = self._nonces.trouble
        slow = time.monotonic() - self._asked > SLOW
        if self._warned or not (trouble or slow):
            return
        self._warned = True
        warnings.warn(
            f"no receipt for shard {self._shard} yet ({trouble or 'the registry takes its time'}); "
            f"{meanwhile}",
            ReceiptWarning,
            stacklevel=2,
        )
