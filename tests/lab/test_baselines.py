import json
import shutil

import numpy as np
import pytest
import torch

from polo_lab.baselines import chain, plain, pol_hash, pol_vanilla, watermark_only, zk
from polo_lab.baselines.cheats import CHEATS
from polo_lab.baselines.distances import KINDS, distances
from polo_lab.baselines.initialisation import initialisation, kolmogorov_smirnov
from polo_lab.baselines.job import Job, setting_of
from polo_lab.baselines.trajectory import INDICES_FILE, RECORD_FILE
from polo_lab.tasks import Cancer
from polo_lab.training import DivergedError

SETTINGS = {"task": "lab-cancer", "epochs": 3, "batch": 32, "rate": 0.05, "device": "cpu"}
JOB = Job.of(SETTINGS)
TINY = {"l1": 1e-6, "l2": 1e-6, "linf": 1e-6, "cosine": 1e-12}


@pytest.fixture(scope="module")
def vanilla(tmp_path_factory):
    return pol_vanilla.prove(JOB, tmp_path_factory.mktemp("vanilla") / "proof")


@pytest.fixture(scope="module")
def hashed(tmp_path_factory):
    return pol_hash.prove(JOB, tmp_path_factory.mktemp("hash") / "proof")


def test_recording_changes_nothing_about_the_training(vanilla, hashed):
    state = plain.prove(JOB).model.state_dict()
    for other in (vanilla.state, hashed.state):
        assert all(torch.equal(state[name], other[name]) for name in state)


def test_an_honest_trajectory_is_accepted(vanilla):
    found = pol_vanilla.verify(vanilla.path, JOB)
    assert found.accepted, found.reasons
    assert found.figures["exact"] == found.figures["segments"] == 11
    assert found.figures["steps"] == JOB.steps
    assert all(found.figures["thresholds"][kind] > 0 for kind in KINDS)
    assert found.seconds["replaying"] > 0
    some = pol_vanilla.verify(vanilla.path, JOB, pol_vanilla.Options(1, TINY))
    assert some.accepted
    assert some.figures["segments"] == JOB.epochs


def test_adam_is_run_again_to_the_bit(tmp_path):
    job = Job.of({**SETTINGS, "epochs": 1, "optimizer": "adamw", "rate": 1e-3, "decay": 0.01})
    made = pol_hash.prove(job, tmp_path / "hash")
    found = pol_hash.verify(made.path, job, made.head)
    assert found.accepted, found.reasons
    proved = pol_vanilla.prove(job, tmp_path / "vanilla")
    assert pol_vanilla.verify(proved.path, job, pol_vanilla.Options(0, TINY)).accepted


@pytest.mark.parametrize(("name", "kind"), [("sgd", torch.optim.SGD), ("adamw", torch.optim.AdamW)])
def test_who_fine_tunes_has_the_jobs_optimizer_at_a_steady_part_of_its_rate(name, kind):
    job = Job.of({**SETTINGS, "optimizer": name, "schedule": "linear", "rise": 0.5})
    for decay, wanted in ((None, job.decay), (0.0, 0.0)):
        optimizer = job.tuner(torch.nn.Linear(2, 2), 0.1, decay=decay)
        assert type(optimizer) is kind
        [group] = optimizer.param_groups
        assert group["lr"] == pytest.approx(0.1 * job.rate)
        assert group["weight_decay"] == wanted


def test_thresholds_allow_for_another_machine_and_no_more(vanilla):
    """Here repetitions are the same; elsewhere they drift, and by far less than a step."""
    here = pol_vanilla.verify(vanilla.path, JOB).figures["thresholds"]
    away = pol_vanilla.verify(vanilla.path, JOB, pol_vanilla.Options(elsewhere=True))
    assert here == TINY
    assert away.accepted
    assert TINY["l2"] < away.figures["thresholds"]["l2"] < 0.05


@pytest.mark.parametrize("name", CHEATS)
def test_who_looks_at_everything_is_not_cheated(name, tmp_path):
    made = CHEATS[name](JOB, tmp_path / "vanilla", hashed=False).recorded
    found = pol_vanilla.verify(made.path, JOB, pol_vanilla.Options(0, TINY))
    assert not found.accepted
    assert found.reasons
    made = CHEATS[name](JOB, tmp_path / "hash", hashed=True).recorded
    assert not pol_hash.verify(made.path, JOB, made.head).accepted


def test_who_looks_at_the_largest_updates_alone_is_cheated(tmp_path):
    made = CHEATS["small_moves"](JOB, tmp_path / "proof", hashed=False)
    assert made.steps < 0.5 * JOB.steps
    options = pol_vanilla.Options(1, TINY)
    assert pol_vanilla.verify(made.recorded.path, JOB, options).accepted


def test_a_trajectory_made_up_afterwards_passes_where_the_largest_updates_are_looked_at(tmp_path):
    """Its start passes for drawn, though it lies near the stolen model that it leads to."""
    made = CHEATS["made_up"](JOB, tmp_path / "proof", hashed=False)
    found = pol_vanilla.verify(made.recorded.path, JOB, pol_vanilla.Options(1, TINY))
    assert found.accepted, found.reasons
    assert found.figures["initialisation_p"] > 0.01
    assert made.steps < 0.5 * JOB.steps
    stolen = _flat(plain.prove(Job.of({**SETTINGS, "seed": 1})).model.state_dict())
    end, honest = _flat(made.recorded.state), _flat(plain.prove(JOB).model.state_dict())
    assert (end - stolen).norm() < 0.1 * (honest - stolen).norm(), "no training comes so near"


def _flat(state):
    return torch.cat([value.reshape(-1) for value in state.values()])


def test_who_chooses_reads_the_weights_of_all_checkpoints(vanilla):
    sizes = {file.name: file.stat().st_size for file in vanilla.path.iterdir()}
    models = {name for name in sizes if name.endswith(".model")}
    rests = {name for name in sizes if name.endswith(".rest")}
    full = pol_vanilla.verify(vanilla.path, JOB, pol_vanilla.Options(0, TINY)).figures
    assert full["bytes_read"] == sum(sizes[name] for name in models | rests)
    some = pol_vanilla.verify(vanilla.path, JOB, pol_vanilla.Options(1, TINY)).figures
    every = sum(sizes[name] for name in models)
    assert every < some["bytes_read"] < full["bytes_read"]


def test_a_stolen_start_is_told_from_a_drawn_one():
    task = Cancer()
    torch.manual_seed(5)
    fresh = initialisation(_checkpoint(task.build_model()), task, seed=1)
    assert fresh.passed
    trained = initialisation(_checkpoint(plain.prove(JOB).model), task, seed=1)
    assert not trained.passed
    assert trained.p < 1e-3


def test_the_test_of_distributions():
    draw = np.random.default_rng(0)
    same = [kolmogorov_smirnov(draw.normal(size=300), draw.normal(size=500))[1] for _ in range(40)]
    assert 0.3 < np.mean(same) < 0.7
    assert kolmogorov_smirnov(draw.normal(size=300), draw.normal(1, size=500))[1] < 1e-9
    assert kolmogorov_smirnov(np.array([np.nan]), np.zeros(3)) == (1.0, 0.0)


def test_distances_are_shares_of_the_move():
    start, end = torch.zeros(4), torch.tensor([2.0, 0.0, 0.0, 0.0])
    other = torch.tensor([2.0, 1.0, 0.0, 0.0])
    found = distances(end, other, start)
    assert (found["l1"], found["l2"], found["linf"]) == (0.5, 0.5, 0.5)
    assert found["cosine"] == pytest.approx(1 - 2 / 5**0.5)
    assert set(distances(end, end, end).values()) == {0.0}
    assert distances(end, torch.full((4,), torch.nan), start)["l2"] == torch.inf


def test_an_honest_chain_of_hashes_is_accepted(hashed):
    found = pol_hash.verify(hashed.path, JOB, hashed.head)
    assert found.accepted, found.reasons
    assert found.figures["exact"] == 11
    assert found.figures["bytes_kept"] == 32
    some = pol_hash.verify(hashed.path, JOB, hashed.head, pol_hash.Options(3))
    assert some.accepted
    assert some.figures["segments"] == 3
    assert some.figures["data_bytes_shown"] < found.figures["data_bytes_shown"]


def test_another_head_is_another_training(hashed):
    assert not pol_hash.verify(hashed.path, JOB, bytes(32)).accepted


def test_digests_cannot_be_changed_afterwards(hashed, tmp_path):
    """Whichever segments are drawn."""
    folder = shutil.copytree(hashed.path, tmp_path / "proof")
    text = json.loads((folder / RECORD_FILE).read_text())
    text["entries"][5][0] = "00" * 32
    (folder / RECORD_FILE).write_text(json.dumps(text))
    found = pol_hash.verify(folder, JOB, hashed.head, pol_hash.Options(1))
    assert "do not lead" in found.reasons[0]


def test_one_digit_is_another_hash(hashed, tmp_path):
    """Rounding that distances forgive: what makes the scheme brittle."""
    folder = shutil.copytree(hashed.path, tmp_path / "proof")
    path = folder / "000003.model"
    data = bytearray(path.read_bytes())
    data[-4] ^= 1
    path.write_bytes(data)
    assert not pol_hash.verify(folder, JOB, hashed.head).accepted
    allowed = {"l1": 1e-3, "l2": 1e-3, "linf": 1e-3, "cosine": 1e-6}
    assert pol_vanilla.verify(folder, JOB, pol_vanilla.Options(0, allowed)).accepted


@pytest.mark.parametrize("name", [RECORD_FILE, INDICES_FILE, "000001.model", "000002.rest"])
def test_damaged_files_are_rejected_not_raised(vanilla, tmp_path, name):
    folder = shutil.copytree(vanilla.path, tmp_path / "proof")
    (folder / name).write_bytes((folder / name).read_bytes()[:-5])
    found = pol_vanilla.verify(folder, JOB, pol_vanilla.Options(0, TINY))
    assert not found.accepted
    assert found.reasons


def test_another_training_than_was_agreed_on_is_refused(vanilla):
    for other in ({"rate": 0.01}, {"epochs": 4}, {"momentum": 0.0}, {"every": 7}):
        found = pol_vanilla.verify(vanilla.path, Job.of({**SETTINGS, **other}))
        assert "agreed on" in found.reasons[0]


def test_other_data_are_refused(vanilla, hashed, monkeypatch):
    columns = Cancer().train_columns()
    other = {**columns, "label": 1 - columns["label"]}
    monkeypatch.setattr(Cancer, "train_columns", lambda _: other)
    job = Job.of(SETTINGS)
    for found in (
        pol_vanilla.verify(vanilla.path, job, pol_vanilla.Options(1, TINY)),
        pol_hash.verify(hashed.path, job, hashed.head, pol_hash.Options(1)),
    ):
        assert any("committed" in reason for reason in found.reasons)
        assert len(found.reasons) > 1


def test_one_mark_shows_an_owner_and_nothing_else(tmp_path):
    setting = setting_of({"bits": 128, "strength": 0.02})
    terms, secret = setting.terms(JOB.lab_task), watermark_only.secret_of(0)
    made = watermark_only.prove(JOB, setting, secret, tmp_path / "marked")
    found = watermark_only.verify(made.path, JOB, terms, secret)
    assert found.accepted, found.reasons
    assert found.figures["log2_p"] < -64
    other = watermark_only.secret_of(1)
    assert not watermark_only.verify(made.path, JOB, terms, other).accepted


def test_every_baseline_runs_under_plain_settings():
    settings = {**SETTINGS, "epochs": 2, "bits": 128, "strength": 0.02}
    for method in (plain, pol_vanilla, pol_hash, watermark_only, chain):
        row = json.loads(json.dumps(method.run(settings)))
        assert row["method"] == method.METHOD
        assert row["verify_all"]["accepted"], row
        assert row["verify_all"]["total_seconds"] > 0
        assert row["seconds"]["training"] > 0
        assert row["accuracy"] > 0.8
        if method is pol_vanilla:
            apart = row["verify_all"]["seconds"]["calibrating"]
            assert row["calibrating_seconds"] > apart, "thresholds are there before it is verified"
        if method is watermark_only:
            own = row["seconds"]
            assert row["generation_seconds"] > own["finishing"] + own["storing"], "and pressing"


@pytest.mark.parametrize("method", [plain, pol_vanilla, chain])
def test_a_training_that_diverges_has_no_accuracy(method):
    with pytest.raises(DivergedError, match="no numbers"):
        method.run({**SETTINGS, "rate": 1e5})


def test_what_is_cited_says_so():
    row = json.loads(json.dumps(zk.run({"steps": 100})))
    assert row["cited"] is True
    assert row["generation_seconds_cited"] == 90_000
    assert all(figure["source"] for figure in row["figures"])


def _checkpoint(model):
    from polo.weights.checkpoint import checkpoint_of

    return checkpoint_of(model)
