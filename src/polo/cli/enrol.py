"""`polo enrol`: the issuer signs terms for an identity."""

from pathlib import Path
from typing import TYPE_CHECKING, Literal

from polo.cli.keys import passphrase_of
from polo.cli.output import Flag, print_json
from polo.cli.tasks import load_task
from polo.errors import StoreError, TermsError

if TYPE_CHECKING:
    from polo.protocol.records import Manifest


def enrol(
    *,
    task: str,
    identity: Path,
    issuer: Path,
    out: Path,
    bits: int = 256,
    shards: int = 100,
    fewest_shards: int | None = None,
    fewest_steps: int = 1,
    strength: float = 0.001,
    reduction: Literal["sum", "mean"] = "sum",
    every: int = 1,
    load: float = 0.125,
    block: int = 256,
    key: Literal["block", "dense"] = "block",
    parent: Path | None = None,
    passphrase: Flag = False,
    json: Flag = False,
) -> None:
    """Sign terms for a trainer: writes enrolment.json and, confidential, nonces.json.

    Examples:
    polo enrol --task digits --identity alice.pub --issuer issuer.key --out enrolment

    polo enrol --task digits --identity bob.pub --issuer issuer.key --out bob --parent alice-proof

    Parameters
    ----------
    task
        A registered task, or module:object.
    identity
        The trainer's public key.
    issuer
        Your private key.
    out
        Folder to hand to the trainer.
    bits
        Bits of each mark.
    shards
        Most shards.
    fewest_shards
        Fewest shards; by default as many as the task's floor has steps.
    fewest_steps
        Fewest optimizer steps per shard.
    strength
        λ, the weight of the mark's loss.
    reduction
        Whether bit losses are summed (sum) or averaged (mean).
    every
        Add the mark's gradient every so many steps, that many times as strong.
    load
        Bits per weight of a block.
    block
        Weights per block, a power of two.
    key
        One small key per block (block), or one over all of them (dense).
    parent
        A proof, or a bundle of it: training must start from the model it ends in, as for one who
        buys it.
    passphrase
        The issuer's key is protected: ask, or take POLO_PASSPHRASE.
    json
        Print JSON.
    """
    from polo import enrolment
    from polo.keys import Identity, load_public

    secret = passphrase_of() if passphrase else None
    origin = _parent(parent) if parent else None
    terms = enrolment.make_terms(
        load_task(task),
        bits=bits,
        shards=shards,
        fewest_shards=fewest_shards,
        fewest_steps=fewest_steps,
        strength=strength,
        reduction=reduction,
        every=every,
        load=load,
        block=block,
        key=key,
        parent=origin.last_root if origin else None,
    )
    if origin and origin.terms.layout != terms.layout:
        raise TermsError(
            "the parent's tensors are not those of the task's model", place=str(parent)
        )
    signer = Identity.load(issuer, secret)
    issued = enrolment.enrol(terms, identity=load_public(identity), issuer=signer)
    issued.save(out)
    if json:
        print_json(issued.record.to_json())
        return
    print(f"{out / 'enrolment.json'}  terms, signed; public")
    print(f"{out / 'nonces.json'}  {len(issued.drawn)} nonces; confidential: for the trainer alone")


def _parent(proof: Path) -> "Manifest":
    """The proof of the model that training is to start from."""
    from polo.storage.ancestors import signed_manifest
    from polo.storage.bundle import opened
    from polo.storage.folder import ProofFolder

    with opened(proof) as folder:
        manifest = signed_manifest(ProofFolder(folder))
    if not manifest.shards:
        raise StoreError(
            "has no sealed shard, so it is no model to start from",
            place=str(proof),
            advice="Wait until its owner has sealed one.",
        )
    return manifest
