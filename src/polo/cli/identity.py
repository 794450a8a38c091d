"""`polo identity`: what a registry knows of a key, another key in its place, and giving it up."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cyclopts import App

from polo.cli.keys import passphrase_of
from polo.cli.live import day
from polo.cli.output import Flag, print_json
from polo.errors import RegistryError

if TYPE_CHECKING:
    from polo.client.client import Client

identity = App(name="identity", help="Your identity at a registry.")


@identity.command
def show(url: str, /, *, key: Path, passphrase: Flag = False, json: Flag = False) -> None:
    """Show what a registry knows of your key: its identity, and all keys that this had.

    Example: polo identity show https://registry.example --key alice.key

    Parameters
    ----------
    url
        Address of the registry.
    key
        Your private key.
    passphrase
        Your key is protected: ask, or take POLO_PASSPHRASE.
    json
        Print JSON.
    """
    with _client(url, key, passphrase) as client:
        _print(client.whoami(), json)


@identity.command
def rotate(
    url: str,
    /,
    *,
    key: Path,
    to: Path,
    anyway: Flag = False,
    passphrase: Flag = False,
    json: Flag = False,
) -> None:
    """Put another key in the place of yours; the identity stays.

    Example: polo identity rotate https://registry.example --key alice.key --to new.key

    The old key counts no more and cannot come back. Chains that were enrolled
    with it stay signed by it: close them first, or keep it to hand them in with
    polo submit PROOF --key OLD --as NEW.

    Parameters
    ----------
    url
        Address of the registry.
    key
        The private key that counts now.
    to
        The new private key; polo keygen makes one.
    anyway
        Change the key although chains are open: training them cannot go on.
    passphrase
        The keys are protected: ask, or take POLO_PASSPHRASE.
    json
        Print JSON.
    """
    from polo.keys import Identity

    new = Identity.load(to, passphrase_of() if passphrase else None)
    with _client(url, key, passphrase) as client:
        client.whoami()
        is_open = [item for item in client.enrolments() if item.get("state") == "open"]
        if is_open and not anyway:
            raise RegistryError(
                f"{len(is_open)} chains are open that this key must go on signing, such as that "
                f"of enrolment {str(is_open[0].get('id'))[:16]}… for {is_open[0].get('task')}",
                code="identity.open-chains",
                place=url,
                advice="Close them first (polo submit PROOF --close), or change it --anyway.",
            )
        _print(client.rotate(new), json)


@identity.command
def revoke(
    url: str,
    /,
    *,
    key: Path,
    for_good: Flag = False,
    reason: str = "",
    passphrase: Flag = False,
    json: Flag = False,
) -> None:
    """Give your identity up: the registry takes nothing from it any more, ever.

    Example: polo identity revoke https://registry.example --key alice.key --for-good

    For a key that others may have. Who still holds it alone should rather put
    another in its place: polo identity rotate.

    Parameters
    ----------
    url
        Address of the registry.
    key
        Your private key.
    for_good
        Must be given: it cannot be undone, and open chains cannot be closed.
    reason
        Why, for whoever reads the registry's events.
    passphrase
        Your key is protected: ask, or take POLO_PASSPHRASE.
    json
        Print JSON.
    """
    if not for_good:
        raise RegistryError(
            "a revoked identity never comes back, and its open chains cannot be closed",
            code="identity.for-good",
            place=url,
            advice="Say that you mean it: --for-good. To change the key: polo identity rotate.",
        )
    with _client(url, key, passphrase) as client:
        _print(client.revoke(reason), json)


@contextmanager
def _client(url: str, key: Path, passphrase: bool) -> Iterator["Client"]:
    from polo.client.client import Client
    from polo.keys import Identity

    with Client(url, Identity.load(key, passphrase_of() if passphrase else None)) as client:
        yield client


def _print(found: dict[str, Any], json: bool) -> None:
    from polo.checks import plain

    if json:
        print_json(found)
        return
    revoked = found.get("revoked")
    state = f"revoked {day(revoked)}" if revoked else f"registered {day(found.get('registered'))}"
    print(plain(f"{found.get('name')}  {found.get('role')}, {state}"))
    print(plain(f"id  {found.get('id')}"))
    for item in found.get("keys", ()):
        until = item.get("until")
        span = f"until {day(until)}" if until else f"since {day(item.get('since'))}"
        print(plain(f"key {item.get('key')}  {span}"))
