"""`polo disclose`, `polo export` and `polo import`: handing a proof on, or part of it."""

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Parameter

from polo.cli.output import Flag, print_json, size
from polo.errors import ChainError, StoreError

if TYPE_CHECKING:
    from polo.protocol.records import Bundle, Manifest
    from polo.storage.folder import ProofFolder

_DISCLOSE = "polo disclose PROOF --shards 3,9 --to NAME --out FILE.polo"


def disclose(
    proof: Path,
    /,
    *,
    shards: str | None = None,
    to: str | None = None,
    out: Path | None = None,
    list_: Annotated[Flag, Parameter(name="--list")] = False,
    json: Flag = False,
) -> None:
    """Show somebody chosen marks of a proof, and keep the others secret.

    Writes a bundle with the nonces and openings of these shards, which polo verify checks. Whoever
    has it knows where these marks sit and could remove them; about the others it says nothing.
    Who was shown what is noted beside the proof.

    Examples:
    polo disclose proof --shards 3,9 --to "Bob Ltd" --out bob.polo

    polo disclose proof --shards 2-5,last --to carol --out carol.polo

    polo disclose proof --list

    Parameters
    ----------
    proof
        The proof folder.
    shards
        Which: numbers, ranges and the word last, with commas, as in 1,4-6,last.
    to
        Who gets it, for your own list.
    out
        The file to write, *.polo.
    list_
        Only print who was shown which marks.
    json
        Print JSON.
    """
    from polo.protocol.records import Bundle

    folder = _folder(proof)
    manifest = folder.manifest()
    if list_:
        _print_list(proof, manifest, json=json)
        return
    if shards is None or to is None or out is None:
        missing = next(n for n, v in (("shards", shards), ("to", to), ("out", out)) if v is None)
        raise StoreError(f"--{missing} is missing", advice=_DISCLOSE)
    bundle = Bundle("buyer", parse_shards(shards, len(manifest.shards)))
    _check_here(folder, bundle)
    _hand_out(folder, out, bundle, to)
    _report(proof, manifest, bundle, out, to, json=json)


def export(
    proof: Path,
    /,
    *,
    kind: Annotated[Literal["public", "verifier"], Parameter(name="--as")],
    out: Path,
    to: str | None = None,
    json: Flag = False,
) -> None:
    """Write a proof as one file: what everybody may see, or everything.

    Public: terms, identity, roots, metrics and signatures; it shows no mark and no weight.
    Verifier: the whole proof, with every nonce; for one verifier only. To show a buyer chosen
    marks, use polo disclose.

    Examples:
    polo export proof --as public --out proof.polo

    polo export proof --as verifier --to "the market" --out market.polo

    Parameters
    ----------
    proof
        The proof folder.
    kind
        What to put in.
    out
        The file to write, *.polo.
    to
        Who gets it, for your own list; needed for a verifier.
    json
        Print JSON.
    """
    from polo.storage.bundle import PUBLIC, whole

    folder = _folder(proof)
    manifest = folder.manifest()
    bundle = PUBLIC if kind == "public" else whole(manifest)
    if kind == "verifier" and not to:
        raise StoreError(
            "this shows every nonce, so say who gets it",
            advice="polo export PROOF --as verifier --to NAME --out FILE.polo",
        )
    _hand_out(folder, out, bundle, to or "")
    _report(proof, manifest, bundle, out, to, json=json)


def import_(file: Path, /, *, out: Path, json: Flag = False) -> None:
    """Unpack a bundle into a new folder.

    Every file is compared with the list in the manifest; whether the proof holds is for polo verify
    to say, which also takes the bundle as it is.

    Example: polo import bob.polo --out proof

    Parameters
    ----------
    file
        The bundle, *.polo.
    out
        The folder to make.
    json
        Print JSON.
    """
    from polo.storage.bundle import read_bundle

    if file.is_dir():
        raise StoreError("is a folder, no bundle; it needs no import", place=str(file))
    bundle = read_bundle(file, out)
    if json:
        print_json({"folder": str(out), "kind": bundle.kind, "shards": list(bundle.shards)})
        return
    print(f"{out}  {_contents(bundle)}")
    print(f"not checked yet: polo verify {out} --trust ISSUER.pub")


def parse_shards(text: str, total: int) -> tuple[int, ...]:
    """Shard numbers that a person typed.

    >>> parse_shards("9,2-4,last", 50)
    (2, 3, 4, 9, 50)
    """
    chosen: set[int] = set()
    for part in text.replace(" ", "").split(","):
        words = [str(total) if word == "last" else word for word in part.split("-")]
        if len(words) > 2 or not all(w.isascii() and w.isdecimal() and len(w) < 7 for w in words):
            raise StoreError(
                f"{part[:40]!r} is no shard, nor a range of shards",
                place="--shards",
                advice="Give numbers, ranges or the word last, with commas: 1,4-6,last",
            )
        first, last = int(words[0]), int(words[-1])
        if 1 <= last < first <= total:
            raise StoreError(
                f"the range {part} runs backwards", place="--shards", advice=f"{last}-{first}"
            )
        if not 1 <= first <= last <= total:
            raise ChainError(
                f"there is no shard {part[:40]}; the proof has shards 1 to {total}"
                if total
                else "the proof has no shard yet",
                place="--shards",
            )
        chosen |= set(range(first, last + 1))
    return tuple(sorted(chosen))


def _folder(proof: Path) -> "ProofFolder":
    from polo.storage.folder import ProofFolder

    if proof.is_file():
        raise StoreError(
            "is a file; this needs a proof folder",
            place=str(proof),
            advice=f"polo import {proof} --out FOLDER",
        )
    return ProofFolder(proof)


def _hand_out(folder: "ProofFolder", out: Path, bundle: "Bundle", to: str) -> None:
    from polo.storage.bundle import SUFFIX
    from polo.storage.disclosures import hand_out

    if out.suffix != SUFFIX:
        raise StoreError(
            f"a bundle is called *{SUFFIX}", place=str(out), advice=f"--out {out.name}{SUFFIX}"
        )
    hand_out(folder, out, bundle, to)


def _check_here(folder: "ProofFolder", bundle: "Bundle") -> None:
    """Refuse marks that whoever holds this folder was not shown either."""
    from polo.storage.folder import nonce_path, opening_path

    for shard in bundle.shards:
        for name in (nonce_path(shard), opening_path(shard)):
            if not folder.file(name).is_file():
                raise StoreError(
                    f"mark {shard} cannot be shown: {name} is not here",
                    place=str(folder.path),
                    advice="Show other shards, or ask the prover.",
                )


def _report(
    proof: Path, manifest: "Manifest", bundle: "Bundle", out: Path, to: str | None, *, json: bool
) -> None:
    from polo.checks import plain, spans
    from polo.storage.disclosures import secret_marks

    total = len(manifest.shards)
    left = len(secret_marks(proof, total))
    if json:
        shown = {"kind": bundle.kind, "shards": list(bundle.shards), "to": to}
        print_json({"file": str(out), **shown, "secret": left, "of": total})
        return
    print(f"{out}  {size(out.stat().st_size)}, {_contents(bundle)}")
    if bundle.kind == "public":
        print("it shows no nonce and no weight; give it to anybody")
        return
    if bundle.kind == "buyer":
        share = _share_of_weights(proof, manifest, bundle)
        print(f"each opening shows up to {share:.0%} of the weights of its checkpoint")
    else:
        print("it holds every nonce and every stored checkpoint; give it to nobody else")
    noun, verb = ("mark", "it sits") if len(bundle.shards) == 1 else ("marks", "they sit")
    who = plain(to or "")
    print(f"burnt as secret evidence: {noun} {spans(bundle.shards)} ({who} will know where {verb})")
    print(f"the others stay: {_still_secret(proof, left, total)}")


def _share_of_weights(proof: Path, manifest: "Manifest", bundle: "Bundle") -> float:
    """The part of a checkpoint that the largest opening shows: whole chunks around its mark."""
    from polo.storage.folder import ProofFolder, opening_path

    shown = set(map(opening_path, bundle.shards))
    largest = max(file.size for file in manifest.files if file.path in shown)
    return min(1.0, largest / max(1, ProofFolder(proof).layout().size))


def _still_secret(proof: Path, left: int, total: int) -> str:
    from polo.storage.folder import ProofFolder

    part = ProofFolder(proof).bundle()
    if part and part.kind != "verifier":
        return "what else was shown of this proof, its prover knows"
    return f"{left} of {total} marks are still secret, as far as your list knows"


def _contents(bundle: "Bundle") -> str:
    from polo.checks import counted

    if bundle.kind == "buyer":
        return f"a disclosure of {counted(len(bundle.shards), 'mark')}"
    return "the whole proof, for a verifier" if bundle.kind == "verifier" else "a public bundle"


def _print_list(proof: Path, manifest: "Manifest", *, json: bool) -> None:
    from polo.checks import plain, spans
    from polo.storage.disclosures import disclosures, secret_marks

    entries = disclosures(proof)
    total = len(manifest.shards)
    secret = secret_marks(proof, total)
    if json:
        print_json({"shown": [e.to_json() for e in entries], "secret": secret, "of": total})
        return
    for entry in entries:
        day = time.strftime("%Y-%m-%d", time.gmtime(min(entry.made, 2**35)))
        print(f"{day}  {plain(entry.to)}  {entry.kind}  {spans(entry.shards)}")
    if not entries:
        print("nobody was shown a mark yet")
    print(_still_secret(proof, len(secret), total))
