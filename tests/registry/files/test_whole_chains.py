"""Whole chains at a real server: of a task larger than digits, and under a change of keys."""

import time

import pytest
import torch

import polo
from polo import tasks
from polo.cli import run
from polo.client.client import Client
from polo.keys import Ed25519Verifier
from polo.protocol import signing
from polo.protocol.verdicts import SignedVerdict
from polo.registry.settings import Settings
from polo.storage.bundle import whole, write_bundle
from polo.storage.folder import ProofFolder
from polo.verifier import Outcome

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore::polo.prover.receiving.ReceiptWarning"),
]

LARGER = "lab-digits-resnet-thin"
"""A residual network, the same kind as lab-cifar's; its data come with scikit-learn."""

ORIGIN = "registry.test/log"
OFFERS = f"""
[{LARGER}]
shards = 4
fewest_shards = 1
bits = 256
strength = 0.02
history = "all"
"""


@pytest.fixture
def clock():
    return lambda: int(time.time())


@pytest.fixture
def settings(tmp_path):
    (tmp_path / "tasks.toml").write_text(OFFERS)
    return Settings(data=tmp_path / "data", origin=ORIGIN, tasks=str(tmp_path / "tasks.toml"))


@pytest.fixture
def connected(served, alice):
    with Client(served, alice) as client:
        client.register("Alice")
        yield client


def train(enrolment, key, store, *, shards, each=lambda _: None):
    """A chain of the larger task, two epochs a shard."""
    task = tasks.load(LARGER)
    torch.manual_seed(0)
    model = task.build_model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    inputs, labels = task.train_part
    prover = polo.Prover(enrolment, key=key, store=store, on_outage="wait")
    try:
        with prover.attach(model, optimizer, evaluate=lambda: task.evaluate(model)):
            for shard in range(1, shards + 1):
                for at in (*torch.randperm(len(labels)).split(64),) * 2:
                    task.train_step(model, optimizer, {"input": inputs[at], "label": labels[at]})
                prover.end_epoch()
                each(shard)
        return prover.finish(wait=120)
    finally:
        prover.close()


def verdict_on(connected, proof, bundle):
    """What the registry finds, given the whole proof."""
    name = proof.manifest.enrolment.digest.hex()
    write_bundle(ProofFolder(proof.path), bundle, whole(proof.manifest))
    made = connected.verify(name, connected.upload(bundle, enrolment=name, kind="proof"))
    deadline = time.monotonic() + 180
    while (found := connected.verification(made["id"]))["state"] not in ("done", "broken"):
        assert time.monotonic() < deadline, found
        time.sleep(0.2)
    assert found["outcome"] == "accepted", found
    return SignedVerdict.from_json(found["verdict"], "verdict")


def test_a_larger_task_is_enrolled_committed_and_verified(connected, alice, tmp_path):
    enrolment = connected.enrol(LARGER).save(tmp_path / "enrolment")
    proof = train(enrolment, alice, tmp_path / "proof", shards=3)
    assert proof.shards == 3
    name = proof.manifest.enrolment.digest.hex()
    assert [item["shard"] for item in connected.commitments(name)] == [0, 1, 2, 3]
    verdict = verdict_on(connected, proof, tmp_path / "alice.polo")
    assert verdict.proof == proof.manifest.digest


def test_the_issuer_s_key_changes_in_the_middle_of_a_run(
    registry, connected, alice, tmp_path, capsys
):
    """What the old key signed stays valid, and it goes on signing for the chain it enrolled."""
    enrolment = connected.enrol(LARGER).save(tmp_path / "enrolment")
    old = enrolment.record.issuer

    def rotate(shard):
        if shard == 1:
            place = ["--data", str(registry.settings.data), "--set", f"origin={ORIGIN}"]
            assert run(["registry", "keys", "rotate", *place]) == 0

    proof = train(enrolment, alice, tmp_path / "proof", shards=2, each=rotate)
    manifest = proof.manifest
    receipts = [manifest.start.receipt, *(shard.receipt for shard in manifest.shards)]
    assert [receipt.shard for receipt in receipts] == [0, 1, 2]
    for receipt in receipts:
        signing.check(receipt, old, Ed25519Verifier(), place="receipt")
    # Who trusts the old key alone accepts it all, from the folder and from the registry.
    found = polo.verify(proof.path, trust=old)
    assert found.outcome is Outcome.ACCEPTED, found.headline()
    verdict = verdict_on(connected, proof, tmp_path / "alice.polo")
    signing.check(verdict, old, Ed25519Verifier(), place="verdict")
    # Whoever enrols now has the new key, which is among those that the registry names.
    new = connected.enrol(LARGER).record.issuer
    assert new != old
    assert new.hex() in capsys.readouterr().out
    named = {item["key"]: item["until"] for item in connected.registry()["keys"]}
    assert named[old.hex()] is not None
    assert named[new.hex()] is None
