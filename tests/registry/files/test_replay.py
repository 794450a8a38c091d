"""After the close: steps are drawn from the records, shown, and run again by the verification."""

import shutil
import time

import pytest

import polo
from polo.client.client import Client
from polo.evidence.replay import answer as answers
from polo.evidence.replay.data import DataSource
from polo.evidence.replay.recipe import Recipe
from polo.protocol.challenge import Challenge
from polo.protocol.verdicts import SignedVerdict
from polo.registry.settings import Settings
from polo.registry.tasks.service import Tasks
from polo.storage.answers import pack
from polo.storage.bundle import whole, write_bundle
from polo.storage.folder import ProofFolder
from polo.tasks.digits import Digits

pytestmark = [
    pytest.mark.slow,
    pytest.mark.full,
    pytest.mark.filterwarnings("ignore::polo.prover.receiving.ReceiptWarning"),
]

OFFERS = """
[digits]
shards = 3
fewest_shards = 1
bits = 128
strength = 0.02
history = "all"
answer_within = 600
recipe = { batch = 64, every = 8, draws = 2, top = 1, seals = 1 }
"""


@pytest.fixture
def clock():
    return lambda: int(time.time())


@pytest.fixture
def settings(tmp_path, database_url):
    data = tmp_path / "data"
    data.mkdir()
    (data / "tasks.toml").write_text(OFFERS)
    Tasks(data, str(data / "tasks.toml")).get("digits")
    return Settings(
        data=data,
        database=database_url,
        origin="registry.test/log",
        rate=100_000,
        guest_rate=100_000,
        tasks=str(data / "tasks.toml"),
    )


def train(enrolment, key, store, source):
    import torch

    task = Digits()
    torch.manual_seed(0)
    model = task.build_model()
    terms = enrolment.record.terms
    recipe = Recipe.from_settings(terms.evidence[-1].settings, "terms")
    optimizer = recipe.optimizer(model)
    prover = polo.Prover(enrolment, key=key, store=store, data=source, on_outage="wait")
    try:
        with prover.attach(model, optimizer, evaluate=lambda: task.evaluate(model)):
            for _ in range(2):
                for numbers in prover.sampler:
                    task.train_step(model, optimizer, source.batch(numbers))
                prover.end_epoch()
        return prover.finish(wait=120)
    finally:
        prover.close()


def wait_for(look, seconds=150):
    deadline = time.monotonic() + seconds
    while not (found := look()):
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.3)
    return found


def replay_of(client, name):
    return next((item for item in client.challenges(name) if item["kind"] == "replay"), None)


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
@pytest.mark.parametrize("honest", [True, False], ids=["honest", "broken answer"])
def test_steps_are_drawn_after_the_close(registry, served, alice, tmp_path, honest):
    with Client(served, alice) as client:
        client.register("Alice")
        source = DataSource.create(tmp_path / "source", Digits().train_columns())
        enrolment = client.enrol("digits", data=source.record.to_json())
        enrolment = enrolment.save(tmp_path / "enrolment")
        proof = train(enrolment, alice, tmp_path / "proof", source)
        name = proof.manifest.enrolment.digest.hex()
        assert replay_of(client, name) is None
        for file in proof.manifest.files:
            if file.path.startswith("evidence/replay/"):
                client.upload(
                    proof.path / file.path,
                    enrolment=name,
                    kind="record",
                    shard=int(file.path[-18:-12]),
                )
        asked = wait_for(lambda: replay_of(client, name))
        challenge = Challenge.from_json(asked["record"], "challenge")
        assert challenge.proof == proof.manifest.digest
        shown = answers.answer(
            proof.path, challenge, task=Digits(), data=source, key=alice, out=tmp_path / "answer"
        )
        if not honest:
            victim = next(path for path in sorted(shown.iterdir()) if "model" in path.name)
            changed = bytearray(victim.read_bytes())
            changed[-1] ^= 1
            victim.write_bytes(changed)
        pack(shown, challenge, tmp_path / "answer.tar")
        shutil.rmtree(shown)
        sent = client.upload(tmp_path / "answer.tar", enrolment=name, kind="answer")
        assert client.answer(asked["id"], sent)["state"] == "answered"
        write_bundle(ProofFolder(proof.path), tmp_path / "proof.polo", whole(proof.manifest))
        bundle = client.upload(tmp_path / "proof.polo", enrolment=name, kind="proof")
        made = client.verify(name, bundle)
        done = wait_for(
            lambda: (
                (found := client.verification(made["id"]))["state"] in ("done", "broken") and found
            )
        )
        assert done["outcome"] == ("accepted" if honest else "rejected"), done
        verdict = SignedVerdict.from_json(done["verdict"], "verdict")
        state = "passed" if honest else "failed"
        assert [(item.kind, item.state) for item in verdict.challenges] == [("replay", state)]
        assert client.enrolment(name)["state"] == ("closed" if honest else "failed")
