"""Every vector file against the library, and against a reader that shares no code with it."""

import hashlib
import json
import math
import struct
import subprocess
import sys
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

import polo
from polo.errors import FormatError, PoloError, SignatureError, TermsError, WeightsError
from polo.evidence import rules, start
from polo.evidence.replay import distinct, samples
from polo.evidence.replay.data import DataSource
from polo.evidence.replay.order import Order
from polo.evidence.replay.recipe import Recipe
from polo.keys import Ed25519Verifier, Identity, is_weak
from polo.privacy import noising, obfuscation
from polo.protocol import (
    canonical,
    chain,
    combination,
    commitment,
    derivation,
    detection,
    merkle,
    nonces,
    sampler,
    signing,
    transfer,
)
from polo.protocol.digest import tagged, u32
from polo.protocol.effort import DataRecord
from polo.protocol.layout import CHUNK_BYTES, DTYPE_BYTES, Layout, Leaf, Tensor
from polo.protocol.records import (
    Enrolment,
    Manifest,
    Nonce,
    Receipt,
    SchemeTerms,
    Terms,
    Transfer,
    identity_of,
)
from polo.storage import openings
from polo.watermark import ednn
from polo.watermark.mark import Mark, carrier_of
from polo.watermark.schemes import SCHEMES
from polo.weights import dtypes
from polo.weights.files import header_of
from polo.weights.hashing import commit

VERIFIER = Ed25519Verifier()


class Raw:
    """A checkpoint made of raw bytes, tensor by tensor."""

    def __init__(self, layout, data):
        self.layout = layout
        self.data = data

    def read(self, tensor, start, stop):
        return self.data[tensor][start:stop]


def refuses(error, name, action):
    try:
        action()
    except error:
        return
    pytest.fail(f"{name!r} was not refused")


def test_the_files_are_what_the_script_writes(vectors):
    command = [sys.executable, str(vectors / "make.py"), "--check"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_only_detection_holds_floats(vectors):
    def refuse(text):
        raise AssertionError(f"a float: {text}")

    for path in sorted(vectors.glob("*.json")):
        if path.name != "detection.json":
            json.loads(path.read_text(), parse_float=refuse, parse_constant=refuse)


def test_canonical(vector, second):
    found = vector("canonical")
    for case in found["valid"]:
        value, data = json.loads(case["loose"]), case["canonical"].encode()
        assert canonical.encode(value) == second.canonical(value) == data, case["name"]
        assert canonical.parse(data, place="vector") == value
    for case in found["refused"]:
        data = bytes.fromhex(case["hex"])
        refuses(FormatError, case["name"], lambda data=data: canonical.parse(data, place="vector"))


def test_merkle(vector, second):
    found = vector("merkle")
    leaves = [bytes.fromhex(leaf) for leaf in found["leaf_hashes"]]
    roots = {case["count"]: case["root"] for case in found["roots"]}
    assert {0, 1, 2, 3, 5, 7, 8} <= set(roots)
    for count, root in roots.items():
        assert merkle.root(leaves[:count]).hex() == second.tree(leaves[:count]).hex() == root
    for case in found["multiproofs"]:
        count, proof = case["count"], [bytes.fromhex(item) for item in case["proof"]]
        wanted = {at: leaves[at] for at in case["wanted"]}
        assert merkle.multiproof(leaves[:count], case["wanted"]) == proof
        assert merkle.multiproof_length(count, case["wanted"]) == len(proof)
        found_root = merkle.root_from_multiproof(count, wanted, proof, place="vector")
        assert found_root.hex() == second.tree_from(count, wanted, proof).hex() == roots[count]


def test_layout(vector, second):
    found = vector("layout")
    assert found["bytes_per_element"] == DTYPE_BYTES == second.SIZES
    for case in found["valid"]:
        data = case["document"].encode()
        layout, plain = Layout.from_bytes(data, "vector"), json.loads(data)
        assert layout.to_bytes() == data
        assert layout.digest.hex() == second.digest(plain).hex() == case["digest"]
        assert [second.size(tensor) for tensor in plain["tensors"]] == case["sizes"]
        assert [tensor.size for tensor in layout.tensors] == case["sizes"]
        assert list(layout.offsets) == case["offsets"]
        assert list(layout.first_leaf) == case["first_leaf"]
        assert list(layout.leaves()) == [Leaf(*leaf) for leaf in case["leaves"]]
        short = [(tensor, chunk, length) for tensor, chunk, _, length in case["leaves"]]
        assert second.leaves_of(plain) == short
    for case in found["refused"]:
        data = case["document"].encode()
        refuses(FormatError, case["name"], lambda data=data: Layout.from_bytes(data, "vector"))


def tensors_of(found, layout):
    def data(entry):
        if "hex" in entry:
            return bytes.fromhex(entry["hex"])
        return hashlib.shake_256(entry["shake_256"].encode()).digest(entry["size"])

    return [data(found["tensors"][tensor.name]) for tensor in layout.tensors]


def test_root(vector, second):
    found = vector("root")
    layout = Layout.from_bytes(found["layout"].encode(), "vector")
    data = tensors_of(found, layout)
    committed = commit(Raw(layout, data), threads=2)
    assert layout.digest.hex() == found["layout_digest"]
    assert [leaf.hex() for leaf in committed.leaves] == found["leaf_hashes"]
    assert merkle.root(committed.leaves).hex() == found["tree"]
    assert committed.root.hex() == found["root"]
    assert second.checkpoint_root(json.loads(found["layout"]), data).hex() == found["root"]
    header = header_of(layout)
    assert header.hex() == found["file_header"]
    assert hashlib.sha256(header + b"".join(data)).hexdigest() == found["file_sha256"]


@pytest.mark.parametrize(
    ("kind", "why"), [("not_finite", "not finite"), ("not_boolean", "neither 0 nor 1")]
)
def test_values_that_have_no_root(vector, second, kind, why):
    cases = vector("root")[kind]
    assert cases
    for case in cases:
        data = bytes.fromhex(case["hex"])
        layout = Layout(
            16384, (Tensor("w", case["dtype"], (len(data) // DTYPE_BYTES[case["dtype"]],)),), ()
        )
        with pytest.raises(WeightsError, match=why) as error:
            commit(Raw(layout, [data]), threads=1)
        assert error.value.place == "w"
        if kind == "not_boolean":
            with pytest.raises(second.RefusedError, match="neither"):
                second.checkpoint_root(layout.to_json(), [data])


def test_opening(vector, second, tmp_path):
    found = vector("opening")
    layout = Layout.from_bytes(found["layout"].encode(), "vector")
    data = tensors_of(vector("root"), layout)
    leaves = list(layout.leaves())
    where = {case["leaf"]: leaves[case["leaf"]] for case in found["chunks"]}
    chunks = {case["leaf"]: bytes.fromhex(case["hex"]) for case in found["chunks"]}
    path = tuple(bytes.fromhex(item) for item in found["path"])
    opening = commit(Raw(layout, data), threads=1).open(Raw(layout, data), where)
    assert opening == commitment.Opening(chunks, path)
    assert opening.root(layout, where, place="vector").hex() == found["root"]
    file = bytes.fromhex(found["file"])
    assert openings.encode(opening) == file
    (tmp_path / "opening").write_bytes(file)
    assert openings.load(tmp_path / "opening", layout, where, place="vector") == opening
    plain = json.loads(found["layout"])
    assert second.read_opening(plain, set(where), file)[1].hex() == found["root"]
    (other,) = found["other_roots"]
    reverse = commitment.Opening(chunks, path[::-1]).root(layout, where, place="vector")
    assert reverse.hex() == other["root"] != found["root"]
    for case in found["refused_files"]:
        (tmp_path / "refused").write_bytes(bytes.fromhex(case["hex"]))
        refuses(
            FormatError,
            case["name"],
            lambda: openings.load(tmp_path / "refused", layout, where, place="vector"),
        )


def test_seed(vector, second):
    cases = vector("seed")["cases"]
    assert len({case["seed"] for case in cases}) == len(cases) > 1
    for case in cases:
        parts = {name: bytes.fromhex(case[name]) for name in ("root", "nonce", "identity", "terms")}
        assert derivation.seed(shard=case["shard"], **parts).hex() == case["seed"]
        assert second.seed_of(shard=case["shard"], **parts).hex() == case["seed"]
        assert identity_of(bytes.fromhex(case["public_key"])) == parts["identity"]
        assert second.fingerprint(case["public_key"]) == parts["identity"]


def test_derivation(vector, second):
    found = vector("derivation")
    assert {case["scheme"]["key"] for case in found["marks"]} == {"block", "dense"}
    for case in found["marks"]:
        seed = bytes.fromhex(case["seed"])
        scheme = SchemeTerms.from_json(case["scheme"], "vector")
        drawn = derivation.positions(seed, scheme.blocks, case["carrier_blocks"])
        mark = Mark(scheme, drawn, seed)
        count = case["signs_per_group"]
        assert scheme.bits_per_block == case["bits_per_block"]
        assert list(drawn) == case["positions"]
        assert second.positions(seed, scheme.blocks, case["carrier_blocks"]) == case["positions"]
        assert mark.groups == case["groups"] == len(case["keys"])
        assert mark.group_bits * mark.group_weights == count
        bits = bytes.fromhex(case["bits"])
        assert derivation.bits(seed, scheme.bits) == bits
        expected = [second.bit(bits, at) for at in range(scheme.bits)]
        assert mark.bits.astype(int).reshape(-1).tolist() == expected
        for group, key in enumerate(case["keys"]):
            key = bytes.fromhex(key)
            assert derivation.key(seed, group, count) == key
            assert second.stream(seed, "polo/key/1", group, len(key)) == key
            signs = [2 * second.bit(key, at) - 1 for at in range(count)]
            assert mark.signs(group).reshape(-1).tolist() == signs
    words = found["dropped_words"]
    seed, blocks = bytes.fromhex(words["seed"]), int(words["carrier_blocks"])
    wanted = [int(at) for at in words["positions"]]
    assert list(derivation.positions(seed, len(wanted), blocks)) == wanted
    assert second.positions(seed, len(wanted), blocks) == wanted
    first = int.from_bytes(second.stream(seed, "polo/positions/1", 0, 32)[24:], "little")
    assert wanted[3] != first % blocks, "no word was dropped, so this shows nothing"


def test_reading(vector, second):
    cases = vector("reading")["cases"]
    assert {case["dtype"] for case in cases} == {"F16", "BF16", "F32", "F64"}
    seen = set()
    for case in cases:
        seed, data = bytes.fromhex(case["seed"]), bytes.fromhex(case["weights"])
        scheme = SchemeTerms.from_json(case["scheme"], "vector")
        mark = Mark(scheme, tuple(range(scheme.blocks)), seed)
        values = dtypes.to_float(data, case["dtype"])
        units = ednn.fixed_point(values)
        assert list(map(str, units.tolist())) == case["units"], case["name"]
        assert second.units(data, case["dtype"]) == units.tolist(), case["name"]
        sums = [int(total) for group in case["sums"] for total in group]
        grouped = units.reshape(mark.groups, -1)
        ours = [ednn.signed_sums(mark.signs(g), grouped[g]) for g in range(mark.groups)]
        assert np.concatenate(ours).tolist() == sums
        assert second.signed_sums(seed, case["scheme"], units.tolist()) == sums
        matching = [bit for group in case["matching"] for bit in group]
        right = ednn.matches(mark, values.reshape(scheme.blocks, scheme.block), range(mark.groups))
        assert right.astype(int).reshape(-1).tolist() == matching
        assert second.matching(seed, case["scheme"], sums) == matching
        assert sum(matching) == case["matches"]
        assert not any(bit for bit, total in zip(matching, sums, strict=True) if total == 0)
        seen |= {"zero"} if 0 in sums and any(sums) else set()
        seen |= {"saturated"} if 2**48 in units and -(2**48) in units else set()
    assert seen == {"zero", "saturated"}


def test_reading_by_the_other_schemes(vector, second):
    cases = vector("schemes")["cases"]
    assert {case["scheme"]["name"] for case in cases} | {"ednn"} == set(SCHEMES)
    for case in cases:
        seed, data = bytes.fromhex(case["seed"]), bytes.fromhex(case["weights"])
        scheme = SchemeTerms.from_json(case["scheme"], "vector")
        mark = Mark(scheme, tuple(range(scheme.blocks)), seed)
        values = dtypes.to_float(data, case["dtype"]).reshape(scheme.blocks, scheme.block)
        assert mark.groups == case["groups"], case["name"]
        right = SCHEMES[scheme.name].matches(mark, values, range(mark.groups))
        assert right.astype(int).tolist() == case["matching"], case["name"]
        sums = second.signed_sums(seed, case["scheme"], second.units(data, case["dtype"]))
        flat = [bit for group in case["matching"] for bit in group]
        assert second.matching(seed, case["scheme"], sums) == flat, case["name"]
        assert sum(flat) == case["matches"] == int(right.sum())
        assert any(flat) != case["name"].endswith("zero")


def test_marks_of_no_whole_groups_are_refused(second):
    scheme = SchemeTerms("ednn-mean", 18, 16, 187_500, "block", 1000, "sum", 1)
    assert scheme.blocks == 6
    with pytest.raises(second.RefusedError):
        second.signed_sums(bytes(32), scheme.to_json(), [1] * 96)
    layout = Layout(CHUNK_BYTES, (Tensor("a", "F32", (64, 64)),), ())
    terms = replace(polo.make_terms(layout), scheme=scheme)
    with pytest.raises(TermsError, match="takes 4 together"):
        carrier_of(terms, layout)


def test_combination(vector):
    for case in vector("detection")["chains"]:
        marks = [
            combination.ReadMark(at, detection.Reading(mark["bits"], mark["matches"]), mark["live"])
            for at, mark in enumerate(case["marks"], start=1)
        ]
        tries = math.log2(case["tries"])
        found = combination.correct(combination.combine(marks), tries)
        assert found == pytest.approx(case["log2_p"], abs=2e-5)
        assert (found <= combination.CLAIM_LOG2_P) == case["claim"]


def test_detection(vector, second):
    found = vector("detection")
    for case in found["tails"]:
        bits, matches = case["bits"], case["matches"]
        exact = math.log2(second.tail(bits, matches)) - bits if bits <= 2048 else case["log2_p"]
        assert exact == pytest.approx(case["log2_p"], abs=1e-6)
        assert detection.log2_tail(bits, matches) == pytest.approx(case["log2_p"], abs=2e-6)
    for case in found["passes"]:
        bits, matches, rules = case["bits"], case["matches"], (case["verify"], case["log2_p"])
        reading = detection.Reading(bits, matches)
        assert reading.reaches(case["verify"]) is case["rate"]
        assert reading.rarer_than(case["log2_p"]) is case["rare"]
        assert reading.passes(*rules) is case["passes"]
        assert second.passes(bits, matches, *rules) is case["passes"]
    kinds = {(case["rate"], case["rare"]) for case in found["passes"]}
    assert len(kinds) == 4, "each rule must fail alone somewhere"
    exact = [
        case for case in found["passes"]
        if second.tail(case["bits"], case["matches"]) == 2 ** (case["bits"] + case["log2_p"])
    ]  # fmt: skip
    assert any(detection.log2_tail(c["bits"], c["matches"]) > c["log2_p"] for c in exact)


def test_signature(vector, second):
    found = vector("signature")
    private = Ed25519PrivateKey.from_private_bytes(bytes.fromhex(found["private_key"]))
    issuer = Identity(private)
    record = Enrolment.from_bytes(found["enrolment"].encode(), "vector")
    plain = json.loads(found["enrolment"])
    assert issuer.public_key.hex() == found["public_key"] == plain["issuer"]
    assert issuer.id == second.fingerprint(found["public_key"]).hex() == found["fingerprint"]
    assert record.message() == second.message(plain) == found["message"].encode()
    assert issuer.sign(record.message()).hex() == found["signature"] == plain["signature"]
    assert second.signed_by(plain, found["public_key"])
    signing.check(record, record.issuer, VERIFIER, place="vector")
    terms = Terms.from_bytes(found["terms"].encode(), "vector")
    assert record.terms == terms
    assert terms.digest.hex() == second.digest(plain["terms"]).hex() == found["terms_digest"]
    assert record.digest.hex() == second.digest(plain).hex() == found["enrolment_digest"]
    for case in found["refused"]:
        other = record.signed(bytes.fromhex(case["signature"]))
        with pytest.raises(SignatureError):
            signing.check(other, record.issuer, VERIFIER, place="vector")
        assert not second.signed_by(other.to_json(), found["public_key"])


def test_transfer(vector, second):
    found = vector("transfer")
    given = Transfer.from_bytes(found["transfer"].encode(), "vector")
    plain = {name: json.loads(found[name]) for name in ("transfer", "seller", "buyer")}
    assert given.message() == second.message(plain["transfer"]) == found["message"].encode()
    assert given.digest.hex() == second.digest(plain["transfer"]).hex() == found["digest"]
    seller = Manifest.from_bytes(found["seller"].encode(), "vector")
    assert seller.digest.hex() == second.digest(plain["seller"]).hex() == found["seller_digest"]
    transfer.check(given, VERIFIER, place="vector")
    assert second.signed_by_both(plain["transfer"])
    outcomes = set()
    for case in found["cases"]:
        changed = applied(plain, case["changes"])
        faults = transfer.faults(
            Transfer.from_json(changed["transfer"], "vector"),
            Manifest.from_json(changed["seller"], "vector"),
            Manifest.from_json(changed["buyer"], "vector"),
        )
        assert (not list(faults)) is case["leads"], case["name"]
        assert second.leads(**changed) is case["leads"], case["name"]
        outcomes.add(case["leads"])
        if any(change["at"][0] == "transfer" for change in case["changes"]):
            assert not second.signed_by_both(changed["transfer"])
            with pytest.raises(SignatureError):
                transfer.check(
                    Transfer.from_json(changed["transfer"], "vector"), VERIFIER, place="vector"
                )
    assert outcomes == {True, False}


def test_weak_keys(vector, second):
    found = vector("signature")
    assert not is_weak(bytes.fromhex(found["public_key"]))
    assert not second.weak(found["public_key"])
    forged = Enrolment.from_bytes(found["enrolment"].encode(), "vector").signed(
        bytes.fromhex(found["weak_signature"])
    )
    keys = {case["name"]: case["public_key"] for case in found["weak_keys"]}
    first = next(case["public_key"] for case in found["weak_keys"])
    # Nothing but the rule about weak keys stops this signature.
    Ed25519PublicKey.from_public_bytes(bytes.fromhex(first)).verify(
        forged.signature, forged.message()
    )
    assert len(keys) * 2 == len(found["weak_keys"]) == 16
    for case in found["weak_keys"]:
        key = bytes.fromhex(case["public_key"])
        assert is_weak(key), case["name"]
        assert second.weak(case["public_key"]), case["name"]
        assert not VERIFIER.verify(key, forged.message(), forged.signature)
        assert not second.signed_by(forged.to_json(), case["public_key"])


def test_terms(vector, second):
    found = vector("terms")
    plain = json.loads(found["terms"])
    for case in found["valid"]:
        changed = applied(plain, case["changes"])
        assert Terms.from_json(changed, "vector").to_json() == changed, case["name"]
        assert second.broken_rules(changed) == set(), case["name"]
    for case in found["refused"]:
        changed = applied(plain, case["changes"])
        refuses(TermsError, case["name"], lambda c=changed: Terms.from_json(c, "vector"))
        assert second.broken_rules(changed) == {case["rule"]}, case["name"]
    assert {case["rule"] for case in found["refused"]} == {*range(1, 10), 13}


def test_offline_nonces(vector, second):
    found = vector("nonces")["offline"]
    enrolment = Enrolment.from_bytes(found["enrolment"].encode(), "vector")
    committed = json.loads(found["enrolment"])["nonces"]
    for document, leaf in zip(found["nonces"], found["leaves"], strict=True):
        nonce = Nonce.from_bytes(document.encode(), "vector")
        assert nonces.leaf(nonce).hex() == second.nonce_leaf(json.loads(document)).hex() == leaf
        nonces.check(nonce, enrolment, (), VERIFIER, place="vector")
        assert second.offline_nonce_holds(json.loads(document), committed)
    for case in found["refused"]:
        nonce = Nonce.from_bytes(case["nonce"].encode(), "vector")
        refuses(
            PoloError,
            case["name"],
            lambda nonce=nonce: nonces.check(nonce, enrolment, (), VERIFIER, place="vector"),
        )
        assert not second.offline_nonce_holds(json.loads(case["nonce"]), committed)


def test_a_live_nonce(vector, second):
    found = vector("nonces")["live"]
    enrolment = Enrolment.from_bytes(found["enrolment"].encode(), "vector")
    nonce = Nonce.from_bytes(found["nonce"].encode(), "vector")
    receipt = Receipt.from_bytes(found["receipt"].encode(), "vector")
    plain = json.loads(found["receipt"])
    assert receipt.message() == second.message(plain) == found["message"].encode()
    assert second.signed_by(plain, enrolment.issuer.hex())
    assert second.nonce_leaf(json.loads(found["nonce"])).hex() == plain["next_nonce"]
    assert second.digest(json.loads(found["enrolment"])).hex() == plain["enrolment"]
    previous = bytes.fromhex(found["previous"])
    check = partial(
        nonces.check, nonce, enrolment, verifier=VERIFIER, previous=previous, place="vector"
    )
    holds = partial(
        second.live_nonce_holds, json.loads(found["nonce"]), json.loads(found["enrolment"])
    )
    check([None, receipt])
    assert holds(plain, found["previous"])
    for case in found["refused"]:
        other = Receipt.from_bytes(case["receipt"].encode(), "vector")
        refuses(SignatureError, case["name"], partial(check, [None, other]))
        assert not holds(json.loads(case["receipt"]), found["previous"]), case["name"]
    with pytest.raises(SignatureError):
        check([receipt])
    with pytest.raises(SignatureError, match="other weights"):
        check([None, receipt], previous=bytes(32))


def test_noise(vector, second):
    found = vector("noise")
    table = sampler.table()
    packed = struct.pack(f"<{len(table)}Q", *table)
    assert hashlib.sha256(packed).hexdigest() == found["table"]["sha256"]
    assert list(table) == second.sampler_table()
    assert {at: str(table[int(at)]) for at in found["table"]["entries"]} == found["table"][
        "entries"
    ]
    for case in found["table"]["magnitudes"]:
        assert np.searchsorted(table, int(case["u"]), side="right") == case["magnitude"]
    secret = {name: bytes.fromhex(v) for name, v in found["secret"].items() if name != "shard"}
    shard = found["secret"]["shard"]
    assert obfuscation.secret_of(secret["master"], shard) == secret["secret"]
    assert second.shard_secret(secret["master"], shard) == secret["secret"]
    assert obfuscation.secret_commitment(secret["secret"]) == secret["commitment"]
    assert second.tagged("polo/secret/1", secret["secret"]) == secret["commitment"]
    assert obfuscation.noise_seed(secret["secret"], secret["nonce"]) == secret["seed"]
    assert second.tagged("polo/noise/1", secret["secret"], secret["nonce"]) == secret["seed"]
    for case in found["tensors"]:
        wanted = list(zip(case["chosen"], case["deviations"], strict=True))
        assert drawn(secret["seed"], case) == wanted
        arguments = (case["tensor"], case["elements"], case["fraction"])
        assert second.noise(secret["seed"], *arguments, table) == wanted
    long = found["long_tensor"]
    pairs = drawn(secret["seed"], long)
    body = b"".join(struct.pack("<Qi", at, value) for at, value in pairs)
    assert hashlib.sha256(body).hexdigest() == long["sha256"]
    late = [number for pair in pairs if pair[0] >= 65536 for number in pair]
    assert late == long["second_piece"] != []


def drawn(seed, case):
    found = obfuscation.noise(seed, case["tensor"], case["elements"], case["fraction"])
    return [(at, int(value)) for at, value in enumerate(found) if value != obfuscation.UNTOUCHED]


def test_noise_on_weights(vector, second):
    found = vector("noise")
    for case in found["scales"]:
        data = bytes.fromhex(case["weights"])
        mantissa, exponent = case["scale"]["mantissa"], case["scale"]["exponent"]
        ours = obfuscation.scale_of(dtypes.to_float(data, case["dtype"]), case["sigma"])
        assert ours == math.ldexp(mantissa, exponent)
        assert second.scale(data, case["sigma"]) == (mantissa, exponent)
    seed = bytes.fromhex(found["secret"]["seed"])
    for case in found["obfuscated"]:
        before, after = bytes.fromhex(case["before"]), bytes.fromhex(case["after"])
        values, spared = dtypes.to_float(before, case["dtype"]), np.array(case["spared"])
        steps = obfuscation.noise(seed, case["tensor"], len(values), case["fraction"])
        steps[spared] = obfuscation.UNTOUCHED
        noisy = torch.frombuffer(bytearray(before), dtype=dtypes.torch_dtype(case["dtype"]))
        noising.obfuscate(noisy, steps, case["sigma"])
        assert noisy.view(torch.uint8).numpy().tobytes() == after != before
        changed = np.flatnonzero(dtypes.to_float(after, case["dtype"]) != values)
        assert not set(changed.tolist()) & set(case["spared"])
        assert 0 < len(changed) < len(values) - len(spared)


def test_start(vector, second):
    found = vector("start")
    table = second.sampler_table()
    plain = json.loads(found["enrolment"])
    enrolment = Enrolment.from_bytes(found["enrolment"].encode(), "vector")
    assert signed(enrolment, plain, second)
    seed = start.start_seed(enrolment)
    assert seed == second.start_seed(plain) == bytes.fromhex(found["seed"])
    data = []
    for at, case in enumerate(found["tensors"]):
        data.append(bytes.fromhex(case["bytes"]))
        assert drawn_tensor(seed, at, case) == data[-1], case["name"]
        assert second.drawn_tensor(seed, at, case, table) == data[-1], case["name"]
    layout = Layout(16384, tuple(tensor_of(case) for case in found["tensors"]), ())
    assert commit(Raw(layout, data)).root.hex() == found["root"]
    for at, case in enumerate(found["long"]):
        for drawn in (drawn_tensor(seed, at, case), second.drawn_tensor(seed, at, case, table)):
            assert hashlib.sha256(drawn).hexdigest() == case["sha256"]


def signed(enrolment, plain, second):
    signing.check(enrolment, enrolment.issuer, VERIFIER, place="vector")
    return second.signed_by(plain, plain["issuer"]) and second.enrolment_holds(plain)


def tensor_of(case):
    return Tensor(case["name"], case["dtype"], tuple(case["shape"]))


def drawn_tensor(seed, index, case):
    number = math.ldexp(case["number"]["mantissa"], case["number"]["exponent"])
    rule = {
        "uniform": rules.Uniform(number),
        "normal": rules.Normal(number, case["blank"]),
        "constant": rules.Constant(number),
    }[case["rule"]]
    tensor = tensor_of(case)
    own = tagged("polo/start-tensor/1", seed, u32(index))
    return rules.drawn_bytes(rule, tensor, own, 0, tensor.size)


def test_bounds_of_the_start(vector, second):
    for case in vector("start")["bounds"]:
        inputs, outputs = case["inputs"], case["outputs"]
        for name, ours, theirs in (
            ("by_inputs", 1 / math.sqrt(inputs), second.bound_by_inputs(inputs)),
            ("xavier", math.sqrt(6 / (inputs + outputs)), second.bound_xavier(inputs, outputs)),
        ):
            wanted = math.ldexp(case[name]["mantissa"], case[name]["exponent"])
            assert ours == theirs == wanted, (name, inputs)


def test_chain(vector, second):
    found = vector("chain")
    manifest = Manifest.from_bytes(found["manifest"].encode(), "vector")
    plain = json.loads(found["manifest"])
    assert manifest.message() == second.message(plain) == found["message"].encode()
    assert second.signed_by(plain, plain["enrolment"]["identity"])
    walk = chain.ChainWalk(manifest, VERIFIER)
    for number in (3, 2, 1):
        nonce = Nonce.from_bytes(found["nonces"][number - 1].encode(), "vector")
        query = walk.open(nonce, place="vector")
        previous = bytes.fromhex(plain["shards"][number - 1]["previous"])
        seed = second.seed_of(
            previous,
            number,
            nonce.nonce,
            second.fingerprint(plain["enrolment"]["identity"]),
            second.digest(plain["enrolment"]["terms"]),
        )
        assert query.seed == seed
        assert query.seed.hex() == found["seeds"][number - 1]
        walk.skip()
    for case in found["faults"]:
        changed = Manifest.from_json(applied(plain, case["changes"]), "vector")
        wanted = [(fault["check"], fault["shard"]) for fault in case["faults"]]
        assert [(fault.check, fault.shard) for fault in chain.faults(changed)] == wanted
        assert set(second.faults(changed.to_json())) == set(wanted), case["name"]
    named = {fault["check"] for case in found["faults"] for fault in case["faults"]}
    assert named == set(chain.RULES)
    for case in found["listings"]:
        changed = Manifest.from_json(applied(plain, case["changes"]), "vector")
        assert (not list(chain.misplaced(changed))) is case["holds"], case["name"]
        assert second.listing_holds(changed.to_json()) is case["holds"], case["name"]
    for case in found["refused"]:
        changed = applied(plain, case["changes"])
        refuses(TermsError, case["name"], lambda c=changed: Manifest.from_json(c, "vector"))
        assert not second.enrolment_holds(changed["enrolment"]), case["name"]
    assert second.enrolment_holds(plain["enrolment"])


def applied(document, changes):
    copy = json.loads(json.dumps(document))
    for change in changes:
        *way, last = change["at"]
        target = copy
        for step in way:
            target = target[step]
        target[last] = change["value"]
    return copy


def test_data(vector, second):
    found = vector("data")
    record = DataRecord.from_bytes(found["record"].encode(), "vector")
    plain, count = second.document(found["record"].encode()), len(found["samples"])
    assert (record.samples, plain["columns"]) == (count, [c.to_json() for c in record.columns])
    secret, root, leaves = bytes.fromhex(found["secret"]), bytes.fromhex(plain["root"]), []
    for index, case in enumerate(found["samples"]):
        row, salt = bytes.fromhex(case["row"]), bytes.fromhex(case["salt"])
        assert second.sample_salt(secret, index) == salt
        leaves.append(second.sample_leaf(index, salt, row))
        assert samples.leaf(index, salt, row) == leaves[-1] == bytes.fromhex(case["leaf"])
    tree = second.tree(leaves)
    assert second.data_root(plain["columns"], count, tree) == root
    source = DataSource(columns_in(record, found["samples"]), secret)
    assert source.record == record
    for case in found["openings"]:
        assert samples.encode_opening(source.open(case["wanted"])).hex() == case["file"]


def columns_in(record, cases):
    """The columns of all samples, cut out of their rows."""
    joined = b"".join(bytes.fromhex(case["row"]) for case in cases)
    rows = np.frombuffer(joined, np.uint8).reshape(len(cases), -1)
    columns, at = {}, 0
    for column in record.columns:
        part = np.ascontiguousarray(rows[:, at : at + column.size])
        values = part.view(dtypes.numpy_dtype(column.dtype))
        columns[column.name] = values.reshape(len(cases), *column.shape)
        at += column.size
    return columns


def test_openings_of_samples(vector, second, tmp_path):
    found = vector("data")
    record = DataRecord.from_bytes(found["record"].encode(), "vector")
    plain, count = json.loads(found["record"]), record.samples
    path = tmp_path / "samples"
    for case in found["openings"]:
        data, wanted = bytes.fromhex(case["file"]), np.array(case["wanted"])
        rows, root = second.read_samples(plain["columns"], case["wanted"], count, data)
        assert root == record.root
        assert [row.hex() for row in rows] == [found["samples"][at]["row"] for at in wanted]
        path.write_bytes(data)
        opening = samples.load_opening(path, record.columns, wanted, samples=count, place="vector")
        samples.check_opening(opening, wanted, root, count, record.columns, place="vector")
        assert [bytes(row) for row in samples.row_bytes(opening.rows)] == rows


def test_repeated_samples(vector, second):
    for case in vector("data")["repeated"]:
        numbers = case["shown"], case["repeated"], case["declared"]
        ours = distinct.distinct_bound(*numbers) < distinct.LEAST_DISTINCT
        assert ours is second.repeats_too_often(*numbers) is case["fails"], numbers


def test_order(vector, second):
    found = vector("order")
    seed = bytes.fromhex(found["seed"])
    for case in found["orders"]:
        sizes = case["samples"], case["batch"]
        order = Order(seed, *sizes)
        for step, wanted in enumerate(case["steps"]):
            batch = second.step_batch(seed, *sizes, step)
            assert order.batch(step).tolist() == batch == wanted["batch"]
            assert str(order.seed(step)) == str(second.step_seed(seed, step)) == wanted["seed"]
            own = second.step_seed(seed, step)
            seeds = [second.sample_seed(own, place) for place in range(len(batch))]
            assert order.seeds(step) == seeds == [int(text) for text in wanted["seeds"]]
    long = found["long"]
    joined = b"".join(
        struct.pack("<Q", index)
        for step in range(long["steps"])
        for index in second.step_batch(seed, long["samples"], long["batch"], step)
    )
    assert hashlib.sha256(joined).hexdigest() == long["sha256"]


def test_recipes(vector, second):
    found = vector("recipe")
    for case in found["recipes"]:
        recipe = Recipe.from_settings(case["settings"], "vector")
        assert recipe.to_settings() == case["settings"]
        for wanted in case["rates"]:
            rate = recipe.rate(wanted["step"])
            assert rate == second.rate_of(case["settings"], wanted["step"]), case["name"]
            assert repr(rate) == wanted["rate"]
    plain = found["recipes"][0]["settings"]
    for case in found["refused"]:
        changed = {**plain, **case["changes"]}
        settings = {key: value for key, value in changed.items() if value is not None}
        refuses(TermsError, case["name"], partial(Recipe.from_settings, settings, "vector"))
