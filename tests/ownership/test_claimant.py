"""Every way a proof can lie about its marks: refused, each with the place and the reason."""

import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import polo
from polo import ownership
from polo.errors import PoloError, SignatureError
from polo.ownership import Finding
from polo.ownership.claimant import Claimant
from polo.protocol import signing
from polo.protocol.layout import Layout, Tensor
from polo.protocol.records import Bundle, File, Manifest
from polo.storage.bundle import PUBLIC, whole, write_bundle
from polo.storage.folder import LAYOUT_FILE, MANIFEST_FILE, ProofFolder, nonce_path


@pytest.fixture
def copy(owner: Any, tmp_path: Path) -> Path:
    """The owner's proof, to do with as one likes."""
    path = tmp_path / "copy"
    shutil.copytree(owner.path, path)
    return path


@pytest.fixture
def model(owner: Any, kit: Any, tmp_path: Path) -> Path:
    path: Path = kit.save(owner.state, tmp_path / "model.safetensors")
    return path


@pytest.fixture
def judge(model: Path, issuer: polo.Identity) -> Callable[[Path], ownership.Claim]:
    """The claim of one proof on the owner's own model."""

    def run(proof: Path) -> ownership.Claim:
        result = ownership.identify(model, [proof], trust=issuer.public_key)
        claim: ownership.Claim = result.claims[0]
        return claim

    return run


def undecided(claim: ownership.Claim, words: str) -> None:
    assert claim.finding is Finding.UNDECIDED
    assert words in claim.problem, claim.problem
    assert claim.marks == ()


def relisted(manifest: Manifest, *files: File, without: tuple[str, ...] = ()) -> Manifest:
    kept = {file.path: file for file in manifest.files if file.path not in without}
    kept |= {file.path: file for file in files}
    return replace(manifest, files=tuple(kept[path] for path in sorted(kept)))


def test_the_honest_proof_is_read_whole(owner: Any, desk: Any, judge: Any) -> None:
    claimant = desk.claimant(owner.path)
    marks, absent = claimant.marks()
    assert [mark.shard for mark in marks] == list(range(1, 9))
    assert absent == []
    assert claimant.owner == owner.key.id
    assert claimant.issuer == "issuer"
    assert not claimant.live
    claim = judge(owner.path)
    assert claim.finding is Finding.CLAIM
    assert claim.owner == owner.key.id


def test_marks_are_those_that_training_pressed(owner: Any, desk: Any) -> None:
    from polo.ownership.reading import read_mark
    from polo.ownership.sources import CheckpointSource

    claimant = desk.claimant(owner.path)
    declared = {shard.shard: shard.matches for shard in claimant.manifest.shards}
    for number, checkpoint in claimant.checkpoints():
        if number:
            found = read_mark(claimant, claimant.mark(number), CheckpointSource(checkpoint))
            assert found.reading.matches == declared[number]


def test_an_unsigned_proof(copy: Path, judge: Any) -> None:
    manifest = ProofFolder(copy).manifest()
    (copy / MANIFEST_FILE).write_bytes(replace(manifest, signature=bytes(64)).to_bytes())
    undecided(judge(copy), "signature")


def test_a_proof_signed_by_somebody_else(copy: Path, judge: Any, kit: Any, desk: Any) -> None:
    kit.sign_again(copy, desk.person(), ProofFolder(copy).manifest())
    undecided(judge(copy), "signature")


def test_a_thief_cannot_put_its_name_on_the_chain(
    copy: Path, judge: Any, kit: Any, desk: Any
) -> None:
    thief = desk.person()
    manifest = ProofFolder(copy).manifest()
    stolen = replace(manifest.enrolment, identity=thief.public_key)
    kit.sign_again(copy, thief, replace(manifest, enrolment=stolen))
    undecided(judge(copy), "enrolment")


def test_an_issuer_whom_nobody_trusts(
    copy: Path, judge: Any, kit: Any, desk: Any, owner: Any
) -> None:
    """The thief signs its own enrolment: then it could choose nonces freely."""
    own = desk.person()
    manifest = ProofFolder(copy).manifest()
    enrolment = replace(manifest.enrolment, issuer=own.public_key)
    signed = signing.sign(enrolment, own)
    kit.sign_again(copy, owner.key, replace(manifest, enrolment=signed))
    claim = judge(copy)
    undecided(claim, "whom you do not trust")
    assert "--trust" in claim.advice


def test_terms_that_were_changed_after_the_issuer_signed(
    copy: Path, judge: Any, kit: Any, owner: Any
) -> None:
    manifest = ProofFolder(copy).manifest()
    scheme = replace(manifest.terms.scheme, bits=32)
    terms = replace(manifest.terms, scheme=scheme)
    enrolment = replace(manifest.enrolment, terms=terms)
    kit.sign_again(copy, owner.key, replace(manifest, enrolment=enrolment))
    claim = judge(copy)
    assert claim.finding is Finding.UNDECIDED
    assert claim.problem


def put_nonce(proof: Path, kit: Any, key: polo.Identity, shard: int, data: bytes) -> None:
    file = kit.put(proof, nonce_path(shard), data)
    kit.sign_again(proof, key, relisted(ProofFolder(proof).manifest(), file))


def test_a_nonce_of_another_shard(copy: Path, judge: Any, kit: Any, owner: Any) -> None:
    put_nonce(copy, kit, owner.key, 2, (copy / nonce_path(5)).read_bytes())
    undecided(judge(copy), "a nonce of shard 5")


def test_a_nonce_of_another_shard_with_its_number_changed(
    copy: Path, judge: Any, kit: Any, owner: Any
) -> None:
    nonce = replace(ProofFolder(copy).nonce(5), shard=2)
    put_nonce(copy, kit, owner.key, 2, nonce.to_bytes())
    undecided(judge(copy), nonce_path(2))


@pytest.mark.parametrize("part", ["nonce", "salt", "path"])
def test_a_nonce_that_the_issuer_never_drew(
    copy: Path, judge: Any, kit: Any, owner: Any, part: str
) -> None:
    nonce = ProofFolder(copy).nonce(4)
    changed = {
        "nonce": replace(nonce, nonce=bytes(32)),
        "salt": replace(nonce, salt=bytes(32)),
        "path": replace(nonce, path=(*nonce.path[:-1], bytes(32))),
    }
    put_nonce(copy, kit, owner.key, 4, changed[part].to_bytes())
    undecided(judge(copy), "not among those the issuer committed to")


@pytest.mark.parametrize("data", [b"", b"{}", b"\x00" * 100, b"[" * 10_000, b"x" * 20_000])
def test_a_nonce_file_that_is_none(
    copy: Path, judge: Any, kit: Any, owner: Any, data: bytes
) -> None:
    put_nonce(copy, kit, owner.key, 4, data)
    undecided(judge(copy), nonce_path(4))


def test_one_false_nonce_spoils_the_claim(copy: Path, judge: Any, kit: Any, owner: Any) -> None:
    """Leaving it out silently would let the claimant choose which marks are read."""
    nonce = replace(ProofFolder(copy).nonce(1), nonce=bytes(32))
    put_nonce(copy, kit, owner.key, 1, nonce.to_bytes())
    undecided(judge(copy), nonce_path(1))


@pytest.mark.parametrize("stand_in", ["link", "folder", "pipe"])
def test_a_nonce_that_is_no_plain_file(copy: Path, judge: Any, stand_in: str) -> None:
    path = copy / nonce_path(3)
    hidden = copy.parent / "hidden"
    path.rename(hidden)
    if stand_in == "link":
        path.symlink_to(hidden)
    elif stand_in == "folder":
        path.mkdir()
    else:
        os.mkfifo(path)
    assert judge(copy).finding is Finding.UNDECIDED


def test_nonces_that_are_not_here_are_named_and_paid_for(copy: Path, judge: Any) -> None:
    for shard in (2, 5, 6):
        (copy / nonce_path(shard)).unlink()
    claim = judge(copy)
    assert claim.finding is Finding.CLAIM
    assert claim.absent == (2, 5, 6)
    assert [mark.shard for mark in claim.marks] == [1, 3, 4, 7, 8]
    assert claim.tries.log2_selections == pytest.approx(1 + np.log2(8 * 56))


def test_nonces_that_are_here_and_not_listed_do_not_count(
    copy: Path, judge: Any, kit: Any, owner: Any
) -> None:
    manifest = relisted(ProofFolder(copy).manifest(), without=(nonce_path(3),))
    kit.sign_again(copy, owner.key, manifest)
    assert judge(copy).absent == (3,)


def test_without_any_nonce_nothing_can_be_said(copy: Path, judge: Any) -> None:
    for shard in range(1, 9):
        (copy / nonce_path(shard)).unlink()
    claim = judge(copy)
    undecided(claim, "no nonce is here")
    assert claim.absent == tuple(range(1, 9))
    assert claim.advice


@pytest.mark.parametrize("change", ["swap", "number", "previous", "start"])
def test_shards_out_of_order(copy: Path, judge: Any, kit: Any, owner: Any, change: str) -> None:
    """Roots in no order would give the claimant marks to choose from."""
    manifest = ProofFolder(copy).manifest()
    shards = list(manifest.shards)
    start = manifest.start
    if change == "swap":
        shards[2], shards[3] = shards[3], shards[2]
    elif change == "number":
        shards[2] = replace(shards[2], shard=9)
    elif change == "previous":
        shards[2] = replace(shards[2], previous=bytes(32))
    else:
        start = replace(start, root=bytes(32))
    kit.sign_again(copy, owner.key, replace(manifest, shards=tuple(shards), start=start))
    undecided(judge(copy), "shard")


def test_a_shard_that_appears_twice(copy: Path, judge: Any, kit: Any, owner: Any) -> None:
    manifest = ProofFolder(copy).manifest()
    shards = (*manifest.shards, manifest.shards[-1])
    kit.sign_again(copy, owner.key, replace(manifest, shards=shards))
    undecided(judge(copy), "shard 9")


def test_other_roots_give_other_marks(copy: Path, judge: Any, kit: Any, owner: Any) -> None:
    """A chain with another root is a chain; only its marks are not in the model."""
    manifest = ProofFolder(copy).manifest()
    root = bytes(range(32))
    shards = list(manifest.shards)
    shards[2] = replace(shards[2], root=root)
    shards[3] = replace(shards[3], previous=root)
    kit.sign_again(copy, owner.key, replace(manifest, shards=tuple(shards)))
    claim = judge(copy)
    assert claim.marks[3].reading.eta < 0.65
    assert min(mark.reading.eta for mark in claim.marks if mark.shard != 4) > 0.9


def test_a_layout_that_is_not_the_one_in_the_terms(
    copy: Path, judge: Any, kit: Any, owner: Any
) -> None:
    layout = ProofFolder(copy).layout()
    first, *rest = layout.tensors
    for other in (
        replace(layout, tensors=(replace(first, name="0.bios"), *rest)),
        Layout(layout.chunk, (Tensor("w", "F32", (512, 512)),), ()),
    ):
        file = kit.put(copy, LAYOUT_FILE, other.to_bytes())
        kit.sign_again(copy, owner.key, relisted(ProofFolder(copy).manifest(), file))
        undecided(judge(copy), "not the layout that the terms name")


def test_a_layout_that_nobody_signed(copy: Path, judge: Any, kit: Any, owner: Any) -> None:
    path = copy / LAYOUT_FILE
    data = path.read_bytes()
    path.write_bytes(data.replace(b"0.weight", b"0.waight"))
    undecided(judge(copy), LAYOUT_FILE)
    path.write_bytes(data)
    manifest = relisted(ProofFolder(copy).manifest(), without=(LAYOUT_FILE,))
    kit.sign_again(copy, owner.key, manifest)
    undecided(judge(copy), LAYOUT_FILE)


@pytest.mark.parametrize("data", [b"", b"{", b"null", b"\xff" * 50, b"[" * 100_000])
def test_a_manifest_that_is_none(copy: Path, judge: Any, data: bytes) -> None:
    (copy / MANIFEST_FILE).write_bytes(data)
    undecided(judge(copy), MANIFEST_FILE)


def test_no_proof_at_all(judge: Any, tmp_path: Path) -> None:
    undecided(judge(tmp_path / "nothing"), "there is no proof here")
    (tmp_path / "empty").mkdir()
    assert judge(tmp_path / "empty").finding is Finding.UNDECIDED
    (tmp_path / "file").write_bytes(b"hello")
    undecided(judge(tmp_path / "file"), "is no bundle")


def test_a_scheme_that_is_not_known(copy: Path, judge: Any, kit: Any, owner: Any, issuer: Any
) -> None:  # fmt: skip
    manifest = ProofFolder(copy).manifest()
    scheme = replace(manifest.terms.scheme, name="nobody")
    enrolment = replace(manifest.enrolment, terms=replace(manifest.terms, scheme=scheme))
    signed = signing.sign(enrolment, issuer)
    kit.sign_again(copy, owner.key, replace(manifest, enrolment=signed))
    undecided(judge(copy), "nobody")


def test_a_carrier_that_cannot_hold_a_mark(
    copy: Path, judge: Any, kit: Any, owner: Any, issuer: Any
) -> None:
    for carrier, words in ((("7.weight",), "blocks"), (("none",), "not in the layout")):
        manifest = ProofFolder(owner.path).manifest()
        enrolment = replace(manifest.enrolment, terms=replace(manifest.terms, carrier=carrier))
        signed = signing.sign(enrolment, issuer)
        kit.sign_again(copy, owner.key, replace(manifest, enrolment=signed))
        undecided(judge(copy), words)


# Bundles


def test_a_bundle_for_a_verifier_is_as_good_as_the_folder(
    owner: Any, judge: Any, tmp_path: Path
) -> None:
    folder = ProofFolder(owner.path)
    write_bundle(folder, tmp_path / "whole.polo", whole(folder.manifest()))
    claim, direct = judge(tmp_path / "whole.polo"), judge(owner.path)
    assert claim.finding is Finding.CLAIM
    assert (claim.log2_p, claim.marks) == (direct.log2_p, direct.marks)


def test_a_disclosure_of_two_marks_makes_a_claim_of_two_marks(
    owner: Any, judge: Any, tmp_path: Path
) -> None:
    write_bundle(ProofFolder(owner.path), tmp_path / "two.polo", Bundle("buyer", (3, 8)))
    claim = judge(tmp_path / "two.polo")
    assert claim.finding is Finding.CLAIM
    assert [mark.shard for mark in claim.marks] == [3, 8]
    assert claim.absent == (1, 2, 4, 5, 6, 7)
    assert claim.log2_p > judge(owner.path).log2_p


def test_a_public_bundle_decides_nothing(owner: Any, judge: Any, tmp_path: Path) -> None:
    write_bundle(ProofFolder(owner.path), tmp_path / "public.polo", PUBLIC)
    claim = judge(tmp_path / "public.polo")
    undecided(claim, "no nonce is here")
    assert "bundle" in claim.advice
    assert claim.owner == owner.key.id


def test_a_broken_bundle(owner: Any, judge: Any, tmp_path: Path) -> None:
    folder = ProofFolder(owner.path)
    write_bundle(folder, tmp_path / "whole.polo", whole(folder.manifest()))
    data = (tmp_path / "whole.polo").read_bytes()
    for at, broken in enumerate((data[:5000], data[:-600], data + b"x" * 512, data[:600])):
        path = tmp_path / f"broken{at}.polo"
        path.write_bytes(broken)
        assert judge(path).finding is Finding.UNDECIDED


# The claimant itself


def test_a_mark_that_is_out_of_range_is_refused(owner: Any, desk: Any) -> None:
    claimant = desk.claimant(owner.path)
    for shard in (0, 9, -1, 10_001):
        with pytest.raises(PoloError):
            claimant.mark(shard)


def test_an_untrusted_issuer_is_refused(owner: Any) -> None:
    with pytest.raises(SignatureError, match="whom you do not trust"):
        Claimant(owner.path, {})


def test_a_bought_proof_is_a_claimant_of_its_own(
    make_proof: Callable[..., Any], buy: Callable[..., Any], alice: Any, bob: Any, desk: Any,
    tmp_path: Path,
) -> None:  # fmt: skip
    """The buyer's chain starts where the seller's ended; both have their marks in the model."""
    sold = make_proof(tmp_path / "sold", epochs=3)
    bought = buy(tmp_path / "bought", bob, seller=sold.path, seller_key=alice)
    claimant = desk.claimant(bought.path)
    assert claimant.owner == bob.id
    assert len(claimant.marks()[0]) == claimant.shards
