"""Vectors of the drawn start: seed, numbers of every rule in every type, and a root."""

import hashlib
import math
from dataclasses import replace

from vectors.kit import ISSUER_SEED, PROVER_SEED, Json, fixed, key_of, small_terms
from vectors.marks import dyadic

from polo.evidence.rules import Constant, Normal, Rule, Uniform
from polo.evidence.start import Drawn, start_seed
from polo.privacy.obfuscation import PIECE
from polo.protocol import signing
from polo.protocol.layout import CHUNK_BYTES, Layout, Tensor
from polo.protocol.records import Enrolment, NonceTerms, StartTerms
from polo.weights.hashing import commit

_TENSORS: tuple[tuple[Tensor, Rule], ...] = (
    (Tensor("a.bias", "F32", (7,)), Uniform(1 / math.sqrt(48))),
    (Tensor("a.weight", "F32", (5, 48)), Uniform(1 / math.sqrt(48))),
    (Tensor("b.weight", "F64", (3, 4)), Uniform(math.sqrt(6 / 7))),
    (Tensor("c.weight", "BF16", (4, 9)), Uniform(1 / 3)),
    (Tensor("d.weight", "F16", (4, 9)), Uniform(1 / 3)),
    (Tensor("e.weight", "F32", (6, 5)), Normal(1.0, 2)),
    (Tensor("f.weight", "F64", (11,)), Normal(0.02)),
    (Tensor("g.weight", "BF16", (11,)), Normal(0.02)),
    (Tensor("h.num_batches_tracked", "I64", ()), Constant(0.0)),
    (Tensor("h.running_var", "F32", (3,)), Constant(1.0)),
    (Tensor("i.weight", "F16", (2,)), Constant(0.25)),
)

_LONG: tuple[tuple[Tensor, Rule], ...] = (
    (Tensor("long.normal", "F32", (2, PIECE // 2 + 20)), Normal(0.1, 1)),
    (Tensor("long.uniform", "F32", (PIECE + 40,)), Uniform(0.5)),
)


class _Shape:
    """A checkpoint that has a layout and no values."""

    def __init__(self, layout: Layout) -> None:
        self.layout = layout

    def read(self, tensor: int, start: int, stop: int) -> bytes:
        """Nothing here is kept."""
        raise AssertionError(tensor, start, stop)


def start_json() -> Json:
    """An enrolment, its seed, and what is drawn of it."""
    terms = replace(small_terms(), start=StartTerms("derived", None))
    issuer = key_of(ISSUER_SEED)
    nonces = NonceTerms("offline", fixed("polo vectors: start nonces", 32), terms.shards.most)
    key = key_of(PROVER_SEED).public_key
    record = Enrolment(terms, key, nonces, 1_700_000_000, issuer.public_key)
    enrolment = signing.sign(record, issuer)
    seed = start_seed(enrolment)
    small, long = _drawn(_TENSORS, seed), _drawn(_LONG, seed)
    return {
        "enrolment": enrolment.to_bytes().decode(),
        "seed": seed.hex(),
        "tensors": [
            {**_case(tensor, rule), "bytes": _bytes(small, at).hex()}
            for at, (tensor, rule) in enumerate(_TENSORS)
        ],
        "root": commit(small).root.hex(),
        "long": [
            {**_case(tensor, rule), "sha256": hashlib.sha256(_bytes(long, at)).hexdigest()}
            for at, (tensor, rule) in enumerate(_LONG)
        ],
        "bounds": [
            {"inputs": fan, "outputs": out, "by_inputs": dyadic(1 / math.sqrt(fan)),
             "xavier": dyadic(math.sqrt(6 / (fan + out)))}
            for fan, out in ((1, 1), (3, 5), (27, 576), (48, 64), (576, 64), (768, 2304))
        ],
    }  # fmt: skip


def _drawn(tensors: tuple[tuple[Tensor, Rule], ...], seed: bytes) -> Drawn:
    layout = Layout(CHUNK_BYTES, tuple(tensor for tensor, _ in tensors), ())
    layout.check()
    return Drawn(_Shape(layout), [rule for _, rule in tensors], seed)


def _bytes(drawn: Drawn, tensor: int) -> bytes:
    return bytes(drawn.read(tensor, 0, drawn.layout.tensors[tensor].size))


def _case(tensor: Tensor, rule: Rule) -> Json:
    number, blank = 0.0, None
    match rule:
        case Uniform(bound):
            number = bound
        case Normal(std, row):
            number, blank = std, row
        case Constant(value):
            number = value
    name = type(rule).__name__.lower()
    return {**tensor.to_json(), "rule": name, "number": dyadic(number), "blank": blank}
