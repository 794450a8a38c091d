"""The thresholds of level progress: settings in the terms, with their defaults."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Self

from polo.errors import TermsError
from polo.evidence.settings import Decimal, Kind

LEVEL = "progress"

KINDS: Mapping[str, Kind] = {
    "downhill": Decimal(1e6),
    "moved": Decimal(1e6),
    "clear": Decimal(1e6),
    "straight": Decimal(10.0),
    "fall": Decimal(1.0),
}
"""Form and bounds of every setting."""


@dataclass(frozen=True)
class Rules:
    """When a run fails; the defaults come from `python -m benchmarks progress`.

    Attributes:
        downhill: Least z of the first tenth of the shards.
        moved: Least energy of the moves outside the marks, as a multiple of the noise's.
        clear: The same, from which on the path is judged; below, noise hides it.
        straight: Straightness from which on a path is taken for a line.
        fall: Least fall of held-out loss, as a part of what it was at the start.
    """

    downhill: float = 8.0
    moved: float = 1.1
    clear: float = 10.0
    straight: float = 0.98
    fall: float = 0.1

    def __post_init__(self) -> None:
        for key, value in asdict(self).items():
            KINDS[key].check(value, f"{LEVEL}.{key}")

    @classmethod
    def from_settings(cls, settings: Mapping[str, str], place: str = LEVEL) -> Self:
        """The thresholds in the settings of the level; what is left out has its default.

        Args:
            settings: The settings.
            place: Where they stand, for errors.
        """
        if unknown := settings.keys() - KINDS.keys():
            raise TermsError(
                "level progress has no such setting",
                place=f"{place}.{min(unknown)}",
                advice=f"It has {', '.join(KINDS)}.",
            )
        return cls(
            **{key: KINDS[key].read(text, f"{place}.{key}") for key, text in settings.items()}
        )

    def to_settings(self) -> dict[str, str]:
        """The settings that say this, all of them."""
        return {key: KINDS[key].write(value) for key, value in asdict(self).items()}
