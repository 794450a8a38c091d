"""`polo challenge` and `polo answer`: what level replay needs beside the proof."""

import time
from pathlib import Path

from polo.cli.devices import checked_device
from polo.cli.keys import passphrase_of
from polo.cli.output import Flag, print_json, progress_bar
from polo.cli.tasks import load_task
from polo.errors import StoreError


def challenge(
    proof: Path,
    /,
    *,
    out: Path,
    ends: Flag = False,
    device: str | None = None,
    json: Flag = False,
) -> None:
    """Draw the segments of training that you want to see run again: the verifier's first step.

    Draw once, after the proof is closed, and keep the file: who may draw until the answer suits
    them, or is let off when an answer fails, has checked nothing.

    Example: polo challenge proof --out challenge.json

    Parameters
    ----------
    proof
        The proof folder, or the verifier's bundle.
    out
        File to send to the prover.
    ends
        Also ask for the states at the ends of segments; done by itself where the proof was
        trained on another platform than this one.
    device
        Where you will run them again: cpu or cuda; by default where they were trained.
    json
        Print JSON.
    """
    from polo.evidence.replay import challenge as challenges
    from polo.storage.bundle import glance

    _check_new(out)
    bundle, manifest = glance(proof)
    if bundle and bundle.kind != "verifier":
        raise StoreError(
            "is only part of a proof, without its records",
            place=str(proof),
            advice="Ask the prover for the verifier's bundle.",
        )
    drawn = challenges.draw(proof, ends=ends or None, device=checked_device(device))
    challenges.save(drawn, out)
    if json:
        print_json(drawn.to_json())
        return
    places, sealings = len(drawn.segments), len(drawn.sealings)
    print(f"{out}  {places} segments and {sealings} sealings; send it to the prover")
    if not manifest.finished:
        print("the proof is not closed yet: if it grows, this challenge does not fit it any more")


def answer(
    proof: Path,
    challenge: Path,
    /,
    *,
    data: Path,
    arrays: Path,
    key: Path,
    out: Path,
    task: str | None = None,
    device: str | None = None,
    passphrase: Flag = False,
    json: Flag = False,
) -> None:
    """Show what a verifier drew: the prover's answer, computed again from the sealed checkpoints.

    It shows the verifier the samples of the drawn segments, states of model and optimizer, and the
    noise of the drawn sealings; nothing of the other steps.

    Example: polo answer proof challenge.json --data data --arrays train.npz --key alice.key
    --out answer

    Parameters
    ----------
    proof
        Your proof; what is private must lie beside it.
    challenge
        What the verifier drew.
    data
        Folder that polo data made: it holds the secret of your data.
    arrays
        The training data themselves: .npz or .safetensors.
    key
        Your private key.
    out
        Folder to hand to the verifier.
    task
        The task, if it is not the registered one that the terms name: a name, or module:object.
    device
        Where to compute: cpu or cuda; by default where it was trained.
    passphrase
        Your key is protected: ask, or take POLO_PASSPHRASE.
    json
        Print JSON.
    """
    from polo.cli.data import load_arrays
    from polo.evidence.replay import answer as answers
    from polo.evidence.replay import challenge as challenges
    from polo.evidence.replay.data import DataSource
    from polo.keys import Identity
    from polo.storage.folder import ProofFolder

    identity = Identity.load(key, passphrase_of() if passphrase else None)
    name = task or ProofFolder(proof).manifest().terms.task.name
    # Whoever gives the record, as to polo enrol, means the folder that it lies in.
    source = DataSource.load(data.parent if data.is_file() else data, load_arrays(arrays))
    began = time.perf_counter()
    with progress_bar() as tell:
        made = answers.answer(
            proof,
            challenges.load(challenge),
            task=load_task(name),
            data=source,
            key=identity,
            out=out,
            device=checked_device(device),
            listener=tell,
        )
    seconds = time.perf_counter() - began
    files = [path for path in made.iterdir() if path.is_file()]
    if json:
        print_json({"files": len(files), "seconds": seconds})
        return
    print(f"{made}  {len(files)} files, computed in {seconds:.1f} s; hand it to the verifier")


def _check_new(path: Path) -> None:
    if path.exists():
        raise StoreError("is there already", place=str(path), advice="Give a new file.")
