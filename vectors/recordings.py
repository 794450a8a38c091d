"""Vectors of level replay: states, moves, records, the draw, challenge and answer."""

from types import SimpleNamespace
from typing import Any

import torch
from vectors.kit import PROVER_SEED, Json, fixed, key_of, small_layout

from polo.evidence.replay.recipe import Recipe
from polo.evidence.replay.record import Boundary, Record
from polo.evidence.replay.state import MOVE_ONE, NO_STATE, PIECE_BYTES, SATURATED, digest_of, moves
from polo.evidence.replay.timeline import Timeline
from polo.protocol import signing
from polo.protocol.challenge import Answer, Challenge, Place, Secret, sealing_file
from polo.protocol.layout import CHUNK_BYTES, Layout, Tensor

_PLATFORM = '{"device":"cpu","torch":"9.9.9"}'


class _Held:
    """A checkpoint of fixed bytes that look random."""

    def __init__(self, layout: Layout) -> None:
        self.layout = layout

    def label(self, tensor: int) -> str:
        return f"polo vectors: {self.layout.tensors[tensor].name}"

    def read(self, tensor: int, start: int, stop: int) -> bytes:
        return fixed(self.label(tensor), self.layout.tensors[tensor].size)[start:stop]


def replay_json() -> Json:
    """Everything that a verifier computes before it runs a step."""
    return {
        "states": _states(),
        "moves": [_move(**case) for case in _MOVES],
        "records": [_record(count) for count in (1, 2, 3)],
        "refused": _refused(),
        "draws": [_draw(top, shards) for top, shards in _DRAWS],
        **_asked(),
    }


def _states() -> list[Json]:
    rest = (
        Tensor("exp_avg/body.weight", "F32", (32, 32)),
        Tensor("exp_avg_sq/body.weight", "F32", (32, 32)),
        Tensor("step/body.weight", "F32", ()),
    )
    # The second is longer than a piece, the third has none.
    long = (
        Tensor("a", "U8", (5,)),
        Tensor("b", "U8", (PIECE_BYTES + 7,)),
        Tensor("c", "F32", (0,)),
        Tensor("d", "U8", (PIECE_BYTES,)),
    )
    found: list[Json] = [{"layout": None, "bytes": [], "digest": NO_STATE.hex()}]
    for layout in (small_layout(), Layout(CHUNK_BYTES, rest, ()), Layout(CHUNK_BYTES, long, ())):
        held = _Held(layout)
        found.append(
            {
                "layout": layout.to_json(),
                "bytes": [held.label(at) for at in range(len(layout.tensors))],
                "digest": digest_of(held).hex(),
            }
        )
    return found


_MOVES: list[dict[str, Any]] = [
    {"model": ([0, 0], [3, 4]), "rest": {}},
    {"model": ([1, 2], [1, 2]), "rest": {"momentum_buffer": ([4, 0], [4, 3])}},
    {"model": ([0, 0], [0, 1]), "rest": {"momentum_buffer": ([4, 3], [4, 0])}},
    {"model": ([0, 0], [0, 1]), "rest": {"momentum_buffer": ([0, 0], [4, 0])}},
    {"model": ([0, 0], [0, 1]), "rest": {"momentum_buffer": (None, [4, 0])}},
    {
        "model": ([7, 0], [0, 0]),
        "rest": {"exp_avg": ([8, 0], [8, 1]), "exp_avg_sq": ([2, 0], [2, 1]), "step": ([1], [9])},
    },
    {"model": ([0, 0], [2**31, 0]), "rest": {}},
    {"model": ([0, 0], [2**30, 0]), "rest": {}},
]


def _move(model: tuple[list[int], list[int]], rest: dict[str, Any]) -> Json:
    sides = []
    for side in (0, 1):
        kept = {f"{key}/p": pair[side] for key, pair in rest.items() if pair[side] is not None}
        sides.append(
            (
                {"p": torch.tensor(model[side], dtype=torch.float32)},
                {name: torch.tensor(values, dtype=torch.float32) for name, values in kept.items()},
            )
        )
    found = [str(move) for move in moves(sides[0], sides[1])]
    return {"model": model, "rest": rest, "moves": found}


def _made(count: int, **changes: Any) -> Record:
    """A record with so many segments."""
    boundaries = tuple(
        Boundary(fixed(f"polo vectors: model {at}", 32), fixed(f"polo vectors: rest {at}", 32))
        for at in range(count + 1)
    )
    steps = tuple((MOVE_ONE * (at + 1), at or SATURATED) for at in range(count))
    fields = {"boundaries": boundaries, "moves": (*steps, (MOVE_ONE // 4, 0))}
    return Record(**{**fields, "platform": _PLATFORM, **changes})


def _record(count: int) -> Json:
    record = _made(count)
    return {
        "segments": count,
        "states": [[each.model.hex(), each.rest.hex()] for each in record.boundaries],
        "moves": [[str(move) for move in pair] for pair in record.moves],
        "platform": record.platform,
        "file": record.encode().hex(),
        "digest": record.digest.hex(),
    }


def _refused() -> list[Json]:
    good = _made(1)
    data = good.encode()
    moved = ((MOVE_ONE, SATURATED + 1), (0, 0))
    sealed = ((MOVE_ONE, 0), (0, 1))
    cases = {
        "a byte more": data + b" ",
        "a byte less": data[:-1],
        "another number of segments": _made(2).encode(),
        "another header": data.replace(b'"U64"', b'"I64"', 1),
        "a move beyond endless": _made(1, moves=moved).encode(),
        "a sealing that moves the optimizer": _made(1, moves=sealed).encode(),
        "a platform that is no object": _made(1, platform='["cpu"]').encode(),
        "a platform with a number": _made(1, platform='{"threads":4}').encode(),
        "a platform that is not canonical": _made(1, platform='{"device": "cpu"}').encode(),
        "a platform that is no text": data[:-512] + b"\xff" * 512,
    }
    return [{"name": name, "segments": 1, "file": file.hex()} for name, file in cases.items()]


_Pairs = list[tuple[int, int]]
_DRAWS: list[tuple[int, list[_Pairs]]] = [
    (0, [[(1, 1), (2, 2), (5, 0)]]),
    (1, [[(1, SATURATED), (2, 2), (9, 9), (5, 0)], [(3, 3), (7, 7), (6, 0)]]),
    (2, [[(9, SATURATED), (9, 1), (9, 9), (5, 0)], [(9, 9), (7, 10), (5, 0)]]),
    (2, [[(1, SATURATED), (8, 0)], [(4, 2), (8, 0)], [(4, 3), (2, 3), (7, 0)]]),
    (9, [[(1, 1), (2, 2), (0, 0)], [(3, 3), (1, 0)]]),
]
"""Settings `top`, and the moves of each shard, the sealing's last."""


def _draw(top: int, shards: list[_Pairs]) -> Json:
    steps = [SimpleNamespace(steps=len(pairs) - 1) for pairs in shards]
    manifest: Any = SimpleNamespace(shards=steps)
    records = {
        number: _made(len(pairs) - 1, moves=tuple(pairs))
        for number, pairs in enumerate(shards, start=1)
    }
    timeline = Timeline(manifest, Recipe(samples=64, every=1, top=top), records)
    (sealing,) = timeline.required_sealings()
    return {
        "top": top,
        "moves": [[[str(move) for move in pair] for pair in pairs] for pairs in shards],
        "segments": [[place.shard, place.segment] for place in sorted(timeline.required())],
        "sealing": sealing,
    }


def _asked() -> Json:
    proof = fixed("polo vectors: proof", 32)
    places = (Place(1, 0), Place(1, 7), Place(2, 0))
    challenge = Challenge(proof, places, (1, 3), True, 1_700_000_000)
    secret = fixed("polo vectors: secret of shard 3", 32)
    answer = Answer(challenge.digest, (Secret(3, secret),))
    wrong = (
        Challenge(proof, places[::-1], (), False, 0),
        Challenge(proof, (*places, places[-1]), (), False, 0),
        Challenge(proof, places, (3, 1), False, 0),
        Challenge(proof, places, (1, 1), False, 0),
    )
    return {
        "challenge": challenge.to_bytes().decode(),
        "digest": challenge.digest.hex(),
        "refused_challenges": [each.to_bytes().decode() for each in wrong],
        "identity": key_of(PROVER_SEED).public_key.hex(),
        "answer": signing.sign(answer, key_of(PROVER_SEED)).to_bytes().decode(),
        "files": [places[1].file("model"), places[1].file("end-rest"), sealing_file(3)],
    }
