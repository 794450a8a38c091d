"""What the callbacks share, without a framework."""

from typing import Any

import pytest
import torch

import polo
from polo.errors import ChainError
from polo.integrations.loop import Loop
from polo.prover import EmbeddingWarning


def test_several_ranks_are_told_so_before_they_fight_for_the_store(
    site: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    where = {"key": site.folder / "alice.key", "store": site.proof}
    first = polo.Prover(site.folder / "enrolment", **where)
    loop = Loop(
        site.folder / "enrolment", **where, evaluate=None, extend=False, view=None, options={}
    )
    model = site.task.build_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.distributed, "get_world_size", lambda: 2)
    with pytest.raises(ChainError, match="2 ranks"):
        loop.begin(model, optimizer, restored=False, position=None)
    first.close()


@pytest.fixture
def begun(site: Any) -> Any:
    """A loop of a framework, with its model and its optimizer."""
    torch.manual_seed(0)
    loop = Loop(
        site.folder / "enrolment", key=site.folder / "alice.key", store=site.proof, evaluate=None,
        extend=False, view=None, options={},
    )  # fmt: skip
    model = site.task.build_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    loop.begin(model, optimizer, restored=False, position=None, made=100)
    yield loop, model, optimizer
    loop.close()


@pytest.mark.parametrize("how", ["end_epoch", "check"])
def test_steps_of_another_optimizer_are_told(how: str, begun: Any, site: Any) -> None:
    loop, model, optimizer = begun
    site.task.train_epoch(model, optimizer)
    assert loop.end_epoch(108).sealed
    # Nothing was made since, so there is nothing to say.
    assert getattr(loop, how)(108) is None
    site.task.train_epoch(model, torch.optim.SGD(model.parameters(), lr=0.05))
    with pytest.raises(ChainError, match="attached has made no step"):
        getattr(loop, how)(116)


def test_steps_that_are_all_skipped_are_told(begun: Any) -> None:
    loop, _, _ = begun
    with pytest.warns(EmbeddingWarning, match="no step in this epoch"):
        loop.end_epoch(108)
    with pytest.raises(ChainError, match="no step in two epochs"):
        loop.end_epoch(116)


def test_an_epoch_whose_steps_were_sealed_within_it_is_no_idle_one(begun: Any, site: Any) -> None:
    loop, model, optimizer = begun
    for epoch in range(1, 4):
        site.task.train_epoch(model, optimizer)
        # Sealed by the prover itself, as `check_every` has it.
        assert loop.prover.check().sealed
        assert loop.end_epoch(100 + 8 * epoch) is None
