"""`polo transfer`: a model changes hands."""

import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import App, Parameter

from polo.cli.keys import passphrase_of
from polo.cli.output import Flag, print_json
from polo.errors import StoreError

if TYPE_CHECKING:
    from polo.keys import Identity
    from polo.protocol.records import Manifest, Transfer

transfer = App(
    name="transfer",
    help="Hand a model on: the buyer requests, the seller signs, the buyer completes.",
)
Seller = Annotated[Path, Parameter(name="--from")]


@transfer.command
def request(
    proof: Path,
    /,
    *,
    seller: Seller,
    key: Path,
    out: Path,
    passphrase: Flag = False,
    json: Flag = False,
) -> None:
    """Ask for a model that you bought: the buyer's first step, once a shard of theirs is sealed.

    Example: polo transfer request bob-proof --from alice-proof --key bob.key --out transfer.json

    Parameters
    ----------
    proof
        Your proof. Its terms name the seller's last model as the parent (polo enrol --parent).
    seller
        The seller's proof: a folder, or a bundle.
    key
        Your private key.
    out
        File to send to the seller.
    passphrase
        Your key is protected: ask, or take POLO_PASSPHRASE.
    json
        Print JSON.
    """
    from polo.storage import transfers
    from polo.storage.bundle import glance

    _check_new(out, proof)
    asked = transfers.request(proof, seller, _load(key, passphrase))
    with out.open("xb") as file:
        file.write(asked.to_bytes())
    if json:
        print_json(asked.to_json())
        return
    print(f"{out}  signed by you; now send it to the seller, {_name(asked.seller)}")
    print(f"they sign it: polo transfer sign {out.name} --proof THEIR_PROOF --key THEIR.key")
    bundle = glance(seller)[0]
    if bundle and bundle.kind == "public":
        print(f"{seller} shows no mark; to complete it you need some: polo disclose, by the seller")


@transfer.command
def sign(
    file: Path,
    /,
    *,
    proof: Path,
    key: Path,
    passphrase: Flag = False,
    json: Flag = False,
) -> None:
    """Hand your model on to the one who asks in a file: the seller's step.

    Example: polo transfer sign transfer.json --proof alice-proof --key alice.key

    You can do this once for a model. The list of what you handed on lies beside your proof.

    Parameters
    ----------
    file
        What the buyer sent; your signature is added to it.
    proof
        Your proof, as the buyer has seen it.
    key
        Your private key.
    passphrase
        Your key is protected: ask, or take POLO_PASSPHRASE.
    json
        Print JSON.
    """
    from polo.storage import atomic, transfers

    order = "polo transfer sign TRANSFER.json --proof PROOF --key YOUR.key"
    signed = transfers.sign(_read(file, order), proof, _load(key, passphrase))
    atomic.write(file, signed.to_bytes(), unguessable=True)
    if json:
        print_json(signed.to_json())
        return
    print(f"{file}  signed by both; now send it back to the buyer, {_name(signed.buyer)}")
    print("the model is theirs from here on; your proof stays as it is and stays valid")


@transfer.command
def complete(
    proof: Path,
    file: Path,
    /,
    *,
    seller: Seller,
    key: Path,
    passphrase: Flag = False,
    json: Flag = False,
) -> None:
    """Take the model over: copy the seller's proof into yours, without weights, and sign.

    Example: polo transfer complete bob-proof transfer.json --from alice-proof --key bob.key

    Parameters
    ----------
    proof
        Your proof.
    file
        The transfer, signed by both.
    seller
        The seller's proof, as it was when you requested: a folder, or a bundle.
    key
        Your private key.
    passphrase
        Your key is protected: ask, or take POLO_PASSPHRASE.
    json
        Print JSON.
    """
    from polo.storage import transfers

    order = "polo transfer complete PROOF TRANSFER.json --from SELLER_PROOF --key YOUR.key"
    manifest = transfers.complete(proof, _read(file, order), seller, _load(key, passphrase))
    if json:
        print_json(manifest.to_json())
        return
    print(f"{proof}  now carries the proofs of all earlier owners")
    print(f"check it as others will: polo verify {proof}")


@transfer.command
def show(proof: Path, /, *, json: Flag = False) -> None:
    """Show who has owned a model, and since which shard. Signatures are checked, marks are not.

    Example: polo transfer show bob-proof

    Parameters
    ----------
    proof
        A proof: a folder, or a bundle.
    json
        Print JSON.
    """
    from polo.storage.ancestors import lineage
    from polo.storage.bundle import opened

    with opened(proof) as folder:
        owners = _owners([link.manifest for link in lineage(folder)])
    if json:
        print_json(owners)
        return
    for owner in owners:
        day = time.strftime("%Y-%m-%d", time.gmtime(min(owner["enrolled"], 2**35)))
        shards = f"shards {owner['first']} to {owner['last']}"
        print(f"{owner['id'][:16]}…  {shards:<18}  enrolled {day}  {owner['how']}")
    print("signatures and links hold; polo verify checks the marks")


def _owners(manifests: "list[Manifest]") -> list[dict[str, Any]]:
    from polo.protocol.records import identity_of

    found: list[dict[str, Any]] = []
    before = 0
    for manifest in manifests:
        found.append(
            {
                "id": identity_of(manifest.enrolment.identity).hex(),
                "first": before + 1,
                "last": before + len(manifest.shards),
                "enrolled": manifest.enrolment.issued,
                "how": "trained" if manifest.transfer is None else "transfer",
                "final_root": manifest.last_root.hex(),
            }
        )
        before += len(manifest.shards)
    return found


def _load(key: Path, passphrase: bool) -> "Identity":
    from polo.keys import Identity

    return Identity.load(key, passphrase_of() if passphrase else None)


def _read(file: Path, order: str) -> "Transfer":
    """What a file says; where a folder or a bundle stands in its place, the order of a command."""
    from polo.protocol.records import Transfer
    from polo.storage.bundle import SUFFIX
    from polo.storage.folder import MAX_TRANSFER_FILE
    from polo.weights.files import open_plain

    if file.is_dir() or file.suffix == SUFFIX:
        raise StoreError("is a proof, no transfer", place=str(file), advice=order)
    with open_plain(file.resolve()) as handle:
        return Transfer.from_bytes(handle.read(MAX_TRANSFER_FILE + 1), str(file))


def _check_new(out: Path, proof: Path) -> None:
    if os.path.lexists(out):
        raise StoreError("exists already; give another name", place=str(out))
    if out.resolve().is_relative_to(proof.resolve()):
        raise StoreError("lies inside your proof; write it somewhere else", place=str(out))
    if not out.absolute().parent.is_dir():
        raise StoreError("there is no such folder", place=str(out.absolute().parent))


def _name(key: bytes) -> str:
    from polo.protocol.records import identity_of

    return f"{identity_of(key).hex()[:16]}…"
