"""Whatever happens to a proof, the verifier never accepts it, never raises, and names the place."""

import dataclasses
import hashlib
import os
import random
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import polo
from polo.protocol import signing
from polo.protocol.records import File, Manifest
from polo.storage.folder import MANIFEST_FILE, ProofFolder, nonce_path
from polo.verifier import Outcome, Policy, Status

pytestmark = pytest.mark.slow

BLIND_MUTATIONS = 1000
SIGNED_MUTATIONS = 450
SEED = 20261115

KINDS = {
    "all": {"retention": "all"},
    "deltas": {"retention": "all", "deltas": True},
    "thin": {"retention": "thin"},
}


@pytest.fixture(scope="module")
def rng() -> random.Random:
    seed = int(os.environ.get("POLO_TEST_SEED", SEED))
    print(f"seed {seed}")
    return random.Random(seed)


@pytest.fixture(
    params=["deltas", *(pytest.param(kind, marks=pytest.mark.full) for kind in ("all", "thin"))]
)
def made(request: pytest.FixtureRequest, make_proof: Callable[..., Any], tmp_path: Path) -> Any:
    return make_proof(tmp_path / "original", epochs=4, **KINDS[request.param])


def files_of(proof: Path) -> list[Path]:
    return sorted(path for path in proof.rglob("*") if path.is_file())


def flip(data: bytes, rng: random.Random) -> bytes:
    at = rng.randrange(len(data))
    return data[:at] + bytes([data[at] ^ 1 << rng.randrange(8)]) + data[at + 1 :]


def cut(data: bytes, rng: random.Random) -> bytes:
    return data[: rng.randrange(len(data))]


def grow(data: bytes, rng: random.Random) -> bytes:
    return data + rng.randbytes(rng.randrange(1, 64))


def drop_byte(data: bytes, rng: random.Random) -> bytes:
    at = rng.randrange(len(data))
    return data[:at] + data[at + 1 :]


def scramble(data: bytes, rng: random.Random) -> bytes:
    at = rng.randrange(len(data))
    length = min(len(data) - at, rng.randrange(1, 64))
    fresh = rng.randbytes(length)
    return data[:at] + (fresh if fresh != data[at : at + length] else b"") + data[at + length :]


BLIND = (flip, flip, flip, cut, grow, drop_byte, scramble)


def test_blind_mutations_of_any_file(made: Any, rng: random.Random) -> None:
    paths = files_of(made.path)
    policy = Policy("none")
    assert made.verify(policy=policy).outcome is Outcome.ACCEPTED
    for number in range(BLIND_MUTATIONS // len(KINDS) + 1):
        path, change = rng.choice(paths), rng.choice(BLIND)
        original = path.read_bytes()
        path.write_bytes(change(original, rng))
        verdict = made.verify(policy=policy)
        what = f"mutation {number}: {change.__name__} of {path.relative_to(made.path)}"
        assert verdict.outcome is Outcome.REJECTED, what
        failed = next(verdict.of(Status.FAILED))
        assert failed.detail, what
        if path.name != MANIFEST_FILE:
            named = {check.place for check in verdict.of(Status.FAILED)}
            assert path.relative_to(made.path).as_posix() in named, what
        path.write_bytes(original)
    assert made.verify(policy=policy).outcome is Outcome.ACCEPTED


def test_every_file_missing_or_strange(made: Any, tmp_path: Path) -> None:
    for path in files_of(made.path):
        hidden = tmp_path / "hidden"
        path.rename(hidden)
        name = path.relative_to(made.path).as_posix()
        verdict = made.verify(policy=Policy("none"))
        assert verdict.outcome is Outcome.UNDECIDED, name
        for stand_in in ("link", "folder", "pipe"):
            if stand_in == "link":
                path.symlink_to(hidden)
            elif stand_in == "folder":
                path.mkdir()
            else:
                os.mkfifo(path)
            assert made.verify(policy=Policy("none")).outcome is not Outcome.ACCEPTED, stand_in
            path.rmdir() if stand_in == "folder" else path.unlink()
        hidden.rename(path)
    (made.path / "extra.txt").write_text("hello")
    verdict = made.verify(policy=Policy("none"))
    assert next(verdict.of(Status.FAILED)).place == "extra.txt"


def sign_again(proof: Path, key: polo.Identity, manifest: Manifest) -> None:
    (proof / MANIFEST_FILE).write_bytes(signing.sign(manifest, key).to_bytes())


def put(proof: Path, manifest: Manifest, name: str, data: bytes) -> Manifest:
    """The manifest after a dishonest prover replaced a file and listed its new digest."""
    (proof / name).write_bytes(data)
    fresh = File(name, len(data), hashlib.sha256(data).digest())
    return replace(
        manifest, files=tuple(fresh if file.path == name else file for file in manifest.files)
    )


def renumbered(shards: list[Any], start: bytes) -> tuple[Any, ...]:
    """Shards numbered and linked anew, as a forger would to look plausible."""
    linked, previous = [], start
    for number, shard in enumerate(shards, start=1):
        linked.append(replace(shard, shard=number, previous=previous))
        previous = shard.root
    return tuple(linked)


def signed_changes(
    proof: Path, manifest: Manifest, other: Path, rng: random.Random
) -> Iterator[tuple[str, Manifest]]:
    """Changes by a prover who holds the key and signs again."""
    shards = list(manifest.shards)
    at, to = rng.sample(range(len(shards)), 2)
    swapped = shards.copy()
    swapped[at], swapped[to] = swapped[to], swapped[at]
    yield "reordered", replace(manifest, shards=tuple(swapped))
    yield "reordered and linked", replace(manifest, shards=renumbered(swapped, manifest.start.root))
    doubled = [*shards[: at + 1], *shards[at:]]
    yield "duplicated", replace(manifest, shards=renumbered(doubled, manifest.start.root))
    if at + 1 < len(shards):
        dropped = shards[:at] + shards[at + 1 :]
        yield "dropped", replace(manifest, shards=tuple(dropped))
        yield (
            "dropped and linked",
            replace(manifest, shards=renumbered(dropped, manifest.start.root)),
        )
    foreign = ProofFolder(other).manifest().shards[at]
    yield "foreign", replace(manifest, shards=(*shards[:at], foreign, *shards[at + 1 :]))
    altered = shards.copy()
    altered[at] = replace(altered[at], root=rng.randbytes(32))
    yield "another root", replace(manifest, shards=renumbered(altered, manifest.start.root))
    altered[at] = replace(shards[at], steps=0)
    yield "no steps", replace(manifest, shards=tuple(altered))
    noise = replace(shards[at].noise, sigma=999_999)
    altered[at] = replace(shards[at], noise=noise)
    yield "more noise", replace(manifest, shards=tuple(altered))
    yield "another start", replace(manifest, start=replace(manifest.start, root=rng.randbytes(32)))
    terms = replace(
        manifest.terms, thresholds=replace(manifest.terms.thresholds, verify=1, log2_p=0)
    )
    yield "easier terms", replace(manifest, enrolment=replace(manifest.enrolment, terms=terms))
    issuer = polo.Identity.generate()
    enrolment = replace(manifest.enrolment, issuer=issuer.public_key)
    yield "an issuer of one's own", replace(manifest, enrolment=signing.sign(enrolment, issuer))
    one, two = (proof / nonce_path(shards[i].shard) for i in (at, to))
    yield "swapped nonces", put(
        proof, put(proof, manifest, nonce_path(at + 1), two.read_bytes()),
        nonce_path(to + 1), one.read_bytes(),
    )  # fmt: skip


def test_changes_signed_again_by_the_prover(
    made: Any, make_proof: Callable[..., Any], tmp_path: Path, alice: polo.Identity,
    rng: random.Random,
) -> None:  # fmt: skip
    other = make_proof(tmp_path / "other", epochs=4, seed=1).path
    pristine = shutil.copytree(made.path, tmp_path / "pristine")
    manifest, done = made.manifest, 0
    policy = Policy("none")
    while done < SIGNED_MUTATIONS // len(KINDS):
        for what, changed in signed_changes(made.path, manifest, other, rng):
            sign_again(made.path, alice, changed)
            verdict = made.verify(policy=policy)
            assert verdict.outcome is not Outcome.ACCEPTED, what
            if what != "an issuer of one's own":
                assert verdict.outcome is Outcome.REJECTED, what
            done += 1
        # The last change, swapped nonces, wrote into the folder.
        shutil.rmtree(made.path)
        shutil.copytree(pristine, made.path)


def test_weights_changed_and_signed_again(
    make_proof: Callable[..., Any], tmp_path: Path, alice: polo.Identity, rng: random.Random
) -> None:
    made = make_proof(tmp_path / "weights", epochs=4)
    manifest = made.manifest
    for file in manifest.files:
        if not file.path.startswith(("checkpoints", "openings", "layout")):
            continue
        original = (made.path / file.path).read_bytes()
        for _ in range(12):
            changed = put(made.path, manifest, file.path, flip(original, rng))
            sign_again(made.path, alice, changed)
            verdict = made.verify(policy=Policy("none"))
            assert verdict.outcome is Outcome.REJECTED, file.path
        (made.path / file.path).write_bytes(original)
    sign_again(made.path, alice, manifest)
    assert made.verify().outcome is Outcome.ACCEPTED


def test_a_false_claim_is_found(
    make_proof: Callable[..., Any], tmp_path: Path, alice: polo.Identity
) -> None:
    made = make_proof(tmp_path / "claims", epochs=3)
    shards = list(made.manifest.shards)
    shards[1] = replace(shards[1], metrics={"accuracy": 123_456})
    sign_again(made.path, alice, replace(made.manifest, shards=tuple(shards)))
    verdict = made.verify()
    assert verdict.outcome is Outcome.REJECTED
    failed = next(verdict.of(Status.FAILED))
    assert (failed.name, failed.shard) == ("claim", 2)


def test_every_field_of_the_manifest_is_bound(made: Any) -> None:
    """Changing any field without the key is noticed, whatever it is."""
    for field in dataclasses.fields(made.manifest):
        if field.name in ("signature",):
            continue
        value = made.manifest.to_json()
        value[field.name] = _other(value[field.name])
        try:
            changed = Manifest.from_json(value, "test").to_bytes()
        except polo.PoloError:
            continue
        (made.path / MANIFEST_FILE).write_bytes(changed)
        assert made.verify(policy=Policy("none")).outcome is Outcome.REJECTED, field.name


def _other(value: Any) -> Any:
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return value + 1
    if isinstance(value, list):
        return value[:-1]
    return "00" * 32
