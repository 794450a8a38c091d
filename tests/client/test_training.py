"""Training against a registry: live receipts, outages, challenges, resuming, and lies."""

import os
import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import polo
from polo.client.courier import LiveNonces
from polo.client.enrolled import LiveEnrolment
from polo.errors import ChainError, DistrustError, OutageError, RegistryError, TermsError
from polo.prover.receiving import ReceiptWarning
from polo.storage import writer
from polo.storage.folder import ProofFolder, receipts_path, state_path_of
from polo.verifier import Outcome

Enrol = Callable[..., LiveEnrolment]
Train = Callable[..., Any]


def accepted(path: Path, registry: Any, task: Any) -> None:
    verdict = polo.verify(path, trust=registry.issuer.public_key, task=task)
    assert verdict.outcome is Outcome.ACCEPTED, verdict.headline()
    levels = {check.level for check in verdict.checks if check.name == "log"} or {
        check.level for check in verdict.checks
    }
    assert "receipts" in levels


def test_a_live_run_verifies_offline(
    registry: Any, enrolled: Enrol, train: Train, task: Any
) -> None:
    proof = train(enrolled().folder, epochs=4)
    assert proof.shards == 4
    manifest = proof.manifest
    receipts = [manifest.start.receipt, *(shard.receipt for shard in manifest.shards)]
    assert [receipt.shard for receipt in receipts] == [0, 1, 2, 3, 4]
    assert [receipt.index for receipt in receipts] == [0, 1, 2, 3, 4]
    listed = {file.path for file in manifest.files}
    assert {receipts_path(number) for number in range(1, 5)} <= listed
    # The chain was closed with the very manifest, and κ was asked for.
    name = manifest.enrolment.digest.hex()
    assert registry.manifests[name] == manifest.to_bytes()
    assert ("GET", f"/v1/enrolments/{name}/secret") in registry.requests
    registry.stop()
    accepted(proof.path, registry, task)


@pytest.mark.filterwarnings("ignore:only 2 shards sealed:polo.prover.EmbeddingWarning")
def test_a_chain_with_too_few_shards_stays_open_and_can_be_trained_on(
    registry: Any, enrolled: Enrol, train: Train, task: Any
) -> None:
    enrolment = enrolled(fewest_shards=4)
    with pytest.warns(ReceiptWarning, match="not closed at the registry: only 2 shards sealed"):
        short = train(enrolment.folder, epochs=2)
    assert registry.manifests == {}, "a chain that is closed takes no more"
    proof = train(enrolment.folder, epochs=4)
    assert (short.shards, proof.shards) == (2, 4)
    assert registry.manifests == {proof.manifest.enrolment.digest.hex(): proof.manifest.to_bytes()}
    accepted(proof.path, registry, task)


def test_the_root_of_the_start_is_in_the_log_before_the_first_mark(
    registry: Any, enrolled: Enrol, train: Train
) -> None:
    prover = train(enrolled(), epochs=0, finish=False)
    assert len(registry.entries) == 1
    assert prover._current.nonce.shard == 1
    prover.close()


def test_nothing_secret_lies_in_the_enrolment_folder(
    registry: Any, enrolled: Enrol, train: Train
) -> None:
    enrolment = enrolled()
    proof = train(enrolment.folder, epochs=2)
    names = {path.name for path in enrolment.folder.iterdir()}
    assert names == {"enrolment.json", "registry.json", "log-checkpoint.txt"}
    for path in state_path_of(proof.path).glob("*.answer.json"):
        assert path.stat().st_mode & 0o077 == 0
    assert "3\n" in (enrolment.folder / "log-checkpoint.txt").read_text()


@pytest.mark.parametrize("on_outage", ["go on", "wait"])
def test_an_outage_in_the_middle(
    registry: Any, enrolled: Enrol, train: Train, task: Any, on_outage: str,
    monkeypatch: pytest.MonkeyPatch, wait_for: Any,
) -> None:  # fmt: skip
    monkeypatch.setattr("polo.prover.receiving.GRACE", 0.2)
    unmarked = []

    def each(epoch: int, prover: polo.Prover) -> None:
        receiving = prover._receiving
        if epoch == 1:
            registry.stop()
            if on_outage == "wait":
                threading.Timer(2.0, registry.start).start()
        if epoch > 1 and receiving.open:
            unmarked.append(epoch)
            wait_for(lambda: receiving._nonces.trouble or len(unmarked) > 2)
            if len(unmarked) == 3:
                registry.start()
            if len(unmarked) >= 3:
                wait_for(receiving._open.done)

    with pytest.warns(ReceiptWarning, match="cannot be reached") as told:
        proof = train(enrolled(shards=30), epochs=20, each=each, on_outage=on_outage)
    assert len([w for w in told if issubclass(w.category, ReceiptWarning)]) == 1
    assert bool(unmarked) == (on_outage == "go on")
    assert proof.shards >= 8
    accepted(proof.path, registry, task)


def test_training_stops_by_choice_and_goes_on_later(
    registry: Any, enrolled: Enrol, train: Train, task: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("polo.prover.receiving.GRACE", 0.2)
    enrolment = enrolled()

    def each(epoch: int, prover: polo.Prover) -> None:
        if epoch == 1:
            registry.stop()

    with pytest.raises(OutageError, match="no receipt for shard 3") as stopped:
        train(enrolment, epochs=6, each=each, on_outage="stop")
    assert "safe" in stopped.value.advice
    registry.start()
    proof = train(enrolment, epochs=6, on_outage="stop")
    assert proof.shards == 6
    assert [shard.receipt.shard for shard in proof.manifest.shards] == [1, 2, 3, 4, 5, 6]
    accepted(proof.path, registry, task)


def test_the_last_receipt_does_not_come(
    registry: Any, enrolled: Enrol, train: Train, task: Any, leave: Callable[[], None],
    caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    def each(epoch: int, prover: polo.Prover) -> None:
        if epoch == 1:
            leave()

    with pytest.warns(ReceiptWarning) as told:
        proof = train(enrolled(), epochs=3, each=each, wait=0.3)
    assert "polo submit" in str(told[-1].message)
    assert "waiting for it, at most 0 s" in caplog.text  # Not in silence.
    assert proof.shards == 3
    assert proof.manifest.finished
    assert proof.manifest.shards[-1].receipt is None
    verdict = polo.verify(proof.path, trust=registry.issuer.public_key, task=task)
    assert verdict.outcome is not Outcome.ACCEPTED


def test_a_busy_registry_is_asked_again(registry: Any, enrolled: Enrol, train: Train) -> None:
    registry.busy = 3
    assert train(enrolled(), epochs=2).shards == 2


def test_streaming_keeps_two_checkpoints_and_answers_challenges(
    registry: Any, enrolled: Enrol, train: Train, task: Any, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    registry.asks = {2, 3}
    counted: list[int] = []

    def count(*arguments: Any) -> None:
        written(*arguments)
        # Whatever is there when a checkpoint was just written: the moment with the most.
        counted.append(len(list((tmp_path / "proof" / "checkpoints").iterdir())))

    written = writer.write_checkpoint
    monkeypatch.setattr(writer, "write_checkpoint", count)
    proof = train(enrolled(history="streaming"), epochs=5, retention="streaming", on_outage="wait")
    assert proof.shards == 5
    assert counted == [1, 2, 2, 2, 2, 2]
    assert [path.name for path in (proof.path / "checkpoints").iterdir()] == ["000005.safetensors"]
    kinds = [item["kind"] for item in registry.uploads.values()]
    assert kinds.count("opening") == 5
    assert kinds.count("checkpoint") == 2
    for item in registry.uploads.values():
        assert len(item["data"]) == item["size"]
    accepted(proof.path, registry, task)


@pytest.mark.parametrize(
    ("said", "judged", "stuck"),
    [
        ({"state": "answered", "detail": ""}, False, ""),
        ({"state": "answered", "detail": "another platform"}, False, "another platform"),
        ({"state": "passed", "detail": "root as committed to"}, True, ""),
    ],
)
def test_only_an_answer_that_cannot_be_judged_is_stuck(
    said: dict[str, str], judged: bool, stuck: str
) -> None:
    nonces: Any = object.__new__(LiveNonces)
    nonces._client = SimpleNamespace(challenge=lambda _: said)
    delivery = SimpleNamespace(stuck="before")
    assert nonces._is_judged(delivery, "ab" * 16) is judged
    assert delivery.stuck.removeprefix("the registry could not check what was shown: ") == stuck


@pytest.mark.parametrize("small", [True, False])
def test_small_openings_travel_with_their_commitments(
    registry: Any, enrolled: Enrol, train: Train, small: bool
) -> None:
    """A registry that takes less in one request gets them as uploads."""
    registry.together_at_most = None if small else 2000
    proof = train(enrolled(history="streaming"), retention="streaming", on_outage="wait")
    assert proof.shards == 3
    assert [item["kind"] for item in registry.uploads.values()].count("opening") == 3
    uploaded = [path for method, path in registry.requests if method == "PATCH"]
    assert len(uploaded) == (0 if small else 3)


def test_streaming_needs_a_registry(train: Train, enrol: Any) -> None:
    with pytest.raises(TermsError, match="offline there is no receipt"):
        train(enrol(), retention="streaming")


def test_a_registry_for_an_offline_enrolment(train: Train, enrol: Any) -> None:
    with pytest.raises(TermsError, match="issued offline"):
        train(enrol(), registry="http://127.0.0.1:1")


@pytest.mark.parametrize(
    ("lie", "code"),
    [
        ("nonce", "registry.wrong-nonce"),
        ("receipt", "registry.wrong-receipt"),
        ("root", "registry.wrong-receipt"),
        ("inclusion", "registry.wrong-inclusion"),
        ("fork", "registry.forked-log"),
    ],
)
def test_a_registry_that_lies_is_found_out(
    registry: Any, enrolled: Enrol, train: Train, lie: str, code: str
) -> None:
    def each(epoch: int, prover: polo.Prover) -> None:
        if epoch == 1:
            registry.lie = lie

    enrolment = enrolled()
    with pytest.raises(DistrustError) as found:
        train(enrolment, epochs=4, each=each, on_outage="wait")
    assert found.value.code == code
    assert registry.url in str(found.value)
    # It tells the truth again: nothing was lost, and the run goes on.
    registry.lie = ""
    assert train(enrolment, epochs=4).shards == 4


@pytest.mark.parametrize(
    ("lie", "code"), [("secret", "registry.wrong-secret"), ("chosen", "registry.chosen-nonce")]
)
def test_nonces_are_held_against_the_secret_after_the_close(
    registry: Any, enrolled: Enrol, train: Train, lie: str, code: str
) -> None:
    registry.lie = lie
    with pytest.raises(DistrustError) as found:
        train(enrolled(), epochs=2)
    assert found.value.code == code


def test_a_fork_between_two_runs_is_found_out(registry: Any, enrolled: Enrol, train: Train) -> None:
    enrolment = enrolled()
    train(enrolment, epochs=2, finish=False).close()
    registry.entries[0] = b"something else"
    with pytest.raises(DistrustError, match="forked") as found:
        train(enrolment.folder, epochs=4, on_outage="wait")
    assert found.value.code in ("registry.forked-log", "registry.wrong-inclusion")


def test_a_log_that_lost_entries_is_found_out(registry: Any, enrolled: Enrol, train: Train) -> None:
    enrolment = enrolled()
    train(enrolment, epochs=2, finish=False).close()
    del registry.entries[1:]
    with pytest.raises(DistrustError, match="has lost some") as found:
        train(enrolment.folder, epochs=4, on_outage="wait")
    assert found.value.code == "registry.forked-log"


def test_a_refusal_is_raised_in_the_training_loop(
    registry: Any, enrolled: Enrol, train: Train
) -> None:
    enrolment = enrolled()
    registry.identities.clear()
    with pytest.raises(RegistryError, match="no such identity") as refused:
        train(enrolment, epochs=2, on_outage="wait")
    assert refused.value.code == "caller.unknown-key"
    assert "register" in refused.value.advice


def test_a_store_that_was_completed_asks_for_nothing_again(
    registry: Any, enrolled: Enrol, train: Train
) -> None:
    enrolment = enrolled()
    train(enrolment, epochs=2, finish=False).close()
    before = len(registry.requests)
    train(enrolment, epochs=2, finish=False).close()
    assert len(registry.requests) == before


def test_the_receipt_that_a_kill_lost_is_the_same_again(
    registry: Any, enrolled: Enrol, train: Train, tmp_path: Path
) -> None:
    enrolment = enrolled()
    train(enrolment, epochs=2, finish=False).close()
    path = tmp_path / "proof"
    before = ProofFolder(path).manifest()
    os.remove(state_path_of(path) / "000002.answer.json")
    train(enrolment, epochs=2, finish=False).close()
    assert ProofFolder(path).manifest() == before
    assert len(registry.entries) == 3


def test_under_replay_training_waits_whatever_was_chosen(
    registry: Any, enrolled: Enrol, task: Any, alice: polo.Identity, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """The order of samples comes with the nonce."""
    monkeypatch.setattr("polo.prover.receiving.GRACE", 0.2)
    source = polo.DataSource(task.train_columns(), secret=bytes(32))
    recipe = polo.Recipe(samples=256, batch=32, every=4)
    enrolment = enrolled(replay=recipe, data=source.root, start="derived", strength=0.05)
    model = task.build_model()
    polo.draw_start(model, enrolment.folder)
    prover = polo.Prover(enrolment.folder, key=alice, store=tmp_path / "proof", data=source)
    optimizer = prover.recipe.optimizer(model)

    def epoch() -> None:
        for numbers in prover.sampler:
            task.train_step(model, optimizer, source.batch(numbers))
        prover.end_epoch()

    with prover.attach(model, optimizer, evaluate=lambda: task.evaluate(model)):
        epoch()
        registry.stop()
        threading.Timer(1.0, registry.start).start()
        with pytest.warns(polo.ReceiptWarning, match="the order of samples comes from it"):
            epoch()
        assert prover.shards == 2
        assert not prover._receiving.open
        epoch()
    proof = prover.finish()
    assert proof.shards == 3
    assert [shard.receipt.shard for shard in proof.manifest.shards] == [1, 2, 3]


def test_the_statement_on_other_chains_becomes_part_of_the_proof(
    registry: Any, enrolled: Enrol, train: Train, task: Any
) -> None:
    proof = train(enrolled(uniqueness=True), epochs=2)
    assert "evidence/uniqueness/000002.json" in {file.path for file in proof.manifest.files}
    name = proof.manifest.enrolment.digest.hex()
    assert registry.manifests[name] == proof.manifest.to_bytes()
    accepted(proof.path, registry, task)


def test_a_statement_on_other_weights_is_refused(
    registry: Any, enrolled: Enrol, train: Train
) -> None:
    registry.lie = "statement"
    with pytest.raises(DistrustError, match="not about this proof's last shard") as found:
        train(enrolled(uniqueness=True), epochs=1)
    assert found.value.code == "registry.wrong-statement"
    assert not registry.manifests


def test_a_closed_chain_is_left_as_it_is(
    registry: Any, enrolled: Enrol, train: Train, task: Any
) -> None:
    """Who starts the same script with more epochs must not spoil the proof that was accepted."""
    enrolment = enrolled()
    closed = train(enrolment, epochs=2).manifest
    # The same once more changes nothing.
    assert train(enrolment, epochs=2).manifest == closed
    with pytest.raises(ChainError, match="closed at its registry") as refused:
        train(enrolment, epochs=4)
    assert "--parent" in refused.value.advice
    assert ProofFolder(refused.value.place).manifest() == closed
    accepted(Path(refused.value.place), registry, task)
