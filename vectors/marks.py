"""Vectors of marks: seed, derivation, reading, detection, noise."""

import decimal
import hashlib
import math
import struct
from collections.abc import Sequence
from dataclasses import replace
from decimal import Decimal
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from vectors.kit import PROVER_SEED, Json, fixed, key_of, small_terms

from polo.privacy import noising, obfuscation
from polo.protocol import derivation, sampler
from polo.protocol.detection import MILLION
from polo.protocol.records import SchemeTerms, identity_of
from polo.watermark import ednn, schemes
from polo.watermark.mark import Mark
from polo.weights import dtypes


def seed_json() -> Json:
    """Seeds with all that goes into them."""
    cases = []
    key = key_of(PROVER_SEED).public_key
    for shard in (1, 2, 256, 10_000):
        root = fixed(f"polo vectors: seed root {shard}", 32)
        nonce = fixed(f"polo vectors: seed nonce {shard}", 32)
        inputs = {
            "root": root, "nonce": nonce, "identity": identity_of(key),
            "terms": small_terms().digest,
        }  # fmt: skip
        seed = derivation.seed(shard=shard, **inputs)
        written = {name: value.hex() for name, value in inputs.items()}
        cases.append({"shard": shard, "seed": seed.hex(), "public_key": key.hex(), **written})
    return {"cases": cases}


def _scheme(bits: int, block: int, per_block: int, key: str) -> SchemeTerms:
    load = -(-per_block * MILLION // block)
    scheme = SchemeTerms("ednn", bits, block, load, key, 1000, "sum", 1)
    scheme.check("vector")
    return scheme


def derivation_json() -> Json:
    """Bits, positions and keys of both kinds."""
    marks = []
    for name, scheme, blocks in (
        ("block keys", _scheme(64, 16, 8, "block"), 100),
        ("a dense key", _scheme(64, 16, 8, "dense"), 100),
        ("bits that fill no byte", _scheme(9, 16, 3, "block"), 5),
        ("every block of the carrier", _scheme(64, 16, 1, "block"), 64),
    ):
        seed = fixed(f"polo vectors: derivation {name}", 32)
        positions = derivation.positions(seed, scheme.blocks, blocks)
        mark = Mark(scheme, positions, seed)
        signs = mark.group_bits * mark.group_weights
        marks.append(
            {
                "name": name,
                "seed": seed.hex(),
                "scheme": scheme.to_json(),
                "bits_per_block": scheme.bits_per_block,
                "carrier_blocks": blocks,
                "bits": derivation.bits(seed, scheme.bits).hex(),
                "positions": list(positions),
                "groups": mark.groups,
                "signs_per_group": signs,
                "keys": [derivation.key(seed, group, signs).hex() for group in range(mark.groups)],
            }
        )
    seed = fixed("polo vectors: derivation words", 32)
    # No real carrier is this large; here every other word or so must be dropped.
    huge = 2**63 + 1
    return {
        "marks": marks,
        "dropped_words": {
            "seed": seed.hex(),
            "carrier_blocks": str(huge),
            "positions": [str(at) for at in derivation.positions(seed, 4, huge)],
        },
    }


def _bytes(values: Sequence[float], dtype: str) -> bytes:
    return dtypes.from_float(np.array(values, dtype=np.float64), dtype)


def _gauss(label: str, count: int) -> list[float]:
    """Weights of ordinary size: sums of a few fixed bytes, exact in every type."""
    raw = np.frombuffer(fixed(label, 4 * count), dtype=np.int8).reshape(count, 4)
    found: list[float] = (raw.sum(axis=1) / 1024).tolist()
    return found


def _reading(name: str, scheme: SchemeTerms, dtype: str, data: bytes) -> Json:
    seed = fixed(f"polo vectors: reading {name}", 32)
    mark = Mark(scheme, tuple(range(scheme.blocks)), seed)
    values: NDArray[np.floating[Any]] = dtypes.to_float(data, dtype)
    units = ednn.fixed_point(values)
    grouped = units.reshape(mark.groups, -1)
    sums = [ednn.signed_sums(mark.signs(g), grouped[g]).tolist() for g in range(mark.groups)]
    right = ednn.matches(mark, values.reshape(scheme.blocks, scheme.block), range(mark.groups))
    return {
        "name": name,
        "scheme": scheme.to_json(),
        "seed": seed.hex(),
        "dtype": dtype,
        "weights": data.hex(),
        "units": [str(unit) for unit in units.tolist()],
        "sums": [[str(total) for total in group] for group in sums],
        "bits": mark.bits.astype(int).tolist(),
        "matching": right.astype(int).tolist(),
        "matches": int(right.sum()),
    }


def reading_json() -> Json:
    """Weights in blocks, in the order drawn, and what is read of them.

    Units and sums are strings, because they go beyond 2^53.
    """
    small, tiny = _scheme(16, 16, 8, "block"), 2.0**-41
    odd = [n * tiny for n in (1, -1, 3, -3, 5, -5, 7, 2, -2, 0, 1.5, -1.5, 0.999, 1.001, 2.5, -0.5)]
    edge = [255.999, 256, -256, 256.5, -300, 1e4, -6e4, 0, 1, -1, 0.5, -0.5, 2, -2, 100, -200]
    far = [1e30, -1e30, 1e-30, -1e-30, 3e38, -3e38, 1e-38, 0, 1, -1, 0.1, -0.1, 3, -3, 300, -300]
    pair = [0.0] * 32
    pair[0], pair[5], pair[16], pair[31] = 0.25, 0.25, -0.5, 0.5
    cases = [
        _reading(f"ordinary weights, {dtype}", small, dtype, _bytes(_gauss(dtype, 32), dtype))
        for dtype in ("F16", "BF16", "F32", "F64")
    ]
    dense = _scheme(16, 16, 8, "dense")
    cases += [
        _reading("a dense key", dense, "F32", _bytes(_gauss("dense", 32), "F32")),
        _reading("rounding half to even", small, "F64", _bytes(odd + _gauss("odd", 16), "F64")),
        _reading("saturation, F16", small, "F16", _bytes(edge + _gauss("edge", 16), "F16")),
        _reading("saturation, F32", small, "F32", _bytes(far + _gauss("far", 16), "F32")),
        _reading("sums of exactly zero", small, "F32", _bytes(pair, "F32")),
        _reading("all zero", small, "F32", bytes(4 * 32)),
    ]
    return {"cases": cases}


def schemes_json() -> Json:
    """What the other schemes read: each with both kinds of key, and with awkward weights."""
    cases = []
    for name, per_block in (
        ("ednn-mean", 3), ("fedipr", 8), ("fedipr-kernel", 8), ("riga", 8), ("signed", 5),
        ("signed", 16),
    ):  # fmt: skip
        for key in ("block", "dense"):
            wanted = replace(_scheme(8 * per_block, 16, per_block, key), name=name)
            for kind in ("ordinary", "awkward", "zero"):
                label = f"{name}, {per_block} bits a block, {key}, {kind}"
                cases.append(_scheme_case(label, wanted, kind))
    return {"cases": cases}


def _scheme_case(label: str, scheme: SchemeTerms, kind: str) -> Json:
    count = scheme.blocks * scheme.block
    weights = _gauss(label, count)
    if kind == "awkward":
        tiny = [n * 2.0**-41 for n in (1, -1, 3, -3, 5, -5, 7, 0)]
        huge = [255.999, 256, -256, 256.5, -300, 1e30, -3e38, 0]
        weights = [*tiny, *huge, *[0.0] * 32, *weights[48:]]
    data = _bytes([0.0] * count if kind == "zero" else weights, "F64")
    seed = fixed(f"polo vectors: {label}", 32)
    mark = Mark(scheme, tuple(range(scheme.blocks)), seed)
    values = dtypes.to_float(data, "F64").reshape(scheme.blocks, scheme.block)
    right = schemes.scheme(scheme.name).matches(mark, values, range(mark.groups))
    return {
        "name": label,
        "scheme": scheme.to_json(),
        "seed": seed.hex(),
        "dtype": "F64",
        "weights": data.hex(),
        "groups": mark.groups,
        "matching": right.astype(int).tolist(),
        "matches": int(right.sum()),
    }


def detection_json() -> Json:
    """Tails by exact integers, rounded to six decimals; and what passes which thresholds."""
    tails = []
    for bits, matches in (
        (8, 0), (8, 4), (8, 8), (64, 64), (63, 62), (128, 64), (128, 90), (128, 127), (256, 180),
        (256, 256), (2048, 1024), (2048, 1100), (2048, 1434), (2048, 2028), (16384, 11469),
    ):  # fmt: skip
        log2_p = round(math.log2(tail(bits, matches)) - bits, 6)
        tails.append({"bits": bits, "matches": matches, "log2_p": min(log2_p, 0.0)})
    passes = []
    for bits, matches, verify, log2_p in (
        (128, 90, 700_000, -64), (128, 113, 700_000, -64), (256, 179, 700_000, -20),
        (256, 180, 700_000, -20), (256, 180, 700_000, -64), (64, 64, 700_000, -64),
        (64, 40, 700_000, -64), (2048, 1434, 700_000, -64), (2048, 1433, 700_000, -64),
        (1000, 700, 700_000, -64),
        (1000, 699, 699_001, -30), (1000, 699, 699_000, -30),
        # A chance of exactly one half: here floating point may come out on either side.
        (17, 9, 500_000, -1), (37, 19, 500_000, -1), (2047, 1024, 500_000, -1),
    ):  # fmt: skip
        rate = matches * MILLION >= verify * bits
        rare = tail(bits, matches) <= 2 ** (bits + log2_p)
        passes.append(
            {
                "bits": bits, "matches": matches, "verify": verify, "log2_p": log2_p,
                "rate": rate, "rare": rare, "passes": rate and rare,
            }
        )  # fmt: skip
    return {"tails": tails, "passes": passes, "chains": [_chain(*case) for case in CHAINS]}


CHAINS: tuple[tuple[list[tuple[int, int, bool]], int], ...] = (
    ([(256, 256, True)], 1),
    ([(256, 256, False)], 1),
    ([(256, 160, False)] * 3, 1),
    ([(2048, 1270, True)] * 4, 1000),
    ([(2048, 1270, False)] * 4, 1000),
    ([(256, 250, False), (96, 96, False), (0, 0, False), (256, 120, True)], 48),
    ([(256, 130, True)] * 12, 2),
)
"""Marks as bits, matches and whether live; and the number of tries."""


def _chain(marks: list[tuple[int, int, bool]], tries: int) -> Json:
    """The combined chance in sixty decimal digits, rounded to six."""
    with decimal.localcontext(prec=60):
        chances = [
            min(Decimal(1), Decimal(tail(bits, matches)) * 2 ** (0 if live else 64) / 2**bits)
            for bits, matches, live in marks
            if bits
        ]
        total = -sum((chance.ln() for chance in chances), Decimal(0))
        terms = [total**j / math.factorial(j) if j else Decimal(1) for j in range(len(chances))]
        combined = min(Decimal(1), (-total).exp() * sum(terms, Decimal(0)) * tries)
        log2_p = round(float(combined.ln() / Decimal(2).ln()), 6)
    shown = [{"bits": b, "matches": m, "live": live} for b, m, live in marks]
    return {"marks": shown, "tries": tries, "log2_p": log2_p, "claim": log2_p <= -64}


def tail(bits: int, matches: int) -> int:
    """How many of the 2^bits outcomes have at least so many matches."""
    term = total = math.comb(bits, matches)
    for k in range(matches, bits):
        term = term * (bits - k) // (k + 1)
        total += term
    return total


def dyadic(value: float) -> Json:
    """A float as integers: mantissa · 2^exponent, the mantissa odd or zero."""
    top, bottom = value.as_integer_ratio()
    if not top:
        return {"mantissa": 0, "exponent": 0}
    shift = (top & -top).bit_length() - 1
    return {"mantissa": top >> shift, "exponent": shift - (bottom.bit_length() - 1)}


def noise_json() -> Json:
    """The sampler's table, the streams, the scale, and one tensor with noise."""
    table = sampler.table()
    master = fixed("polo vectors: master secret", 32)
    secret = obfuscation.secret_of(master, 2)
    nonce = fixed("polo vectors: noise nonce", 32)
    seed = obfuscation.noise_seed(secret, nonce)
    tensors = []
    for tensor, elements, fraction in ((0, 200, 100_000), (3, 200, 100_000), (3, 12, MILLION)):
        drawn = _drawn(seed, tensor, elements, fraction)
        tensors.append(
            {
                "tensor": tensor,
                "elements": elements,
                "fraction": fraction,
                "chosen": [at for at, _ in drawn],
                "deviations": [value for _, value in drawn],
            }
        )
    return {
        "table": {
            "sha256": hashlib.sha256(struct.pack(f"<{len(table)}Q", *table)).hexdigest(),
            "length": len(table),
            "entries": {str(at): str(table[at]) for at in (0, 1, 2, 63, 64, 192, 382, 383)},
            "magnitudes": [
                {"u": str(u), "magnitude": sum(1 for entry in table if entry <= u)}
                for u in (0, table[0] - 1, table[0], table[64], 2**62, 2**63 - 2, 2**63 - 1)
            ],
        },
        "secret": {
            "master": master.hex(),
            "shard": 2,
            "secret": secret.hex(),
            "commitment": obfuscation.secret_commitment(secret).hex(),
            "nonce": nonce.hex(),
            "seed": seed.hex(),
        },
        "tensors": tensors,
        "long_tensor": _long(seed),
        "scales": [_scale(*case) for case in _SCALES],
        "obfuscated": [_obfuscated(seed, dtype) for dtype in ("F32", "F64", "BF16")],
    }


_SCALES: tuple[tuple[Sequence[float], int], ...] = (
    ((3.0, -4.0), 20_000),
    ((1.0,), MILLION),
    ((0.0, 0.0), 20_000),
    ((1.0, 1.0, 1.0), 0),
    (tuple(_gauss("scale", 32)), 20_000),
    # 128.5 and 129.5 units of the last digit: ties, which go to even.
    ((257.0,), MILLION),
    ((259.0,), MILLION),
)


def _scale(values: Sequence[float], sigma: int) -> Json:
    data = _bytes(values, "F32")
    scale = obfuscation.scale_of(dtypes.to_float(data, "F32"), sigma)
    return {"weights": data.hex(), "dtype": "F32", "sigma": sigma, "scale": dyadic(scale)}


def _drawn(seed: bytes, tensor: int, elements: int, fraction: int) -> list[tuple[int, int]]:
    """The weights that are touched, and their deviations."""
    found = obfuscation.noise(seed, tensor, elements, fraction).tolist()
    return [(at, value) for at, value in enumerate(found) if value != obfuscation.UNTOUCHED]


def _long(seed: bytes) -> Json:
    """A tensor of two pieces, given by the digest of what is drawn."""
    elements = obfuscation.PIECE + 40
    digest = hashlib.sha256()
    second: list[int] = []
    for at, value in _drawn(seed, 1, elements, 50_000):
        digest.update(struct.pack("<Qi", at, value))
        if at >= obfuscation.PIECE:
            second += [at, value]
    return {
        "tensor": 1,
        "elements": elements,
        "fraction": 50_000,
        "sha256": digest.hexdigest(),
        "second_piece": second,
    }


def _obfuscated(seed: bytes, dtype: str) -> Json:
    before = _bytes(_gauss(f"noise {dtype}", 64), dtype)
    spared = range(16, 32)
    drawn = obfuscation.noise(seed, 7, 64, 500_000)
    drawn[spared] = obfuscation.UNTOUCHED
    weights = torch.frombuffer(bytearray(before), dtype=dtypes.torch_dtype(dtype))
    noising.obfuscate(weights, drawn, 20_000)
    return {
        "dtype": dtype,
        "tensor": 7,
        "fraction": 500_000,
        "sigma": 20_000,
        "spared": list(spared),
        "before": before.hex(),
        "after": weights.view(torch.uint8).numpy().tobytes().hex(),
    }
