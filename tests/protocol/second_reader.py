"""A second reader of proofs, after docs/protocol.md; it imports nothing of PoLO.

It is slow and plain, holds everything in memory, knows only offline proofs at level chain, and
tests no accuracy. Vectors and golden proofs must come out the same here and in the library.
"""

import bisect
import hashlib
import hmac
import itertools
import json
import math
import struct
from decimal import Context, Decimal
from fractions import Fraction
from pathlib import Path

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

CHUNK = 16384
SIZES = {
    "BOOL": 1, "U8": 1, "I8": 1, "U16": 2, "I16": 2, "U32": 4, "I32": 4, "U64": 8, "I64": 8,
    "F8_E4M3": 1, "F8_E4M3FNUZ": 1, "F8_E5M2": 1, "F8_E5M2FNUZ": 1, "F8_E8M0": 1,
    "F16": 2, "BF16": 2, "F32": 4, "F64": 8, "C32": 4, "C64": 8, "C128": 16,
}  # fmt: skip


class RefusedError(Exception):
    """The proof does not hold."""


def need(condition, why):
    if not condition:
        raise RefusedError(why)


# Section 1


def tagged(label, *parts):
    name = label.encode()
    return hashlib.sha256(bytes([len(name)]) + name + b"".join(parts)).digest()


def u32(value):
    return struct.pack("<I", value)


def u64(value):
    return struct.pack("<Q", value)


# Section 2


def canonical(value):
    """Canonical bytes, spelled out rather than left to a library."""
    return _spell(value).encode()


def _spell(value):
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, int):
        return str(value)
    if isinstance(value, str):
        return '"' + "".join(_escape(letter) for letter in value) + '"'
    if isinstance(value, list):
        return "[" + ",".join(map(_spell, value)) + "]"
    keys = sorted(value, key=lambda key: key.encode("utf-16-be"))
    return "{" + ",".join(f"{_spell(key)}:{_spell(value[key])}" for key in keys) + "}"


def _escape(letter):
    short = {"\b": "b", "\t": "t", "\n": "n", "\f": "f", "\r": "r", '"': '"', "\\": "\\"}
    if letter in short:
        return "\\" + short[letter]
    return f"\\u{ord(letter):04x}" if letter < " " else letter


def document(data):
    value = json.loads(data)
    need(canonical(value) == data, "not canonical")
    return value


# Section 3: rules between fields, signatures and digests of records

LEVELS = ["chain", "receipts", "uniqueness", "progress", "replay"]


def to_seal(terms):
    """Fewest matches with which a shard is sealed."""
    return -(-terms["thresholds"]["embed"] * terms["scheme"]["bits"] // 10**6)


def broken_rules(terms):
    """Numbers of the rules of section 3.3, of those that need no layout, that terms break."""
    scheme, noise, bounds = terms["scheme"], terms["noise"], terms["thresholds"]
    levels = [item["level"] for item in terms["evidence"]]
    per_block = scheme["block"] * scheme["load"] // 10**6
    broken = set()
    if scheme["block"] not in (16, 32, 64, 128, 256, 512, 1024, 2048):
        broken.add(1)
    if not per_block or scheme["bits"] % per_block:
        broken.add(2)
    elif scheme["key"] == "dense" and scheme["bits"] // per_block * scheme["block"] > 16384:
        broken.add(3)
    if terms["shards"]["least"] > terms["shards"]["most"]:
        broken.add(9)
    if noise["least"] > noise["most"]:
        broken.add(4)
    if levels[:1] != ["chain"] or levels != [level for level in LEVELS if level in levels]:
        broken.add(5)
    if (terms["start"]["kind"] == "parent") != (terms["start"]["parent"] is not None):
        broken.add(6)
    if not passes(scheme["bits"], to_seal(terms), bounds["verify"], bounds["log2_p"]):
        broken.add(7)
    if 0 < noise["fraction"] < 3907:
        broken.add(8)
    if any(item["level"] == "chain" and item["settings"] for item in terms["evidence"]):
        broken.add(9)
    if ("replay" in levels) != (terms["data"] is not None):
        broken.add(13)
    return broken


def enrolment_holds(enrolment):
    offline = enrolment["nonces"]["kind"] == "offline"
    count = enrolment["terms"]["shards"]["most"] if offline else 0
    return not broken_rules(enrolment["terms"]) and enrolment["nonces"]["count"] == count


PRIME = 2**255 - 19
CURVE = -121665 * pow(121666, -1, PRIME) % PRIME


def weak(key):
    """Whether a key is not canonical, is no point, or is one that eight times itself is zero."""
    y = int.from_bytes(bytes.fromhex(key), "little") % 2**255
    if y >= PRIME:
        return True
    square = (y * y - 1) * pow(CURVE * y * y + 1, -1, PRIME) % PRIME
    x = pow(square, (PRIME + 3) // 8, PRIME)
    if x * x % PRIME != square:
        x = x * pow(2, (PRIME - 1) // 4, PRIME) % PRIME
    if x * x % PRIME != square:
        return True
    for _ in range(3):
        product = CURVE * x * x * y * y
        x, y = (
            2 * x * y * pow(1 + product, -1, PRIME) % PRIME,
            (y * y + x * x) * pow(1 - product, -1, PRIME) % PRIME,
        )
    return (x, y) == (0, 1)


def message(record):
    own = ("signature", "buyer_signature", "seller_signature")
    body = {name: value for name, value in record.items() if name not in own}
    return b"polo signature 1\n" + canonical(body)


def signed_by(record, key, field="signature"):
    if weak(key):
        return False
    try:
        public = Ed25519PublicKey.from_public_bytes(bytes.fromhex(key))
        public.verify(bytes.fromhex(record[field]), message(record))
    except InvalidSignature:
        return False
    return True


def digest(record):
    return tagged(record["format"], canonical(record))


def signed_by_both(transfer):
    return all(
        signed_by(transfer, transfer[who], f"{who}_signature") for who in ("seller", "buyer")
    )


def leads(transfer, seller, buyer):
    """Whether a transfer leads from one manifest to another, section 3.10."""
    start, first = buyer["enrolment"]["terms"]["start"], buyer["shards"][:1]
    return (
        transfer["seller"] != transfer["buyer"]
        and transfer["seller"] == seller["enrolment"]["identity"]
        and transfer["buyer"] == buyer["enrolment"]["identity"]
        and transfer["proof"] == digest(seller).hex()
        and [transfer["root"]] == [shard["root"] for shard in seller["shards"][-1:]]
        and transfer["root"] == buyer["start"]["root"] == start["parent"]
        and start["kind"] == "parent"
        and [transfer["first"]] == [shard["root"] for shard in first]
        and transfer["enrolment"] == digest(buyer["enrolment"]).hex()
        and (transfer["index"] is None or buyer["enrolment"]["nonces"]["kind"] == "live")
    )


def fingerprint(key):
    return tagged("polo/identity/1", bytes.fromhex(key))


# Section 4


def node(left, right):
    return hashlib.sha256(b"\x01" + left + right).digest()


def split(count):
    power = 1
    while 2 * power < count:
        power *= 2
    return power


def tree(leaves):
    if not leaves:
        return hashlib.sha256(b"").digest()
    if len(leaves) == 1:
        return leaves[0]
    at = split(len(leaves))
    return node(tree(leaves[:at]), tree(leaves[at:]))


def tree_from(count, wanted, path):
    """The root of a tree from some leaves by index and a multiproof."""
    rest = list(path)

    def walk(low, high):
        if not any(low <= index < high for index in wanted):
            need(rest, "path too short")
            return rest.pop(0)
        if high - low == 1:
            return wanted[low]
        at = low + split(high - low)
        left = walk(low, at)
        return node(left, walk(at, high))

    need(wanted and all(0 <= index < count for index in wanted), "no such leaf")
    found = walk(0, count)
    need(not rest, "path too long")
    return found


def elements(tensor):
    return math.prod(tensor["shape"])


def size(tensor):
    return elements(tensor) * SIZES[tensor["dtype"]]


def leaves_of(layout):
    """Tensor, chunk and length of every leaf."""
    found = []
    for at, tensor in enumerate(layout["tensors"]):
        for start in range(0, size(tensor), CHUNK):
            found.append((at, start // CHUNK, min(CHUNK, size(tensor) - start)))
    return found


def leaf_hash(tensor, chunk, data):
    return hashlib.sha256(b"\x00" + u32(tensor) + u64(chunk) + u32(len(data)) + data).digest()


def root_of(layout, tree_root):
    return tagged("polo/root/1", digest(layout), u64(len(leaves_of(layout))), tree_root)


def checkpoint_root(layout, tensors):
    """The root of a checkpoint given as the bytes of each tensor, in order."""
    for tensor, data in zip(layout["tensors"], tensors, strict=True):
        need(tensor["dtype"] != "BOOL" or set(data) <= {0, 1}, "neither true nor false")
    hashes = [
        leaf_hash(at, chunk, tensors[at][chunk * CHUNK : chunk * CHUNK + length])
        for at, chunk, length in leaves_of(layout)
    ]
    return root_of(layout, tree(hashes))


# Section 5


def read_opening(layout, wanted, data):
    """Chunks by leaf index, and the root of the checkpoint they belong to."""
    (length,) = struct.unpack_from("<Q", data)
    header = json.loads(data[8 : 8 + length])
    body = data[8 + length :]
    parts = {name: body[slice(*entry["data_offsets"])] for name, entry in header.items()}
    need(list(parts) == ["leaves", "chunks", "path"], "other parts")
    need(b"".join(parts.values()) == body, "gaps")
    indices = [index for (index,) in struct.iter_unpack("<q", parts["leaves"])]
    need(indices == sorted(wanted), "other leaves")
    everything, chunks, at = leaves_of(layout), {}, 0
    for index in indices:
        chunks[index] = parts["chunks"][at : at + everything[index][2]]
        at += everything[index][2]
    need(at == len(parts["chunks"]), "other lengths")
    path = [parts["path"][at : at + 32] for at in range(0, len(parts["path"]), 32)]
    hashes = {i: leaf_hash(*everything[i][:2], chunk) for i, chunk in chunks.items()}
    return chunks, root_of(layout, tree_from(len(everything), hashes, path))


# Sections 6 and 7


def seed_of(root, shard, nonce, identity, terms):
    return tagged("polo/seed/1", root, u32(shard), nonce, identity, terms)


def stream(seed, label, index, count):
    start = bytes([len(label)]) + label.encode() + seed + u32(index)
    return hashlib.shake_256(start).digest(count)


def bit(data, at):
    return data[at // 8] >> (at % 8) & 1


def positions(seed, count, blocks):
    chosen, at = [], 0
    words = stream(seed, "polo/positions/1", 0, 8 * 100_000)
    while len(chosen) < count:
        word = int.from_bytes(words[8 * at : 8 * at + 8], "little")
        at += 1
        if word < 2**64 // blocks * blocks and word % blocks not in chosen:
            chosen.append(word % blocks)
    return chosen


def units(data, dtype):
    """Weights in multiples of 2^-40, rounded half to even, at most 2^48 either way."""
    if dtype == "BF16":
        data = b"".join(b"\0\0" + data[at : at + 2] for at in range(0, len(data), 2))
    letter = {"F16": "e", "BF16": "f", "F32": "f", "F64": "d"}[dtype]
    found = []
    for (value,) in struct.iter_unpack(f"<{letter}", data):
        exact = round(Fraction(value) * 2**40)
        found.append(max(-(2**48), min(2**48, exact)))
    return found


def signed_sums(seed, scheme, weights):
    """All sums in the order of the bits, as the scheme makes them."""
    blocks = len(weights) // scheme["block"]
    together = 4 if scheme["name"] == "ednn-mean" else 1
    need(blocks % together == 0, "blocks that make no whole groups")
    groups = 1 if scheme["key"] == "dense" else blocks // together
    per_group, bits = len(weights) // groups, scheme["bits"] // groups
    make = {"ednn-mean": mean_sums, "riga": riga_sums, "signed": chosen_weights}
    sums = []
    for group in range(groups):
        own = weights[group * per_group : (group + 1) * per_group]
        sums += make.get(scheme["name"], projections)(seed, scheme, group, own, bits)
    return sums


def projections(seed, scheme, group, columns, bits):
    width = len(columns)
    signs = stream(seed, "polo/key/1", group, -(-bits * width // 8))
    return [
        sum((2 * bit(signs, row * width + at) - 1) * columns[at] for at in range(width))
        for row in range(bits)
    ]


def mean_sums(seed, scheme, group, own, bits):
    block, columns = scheme["block"], []
    for first in range(0, len(own), 4 * block):
        for at in range(block):
            columns.append(sum(own[first + k * block + at] for k in range(4)))
    return projections(seed, scheme, group, columns, bits)


def chosen_weights(seed, scheme, group, own, bits):
    stretch = len(own) // bits
    words = struct.unpack(f"<{bits}I", stream(seed, "polo/key/1", group, 4 * bits))
    return [own[row * stretch + word % stretch] for row, word in enumerate(words)]


def riga_sums(seed, scheme, group, own, bits):
    width, hidden = len(own), max(64, 2 * bits)
    signs = stream(seed, "polo/riga-hidden/1", group, hidden * width // 8)
    active = []
    for unit in range(hidden):
        z = sum((2 * bit(signs, unit * width + at) - 1) * own[at] for at in range(width))
        active.append(z if z >= 0 else z // 8)
    sums = []
    for row in range(bits):
        label, number = "polo/riga-out/1", group * bits + row
        words = struct.unpack(f"<{hidden}Q", stream(seed, label, number, 8 * hidden))
        order = sorted(range(hidden), key=lambda unit: (words[unit], unit))
        plus = set(order[: hidden // 2])
        sums.append(sum(a if unit in plus else -a for unit, a in enumerate(active)))
    return sums


def matching(seed, scheme, sums):
    mark = stream(seed, "polo/bits/1", 0, -(-scheme["bits"] // 8))
    return [int(total > 0 if bit(mark, at) else total < 0) for at, total in enumerate(sums)]


def mark_blocks(terms):
    per_block = terms["scheme"]["block"] * terms["scheme"]["load"] // 10**6
    return terms["scheme"]["bits"] // per_block


def blocks_of(layout, terms):
    """Tensor index and first element of every block of the carrier."""
    found = []
    for at, tensor in enumerate(layout["tensors"]):
        if tensor["name"] in terms["carrier"]:
            count = elements(tensor) // terms["scheme"]["block"]
            found += [(at, block * terms["scheme"]["block"]) for block in range(count)]
    return found


# Section 8


def nonce_leaf(nonce):
    salt, value = bytes.fromhex(nonce["salt"]), bytes.fromhex(nonce["nonce"])
    return tagged("polo/nonce/1", u32(nonce["shard"]), salt, value)


def offline_nonce_holds(nonce, commitment):
    path = [bytes.fromhex(item) for item in nonce["path"]]
    try:
        found = tree_from(commitment["count"], {nonce["shard"] - 1: nonce_leaf(nonce)}, path)
    except RefusedError:
        return False
    return found.hex() == commitment["root"]


def live_nonce_holds(nonce, enrolment, receipt, previous):
    return (
        signed_by(receipt, enrolment["issuer"])
        and receipt["enrolment"] == digest(enrolment).hex()
        and receipt["shard"] == nonce["shard"] - 1
        and receipt["root"] == previous
        and receipt["next_nonce"] == nonce_leaf(nonce).hex()
        and not nonce["path"]
    )


# Section 9


def tail(bits, matches):
    return sum(math.comb(bits, k) for k in range(matches, bits + 1))


def passes(bits, matches, verify, log2_p):
    rare = tail(bits, matches) <= 2 ** (bits + log2_p)
    return matches * 10**6 >= verify * bits and rare


# Section 11


def sampler_table():
    with60 = Context(prec=60, rounding="ROUND_HALF_EVEN")
    weights = [with60.exp(with60.divide(Decimal(-k * k), Decimal(8192))) for k in range(384)]
    weights[0] = with60.divide(weights[0], Decimal(2))
    running, sums = Decimal(0), []
    for weight in weights:
        running = with60.add(running, weight)
        sums.append(running)
    shares = (with60.divide(with60.multiply(s, Decimal(2**63)), running) for s in sums)
    return [min(int(share), 2**63 - 1) for share in shares]


def shard_secret(master, shard):
    return hmac.digest(master, b"polo/shard-secret/1" + u32(shard), "sha256")


def noise(seed, tensor, count, fraction, table):
    """Touched weights and their deviations."""
    own = tagged("polo/noise-tensor/1", seed, u32(tensor))
    below, found = fraction * 256 // 10**6, []
    for piece in range(-(-count // 65536)):
        first = piece * 65536
        drawn = stream(own, "polo/select/1", piece, min(65536, count - first))
        chosen = [first + at for at, byte in enumerate(drawn) if byte < below]
        words = struct.unpack(
            f"<{len(chosen)}Q", stream(own, "polo/gauss/1", piece, 8 * len(chosen))
        )
        for at, word in zip(chosen, words, strict=True):
            magnitude = sum(1 for entry in table if entry <= word % 2**63)
            found.append((at, -magnitude if word >> 63 else magnitude))
    return found


def scale(data, sigma):
    """Mantissa (odd or zero) and exponent of σ, from exact fractions; F32 weights."""
    values = [Fraction(value) for (value,) in struct.iter_unpack("<f", data)]
    square = sum(value * value for value in values) / len(values) * Fraction(sigma, 10**6) ** 2
    if not square:
        return 0, 0
    exponent = -400
    while square >= Fraction(4) ** (exponent + 1):
        exponent += 1
    # Now 2^exponent ≤ σ < 2^(exponent+1): eight digits are units of 2^(exponent-7).
    exact = square / Fraction(4) ** (exponent - 7)
    low = math.isqrt(exact.numerator // exact.denominator)
    half = Fraction(2 * low + 1, 2) ** 2
    digits = low + (exact > half or (exact == half and low % 2 == 1))
    shift = (digits & -digits).bit_length() - 1
    return digits >> shift, exponent - 7 + shift


# Section 14


def start_seed(enrolment):
    return tagged("polo/start/1", digest(enrolment))


def drawn_tensor(seed, index, case, table):
    """Canonical bytes of one tensor of the start, number by number."""
    own = tagged("polo/start-tensor/1", seed, u32(index))
    number = math.ldexp(case["number"]["mantissa"], case["number"]["exponent"])
    count = math.prod(case["shape"])
    values = []
    for piece in range(-(-count // 65536)):
        inside = min(65536, count - 65536 * piece)
        if case["rule"] == "uniform":
            words = struct.unpack(f"<{inside}I", stream(own, "polo/uniform/1", piece, 4 * inside))
            values += [float(2 * word + 1 - 2**32) * (number / 2**32) for word in words]
        elif case["rule"] == "normal":
            words = struct.unpack(f"<{inside}Q", stream(own, "polo/gauss/1", piece, 8 * inside))
            for word in words:
                magnitude = bisect.bisect_right(table, word % 2**63)
                values.append(float(-magnitude if word >> 63 else magnitude) * (number / 64))
        else:
            values += [number] * inside
    if case["blank"] is not None:
        row = count // case["shape"][0]
        values[case["blank"] * row : (case["blank"] + 1) * row] = [0.0] * row
    return b"".join(rounded(value, case["dtype"]) for value in values)


def bound_by_inputs(inputs):
    """1 / sqrt(inputs): the root is rounded, then the quotient. float() of a fraction rounds."""
    return float(1 / Fraction(rounded_root(Fraction(inputs))))


def bound_xavier(inputs, outputs):
    """sqrt(6 / (inputs + outputs)): the quotient is rounded, then the root."""
    return rounded_root(Fraction(float(Fraction(6, inputs + outputs))))


def rounded_root(value):
    """The square root of a fraction, rounded to a double, ties to even; by integers."""
    exponent = -60
    while value >= Fraction(4) ** (exponent + 1):
        exponent += 1
    # Now 2^exponent ≤ root < 2^(exponent+1): a double counts units of 2^(exponent-52).
    exact = value / Fraction(4) ** (exponent - 52)
    low = math.isqrt(exact.numerator // exact.denominator)
    half = Fraction(2 * low + 1, 2) ** 2
    digits = low + (exact > half or (exact == half and low % 2 == 1))
    return math.ldexp(digits, exponent - 52)


def rounded(value, dtype):
    """Bytes of one number in a type."""
    if dtype == "F64":
        return struct.pack("<d", value)
    if dtype == "I64":
        return struct.pack("<q", int(value))
    single = struct.pack("<f", value)
    if dtype == "F16":
        return struct.pack("<e", *struct.unpack("<f", single))
    if dtype == "BF16":
        (raw,) = struct.unpack("<I", single)
        return struct.pack("<H", (raw + 0x7FFF + (raw >> 16 & 1)) >> 16)
    return single


# Section 16: data, order, recipe


def data_root(columns, count, tree_root):
    digest = tagged("polo/columns/1", canonical(columns))
    return tagged("polo/data/1", digest, u64(count), tree_root)


def sample_leaf(index, salt, row):
    return hashlib.sha256(b"\0" + u64(index) + salt + row).digest()


def sample_salt(secret, index):
    return hmac.digest(secret, b"polo/sample-salt/1" + u64(index), "sha256")


def read_samples(columns, wanted, count, data):
    """The rows in a file of samples with these numbers, and the root that they lead to."""
    widths = [size(column) for column in columns]
    n, end, entries = len(wanted), 0, {}
    hashes = (len(data) - 8 - struct.unpack("<Q", data[:8])[0] - n * (sum(widths) + 32)) // 32
    for column in columns:
        shape = [n, *column["shape"]]
        entries["columns/" + column["name"]] = column["dtype"], shape, n * size(column)
    entries["salts"] = "U8", [n, 32], 32 * n
    entries["path"] = "U8", [hashes, 32], 32 * hashes
    text = []
    for name, (dtype, shape, length) in entries.items():
        text.append(
            f'"{name}":{{"dtype":"{dtype}","shape":{_spell(shape)},'
            f'"data_offsets":[{end},{end + length}]}}'
        )
        end += length
    header = ("{" + ",".join(text) + "}").encode()
    header += b" " * (-len(header) % 8)
    need(data[: 8 + len(header)] == u64(len(header)) + header, "header")
    body = data[8 + len(header) :]
    need(len(body) == end, "size")
    parts, at = [], 0
    for width in [*widths, 32]:
        parts.append([body[at + i * width : at + (i + 1) * width] for i in range(n)])
        at += n * width
    *rows, salts = parts
    rows = [b"".join(row) for row in zip(*rows, strict=True)]
    leaves = {i: sample_leaf(i, *pair) for i, *pair in zip(wanted, salts, rows, strict=True)}
    path = [body[i : i + 32] for i in range(at, end, 32)]
    return rows, data_root(columns, count, tree_from(count, leaves, path))


def repeats_too_often(shown, repeated, declared):
    hidden = declared - shown
    alpha = 0.0
    if hidden:
        alpha = shown * hidden / (declared - 0.5) / (1 - 1 / (2 * max(shown, hidden)))
    return 1 - (repeated - math.sqrt(alpha * math.log(10**9) / 2)) / shown < 0.5


def step_batch(seed, samples, batch, step):
    per_pass = -(-samples // batch)
    data = stream(tagged("polo/order/1", seed), "polo/order/1", step // per_pass, 8 * samples)
    words = [int.from_bytes(data[8 * i : 8 * i + 8], "little") for i in range(samples)]
    order = sorted(range(samples), key=lambda i: (words[i], i))
    place = step % per_pass
    return order[place * batch : (place + 1) * batch]


def step_seed(seed, step):
    data = stream(tagged("polo/order/1", seed), "polo/step/1", step, 8)
    return int.from_bytes(data, "little") % 2**63


def sample_seed(step_seed, place):
    data = stream(tagged("polo/sample/1", u64(step_seed)), "polo/sample/1", 0, 8 * place + 8)
    return int.from_bytes(data[-8:], "little") % 2**63


def rate_of(settings, step):
    full, warm = float(settings["rate"]), int(settings["warmup"])
    if step < warm:
        return full * ((step + 1) / warm)
    kind = settings["schedule"]
    if kind == "constant":
        return full
    if kind == "steps":
        part = 1.0
        for milestone in settings["milestones"].split(" "):
            part *= float(settings["gamma"]) if int(milestone) <= step else 1.0
        return full * part
    n = int(settings["total"]) - warm
    k = min(step - warm, n - 1)
    if kind == "linear":
        return full * ((n - k) / n)
    a = 0x3243F6A8885A308D313198A2E * k // n
    q = a * a // 2**96
    terms = [2**96]
    while terms[-1]:
        j = len(terms)
        terms.append(terms[-1] * q // 2**96 // (2 * j * (2 * j - 1)))
    total = sum(terms[0::2]) - sum(terms[1::2])
    return full * float(Fraction(total + 2**96, 2**97))


# Section 17: states, moves, records, the draw

ENDLESS = 2**63 - 1


def state_digest(layout, tensors):
    if layout is None:
        return tagged("polo/state/1")
    hashes = b""
    for data in tensors:
        for at in range(0, len(data), 2**24):
            hashes += hashlib.sha256(data[at : at + 2**24]).digest()
    return tagged("polo/state/1", digest(layout) + hashes)


def move(length):
    return round(length * 2**32) if length * 2**32 < ENDLESS else ENDLESS


def model_move(before, after):
    return move(math.dist(before, after))


def rest_move(keys):
    """The move of a rest, by key; None for tensors that are not there yet."""
    worst = 0
    for key, (before, after) in keys.items():
        if key != "step":
            before = before or [0] * len(after)
            smaller = min(math.hypot(*before), math.hypot(*after))
            worst = max(worst, move(math.dist(before, after) / smaller) if smaller else ENDLESS)
    return worst


def read_record(segments, data):
    """States, moves and platform in the record of a shard."""
    b = segments + 1
    text = (
        f'{{"states":{{"dtype":"U8","shape":[{b},64],"data_offsets":[0,{64 * b}]}},'
        f'"moves":{{"dtype":"U64","shape":[{b},2],"data_offsets":[{64 * b},{80 * b}]}},'
        f'"platform":{{"dtype":"U8","shape":[512],"data_offsets":[{80 * b},{80 * b + 512}]}}}}'
    ).encode()
    text += b" " * (-len(text) % 8)
    need(data[: 8 + len(text)] == u64(len(text)) + text, "header")
    body = data[8 + len(text) :]
    need(len(body) == 80 * b + 512, "size")
    states = [(body[i : i + 32], body[i + 32 : i + 64]) for i in range(0, 64 * b, 64)]
    moves = list(struct.iter_unpack("<QQ", body[64 * b : 80 * b]))
    need(max(map(max, moves)) <= ENDLESS and moves[-1][1] == 0, "moves")
    try:
        platform = document(body[80 * b :].rstrip(b" "))
    except ValueError as error:
        raise RefusedError("platform") from error
    need(isinstance(platform, dict), "platform")
    need(all(isinstance(value, str) for value in platform.values()), "platform")
    return states, moves, platform


def record_digest(data):
    return tagged("polo/replay-record/1", data)


def always_run(top, shards):
    """Segments that are always run again, by shard and number, and the one sealing."""
    places = [(x, at) for x, moves in enumerate(shards, 1) for at in range(len(moves) - 1)]
    found = {0}
    for kind in (0, 1):
        size = [shards[x - 1][at][kind] for x, at in places]
        for number in sorted(range(len(places)), key=lambda i: (-size[i], i))[:top]:
            found |= {number} if kind else {number, max(0, number - 1)}
    sealings = [moves[-1][0] for moves in shards]
    return [places[number] for number in sorted(found)], sealings.index(max(sealings)) + 1


def challenge_holds(challenge):
    places = [(place["shard"], place["segment"]) for place in challenge["segments"]]
    sealings = challenge["sealings"]
    return places == sorted(set(places)) and sealings == sorted(set(sealings))


# Section 10, less accuracy and delivered files


def faults(manifest):
    """Rule and shard of every fault in a manifest."""
    terms, shards = manifest["enrolment"]["terms"], manifest["shards"]
    bits, noise = terms["scheme"]["bits"], terms["noise"]
    roots = [manifest["start"]["root"], *(shard["root"] for shard in shards)]
    found = []
    if not terms["shards"]["least"] <= len(shards) <= terms["shards"]["most"]:
        found.append(("limits", 0))
    for x, shard in enumerate(shards, start=1):
        tests = {
            "order": shard["shard"] == x,
            "links": shard["previous"] == roots[x - 1],
            "duplicates": shard["root"] not in roots[:x],
            "limits": shard["steps"] >= terms["shards"]["fewest_steps"]
            and to_seal(terms) <= shard["matches"] <= bits,
            "noise": noise["least"] <= shard["noise"]["sigma"] <= noise["most"],
            "receipts": not shard["receipt"] or manifest["enrolment"]["nonces"]["kind"] == "live",
        }
        found += [(rule, x) for rule, holds in tests.items() if not holds]
    return found


def listing_holds(manifest):
    """Whether the manifest lists only files that have a meaning in it, and its layout."""
    listed = [file["path"] for file in manifest["files"]]
    last = len(manifest["shards"])
    may = {"layout.json"}
    for x in range(last + 1):
        name = f"checkpoints/{x:06d}"
        may |= {f"{name}.safetensors", f"{name}.delta.safetensors"}
        if {f"{name}.safetensors", f"{name}.delta.safetensors"} <= set(listed):
            return False
        if x:
            may |= {f"nonces/{x:06d}.json", f"openings/{x:06d}.safetensors"}
            for item in manifest["enrolment"]["terms"]["evidence"]:
                name = f"evidence/{item['level']}/{x:06d}"
                may |= {f"{name}.json", f"{name}.safetensors"}
    return "layout.json" in listed and listed == sorted(may & set(listed))


def read_checkpoint(layout, data):
    entries, at = {}, 0
    for tensor in layout["tensors"]:
        entries[tensor["name"]] = {
            "dtype": tensor["dtype"], "shape": tensor["shape"],
            "data_offsets": [at, at + size(tensor)],
        }  # fmt: skip
        at += size(tensor)
    text = json.dumps(entries, ensure_ascii=False, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    header = u64(len(text)) + text
    need(data.startswith(header) and len(data) == len(header) + at, "another header")
    body = data[len(header) :]
    return [body[slice(*entry["data_offsets"])] for entry in entries.values()]


def undo_delta(layout, newer, data):
    """The older checkpoint, from the newer one and a delta."""
    import zstandard

    pieces = [
        (at, start, min(2**20, size(tensor) - start), SIZES[tensor["dtype"]])
        for at, tensor in enumerate(layout["tensors"])
        for start in range(0, size(tensor), 2**20)
    ]
    need(struct.unpack_from("<Q", data) == (256,), "header")
    lengths = struct.unpack_from(f"<{len(pieces)}I", data, 264)
    older, place = [b""] * len(newer), 264 + 4 * len(pieces)
    for length, (at, start, count, width) in zip(lengths, pieces, strict=True):
        shuffled = zstandard.ZstdDecompressor().decompress(data[place : place + length])
        place += length
        rows = count // width
        mixed = bytes(shuffled[byte * rows + row] for row in range(rows) for byte in range(width))
        older[at] += bytes(
            a ^ b for a, b in zip(mixed, newer[at][start : start + count], strict=True)
        )
    need(place == len(data), "more after the end")
    return older


def read_proof(folder, issuer):
    """Matches by shard, and the numbers of the checkpoints whose roots were checked."""
    folder = Path(folder)
    manifest, layout, matches = read_chain(folder, issuer)
    read_owners(folder, manifest, issuer)
    return matches, read_checkpoints(folder, manifest, layout)


def read_owners(folder, manifest, issuer):
    """Earlier owners and the transfers between them; returns how many there are."""
    within = folder / "ancestors"
    if manifest["transfer"] is None:
        need(not within.exists() and not (folder / "transfer.json").exists(), "unbound transfer")
        return 0
    names = sorted(path.name for path in within.iterdir())
    need(names == [f"{at:06d}" for at in range(1, len(names) + 1)], "other ancestors")
    need(0 < len(names) <= 100, "too few or too many ancestors")
    owners = []
    for name in names:
        bundle = document((within / name / "bundle.json").read_bytes())
        need(set(bundle) == {"format", "kind", "shards"}, "another bundle")
        need((bundle["format"], bundle["kind"]) == ("polo/bundle/1", "buyer"), "another bundle")
        need(bundle["shards"] and bundle["shards"] == sorted(set(bundle["shards"])), "no marks")
        owners.append((within / name, *read_chain(within / name, issuer, bundle["shards"])))
    owners.append((folder, manifest, None, None))
    need(owners[0][1]["transfer"] is None, "an owner is left out")
    for (_, seller, *_), (place, buyer, *_) in itertools.pairwise(owners):
        transfer = document((place / "transfer.json").read_bytes())
        need(digest(transfer).hex() == buyer["transfer"], "another transfer")
        need(signed_by_both(transfer), "a signature of the transfer")
        need(leads(transfer, seller, buyer), "the transfer leads elsewhere")
    ends = [shard["root"] for _, owner, *_ in owners for shard in owner["shards"]]
    ends.append(owners[0][1]["start"]["root"])
    need(len(ends) == len(set(ends)), "weights come again")
    return len(names)


def read_chain(folder, issuer, shown=None):
    """Manifest, layout and matches by shard; of all shards, or of those that are shown."""
    manifest = document((folder / "manifest.json").read_bytes())
    enrolment = manifest["enrolment"]
    terms, scheme = enrolment["terms"], enrolment["terms"]["scheme"]
    need(enrolment["issuer"] == issuer, "another issuer")
    need(signed_by(enrolment, issuer), "issuer's signature")
    need(signed_by(manifest, enrolment["identity"]), "prover's signature")
    need(enrolment_holds(enrolment), "terms")
    start = terms["start"]
    need(scheme["name"] == "ednn" and start["kind"] != "derived", "unknown scheme or start")
    need(start["parent"] in (None, manifest["start"]["root"]), "another start")
    need([item["level"] for item in terms["evidence"]] == ["chain"], "further levels")
    need((terms["base"], terms["data"]) == (None, None), "what cannot be checked")
    need(listing_holds(manifest), "listing")
    need(not faults(manifest), "faults")
    for file in manifest["files"]:
        left_out = shown is not None and not is_shown(file["path"], shown)
        if left_out and not (folder / file["path"]).exists():
            continue
        data = (folder / file["path"]).read_bytes()
        need(len(data) == file["size"], "size")
        need(hashlib.sha256(data).hexdigest() == file["sha256"], "digest")
    layout = document((folder / "layout.json").read_bytes())
    need(digest(layout).hex() == terms["layout"], "layout")
    roots = [manifest["start"]["root"], *(shard["root"] for shard in manifest["shards"])]
    matches = {}
    for shard in manifest["shards"]:
        x = shard["shard"]
        if shown is not None and x not in shown:
            continue
        nonce = document((folder / f"nonces/{x:06d}.json").read_bytes())
        need(nonce["shard"] == x and offline_nonce_holds(nonce, enrolment["nonces"]), "nonce")
        seed = seed_of(
            bytes.fromhex(roots[x - 1]), x, bytes.fromhex(nonce["nonce"]),
            fingerprint(enrolment["identity"]), digest(terms),
        )  # fmt: skip
        blocks = blocks_of(layout, terms)
        drawn = [blocks[at] for at in positions(seed, mark_blocks(terms), len(blocks))]
        first, total = [], 0
        for tensor in layout["tensors"]:
            first.append(total)
            total += -(-size(tensor) // CHUNK)
        spots = []
        for tensor, element in drawn:
            width = SIZES[layout["tensors"][tensor]["dtype"]]
            chunk, offset = divmod(element * width, CHUNK)
            spots.append((tensor, first[tensor] + chunk, offset, scheme["block"] * width))
        data = (folder / f"openings/{x:06d}.safetensors").read_bytes()
        chunks, root = read_opening(layout, {leaf for _, leaf, _, _ in spots}, data)
        need(root.hex() == roots[x], "opening")
        weights = []
        for tensor, leaf, offset, length in spots:
            piece = chunks[leaf][offset : offset + length]
            weights += units(piece, layout["tensors"][tensor]["dtype"])
        matches[x] = sum(matching(seed, scheme, signed_sums(seed, scheme, weights)))
        bounds = terms["thresholds"]
        need(passes(scheme["bits"], matches[x], bounds["verify"], bounds["log2_p"]), "mark")
        need(matches[x] == shard["matches"], "claim")
    return manifest, layout, matches


def is_shown(path, shards):
    """Whether a buyer's bundle of these shards holds a file."""
    kind, _, name = path.rpartition("/")
    return not kind or (kind in ("nonces", "openings") and int(name[:6]) in shards)


def read_checkpoints(folder, manifest, layout):
    """Numbers of the stored checkpoints, whose roots are those of the chain."""
    listed = {file["path"] for file in manifest["files"]}
    roots = [manifest["start"]["root"], *(shard["root"] for shard in manifest["shards"])]
    whole, checked = None, []
    for x in range(len(roots) - 1, -1, -1):
        if f"checkpoints/{x:06d}.safetensors" in listed:
            path = folder / f"checkpoints/{x:06d}.safetensors"
            whole = read_checkpoint(layout, path.read_bytes())
        elif f"checkpoints/{x:06d}.delta.safetensors" in listed:
            need(whole is not None, "a delta from nothing")
            path = folder / f"checkpoints/{x:06d}.delta.safetensors"
            whole = undo_delta(layout, whole, path.read_bytes())
        else:
            continue
        need(checkpoint_root(layout, whole).hex() == roots[x], "checkpoint")
        checked.append(x)
    need(len(roots) - 1 in checked, "no last checkpoint")
    return checked
