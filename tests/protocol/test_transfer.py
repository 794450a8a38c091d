"""The rules of a transfer, on manifests alone."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

import polo
from polo.errors import FormatError, SignatureError
from polo.keys import Ed25519Verifier
from polo.protocol import signing, transfer
from polo.protocol.records import Manifest, StartTerms, Transfer

VERIFIER = Ed25519Verifier()
OTHER = bytes(range(32))


@pytest.fixture
def manifests(
    make_proof: Callable[..., Any],
    buy: Callable[..., Any],
    bob: polo.Identity,
    tmp_path: Any,
) -> tuple[Manifest, Manifest]:
    seller = make_proof(tmp_path / "a", epochs=2)
    buyer = buy(tmp_path / "b", bob, seller=seller.path, seller_key=None, epochs=2)
    return seller.manifest, buyer.made.manifest


@pytest.fixture
def bare(manifests: tuple[Manifest, Manifest]) -> Transfer:
    seller, buyer = manifests
    return Transfer(
        proof=seller.digest,
        root=seller.last_root,
        first=buyer.shards[0].root,
        enrolment=buyer.enrolment.digest,
        seller=seller.enrolment.identity,
        buyer=buyer.enrolment.identity,
        made=1_700_000_000,
        index=None,
    )


def signed(bare: Transfer, *keys: polo.Identity) -> Transfer:
    for key in keys:
        bare = transfer.signed(bare, key)
    return bare


def test_an_honest_transfer_has_no_fault(
    bare: Transfer, manifests: Any, alice: polo.Identity, bob: polo.Identity
) -> None:
    assert list(transfer.faults(bare, *manifests)) == []
    assert list(transfer.repeated(manifests)) == []
    given = signed(bare, bob, alice)
    transfer.check(given, VERIFIER, place="t")
    assert signed(bare, alice, bob) == given, "the order of signing does not matter"
    assert Transfer.from_bytes(given.to_bytes(), "t") == given


FIELDS = {
    "proof": "another state of it",
    "root": "not the end of the chain before",
    "first": "another first shard",
    "enrolment": "another enrolment",
    "seller": "did not own the proof before",
    "buyer": "does not own this proof",
}


@pytest.mark.parametrize("field", FIELDS)
def test_every_field_is_bound(field: str, bare: Transfer, manifests: Any) -> None:
    found = [f.detail for f in transfer.faults(replace(bare, **{field: OTHER}), *manifests)]
    assert any(FIELDS[field] in detail for detail in found)


def test_a_place_in_a_log_has_no_meaning_offline(bare: Transfer, manifests: Any) -> None:
    (fault,) = transfer.faults(replace(bare, index=7), *manifests)
    assert "log" in fault.detail


@pytest.mark.parametrize("field", [*FIELDS, "made", "index"])
def test_both_sign_over_every_field(
    field: str, bare: Transfer, alice: polo.Identity, bob: polo.Identity
) -> None:
    given = signed(bare, alice, bob)
    value: Any = 5 if field in ("made", "index") else OTHER
    with pytest.raises(SignatureError):
        transfer.check(replace(given, **{field: value}), VERIFIER, place="t")


def test_both_signatures_are_needed_and_each_in_its_place(
    bare: Transfer, alice: polo.Identity, bob: polo.Identity, carol: polo.Identity
) -> None:
    whole = signed(bare, alice, bob)
    for who, part in (("buyer", signed(bare, alice)), ("seller", signed(bare, bob))):
        with pytest.raises(SignatureError, match=f"the {who} has not signed"):
            transfer.check(part, VERIFIER, place="t")
    swapped = replace(
        whole, buyer_signature=whole.seller_signature, seller_signature=whole.buyer_signature
    )
    stranger = carol.sign(bare.message())
    for wrong in (
        swapped,
        replace(whole, buyer_signature=stranger),
        replace(whole, seller_signature=stranger),
    ):
        with pytest.raises(SignatureError, match="did not sign these bytes"):
            transfer.check(wrong, VERIFIER, place="t")


def test_strangers_and_selves_do_not_sign(
    bare: Transfer, alice: polo.Identity, carol: polo.Identity
) -> None:
    with pytest.raises(SignatureError, match="neither to the seller nor to the buyer"):
        transfer.signed(bare, carol)
    with pytest.raises(SignatureError, match="one key"):
        transfer.signed(replace(bare, buyer=bare.seller), alice)


def test_a_transfer_to_oneself_is_a_fault(bare: Transfer, manifests: Any) -> None:
    found = transfer.faults(replace(bare, buyer=bare.seller), *manifests)
    assert any("one key" in fault.detail for fault in found)


def test_what_the_manifests_must_say(bare: Transfer, manifests: Any) -> None:
    seller, buyer = manifests

    def details(seller: Manifest, buyer: Manifest) -> str:
        again = replace(bare, proof=seller.digest, enrolment=buyer.enrolment.digest)
        return "; ".join(fault.detail for fault in transfer.faults(again, seller, buyer))

    assert "has no shard" in details(replace(seller, shards=()), buyer)
    assert "end of the chain" in details(replace(seller, shards=seller.shards[:1]), buyer)
    assert "first shard" in details(seller, replace(buyer, shards=()))
    elsewhere = replace(buyer, start=replace(buyer.start, root=OTHER))
    assert "does not start" in details(seller, elsewhere)
    for start in (StartTerms("free", None), StartTerms("parent", OTHER)):
        terms = replace(buyer.terms, start=start)
        softened = replace(buyer, enrolment=replace(buyer.enrolment, terms=terms))
        assert "as their parent" in details(seller, softened)


def test_weights_that_come_again_in_a_later_chain(manifests: Any) -> None:
    seller, buyer = manifests
    circle = replace(buyer, shards=(*buyer.shards, replace(seller.shards[0], shard=3)))
    (fault,) = transfer.repeated((seller, circle))
    assert "owner 1 had" in fault.detail
    back = replace(buyer, shards=(replace(buyer.shards[0], root=seller.start.root),))
    assert len(list(transfer.repeated((seller, back)))) == 1


def test_the_record_is_strict(bare: Transfer) -> None:
    document = bare.to_json()
    for broken in (
        {**document, "more": 1},
        {name: value for name, value in document.items() if name != "index"},
        {**document, "index": -1},
        {**document, "format": "polo/transfer/2"},
        {**document, "buyer_signature": None},
    ):
        with pytest.raises(FormatError):
            Transfer.from_json(broken, "transfer.json")


def test_a_signature_of_another_record_does_not_fit(
    bare: Transfer, manifests: Any, alice: polo.Identity, bob: polo.Identity
) -> None:
    manifest = signing.sign(manifests[0], alice)
    wrong = replace(signed(bare, bob), seller_signature=manifest.signature)
    with pytest.raises(SignatureError):
        transfer.check(wrong, VERIFIER, place="t")


def test_a_second_reader_reads_three_owners_and_refuses_the_same(
    make_proof: Callable[..., Any],
    buy: Callable[..., Any],
    second: Any,
    alice: polo.Identity,
    bob: polo.Identity,
    carol: polo.Identity,
    issuer: polo.Identity,
    tmp_path: Any,
) -> None:
    first = make_proof(tmp_path / "a", epochs=2)
    middle = buy(tmp_path / "b", bob, seller=first.path, seller_key=alice)
    last = buy(tmp_path / "c", carol, seller=middle.path, seller_key=bob)
    matches, checked = second.read_proof(last.path, issuer.public_key.hex())
    verdict = last.made.verify()
    assert verdict.outcome is polo.Outcome.ACCEPTED
    found = {x: check.figures["matches"] for x, check in verdict.per_shard("mark").items()}
    assert (matches, checked) == (found, [1, 0])
    manifest = second.document((last.path / "manifest.json").read_bytes())
    assert second.read_owners(last.path, manifest, issuer.public_key.hex()) == 2

    def refused(path: Any, change: Callable[[bytes], bytes]) -> None:
        original = path.read_bytes()
        path.write_bytes(change(original))
        assert last.made.verify().outcome is polo.Outcome.REJECTED
        with pytest.raises(second.RefusedError):
            second.read_proof(last.path, issuer.public_key.hex())
        path.write_bytes(original)

    refused(last.path / "transfer.json", lambda data: data.replace(b'"index":null', b'"index":1'))
    refused(
        last.path / "ancestors/000002/transfer.json",
        lambda _: (last.path / "transfer.json").read_bytes(),
    )
    refused(
        last.path / "ancestors/000001/openings/000002.safetensors",
        lambda data: data[:-40] + bytes([data[-40] ^ 1]) + data[-39:],
    )
    (last.path / "ancestors/000003").mkdir()
    with pytest.raises((second.RefusedError, FileNotFoundError)):
        second.read_proof(last.path, issuer.public_key.hex())
