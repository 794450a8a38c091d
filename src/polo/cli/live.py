"""Enrolling at a registry, and how a chain stands there: `polo enrol --registry`, `polo status`."""

import contextlib
import secrets
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from polo.cli.keys import passphrase_of
from polo.cli.output import Flag, print_json, said_if_slow
from polo.errors import OutageError, RegistryError, StoreError, TermsError

if TYPE_CHECKING:
    from polo.client.client import Client
    from polo.client.enrolled import LiveEnrolment
    from polo.keys import Identity
    from polo.protocol.records import Terms

ISSUER_FILE = "issuer.pub"
ASKED_FILE = ".asked"
"""Holds the word that an enrolment was asked for with, until it is there."""

_BUILDING = (
    "{url} builds the model of {task} to make terms for it; the first time that takes a while …"
)


def enrol_at(
    url: str,
    *,
    task: str,
    key: "Identity",
    out: Path,
    name: str,
    bits: int | None,
    data: Path | None,
    parent: Path | None,
    json: bool,
) -> None:
    """Enrol at a registry, which fixes the terms; registers the key if it is new there.

    Args:
        url: The registry.
        task: The task.
        key: The trainer's private key.
        out: The folder to make.
        name: What people may call the trainer.
        bits: Bits of each mark, where the registry leaves that open.
        data: The record of the training data, where the terms ask for replay.
        parent: A proof of the model that training is to start from.
        json: Whether to print JSON.
    """
    from polo.client.client import Client
    from polo.evidence.replay.data import load_record
    from polo.keys import save_public
    from polo.receipts import ENROLMENT_FILE
    from polo.storage.bundle import glance

    if (out / ENROLMENT_FILE).exists():
        raise StoreError("holds an enrolment already", place=str(out), advice="Give another --out.")
    committed = load_record(data / "data.json" if data.is_dir() else data) if data else None
    origin = glance(parent)[1].enrolment.digest.hex() if parent else None
    with Client(url, key) as client:
        client.register(name)
        given = committed.to_json() if committed else None
        with _word(out) as word, said_if_slow(_BUILDING.format(url=url, task=task)):
            made = client.enrol(task, once=word, bits=bits, data=given, parent=origin).save(out)
    save_public(made.record.issuer, out / ISSUER_FILE)
    if json:
        print_json(made.record.to_json())
        return
    print(f"{out / 'enrolment.json'}  terms, signed by {made.address.origin}; public")
    print(f"{out / 'registry.json'}  where the registry is")
    print(f"{out / ISSUER_FILE}  the registry's key, for whoever verifies")
    terms = made.record.terms
    least, most = terms.shards.least, terms.shards.most
    print(f"terms: {least} to {most} shards, marks of {terms.scheme.bits} bits; {_kept(terms)}")
    print(f'train with polo.Prover("{out}", key=…, store=…)')


def _kept(terms: "Terms") -> str:
    """What is kept of the checkpoints, and so which retention to train with."""
    return {
        "any": "keep of the checkpoints what you like",
        "all": 'keep all checkpoints: retention="all"',
        "streaming": 'openings go to the registry: retention="streaming" saves room',
        "after-close": 'keep all checkpoints for draws after the close: retention="all"',
    }.get(terms.history, terms.history)


@contextlib.contextmanager
def _word(out: Path) -> Iterator[str]:
    """A word for the enrolment that belongs into a folder: asked for twice, it comes once."""
    from polo.storage import atomic

    path, is_new = out / ASKED_FILE, not out.exists()
    if not path.exists():
        atomic.write(path, secrets.token_hex(16).encode())
    try:
        yield path.read_text(errors="replace")[:64]
    except RegistryError as error:
        # Whether one that went away has enrolled us nobody knows: the word is for asking again.
        if not isinstance(error, OutageError):
            path.unlink()
            if is_new:
                out.rmdir()
        raise
    path.unlink()


def refuse_terms(**given: object) -> None:
    """Refuse options that are the registry's to fix."""
    named = sorted(name.replace("_", "-") for name, value in given.items() if value)
    if named:
        raise TermsError(
            f"--{named[0]}: the registry fixes the terms, you choose the task and the bits",
            advice="Leave it out, or ask the registry's operator for other terms.",
        )


def status(
    what: Path,
    /,
    *,
    key: Path | None = None,
    registry: str | None = None,
    passphrase: Flag = False,
    json: Flag = False,
) -> None:
    """Show how a chain stands at its registry: receipts, challenges, verifications.

    Examples:
    polo status proof

    polo status enrolment --key alice.key

    Parameters
    ----------
    what
        A proof, or the folder of an enrolment.
    key
        Your private key; without it only what everybody may see is shown.
    registry
        Address of the registry, if it has moved.
    passphrase
        Your key is protected: ask, or take POLO_PASSPHRASE.
    json
        Print JSON.
    """
    from polo.client.client import Client
    from polo.client.enrolled import REGISTRY_FILE, LiveEnrolment
    from polo.keys import Identity
    from polo.storage.folder import MANIFEST_FILE

    signer = Identity.load(key, passphrase_of() if passphrase else None) if key else None
    if (what / REGISTRY_FILE).exists():
        enrolment = LiveEnrolment.load(what)
    elif not (what / MANIFEST_FILE).exists():
        raise StoreError(
            "there is neither a proof nor an enrolment here",
            place=str(what),
            advice="Give the folder that you train into, or the one that polo enrol made.",
        )
    else:
        enrolment = LiveEnrolment.of_proof(what, registry)
    address = enrolment.address
    with Client(registry or address.url, signer, origin=address.origin) as client:
        found = _found(client, enrolment, signed=signer is not None)
    if json:
        print_json(found)
    else:
        _print_status(found, enrolment)


def _found(client: "Client", enrolment: "LiveEnrolment", *, signed: bool) -> dict[str, Any]:
    found: dict[str, Any] = {"enrolment": client.enrolment(enrolment.id)}
    for heavy in ("enrolment", "layout"):
        found["enrolment"].pop(heavy, None)
    found["commitments"] = list(client.commitments(enrolment.id))
    if signed:
        found["challenges"] = client.challenges(enrolment.id)
        found["verifications"] = client.verifications(enrolment.id)
    return found


def _print_status(found: dict[str, Any], enrolment: "LiveEnrolment") -> None:
    from polo.checks import plain

    about, terms = found["enrolment"], enrolment.record.terms
    print(f"enrolment {enrolment.id[:16]}…  at {enrolment.address.origin}")
    state, shards = plain(str(about.get("state"))), about.get("shards")
    asked = f" of {terms.shards.least} to {terms.shards.most}" if state == "open" else ""
    print(f"{terms.task.name}: {state}, {shards} {'shard' if shards == 1 else 'shards'}{asked}")
    if "verifications" not in found and about.get("verdict"):
        print(plain(f"the registry's verdict: {about['verdict']}"))
    if about.get("keep_until"):
        print(f"the registry keeps your files until {day(about['keep_until'])}")
    elif about.get("removed"):
        print(f"the registry removed your files on {day(about['removed'])}, as the terms say")
    for item in found["commitments"]:
        given = "receipt" if item.get("receipt") else "waits for a challenge"
        shard = item.get("shard")
        name = f"shard {shard}" if shard else "start"
        print(f"  {name:<9} {day(item.get('time'))}  log {item.get('index')}  {given}")
    for asked in found.get("challenges", ()):
        about_what = f" of shard {asked['shard']}" if asked.get("shard") else ""
        words = f"{asked.get('kind')}{about_what}: {asked.get('state')}"
        print(plain(f"challenge {words}, due {day(asked.get('due'))} {asked.get('detail', '')}"))
    for done in found.get("verifications", ()):
        print(
            plain(f"verification {day(done.get('made'))}: {done.get('outcome') or done['state']}")
        )


def day(seconds: object) -> str:
    """A time as people read it; what is none becomes a question mark."""
    if not isinstance(seconds, int) or not 0 <= seconds < 2**35:
        return "?"
    return time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(seconds))
