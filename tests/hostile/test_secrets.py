"""Nothing that is handed out, printed or logged holds a secret it should not hold."""

import base64
import hashlib
import hmac
import io
import json
import logging
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from rich.console import Console

import polo
from polo import cli
from polo.protocol import canonical, chain, nonces
from polo.protocol.digest import tagged, u32
from polo.protocol.records import Bundle
from polo.storage.bundle import PUBLIC, read_bundle, whole, write_bundle
from polo.storage.folder import ProofFolder, nonce_path
from polo.verifier.report import render
from polo.verifier.terminal import show

SHARDS = 10
SHOWN = (3, 9)
PIECE = 12


def seed_of(name: str) -> bytes:
    return hashlib.sha256(name.encode()).digest()


@pytest.fixture(scope="module")
def alice() -> polo.Identity:
    return polo.Identity(Ed25519PrivateKey.from_private_bytes(seed_of("alice")))


@pytest.fixture(scope="module")
def issuer() -> polo.Identity:
    return polo.Identity(Ed25519PrivateKey.from_private_bytes(seed_of("issuer")))


def forms(secret: bytes) -> Iterator[bytes]:
    """The ways in which some bytes may be written down, whatever stands around them."""
    yield secret
    yield secret[::-1]
    yield secret.hex().encode()
    yield secret.hex().upper().encode()
    yield secret.hex(" ").encode()
    yield secret.hex(":").encode()
    for shift in range(3):
        # In base64 the characters depend on where the secret begins; the edges are cut off.
        padded = bytes(shift) + secret
        cut = slice(-(-shift * 8 // 6), len(padded) * 8 // 6)
        yield base64.b64encode(padded)[cut]
        yield base64.urlsafe_b64encode(padded)[cut]
    numbers = list(secret)
    yield json.dumps(numbers)[1:-1].encode()
    yield json.dumps(numbers, separators=(",", ":"))[1:-1].encode()
    yield json.dumps(secret.decode("latin-1"))[1:-1].encode()
    yield json.dumps(secret.decode("latin-1"), ensure_ascii=False)[1:-1].encode()
    yield repr(secret)[2:-1].encode()
    yield str(int.from_bytes(secret, "big")).encode()


def leaks(document: bytes | str, secrets: dict[str, bytes]) -> list[str]:
    """Names of the secrets of which at least a good third is in a document."""
    data = document.encode(errors="replace") if isinstance(document, str) else document
    pieces = (slice(0, PIECE), slice(10, 10 + PIECE), slice(-PIECE, None), slice(None))
    return [
        name
        for name, secret in secrets.items()
        if any(form in data for piece in pieces for form in forms(secret[piece]))
    ]


@dataclass(frozen=True)
class Scene:
    """A proof, what was heard while it was made, and everything that is secret about it."""

    made: Any
    heard: str
    secrets: dict[str, bytes]

    def kept_from_a_buyer(self) -> dict[str, bytes]:
        shown = {f"{what} {shard}" for shard in SHOWN for what in ("nonce", "salt", "seed")}
        return {name: value for name, value in self.secrets.items() if name not in shown}

    def bundle(self, folder: Path, bundle: Bundle) -> Path:
        path = folder / f"{bundle.kind}.polo"
        write_bundle(ProofFolder(self.made.path), path, bundle)
        return path


@pytest.fixture
def scene(
    make_proof: Callable[..., Any],
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    capfd: pytest.CaptureFixture[str],
) -> Scene:
    caplog.set_level(logging.DEBUG)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        # Too weak to press: the prover warns, and its advice must not tell too much.
        weak = make_proof(tmp_path / "weak", epochs=4, terms={"budget": 0.0, "strength": 1e-6})
        made = make_proof(epochs=SHARDS)
    assert any(isinstance(w.message, polo.EmbeddingWarning) for w in caught)
    output = capfd.readouterr()
    heard = "\n".join([caplog.text, output.out, output.err, *(str(w.message) for w in caught)])
    manifest = made.manifest
    assert len(manifest.shards) == SHARDS
    master = (made.state_path / "secret").read_bytes()
    secrets = {"master": master, "alice": seed_of("alice"), "issuer": seed_of("issuer")}
    for nonce in weak.enrolment.drawn:
        secrets[f"weak nonce {nonce.shard}"] = nonce.nonce
    for nonce in made.enrolment.drawn:
        secrets[f"nonce {nonce.shard}"] = nonce.nonce
        secrets[f"salt {nonce.shard}"] = nonce.salt
        own = hmac.digest(master, b"polo/shard-secret/1" + u32(nonce.shard), "sha256")
        secrets[f"secret {nonce.shard}"] = own
        if nonce.shard <= SHARDS:
            before = manifest.root_before(nonce.shard)
            seed = chain.seed_of(manifest.enrolment, nonce, previous=before)
            secrets[f"seed {nonce.shard}"] = seed
    commitments = [manifest.start.secret, *(s.noise.next_secret for s in manifest.shards)]
    assert tagged("polo/secret/1", secrets["secret 1"]) == commitments[0]
    return Scene(made, heard, secrets)


def test_the_tester_finds_what_is_planted() -> None:
    secret = seed_of("planted")
    for around in (b"", b"x", b"xy", b"xyz"):
        inside = around + secret + around[::-1]
        for document in (
            inside,
            inside.hex().encode(),
            inside.hex().upper().encode(),
            base64.b64encode(inside),
            base64.urlsafe_b64encode(inside),
            json.dumps(list(inside)).encode(),
            json.dumps({"secret": inside.hex()}, indent=2).encode(),
            json.dumps(inside.decode("latin-1")).encode(),
            repr(inside).encode(),
            canonical.encode({"nonce": secret.hex()}),
        ):
            assert leaks(b"before" + document + b"after", {"it": secret}) == ["it"], document
            assert leaks(document.decode("latin-1"), {"other": seed_of("other")}) == []
    for part in (secret[:PIECE], secret[-PIECE:], secret[10 : 10 + PIECE]):
        assert leaks(f"root {part.hex()}…", {"it": secret}) == ["it"]
    assert leaks(secret[:8].hex(), {"it": secret}) == []


def test_the_tester_finds_them_all_in_the_verifiers_bundle(scene: Scene, tmp_path: Path) -> None:
    data = scene.bundle(tmp_path, whole(scene.made.manifest)).read_bytes()
    shown = {f"{what} {x}" for what in ("nonce", "salt") for x in range(1, SHARDS + 1)}
    assert set(leaks(data, scene.secrets)) == shown


def test_a_public_bundle_holds_no_secret(scene: Scene, tmp_path: Path) -> None:
    assert leaks(scene.bundle(tmp_path, PUBLIC).read_bytes(), scene.secrets) == []


def test_a_disclosure_holds_the_secrets_of_its_shards_only(scene: Scene, tmp_path: Path) -> None:
    data = scene.bundle(tmp_path, Bundle("buyer", SHOWN)).read_bytes()
    assert set(leaks(data, scene.secrets)) == {
        f"{what} {shard}" for what in ("nonce", "salt") for shard in SHOWN
    }
    assert leaks(data, scene.kept_from_a_buyer()) == []


def test_nothing_is_said_while_training(scene: Scene) -> None:
    assert "too weak" in scene.heard or "λ" in scene.heard
    assert leaks(scene.heard, scene.secrets) == []


def test_nothing_shows_when_objects_are_printed(scene: Scene, alice: polo.Identity) -> None:
    made = scene.made
    for thing in (made.enrolment, made.enrolment.drawn, made.enrolment.nonces, alice, made.proof):
        assert leaks(f"{thing!r} {thing}", scene.secrets) == []


@pytest.mark.parametrize("kind", ["whole", "public", "buyer"])
def test_no_verdict_tells_a_secret(scene: Scene, tmp_path: Path, kind: str) -> None:
    proof = scene.made.path
    if kind != "whole":
        proof = scene.bundle(tmp_path, PUBLIC if kind == "public" else Bundle("buyer", SHOWN))
    verdict = polo.verify(proof, trust=scene.made.issuer.public_key, task=scene.made.task)
    screen = io.StringIO()
    show(verdict, Console(file=screen, width=100))
    for document in (
        render(verdict),
        json.dumps(verdict.to_json()),
        screen.getvalue(),
        str(verdict),
        verdict._repr_html_(),
        repr(verdict),
    ):
        assert leaks(document, scene.secrets) == []


def test_no_command_prints_a_secret(
    scene: Scene, tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("POLO_TRUST", str(tmp_path / "trust"))
    proof, out = str(scene.made.path), str(tmp_path / "a.polo")
    for command in (
        ["show", proof],
        ["show", proof, "--json"],
        ["verify", proof, "--json"],
        ["disclose", proof, "--shards", "3,9", "--to", "Bob", "--out", out],
        ["disclose", proof, "--shards", "3", "--to", "Bob", "--out", out + ".polo", "--json"],
        ["disclose", proof, "--list"],
        ["disclose", proof, "--list", "--json"],
        ["show", out],
        ["verify", out],
        ["import", out, "--out", str(tmp_path / "bought")],
        ["show", str(tmp_path / "bought"), "--json"],
    ):
        assert cli.run(command) in (0, 2), command
    output = capfd.readouterr()
    assert "Bob" in output.out
    assert leaks(output.out + output.err, scene.secrets) == []
    listed = (scene.made.state_path / "disclosures.json").read_bytes()
    assert leaks(listed, scene.secrets) == []


def test_damaged_nonces_are_not_quoted(scene: Scene) -> None:
    path = scene.made.path / nonce_path(4)
    good = path.read_bytes()
    for damaged in (
        good.upper(),
        good + b" ",
        good[:-3],
        good.replace(b'"nonce":"', b'"nonce":"z'),
    ):
        path.write_bytes(damaged)
        verdict = scene.made.verify(policy=polo.Policy("none"))
        assert verdict.outcome is polo.Outcome.REJECTED
        assert leaks(json.dumps(verdict.to_json()), scene.secrets) == []
        with pytest.raises(polo.PoloError) as caught:
            ProofFolder(scene.made.path).nonce(4)
        assert leaks(caught.value.diagnostics(), scene.secrets) == []


def test_a_buyer_verifies_what_was_shown_and_nothing_else(scene: Scene, tmp_path: Path) -> None:
    path = scene.bundle(tmp_path, Bundle("buyer", SHOWN))
    trust = scene.made.issuer.public_key
    verdict = polo.verify(path, trust=trust)
    assert verdict.outcome is polo.Outcome.ACCEPTED
    assert sorted(verdict.per_shard("mark")) == list(SHOWN)
    assert verdict.headline() == (
        "ACCEPTED as a disclosure: order, identity and marks 3 and 9 of 10 hold; the other marks "
        "were not shown"
    )
    # To claim that more was shown does not help: the nonces are not there.
    read_bundle(path, tmp_path / "bought")
    for shards in ((3, 4, 9), tuple(range(1, SHARDS + 1))):
        (tmp_path / "bought" / "bundle.json").write_bytes(Bundle("buyer", shards).to_bytes())
        verdict = polo.verify(tmp_path / "bought", trust=trust)
        assert verdict.outcome is polo.Outcome.UNDECIDED
        marks = verdict.per_shard("mark")
        assert sorted(marks) == list(SHOWN)


def test_paths_of_shown_nonces_hide_their_neighbours(scene: Scene, tmp_path: Path) -> None:
    """Even the right guess of a nonce cannot be told from a wrong one without its salt."""
    read_bundle(scene.bundle(tmp_path, Bundle("buyer", SHOWN)), tmp_path / "bought")
    part = ProofFolder(tmp_path / "bought")
    seen = {hash for shard in SHOWN for hash in part.nonce(shard).path}
    drawn = {nonce.shard: nonce for nonce in scene.made.enrolment.drawn}
    assert nonces.leaf(drawn[4]) in seen, "shards 3 and 4 are neighbours in the tree"
    guessed = drawn[4].nonce
    for salt in (bytes(32), guessed, drawn[3].salt, drawn[9].salt):
        assert tagged("polo/nonce/1", u32(4), salt, guessed) not in seen
    assert hashlib.sha256(guessed).digest() not in seen
    with pytest.raises(polo.PoloError):
        part.nonce(4)
