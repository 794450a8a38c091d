"""The walk keeps to its order, and faults of a manifest are found and placed."""

import json
from dataclasses import replace

import pytest

from polo.errors import ChainError, FormatError, SignatureError
from polo.keys import Ed25519Verifier, Identity
from polo.protocol import chain, derivation, nonces, signing
from polo.protocol.records import File, Manifest, Nonce, NonceTerms, Receipt, identity_of


@pytest.fixture(scope="module")
def case(vector):
    return vector("chain")


@pytest.fixture(scope="module")
def manifest(case):
    return Manifest.from_bytes(case["manifest"].encode(), "manifest.json")


@pytest.fixture(scope="module")
def opened(case):
    found = (Nonce.from_bytes(text.encode(), "nonce") for text in case["nonces"])
    return {nonce.shard: nonce for nonce in found}


@pytest.fixture
def walk(manifest):
    return chain.ChainWalk(manifest, Ed25519Verifier())


def faults(manifest):
    return [(fault.check, fault.shard) for fault in chain.faults(manifest)]


def with_shard(manifest, number, **changes):
    shards = list(manifest.shards)
    shards[number - 1] = replace(shards[number - 1], **changes)
    return replace(manifest, shards=tuple(shards))


def test_the_walk_goes_from_the_newest_to_the_oldest(walk, manifest, opened):
    seen = []
    while walk.shard is not None:
        number = walk.shard
        query = walk.open(opened[number], place="nonce")
        assert (query.shard, query.root) == (number, manifest.shards[number - 1].root)
        result = walk.read(64)
        assert (result.shard, result.passed) == (number, True)
        seen.append(number)
    assert seen == [3, 2, 1]


def test_a_seed_comes_from_the_root_before(walk, manifest, opened):
    query = walk.open(opened[3], place="nonce")
    expected = derivation.seed(
        root=manifest.shards[1].root,
        shard=3,
        nonce=opened[3].nonce,
        identity=identity_of(manifest.enrolment.identity),
        terms=manifest.terms.digest,
    )
    assert query.seed == expected
    walk.skip()
    walk.skip()
    first = walk.open(opened[1], place="nonce")
    assert first.seed != derivation.seed(
        root=manifest.shards[0].root,
        shard=1,
        nonce=opened[1].nonce,
        identity=identity_of(manifest.enrolment.identity),
        terms=manifest.terms.digest,
    )


def test_steps_out_of_order_raise(walk, opened):
    with pytest.raises(ChainError):
        walk.read(64)
    walk.open(opened[3], place="nonce")
    with pytest.raises(ChainError):
        walk.open(opened[3], place="nonce")
    walk.read(64)
    with pytest.raises(ChainError):
        walk.read(64)
    walk.skip()
    walk.skip()
    assert walk.shard is None
    for step in (walk.skip, lambda: walk.read(64), lambda: walk.open(opened[1], place="nonce")):
        with pytest.raises(ChainError):
            step()


def test_a_shard_can_be_skipped_before_and_after_its_nonce(walk, opened):
    walk.skip()
    walk.open(opened[2], place="nonce")
    walk.skip()
    assert walk.shard == 1
    with pytest.raises(ChainError):
        walk.read(64)


def test_the_nonce_of_another_shard_is_refused_and_the_walk_stays(walk, opened):
    with pytest.raises(SignatureError, match="shard 2") as error:
        walk.open(opened[2], place="nonces/000003.json")
    assert error.value.place == "nonces/000003.json"
    assert walk.shard == 3
    assert walk.open(opened[3], place="nonce").shard == 3


@pytest.mark.parametrize("field", ["nonce", "salt"])
def test_a_made_up_nonce_is_refused(walk, opened, field):
    with pytest.raises(SignatureError, match="not among"):
        walk.open(replace(opened[3], **{field: bytes(32)}), place="nonce")


def test_a_nonce_beyond_the_list_is_refused(manifest, opened):
    short = replace(manifest.enrolment.nonces, count=2)
    shortened = replace(manifest, enrolment=replace(manifest.enrolment, nonces=short))
    with pytest.raises(FormatError):
        chain.ChainWalk(shortened, Ed25519Verifier()).open(opened[3], place="nonce")


def test_marks_pass_by_both_thresholds(walk, opened, manifest):
    assert manifest.terms.thresholds.log2_p == -40
    results = []
    for matches in (58, 63, 64):
        walk.open(opened[walk.shard], place="nonce")
        results.append(walk.read(matches).passed)
    # 58 of 64 are a rate of 0.9 and a chance of only 2^-37.
    assert results == [False, True, True]


def test_a_reading_beyond_the_mark_is_no_reading(walk, opened):
    walk.open(opened[3], place="nonce")
    with pytest.raises(ValueError, match="65 matches of 64"):
        walk.read(65)


def live(manifest, issuer, nonce, **changes):
    """The manifest under live nonces, and a receipt of shard 2 that carries the nonce of 3."""
    enrolment = replace(
        manifest.enrolment, nonces=NonceTerms("live", bytes(32), 0), issuer=issuer.public_key
    )
    enrolment = signing.sign(enrolment, issuer)
    fields = {
        "enrolment": enrolment.digest,
        "shard": 2,
        "root": manifest.shards[1].root,
        "time": 0,
        "origin": "log",
        "index": 0,
        "next_nonce": nonces.leaf(nonce),
    }
    receipt = signing.sign(Receipt(**(fields | changes)), issuer)
    return with_shard(replace(manifest, enrolment=enrolment), 2, receipt=receipt)


def test_a_live_nonce_comes_in_the_receipt_before(manifest, opened):
    issuer = Identity.generate()
    nonce = replace(opened[3], path=())
    walk = chain.ChainWalk(live(manifest, issuer, nonce), Ed25519Verifier())
    assert walk.open(nonce, place="nonce").shard == 3
    walk.skip()
    with pytest.raises(SignatureError, match="no receipt for shard 1"):
        walk.open(replace(opened[2], path=()), place="nonce")


@pytest.mark.parametrize(
    "changes",
    [{"shard": 1}, {"enrolment": bytes(32)}, {"root": bytes(32)}, {"next_nonce": bytes(32)}],
)
def test_a_receipt_of_something_else_is_refused(manifest, opened, changes):
    nonce = replace(opened[3], path=())
    other = live(manifest, Identity.generate(), nonce, **changes)
    with pytest.raises(SignatureError):
        chain.ChainWalk(other, Ed25519Verifier()).open(nonce, place="nonce")


def test_a_live_nonce_needs_the_issuers_signature_and_no_path(manifest, opened):
    nonce = replace(opened[3], path=())
    proof = live(manifest, Identity.generate(), nonce)
    with pytest.raises(SignatureError, match="not the one in the receipt"):
        chain.ChainWalk(proof, Ed25519Verifier()).open(opened[3], place="nonce")
    stranger = signing.sign(proof.shards[1].receipt, Identity.generate())
    forged = with_shard(proof, 2, receipt=stranger)
    with pytest.raises(SignatureError, match="signature"):
        chain.ChainWalk(forged, Ed25519Verifier()).open(nonce, place="nonce")


def test_an_honest_manifest_has_no_fault(manifest):
    assert faults(manifest) == []


def test_faults_name_rule_and_shard(manifest):
    assert faults(with_shard(manifest, 2, shard=1)) == [("order", 2)]
    assert faults(with_shard(manifest, 1, previous=bytes(32))) == [("links", 1)]
    assert faults(with_shard(manifest, 3, root=manifest.start.root)) == [("duplicates", 3)]
    assert faults(with_shard(manifest, 2, steps=1)) == [("limits", 2)]
    loud = replace(manifest.shards[1].noise, sigma=20_001)
    assert faults(with_shard(manifest, 2, noise=loud)) == [("noise", 2)]
    assert faults(with_shard(manifest, 2, matches=63)) == [("limits", 2)]
    assert faults(with_shard(manifest, 2, matches=65)) == [("limits", 2)]
    receipt = Receipt(bytes(32), 2, bytes(32), 0, "log", 0, bytes(32))
    assert faults(with_shard(manifest, 2, receipt=receipt)) == [("receipts", 2)]
    assert faults(replace(manifest, shards=())) == [("limits", 0)]


def test_receipts_are_no_fault_where_nonces_are_live(manifest, opened):
    nonce = replace(opened[3], path=())
    assert faults(live(manifest, Identity.generate(), nonce)) == []


@pytest.mark.parametrize(
    ("path", "why"),
    [
        ("checkpoints/000004.safetensors", "no shard"),
        ("checkpoints/009999.delta.safetensors", "no shard"),
        ("openings/000000.safetensors", "no shard"),
        ("nonces/000004.json", "no shard"),
        ("evidence/replay/000001.json", "no level"),
    ],
)
def test_a_listed_file_without_a_meaning_is_named(manifest, path, why):
    assert list(chain.misplaced(manifest)) == []
    files = sorted((*manifest.files, File(path, 0, bytes(32))), key=lambda file: file.path)
    (fault,) = chain.misplaced(replace(manifest, files=tuple(files)))
    assert (fault.check, fault.shard) == ("files", 0)
    assert path in fault.detail
    assert why in fault.detail


@pytest.mark.parametrize("order", [(0, 2, 1), (1, 0, 2), (2, 1, 0)])
def test_shards_in_another_order(manifest, order):
    shuffled = replace(manifest, shards=tuple(manifest.shards[at] for at in order))
    found = {check for check, _ in faults(shuffled)}
    assert found == {"order", "links"}


def test_a_shard_left_out_or_repeated(manifest):
    first, second, third = manifest.shards
    assert ("order", 2) in faults(replace(manifest, shards=(first, third)))
    assert ("links", 2) in faults(replace(manifest, shards=(first, third)))
    repeated = faults(replace(manifest, shards=(first, second, second, third)))
    assert {check for check, _ in repeated} == {"order", "links", "duplicates"}


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('"steps":20', '"steps":21'),
        ('"finished":true', '"finished":false'),
        ('"path":"layout.json"', '"path":"openings/000001.safetensors"'),
        ('"issued":1700000000', '"issued":1700000001'),
    ],
)
def test_changed_bytes_do_not_keep_the_signature(case, manifest, old, new):
    key = manifest.enrolment.identity
    signing.check(manifest, key, Ed25519Verifier(), place="manifest.json")
    text = case["manifest"].replace(old, new, 1)
    assert text != case["manifest"]
    changed = Manifest.from_json(json.loads(text), "manifest.json")
    with pytest.raises(SignatureError):
        signing.check(changed, key, Ed25519Verifier(), place="manifest.json")
