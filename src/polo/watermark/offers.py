"""Schemes and presses that other installed packages offer by entry point."""

import importlib.metadata
from dataclasses import dataclass

from polo.errors import PoloError, TermsError


@dataclass(frozen=True)
class Offer:
    """What a package offers under a name.

    Attributes:
        name: The name.
        item: The object; a class of the group `polo.schemes` is instantiated.
        package: The package.
        value: Where in it.
    """

    name: str
    item: object
    package: str
    value: str

    def broken(self, why: str) -> TermsError:
        """The error that says what is wrong with this offer, and whose it is."""
        return _broken(self.name, self.package, self.value, why)


def offers(group: str) -> list[str]:
    """Names that other packages offer."""
    return sorted({entry.name for entry in importlib.metadata.entry_points(group=group)})


def offered(group: str, name: str) -> Offer | None:
    """What a package offers under a name; None if no package does.

    Raises:
        TermsError: What it offers cannot be loaded.
    """
    for entry in importlib.metadata.entry_points(group=group):
        if entry.name == name:
            package = entry.dist.name if entry.dist else entry.module
            try:
                item = entry.load()
                if group == "polo.schemes" and isinstance(item, type):
                    item = item()
            except Exception as error:
                # Whatever another package does wrong on import, a proof must not crash on it.
                raise _broken(name, package, entry.value, f"{error}") from error
            return Offer(name, item, package, entry.value)
    return None


def blame(group: str, name: str, error: Exception) -> None:
    """Raise an error that names the package which offers something, if it is its fault.

    Args:
        group: The group of entry points.
        name: The name of what has failed; of what is built in nothing is raised here.
        error: What it raised.
    """
    found = None if isinstance(error, PoloError) else offered(group, name)
    if found is not None:
        raise found.broken(f"{type(error).__name__}: {error}") from error


def _broken(name: str, package: str, value: str, why: str) -> TermsError:
    return TermsError(
        f"the package {package} offers the scheme {name!r} as {value}, which cannot be used: {why}",
        advice=f"Install {package} again or anew, or ask those who make it.",
    )
