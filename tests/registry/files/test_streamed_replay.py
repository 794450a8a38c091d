"""While a chain grows: steps of its newest shard are run again before the receipt."""

import shutil
import time
from dataclasses import replace

import httpx2
import pytest
from sqlalchemy import select

import polo
from polo.cli import run
from polo.client.client import Client
from polo.client.courier import LiveNonces
from polo.errors import OutageError, RegistryError
from polo.evidence.replay.data import DataSource
from polo.protocol import signing
from polo.protocol.challenge import Challenge
from polo.protocol.verdicts import Others, SignedVerdict
from polo.registry.enrolments import past
from polo.registry.jobs import HANDLERS
from polo.registry.schema import challenges, commitments, objects
from polo.registry.settings import Settings
from polo.registry.tasks.service import Tasks
from polo.registry.verifications import sandbox
from polo.storage.folder import checkpoint_path, rest_path, state_path_of
from polo.tasks.digits import Digits
from polo.verifier import Policy, Status

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore::polo.prover.receiving.ReceiptWarning"),
    pytest.mark.parametrize("database_url", ["sqlite"], indirect=True),
]

OFFERS = """
[digits]
shards = 3
fewest_shards = 1
bits = 128
strength = 0.02
history = "streaming"
start = "derived"
replays = 1
answer_within = 600
recipe = { batch = 256, every = 2, draws = 1, top = 1, seals = 1 }
"""


@pytest.fixture(scope="session")
def built(tmp_path_factory):
    """What torch knows of the digits, worked out once."""
    folder = tmp_path_factory.mktemp("built-replay")
    (folder / "tasks.toml").write_text(OFFERS)
    Tasks(folder, str(folder / "tasks.toml")).get("digits")
    return folder


@pytest.fixture
def clock():
    return lambda: int(time.time())


@pytest.fixture
def settings(tmp_path, database_url, built):
    data = tmp_path / "data"
    shutil.copytree(built, data, dirs_exist_ok=True)
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


@pytest.fixture
def source(tmp_path):
    return DataSource.create(tmp_path / "source", Digits().train_columns())


@pytest.fixture
def enrolment(connected, source, tmp_path):
    return connected.enrol("digits", data=source.record.to_json()).save(tmp_path / "enrolment")


def train(enrolment, key, store, source, *, shards=2, step=None, task=None, on_outage="wait"):
    task = task or Digits()
    model = task.build_model()
    polo.draw_start(model, enrolment)
    prover = polo.Prover(
        enrolment,
        key=key,
        store=store,
        data=source,
        task=task,
        retention="streaming",
        on_outage=on_outage,
    )
    optimizer = prover.recipe.optimizer(model)
    try:
        with prover.attach(model, optimizer, evaluate=lambda: task.evaluate(model)):
            while prover.shards < shards:
                for numbers in prover.sampler:
                    task.train_step(model, optimizer, source.batch(numbers))
                    if step:
                        step(prover, model)
                prover.end_epoch()
        return prover.finish(wait=120)
    finally:
        prover.close()


def verified(client, proof, name):
    for file in proof.manifest.files:
        if file.path.startswith("evidence/"):
            shard = int(file.path.rpartition("/")[2][:6])
            client.upload(proof.path / file.path, enrolment=name, kind="record", shard=shard)
    made = client.verify(name)
    deadline = time.monotonic() + 300
    while (done := client.verification(made["id"]))["state"] not in ("done", "broken"):
        assert time.monotonic() < deadline, done
        time.sleep(0.2)
    return made, done


def crashed(*_):
    raise RuntimeError("enough")


def test_honest_steps_come_out_and_weights_are_let_go(
    registry, connected, enrolment, source, alice, tmp_path, monkeypatch
):
    with monkeypatch.context() as patch:
        patch.setattr(LiveNonces, "_begin_replay", crashed)
        with pytest.raises(RuntimeError, match="enough"):
            train(enrolment, alice, tmp_path / "proof", source)
    # Whoever was killed when steps were drawn answers when the run goes on.
    proof = train(enrolment, alice, tmp_path / "proof", source)
    asked = connected.challenges(enrolment.id)
    replays = [(item["shard"], item["state"]) for item in asked if item["kind"] == "replay"]
    assert replays == [(1, "passed"), (2, "passed")]
    assert "to the bit" in asked[0]["detail"]
    assert "accuracy" in asked[0]["detail"]
    # Of the weights only what the last shard ended with is left, and of the optimizer's state.
    assert not (proof.path / checkpoint_path(1)).exists()
    assert (proof.path / checkpoint_path(2)).exists()
    state = state_path_of(proof.path)
    assert not (state / rest_path(1)).exists()
    assert not list(state.glob("replay*"))
    made, done = verified(connected, proof, enrolment.id)
    assert done["outcome"] == "accepted", done
    verdict = SignedVerdict.from_json(done["verdict"], "verdict")
    (draw,) = [check for check in verdict.checks if check.name == "draw"]
    assert "shards 1 and 2, out of 2 shards" in draw.detail
    assert draw.figures["escape_shard"] == "0.0"
    assert b"while the chain grew" in connected.report(made["id"])
    # Whoever is not the registry has its word for it, and no more.
    issuer = proof.manifest.enrolment.issuer
    own = polo.verify(proof.path, trust=issuer, policy=Policy("none"))
    open_ = [check for check in own.of(Status.UNDECIDED) if check.name == "draw"]
    assert "what came of it is not in the proof" in open_[0].detail
    with registry.database.read() as connection:
        kept = connection.execute(
            select(objects.c.keep_until).where(objects.c.kind == "answer")
        ).scalars()
        assert all(kept)


class Lazy(Digits):
    """Makes half of every step: the declared computation was not done."""

    def train_step(self, model, optimizer, batch):
        half = {name: values[: len(values) // 2] for name, values in batch.items()}
        super().train_step(model, optimizer, half)


def refused_in(connected, enrolment):
    """How the one challenge ended, whose chain has failed."""
    assert connected.enrolment(enrolment.id)["state"] == "failed"
    (asked,) = connected.challenges(enrolment.id)
    assert (asked["kind"], asked["shard"], asked["state"]) == ("replay", 1, "failed")
    return asked["detail"]


def test_half_of_every_step_is_found_out(connected, enrolment, source, alice, tmp_path):
    """The forger's states lie end to end, and are shown as they were recorded."""
    with pytest.raises(RegistryError, match="ended badly"):
        train(enrolment, alice, tmp_path / "proof", source, task=Lazy())
    detail = refused_in(connected, enrolment)
    assert detail.startswith("segment (shard 1, segment 0): came out otherwise than recorded")


@pytest.mark.full
def test_weights_that_no_recorded_step_led_to_are_found_out(
    connected, enrolment, source, alice, tmp_path
):
    """All steps are honest; only what is sealed is another model."""

    def graft(prover, model):
        import torch

        if prover.steps == 6:  # The last of the epoch; the recorder has seen its end.
            with torch.no_grad():
                next(iter(model.parameters())).mul_(1.01)

    with pytest.raises(RegistryError, match="ended badly"):
        train(enrolment, alice, tmp_path / "proof", source, step=graft)
    detail = refused_in(connected, enrolment)
    assert detail.startswith(("record (shard 1): its sealing moved", "sealing (shard 1)"))


@pytest.mark.full
def test_a_changed_answer_is_a_failed_one(
    connected, enrolment, source, alice, tmp_path, monkeypatch
):
    from polo.prover import answering

    real = answering.pack

    def changed(folder, challenge, out):
        victim = folder / challenge.segments[-1].file("rest")
        data = bytearray(victim.read_bytes())
        data[-1] ^= 1
        victim.write_bytes(data)
        real(folder, challenge, out)

    monkeypatch.setattr(answering, "pack", changed)
    with pytest.raises(RegistryError, match="ended badly"):
        train(enrolment, alice, tmp_path / "proof", source)
    assert "is not the state that was recorded" in refused_in(connected, enrolment)


def test_nobody_draws_twice_and_silence_fails(
    registry, connected, enrolment, source, alice, tmp_path, monkeypatch
):
    """Whoever commits again, after a crash or hoping for better luck, gets the same draw."""
    sent = []

    def crash(self, delivery, asked):
        sent.append((delivery, connected.challenge(asked.id)))
        raise RuntimeError("enough")

    monkeypatch.setattr(LiveNonces, "_begin_replay", crash)
    for _ in range(2):
        with pytest.raises(RuntimeError, match="enough"):
            train(enrolment, alice, tmp_path / "proof", source)
    (first, said), (again, repeated) = sent
    assert first.entry == again.entry
    assert said == repeated
    challenge = Challenge.from_json(said["record"], "challenge")
    assert challenge.proof == first.entry.leaf
    assert challenge.sealings == (1,)
    assert challenge.segments[0].segment == 0
    assert {place.shard for place in challenge.segments} == {1}
    other = signing.sign(replace(first.entry, shard=replace(first.entry.shard, sealed=1)), alice)
    with pytest.raises(RegistryError) as refusal:
        connected.commit(other, enrolment.record, enrolment.memory())
    assert refusal.value.code == "commitment.differs"
    with registry.database.begin() as connection:
        connection.execute(challenges.update().values(due=1))
    HANDLERS["challenges.expire"](registry, "")
    assert "not answered in time" in refused_in(connected, enrolment)


def test_without_its_record_a_shard_is_not_taken(
    registry, connected, enrolment, source, alice, tmp_path, monkeypatch
):
    """So nothing can be drawn before the record is fixed, nor from another one than it names."""
    real = LiveNonces._bring

    def other(self, delivery, kind):
        if kind != "record":
            return real(self, delivery, kind)
        file = delivery.submission.files[kind]
        data = bytearray((delivery.submission.folder / file.path).read_bytes())
        data[200] ^= 1
        (tmp_path / "record").write_bytes(data)
        return connected.upload(
            tmp_path / "record", enrolment=enrolment.id, kind=kind, shard=delivery.number
        )

    monkeypatch.setattr(LiveNonces, "_bring", other)
    with pytest.raises(RegistryError) as refusal:
        train(enrolment, alice, tmp_path / "proof", source)
    assert refusal.value.code == "commitment.missing-record"
    assert not connected.challenges(enrolment.id)
    with registry.database.read() as connection:
        taken = connection.execute(select(commitments.c.shard)).scalars().all()
    assert taken == [0]


def test_what_cannot_be_decided_gets_no_receipt_until_it_can(
    registry, connected, enrolment, source, alice, tmp_path, monkeypatch, served, token_of
):
    """It is not the prover's fault for sure, so the chain does not fail; an operator must look."""
    with monkeypatch.context() as patch:
        undecided = {"undecided": "came out otherwise, on another platform"}
        patch.setattr(sandbox, "run", lambda *_, **__: undecided)
        patch.setattr("polo.prover.receiving.GRACE", 0.1)
        with pytest.raises(OutageError, match="could not check what was shown: came out otherwise"):
            train(enrolment, alice, tmp_path / "proof", source, on_outage="stop")
    (asked,) = connected.challenges(enrolment.id)
    assert (asked["state"], asked["shard"]) == ("answered", 1)
    assert connected.enrolment(enrolment.id)["state"] == "open"
    with registry.database.read() as connection:
        rows = connection.execute(select(commitments.c.receipt).order_by(commitments.c.shard))
        assert [row.receipt is None for row in rows] == [False, True]
        assert past.others(connection, alice.id) == Others(0, 0, 1, 0)
    operator = {"Authorization": f"Bearer {token_of('operator')}"}
    assert asked["detail"] in httpx2.get(f"{served}/operator", headers=operator).text
    again = f"{served}/v1/challenges/{asked['id']}/check"
    assert httpx2.post(again, headers=operator).status_code == 202
    proof = train(enrolment, alice, tmp_path / "proof", source, shards=1)
    assert len(proof.manifest.shards) == 1
    assert connected.challenge(asked["id"])["state"] == "passed"
    assert httpx2.post(again, headers=operator).json()["code"] == "challenge.over"


@pytest.mark.full
def test_a_run_that_will_not_go_on_answers_by_submitting(
    connected, enrolment, source, alice, tmp_path, monkeypatch, capsys
):
    from safetensors.numpy import save_file

    with monkeypatch.context() as patch:
        patch.setattr(LiveNonces, "_begin_replay", crashed)
        with pytest.raises(RuntimeError, match="enough"):
            train(enrolment, alice, tmp_path / "proof", source)
    alice.save(tmp_path / "alice.key")
    save_file(Digits().train_columns(), tmp_path / "train.safetensors")
    submit = ["submit", str(tmp_path / "proof"), "--key", str(tmp_path / "alice.key"), "--close"]
    assert run([*submit, "--no-verify"]) == 2
    assert "give --data and --arrays" in capsys.readouterr().err.replace("\n", " ")
    means = ["--data", str(tmp_path / "source"), "--arrays", str(tmp_path / "train.safetensors")]
    assert run([*submit, *means, "--no-verify"]) == 0
    assert "shard 1 has its receipt now" in capsys.readouterr().out
    assert connected.enrolment(enrolment.id)["state"] == "closed"
    (asked, _) = connected.challenges(enrolment.id)
    assert (asked["kind"], asked["state"]) == ("replay", "passed")
