"""Everything PoLO raises on purpose.

```
PoloError
├── FormatError        bytes that do not say what they must (hostile or broken input)
│   └── LimitError     a size or count beyond what is allowed, refused before allocation
├── SignatureError     a signature or an identity that does not hold
├── ChainError         protocol steps out of order, or marks asked of the wrong shard
├── TermsError         terms that contradict themselves or what they are used with
├── CapacityError      a model that cannot carry the mark the terms ask for
├── WeightsError       weights that cannot be committed to (NaN, other shapes, odd types)
├── StoreError         the proof folder cannot be read or written
│   └── LockedError    another process is writing this proof
├── TaskError          the task is unknown, or does not fit the proof
├── RegistryError      a registry refuses, or cannot be reached
│   ├── OutageError    it cannot be reached now, or is too busy; later it may work
│   └── DistrustError  its answer does not hold: it is broken, or it lies
└── MissingError       something optional that this job needs is not installed
```

Every error knows where it happened and, where there is one, what to do about it.
"""


class PoloError(Exception):
    """Root of all errors that PoLO raises on purpose.

    Attributes:
        message: What is wrong, in one sentence.
        place: Where: a file, a shard, a tensor, a field. Empty if there is no place.
        advice: What to do about it. Empty if there is nothing to do.
    """

    def __init__(self, message: str, *, place: str = "", advice: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.place = place
        self.advise(advice)

    def __str__(self) -> str:
        return f"{self.place}: {self.message}" if self.place else self.message

    def advise(self, advice: str) -> None:
        """Say what to do about it, in a traceback, too."""
        self.advice = advice
        self.__notes__ = [f"what to do: {advice}"] if advice else []

    def diagnostics(self) -> str:
        """The error as a person should read it, advice included."""
        return f"{self}\n  what to do: {self.advice}" if self.advice else str(self)


class FormatError(PoloError):
    """Bytes that do not say what they must."""


class LimitError(FormatError):
    """A size or a count beyond what is allowed."""


class SignatureError(PoloError):
    """A signature or an identity that does not hold."""


class ChainError(PoloError):
    """Protocol steps out of order."""


class TermsError(PoloError):
    """Terms that contradict themselves or what they are used with."""


class CapacityError(PoloError):
    """A model that cannot carry the mark the terms ask for."""


class WeightsError(PoloError):
    """Weights that cannot be committed to."""


class StoreError(PoloError):
    """The proof folder cannot be read or written."""


class LockedError(StoreError):
    """Another process is writing this proof."""


class TaskError(PoloError):
    """The task is unknown, or does not fit the proof."""


class RegistryError(PoloError):
    """A registry refuses, or cannot be reached.

    Attributes:
        code: A stable word for it, such as `commitment.out-of-order`.
        status: The HTTP status; 0 where there was no answer.
    """

    def __init__(
        self, message: str, *, code: str, status: int = 0, place: str = "", advice: str = ""
    ) -> None:
        super().__init__(message, place=place, advice=advice)
        self.code = code
        self.status = status


class OutageError(RegistryError):
    """A registry that cannot be reached now, or is too busy.

    Attributes:
        retry_after: Seconds after which it asked to be tried again; 0 if it did not.
    """

    def __init__(
        self,
        message: str,
        *,
        code: str = "registry.away",
        status: int = 0,
        place: str = "",
        advice: str = "",
        retry_after: float = 0.0,
    ) -> None:
        super().__init__(message, code=code, status=status, place=place, advice=advice)
        self.retry_after = retry_after


class DistrustError(RegistryError):
    """A registry's answer that does not hold: it is broken, or it lies."""


class MissingError(PoloError):
    """Something optional that this job needs is not installed."""
