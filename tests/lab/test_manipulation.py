import torch

import polo
from polo.ownership import Order, compare
from polo_lab.attacks.manipulation import manipulate


def test_the_thief_gets_a_proof_without_a_training_step(task, make_proof, tmp_path, issuer):
    made = make_proof(epochs=8)
    store = tmp_path / "thief"
    weight = made.model[3].weight.detach().clone()
    stolen = manipulate(made.model, task, store=store, issuer=issuer, shards=4, bits=128)
    verdict = polo.verify(store, trust=issuer.public_key, task=task)
    assert verdict.outcome is polo.Outcome.ACCEPTED
    assert verdict.facts["shards"] == 4
    assert torch.equal(made.model[3].weight, weight)
    assert not torch.equal(stolen[3].weight, weight)
    assert task.evaluate(stolen) >= task.evaluate(made.model) - 0.2
    found = compare(made.path, store, trust=issuer.public_key)
    assert found.order is Order.FIRST, found.headline()
