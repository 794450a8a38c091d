import pytest

from polo_lab.attacks import ofa
from polo_lab.baselines import pol_hash, pol_vanilla

SETTINGS = {"task": "lab-digits", "epochs": 2, "device": "cuda"}


@pytest.mark.parametrize("method", [pol_vanilla, pol_hash])
def test_replay_on_a_gpu_comes_out_the_same(method):
    found = method.run(SETTINGS)["verify_all"]
    assert found["accepted"], found["reasons"]
    assert found["exact"] == found["segments"]


def test_fine_tuning_on_a_gpu():
    settings = {**SETTINGS, "bits": 128, "strength": 0.02, "thief_scheme": "ednn", "rounds": 1}
    row = ofa.run({**settings, "thief_strength": 0.02})
    assert row["claim"]["claimed"]
    assert row["stages"]
