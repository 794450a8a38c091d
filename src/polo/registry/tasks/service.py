"""Tasks as the server knows them: built once by a process with torch, then read from a file."""

import hashlib
import importlib.metadata
import json
import os
import subprocess
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from polo import errors
from polo._version import __version__
from polo.protocol import canonical
from polo.protocol.effort import Column
from polo.protocol.layout import Layout
from polo.protocol.records import Terms
from polo.registry.observing import LOGGER
from polo.registry.problems import CODES, Problem
from polo.registry.tasks import offers
from polo.registry.tasks.offers import Offer
from polo.storage import atomic
from polo.tasks import GROUP

CODES.update({"task.missing": "The registry offers no such task."})

BUILD_SECONDS = 300
"""How long a task may take to build its model."""

FAILED_SECONDS = 60
"""How long a task that cannot be built is not tried again."""

_WAIT = 0.5
_OPERATOR = "Tell the registry's operator: only there can this be mended."
_NEEDS = (
    f"{_OPERATOR} A task needs its packages on the registry's machine, digits torch, and the data "
    "that models are tested on; polo registry doctor says more."
)
_DATA = "POLO_DATA"
_building = threading.Lock()


@dataclass(frozen=True)
class Offered:
    """A task as it is offered.

    Attributes:
        offer: What the operator says.
        terms: Its terms, without level receipts.
        layout: Layout of its model's checkpoints.
        levels: Levels of evidence that it can serve.
        columns: What a sample consists of, where steps can be run again.
    """

    offer: Offer
    terms: Terms
    layout: Layout
    levels: tuple[str, ...]
    columns: tuple[Column, ...]


class Tasks:
    """The tasks that are offered.

    Args:
        data: The registry's data folder.
        file: The operator's file of offers; empty for the usual ones.
        tested: Whether models are tested here, so that the tasks' data must be there.
    """

    def __init__(self, data: Path, file: str = "", *, tested: bool = True) -> None:
        self._folder = data / "tasks"
        self._tested = tested
        self.offers = offers.load(file)
        self._ready: dict[str, Offered] = {}
        self._failed: dict[str, tuple[float, errors.PoloError]] = {}

    def get(self, name: str) -> Offered:
        """A task; the first time ever this takes seconds.

        Raises:
            Problem: There is no such offer.
            PoloError: The task is offered and cannot be used here; the error says why.
        """
        if name in self._ready:
            return self._ready[name]
        offer = self.offers.get(name)
        if offer is None:
            raise Problem(
                404,
                "task.missing",
                f"{name[:80]!r} is not offered here",
                advice=f"Offered are {', '.join(sorted(self.offers))}.",
            )
        until, failure = self._failed.get(name, (0.0, None))
        if failure is not None and time.monotonic() < until:
            raise failure.with_traceback(None)
        # One at a time: each needs the memory of a model. Nobody waits for long: threads that wait
        # answer nobody else, and strangers may ask for tasks, too.
        if not _building.acquire(timeout=_WAIT):
            raise Problem(
                503,
                "registry.busy",
                f"task {name} is being made ready",
                advice="Ask again in a moment.",
                headers={"Retry-After": "5"},
            )
        try:
            if name not in self._ready:
                self._ready[name] = _read(offer, self._built(offer))
        except errors.PoloError as error:
            self._failed[name] = time.monotonic() + FAILED_SECONDS, error
            LOGGER.warning(
                "task %s cannot be offered: %s %s", name, error, error.advice.partition("\n")[0]
            )
            raise
        finally:
            _building.release()
        return self._ready[name]

    def queue_of(self, name: str) -> str:
        """Which queue jobs go to that run a task's own code; one not on offer needs nothing."""
        offer = self.offers.get(name)
        return offer.queue if offer else "cpu"

    def trouble(self, name: str) -> errors.PoloError | None:
        """Why an offered task cannot be used, in the task's own words; takes seconds, each time.

        Nothing is read from files of before, and none is written: data may be gone by now.
        """
        try:
            _build(self.offers[name], tested=self._tested, here=True)
        except errors.PoloError as error:
            return error
        return None

    def _built(self, offer: Offer) -> bytes:
        path = self._folder / f"{_key(offer, self._tested)}.json"
        if path.is_file():
            return path.read_bytes()
        built = _build(offer, tested=self._tested)
        self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        with atomic.replacing(path, mode=0o600) as file:
            file.write(built)
        return built


def _key(offer: Offer, tested: bool) -> str:
    """Names the file: the offer, and everything else that decides what comes out."""
    parts = [offer.key(), __version__.encode()]
    parts += [os.environ.get(_DATA, "").encode()] if tested else []
    for entry in importlib.metadata.entry_points(group=GROUP):
        if entry.name == offer.task:
            version = entry.dist.version if entry.dist else ""
            parts.append(f"{entry.value} {version}".encode())
    return hashlib.sha256(b"\x00".join(parts)).hexdigest()[:32]


def _build(offer: Offer, *, tested: bool, here: bool = False) -> bytes:
    """What the building process answers.

    Args:
        offer: The offer.
        tested: Whether the data must be there.
        here: Whether whoever reads an error can mend it, at this machine.
    """
    asked = {
        "task": offer.task,
        "bits": offer.bits.usual,
        "options": dict(offer.options),
        "tested": tested,
    }
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    try:
        done = subprocess.run(
            [sys.executable, "-m", "polo.registry.tasks.building"],
            input=json.dumps(asked).encode(),
            capture_output=True,
            timeout=BUILD_SECONDS,
            check=False,
            env=environment,
        )
    except subprocess.TimeoutExpired as error:
        message = f"its model was not built within {BUILD_SECONDS} s"
        raise errors.TaskError(message, place=f"task {offer.task}") from error
    written = done.stdout.rstrip(b"\n").rpartition(b"\n")[2]
    if done.returncode not in (0, 1) or not written:
        last = done.stderr.decode(errors="replace").strip().rpartition("\n")[2][:300]
        raise errors.TaskError(f"cannot be built: {last}", place=f"task {offer.task}")
    if done.returncode:
        raise _error(json.loads(written), offer, here)
    return written


def _error(told: dict[str, Any], offer: Offer, here: bool) -> errors.PoloError:
    """The error that the building process met, as this one raises it."""
    kind = getattr(errors, told.get("kind", ""), errors.TaskError)
    # The task's own advice is for whoever has it on the same machine.
    lacking = issubclass(kind, (errors.TaskError, errors.MissingError))
    elsewhere = _NEEDS if lacking else _OPERATOR
    error: errors.PoloError = kind(
        told.get("error", ""),
        place=f"task {offer.task} of this registry",
        advice=told.get("advice", "") if here else elsewhere,
    )
    return error


def _read(offer: Offer, data: bytes) -> Offered:
    found = canonical.parse(data, place=f"task {offer.task}")
    return Offered(
        offer,
        Terms.from_json(found["terms"], "terms"),
        Layout.from_json(found["layout"], "layout"),
        tuple(found["levels"]),
        tuple(Column.from_json(item, "columns") for item in found["columns"]),
    )
