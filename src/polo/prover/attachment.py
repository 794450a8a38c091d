"""The context in which a prover is hooked into an optimizer."""

import logging
from types import TracebackType
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from polo.prover.prover import Prover

logger = logging.getLogger("polo.prover")


class Attachment:
    """What `Prover.attach` returns: a context that takes the hook off at its end.

    Leaving it by an exception never seals anything, not even in a later `finish`.
    """

    def __init__(self, prover: "Prover") -> None:
        self._prover = prover

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._prover._failed = kind is not None
        try:
            self._prover.detach()
        except Exception as failure:
            # A device that has failed fails again here; what the trainer wants to see came first.
            if error is None:
                raise
            logger.warning("the end of the block of attach() failed, too: %s", failure)
