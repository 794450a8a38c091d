"""Handing a model on: request, sign, complete; every mistake on the way; the model itself."""

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

import polo
from polo.checks import Status
from polo.errors import ChainError, FormatError, SignatureError, StoreError, WeightsError
from polo.protocol import transfer as rules
from polo.protocol.records import Bundle
from polo.storage import ledger, transfers
from polo.storage.ancestors import lineage
from polo.storage.bundle import whole, write_bundle
from polo.storage.folder import ProofFolder
from polo.storage.writer import ProofWriter
from polo.verifier import Outcome, Policy


@pytest.fixture
def seller(make_proof: Callable[..., Any], tmp_path: Path) -> Any:
    return make_proof(tmp_path / "alice", epochs=3)


@pytest.fixture
def buyer(seller: Any, buy: Callable[..., Any], bob: polo.Identity, tmp_path: Path) -> Any:
    """Bob, who has fine-tuned what he bought, and not asked for it yet."""
    return buy(tmp_path / "bob", bob, seller=seller.path, seller_key=None)


def files_of(folder: Path) -> dict[str, bytes]:
    found = (path for path in folder.rglob("*") if path.is_file())
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in found}


def test_the_way_of_a_sale(
    seller: Any, buyer: Any, alice: polo.Identity, bob: polo.Identity, issuer: polo.Identity
) -> None:
    before = files_of(seller.path)
    asked = transfers.request(buyer.path, seller.path, bob)
    assert (asked.proof, asked.root) == (seller.manifest.digest, seller.manifest.last_root)
    assert not any(asked.seller_signature)
    given = transfers.sign(asked, seller.path, alice)
    manifest = transfers.complete(buyer.path, given, seller.path, bob)
    assert files_of(seller.path) == before, "the seller's proof stays as it was"
    assert manifest.transfer == given.digest
    assert manifest == ProofFolder(buyer.path).manifest()
    inside = sorted(files_of(buyer.path / "ancestors" / "000001"))
    names = [f"{kind}/{x:06d}" for kind in ("nonces", "openings") for x in (1, 2, 3)]
    assert [name.partition(".")[0] for name in inside] == ["bundle", "layout", "manifest", *names]
    assert [link.manifest for link in lineage(buyer.path)] == [seller.manifest, manifest]
    assert buyer.made.verify().outcome is Outcome.ACCEPTED
    assert seller.verify().outcome is Outcome.ACCEPTED


def test_a_bundle_will_do_for_the_seller_s_proof(
    seller: Any, buyer: Any, alice: polo.Identity, bob: polo.Identity, tmp_path: Path
) -> None:
    shown = tmp_path / "shown.polo"
    write_bundle(ProofFolder(seller.path), shown, Bundle("buyer", (1, 3)))
    asked = transfers.request(buyer.path, shown, bob)
    given = transfers.sign(asked, seller.path, alice)
    transfers.complete(buyer.path, given, shown, bob)
    inside = files_of(buyer.path / "ancestors" / "000001")
    assert "nonces/000002.json" not in inside
    assert Bundle.from_bytes(inside["bundle.json"], "b") == Bundle("buyer", (1, 3))
    verdict = buyer.made.verify()
    assert verdict.outcome is Outcome.ACCEPTED
    assert [c.shard for c in verdict.checks if c.ancestor and c.name == "mark"] == [3, 1]


def test_a_public_bundle_is_not_enough(
    seller: Any, buyer: Any, alice: polo.Identity, bob: polo.Identity, tmp_path: Path
) -> None:
    public = tmp_path / "public.polo"
    write_bundle(ProofFolder(seller.path), public, Bundle("public", ()))
    given = transfers.sign(transfers.request(buyer.path, public, bob), seller.path, alice)
    with pytest.raises(StoreError, match="shows no mark"):
        transfers.complete(buyer.path, given, public, bob)
    assert ProofFolder(buyer.path).manifest().transfer is None


# The buyer's mistakes


def test_a_request_with_somebody_else_s_key(seller: Any, buyer: Any, carol: polo.Identity) -> None:
    with pytest.raises(SignatureError, match="belongs to") as caught:
        transfers.request(buyer.path, seller.path, carol)
    assert "Keys in docs/threat-model.md" in caught.value.advice


def test_a_request_before_a_shard_is_sealed(
    seller: Any, buy: Callable[..., Any], bob: polo.Identity, tmp_path: Path
) -> None:
    empty = buy(tmp_path / "b", bob, seller=seller.path, seller_key=None, epochs=0)
    with pytest.raises(ChainError, match="sealed no shard yet") as caught:
        transfers.request(empty.path, seller.path, bob)
    assert "Fine-tune" in caught.value.advice


def test_a_request_by_a_chain_that_starts_elsewhere(
    seller: Any, make_proof: Callable[..., Any], alice: polo.Identity, tmp_path: Path
) -> None:
    other = make_proof(tmp_path / "other", seed=5)
    with pytest.raises(ChainError, match="name no parent") as caught:
        transfers.request(other.path, seller.path, alice)
    assert "--parent" in caught.value.advice


def test_a_request_from_the_middle_of_a_chain(
    make_proof: Callable[..., Any],
    buy: Callable[..., Any],
    alice: polo.Identity,
    bob: polo.Identity,
    tmp_path: Path,
) -> None:
    made = make_proof(tmp_path / "alice", epochs=2)
    early = buy(tmp_path / "bob", bob, seller=made.path, seller_key=None)
    asked = transfers.request(early.path, made.path, bob)
    go_on(made, alice)
    with pytest.raises(ChainError, match="starts from shard 2; the seller's proof ends in 3"):
        transfers.request(early.path, made.path, bob)
    with pytest.raises(ChainError, match="starts from shard 2"):
        transfers.sign(asked, made.path, alice)


def go_on(made: Any, key: polo.Identity, epochs: int = 1) -> None:
    """Train on after a proof was finished."""
    model = made.task.build_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    prover = polo.Prover(made.enrolment, key=key, store=made.path)
    with prover.attach(model, optimizer, evaluate=lambda: made.task.evaluate(model)):
        for _ in range(epochs):
            made.task.train_epoch(model, optimizer)
            prover.end_epoch()
    prover.finish()


def test_to_the_same_key_nothing_is_handed_over(
    seller: Any, buy: Callable[..., Any], alice: polo.Identity, tmp_path: Path
) -> None:
    same = buy(tmp_path / "again", alice, seller=seller.path, seller_key=None)
    with pytest.raises(ChainError, match="one key"):
        transfers.request(same.path, seller.path, alice)


def test_a_broken_seller_s_proof_is_not_taken_over(
    seller: Any, buyer: Any, alice: polo.Identity, bob: polo.Identity
) -> None:
    given = transfers.sign(transfers.request(buyer.path, seller.path, bob), seller.path, alice)
    opening = seller.path / "openings" / "000002.safetensors"
    opening.write_bytes(opening.read_bytes()[:-1] + b"\0")
    with pytest.raises(FormatError, match="not those that were signed"):
        transfers.complete(buyer.path, given, seller.path, bob)
    assert ProofFolder(buyer.path).manifest().transfer is None


# The seller's part


def test_the_seller_signs_nothing_else(
    seller: Any, buyer: Any, alice: polo.Identity, bob: polo.Identity, carol: polo.Identity
) -> None:
    asked = transfers.request(buyer.path, seller.path, bob)
    with pytest.raises(SignatureError, match="belongs to"):
        transfers.sign(asked, seller.path, carol)
    for altered in (
        replace(asked, first=bytes(32)),
        replace(asked, buyer=carol.public_key),
        replace(asked, made=1),
        replace(asked, buyer_signature=bytes(64)),
    ):
        with pytest.raises(SignatureError, match="altered, or never signed"):
            transfers.sign(altered, seller.path, alice)
    with pytest.raises(SignatureError, match="asks somebody else"):
        transfers.sign(replace(asked, seller=carol.public_key), seller.path, alice)
    unknown = rules.signed(replace(asked, root=bytes(32)), bob)
    with pytest.raises(ChainError, match="does not start from weights"):
        transfers.sign(unknown, seller.path, alice)
    assert not (seller.state_path / ledger.LEDGER_FILE).exists()


def test_a_proof_that_was_signed_anew_since(
    seller: Any, buyer: Any, alice: polo.Identity, bob: polo.Identity
) -> None:
    asked = transfers.request(buyer.path, seller.path, bob)
    stale = rules.signed(replace(asked, proof=bytes(32)), bob)
    with pytest.raises(ChainError, match="signed anew since"):
        transfers.sign(stale, seller.path, alice)


def test_nobody_sells_twice_by_mistake(
    seller: Any,
    buyer: Any,
    buy: Callable[..., Any],
    alice: polo.Identity,
    bob: polo.Identity,
    carol: polo.Identity,
    tmp_path: Path,
) -> None:
    second = buy(tmp_path / "carol", carol, seller=seller.path, seller_key=None)
    copy = tmp_path / "copy"
    shutil.copytree(seller.path, copy)
    first = transfers.sign(transfers.request(buyer.path, seller.path, bob), seller.path, alice)
    asked = transfers.request(second.path, seller.path, carol)
    with pytest.raises(ChainError, match=f"you handed this model to {bob.id[:16]}… on 20"):
        transfers.sign(asked, seller.path, alice)
    again = transfers.sign(replace(first, seller_signature=bytes(64)), seller.path, alice)
    assert again == first, "to the same buyer, once more"
    book = seller.state_path / ledger.LEDGER_FILE
    assert len(ledger.read(book)) == 1
    assert book.stat().st_mode & 0o777 == 0o600
    # Training on does not make it another model.
    go_on(seller, alice)
    later = buy(tmp_path / "later", carol, seller=seller.path, seller_key=None)
    with pytest.raises(ChainError, match="you handed this model to"):
        transfers.sign(transfers.request(later.path, seller.path, carol), seller.path, alice)
    # A copy of the store knows of nothing; a verifier cannot see it, and says so.
    given = transfers.sign(asked, copy, alice)
    transfers.complete(second.path, given, copy, carol)
    verdict = second.made.verify(policy=Policy("none"))
    assert verdict.outcome is Outcome.ACCEPTED
    assert any("somebody else, too" in check.detail for check in verdict.checks)


def test_a_damaged_ledger_sells_nothing(
    seller: Any, buyer: Any, alice: polo.Identity, bob: polo.Identity
) -> None:
    asked = transfers.request(buyer.path, seller.path, bob)
    for text in (b"", b"{}", b"[1]", b'[{"signed":1}]', b"[" * 30):
        (seller.state_path / ledger.LEDGER_FILE).write_bytes(text)
        with pytest.raises(StoreError, match="cannot be read"):
            transfers.sign(asked, seller.path, alice)


# Completing


def test_nothing_is_complete_without_both_signatures(
    seller: Any, buyer: Any, alice: polo.Identity, bob: polo.Identity
) -> None:
    asked = transfers.request(buyer.path, seller.path, bob)
    with pytest.raises(SignatureError, match="seller has not signed") as caught:
        transfers.complete(buyer.path, asked, seller.path, bob)
    assert "polo transfer" in caught.value.advice
    given = transfers.sign(asked, seller.path, alice)
    with pytest.raises(SignatureError):
        transfers.complete(buyer.path, replace(given, buyer_signature=bytes(64)), seller.path, bob)
    with pytest.raises(SignatureError, match="belongs to"):
        transfers.complete(buyer.path, given, seller.path, alice)
    assert not (buyer.path / "ancestors").exists()


def test_a_transfer_fits_one_chain_only(
    seller: Any,
    buyer: Any,
    buy: Callable[..., Any],
    alice: polo.Identity,
    bob: polo.Identity,
    tmp_path: Path,
) -> None:
    given = transfers.sign(transfers.request(buyer.path, seller.path, bob), seller.path, alice)
    other = buy(tmp_path / "other chain", bob, seller=seller.path, seller_key=None)
    with pytest.raises(ChainError, match="another enrolment"):
        transfers.complete(other.path, given, seller.path, bob)


def test_completing_twice_repairs_and_changes_nothing(
    seller: Any, buyer: Any, alice: polo.Identity, bob: polo.Identity
) -> None:
    given = transfers.sign(transfers.request(buyer.path, seller.path, bob), seller.path, alice)
    transfers.complete(buyer.path, given, seller.path, bob)
    before = files_of(buyer.path)
    shutil.rmtree(buyer.path / "ancestors" / "000001" / "nonces")
    (buyer.path / "transfer.json").unlink()
    transfers.complete(buyer.path, given, seller.path, bob)
    assert files_of(buyer.path) == before
    later = rules.signed(rules.signed(replace(given, made=given.made + 1), bob), alice)
    with pytest.raises(ChainError, match="another transfer"):
        transfers.complete(buyer.path, later, seller.path, bob)
    with pytest.raises(StoreError, match="inside your own proof"):
        transfers.complete(buyer.path, given, buyer.path / "ancestors/000001", bob)


def test_three_owners_and_the_way_back(
    seller: Any,
    buy: Callable[..., Any],
    alice: polo.Identity,
    bob: polo.Identity,
    carol: polo.Identity,
    tmp_path: Path,
) -> None:
    second = buy(tmp_path / "b", bob, seller=seller.path, seller_key=alice, epochs=2)
    third = buy(tmp_path / "c", carol, seller=second.path, seller_key=bob)
    back = buy(tmp_path / "a again", alice, seller=third.path, seller_key=carol)
    assert [path.name for path in sorted((back.path / "ancestors").iterdir())] == [
        "000001", "000002", "000003",
    ]  # fmt: skip
    assert not (back.path / "ancestors/000003/ancestors").exists()
    verdict = back.made.verify(policy=Policy("none"))
    assert verdict.outcome is Outcome.ACCEPTED, verdict.headline()
    assert [owner.id for owner in verdict.owners] == [alice.id, bob.id, carol.id, alice.id]
    bundle = tmp_path / "all.polo"
    write_bundle(ProofFolder(back.path), bundle, whole(ProofFolder(back.path).manifest()))
    verdict = polo.verify(bundle, trust=back.made.issuer.public_key, policy=Policy("none"))
    assert verdict.outcome is Outcome.ACCEPTED, verdict.headline()
    assert len(verdict.owners) == 4


# Going on afterwards, and dying on the way


def test_training_goes_on_after_a_transfer(
    seller: Any, buy: Callable[..., Any], alice: polo.Identity, bob: polo.Identity, tmp_path: Path
) -> None:
    owned = buy(tmp_path / "b", bob, seller=seller.path, seller_key=alice)
    before = files_of(owned.path)
    go_on(owned.made, bob, epochs=2)
    after = files_of(owned.path)
    assert len(ProofFolder(owned.path).manifest().shards) == 3
    for name, data in before.items():
        if name.startswith("ancestors/") or name == "transfer.json":
            assert after[name] == data
    verdict = owned.made.verify()
    assert verdict.outcome is Outcome.ACCEPTED, verdict.headline()
    assert [(o.first, o.last) for o in verdict.owners] == [(1, 3), (4, 6)]


KILLED = """
import os, signal, sys
from pathlib import Path
from polo.keys import Identity
from polo.protocol.records import Transfer
from polo.storage import atomic, transfers
from polo.storage.folder import ProofFolder
from polo.storage.writer import ProofWriter

buyer, seller, key = Path(sys.argv[1]), Path(sys.argv[2]), Identity.load(sys.argv[3])
given = Transfer.from_bytes(Path(sys.argv[4]).read_bytes(), "transfer")
retention = ProofFolder(buyer).manifest().retention

def names():
    return sorted(path.relative_to(buyer).as_posix() for path in buyer.rglob("*"))

def die_at(left):
    def dying(real):
        def call(*arguments, **options):
            nonlocal left
            left -= 1
            if left == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            return real(*arguments, **options)
        return call
    atomic.os.fsync = dying(os.fsync)
    Path.replace = dying(Path.replace)

before, at, bound = names(), 0, 0
while True:
    at += 1
    child = os.fork()
    if child == 0:
        die_at(at)
        transfers.complete(buyer, given, seller, key)
        os._exit(0)
    killed = os.WIFSIGNALED(os.waitpid(child, 0)[1])
    manifest = ProofFolder(buyer).manifest()
    if not killed:
        break
    if manifest.transfer is None:
        if at % 2:
            # Opening it for writing, as a resume does, removes what is left of the transfer.
            transfers.ProofWriter(buyer, key, retention).close()
            assert names() == before, at
    else:
        bound += 1
        assert manifest.transfer == given.digest
        transfers.ProofWriter(buyer, key, retention).close()
        assert [link.folder.path.name for link in transfers.ancestors.lineage(buyer)][0] == "000001"
assert at > 20 and bound, (at, bound)
print(at)
"""


def test_killed_between_any_two_writes(
    seller: Any,
    buyer: Any,
    alice: polo.Identity,
    bob: polo.Identity,
    in_child: Callable[..., Any],
    tmp_path: Path,
) -> None:
    """Before the manifest is replaced the old proof holds; a new try, or a resume, cleans up."""
    given = transfers.sign(transfers.request(buyer.path, seller.path, bob), seller.path, alice)
    (tmp_path / "given.json").write_bytes(given.to_bytes())
    bob.save(tmp_path / "bob.key")
    files = (buyer.path, seller.path, tmp_path / "bob.key", tmp_path / "given.json")
    in_child(KILLED, *files, bare=True)
    verdict = buyer.made.verify(policy=Policy("none"))
    assert verdict.outcome is Outcome.ACCEPTED, verdict.headline()


def test_a_link_to_the_seller_s_proof_is_not_cleaned_up(
    seller: Any, buyer: Any, bob: polo.Identity
) -> None:
    (buyer.path / "ancestors").mkdir()
    (buyer.path / "ancestors" / "000001").symlink_to(seller.path)
    before = files_of(seller.path)
    manifest = ProofFolder(buyer.path).manifest()
    transfers.ProofWriter(buyer.path, bob, manifest.retention).close()
    assert files_of(seller.path) == before


# The model itself


def test_the_model_comes_from_a_proof_a_bundle_or_a_file(
    seller: Any, task: Any, tmp_path: Path
) -> None:
    save_file(seller.model.state_dict(), tmp_path / "model.safetensors")
    bundle = tmp_path / "all.polo"
    write_bundle(ProofFolder(seller.path), bundle, whole(seller.manifest))
    for source in (seller.path, bundle, tmp_path / "model.safetensors"):
        model = task.build_model()
        assert polo.load_weights(model, source) == seller.manifest.last_root
        assert polo.weights.commit(polo.weights.checkpoint_of(model)).root == (
            seller.manifest.last_root
        )


def test_tied_tensors_may_be_spelled_out(tmp_path: Path) -> None:
    def tied() -> torch.nn.Module:
        model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 4))
        model[1].weight = model[0].weight
        return model

    state = {name: value.clone() for name, value in tied().state_dict().items()}
    save_file(state, tmp_path / "whole.safetensors")
    model = tied()
    polo.load_weights(model, tmp_path / "whole.safetensors")
    assert torch.equal(model[0].weight, state["0.weight"])
    state["1.weight"] = state["1.weight"] + 1
    save_file(state, tmp_path / "torn.safetensors")
    with pytest.raises(WeightsError, match="ties differ"):
        polo.load_weights(model, tmp_path / "torn.safetensors")


def test_what_is_not_the_model_is_refused(seller: Any, task: Any, tmp_path: Path) -> None:
    state = seller.model.state_dict()
    cases = {
        "converted": {k: v.half() if v.is_floating_point() else v for k, v in state.items()},
        "fewer": {k: v for k, v in state.items() if k != "0.bias"},
        "more": {**state, "extra": torch.zeros(3)},
    }
    for name, tensors in cases.items():
        save_file(tensors, tmp_path / f"{name}.safetensors")
        with pytest.raises(WeightsError):
            polo.load_weights(task.build_model(), tmp_path / f"{name}.safetensors")
    torch.save(state, tmp_path / "model.pt")
    with pytest.raises(WeightsError, match="run code"):
        polo.load_weights(task.build_model(), tmp_path / "model.pt")
    shown = tmp_path / "shown.polo"
    write_bundle(ProofFolder(seller.path), shown, Bundle("buyer", (1,)))
    with pytest.raises(StoreError, match="holds no weights"):
        polo.load_weights(task.build_model(), shown)
    last = seller.path / "checkpoints" / "000003.safetensors"
    last.write_bytes(last.read_bytes()[:-4] + b"\0\0\0\0")
    with pytest.raises(WeightsError, match="not those the proof ends in"):
        polo.load_weights(task.build_model(), seller.path)


def test_a_buyer_s_chain_starts_from_what_was_bought_to_the_bit(
    seller: Any, buyer: Any, bob: polo.Identity, task: Any, tmp_path: Path
) -> None:
    model = task.build_model()
    polo.load_weights(model, seller.path)
    with torch.no_grad():
        model[3].bias[0] += 1e-6
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    prover = polo.Prover(buyer.made.enrolment, key=bob, store=tmp_path / "fresh")
    with pytest.raises(WeightsError, match="and this is not it") as caught:
        prover.attach(model, optimizer)
    assert "polo.load_weights" in caught.value.advice
    with pytest.raises(WeightsError, match=r"not it: 3\.bias differs"):
        prover.attach(model, optimizer, parent=seller.path)
    save_file(model.state_dict(), tmp_path / "changed.safetensors")
    with pytest.raises(WeightsError, match="nor is"):
        prover.attach(model, optimizer, parent=tmp_path / "changed.safetensors")
    polo.load_weights(model, seller.path)
    prover.attach(model, optimizer, parent=seller.path)
    prover.close()


def test_another_name_for_the_proof_sells_nothing_twice(
    seller: Any,
    buyer: Any,
    buy: Callable[..., Any],
    alice: polo.Identity,
    bob: polo.Identity,
    carol: polo.Identity,
    tmp_path: Path,
) -> None:
    alias = tmp_path / "alias"
    alias.symlink_to(seller.path)
    second = buy(tmp_path / "carol", carol, seller=seller.path, seller_key=None)
    transfers.sign(transfers.request(buyer.path, seller.path, bob), seller.path, alice)
    asked = transfers.request(second.path, alias, carol)
    with pytest.raises(ChainError, match="you handed this model to"):
        transfers.sign(asked, alias, alice)


def test_an_interrupted_completion_says_what_to_do(
    seller: Any,
    buyer: Any,
    alice: polo.Identity,
    bob: polo.Identity,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    given = transfers.sign(transfers.request(buyer.path, seller.path, bob), seller.path, alice)
    with monkeypatch.context() as patched:
        patched.setattr(ProofWriter, "_commit", interrupted)
        with pytest.raises(KeyboardInterrupt):
            transfers.complete(buyer.path, given, seller.path, bob)
    verdict = buyer.made.verify()
    assert verdict.outcome is Outcome.REJECTED
    failed = {check.place: check for check in verdict.checks if check.status is Status.FAILED}
    assert set(failed) == {"ancestors", "transfer.json"}
    for check in failed.values():
        assert "polo transfer complete was interrupted, run it again" in check.advice
    transfers.complete(buyer.path, given, seller.path, bob)
    assert buyer.made.verify().outcome is Outcome.ACCEPTED


def interrupted(*_: object) -> None:
    raise KeyboardInterrupt


def test_errors_about_a_seller_s_bundle_name_it(
    seller: Any, buyer: Any, alice: polo.Identity, bob: polo.Identity, tmp_path: Path
) -> None:
    public = tmp_path / "public.polo"
    write_bundle(ProofFolder(seller.path), public, Bundle("public", ()))
    given = transfers.sign(transfers.request(buyer.path, public, bob), seller.path, alice)
    with pytest.raises(StoreError) as caught:
        transfers.complete(buyer.path, given, public, bob)
    assert str(caught.value).startswith(f"{public}: shows no mark")
