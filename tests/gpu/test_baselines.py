from dataclasses import replace

import pytest

from polo_lab.attacks import ofa
from polo_lab.baselines import pol_hash, pol_vanilla
from polo_lab.tasks.pairs import digits_resnet_thin

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


# What torch says of itself while it compiles would be taken for a failure of it.
@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
def test_compiled_steps_come_out_the_same(monkeypatch):
    course = replace(digits_resnet_thin.course, compile="reduce-overhead")
    monkeypatch.setattr(digits_resnet_thin, "course", course)
    asked = {"task": "lab-digits-resnet-thin", "epochs": 2, "device": "cuda", "every": 7}
    row = pol_hash.run(asked)
    assert row["compiled"] == "default"
    assert row["verify_all"]["accepted"], row["verify_all"]["reasons"]
