"""Bundles: three kinds, one file each, in exactly one form, there and back."""

import hashlib
import json
import os
import shutil
import stat
import subprocess
import tarfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import polo
from polo.errors import FormatError, PoloError, StoreError
from polo.protocol.records import Bundle
from polo.storage import disclosures
from polo.storage.archive import header
from polo.storage.bundle import PUBLIC, files_of, glance, opened, read_bundle, whole, write_bundle
from polo.storage.folder import ProofFolder

GOLDEN = Path(__file__).parents[2] / "vectors" / "golden" / "v1"
BUYER = Bundle("buyer", (1, 3))
KINDS = {"public": PUBLIC, "buyer": BUYER, "verifier": whole(ProofFolder(GOLDEN).manifest())}
# Of bundles of the golden proof. These bytes are a released format: they never change.
DIGESTS = {
    "public": "86f013799d9a603206d0ef9e094dd3e90b7cc00b517cea7219cca292cc72e50c",
    "buyer": "6fb121dea121b8bf7f51441b3409253c11a7005be22bf1163c1aef16a47dce06",
    "verifier": "7dbf066d7923201adb5974ae784312d72753de8b926fd2e6961868542537e0eb",
}


def write(path: Path, bundle: Bundle) -> bytes:
    write_bundle(ProofFolder(GOLDEN), path, bundle)
    return path.read_bytes()


def contents(folder: Path) -> dict[str, bytes]:
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }


@pytest.mark.parametrize("kind", KINDS)
def test_the_bytes_are_fixed(tmp_path: Path, kind: str) -> None:
    data = write(tmp_path / "one.polo", KINDS[kind])
    assert data == write(tmp_path / "two.polo", KINDS[kind])
    assert hashlib.sha256(data).hexdigest() == DIGESTS[kind]


@pytest.mark.parametrize("kind", KINDS)
def test_there_and_back(tmp_path: Path, kind: str) -> None:
    write(tmp_path / "a.polo", KINDS[kind])
    assert read_bundle(tmp_path / "a.polo", tmp_path / "out") == KINDS[kind]
    found, proof = contents(tmp_path / "out"), contents(GOLDEN)
    expected = {file.path for file in files_of(KINDS[kind], ProofFolder(GOLDEN).manifest())}
    if kind == "verifier":
        assert found == proof
    else:
        assert json.loads(found.pop("bundle.json"))["shards"] == list(KINDS[kind].shards)
        assert found == {name: proof[name] for name in {"manifest.json", *expected}}
    write_bundle(ProofFolder(tmp_path / "out"), tmp_path / "again.polo", KINDS[kind])
    assert (tmp_path / "again.polo").read_bytes() == (tmp_path / "a.polo").read_bytes()


def test_what_each_kind_holds() -> None:
    manifest = ProofFolder(GOLDEN).manifest()
    held = {kind: [file.path for file in files_of(b, manifest)] for kind, b in KINDS.items()}
    assert held["public"] == ["layout.json"]
    assert held["buyer"] == [
        "layout.json",
        "nonces/000001.json",
        "nonces/000003.json",
        "openings/000001.safetensors",
        "openings/000003.safetensors",
    ]
    assert sorted(held["verifier"]) == [file.path for file in manifest.files]


@pytest.mark.parametrize("kind", KINDS)
def test_standard_tools_read_it(tmp_path: Path, kind: str) -> None:
    write(tmp_path / "a.polo", KINDS[kind])
    with tarfile.open(tmp_path / "a.polo") as tar:
        members = tar.getmembers()
        assert [m.name for m in members[:3]] == ["bundle.json", "manifest.json", "layout.json"]
        assert [m.name for m in members[3:]] == sorted(m.name for m in members[3:])
        for member in members:
            assert member.isreg()
            facts = (member.mode, member.mtime, member.uid, member.gid, member.uname, member.gname)
            assert facts == (0o644, 0, 0, 0, "", "")
    listed = subprocess.run(
        ["tar", "tf", tmp_path / "a.polo"], capture_output=True, text=True, check=True
    )
    assert listed.stdout.split() == [member.name for member in members]


@pytest.mark.parametrize("size", [0, 1, 511, 512, 8**11 - 1, 8**11, 2**49])
def test_the_header_is_that_of_the_standard_library(size: int) -> None:
    member = tarfile.TarInfo("openings/000003.safetensors")
    member.size = size
    assert header(member.name, size) == member.tobuf(tarfile.GNU_FORMAT)


def test_secrets_are_readable_by_their_owner_alone(tmp_path: Path) -> None:
    os.umask(umask := os.umask(0))
    for kind, bundle in KINDS.items():
        write(tmp_path / f"{kind}.polo", bundle)
        mode = stat.S_IMODE((tmp_path / f"{kind}.polo").stat().st_mode)
        assert mode == (0o666 & ~umask if kind == "public" else 0o600)
    read_bundle(tmp_path / "buyer.polo", tmp_path / "out")
    assert stat.S_IMODE((tmp_path / "out").stat().st_mode) == 0o700


def test_nothing_is_overwritten(tmp_path: Path) -> None:
    data = write(tmp_path / "a.polo", PUBLIC)
    with pytest.raises(StoreError, match="never overwritten"):
        write(tmp_path / "a.polo", BUYER)
    assert (tmp_path / "a.polo").read_bytes() == data
    (tmp_path / "empty").mkdir()
    (tmp_path / "dangling").symlink_to(tmp_path / "nowhere")
    for target in ("empty", "dangling", "a.polo"):
        with pytest.raises(StoreError, match="exists already"):
            read_bundle(tmp_path / "a.polo", tmp_path / target)
    with pytest.raises(StoreError, match="no such folder"):
        read_bundle(tmp_path / "a.polo", tmp_path / "a" / "b")
    assert sorted(os.listdir(tmp_path)) == ["a.polo", "dangling", "empty"]


def test_a_bundle_does_not_go_into_the_proof(make_proof: Callable[..., Any]) -> None:
    made = make_proof(epochs=1)
    with pytest.raises(StoreError, match="nobody signed"):
        write_bundle(ProofFolder(made.path), made.path / "a.polo", PUBLIC)


@pytest.mark.parametrize(
    "bundle",
    [
        Bundle("public", (1,)),
        Bundle("verifier", (1, 2)),
        Bundle("verifier", ()),
        Bundle("buyer", ()),
        Bundle("buyer", (3, 1)),
        Bundle("buyer", (1, 1)),
        Bundle("buyer", (1, 4)),
    ],
    ids=lambda bundle: f"{bundle.kind}{bundle.shards}",
)
def test_a_bundle_must_fit_its_proof(tmp_path: Path, bundle: Bundle) -> None:
    with pytest.raises(FormatError, match="does not show these"):
        write(tmp_path / "a.polo", bundle)
    assert not list(tmp_path.iterdir())


def test_a_shard_without_an_opening_cannot_be_shown() -> None:
    manifest = ProofFolder(GOLDEN).manifest()
    files = tuple(file for file in manifest.files if file.path != "openings/000003.safetensors")
    with pytest.raises(FormatError, match="no openings/000003"):
        files_of(BUYER, replace(manifest, files=files))


def test_a_changed_proof_is_not_handed_on(make_proof: Callable[..., Any], tmp_path: Path) -> None:
    made = make_proof(epochs=2)
    opening = made.path / "openings" / "000002.safetensors"
    data = opening.read_bytes()
    for changed in (data[:-1] + bytes([data[-1] ^ 1]), data[:-1], data + b"x"):
        opening.write_bytes(changed)
        with pytest.raises(FormatError):
            write_bundle(ProofFolder(made.path), tmp_path / "a.polo", Bundle("buyer", (2,)))
    opening.unlink()
    with pytest.raises(StoreError, match="is not here"):
        write_bundle(ProofFolder(made.path), tmp_path / "a.polo", Bundle("buyer", (2,)))
    opening.symlink_to("/etc/hostname")
    with pytest.raises(StoreError):
        write_bundle(ProofFolder(made.path), tmp_path / "a.polo", Bundle("buyer", (2,)))
    assert not list(tmp_path.glob("a.polo*"))


def test_opened_takes_folders_and_bundles(tmp_path: Path) -> None:
    with opened(GOLDEN) as folder:
        assert folder == GOLDEN
    write(tmp_path / "a.polo", BUYER)
    (tmp_path / "link.polo").symlink_to("a.polo")
    with opened(tmp_path / "link.polo") as folder:
        assert ProofFolder(folder).bundle() == BUYER
    assert not folder.exists()
    assert glance(tmp_path / "a.polo") == (BUYER, ProofFolder(GOLDEN).manifest())
    assert glance(GOLDEN) == (None, ProofFolder(GOLDEN).manifest())
    with opened(tmp_path / "nothing") as folder, pytest.raises(StoreError, match="no proof here"):
        ProofFolder(folder)


def test_the_list_of_what_was_shown(make_proof: Callable[..., Any], tmp_path: Path) -> None:
    made = make_proof(epochs=4)
    proof = ProofFolder(made.path)
    assert disclosures.secret_marks(made.path, 4) == [1, 2, 3, 4]
    disclosures.hand_out(proof, tmp_path / "p.polo", PUBLIC, "all")
    assert disclosures.disclosures(made.path) == ()
    disclosures.hand_out(proof, tmp_path / "b.polo", Bundle("buyer", (2, 3)), "Bob")
    disclosures.hand_out(proof, tmp_path / "c.polo", Bundle("buyer", (3,)), "Carol")
    first, second = disclosures.disclosures(made.path)
    assert (first.to, first.kind, first.shards) == ("Bob", "buyer", (2, 3))
    assert (second.to, second.shards) == ("Carol", (3,))
    assert disclosures.secret_marks(made.path, 4) == [1, 4]
    path = made.state_path / disclosures.LEDGER_FILE
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert json.loads(path.read_bytes())["format"] == "polo/disclosures/1"
    with pytest.raises(PoloError):
        disclosures.hand_out(proof, tmp_path / "b.polo", Bundle("buyer", (1,)), "Dora")
    with pytest.raises(PoloError):
        disclosures.hand_out(proof, tmp_path / "d.polo", Bundle("buyer", (1,)), "two\nlines")
    assert disclosures.disclosures(made.path) == (first, second), "what failed is not noted"
    path.write_bytes(b"{}")
    with pytest.raises(StoreError, match="cannot be read") as caught:
        disclosures.hand_out(proof, tmp_path / "e.polo", Bundle("buyer", (1,)), "Eve")
    assert "backup" in caught.value.advice
    assert not (tmp_path / "e.polo").exists()


def test_the_note_comes_before_the_bundle(
    make_proof: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = make_proof(epochs=2)
    seen = []

    def noted(*_: object) -> None:
        seen.extend(disclosures.disclosures(made.path))

    monkeypatch.setattr(disclosures, "write_bundle", noted)
    bundle = Bundle("buyer", (2,))
    disclosures.hand_out(ProofFolder(made.path), tmp_path / "a.polo", bundle, "Bob")
    assert [entry.to for entry in seen] == ["Bob"]


def test_one_who_holds_a_part_gets_a_list_of_their_own(tmp_path: Path) -> None:
    write(tmp_path / "a.polo", BUYER)
    read_bundle(tmp_path / "a.polo", tmp_path / "bought")
    part = ProofFolder(tmp_path / "bought")
    disclosures.hand_out(part, tmp_path / "b.polo", Bundle("buyer", (3,)), "Carol")
    assert stat.S_IMODE((tmp_path / "bought.state").stat().st_mode) == 0o700
    with pytest.raises(StoreError, match="is not here"):
        disclosures.hand_out(part, tmp_path / "c.polo", Bundle("buyer", (2,)), "Carol")
    assert [entry.shards for entry in disclosures.disclosures(part.path)] == [(3,)]


@pytest.fixture
def bought(
    make_proof: Callable[..., Any], buy: Callable[..., Any], tmp_path: Path,
    alice: polo.Identity, bob: polo.Identity, carol: polo.Identity,
) -> Any:  # fmt: skip
    """Carol's proof of a model that Alice trained and Bob sold."""
    first = make_proof(tmp_path / "alice", epochs=2)
    second = buy(tmp_path / "bob", bob, seller=first.path, seller_key=alice)
    return buy(tmp_path / "carol", carol, seller=second.path, seller_key=bob, epochs=2)


def test_a_bought_proof_takes_its_earlier_owners_along(bought: Any, tmp_path: Path) -> None:
    proof = ProofFolder(bought.path)
    write_bundle(proof, tmp_path / "whole.polo", whole(proof.manifest()))
    assert read_bundle(tmp_path / "whole.polo", tmp_path / "copy").kind == "verifier"
    assert contents(tmp_path / "copy") == contents(bought.path)
    verdict = polo.verify(tmp_path / "whole.polo", trust=bought.made.issuer.public_key,
                          task=bought.made.task)  # fmt: skip
    assert verdict.outcome is polo.Outcome.ACCEPTED


def test_a_disclosure_of_a_bought_proof_shows_no_mark_of_earlier_owners(
    bought: Any, tmp_path: Path
) -> None:
    for bundle in (PUBLIC, Bundle("buyer", (2,))):
        path = tmp_path / f"{bundle.kind}.polo"
        write_bundle(ProofFolder(bought.path), path, bundle)
        read_bundle(path, tmp_path / bundle.kind)
        found = contents(tmp_path / bundle.kind)
        for number in (1, 2):
            inside = {name for name in found if name.startswith(f"ancestors/{number:06d}/")}
            known = {"bundle.json", "manifest.json", "layout.json"}
            known |= {"transfer.json"} if number == 2 else set()
            assert inside == {f"ancestors/{number:06d}/{name}" for name in known}
        for secret in (bought.path / "ancestors").rglob("nonces/*"):
            assert secret.read_bytes() not in path.read_bytes()
        verdict = polo.verify(path, trust=bought.made.issuer.public_key)
        wanted = polo.Outcome.UNDECIDED if bundle == PUBLIC else polo.Outcome.ACCEPTED
        assert verdict.outcome is wanted, verdict.headline()


def test_earlier_owners_out_of_order(bought: Any, tmp_path: Path) -> None:
    write_bundle(ProofFolder(bought.path), tmp_path / "a.polo", PUBLIC)
    with tarfile.open(tmp_path / "a.polo") as tar:
        parts = [(m.name, tar.extractfile(m).read()) for m in tar]  # type: ignore[union-attr]
    two, one = "ancestors/000002/", "ancestors/000001/"
    for old, new in (
        (two, one),
        (one, two),
        (two, "ancestors/000003/"),
        (one, "ancestors/000000/"),
    ):
        changed = [(name.replace(old, new), data) for name, data in parts]
        with pytest.raises(PoloError):
            read_packed(changed, tmp_path)
    for left_out in (two, one):
        rest = [(name, data) for name, data in parts if not name.startswith(left_out)]
        with pytest.raises(PoloError):
            read_packed(rest, tmp_path)
    only = [(n.replace(two, "ancestors/000000/"), d) for n, d in parts if not n.startswith(one)]
    with pytest.raises(PoloError):
        read_packed(only, tmp_path)
    swapped = [(n, d) for n, d in parts if not n.startswith(two)]
    swapped += [(n, d) for n, d in parts if n.startswith(two)]
    with pytest.raises(PoloError):
        read_packed(swapped, tmp_path)
    assert not (tmp_path / "out").exists()


def read_packed(parts: list[tuple[str, bytes]], tmp_path: Path) -> None:
    data = b"".join(header(n, len(d)) + d + bytes(-len(d) % 512) for n, d in parts) + bytes(1024)
    (tmp_path / "packed.polo").write_bytes(data + bytes(-len(data) % 10240))
    read_bundle(tmp_path / "packed.polo", tmp_path / "out")


def test_another_transfer_than_the_signed_one(bought: Any, tmp_path: Path) -> None:
    write_bundle(ProofFolder(bought.path), tmp_path / "a.polo", PUBLIC)
    with tarfile.open(tmp_path / "a.polo") as tar:
        parts = [(m.name, tar.extractfile(m).read()) for m in tar]  # type: ignore[union-attr]
    read_packed(parts, tmp_path)
    shutil.rmtree(tmp_path / "out")
    handed = replace(ProofFolder(bought.path).transfer(), made=1).to_bytes()
    changed = [(name, handed if name == "transfer.json" else data) for name, data in parts]
    with pytest.raises(FormatError, match="not the transfer that was signed"):
        read_packed(changed, tmp_path)
    (bought.path / "transfer.json").write_bytes(handed)
    with pytest.raises(FormatError, match="not the transfer that was signed"):
        write_bundle(ProofFolder(bought.path), tmp_path / "b.polo", PUBLIC)


@pytest.mark.parametrize("kind", KINDS)
def test_a_link_laid_in_the_way_of_a_bundle_is_not_followed(tmp_path: Path, kind: str) -> None:
    precious = tmp_path / "precious.txt"
    precious.write_text("precious")
    (tmp_path / "x.polo.partial").symlink_to(precious)
    write(tmp_path / "x.polo", KINDS[kind])
    assert precious.read_text() == "precious"
    assert sorted(os.listdir(tmp_path)) == ["precious.txt", "x.polo", "x.polo.partial"]


def test_no_folder_is_made_for_a_bundle(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="no such folder"):
        write(tmp_path / "nosuch" / "q.polo", PUBLIC)
    assert not list(tmp_path.iterdir())


def test_an_interrupt_after_the_bundle_has_its_name_keeps_the_note(
    make_proof: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = make_proof(epochs=2)
    out, real = tmp_path / "b.polo", os.replace

    def replace_and_stop(source: Path, target: Path) -> None:
        real(source, target)
        if Path(target) == out:
            raise KeyboardInterrupt

    monkeypatch.setattr(os, "replace", replace_and_stop)
    with pytest.raises(KeyboardInterrupt):
        disclosures.hand_out(ProofFolder(made.path), out, Bundle("buyer", (2,)), "Bob")
    assert out.exists()
    assert [entry.to for entry in disclosures.disclosures(made.path)] == ["Bob"]
    assert disclosures.secret_marks(made.path, 2) == [1]


def test_an_interrupt_before_that_notes_nothing(
    make_proof: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = make_proof(epochs=2)
    out, real = tmp_path / "b.polo", os.replace

    def stop(source: Path, target: Path) -> None:
        if Path(target) == out:
            raise KeyboardInterrupt
        real(source, target)

    monkeypatch.setattr(os, "replace", stop)
    with pytest.raises(KeyboardInterrupt):
        disclosures.hand_out(ProofFolder(made.path), out, Bundle("buyer", (2,)), "Bob")
    assert not list(tmp_path.glob("*.polo*")) + list(tmp_path.glob(".polo-*"))
    assert disclosures.disclosures(made.path) == ()


def test_the_list_goes_with_the_proof_and_not_with_its_name(
    make_proof: Callable[..., Any], tmp_path: Path
) -> None:
    made = make_proof(epochs=2)
    (tmp_path / "alias").symlink_to("proof")
    alias = ProofFolder(tmp_path / "alias")
    disclosures.hand_out(alias, tmp_path / "b.polo", Bundle("buyer", (2,)), "Bob")
    assert disclosures.secret_marks(made.path, 2) == [1]
    assert not (tmp_path / "alias.state").exists()


@pytest.mark.parametrize("name", ["", "  ", "two\nlines", "x" * 257])
def test_names_that_are_none(tmp_path: Path, name: str) -> None:
    write(tmp_path / "a.polo", BUYER)
    read_bundle(tmp_path / "a.polo", tmp_path / "part")
    with pytest.raises(StoreError, match="say who gets it") as caught:
        disclosures.hand_out(ProofFolder(tmp_path / "part"), tmp_path / "b.polo", BUYER, name)
    assert "\\" not in str(caught.value)
    assert not (tmp_path / "part.state").exists()


def test_errors_speak_of_the_bundle(tmp_path: Path) -> None:
    path = tmp_path / "a.polo"
    write(path, BUYER)
    with pytest.raises(StoreError) as caught, opened(path) as folder:
        raise StoreError(f"look at {folder}", place=f"{folder}/x", advice=f"rm {folder}")
    assert str(caught.value) == f"{path}/x: look at {path}"
    assert caught.value.advice == f"rm {path}"
    assert caught.value.args == (f"look at {path}",)
