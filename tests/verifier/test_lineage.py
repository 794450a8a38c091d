"""Owners over time: in the verdict, on the terminal, in the report, in what a bundle shows."""

import io
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

import polo
from polo.checks import Check
from polo.protocol.records import Bundle
from polo.storage.bundle import write_bundle
from polo.storage.folder import ProofFolder
from polo.verifier import Outcome, Policy, Status, lineage, owners
from polo.verifier.report import render
from polo.verifier.rows import shard_rows
from polo.verifier.terminal import show
from polo.verifier.verdict import Owner, Verdict

UNTESTED = Policy("none")


@pytest.fixture(scope="module")
def once() -> dict[str, Any]:
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
) -> Any:
    """Carol's proof, which nobody changes here: alice, 3 shards; bob, 1; carol, 2."""
    if not once:
        base = tmp_path_factory.mktemp("lineage")
        first = make_proof(base / "alice", epochs=3)
        second = buy(base / "bob", bob, seller=first.path, seller_key=alice)
        once["alice"] = first
        once["carol"] = buy(base / "carol", carol, seller=second.path, seller_key=bob, epochs=2)
        once["verdict"] = once["carol"].made.verify()
    return once["carol"]


@pytest.fixture
def verdict(owned: Any, once: dict[str, Any]) -> Verdict:
    found: Verdict = once["verdict"]
    return found


def printed(verdict: Verdict, width: int = 100) -> str:
    console = Console(file=io.StringIO(), width=width)
    show(verdict, console)
    return console.file.getvalue()  # type: ignore[attr-defined]


def test_the_owners_over_time(
    verdict: Verdict, alice: polo.Identity, bob: polo.Identity, carol: polo.Identity
) -> None:
    assert verdict.outcome is Outcome.ACCEPTED, verdict.headline()
    assert [(o.id, o.first, o.last, o.how) for o in verdict.owners] == [
        (alice.id, 1, 3, "trained"),
        (bob.id, 4, 4, "transfer"),
        (carol.id, 5, 6, "transfer"),
    ]
    assert [o.enrolled for o in verdict.owners] == [1_700_000_000, 1_710_000_000, 1_710_000_000]
    assert "2 transfers and 4 marks of earlier owners hold" in verdict.headline()
    found = json.loads(json.dumps(verdict.to_json()))["owners"]
    assert found[1] == {
        "id": bob.id, "name": "", "first": 4, "last": 4, "enrolled": 1_710_000_000,
        "how": "transfer",
    }  # fmt: skip


def test_there_is_a_check_for_every_link(verdict: Verdict) -> None:
    links = [check for check in verdict.of(Status.PASSED) if check.name == "transfer"]
    assert [check.place for check in links] == ["ancestors/000002/transfer.json", "transfer.json"]


def test_every_ancestor_has_checks_of_its_own_and_none_passes_for_a_shard_of_ours(
    verdict: Verdict,
) -> None:
    own = [check for check in verdict.checks if not check.ancestor]
    assert sorted(verdict.per_shard("mark")) == [1, 2]
    for number in (1, 2):
        checks = [check for check in verdict.checks if check.ancestor == number]
        assert {"manifest", "issuer", "signature", "files", "order", "mark", "nonce"} <= {
            check.name for check in checks
        }
        assert all(check.place.startswith(f"ancestors/{number:06d}") for check in checks)
        assert f"ancestors/{number:06d}" in checks[0].sentence()
    assert not any("ancestors" in check.place for check in own if check.name != "transfer")
    assert len(shard_rows(verdict)) == 2


def test_a_problem_of_an_ancestor_is_no_problem_of_our_shard_with_that_number(
    verdict: Verdict,
) -> None:
    bad = Check("mark", Status.FAILED, "x", shard=1, place="ancestors/000001", ancestor=1)
    worse = replace(verdict, checks=(*verdict.checks, bad))
    assert worse.outcome is Outcome.REJECTED
    assert shard_rows(worse)[0].status is Status.PASSED


def test_the_verdict_says_that_a_double_sale_cannot_be_seen(verdict: Verdict) -> None:
    notes = [check.detail for check in verdict.of(Status.NOTE) if check.name == "transfer"]
    assert len(notes) == 1
    assert "somebody else, too" in notes[0]
    assert "somebody else, too" in " ".join(printed(verdict).split())


def test_owners_that_are_known_have_names(
    owned: Any, issuer: polo.Identity, bob: polo.Identity, tmp_path: Path
) -> None:
    polo.keys.save_public(bob.public_key, tmp_path / "bob.pub")
    trust = [issuer.public_key, tmp_path / "bob.pub"]
    verdict = polo.verify(owned.path, trust=trust, policy=UNTESTED)
    assert [owner.name for owner in verdict.owners] == ["", "bob", ""]
    assert f"bob ({bob.id[:16]}…)" in printed(verdict)
    assert "<b>bob</b>" in render(verdict)


def test_on_the_terminal(verdict: Verdict, alice: polo.Identity, once: dict[str, Any]) -> None:
    text = printed(verdict)
    assert f"{alice.id[:16]}…  shards 1 to 3    trained, enrolled 2023-11-14" in text
    assert "shard 4          transfer" in text
    alone = once["alice"].verify(policy=UNTESTED)
    assert len(alone.owners) == 1
    assert alice.id[:16] not in printed(alone)


def test_in_the_report(verdict: Verdict, once: dict[str, Any]) -> None:
    page = render(verdict)
    assert page.count("✓ both signed") == 2
    assert "enrolled 2023-11-14" in page
    assert "<h2>Owners</h2>" in page
    assert "<h2>Owners</h2>" not in render(once["alice"].verify(policy=UNTESTED))
    failed = Check("transfer", Status.FAILED, "x", place="transfer.json")
    broken = render(replace(verdict, checks=(*verdict.checks, failed)))
    assert broken.count("✓ both signed") == 1
    assert "✕ the transfer does not hold" in broken


def test_many_owners_are_shortened() -> None:
    found = tuple(Owner(f"{n:064x}", "", n, n, 0, "transfer") for n in range(1, 102))
    picked = owners.selected(found)
    assert len(picked) == owners.MOST_OWNERS + 1
    assert picked[3] == 101 - owners.MOST_OWNERS
    assert owners.selected(found[:24]) == list(found[:24])
    page = render(Verdict("proof", (Check("manifest", Status.PASSED),), owners=found))
    assert "77 owners more" in page
    assert "89 owners left out" in printed(Verdict("proof", (), owners=found))


def test_hostile_times_and_names_are_shown_as_text() -> None:
    odd = Owner("ab" * 32, "<script>x</script>\x1b[31m", 1, 0, 2**53 - 1, "trained")
    verdict = Verdict("proof", (), owners=(odd, odd))
    assert "<script>x" not in render(verdict)
    assert "no shard" in render(verdict)
    assert "\x1b" not in printed(verdict)


def test_a_disclosure_of_a_bought_model_needs_no_marks_of_the_earlier_owners(
    owned: Any, issuer: polo.Identity, tmp_path: Path
) -> None:
    shown, public = tmp_path / "shown.polo", tmp_path / "public.polo"
    write_bundle(ProofFolder(owned.path), shown, Bundle("buyer", (2,)))
    write_bundle(ProofFolder(owned.path), public, Bundle("public", ()))
    verdict = polo.verify(shown, trust=issuer.public_key)
    assert verdict.outcome is Outcome.ACCEPTED, verdict.headline()
    assert len(verdict.owners) == 3
    notes = [check for check in verdict.of(Status.NOTE) if check.ancestor and check.name == "mark"]
    assert [check.ancestor for check in notes] == [1, 2]
    verdict = polo.verify(public, trust=issuer.public_key)
    assert verdict.outcome is Outcome.UNDECIDED
    assert len(verdict.owners) == 3


def test_the_start_of_a_chain_from_a_parent(verdict: Verdict) -> None:
    (start,) = (c for c in verdict.checks if c.name == "start" and not c.ancestor)
    assert start.status is Status.PASSED
    assert "as the terms ask" in start.detail


def test_a_parent_without_a_transfer_is_a_start_and_no_more(
    owned: Any, once: dict[str, Any], buy: Callable[..., Any], carol: polo.Identity, tmp_path: Path
) -> None:
    seller = once["alice"].path
    tuned = buy(tmp_path / "tuned", carol, seller=seller, seller_key=None)
    verdict = tuned.made.verify(policy=UNTESTED)
    assert verdict.outcome is Outcome.ACCEPTED, verdict.headline()
    found = [check.status for check in verdict.checks if check.name == "start"]
    assert found == [Status.PASSED, Status.NOTE]
    assert [(owner.first, owner.how) for owner in verdict.owners] == [(1, "trained")]


def test_terms_with_a_parent_ask_for_the_last_floor_at_once(task: Any) -> None:
    class Steps(type(task)):  # type: ignore[misc]
        floor = (0.1, 0.2, 0.6)

    terms = polo.make_terms(Steps(), bits=128, parent=bytes(32))
    assert (terms.start.kind, terms.start.parent) == ("parent", bytes(32))
    assert (terms.task.floor, terms.shards.least) == ((600_000,), 1)
    assert polo.make_terms(Steps(), bits=128).shards.least == 3


def test_of_an_ancestor_that_is_broken_everywhere_enough_is_told(owned: Any) -> None:
    manifest = ProofFolder(owned.path).manifest()
    many = [Check("order", Status.FAILED, "x", shard=x) for x in range(1, 1000)]
    history = lineage.Lineage(ProofFolder(owned.path), manifest)
    found = list(history.checks(lambda path: lineage.Examined(many, None)))
    told = [check for check in found if check.ancestor]
    assert len(told) == 2 * lineage.MOST_PROBLEMS
    assert history.owners({}) == ()
