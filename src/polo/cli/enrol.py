"""`polo enrol`: the issuer signs terms for an identity."""

from pathlib import Path
from typing import Literal

from polo.cli.keys import passphrase_of
from polo.cli.output import Flag, print_json
from polo.cli.tasks import load_task


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
    passphrase: Flag = False,
    json: Flag = False,
) -> None:
    """Sign terms for a trainer: writes enrolment.json and, confidential, nonces.json.

    Example: polo enrol --task digits --identity alice.pub --issuer issuer.key --out enrolment

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
    passphrase
        The issuer's key is protected: ask, or take POLO_PASSPHRASE.
    json
        Print JSON.
    """
    from polo import enrolment
    from polo.keys import Identity, load_public

    secret = passphrase_of() if passphrase else None
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
    )
    signer = Identity.load(issuer, secret)
    issued = enrolment.enrol(terms, identity=load_public(identity), issuer=signer)
    issued.save(out)
    if json:
        print_json(issued.record.to_json())
        return
    print(f"{out / 'enrolment.json'}  terms, signed; public")
    print(f"{out / 'nonces.json'}  {len(issued.drawn)} nonces; confidential: for the trainer alone")
