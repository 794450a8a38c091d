"""The tree of a log, its tiles and its signed notes."""

import hashlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from polo.errors import FormatError, LimitError, PoloError, SignatureError
from polo.keys import Ed25519Verifier, Identity
from polo.protocol import log_notes, log_tiles, log_tree, merkle
from polo.protocol.log_notes import COSIGNATURE, Checkpoint, Note, NoteKey, NoteSignature
from polo.protocol.log_tiles import Tile

VERIFIER = Ed25519Verifier()
# The inputs and answers that implementations of RFC 6962 have checked themselves by for years.
INPUTS = [
    bytes.fromhex(text)
    for text in (
        "", "00", "10", "2021", "3031", "40414243", "5051525354555657",
        "606162636465666768696a6b6c6d6e6f",
    )
]  # fmt: skip
ROOTS = (
    "6e340b9cffb37a989ca544e6bb780a2c78901d3fb33738768511a30617afa01d",
    "fac54203e7cc696cf0dfcb42c92a1d9dbaf70ad9e621f4bd8d98662f00e3c125",
    "aeb6bcfe274b70a14fb067a5e5578264db0fa9b51af5e0ba159158f329e06e77",
    "d37ee418976dd95753c1c73862b9398fa2a2cf9b4ff0fdfe8b30cd95209614b7",
    "4e3bbb1f7b478dcfe71fb631631519a3bca12c9aefca1612bfce4c13a86264d4",
    "76e67dadbcdf1e10e1b74ddc608abd2f98dfb16fbce75277b5232a127f2087ef",
    "ddb89be403809e325750d3d263cd78929c2942b7942a34b77e122c9594a74c8c",
    "5dc9da79a70659a9ad559cb701ded9a2ab9d823aad2f4960cfe370eff4604328",
)
FIRST_OF_EIGHT = (
    "96a296d224f285c67bee93c30f8a309157f0daa35dc5b87e410b78630a09cfc7",
    "5f083f0a1a33ca076a95279832580db3e0ef4584bdff1f54c8a360f50de3031e",
    "6b47aaf29ee3c2af9af889bc1fb9254dabd31177f16232dd6aab035ca39bf6e4",
)
SIX_TO_EIGHT = (
    "0ebc5d3437fbe2db158b9f126a1d118e308181031d0a949f8dededebc558ef6a",
    "ca854ea128ed050b41b35ffc1b87b8eb2bde461e9e3b5596ece6b9d5975a0ae0",
    "d37ee418976dd95753c1c73862b9398fa2a2cf9b4ff0fdfe8b30cd95209614b7",
)


def leaves(count):
    return [hashlib.sha256(b"leaf %d" % at).digest() for at in range(count)]


def table(hashes):
    """All complete subtrees over these leaves, as a log keeps them."""
    _, nodes = log_tree.Frontier().grown(hashes)
    kept = {(item.level, item.index): item.hash for item in nodes}
    return lambda level, index: kept[level, index]


def hexed(hashes):
    return tuple(item.hex() for item in hashes)


def test_the_known_answers_of_rfc_6962():
    known = [hashlib.sha256(b"\0" + data).digest() for data in INPUTS]
    lookup = table(known)
    frontier = log_tree.Frontier()
    for at, leaf in enumerate(known):
        frontier, _ = frontier.grown([leaf])
        assert frontier.root.hex() == ROOTS[at] == log_tree.root_of(at + 1, lookup).hex()
    assert hexed(log_tree.inclusion(0, 8, lookup)) == FIRST_OF_EIGHT
    assert hexed(log_tree.consistency(1, 8, lookup)) == FIRST_OF_EIGHT
    assert hexed(log_tree.consistency(6, 8, lookup)) == SIX_TO_EIGHT
    assert log_tree.Frontier().root == log_tree.EMPTY_ROOT == merkle.root([])


@settings(max_examples=80, deadline=None)
@given(st.integers(1, 700), st.data())
def test_every_proof_of_every_size_holds(size, data):
    hashes = leaves(size)
    lookup = table(hashes)
    root = merkle.root(hashes)
    assert log_tree.root_of(size, lookup) == root
    index = data.draw(st.integers(0, size - 1))
    path = log_tree.inclusion(index, size, lookup)
    log_tree.check_inclusion(hashes[index], index, size, path, root, place="x")
    # The path is the multiproof of one leaf, in another order.
    assert sorted(path) == sorted(merkle.multiproof(hashes, [index]))
    old = data.draw(st.integers(0, size))
    proof = log_tree.consistency(old, size, lookup)
    before = merkle.root(hashes[:old])
    log_tree.check_consistency(old, before, size, root, proof, place="x")
    assert len(proof) <= size.bit_length() + 1


def test_small_trees_in_every_way_and_nothing_but_the_truth():
    hashes = leaves(20)
    lookup = table(hashes)
    roots = [merkle.root(hashes[:size]) for size in range(21)]
    for size in range(1, 21):
        for index in range(size):
            path = log_tree.inclusion(index, size, lookup)
            for at, leaf in enumerate(hashes):
                if at != index:
                    found = log_tree.root_from_inclusion(leaf, index, size, path, place="x")
                    assert found != roots[size]
            with pytest.raises(FormatError):
                log_tree.root_from_inclusion(
                    hashes[index], index, size, [*path, bytes(32)], place="x"
                )
            if path:
                with pytest.raises(FormatError):
                    log_tree.root_from_inclusion(hashes[index], index, size, path[:-1], place="x")
        for old in range(size + 1):
            proof = log_tree.consistency(old, size, lookup)
            for other in range(size + 1):
                if other != old:
                    with pytest.raises(PoloError, match="log"):
                        log_tree.check_consistency(
                            old, roots[other], size, roots[size], proof, place="log"
                        )


@settings(max_examples=100, deadline=None)
@given(st.integers(2, 300), st.data())
def test_forged_proofs_are_refused(size, data):
    hashes = leaves(size)
    lookup = table(hashes)
    root = merkle.root(hashes)
    index = data.draw(st.integers(0, size - 1))
    path = log_tree.inclusion(index, size, lookup)
    at = data.draw(st.integers(0, len(path) - 1))
    changed = [*path]
    changed[at] = bytes([changed[at][0] ^ 1]) + changed[at][1:]
    with pytest.raises(SignatureError, match=f"not entry {index}"):
        log_tree.check_inclusion(hashes[index], index, size, changed, root, place="x")
    old = data.draw(st.integers(1, size - 1))
    proof = log_tree.consistency(old, size, lookup)
    changed = [*proof]
    at = data.draw(st.integers(0, len(proof) - 1))
    changed[at] = bytes([changed[at][0] ^ 1]) + changed[at][1:]
    before = merkle.root(hashes[:old])
    for wrong in (changed, proof[:-1], [*proof, bytes(32)], []):
        with pytest.raises((SignatureError, FormatError), match=r"^x: "):
            log_tree.check_consistency(old, before, size, root, wrong, place="x")


def test_a_rewritten_log_is_not_consistent_with_the_old_one():
    hashes = leaves(100)
    other = [*hashes[:40], bytes(32), *hashes[41:]]
    proof = log_tree.consistency(64, 100, table(other))
    with pytest.raises(SignatureError, match="not the beginning"):
        log_tree.check_consistency(
            64, merkle.root(hashes[:64]), 100, merkle.root(other), proof, place="x"
        )


def test_a_frontier_grows_alike_in_one_go_and_in_many():
    hashes = leaves(300)
    whole, nodes = log_tree.Frontier().grown(hashes)
    frontier, found = log_tree.Frontier(), []
    for at in range(0, 300, 7):
        batch = hashes[at : at + 7]
        frontier, new = frontier.grown(batch)
        assert len(new) < 2 * len(batch) + 9
        found += new
    assert (frontier, found) == (whole, nodes)
    assert log_tree.Frontier.load(300, table(hashes)) == whole
    assert len(nodes) == 300 + 150 + 75 + 37 + 18 + 9 + 4 + 2 + 1
    with pytest.raises(FormatError):
        log_tree.Frontier(3, (bytes(32),))


@pytest.mark.parametrize(("index", "size"), [(-1, 4), (4, 4), (0, 0)])
def test_entries_that_are_not_there(index, size):
    with pytest.raises(FormatError):
        log_tree.inclusion(index, size, table(leaves(4)))
    with pytest.raises(FormatError):
        log_tree.root_from_inclusion(bytes(32), index, size, [], place="x")


# Tiles.


def test_paths_of_tiles_are_those_of_the_specification():
    assert Tile(0, 1234067).path == "tile/0/x001/x234/067"
    assert Tile(None, 0, 112).path == "tile/entries/000.p/112"
    assert Tile(2, 0, 1).path == "tile/2/000.p/1"
    found = {level: list(log_tiles.tiles_of(70_000, level)) for level in (0, 1, 2, 3)}
    assert [len(tiles) for tiles in found.values()] == [274, 2, 1, 0]
    assert [tiles[-1].width for tiles in found.values() if tiles] == [112, 17, 1]
    assert [tile.path for tile in log_tiles.tiles_of(256, 1)] == ["tile/1/000.p/1"]
    since = log_tiles.tiles_of(700, None, since=511)
    assert [tile.path for tile in since] == ["tile/entries/001", "tile/entries/002.p/188"]


@given(st.one_of(st.none(), st.integers(0, 6)), st.integers(0, 2**20), st.integers(1, 256))
def test_a_path_has_one_reading(level, index, width):
    tile = Tile(level, index, width)
    if tile.start < log_tree.MAX_SIZE:
        assert Tile.parse(tile.path, place="x") == tile


@pytest.mark.parametrize(
    "path",
    [
        "", "tile/0/0", "tile/0/0000", "tile/00/000", "tile/7/000", "tile/64/000", "tile/-1/000",
        "tile/0/x000/000", "tile/0/001/000", "tile/0/x001", "tile/0/000.p/0", "tile/0/000.p/256",
        "tile/0/000.p/01", "tile/0/000.p/257", "tile/0/000/", "/tile/0/000", "tile/0/000\n",
        "tile/data/000", "tile/0/../../checkpoint", "tile/6/x999/999", "tile/0/" + "x999/" * 9,
        "tile/0/\N{FULLWIDTH DIGIT ZERO}00", "tile/entries/00a",
    ],
)  # fmt: skip
def test_other_paths_are_refused(path):
    with pytest.raises(FormatError):
        Tile.parse(path, place="path")


def test_tiles_answer_every_lookup():
    size = 70_000
    hashes = [at.to_bytes(32, "big") for at in range(size)]
    lookup = table(hashes)
    content = {}

    def fetch(tile):
        tile.check(size, place="x")
        if tile.path not in content:
            data = log_tiles.tile_bytes(tile, lookup)
            content[tile.path] = log_tiles.hashes_of(data, tile)
        return content[tile.path]

    served = log_tiles.lookup_in(size, fetch)
    assert log_tree.root_of(size, served) == merkle.root(hashes)
    for level, index in ((0, 0), (0, 69_999), (3, 8_749), (8, 272), (12, 16), (16, 0)):
        assert served(level, index) == lookup(level, index)
    assert log_tree.consistency(65_537, size, served) == log_tree.consistency(65_537, size, lookup)
    assert log_tree.inclusion(69_000, size, served) == log_tree.inclusion(69_000, size, lookup)
    for level, index in ((0, 70_000), (8, 273), (16, 1), (3, 8_750), (0, -1)):
        with pytest.raises(FormatError):
            served(level, index)


def test_bundles_hold_their_entries_and_nothing_else():
    entries = [b"", b"a", b"b" * log_tiles.MAX_ENTRY]
    data = log_tiles.bundle_bytes(entries)
    tile = Tile(None, 4, 3)
    assert log_tiles.entries_of(data, tile) == entries
    for wrong in (data[:-1], data + b"\0", data[:4], b""):
        with pytest.raises(FormatError, match="entry 102"):
            log_tiles.entries_of(wrong, tile)
    with pytest.raises(LimitError):
        log_tiles.bundle_bytes([bytes(log_tiles.MAX_ENTRY + 1)])
    with pytest.raises(FormatError):
        log_tiles.hashes_of(bytes(95), Tile(0, 0, 3))
    with pytest.raises(FormatError):
        Tile(0, 1, 3).check(258, place="x")


# Notes.

NEUMANN = "PeterNeumann+c74f20a3+ARpc2QcUPDhMQegwxbzhKqiBfsVkmqq/LDE4izWy10TW"
ANSWER = (
    "If you think cryptography is the answer to your problem,\n"
    "then you don't know what your problem is.\n"
    "\n"
    "\N{EM DASH} PeterNeumann x08go/ZJkuBS9UG/SffcvIAQxVBtiFupLLr8pAcElZInNIuGUgYN1FFYC2pZSNXgKvq"
    "fqdngotpRZb6KE6RyyBwJnAM=\n"
)


def test_the_example_that_everybody_signs_by():
    key = NoteKey.parse(NEUMANN, place="key")
    assert (key.name, key.text) == ("PeterNeumann", NEUMANN)
    note = Note.parse(ANSWER, place="note")
    assert str(note) == ANSWER
    (signature,) = note.by(key)
    assert VERIFIER.verify(key.public_key, note.text.encode(), signature.signature)
    other = "sum.golang.org+033de0ae+Ac4zctda0e5eza+HJyk9SxEdh+s3Ux18htTTAD8OuAn8"
    assert NoteKey.parse(other, place="key").id.hex() == "033de0ae"


@pytest.fixture(scope="module")
def log():
    return Identity.generate()


@pytest.fixture(scope="module")
def witness():
    return Identity.generate()


def head(log, size=5, origin="registry.example/log"):
    return log_notes.sign_checkpoint(Checkpoint(origin, size, bytes(range(32))), log)


def test_a_checkpoint_is_read_back(log):
    note = head(log)
    key = NoteKey("registry.example/log", log.public_key)
    again = Note.parse(str(note), place="checkpoint")
    found = log_notes.open_checkpoint(again, key, VERIFIER, place="checkpoint")
    assert found == Checkpoint("registry.example/log", 5, bytes(range(32)))
    assert note.text == "registry.example/log\n5\nAAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=\n"


def test_checkpoints_that_the_log_did_not_sign(log, witness):
    note, key = head(log), NoteKey("registry.example/log", log.public_key)
    cases = {
        "another size": Note(note.text.replace("\n5\n", "\n6\n"), note.signatures),
        "nobody's": Note(note.text, head(witness).signatures),
        "another origin": head(log, origin="registry.example/other"),
    }
    for name, wrong in cases.items():
        with pytest.raises(SignatureError, match="checkpoint"):
            log_notes.open_checkpoint(wrong, key, VERIFIER, place=f"checkpoint, {name}")
    with pytest.raises(SignatureError, match="a checkpoint of"):
        log_notes.open_checkpoint(note, key, VERIFIER, origin="other", place="x")
    # A second line in the log's name that does not hold spoils the note.
    forged = NoteSignature(key.name, key.id, bytes(64))
    with pytest.raises(SignatureError, match="does not hold"):
        log_notes.open_checkpoint(note.signed(forged), key, VERIFIER, place="x")
    # One by somebody unknown does not.
    stranger = NoteSignature("stranger.example", bytes(4), bytes(64))
    log_notes.open_checkpoint(note.signed(stranger), key, VERIFIER, place="x")


def test_cosignatures_say_who_saw_it_and_when(log, witness):
    note = head(log)
    key = NoteKey("witness.example/w1", witness.public_key, COSIGNATURE)
    late = log_notes.cosign(note.text, key.name, witness, 1_700_000_100)
    early = log_notes.cosign(note.text, key.name, witness, 1_700_000_000)
    note = Note.parse(str(note.signed(late, early, early)), place="x")
    assert len(note.signatures) == 3
    other = NoteKey("witness.example/w2", log.public_key, COSIGNATURE)
    found = log_notes.cosigned(note, [key, other], VERIFIER, place="x")
    assert found == {key: 1_700_000_000}
    message = f"cosignature/v1\ntime 1700000000\n{note.text}".encode()
    assert VERIFIER.verify(witness.public_key, message, early.signature[8:])


def test_a_cosignature_of_another_time_or_text_does_not_hold(log, witness):
    note = head(log)
    key = NoteKey("witness.example/w1", witness.public_key, COSIGNATURE)
    line = log_notes.cosign(note.text, key.name, witness, 1_700_000_000)
    moved = NoteSignature(key.name, key.id, bytes(8) + line.signature[8:])
    elsewhere = log_notes.cosign(head(log, 6).text, key.name, witness, 1_700_000_000)
    endless = log_notes.cosign(note.text, key.name, witness, 2**63)
    for wrong in (moved, elsewhere, endless, NoteSignature(key.name, key.id, b"short")):
        with pytest.raises(SignatureError, match="does not hold"):
            log_notes.cosigned(note.signed(wrong), [key], VERIFIER, place="x")


GOOD = str(head(Identity.generate()))
BODY, LINE = GOOD.split("\n\n")
ROOT = "A" * 43 + "="


@pytest.mark.parametrize(
    "text",
    [
        "", "\n", "\n\n", BODY, f"{BODY}\n", f"{BODY}\n\n", f"\n\n{LINE}", GOOD[:-1],
        f"{BODY}\n\n{LINE}x\n", f"{BODY}\n\n{LINE[1:]}", f"{BODY}\n\n-{LINE[1:]}",
        GOOD.replace("\n\n", "\n\r\n"), GOOD.replace("registry", "regis\ttry"),
        f"{BODY}\n\n{LINE.replace('=', '')}", f"{BODY}\n\n\N{EM DASH} name+x AAAAAAAA\n",
        f"{BODY}\n\n\N{EM DASH} name AAAA\n", f"{BODY}\n\n\N{EM DASH} name AAAAAB==\n",
        f"{BODY}\n\n" + "\N{EM DASH} name AAAAAAAA\n" * 65, "x" * 20_000 + f"\n\n{LINE}",
        f"{BODY}\n\n\N{EM DASH} two words AAAAAAAA\n", f"{BODY}\n\n\N{EM DASH}  AAAAAAAA\n",
    ],
)  # fmt: skip
def test_what_is_no_note(text):
    with pytest.raises(FormatError, match="somewhere"):
        Note.parse(text, place="somewhere")


@pytest.mark.parametrize(
    "text",
    [
        "", "a\n", "a\n1\nAAAA\n", f"\n1\n{ROOT}\n", f"a\n01\n{ROOT}\n", f"a\n-1\n{ROOT}\n",
        f"a\n9007199254740992\n{ROOT}\n", f"a\n1\n{ROOT}\nextension\n", f"a\n1\n{ROOT}",
        f"a\n1\n{ROOT[:-2]}B=\n", f"a\n1 \n{ROOT}\n", f"a\n{'9' * 5000}\n{ROOT}\n",
    ],
)  # fmt: skip
def test_what_is_no_checkpoint(text):
    with pytest.raises(FormatError, match="somewhere"):
        Checkpoint.parse(text, place="somewhere")


@pytest.mark.parametrize(
    "text",
    [
        "", "PeterNeumann", NEUMANN[:-1], NEUMANN.replace("c74f", "c74e"), NEUMANN.upper(),
        "a b+" + NEUMANN.partition("+")[2], "+" + NEUMANN.partition("+")[2], NEUMANN + "\n",
        NEUMANN.replace("ARpc", "Ahpc"), "x+00000000+AQ==", "x+00000000+" + "A" * 10_000,
    ],
)  # fmt: skip
def test_what_is_no_key(text):
    with pytest.raises(FormatError, match="somewhere"):
        NoteKey.parse(text, place="somewhere")
