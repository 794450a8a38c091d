"""The proof on disk: the right files, one writer, no leftovers, nothing confidential."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from cryptography.hazmat.primitives import serialization

import polo
from polo.errors import LockedError, PoloError, StoreError
from polo.privacy import obfuscation
from polo.protocol.records import Retention
from polo.storage import history
from polo.storage.folder import ProofFolder, state_path_of
from polo.storage.writer import ProofWriter
from polo.weights import FileCheckpoint, MemoryCheckpoint, checkpoint_of, commit

Make = Callable[..., Any]
EASY = {"budget": 1.0, "strength": 0.05}
SHARDS = 5
KEEP_ALL = Retention("all", 1, False)


def names_in(path: Path) -> set[str]:
    return {p.relative_to(path).as_posix() for p in path.rglob("*") if p.is_file()}


# Which checkpoints are whole, and which are deltas, after five shards.
KEPT: dict[tuple[Any, bool], tuple[list[int], list[int]]] = {
    ("all", False): ([0, 1, 2, 3, 4, 5], []),
    ("all", True): ([5], [0, 1, 2, 3, 4]),
    (1, False): ([0, 1, 2, 3, 4, 5], []),
    (2, False): ([0, 2, 4, 5], []),
    (2, True): ([4, 5], [0, 2]),
    (5, True): ([5], [0]),
    (7, False): ([0, 5], []),
    (7, True): ([0, 5], []),
    ("thin", False): ([5], []),
    ("thin", True): ([5], []),
}


@pytest.mark.parametrize(("retention", "deltas"), KEPT)
def test_retention_keeps_the_right_files_and_the_proof_is_accepted(
    make_proof: Make, tmp_path: Path, retention: str | int, deltas: bool
) -> None:
    roots: list[bytes] = []
    bodies: dict[int, bytes] = {}

    def remember(record: Any) -> None:
        roots.append(record.root)
        name = f"checkpoints/{record.shard:06d}.safetensors"
        bodies[record.shard] = (path / name).read_bytes()

    path = tmp_path / "proof"
    made = make_proof(
        path, epochs=SHARDS, terms=EASY, retention=retention, deltas=deltas, on_seal=[remember]
    )
    whole, packed = KEPT[retention, deltas]
    expected = {"manifest.json", "layout.json"}
    expected |= {f"checkpoints/{number:06d}.safetensors" for number in whole}
    expected |= {f"checkpoints/{number:06d}.delta.safetensors" for number in packed}
    for number in range(1, SHARDS + 1):
        expected |= {f"openings/{number:06d}.safetensors", f"nonces/{number:06d}.json"}
    assert names_in(made.path) == expected

    layout = checkpoint_of(made.model).layout
    folder = ProofFolder(made.path)
    found = []
    for number, stored in history.checkpoints(folder, made.manifest, layout):
        found.append(number)
        if number:
            size = os.fstat(stored._file.fileno()).st_size
            assert os.pread(stored._file.fileno(), size, 0) == bodies[number]
            assert commit(stored).root == roots[number - 1]
        else:
            assert commit(stored).root == made.manifest.start.root
    assert found == sorted([*whole, *packed], reverse=True)
    assert history.stored(made.manifest) == found
    verdict = made.verify()
    assert verdict.outcome is polo.Outcome.ACCEPTED, verdict.headline()


def test_every_file_is_in_the_manifest_with_its_digest(make_proof: Make) -> None:
    made = make_proof(epochs=2, terms=EASY, retention=2, deltas=True)
    folder = ProofFolder(made.path)
    assert {file.path for file in made.manifest.files} | {"manifest.json"} == names_in(made.path)
    assert list(folder.strangers(made.manifest)) == []
    for file in made.manifest.files:
        folder.check_file(file, most=file.size)
    paths = [file.path for file in made.manifest.files]
    assert paths == sorted(paths)


def test_a_proof_that_has_only_begun_is_in_order_too(
    enrol: Make, task: Any, alice: polo.Identity, tmp_path: Path
) -> None:
    model = task.build_model()
    prover = polo.Prover(enrol(), key=alice, store=tmp_path / "proof")
    prover.attach(model, torch.optim.SGD(model.parameters(), lr=1))
    prover.close()
    manifest = ProofFolder(tmp_path / "proof").manifest()
    paths = [file.path for file in manifest.files]
    assert paths == sorted(paths) == ["checkpoints/000000.safetensors", "layout.json"]


def test_another_retention_later_is_refused_and_the_store_let_go_of(
    make_proof: Make, alice: polo.Identity
) -> None:
    made = make_proof(epochs=1, terms=EASY)
    before = names_in(made.path)
    for options in ({"retention": "thin"}, {"retention": 3}, {"deltas": True}):
        with pytest.raises(StoreError, match="keep to it"):
            polo.Prover(made.enrolment, key=alice, store=made.path, **options)
    assert names_in(made.path) == before
    polo.Prover(made.enrolment, key=alice, store=made.path).close()


# The lock.

HOLD = """
import sys, time
from polo.protocol.records import Retention
from polo.storage.writer import ProofWriter
writer = ProofWriter(sys.argv[1], None, Retention("all", 1, False))
print("held", flush=True)
time.sleep(60)
"""


def holder(path: Path) -> subprocess.Popen[str]:
    child = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(path)], stdout=subprocess.PIPE, text=True
    )
    assert child.stdout is not None
    assert child.stdout.readline() == "held\n"
    return child


def test_a_second_process_is_locked_out_until_the_first_is_gone(
    tmp_path: Path, alice: polo.Identity
) -> None:
    path = tmp_path / "proof"
    with holder(path) as child:
        try:
            with pytest.raises(LockedError) as caught:
                ProofWriter(path, alice, KEEP_ALL)
            assert str(path) in str(caught.value)
            assert caught.value.advice
            # However the first one ends, its lock ends with it.
            child.send_signal(signal.SIGKILL)
            assert child.wait(10) == -signal.SIGKILL
        finally:
            child.kill()
    ProofWriter(path, alice, KEEP_ALL).close()


FORKING = """
import os, sys
from polo.errors import LockedError
from polo.protocol.records import Retention
from polo.storage.writer import ProofWriter

def opened():
    return ProofWriter(sys.argv[1], None, Retention("all", 1, False))

def locked_out():
    try:
        opened().close()
    except LockedError:
        return True
    return False

writer = opened()
# A worker that ends, with everything that Python does at its end, ...
if os.fork() == 0:
    sys.exit()
os.wait()
assert locked_out(), "the worker let go of its parent's lock"
# ... and one that stays while the parent closes the store.
waiting, ending = os.pipe()
if os.fork() == 0:
    os.close(ending)
    os.read(waiting, 1)
    os._exit(0)
os.close(waiting)
writer.close()
assert not locked_out(), "the worker keeps the lock"
os.close(ending)
os.wait()
"""


def test_forked_workers_neither_end_the_lock_nor_keep_it(
    tmp_path: Path, in_child: Callable[..., Any]
) -> None:
    in_child(FORKING, tmp_path / "proof", bare=True)


def test_reading_needs_no_lock(make_proof: Make, alice: polo.Identity) -> None:
    made = make_proof(epochs=1, terms=EASY)
    prover = polo.Prover(made.enrolment, key=alice, store=made.path)
    assert made.verify().outcome is polo.Outcome.ACCEPTED
    prover.close()


def test_two_proofs_do_not_lock_each_other(tmp_path: Path, alice: polo.Identity) -> None:
    one, other = (ProofWriter(tmp_path / name, alice, KEEP_ALL) for name in ("a", "b"))
    one.close()
    other.close()


def test_a_store_may_be_the_working_folder(
    tmp_path: Path, alice: polo.Identity, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "proof").mkdir()
    monkeypatch.chdir(tmp_path / "proof")
    writer = ProofWriter(".", alice, KEEP_ALL)
    assert writer.state_path.resolve() == tmp_path / "proof.state"
    writer.close()


def test_a_damaged_manifest_is_refused_and_the_lock_let_go_of(
    make_proof: Make, alice: polo.Identity
) -> None:
    made = make_proof(epochs=1, terms=EASY)
    manifest = made.path / "manifest.json"
    good, before = manifest.read_bytes(), names_in(made.path)
    manifest.write_bytes(good[:-10])
    caught: list[PoloError] = []
    for _ in range(2):
        try:
            polo.Prover(made.enrolment, key=alice, store=made.path)
        except PoloError as error:
            caught.append(error)
    assert len(caught) == 2
    assert not any(isinstance(error, LockedError) for error in caught)
    # Nothing may be taken for a leftover while the list of files cannot be read.
    assert names_in(made.path) == before


# Leftovers, and what is none.


def test_leftovers_of_a_killed_sealing_are_removed(make_proof: Make, alice: polo.Identity) -> None:
    made = make_proof(epochs=2, terms=EASY)
    before = names_in(made.path)
    for name in (
        "checkpoints/000003.safetensors",
        "checkpoints/000003.safetensors.partial",
        "checkpoints/000001.delta.safetensors",
        "openings/000003.safetensors",
        "nonces/000003.json.partial",
        "manifest.json.partial",
        "layout.json.partial",
        "evidence/replay/000003.json",
    ):
        (made.path / name).parent.mkdir(parents=True, exist_ok=True)
        (made.path / name).write_bytes(b"left over")
    (made.state_path / "000003.safetensors.partial").write_bytes(b"left over")
    assert made.verify().outcome is polo.Outcome.REJECTED
    polo.Prover(made.enrolment, key=alice, store=made.path).close()
    assert names_in(made.path) == before
    assert not (made.path / "evidence").exists()
    assert names_in(made.state_path) == {"lock", "secret", "000002.safetensors"}
    assert made.verify().outcome is polo.Outcome.ACCEPTED


def test_a_kill_during_the_very_first_sealing_can_be_resumed(
    enrol: Make, task: Any, alice: polo.Identity, tmp_path: Path
) -> None:
    """Then there is a folder of which the manifest knows nothing yet."""
    enrolment, path = enrol(**EASY), tmp_path / "proof"
    model = task.build_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    prover = polo.Prover(enrolment, key=alice, store=path)
    prover.attach(model, optimizer)
    prover.close()
    for name in ("checkpoints/000001.safetensors", "openings/000001.safetensors.partial"):
        (path / name).parent.mkdir(exist_ok=True)
        (path / name).write_bytes(b"left over")
    (path / "nonces").mkdir()
    prover = polo.Prover(enrolment, key=alice, store=path)
    assert sorted(p.name for p in path.iterdir()) == ["checkpoints", "layout.json", "manifest.json"]
    with prover.attach(model, optimizer):
        task.train_epoch(model, optimizer)
        assert prover.end_epoch().sealed
    assert prover.finish().shards == 1


def test_a_kill_before_the_first_manifest_leaves_nothing_in_the_way(
    enrol: Make, task: Any, alice: polo.Identity, tmp_path: Path
) -> None:
    path = tmp_path / "proof"
    writer = ProofWriter(path, alice, KEEP_ALL)
    assert len(writer.secret) == 32
    writer._put("layout.json", b"{}")
    writer._put("checkpoints/000000.safetensors", b"half")
    writer.close()
    model = task.build_model()
    prover = polo.Prover(enrol(**EASY), key=alice, store=path)
    assert names_in(path) == set()
    prover.attach(model, torch.optim.SGD(model.parameters(), lr=0.05))
    prover.close()
    assert names_in(path) == {"manifest.json", "layout.json", "checkpoints/000000.safetensors"}


@pytest.mark.parametrize("name", ["notes.txt", "checkpoints/000100.safetensors", "nonces/x/y"])
def test_somebodys_own_files_are_never_touched(
    tmp_path: Path, alice: polo.Identity, name: str
) -> None:
    """A user may well point at the folder of a run that has a `checkpoints` folder already."""
    path = tmp_path / "run"
    (path / name).parent.mkdir(parents=True)
    (path / name).write_bytes(b"precious")
    for _ in range(2):
        with pytest.raises(StoreError, match="holds files, but no proof") as caught:
            ProofWriter(path, alice, KEEP_ALL)
        assert caught.value.advice
    assert names_in(path) == {name}
    assert (path / name).read_bytes() == b"precious"


def test_notes_beside_a_proof_are_not_removed_either(
    make_proof: Make, alice: polo.Identity
) -> None:
    made = make_proof(epochs=1, terms=EASY)
    (made.path / "notes.txt").write_text("mine")
    (made.path / "plots").mkdir()
    (made.path / "plots" / "loss.png").write_bytes(b"png")
    polo.Prover(made.enrolment, key=alice, store=made.path).close()
    assert (made.path / "notes.txt").read_text() == "mine"
    assert (made.path / "plots" / "loss.png").exists()
    # The verifier says what is wrong with that.
    verdict = made.verify()
    assert verdict.outcome is polo.Outcome.REJECTED
    assert "notes.txt" in {check.place for check in verdict.checks}


class DyingError(Exception):
    pass


@pytest.mark.parametrize("retention", ["all", "thin", 2])
@pytest.mark.parametrize("deltas", [False, True])
def test_a_crash_at_any_write_leaves_a_proof_that_resumes(
    enrol: Make, task: Any, alice: polo.Identity, issuer: polo.Identity, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch, retention: str | int, deltas: bool,
) -> None:  # fmt: skip
    """Stops the third sealing before its first rename, its second, and so on."""
    enrolment, path = enrol(**EASY), tmp_path / "proof"
    options = {"key": alice, "store": path, "retention": retention, "deltas": deltas}
    model = task.build_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    prover = polo.Prover(enrolment, **options)
    prover.attach(model, optimizer)
    for _ in range(2):
        task.train_epoch(model, optimizer)
        assert prover.end_epoch().sealed
    expected, crashes = names_in(path), 0
    real = Path.replace
    while prover.shards == 2:
        left = crashes

        def replace(self: Path, target: Any) -> Any:
            nonlocal left
            if not left:
                raise DyingError
            left -= 1
            return real(self, target)

        task.train_epoch(model, optimizer)
        monkeypatch.setattr(Path, "replace", replace)
        try:
            prover.end_epoch()
        except DyingError:
            crashes += 1
        monkeypatch.setattr(Path, "replace", real)
        prover.close()
        prover = polo.Prover(enrolment, **options)
        if prover.shards == 2:
            assert names_in(path) == expected
        prover.attach(model, optimizer)
    # State, checkpoint, opening, nonce, manifest; and a delta where there is one.
    assert crashes == 5 + (deltas and retention == "all")
    proof = prover.finish()
    assert proof.shards == 3
    verdict = polo.verify(path, trust=issuer.public_key, task=task)
    assert verdict.outcome is polo.Outcome.ACCEPTED, verdict.headline()


# Who may see what.


def test_secret_and_state_are_for_their_owner_alone(make_proof: Make) -> None:
    old = os.umask(0)
    try:
        made = make_proof(epochs=1, terms=EASY)
    finally:
        os.umask(old)
    assert made.state_path.stat().st_mode & 0o777 == 0o700
    for name in ("secret", "000001.safetensors", "lock"):
        assert (made.state_path / name).stat().st_mode & 0o777 == 0o600, name


def test_the_secret_is_drawn_once_and_differs_between_proofs(
    tmp_path: Path, alice: polo.Identity
) -> None:
    writer = ProofWriter(tmp_path / "a", alice, KEEP_ALL)
    first = writer.secret
    writer.close()
    again = ProofWriter(tmp_path / "a", alice, KEEP_ALL)
    other = ProofWriter(tmp_path / "b", alice, KEEP_ALL)
    assert again.secret == first != other.secret
    again.close()
    other.close()


def test_nothing_confidential_is_in_the_proof(
    make_proof: Make, alice: polo.Identity, issuer: polo.Identity
) -> None:
    made = make_proof(epochs=3, terms={**EASY, "shards": 8})
    assert made.proof.shards == 3
    master = (made.state_path / "secret").read_bytes()
    secret = {"master": master}
    for shard in range(1, 9):
        secret[f"noise secret {shard}"] = obfuscation.secret_of(master, shard)
    for nonce in made.enrolment.drawn[3:]:
        secret[f"nonce {nonce.shard}"] = nonce.nonce
        secret[f"salt {nonce.shard}"] = nonce.salt
    for name, key in (("alice", alice), ("issuer", issuer)):
        secret[f"key of {name}"] = key._private.private_bytes(
            serialization.Encoding.Raw,
            serialization.PrivateFormat.Raw,
            serialization.NoEncryption(),
        )
    everything = b"".join(p.read_bytes() for p in made.path.rglob("*") if p.is_file())
    for name, value in secret.items():
        assert value not in everything, name
        assert value.hex().encode() not in everything, name
    # The search does find what is there.
    shown = made.enrolment.drawn[2]
    assert shown.nonce.hex().encode() in everything
    assert b"PRIVATE" not in everything


def test_the_manifest_names_no_machine_and_no_user(make_proof: Make) -> None:
    made = make_proof(epochs=1, terms=EASY)
    text = (made.path / "manifest.json").read_text()
    assert str(made.path) not in text
    assert os.uname().nodename not in text
    assert json.loads(text)["format"] == "polo/proof/1"


# History.


def test_checkpoints_are_closed_one_by_one(make_proof: Make) -> None:
    made = make_proof(epochs=3, terms=EASY, deltas=True)
    layout = checkpoint_of(made.model).layout
    before = len(os.listdir("/proc/self/fd"))
    walk = history.checkpoints(ProofFolder(made.path), made.manifest, layout)
    _, first = next(walk)
    _, second = next(walk)
    assert first._file.closed
    assert not second._file.closed
    walk.close()
    assert second._file.closed
    assert len(os.listdir("/proc/self/fd")) == before


def test_unpacking_leaves_no_temporary_files(
    make_proof: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = make_proof(epochs=3, terms=EASY, deltas=True)
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "temporary"))
    layout = checkpoint_of(made.model).layout
    for _ in history.checkpoints(ProofFolder(made.path), made.manifest, layout):
        unpacked = [p for p in (tmp_path / "temporary").rglob("*") if p.is_file()]
        assert len(unpacked) <= 2
    assert list((tmp_path / "temporary").iterdir()) == []


def test_stored_openings_are_what_the_checkpoint_holds(make_proof: Make) -> None:
    """An opening holds only chunks of its own checkpoint, and far from all of them."""
    made = make_proof(epochs=1, terms=EASY)
    layout = checkpoint_of(made.model).layout
    with FileCheckpoint.canonical(made.path / "checkpoints/000001.safetensors", layout) as stored:
        chunks = {
            stored.read(leaf.tensor, leaf.start, leaf.start + leaf.length)
            for leaf in layout.leaves()
        }
    import safetensors

    with safetensors.safe_open(made.path / "openings/000001.safetensors", "np") as file:
        data = file.get_tensor("chunks").tobytes()
        indices = file.get_tensor("leaves").tolist()
    leaves = list(layout.leaves())
    at = 0
    for index in indices:
        assert data[at : at + leaves[index].length] in chunks
        at += leaves[index].length
    assert at == len(data)
    assert len(indices) < len(leaves)


def test_checkpoints_of_odd_types_can_be_begun_with(tmp_path: Path, alice: polo.Identity) -> None:
    """What the file format cannot hold is refused by name, and leaves nothing behind."""
    writer = ProofWriter(tmp_path / "proof", alice, KEEP_ALL)
    checkpoint = MemoryCheckpoint({"fft": torch.ones(3, dtype=torch.complex128)})
    with pytest.raises(PoloError) as caught:
        writer._put_checkpoint(0, checkpoint)
    assert caught.value.place == "fft"
    assert names_in(tmp_path / "proof") == set()
    writer.close()


def test_a_new_proof_folder_is_for_its_owner_alone(
    make_proof: Make, tmp_path: Path, alice: polo.Identity
) -> None:
    before = os.umask(0)
    try:
        made = make_proof(tmp_path / "runs" / "proof", epochs=1)
    finally:
        os.umask(before)
    assert made.path.stat().st_mode & 0o777 == 0o700
    made.path.chmod(0o755)
    ProofWriter(made.path, alice, KEEP_ALL).close()
    assert made.path.stat().st_mode & 0o777 == 0o755, "what its owner opened stays open"


def test_what_is_private_goes_with_the_proof_and_not_with_its_name(
    make_proof: Make, tmp_path: Path, alice: polo.Identity
) -> None:
    made = make_proof(epochs=1)
    (tmp_path / "other").mkdir()
    for alias in (tmp_path / "alias", tmp_path / "other" / "alias"):
        alias.symlink_to(made.path)
        writer = ProofWriter(alias, alice, KEEP_ALL)
        assert writer.state_path == state_path_of(alias) == state_path_of(made.path)
        with pytest.raises(LockedError):
            ProofWriter(made.path, alice, KEEP_ALL)
        writer.close()
        assert not alias.with_name("alias.state").exists()
    loop = tmp_path / "loop"
    loop.symlink_to("loop")
    assert state_path_of(loop).name == "loop.state"
