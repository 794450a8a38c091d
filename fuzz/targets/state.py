"""The training state beside a proof. It is the prover's own, but may come from a shared disk."""

import json
import random
from collections import Counter
from collections.abc import Iterator

import torch

from fuzz import mutation, promises, safetensors_files, sandbox
from fuzz.target import Target
from polo.storage import state


def check(data: bytes) -> None:
    """Refused, or a tree that can be written and read again."""
    path = sandbox.file(data)
    with promises.refusals():
        tree = state.read_state(path)
        state.write_state(path, tree)
        state.read_state(path)


def files() -> Iterator[bytes]:
    """A state with everything that one can hold."""
    tree = {
        "optimizer": {"state": {0: {"step": torch.tensor(3.0)}}, "lr": 0.1, 7: (1, None)},
        "many": Counter({2: 3}),
        "list": [True, -1, "text", float("inf"), torch.zeros(2, 3, dtype=torch.bfloat16)],
    }
    path = sandbox.file(b"")
    state.write_state(path, tree)
    yield path.read_bytes()
    state.write_state(path, [])
    yield path.read_bytes()


def mutate(data: bytes, rng: random.Random) -> bytes:
    """The tree in the metadata is changed, as often as the file around it."""
    header, body = safetensors_files.split(data)
    if not rng.randrange(3):
        return safetensors_files.mutate(data, rng)
    text = json.loads(header.get("__metadata__", {}).get("tree", "[]"))
    header["__metadata__"] = {
        "tree": mutation.spell(mutation.tree(text, rng)).decode(errors="replace")
    }
    return safetensors_files.pack(header, body)


TARGET = Target(check, files, mutate, most_mib=128)
