"""What the tests of files, challenges and verifications share."""

import hashlib
import importlib.util
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from polo.registry.context import Registry
from polo.registry.jobs import handlers, queue, runner

_spec = importlib.util.spec_from_file_location(
    "live_chain", Path(__file__).parents[1] / "live_chain.py"
)
assert _spec is not None
assert _spec.loader is not None
live_chain = sys.modules.get("live_chain") or importlib.util.module_from_spec(_spec)
sys.modules["live_chain"] = live_chain
_spec.loader.exec_module(live_chain)


@dataclass
class Sending:
    """A prover who uploads files of one chain."""

    asking: Any
    chain: Any

    def wanted(self, data: bytes, kind: str = "opening", **changes: Any) -> dict[str, Any]:
        shard = {} if kind in ("answer", "proof") else {"shard": 1}
        made = {"enrolment": self.chain.id, "kind": kind, **shard, "size": len(data)}
        return {**made, "sha256": hashlib.sha256(data).hexdigest(), **changes}

    def begin(self, data: bytes, kind: str = "opening", **changes: Any) -> Any:
        return self.asking.post("/v1/uploads", json=self.wanted(data, kind, **changes))

    def patch(self, upload: str, offset: int, piece: bytes) -> Any:
        headers = {"Upload-Offset": str(offset)}
        return self.asking.patch(f"/v1/uploads/{upload}", content=piece, headers=headers)

    def send(self, data: bytes, kind: str = "opening", *, step: int = 2**20, **changes: Any) -> Any:
        """Upload a whole file; the last answer."""
        answer = self.begin(data, kind, **changes)
        assert answer.status_code == 201, answer.text
        upload = answer.json()
        for at in range(upload["received"], len(data), step):
            answer = self.patch(upload["id"], at, data[at : at + step])
            assert answer.status_code == 200, answer.text
        return answer.json()


@pytest.fixture
def sending(registry: Registry, client_of: Callable[..., Any]) -> Sending:
    """A prover with an enrolled chain whose layout has one tensor."""
    prover = live_chain.identity(1)
    asking = client_of(prover)
    return Sending(asking, live_chain.enrol(registry, prover))


@pytest.fixture
def work(registry: Registry) -> Callable[[], int]:
    """Does all jobs whose time has come, in this thread; says how many."""
    handlers.load()

    def do() -> int:
        done = 0
        while (taken := queue.take(registry.database, registry.clock())) is not None:
            runner.do(registry, taken)
            done += 1
        return done

    return do


@pytest.fixture
def refused() -> Callable[[Any, int, str], None]:
    """Checks that an answer is a problem with this status and code."""

    def check(answer: Any, status: int, code: str) -> None:
        assert (answer.status_code, answer.json().get("code")) == (status, code), answer.text

    return check
