import pytest
import torch
from safetensors.torch import save_file

import polo
from polo.ownership import Finding, Order, compare, identify
from polo.weights import checkpoint_of, commit
from polo_lab.attacks.overwriting import overwrite


@pytest.fixture
def theft(task, make_proof, tmp_path, issuer):
    made = make_proof(epochs=8)
    done = overwrite(
        made.model,
        task,
        task.train_epoch,
        store=tmp_path / "thief",
        issuer=issuer,
        epochs=3,
        learning_rate=0.05,
        bits=128,
    )
    return made, done


def test_the_thief_gets_a_proof_that_verifies(theft, task, issuer):
    made, done = theft
    assert done.proof.shards == 3
    verdict = polo.verify(done.proof.path, trust=issuer.public_key, task=task)
    assert verdict.outcome is polo.Outcome.ACCEPTED
    assert done.proof.manifest.enrolment.identity != made.manifest.enrolment.identity
    assert task.evaluate(done.model) >= task.evaluate(made.model) - 0.1


def test_the_stolen_model_stays_as_it_is(theft):
    made, done = theft
    changed = [
        not torch.equal(one, other)
        for one, other in zip(made.model.parameters(), done.model.parameters(), strict=True)
    ]
    assert all(changed)
    assert made.manifest.last_root == commit(checkpoint_of(made.model)).root


def test_the_owner_still_came_first(theft, issuer):
    made, done = theft
    found = compare(made.path, done.proof.path, trust=issuer.public_key)
    assert found.order is Order.FIRST, found.headline()


def test_both_are_named_in_the_model(theft, issuer, tmp_path):
    made, done = theft
    path = tmp_path / "found.safetensors"
    save_file(done.model.state_dict(), path)
    result = identify(path, [made.path, done.proof.path], trust=issuer.public_key)
    assert [claim.finding for claim in result.claims] == [Finding.CLAIM] * 2
