"""The vectors of the log against the library, and against a reader that shares no code with it."""

import importlib.util
import json
from pathlib import Path

import pytest

from polo.errors import FormatError, PoloError, SignatureError
from polo.keys import Ed25519Verifier
from polo.protocol import entries, log_notes, log_tiles, log_tree, merkle, nonces, signing
from polo.protocol.entries import Entry, Inclusions
from polo.protocol.log_notes import Note, NoteKey
from polo.protocol.log_tiles import Tile
from polo.protocol.records import Enrolment, Manifest, Receipt, Shard
from polo.protocol.uniqueness import Uniqueness

VERIFIER = Ed25519Verifier()


@pytest.fixture(scope="module")
def found(vector):
    return vector("log")


@pytest.fixture(scope="module")
def own():
    path = Path(__file__).with_name("second_log.py")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def hashes(texts):
    return [bytes.fromhex(text) for text in texts]


def test_entries_and_the_nonces_that_answer_them(found, own, second):
    secret = bytes.fromhex(found["secret"])
    assert entries.secret_commitment(secret) == own.secret_commitment(secret)
    assert own.secret_commitment(secret).hex() == found["commitment"]
    identity = json.loads(found["shown"]["enrolment"])["identity"]
    for number, case in enumerate(found["answered"]):
        data = case["entry"].encode()
        entry = Entry.from_bytes(data, "vector")
        assert (entry.number, entry.to_bytes()) == (number, data)
        assert entry.leaf == own.entry_leaf(data) == bytes.fromhex(case["leaf"])
        plain = own.read_entry(data)
        assert entry.message() == second.message(plain) == case["message"].encode()
        assert second.signed_by(plain, identity)
        signing.check(entry, bytes.fromhex(identity), VERIFIER, place="vector")
        nonce = entries.live_nonce(secret, entry)
        assert nonce.to_bytes() == case["nonce"].encode()
        assert (nonce.nonce, nonce.salt) == own.live_nonce(secret, data)
        leaf = second.nonce_leaf(json.loads(case["nonce"]))
        assert nonces.leaf(nonce) == leaf == bytes.fromhex(case["next_nonce"])


def test_entries_to_refuse(found, own):
    for case in found["refused_entries"]:
        with pytest.raises(FormatError):
            Entry.from_bytes(case["entry"].encode(), case["name"])
        with pytest.raises(own.RefusedError):
            own.read_entry(case["entry"])


def test_roots_and_proofs(found, own, second):
    leaves, tree = hashes(found["leaves"]), found["tree"]
    roots = {case["size"]: bytes.fromhex(case["root"]) for case in tree["roots"]}
    for size, root in roots.items():
        assert merkle.root(leaves[:size]) == second.tree(leaves[:size]) == root
    for case in tree["inclusions"]:
        index, size, path = case["index"], case["size"], hashes(case["path"])
        log_tree.check_inclusion(leaves[index], index, size, path, roots[size], place="vector")
        assert own.root_by_path(leaves[index], index, size, path) == roots[size]
    for case in tree["consistencies"]:
        old, new, path = case["old"], case["new"], hashes(case["path"])
        log_tree.check_consistency(old, roots[old], new, roots[new], path, place="vector")
        before, after = own.roots_by_proof(old, roots[old], new, path)
        assert before == roots[old]
        assert after in (None, roots[new])


def test_both_readers_refuse_the_same_proofs(found, own):
    leaves, tree = hashes(found["leaves"]), found["tree"]
    roots = {case["size"]: bytes.fromhex(case["root"]) for case in tree["roots"]}
    for case in tree["consistencies"]:
        old, new, path = case["old"], case["new"], hashes(case["path"])
        for wrong in (path[:-1], [*path, leaves[0]], path[::-1], [leaves[0], *path[1:]]):
            try:
                log_tree.check_consistency(old, roots[old], new, roots[new], wrong, place="vector")
                held = True
            except PoloError:
                held = False
            try:
                before, after = own.roots_by_proof(old, roots[old], new, wrong)
                also = before == roots[old] and after in (None, roots[new])
            except own.RefusedError:
                also = False
            assert held == also == (wrong == path)


def test_tiles_and_bundles(found, own):
    tiles, leaves = found["tiles"], hashes(found["leaves"])
    for case in tiles["paths"]:
        parts = case["level"], case["index"], case["width"]
        assert Tile(*parts).path == own.tile_path(*parts) == case["path"]
        assert Tile.parse(case["path"], place="vector") == Tile(*parts)
    data = bytes.fromhex(tiles["tile"]["hex"])
    assert log_tiles.hashes_of(data, Tile(0, 1, 44)) == leaves[256:300]
    assert merkle.root(leaves[:256]).hex() == tiles["level_1"]
    entry_list, data = hashes(tiles["bundle"]["entries"]), bytes.fromhex(tiles["bundle"]["hex"])
    assert log_tiles.bundle_bytes(entry_list) == data
    assert log_tiles.entries_of(data, Tile(None, 0, 3)) == own.read_bundle(data) == entry_list


def test_checkpoints_and_cosignatures(found, own):
    notes = found["notes"]
    log = NoteKey.parse(notes["log"], place="vector")
    witness = NoteKey.parse(notes["witness"], place="vector")
    assert own.read_key(notes["witness"])[3] == witness.public_key
    note = Note.parse(notes["checkpoint"], place="vector")
    assert str(note) == notes["checkpoint"]
    head, times = opened(note, log, witness)
    plain = own.read_checkpoint(notes["checkpoint"], notes["log"], notes["witness"])
    assert plain == (head.origin, head.size, head.root, times[witness])
    assert plain == (
        notes["origin"], notes["size"], bytes.fromhex(notes["root"]), notes["cosigned"],
    )  # fmt: skip
    for case in notes["refused"]:
        other = Note.parse(case["checkpoint"], place="vector")
        with pytest.raises(SignatureError):
            opened(other, log, witness)
        with pytest.raises(own.RefusedError):
            own.read_checkpoint(case["checkpoint"], notes["log"], notes["witness"])


def opened(note, log, witness):
    head = log_notes.open_checkpoint(note, log, VERIFIER, place="vector")
    return head, log_notes.cosigned(note, [witness], VERIFIER, place="vector")


def test_a_shard_is_shown_in_the_log(found, own, second):
    shown, notes = found["shown"], found["notes"]
    enrolment = Enrolment.from_bytes(shown["enrolment"].encode(), "vector")
    receipt = Receipt.from_bytes(shown["receipt"].encode(), "vector")
    signing.check(receipt, enrolment.issuer, VERIFIER, place="vector")
    assert second.signed_by(json.loads(shown["receipt"]), enrolment.issuer.hex())
    assert second.digest(json.loads(shown["enrolment"])) == enrolment.digest == receipt.enrolment
    listed = Inclusions.from_bytes(shown["inclusions"].encode(), "vector")
    assert [item.entry.number for item in listed.inclusions] == [0, 1]
    assert listed.inclusions[1].entry.shard == Shard.from_json(shown["shard"], "vector")
    assert listed.inclusions[1].index == receipt.index
    for item in json.loads(shown["inclusions"])["inclusions"]:
        data = second.canonical(item["entry"])
        assert own.is_included(item, data, notes["log"], notes["origin"])
    assert all(is_included(item, notes) for item in listed.inclusions)
    for case in shown["refused"]:
        (wrong,) = Inclusions.from_bytes(case["inclusions"].encode(), "vector").inclusions
        assert not is_included(wrong, notes), case["name"]
        (item,) = json.loads(case["inclusions"])["inclusions"]
        data = second.canonical(item["entry"])
        assert not own.is_included(item, data, notes["log"], notes["origin"]), case["name"]


def is_included(shown, notes):
    """As a verifier looks at it; a path alone does not fix the size."""
    log, note = NoteKey.parse(notes["log"], place="x"), Note.parse(shown.checkpoint, place="x")
    head = log_notes.open_checkpoint(note, log, VERIFIER, place="x")
    try:
        log_tree.check_inclusion(
            shown.entry.leaf, shown.index, shown.size, shown.path, head.root, place="x"
        )
    except PoloError:
        return False
    return shown.size == head.size


def test_statements_on_other_chains(vector, own, second, tmp_path):
    from polo.evidence.uniqueness import uniqueness
    from polo.storage.folder import ProofFolder, uniqueness_path

    found = vector("uniqueness")
    manifest = Manifest.from_bytes(found["manifest"].encode(), "vector")
    place = uniqueness_path(1)
    (tmp_path / place).parent.mkdir(parents=True)
    assert len(found["statements"]) == 11
    for case in found["statements"]:
        data = case["statement"].encode()
        (tmp_path / place).write_bytes(data)
        (check,) = uniqueness(ProofFolder(tmp_path), manifest, [place])
        assert (check.name, check.status.value) == ("unique", case["ends"]), case["name"]
        plain = own.read_statement(data)
        passed = own.is_unique(
            plain, json.loads(found["manifest"]), second.signed_by, second.digest
        )
        assert passed == (case["ends"] == "passed"), case["name"]
    first = Uniqueness.from_bytes(found["statements"][0]["statement"].encode(), "vector")
    assert first.message().decode() == found["message"]
    assert second.message(first.to_json()) == first.message()


def test_statements_that_are_none(vector, own):
    for case in vector("uniqueness")["unread"]:
        with pytest.raises(FormatError):
            Uniqueness.from_bytes(case["statement"].encode(), "vector")
        with pytest.raises(own.RefusedError):
            own.read_statement(case["statement"])
