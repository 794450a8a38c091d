"""`polo enrol`: the issuer signs terms for an identity."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Parameter

from polo.cli import live
from polo.cli.data import recipe_of
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
    out: Path,
    issuer: Path | None = None,
    registry: str | None = None,
    name: str | None = None,
    scheme: str = "ednn",
    bits: int | None = None,
    shards: int = 100,
    fewest_shards: int | None = None,
    fewest_steps: int | None = None,
    strength: float | None = None,
    reduction: Literal["sum", "mean"] | None = None,
    every: int | None = None,
    load: float | None = None,
    block: int | None = None,
    key: Literal["block", "dense"] = "block",
    carrier: Annotated[list[str] | None, Parameter(negative="", consume_multiple=True)] = None,
    budget: float | None = None,
    margin: float | None = None,
    start: Literal["free", "derived"] = "free",
    parent: Path | None = None,
    progress: Flag = False,
    data: Path | None = None,
    recipe: Annotated[list[str] | None, Parameter(negative="", consume_multiple=True)] = None,
    passphrase: Flag = False,
    json: Flag = False,
) -> None:
    """Sign terms for a trainer: writes enrolment.json and, confidential, nonces.json.

    With --registry a trainer enrols at a registry instead, which signs terms of its own.

    Examples:
    polo enrol --task digits --identity alice.pub --issuer issuer.key --out enrolment

    polo enrol --task digits --identity bob.pub --issuer issuer.key --out bob --parent alice-proof

    polo enrol --task digits --identity alice.pub --issuer issuer.key --out enrolment
    --data my-data/data.json --recipe rate=0.05 batch=64 every=16

    polo enrol --registry https://registry.example --task digits --identity alice.key
    --out enrolment

    Parameters
    ----------
    task
        A registered task, or module:object.
    identity
        The trainer's public key; with --registry your own private key.
    out
        Folder to hand to the trainer, or with --registry to train with.
    issuer
        Your private key, to sign terms yourself.
    registry
        Address of a registry to enrol at: it registers your key if it is new there, and fixes the
        terms; you may choose bits, and give data and parent where its terms need them.
    name
        What people may call you there; by default the name of the key file.
    scheme
        How marks are pressed and read: ednn, ednn-mean, riga, fedipr, fedipr-kernel, signed, or
        one that an installed package offers. Bits, strength, reduction, every, load, block,
        budget and margin are what suits it where they are not given.
    bits
        Bits of each mark.
    shards
        Most shards.
    fewest_shards
        Fewest shards; by default as many as the task's floor has steps.
    fewest_steps
        Fewest optimizer steps per shard; by default 1, and with --data a whole pass over them.
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
    carrier
        Tensors that carry marks; by default all that can (polo validate lists them).
    budget
        Largest edit of the finishing step, relative to a block's norm: a larger one seals more
        epochs and costs more accuracy.
    margin
        How far past zero the finishing step turns a bit, relative to a block's norm.
    start
        Whether training may start anywhere (free) or from an initialisation that is drawn from the
        enrolment (derived): polo.draw_start.
    parent
        A proof, or a bundle of it: training must start from the model it ends in, as for one who
        buys it.
    progress
        Ask for level progress: heuristics on whether the checkpoints look like training, for which
        the trainer keeps all of them.
    data
        The trainer's data.json (polo data): asks for level replay on these data, so that every
        step is fixed and the trainer keeps all checkpoints.
    recipe
        How every step of training is done, with --data: settings such as rate=0.05 optimizer=adam,
        or a TOML file of them. See section 16.4 of docs/protocol.md.
    passphrase
        The private key is protected: ask, or take POLO_PASSPHRASE.
    json
        Print JSON.
    """
    from polo import enrolment
    from polo.evidence.replay.data import load_record
    from polo.evidence.start import drawn
    from polo.keys import Identity, load_public

    secret = passphrase_of() if passphrase else None
    if registry is not None:
        live.refuse_terms(
            issuer=issuer, scheme=scheme != "ednn", shards=shards != 100, every=every, load=load,
            fewest_shards=fewest_shards, fewest_steps=fewest_steps, strength=strength, block=block,
            reduction=reduction, key=key != "block", start=start != "free", progress=progress,
            recipe=recipe, carrier=carrier, budget=budget, margin=margin,
        )  # fmt: skip
        live.enrol_at(
            registry, task=task, key=Identity.load(identity, secret), out=out, json=json,
            name=name or identity.stem, bits=bits, data=data, parent=parent,
        )  # fmt: skip
        return
    if issuer is None:
        raise TermsError(
            "who signs the terms?",
            advice="Give your key: --issuer issuer.key, or a registry: --registry URL",
        )
    origin = _parent(parent) if parent else None
    if recipe and not data:
        raise TermsError("a recipe needs the data that it is for", advice="Give --data data.json.")
    subject = load_task(task)
    committed = load_record(data / "data.json" if data.is_dir() else data) if data else None
    if start == "derived":
        # Whether every tensor has a rule is better known now than when the trainer draws.
        drawn(subject.build_model(), bytes(32))
    steps = recipe_of(committed, subject, recipe or ()) if committed else None
    terms = enrolment.make_terms(
        subject,
        scheme=scheme,
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
        carrier=carrier,
        budget=budget,
        margin=margin,
        start=start,
        parent=origin.last_root if origin else None,
        progress=progress,
        replay=steps,
        data=committed.root if committed else None,
    )
    if origin and origin.terms.layout != terms.layout:
        raise TermsError(
            "the parent's tensors are not those of the task's model", place=str(parent)
        )
    signer = Identity.load(issuer, secret)
    issued = enrolment.enrol(terms, identity=load_public(identity), issuer=signer)
    issued.save(out)
    for weakness in steps.weaknesses(terms.start.kind) if steps else ():
        print(f"note: {weakness}", file=sys.stderr)
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
