"""Whatever is done to a transfer or to the proofs of earlier owners, nobody accepts it.

The dishonest one here is carol, the last owner: she holds her own key, changes what she likes and
signs again. Where she needs a seller's help, the seller helps.
"""

import os
import random
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import polo
from polo.protocol import signing, transfer
from polo.protocol.records import Bundle, Manifest, StartTerms, Transfer
from polo.storage.folder import ProofFolder
from polo.verifier import Outcome, Policy, Status

UNTESTED = Policy("none")
MUTATIONS = 120
OTHER = bytes(range(32))


@pytest.fixture(scope="module")
def once() -> dict[str, Any]:
    """Holds the proofs that all tests begin with a copy of."""
    return {}


@pytest.fixture
def owned(
    once: dict[str, Any],
    make_proof: Callable[..., Any],
    buy: Callable[..., Any],
    alice: polo.Identity,
    bob: polo.Identity,
    carol: polo.Identity,
    tmp_path_factory: pytest.TempPathFactory,
    tmp_path: Path,
) -> Any:
    """Carol's proof: alice trained, bob bought, carol bought from bob. A copy."""
    if not once:
        base = tmp_path_factory.mktemp("owners")
        first = make_proof(base / "alice", epochs=2)
        second = buy(base / "bob", bob, seller=first.path, seller_key=alice, epochs=2)
        once["carol"] = buy(base / "carol", carol, seller=second.path, seller_key=bob, epochs=2)
        once["other"] = buy(base / "other", carol, seller=first.path, seller_key=None)
    original = once["carol"]
    shutil.copytree(original.path, tmp_path / "carol")
    return replace(original, made=replace(original.made, path=tmp_path / "carol"))


def verdict_of(owned: Any, **options: Any) -> polo.Verdict:
    return owned.made.verify(policy=UNTESTED, **options)


def refused(owned: Any, *, place: str = "", name: str = "transfer") -> polo.Verdict:
    """The verdict, which rejects, and names the check and the place."""
    verdict = verdict_of(owned)
    assert verdict.outcome is Outcome.REJECTED, verdict.headline()
    found = [check for check in verdict.of(Status.FAILED) if check.name == name]
    assert any(check.place.startswith(place) for check in found), verdict.headline()
    return verdict


def undecided(owned: Any) -> polo.Verdict:
    verdict = verdict_of(owned)
    assert verdict.outcome is Outcome.UNDECIDED, verdict.headline()
    return verdict


def manifest_of(folder: Path) -> Manifest:
    return ProofFolder(folder).manifest()


def sign_again(folder: Path, manifest: Manifest, key: polo.Identity) -> None:
    (folder / "manifest.json").write_bytes(signing.sign(manifest, key).to_bytes())


def put(owned: Any, given: Transfer) -> None:
    """What carol can always do: exchange the transfer, and bind the new one."""
    (owned.path / "transfer.json").write_bytes(given.to_bytes())
    sign_again(owned.path, replace(manifest_of(owned.path), transfer=given.digest), owned.key)


def test_the_honest_one_is_accepted(owned: Any) -> None:
    verdict = verdict_of(owned)
    assert verdict.outcome is Outcome.ACCEPTED, verdict.headline()
    put(owned, owned.transfer)
    assert verdict_of(owned).outcome is Outcome.ACCEPTED


FIELDS = ("proof", "root", "first", "enrolment", "seller", "buyer", "made", "index")


def altered(given: Transfer, field: str) -> Transfer:
    return replace(given, **{field: 7 if field in ("made", "index") else OTHER})


@pytest.mark.parametrize("field", FIELDS)
def test_an_altered_field(owned: Any, field: str) -> None:
    put(owned, altered(owned.transfer, field))
    refused(owned, place="transfer.json")


@pytest.mark.parametrize("field", [field for field in FIELDS if field != "made"])
def test_an_altered_field_that_both_sign(owned: Any, field: str, bob: polo.Identity) -> None:
    wrong = altered(owned.transfer, field)
    for key in (bob, owned.key):
        if key.public_key in (wrong.seller, wrong.buyer):
            wrong = transfer.signed(wrong, key)
    put(owned, wrong)
    refused(owned, place="transfer.json")


def test_the_day_of_a_transfer_shows_nothing(owned: Any, bob: polo.Identity) -> None:
    given = transfer.signed(altered(owned.transfer, "made"), bob)
    put(owned, transfer.signed(given, owned.key))
    assert verdict_of(owned).outcome is Outcome.ACCEPTED


def test_signatures_missing_swapped_or_by_others(owned: Any, alice: polo.Identity) -> None:
    given = owned.transfer
    strange = alice.sign(given.message())
    for wrong in (
        replace(given, seller_signature=bytes(64)),
        replace(given, buyer_signature=bytes(64)),
        replace(
            given, buyer_signature=given.seller_signature, seller_signature=given.buyer_signature
        ),
        replace(given, seller_signature=strange),
        replace(given, buyer_signature=strange),
    ):
        put(owned, wrong)
        refused(owned, place="transfer.json")


def test_a_transfer_that_the_manifest_does_not_bind(owned: Any, bob: polo.Identity) -> None:
    later = transfer.signed(replace(owned.transfer, made=9), bob)
    later = transfer.signed(later, owned.key)
    (owned.path / "transfer.json").write_bytes(later.to_bytes())
    refused(owned, place="transfer.json")


def test_a_transfer_of_another_link(owned: Any) -> None:
    put(owned, ProofFolder(owned.path / "ancestors/000002").transfer())
    refused(owned, place="transfer.json")


def test_a_transfer_to_oneself(owned: Any) -> None:
    wrong = replace(owned.transfer, seller=owned.key.public_key)
    signature = owned.key.sign(wrong.message())
    put(owned, replace(wrong, seller_signature=signature, buyer_signature=signature))
    refused(owned, place="transfer.json")


def test_a_stale_transfer_for_another_chain(owned: Any, once: dict[str, Any]) -> None:
    """Carol fine-tunes something else, and shows the transfer and the ancestors of this model."""
    fresh = owned.path.with_name("fresh")
    shutil.copytree(once["other"].path, fresh)
    shutil.copytree(owned.path / "ancestors", fresh / "ancestors")
    other = replace(owned, made=replace(owned.made, path=fresh))
    put(other, owned.transfer)
    refused(other, place="transfer.json")


def test_a_chain_that_started_elsewhere(owned: Any, issuer: polo.Identity) -> None:
    """Terms with a free start, by an issuer who is not careful."""
    manifest = manifest_of(owned.path)
    for start in (StartTerms("free", None), StartTerms("parent", OTHER)):
        terms = replace(manifest.terms, start=start)
        enrolment = signing.sign(replace(manifest.enrolment, terms=terms), issuer)
        sign_again(owned.path, replace(manifest, enrolment=enrolment), owned.key)
        refused(owned, place="transfer.json")


def test_a_start_that_is_not_the_parent(owned: Any) -> None:
    manifest = manifest_of(owned.path)
    moved = replace(manifest, start=replace(manifest.start, root=OTHER), transfer=None)
    shutil.rmtree(owned.path / "ancestors")
    (owned.path / "transfer.json").unlink()
    sign_again(owned.path, moved, owned.key)
    refused(owned, name="start")


# The manifest and the folder must agree


def test_ancestors_without_a_bound_transfer(owned: Any) -> None:
    sign_again(owned.path, replace(manifest_of(owned.path), transfer=None), owned.key)
    places = {check.place for check in refused(owned, name="files").of(Status.FAILED)}
    assert places == {"ancestors", "transfer.json"}


def test_a_bound_transfer_without_its_files(owned: Any) -> None:
    hidden = owned.path.with_name("hidden")
    for name in ("ancestors", "transfer.json"):
        (owned.path / name).rename(hidden)
        assert any(c.name == "transfer" for c in undecided(owned).of(Status.UNDECIDED))
        hidden.rename(owned.path / name)
    assert verdict_of(owned).outcome is Outcome.ACCEPTED


def test_without_transfer_and_ancestors_it_is_a_chain_of_carol_s_alone(owned: Any) -> None:
    """She may hide whom she has it from; the verdict then says that it was somebody's before."""
    sign_again(owned.path, replace(manifest_of(owned.path), transfer=None), owned.key)
    shutil.rmtree(owned.path / "ancestors")
    (owned.path / "transfer.json").unlink()
    verdict = verdict_of(owned)
    assert verdict.outcome is Outcome.ACCEPTED
    assert len(verdict.owners) == 1
    assert any("somebody's before" in check.detail for check in verdict.of(Status.NOTE))


# Ancestors


def test_the_first_owner_is_left_out(owned: Any) -> None:
    shutil.rmtree(owned.path / "ancestors/000001")
    assert verdict_of(owned).outcome is not Outcome.ACCEPTED
    (owned.path / "ancestors/000002").rename(owned.path / "ancestors/000001")
    undecided(owned)


def test_the_last_seller_is_left_out(owned: Any) -> None:
    shutil.rmtree(owned.path / "ancestors/000002")
    refused(owned, place="transfer.json")


def test_owners_in_another_order(owned: Any) -> None:
    one, two, aside = (owned.path / f"ancestors/{n}" for n in ("000001", "000002", "aside"))
    one.rename(aside)
    two.rename(one)
    aside.rename(two)
    refused(owned, place="transfer.json")


def test_an_owner_twice(owned: Any) -> None:
    """A circle: the first owner stands before herself."""
    within = owned.path / "ancestors"
    (within / "000002").rename(within / "000003")
    shutil.copytree(within / "000001", within / "000002")
    refused(owned, place="ancestors/000002")


def test_an_ancestor_that_is_another_proof(
    owned: Any, make_proof: Callable[..., Any], tmp_path: Path
) -> None:
    other = make_proof(tmp_path / "stranger", epochs=2, seed=9)
    inside = owned.path / "ancestors/000001"
    for name in ("manifest.json", "layout.json", "nonces", "openings"):
        target = inside / name
        shutil.rmtree(target) if target.is_dir() else target.unlink()
        source = other.path / name
        (shutil.copytree if source.is_dir() else shutil.copy)(source, target)
    refused(owned, place="ancestors/000002/transfer.json")


def test_an_ancestor_s_proof_signed_anew(owned: Any, bob: polo.Identity) -> None:
    """Bob closes his proof with another remark: not the proof that he handed on any more."""
    inside = owned.path / "ancestors/000002"
    sign_again(inside, replace(manifest_of(inside), outside=5), bob)
    refused(owned, place="transfer.json")


@pytest.mark.parametrize("stray", ["note.txt", "nonces/000009.json", "ancestors/000001/x"])
def test_extra_files_in_an_ancestor(owned: Any, stray: str) -> None:
    path = owned.path / "ancestors/000001" / stray
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("{}")
    refused(owned, place="ancestors/000001/", name="files")


@pytest.mark.parametrize("stray", ["000000", "000004", "1", "note.txt", "0000001"])
def test_something_else_among_the_ancestors(owned: Any, stray: str) -> None:
    (owned.path / "ancestors" / stray).mkdir()
    refused(owned, place="ancestors/")
    (owned.path / "ancestors" / stray).rmdir()
    (owned.path / "ancestors" / stray).write_text("")
    refused(owned, place="ancestors/")


def test_too_many_ancestors(owned: Any) -> None:
    for number in range(3, transfer.MAX_ANCESTORS + 2):
        (owned.path / f"ancestors/{number:06d}").mkdir()
    refused(owned, place="ancestors")


def test_links_in_place_of_folders_and_files(owned: Any, tmp_path: Path) -> None:
    for name in (
        "ancestors",
        "ancestors/000001",
        "ancestors/000001/nonces",
        "ancestors/000001/openings/000001.safetensors",
        "ancestors/000001/manifest.json",
        "ancestors/000001/bundle.json",
        "transfer.json",
    ):
        path, hidden = owned.path / name, tmp_path / "hidden"
        path.rename(hidden)
        path.symlink_to(hidden)
        assert verdict_of(owned).outcome is not Outcome.ACCEPTED, name
        path.unlink()
        if not hidden.is_dir():
            os.mkfifo(path)
            assert verdict_of(owned).outcome is not Outcome.ACCEPTED, name
            path.unlink()
        hidden.rename(path)
    assert verdict_of(owned).outcome is Outcome.ACCEPTED


def test_an_ancestor_that_shows_nothing(owned: Any) -> None:
    """Nobody signs bundle.json, so carol can leave out all that would not hold."""
    inside = owned.path / "ancestors/000001"
    for name in ("nonces", "openings"):
        shutil.rmtree(inside / name)
    (inside / "bundle.json").write_bytes(Bundle("public", ()).to_bytes())
    undecided(owned)
    (inside / "bundle.json").write_bytes(Bundle("verifier", (1, 2)).to_bytes())
    assert verdict_of(owned).outcome is Outcome.REJECTED
    (inside / "bundle.json").unlink()
    assert verdict_of(owned).outcome is Outcome.REJECTED


def test_an_ancestor_that_shows_one_mark_is_read_as_far_as_it_goes(owned: Any) -> None:
    inside = owned.path / "ancestors/000001"
    (inside / "nonces/000001.json").unlink()
    (inside / "openings/000001.safetensors").unlink()
    undecided(owned)
    (inside / "bundle.json").write_bytes(Bundle("buyer", (2,)).to_bytes())
    verdict = verdict_of(owned)
    assert verdict.outcome is Outcome.ACCEPTED
    marks = [c for c in verdict.checks if c.name == "mark" and c.ancestor == 1]
    assert [c.shard for c in marks] == [2]


def test_an_issuer_of_an_earlier_owner_whom_nobody_trusts(
    owned: Any, alice: polo.Identity, bob: polo.Identity
) -> None:
    """Alice enrolled herself; all the others go along with it."""
    shady = polo.Identity.generate()
    first, second = owned.path / "ancestors/000001", owned.path / "ancestors/000002"
    manifest = manifest_of(first)
    enrolment = signing.sign(replace(manifest.enrolment, issuer=shady.public_key), shady)
    sign_again(first, replace(manifest, enrolment=enrolment), alice)
    given = replace(ProofFolder(second).transfer(), proof=manifest_of(first).digest)
    given = transfer.signed(transfer.signed(given, alice), bob)
    (second / "transfer.json").write_bytes(given.to_bytes())
    sign_again(second, replace(manifest_of(second), transfer=given.digest), bob)
    last = replace(owned.transfer, proof=manifest_of(second).digest)
    put(owned, transfer.signed(transfer.signed(last, bob), owned.key))
    verdict = undecided(owned)
    problem = next(verdict.of(Status.UNDECIDED))
    assert (problem.name, problem.place) == ("issuer", "ancestors/000001")
    both = [owned.made.issuer.public_key, shady.public_key]
    verdict = polo.verify(owned.path, trust=both, policy=UNTESTED)
    # Her terms changed by the new issuer's key alone, so her marks still stand where they stood.
    assert verdict.outcome is Outcome.ACCEPTED, verdict.headline()


def test_a_mark_of_an_earlier_owner_that_does_not_hold(
    owned: Any, alice: polo.Identity, bob: polo.Identity
) -> None:
    """All three re-sign a chain in which alice's shards have changed places."""
    first, second = owned.path / "ancestors/000001", owned.path / "ancestors/000002"
    manifest = manifest_of(first)
    one, two = manifest.shards
    swapped = (
        replace(two, shard=1, previous=one.previous),
        replace(one, shard=2, previous=two.root),
    )
    sign_again(first, replace(manifest, shards=swapped), alice)
    given = replace(ProofFolder(second).transfer(), proof=manifest_of(first).digest)
    given = transfer.signed(transfer.signed(given, alice), bob)
    (second / "transfer.json").write_bytes(given.to_bytes())
    sign_again(second, replace(manifest_of(second), transfer=given.digest), bob)
    last = replace(owned.transfer, proof=manifest_of(second).digest)
    put(owned, transfer.signed(transfer.signed(last, bob), owned.key))
    verdict = refused(owned, place="ancestors/000001", name="mark")
    assert any(c.place == "ancestors/000002/transfer.json" for c in verdict.of(Status.FAILED))


@pytest.mark.slow
def test_blind_mutations_of_what_a_transfer_brings(owned: Any) -> None:
    seed = int(os.environ.get("POLO_TEST_SEED", "7"))
    print(f"seed {seed}")
    rng = random.Random(seed)
    paths = [path for path in (owned.path / "ancestors").rglob("*") if path.is_file()]
    paths.append(owned.path / "transfer.json")
    for number in range(MUTATIONS):
        path = rng.choice(paths)
        original = path.read_bytes()
        at = rng.randrange(len(original))
        changed = bytearray(original)
        kind = rng.choice(("flip", "cut", "grow", "drop"))
        if kind == "flip":
            changed[at] ^= 1 << rng.randrange(8)
        elif kind == "drop":
            del changed[at]
        elif kind == "cut":
            del changed[at:]
        else:
            changed += rng.randbytes(9)
        path.write_bytes(changed)
        verdict = verdict_of(owned)
        what = f"mutation {number}: {kind} of {path.relative_to(owned.path)} at {at}"
        assert verdict.outcome is not Outcome.ACCEPTED, what
        path.write_bytes(original)
    assert verdict_of(owned).outcome is Outcome.ACCEPTED


def test_a_hostile_transfer_document_never_raises(owned: Any) -> None:
    for data in (
        b"",
        b"{}",
        b"[" * 2000,
        b"\xff" * 100,
        b'{"format":"polo/transfer/1"}',
        b"0" * 40000,
    ):
        (owned.path / "transfer.json").write_bytes(data)
        assert verdict_of(owned).outcome is Outcome.REJECTED
