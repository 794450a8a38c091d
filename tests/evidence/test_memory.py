"""Memory that devices copy to."""

from typing import Any

import pytest
import torch

from polo.evidence.replay.memory import Memory
from polo.weights.sharing import LARGE


@pytest.mark.parametrize("fails", [False, True])
def test_shared_memory_is_pinned_if_it_can_be(fails: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[tuple[str, ...]] = []

    class Runtime:
        def cudaHostRegister(self, *where: int) -> int:  # noqa: N802
            calls.append(("register", *map(str, where)))
            return 304 * fails

        def cudaHostUnregister(self, *where: int) -> int:  # noqa: N802
            calls.append(("unregister", *map(str, where)))
            return 0

    def blamed(*_: Any, **__: Any) -> None:
        calls.append(("kernel",))
        raise RuntimeError("an earlier call has failed")

    monkeypatch.setattr(torch.cuda, "cudart", Runtime)
    monkeypatch.setattr(torch, "ones", blamed)
    image = Memory(LARGE, pinned=True)
    image.release()
    image.release()
    place = str(image.tensor.data_ptr())
    last = ("kernel",) if fails else ("unregister", place)
    assert calls == [("register", place, str(LARGE), "1"), last]
