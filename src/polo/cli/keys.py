"""`polo keygen` and `polo trust`."""

import getpass
import os
from pathlib import Path

from cyclopts import App

from polo.cli.output import Flag, print_json
from polo.errors import StoreError

trust = App(name="trust", help="The issuers whose enrolments you accept.")


def keygen(
    name: Path,
    /,
    *,
    passphrase: Flag = False,
    json: Flag = False,
) -> None:
    """Make an Ed25519 key pair: NAME.key, for you alone, and NAME.pub, to give away.

    Examples:
    polo keygen alice

    polo keygen issuer --passphrase

    Parameters
    ----------
    name
        Path of the files, without ending.
    passphrase
        Protect the private key; asks, or takes POLO_PASSPHRASE.
    json
        Print JSON.
    """
    from polo.keys import Identity, save_public

    if not name.name:
        raise StoreError("give the key a name", advice="polo keygen alice")
    private, public = name.with_name(name.name + ".key"), name.with_name(name.name + ".pub")
    if public.exists():
        raise StoreError("exists already; a key is never overwritten", place=str(public))
    name.parent.mkdir(parents=True, exist_ok=True)
    identity = Identity.generate()
    identity.save(private, passphrase_of() if passphrase else None)
    save_public(identity.public_key, public)
    if json:
        print_json({"private": str(private), "public": str(public), "id": identity.id})
        return
    print(f"{private}  keep it to yourself")
    print(f"{public}  give it away")
    print(f"id {identity.id}")


@trust.command
def add(name: str, file: Path, /) -> None:
    """Accept enrolments that this issuer signs.

    Example: polo trust add market issuer.pub

    Parameters
    ----------
    name
        What to call the issuer.
    file
        The issuer's public key.
    """
    from polo.keys import TrustStore, load_public
    from polo.protocol.records import identity_of

    key = load_public(file)
    TrustStore().add(name, key)
    print(f"{name} is trusted: {identity_of(key).hex()}")


@trust.command
def remove(name: str, /) -> None:
    """Accept an issuer's enrolments no longer.

    Parameters
    ----------
    name
        What the issuer is called.
    """
    from polo.keys import TrustStore

    TrustStore().remove(name)
    print(f"{name} is no longer trusted")


@trust.command(name="list")
def list_(*, json: Flag = False) -> None:
    """List the issuers you trust.

    Parameters
    ----------
    json
        Print JSON.
    """
    from polo.keys import TrustStore
    from polo.protocol.records import identity_of

    store = TrustStore()
    found = {name: identity_of(key).hex() for name, key in store}
    if json:
        print_json(found)
    elif not found:
        print(f"nobody yet ({store.folder}); add one: polo trust add NAME ISSUER.pub")
    for name, fingerprint in () if json else found.items():
        print(f"{name}  {fingerprint}")


def passphrase_of() -> bytes:
    """The passphrase of a private key: from POLO_PASSPHRASE, or asked for."""
    try:
        given = os.environ.get("POLO_PASSPHRASE") or getpass.getpass("passphrase: ")
    except EOFError as error:
        raise StoreError(
            "nobody is there to type a passphrase", advice="Set POLO_PASSPHRASE."
        ) from error
    if not given:
        raise StoreError("an empty passphrase protects nothing")
    return given.encode()
