"""The monitor: silent while marks settle, and full of advice when they do not."""

import logging
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import polo
from polo.protocol.detection import Reading
from polo.prover.monitor import PATIENCE, EmbeddingWarning, Monitor

Enrol = Callable[..., polo.OfflineEnrolment]


@pytest.fixture
def monitor(enrol: Enrol) -> Monitor:
    return Monitor(enrol(strength=0.25, bits=256).record.terms)


def texts_of(monitor: Monitor, matches: list[int]) -> list[str]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for found in matches:
            monitor.waiting(4, Reading(256, found))
    assert all(item.category is EmbeddingWarning for item in caught)
    return [str(item.message) for item in caught]


def test_a_few_unsealed_epochs_are_no_matter(monitor: Monitor) -> None:
    assert texts_of(monitor, [130] * (PATIENCE - 1)) == []


def test_the_warning_says_what_was_read_and_what_to_change(monitor: Monitor) -> None:
    (text,) = texts_of(monitor, [128, 127, 126])
    assert "shard 4" in text
    assert "η = 0.500, 0.496, 0.492" in text
    assert "0.99 is needed" in text
    assert "not rising" in text
    for advice in ("λ above 0.25", "fewer bits (256 now)", "finishing budget", "3 tensors now"):
        assert advice in text


def test_a_rising_mark_is_given_time(monitor: Monitor) -> None:
    (text,) = texts_of(monitor, [130, 150, 170])
    assert "it is rising, so more epochs may do" in text


def test_sealing_starts_the_count_again(monitor: Monitor) -> None:
    for _ in range(4):
        assert texts_of(monitor, [130] * (PATIENCE - 1)) == []
        monitor.sealed()


def test_warnings_grow_rarer(monitor: Monitor) -> None:
    """Their text changes, so Python would show each of a thousand."""
    assert 2 <= len(texts_of(monitor, [128] * 1000)) <= 10


def test_every_check_is_in_the_log(monitor: Monitor, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "polo.prover"):
        monitor.waiting(2, Reading(256, 192))
    assert "shard 2 is not sealed yet: η = 0.750" in caplog.text


def test_a_hopeless_run_warns_at_the_users_line_and_seals_nothing(
    task: Any, enrol: Enrol, alice: polo.Identity, tmp_path: Path
) -> None:
    model = task.build_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    prover = polo.Prover(enrol(strength=1e-6, budget=0.0), key=alice, store=tmp_path / "proof")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with prover.attach(model, optimizer):
            for _ in range(PATIENCE):
                task.train_epoch(model, optimizer)
                progress = prover.end_epoch()
                assert progress is not None
                assert progress.sealed is None
                assert 0.3 < progress.reading.eta < 0.7
    (warning,) = caught
    assert warning.category is polo.EmbeddingWarning
    assert warning.filename == __file__
    proof = prover.finish()
    assert (proof.shards, proof.outside) == (0, 8 * PATIENCE)
