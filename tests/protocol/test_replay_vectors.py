"""The vectors of section 17 against the library, and against the second reader."""

import hashlib
from types import SimpleNamespace

import pytest
import torch

from polo.errors import FormatError
from polo.evidence.replay import record, state
from polo.evidence.replay.recipe import Recipe
from polo.evidence.replay.timeline import Timeline
from polo.keys import Ed25519Verifier
from polo.protocol import signing
from polo.protocol.challenge import Answer, Challenge, Place, sealing_file
from polo.protocol.layout import Layout


class Raw:
    """A checkpoint made of raw bytes, tensor by tensor."""

    def __init__(self, layout, data):
        self.layout = layout
        self.data = data

    def read(self, tensor, start, stop):
        return self.data[tensor][start:stop]


@pytest.fixture
def found(vector):
    return vector("replay")


def test_states(found, second):
    for case in found["states"]:
        wanted, plain = bytes.fromhex(case["digest"]), case["layout"]
        if plain is None:
            assert state.digest_of(None) == second.state_digest(None, []) == wanted
            continue
        layout = Layout.from_json(plain, "vector")
        data = [
            hashlib.shake_256(label.encode()).digest(tensor.size)
            for label, tensor in zip(case["bytes"], layout.tensors, strict=True)
        ]
        assert second.state_digest(plain, data) == wanted
        for threads in (1, 3):
            assert state.digest_of(Raw(layout, data), threads) == wanted


def test_moves(found, second):
    for case in found["moves"]:
        sides = []
        for side in (0, 1):
            rest = {f"{key}/p": pair[side] for key, pair in case["rest"].items() if pair[side]}
            sides.append(({"p": floats(case["model"][side])}, each(floats, rest)))
        wanted = tuple(map(int, case["moves"]))
        assert state.moves(*sides) == wanted
        assert (second.model_move(*case["model"]), second.rest_move(case["rest"])) == wanted


def floats(values):
    return torch.tensor(values, dtype=torch.float32)


def each(function, values):
    return {name: function(value) for name, value in values.items()}


def test_records(found, second, tmp_path):
    path = tmp_path / "record"
    for case in found["records"]:
        data = bytes.fromhex(case["file"])
        path.write_bytes(data)
        loaded = record.load(path, case["segments"], "vector")
        states = [tuple(map(bytes.fromhex, pair)) for pair in case["states"]]
        moves = [tuple(map(int, pair)) for pair in case["moves"]]
        platform = second.document(case["platform"].encode())
        assert second.read_record(case["segments"], data) == (states, moves, platform)
        assert [(item.model, item.rest) for item in loaded.boundaries] == states
        assert (list(loaded.moves), loaded.platform) == (moves, case["platform"])
        assert loaded.encode() == data
        assert loaded.digest == second.record_digest(data) == bytes.fromhex(case["digest"])


def test_records_that_are_refused(found, second, tmp_path):
    path = tmp_path / "record"
    for case in found["refused"]:
        data = bytes.fromhex(case["file"])
        path.write_bytes(data)
        with pytest.raises(FormatError):
            record.load(path, case["segments"], case["name"])
        with pytest.raises(second.RefusedError):
            second.read_record(case["segments"], data)


def test_what_is_always_run_again(found, second):
    for case in found["draws"]:
        shards = [[tuple(map(int, pair)) for pair in pairs] for pairs in case["moves"]]
        wanted = [tuple(pair) for pair in case["segments"]]
        assert second.always_run(case["top"], shards) == (wanted, case["sealing"])
        records = {
            number: record.Record((record.Boundary(b"", b""),) * len(pairs), tuple(pairs), "{}")
            for number, pairs in enumerate(shards, start=1)
        }
        steps = [SimpleNamespace(steps=len(pairs) - 1) for pairs in shards]
        recipe = Recipe(samples=64, every=1, top=case["top"])
        timeline = Timeline(SimpleNamespace(shards=steps), recipe, records)
        assert sorted(timeline.required()) == [Place(*pair) for pair in wanted]
        assert timeline.required_sealings() == {case["sealing"]}


def test_challenge_and_answer(found, second):
    plain = second.document(found["challenge"].encode())
    challenge = Challenge.from_bytes(found["challenge"].encode(), "vector")
    assert second.challenge_holds(plain)
    assert challenge.digest == second.digest(plain) == bytes.fromhex(found["digest"])
    for text in found["refused_challenges"]:
        assert not second.challenge_holds(second.document(text.encode()))
        with pytest.raises(FormatError):
            Challenge.from_bytes(text.encode(), "vector")
    answer = Answer.from_bytes(found["answer"].encode(), "vector")
    key = bytes.fromhex(found["identity"])
    assert answer.challenge == challenge.digest
    signing.check(answer, key, Ed25519Verifier(), place="vector")
    assert second.signed_by(second.document(found["answer"].encode()), found["identity"])
    place = challenge.segments[1]
    names = [place.file("model"), place.file("end-rest"), sealing_file(3)]
    assert names == found["files"]
