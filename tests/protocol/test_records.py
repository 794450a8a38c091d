"""Records: round trips, strictness at every level, bounds, and rules between fields."""

import copy
import json
from dataclasses import replace

import pytest

from polo.errors import FormatError, LimitError, PoloError, TermsError
from polo.protocol import canonical
from polo.protocol.layout import CHUNK_BYTES, Layout, Tensor, Tie
from polo.protocol.records import (
    MAX_SHARDS,
    Deposit,
    EvidenceTerms,
    File,
    Manifest,
    Nonce,
    NonceList,
    Receipt,
    Retention,
    Reward,
    Terms,
    identity_of,
)

FREE_MAPS = ("metrics", "evidence", "settings")
NULLABLE = ("receipt", "parent", "base", "data", "deposit", "transfer")
HASH = "ab" * 32
LEVELS = [
    {"level": level, "settings": {}}
    for level in ("chain", "receipts", "uniqueness", "progress", "replay")
]


@pytest.fixture(scope="module")
def manifest(vector):
    """A manifest in which no optional field is empty."""
    found = Manifest.from_bytes(vector("chain")["manifest"].encode(), "manifest.json")
    receipt = Receipt(bytes(32), 0, bytes(32), 5, "log", 1, bytes(32))
    shards = list(found.shards)
    shards[0] = replace(shards[0], evidence={"replay": bytes(32)}, receipt=receipt)
    terms = replace(
        found.terms,
        evidence=(EvidenceTerms("chain", {}), EvidenceTerms("replay", {"segments": "4"})),
        base=bytes(32),
        data=bytes(32),
        rewards=(Reward(1, 0, 0),),
        deposit=Deposit("EUR", 100),
    )
    return replace(
        found,
        enrolment=replace(found.enrolment, terms=terms),
        start=replace(found.start, receipt=receipt),
        shards=tuple(shards),
        transfer=bytes(32),
    )


@pytest.fixture(scope="module")
def terms(vector):
    return json.loads(vector("signature")["terms"])


def records_in(value, way=()):
    """Paths of all records in a JSON value; objects with free keys are none."""
    if isinstance(value, dict):
        if not way or way[-1] not in FREE_MAPS:
            yield way
        for key, item in value.items():
            yield from records_in(item, (*way, key))
    elif isinstance(value, list):
        for at, item in enumerate(value):
            yield from records_in(item, (*way, at))


def at(value, way):
    for step in way:
        value = value[step]
    return value


def changed(document, way, value):
    other = copy.deepcopy(document)
    at(other, way[:-1])[way[-1]] = value
    return other


def read_terms(document):
    return Terms.from_bytes(canonical.encode(document), "terms")


def test_every_kind_of_document_comes_back_the_same(manifest):
    nonce = Nonce(3, bytes(32), b"\1" * 32, (b"\2" * 32,))
    layout = Layout(CHUNK_BYTES, (Tensor("a", "F32", (2, 3)),), (Tie("b", "a"),))
    for record in (
        manifest,
        manifest.enrolment,
        manifest.terms,
        manifest.start.receipt,
        nonce,
        NonceList(bytes(32), (nonce, nonce)),
        layout,
    ):
        data = record.to_bytes()
        again = type(record).from_bytes(data, "document")
        assert again == record
        assert again.to_bytes() == data
        assert json.loads(data)["format"] == record.FORMAT


def test_the_words_of_the_formats(manifest):
    assert {
        cls.__name__: cls.FORMAT
        for cls in (Manifest, type(manifest.enrolment), Terms, Receipt, Nonce, NonceList, Layout)
    } == {
        "Manifest": "polo/proof/1",
        "Enrolment": "polo/enrolment/1",
        "Terms": "polo/terms/1",
        "Receipt": "polo/receipt/1",
        "Nonce": "polo/nonce/1",
        "NonceList": "polo/nonces/1",
        "Layout": "polo/layout/1",
    }


def test_a_missing_field_is_refused_at_every_level(manifest):
    document = manifest.to_json()
    ways = list(records_in(document))
    assert len(ways) > 25
    for way in ways:
        for name in at(document, way):
            other = copy.deepcopy(document)
            del at(other, way)[name]
            with pytest.raises(FormatError) as error:
                Manifest.from_json(other, "manifest.json")
            assert name in error.value.message or "expected format" in error.value.message
            assert error.value.place.startswith("manifest.json")


def test_an_unknown_field_is_refused_at_every_level(manifest):
    document = manifest.to_json()
    for way in records_in(document):
        other = copy.deepcopy(document)
        at(other, way)["zz"] = None
        with pytest.raises(FormatError, match="zz"):
            Manifest.from_json(other, "manifest.json")


def test_another_format_is_refused_at_every_level(manifest):
    document = manifest.to_json()
    ways = [way for way in records_in(document) if "format" in at(document, way)]
    assert len(ways) == 5
    for way in ways:
        for word in (
            "polo/proof/2",
            "polo/terms/0",
            "",
            None,
            1,
            at(document, way)["format"] + " ",
        ):
            other = changed(document, (*way, "format"), word)
            with pytest.raises(FormatError, match="expected format"):
                Manifest.from_json(other, "manifest.json")


def test_no_value_is_taken_for_one_of_another_kind(manifest):
    """Each value in turn becomes one of every other JSON kind."""
    document = manifest.to_json()
    others = [None, True, 7.5, "word", [], [0], {}]
    ways = [
        (*way, name) for way in records_in(document) for name in at(document, way)
        if name != "format"
    ]  # fmt: skip
    for way in ways:
        value = at(document, way)
        for other in others:
            same_kind = type(other) is type(value) or (other is None and way[-1] in NULLABLE)
            if not same_kind:
                with pytest.raises(FormatError):
                    Manifest.from_json(changed(document, way, other), "manifest.json")


def test_errors_name_the_field(manifest):
    document = changed(manifest.to_json(), ("shards", 1, "noise", "sigma"), -1)
    with pytest.raises(FormatError) as error:
        Manifest.from_json(document, "manifest.json")
    assert error.value.place == "manifest.json: shards[1].noise.sigma"


@pytest.mark.parametrize(
    ("way", "good", "bad"),
    [
        (("task", "name"), ["a", "my.pkg:Task", "a" * 128], ["", ":a", "a b", "a" * 129, "ä"]),
        (("task", "version"), [1, 2**31 - 1], [0, -1, 2**31, True]),
        (("task", "metric"), ["top-1", "a" * 64], ["", ".a", "a:b", "a" * 65]),
        (("task", "floor"), [[], [0, 1_000_000]], [[-1], [1_000_001], [0.5], "0"]),
        (("layout",), [HASH], ["AB" * 32, "ab" * 31, "ab" * 33, "zz" * 32, " " * 64]),
        (("carrier",), [["é/1"], []], [[""], ["a\n"], ["a\x7f"], ["a" * 513], "a"]),
        (("scheme", "name"), ["ednn", "later"], ["", "a b"]),
        (("scheme", "bits"), [64, 2**17], [0, 7, 2**17 + 8, "64"]),
        (("scheme", "block"), [16], [15, 4096, 8]),
        (("scheme", "key"), ["block", "dense"], ["Dense", ""]),
        (("scheme", "strength"), [0, 1000 * 1_000_000], [-1, 1000 * 1_000_000 + 1]),
        (("scheme", "reduction"), ["sum", "mean"], ["max"]),
        (("scheme", "every"), [1, 1024], [0, 1025]),
        # With 64 bits 59 matches are rarer than 2^-40; 58 are not.
        (("thresholds", "embed"), [906_251, 1_000_000], [-1, 1_000_001, 0, 906_250]),
        (("thresholds", "verify"), [0, 1_000_000], [-1, 1_000_001]),
        (("thresholds", "log2_p"), [0, -64], [1, -(2**17) - 1]),
        (("finish", "budget"), [0, 1_000_000], [-1, 1_000_001]),
        (("noise", "fraction"), [0, 3907, 1_000_000], [-1, 1, 3906, 1_000_001]),
        (("shards", "most"), [1, MAX_SHARDS], [0, MAX_SHARDS + 1]),
        (("shards", "fewest_steps"), [0, 2**31 - 1], [-1, 2**31]),
        (("start", "kind"), ["free", "derived"], ["none"]),
        (("history",), ["any", "all", "streaming", "after-close"], ["some"]),
        (("base",), [None, HASH], ["", 0]),
        (("data",), [None], ["", 0, HASH]),
        (("rewards",), [[{"shards": 1, "metric": 0, "amount": 2**53 - 1}]], [[{}], [None]]),
        (("deposit",), [None, {"currency": "EUR", "amount": 0}], [{"currency": "EUR"}, 0]),
        (
            ("evidence",),
            [LEVELS[:1], [LEVELS[0], {"level": "progress", "settings": {"a": ""}}]],
            [
                [{"level": "chain", "settings": {"a": ""}}],
                [LEVELS[0], {"level": "progress", "settings": {"a": 1}}],
                [LEVELS[0], LEVELS[4]],
                [LEVELS[0], {"level": "faith", "settings": {}}],
            ],
        ),
    ],
)
def test_bounds_of_terms(terms, way, good, bad):
    for value in good:
        assert at(read_terms(changed(terms, way, value)).to_json(), way) == value
    for value in bad:
        with pytest.raises(PoloError):
            Terms.from_json(changed(terms, way, value), "terms")


@pytest.mark.parametrize(
    ("why", "changes"),
    [
        ("power of two", {("scheme", "block"): 24}),
        ("no multiple", {("scheme", "bits"): 60}),
        ("no multiple", {("scheme", "load"): 1}),
        ("dense key", {("scheme", "key"): "dense", ("scheme", "bits"): 8200}),
        ("least noise", {("noise", "least"): 20_001}),
        ("evidence", {("evidence",): []}),
        ("evidence", {("evidence",): [{"level": "replay", "settings": {}}]}),
        ("evidence", {("evidence",): LEVELS[1::-1]}),
        ("evidence", {("evidence",): LEVELS[:1] * 2}),
        ("evidence", {("evidence",): [LEVELS[0], LEVELS[4], LEVELS[3]]}),
        ("go together", {("evidence",): [LEVELS[0], LEVELS[4]]}),
        ("go together", {("data",): HASH}),
        ("parent", {("start", "kind"): "parent"}),
        ("parent", {("start", "parent"): HASH}),
        ("parent", {("start", "kind"): "derived", ("start", "parent"): HASH}),
        ("64 of 64 bits would not verify", {("thresholds", "log2_p"): -65}),
        ("58 of 64 bits would not verify", {("thresholds", "embed"): 900_000}),
        ("would not verify", {("thresholds", "embed"): 0}),
        (
            "would not verify",
            {("thresholds", "embed"): 950_000, ("thresholds", "verify"): 960_000},
        ),
        ("touches none", {("noise", "fraction"): 3906}),
        ("no settings", {("evidence",): [{"level": "chain", "settings": {"a": ""}}]}),
    ],
)
def test_terms_that_contradict_themselves(terms, why, changes):
    document = terms
    for way, value in changes.items():
        document = changed(document, way, value)
    with pytest.raises(TermsError, match=why):
        read_terms(document)


def test_terms_that_just_fit(terms):
    document = changed(terms, ("thresholds", "log2_p"), -64)
    document = changed(document, ("start",), {"kind": "parent", "parent": HASH})
    document = changed(changed(document, ("evidence",), LEVELS), ("data",), HASH)
    assert [item.to_json() for item in read_terms(document).evidence] == LEVELS
    dense = terms["scheme"] | {"key": "dense", "bits": 8192}
    assert read_terms(changed(terms, ("scheme",), dense)).scheme.blocks == 1024


@pytest.mark.parametrize(("kind", "count"), [("offline", 5), ("live", 0)])
def test_there_are_as_many_nonces_as_shards(manifest, kind, count):
    document = manifest.enrolment.to_json()
    document["nonces"] |= {"kind": kind, "count": count}
    assert type(manifest.enrolment).from_json(document, "enrolment").nonces.count == count
    for other in (count + 1, abs(count - 1), MAX_SHARDS):
        document["nonces"]["count"] = other
        with pytest.raises(TermsError, match=f"{other} nonces instead of {count}") as error:
            type(manifest.enrolment).from_json(document, "enrolment.json")
        assert error.value.place == "enrolment.json"


def test_what_nobody_could_read_is_not_written(manifest):
    names = tuple(f"{at:0512d}" for at in range(33_000))
    with pytest.raises(LimitError, match="polo/terms/1"):
        replace(manifest.terms, carrier=names).to_bytes()


def test_a_block_carries_whole_bits(terms):
    scheme = read_terms(terms).scheme
    assert (scheme.bits_per_block, scheme.blocks) == (8, 8)
    assert replace(scheme, load=562_499).bits_per_block == 8
    assert replace(scheme, load=562_500).bits_per_block == 9


def test_a_floor_holds_from_its_last_number_on(terms):
    task = read_terms(changed(terms, ("task", "floor"), [1, 2, 3])).task
    assert [task.floor_of(shard) for shard in (1, 2, 3, 4, 100)] == [1, 2, 3, 3, 3]
    assert replace(task, floor=()).floor_of(1) == 0


@pytest.mark.parametrize(
    "path",
    [
        "layout.json", "checkpoints/000000.safetensors", "checkpoints/000012.delta.safetensors",
        "openings/100000.safetensors", "nonces/000001.json", "evidence/replay/000001.json",
        "evidence/progress/000001.safetensors",
    ],
)  # fmt: skip
def test_paths_of_a_proof(path):
    entry = {"path": path, "size": 0, "sha256": HASH}
    assert File.from_json(entry, "file").path == path


@pytest.mark.parametrize(
    "path",
    [
        "layoutXjson", "layout.json~", "nonces/000001Xjson", "openings/000001.safetensors~",
        "", "manifest.json", "layout.json\n", "/layout.json", "./layout.json", "../layout.json",
        "checkpoints/../layout.json", "checkpoints/1.safetensors", "openings//000001.safetensors",
        "checkpoints/0000001.safetensors", "checkpoints/000001.pt", "openings/000001.SAFETENSORS",
        "openings/٠٠٠٠٠١.safetensors", "nonces/000001.json/", "nonces\\000001.json",
        "evidence/Replay/000001.json", "evidence/../nonces/000001.json", "evidence//000001.json",
        "checkpoints/000001.deltaXsafetensors", "a" * 129,
    ],
)  # fmt: skip
def test_paths_that_no_proof_has(path):
    with pytest.raises(FormatError):
        File.from_json({"path": path, "size": 0, "sha256": HASH}, "file")


def test_lists_and_maps_have_a_most_length(manifest):
    document = manifest.to_json()
    for way, value in (
        (("shards", 0, "metrics"), {f"m{n}": n for n in range(65)}),
        (("shards", 0, "evidence"), {f"e{n}": HASH for n in range(17)}),
        (("enrolment", "terms", "rewards"), [{"shards": 1, "metric": 0, "amount": 0}] * 1025),
        (("enrolment", "terms", "task", "floor"), [0] * (MAX_SHARDS + 1)),
    ):
        with pytest.raises(LimitError):
            Manifest.from_json(changed(document, way, value), "manifest.json")


def test_what_is_out_of_bounds_is_not_written_either(manifest):
    for record in (
        replace(manifest, outside=-1),
        replace(manifest, retention=Retention("some", 1, False)),
        replace(manifest, signature=bytes(63)),
        replace(manifest, files=(File("../secret", 0, bytes(32)),)),
    ):
        with pytest.raises(FormatError):
            record.to_bytes()


def test_a_message_is_everything_but_the_signature(manifest):
    start, _, body = manifest.message().partition(b"\n")
    assert start == b"polo signature 1"
    document = json.loads(manifest.to_bytes())
    assert manifest.signed(b"\1" * 64).message() == manifest.message()
    del document["signature"]
    assert canonical.encode(document) == body
    assert replace(manifest, outside=1).message() != manifest.message()
    # The issuer's signature is part of what the prover signs.
    assert manifest.enrolment.signature.hex().encode() in body


def test_digests_tell_records_apart(manifest):
    enrolment = manifest.enrolment
    assert enrolment.digest != replace(enrolment, issued=1).digest
    assert enrolment.digest != enrolment.signed(bytes(64)).digest
    assert enrolment.terms.digest != replace(enrolment.terms, history="all").digest
    assert identity_of(bytes(32)) != identity_of(b"\1" + bytes(31))


def test_roots_before(manifest):
    assert manifest.root_before(1) == manifest.start.root
    assert manifest.root_before(4) == manifest.shards[2].root
