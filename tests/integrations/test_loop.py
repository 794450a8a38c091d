"""What the callbacks share, without a framework."""

from typing import Any

import pytest
import torch

import polo
from polo.errors import ChainError
from polo.integrations.loop import Loop


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
