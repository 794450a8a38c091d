"""Whole chains: trained against a real server, challenged, closed, verified, signed."""

import hashlib
import time

import pytest
from sqlalchemy import select

import polo
from polo.client.client import Client
from polo.errors import RegistryError
from polo.keys import Ed25519Verifier
from polo.protocol import signing
from polo.protocol.verdicts import SignedVerdict
from polo.registry.schema import challenges, enrolments, events
from polo.registry.settings import Settings
from polo.registry.tasks.service import Tasks
from polo.tasks.digits import Digits

pytestmark = pytest.mark.filterwarnings("ignore::polo.prover.receiving.ReceiptWarning")

OFFERS = """
[digits]
shards = 6
fewest_shards = 1
bits = 128
strength = 0.02
history = "{history}"
checkpoints = {checkpoints}
answer_within = 600
"""


@pytest.fixture(scope="session")
def built(tmp_path_factory):
    """What torch knows of the digits, worked out once."""
    folder = tmp_path_factory.mktemp("built")
    (folder / "tasks.toml").write_text(OFFERS.format(history="streaming", checkpoints=1))
    Tasks(folder, str(folder / "tasks.toml")).get("digits")
    return folder


@pytest.fixture
def history():
    return "streaming"


@pytest.fixture
def clock():
    return lambda: int(time.time())


@pytest.fixture
def settings(tmp_path, database_url, built, history):
    import shutil

    data = tmp_path / "data"
    shutil.copytree(built / "tasks", data / "tasks")
    (data / "tasks.toml").write_text(OFFERS.format(history=history, checkpoints=1))
    return Settings(
        data=data,
        database=database_url,
        origin="registry.test/log",
        rate=100_000,
        guest_rate=100_000,
        tasks=str(data / "tasks.toml"),
    )


@pytest.fixture
def connected(served, alice):
    with Client(served, alice) as client:
        client.register("Alice")
        yield client


def train(enrolment, key, store, *, epochs=3, each=lambda *_: None, **options):
    import torch

    task = Digits()
    torch.manual_seed(0)
    model = task.build_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    options = {"retention": "streaming", "on_outage": "wait", **options}
    prover = polo.Prover(enrolment, key=key, store=store, **options)
    try:
        with prover.attach(model, optimizer, evaluate=lambda: task.evaluate(model)):
            for epoch in range(epochs):
                task.train_epoch(model, optimizer)
                prover.end_epoch()
                each(epoch, prover)
        return prover.finish(wait=120)
    finally:
        prover.close()


def wait_for(look, *states, seconds=120):
    deadline = time.monotonic() + seconds
    while (found := look())["state"] not in states:
        assert time.monotonic() < deadline, found
        time.sleep(0.2)
    return found


def upload_missing(client, proof, name):
    """Send what the registry says it lacks."""
    for file in proof.manifest.files:
        if file.path.startswith("evidence/"):
            shard = int(file.path[-11:-5]) if file.path.endswith("json") else 1
            client.upload(proof.path / file.path, enrolment=name, kind="record", shard=shard)


@pytest.mark.slow
@pytest.mark.full
def test_a_streamed_chain_is_challenged_closed_and_verified(registry, connected, alice, tmp_path):
    enrolment = connected.enrol("digits").save(tmp_path / "enrolment")
    proof = train(enrolment, alice, tmp_path / "proof")
    name = proof.manifest.enrolment.digest.hex()
    asked = connected.challenges(name)
    assert [item["shard"] for item in asked] == [1, 2, 3]
    assert {item["state"] for item in asked} == {"passed"}
    assert "accuracy" in asked[2]["detail"]
    with pytest.raises(RegistryError) as refusal:
        connected.verify(name)
    assert refusal.value.code == "verification.incomplete"
    upload_missing(connected, proof, name)
    made = connected.verify(name)
    done = wait_for(lambda: connected.verification(made["id"]), "done", "broken")
    assert done["outcome"] == "accepted", done
    verdict = SignedVerdict.from_json(done["verdict"], "verdict")
    signing.check(verdict, proof.manifest.enrolment.issuer, Ed25519Verifier(), place="verdict")
    assert verdict.proof == proof.manifest.digest
    assert [item.state for item in verdict.challenges] == ["passed"] * 3
    page = connected.report(made["id"])
    assert hashlib.sha256(page).digest() == verdict.report
    assert b"ACCEPTED" in page
    # Once more, from the bundle.
    bundle = tmp_path / "alice.polo"
    from polo.storage.bundle import whole, write_bundle
    from polo.storage.folder import ProofFolder

    write_bundle(ProofFolder(proof.path), bundle, whole(proof.manifest))
    sent = connected.upload(bundle, enrolment=name, kind="proof")
    again = connected.verify(name, sent)
    done = wait_for(lambda: connected.verification(again["id"]), "done", "broken")
    assert done["outcome"] == "accepted", done


@pytest.mark.slow
def test_a_checkpoint_of_other_weights_fails_the_chain(registry, connected, alice, tmp_path):
    """The prover commits to one model, and shows another of the same layout."""
    enrolment = connected.enrol("digits").save(tmp_path / "enrolment")
    name = enrolment.record.digest.hex()
    from polo.client.courier import LiveNonces

    real = LiveNonces._bring

    def lie(self, delivery, kind):
        if kind == "checkpoint":
            file = delivery.submission.files[kind]
            path = delivery.submission.folder / file.path
            changed = bytearray(path.read_bytes())
            changed[-1] ^= 1
            other = tmp_path / "other.safetensors"
            other.write_bytes(changed)
            return self._client.upload(other, enrolment=name, kind=kind, shard=delivery.number)
        return real(self, delivery, kind)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(LiveNonces, "_bring", lie)
        with pytest.raises(RegistryError):
            train(enrolment, alice, tmp_path / "proof")
    assert connected.enrolment(name)["state"] == "failed"
    (asked,) = connected.challenges(name)
    assert (asked["state"], "root" in asked["detail"]) == ("failed", True)


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
@pytest.mark.parametrize("history", ["after-close"])
@pytest.mark.slow
def test_after_the_close_what_is_drawn_must_be_shown(registry, connected, alice, tmp_path):
    enrolment = connected.enrol("digits").save(tmp_path / "enrolment")
    proof = train(enrolment, alice, tmp_path / "proof", retention="all")
    name = proof.manifest.enrolment.digest.hex()
    for item in connected.challenges(name):
        wait_for(lambda item=item: connected.challenge(item["id"]), "passed", "failed")
    asked = connected.challenges(name)
    assert sorted(item["shard"] for item in asked) == [1, 2, 3]
    assert {item["state"] for item in asked} == {"passed"}, asked


@pytest.mark.slow
def test_an_unanswered_challenge_is_a_failed_one(registry, connected, alice, tmp_path):
    from polo.registry.jobs import HANDLERS

    enrolment = connected.enrol("digits").save(tmp_path / "enrolment")
    name = enrolment.record.digest.hex()
    from polo.client.courier import LiveNonces

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(LiveNonces, "_respond", lambda *_: None)
        options = {"on_outage": "go on", "each": lambda *_: overdue(registry)}
        with pytest.raises(RuntimeError, match="enough"):
            train(enrolment, alice, tmp_path / "proof", epochs=1, **options)
    HANDLERS["challenges.expire"](registry, "")
    with registry.database.read() as connection:
        row = connection.execute(select(challenges)).one()
        state = connection.execute(select(enrolments.c.state)).scalar_one()
        actions = set(connection.execute(select(events.c.action)).scalars())
    assert (row.state, state) == ("failed", "failed")
    assert {"challenge.failed", "enrolment.failed"} <= actions
    assert connected.enrolment(name)["state"] == "failed"


def overdue(registry):
    """Wait until something was drawn, and let its time be over."""
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        with registry.database.begin() as connection:
            done = connection.execute(challenges.update().values(due=1))
            if done.rowcount:
                break
        time.sleep(0.1)
    raise RuntimeError("enough")
