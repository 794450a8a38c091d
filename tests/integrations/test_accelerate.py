"""Accelerate: what `prepare` returns, `save_state`, and going on after a kill."""

import logging
from typing import Any

import pytest

from polo.errors import ChainError, FormatError, StoreError

EPOCH = 8


@pytest.mark.parametrize(
    ("options", "steps"),
    [({}, EPOCH), ({"gradient_accumulation_steps": 2, "mixed_precision": "bf16"}, EPOCH // 2)],
    ids=["plain", "accumulated in bfloat16"],
)
def test_each_epoch_is_a_shard(options: Any, steps: int, site: Any, accelerate_script: Any) -> None:
    proof = accelerate_script.train(site.folder, site.task, accelerator=options)
    assert site.steps == [steps] * 4
    assert proof.outside == 0
    assert site.accepted()


@pytest.mark.slow
@pytest.mark.parametrize("when", ["save", "seal"])
def test_killed_it_goes_on_bit_for_bit(when: str, make_site: Any, accelerate_script: Any) -> None:
    whole, broken = make_site("whole"), make_site("broken")
    accelerate_script.train(whole.folder, whole.task)
    # In the second case state-0 is older than shard 2, which the proof then brings back itself.
    broken.killed(accelerate_script, when, 1 if when == "save" else 2)
    assert broken.steps == [EPOCH] * 2
    assert (broken.folder / "state-1").exists() == (when == "save")
    state = broken.folder / ("state-1" if when == "save" else "state-0")
    accelerate_script.train(broken.folder, broken.task, resume_from=state, seed=5)
    assert broken.steps == [EPOCH] * 4
    assert broken.root == whole.root
    assert broken.accepted()


def test_the_proof_wins_over_an_older_state(
    site: Any, accelerate_script: Any, caplog: pytest.LogCaptureFixture
) -> None:
    accelerate_script.train(site.folder, site.task)
    root = site.root
    with caplog.at_level(logging.WARNING, "polo"):
        accelerate_script.train(site.folder, site.task, resume_from=site.folder / "state-1")
    assert "older than shard 4 of the proof by 16 steps" in caplog.text
    assert site.root == root


def test_loading_under_the_provers_hands_is_refused(site: Any, accelerate_script: Any) -> None:
    accelerate_script.train(site.folder, site.task)

    def load(engine: Any) -> None:
        engine.load_state(str(site.folder / "state-1"))

    with pytest.raises(ChainError, match="under the prover's hands") as caught:
        accelerate_script.train(site.folder, site.task, inside=load)
    assert "resume_from" in caught.value.advice


@pytest.mark.parametrize("text", ["", "[]", "{", "[" * 4000, '{"format": "polo-position-1"}'])
def test_a_broken_position_is_named(text: str, site: Any, accelerate_script: Any) -> None:
    accelerate_script.train(site.folder, site.task)
    (site.folder / "state-3" / "polo.json").write_text(text)
    before = site.manifest
    with pytest.raises(FormatError, match=r"state-3/polo\.json"):
        accelerate_script.train(site.folder, site.task, resume_from=site.folder / "state-3")
    assert site.manifest == before


def test_a_state_saved_without_a_proof(make_site: Any, accelerate_script: Any) -> None:
    site = make_site()
    accelerate_script.train(site.folder, site.task)
    before = site.manifest
    for number in (1, 3):
        (site.folder / f"state-{number}" / "polo.json").unlink()
    # These are the weights of the last shard, so it is clear where they belong.
    accelerate_script.train(site.folder, site.task, resume_from=site.folder / "state-3")
    with pytest.raises(StoreError, match="saved without a proof"):
        accelerate_script.train(site.folder, site.task, resume_from=site.folder / "state-1")
    assert site.manifest["shards"] == before["shards"]
