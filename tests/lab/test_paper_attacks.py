import json
from dataclasses import replace

import pytest
import torch

from polo.embedding.placement import Placement, parameters_of
from polo.errors import PoloError
from polo.protocol.detection import MILLION
from polo.watermark.mark import carrier_of, derive
from polo.watermark.reading import read
from polo.weights.checkpoint import checkpoint_of
from polo.weights.loading import load_into
from polo_lab.attacks import ofa, takeover, wma
from polo_lab.attacks.takeover import Pull
from polo_lab.attacks.victim import Victim
from polo_lab.baselines.job import Job, setting_of
from polo_lab.schemes.training import Setting
from polo_lab.tasks import DigitsConv

SETTINGS = {
    "task": "lab-digits",
    "epochs": 3,
    "bits": 256,
    "strength": 0.02,
    "device": "cpu",
    "thief_scheme": "ednn",
    "thief_strength": 0.02,
}


@pytest.fixture(scope="module")
def victim(tmp_path_factory):
    folder = tmp_path_factory.mktemp("owner") / "proof"
    return Victim.train(Job.of(SETTINGS), setting_of(SETTINGS), folder)


def test_an_owner_reads_their_marks_in_their_checkpoints(victim):
    assert victim.shards == 3
    model = victim.job.lab_task.build_model()
    assert victim.reading(2, model).eta < 0.7
    assert victim.reading(3, victim.made.model).eta >= 0.99


def test_overhaul_fine_tuning(victim, tmp_path):
    weights = [parameter.detach().clone() for parameter in victim.made.model.parameters()]
    row = json.loads(json.dumps(ofa.run({**SETTINGS, "rounds": 1}, tmp_path, victim)))
    stages = row["stages"]
    assert [stage["shard"] for stage in stages] == [1, 2, 3]
    assert row["rate"] == 0.1
    assert all(stage["owner_eta"] > 0.9 and stage["owner_log2_p"] < -64 for stage in stages)
    assert all(stage["thief_eta"] > 0.99 for stage in stages)
    assert all(stage["accuracy"] > stage["accuracy_before"] - 0.05 for stage in stages)
    assert row["attack_seconds"] == pytest.approx(sum(stage["seconds"] for stage in stages))
    assert row["thief_accepted"]
    assert row["owner_first"]
    assert row["claim"]["claimed"]
    after = victim.made.model.parameters()
    assert all(torch.equal(one, other) for one, other in zip(weights, after, strict=True))


def test_rounds_are_those_of_the_paper(victim, tmp_path):
    row = ofa.run({**SETTINGS, "shards": 1}, tmp_path, victim)
    assert row["rounds"] == 3
    assert row["attacked_shards"] == 1
    assert ofa.rounds_for(2048) == 5


@pytest.mark.filterwarnings("ignore::polo.EmbeddingWarning")
def test_a_thief_without_a_shard_leaves_the_owner_first(victim, tmp_path):
    """With next to no budget for the last edit no mark of the thief's settles in one round."""
    setting = Setting("riga", 256, budget=1e-6)
    row = ofa.attack(victim, ofa.Attack(setting, rounds=1, shards=1), tmp_path)
    assert row["thief_shards"] == 0
    assert not row["thief_accepted"]
    assert row["owner_first"]


def test_what_a_checkpoint_is_worth_is_known(victim):
    """As it was measured when it was sealed, to the millionth that proofs state."""
    model = victim.job.lab_task.build_model()
    for shard in range(1, victim.shards + 1):
        load_into(model, victim.checkpoint(shard))
        measured = victim.job.evaluate(model)
        assert victim.accuracy(shard) == pytest.approx(measured, abs=1e-6)


@pytest.mark.parametrize("way", wma.WAYS)
def test_weight_manipulation(victim, tmp_path, way):
    row = json.loads(json.dumps(wma.run({**SETTINGS, "way": way}, tmp_path, victim)))
    assert not row["problem"]
    assert len(row["stages"]) == victim.shards == row["thief_shards"]
    assert all(stage["thief_eta"] > 0.99 for stage in row["stages"])
    assert row["owner_eta_least"] > 0.8
    assert row["attack_seconds"] < row["honest_seconds"]
    assert row["owner_first"]


def test_what_is_no_way_is_refused(victim, tmp_path):
    with pytest.raises(PoloError, match="no way"):
        wma.run({**SETTINGS, "way": "prayer"}, tmp_path, victim)


def test_takeover_of_two_shards(victim, tmp_path):
    settings = {**SETTINGS, "shards": 2, "most": 2}
    row = json.loads(json.dumps(takeover.run(settings, tmp_path, victim)))
    assert row["blind"] == 0.1
    assert [(point["shard"], point["epoch"]) for point in row["curve"]] == [
        (1, 1),
        (1, 2),
        (2, 1),
        (2, 2),
    ]
    seconds = [point["seconds"] for point in row["curve"][:2]]
    assert 0 < seconds[0] < seconds[1]
    assert row["curve"][1]["thief_eta"] > row["curve"][0]["thief_eta"] - 0.05
    assert row["erased"] == [False, False]
    assert row["claim"]["claimed"]


def test_an_erased_mark_and_a_settled_one_end_a_shard(victim, tmp_path):
    """If verifiers asked for more than every bit, no mark would do: a settled one ends it."""
    terms = victim.made.terms
    strict = replace(terms, thresholds=replace(terms.thresholds, verify=MILLION + 1))
    other = replace(victim, made=replace(victim.made, terms=strict))
    settings = {**SETTINGS, "shards": 1, "most": 8, "rate_share": 1.0}
    row = takeover.run(settings, tmp_path, other)
    *before, last = row["curve"]
    assert row["erased"] == [True]
    assert last["sealed"]
    assert last["epoch"] < 8
    assert not any(point["sealed"] for point in before)


def test_riga_marks_are_pressed_without_data():
    """The closed form alone leaves bits."""
    task = DigitsConv()
    terms = setting_of({"scheme": "riga", "bits": 256}).terms(task)
    torch.manual_seed(3)
    model = task.build_model()
    carrier = carrier_of(terms, checkpoint_of(model).layout)
    mark = derive(terms, carrier, bytes(32))
    values = Placement(carrier, mark.blocks, parameters_of(model)).gather(torch.float64)
    after = wma.pressed(mark, terms, values)
    assert read(mark, after.numpy()).eta >= 0.99
    assert float((after - values).norm() / values.norm()) < 1


def test_the_pull_is_the_gradient_of_its_loss():
    torch.manual_seed(0)
    parameters = [torch.nn.Parameter(torch.randn(shape)) for shape in ((3, 4), (5,))]
    pull = Pull(parameters, 0.1)
    starts = [parameter.detach().clone() for parameter in parameters]
    with torch.no_grad():
        for parameter in parameters:
            parameter.add_(torch.randn_like(parameter))
    pairs = list(zip(parameters, starts, strict=True))
    loss = 0.1 * sum((now - then).square().mean() for now, then in pairs)
    wanted = torch.autograd.grad(loss, parameters)
    assert 0.1 * pull.loss() == pytest.approx(float(loss.detach()))
    for parameter in parameters:
        parameter.grad = torch.ones_like(parameter)
    pull.add_gradient()
    for parameter, gradient in zip(parameters, wanted, strict=True):
        torch.testing.assert_close(parameter.grad, 1 + gradient)
