"""A proof as one file."""

from collections.abc import Iterator

from fuzz import promises, proofs, sandbox, tar_files
from fuzz.target import Target
from polo.protocol.records import Bundle
from polo.storage import bundle
from polo.storage.folder import ProofFolder


def check(data: bytes) -> None:
    """Refused without a trace, or unpacked into plain files that give the same bundle again."""
    path = sandbox.file(data, "input.polo")
    outside = sandbox.folder("bundle")
    into = outside / "proof"
    found = None
    with promises.refusals(), promises.confined(outside):
        bundle.glance(path)
        found = bundle.read_bundle(path, into)
    if found is None:
        promises.require(not any(outside.iterdir()), "after a refusal nothing is left")
        return
    promises.require([into] == list(outside.iterdir()), "there is one folder")
    plain = [p for p in into.rglob("*") if p.is_file() and not p.is_symlink()]
    others = [p for p in into.rglob("*") if p not in plain and (p.is_symlink() or not p.is_dir())]
    promises.require(not others, "plain files come out, and folders")
    total = sum(p.stat().st_size for p in plain)
    promises.require(total <= len(data), "no more comes out than went in")
    bundle.write_bundle(ProofFolder(into), outside / "again", found)
    promises.require((outside / "again").read_bytes() == data, "a bundle has one spelling")


def bundles() -> Iterator[bytes]:
    """A bundle of every kind, and of a bought model."""
    folder = ProofFolder(proofs.proof(retention="thin", deltas=False))
    whole = bundle.whole(folder.manifest())
    for at, part in enumerate((bundle.PUBLIC, Bundle("buyer", (2,)), whole)):
        path = sandbox.folder("bundles") / str(at)
        bundle.write_bundle(folder, path, part)
        yield path.read_bytes()
    folder = ProofFolder(proofs.bought())
    for part in (bundle.PUBLIC, bundle.whole(folder.manifest())):
        path = sandbox.folder("bundles") / "bought"
        bundle.write_bundle(folder, path, part)
        yield path.read_bytes()


TARGET = Target(check, bundles, tar_files.mutate, most_bytes=96 * 1024)
