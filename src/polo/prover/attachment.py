"""The context in which a prover is hooked into an optimizer."""

from types import TracebackType
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from polo.prover.prover import Prover


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
        self._prover.detach()
        self._prover._failed = kind is not None
