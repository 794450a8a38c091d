"""Holes that a review of the protocol found, each with the proof that once got through it.

The prover here is dishonest: it holds the key, changes whatever it likes, and signs again. Where
a hole needs terms that no careful issuer would sign, the issuer signs them.
"""

import hashlib
import io
import json
import os
import shutil
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from rich.console import Console

import polo
from polo.errors import SignatureError, WeightsError
from polo.keys import load_public, save_public
from polo.protocol import nonces, signing
from polo.protocol.layout import Layout, Tensor
from polo.protocol.records import (
    Enrolment,
    EvidenceTerms,
    File,
    Manifest,
    Nonce,
    NonceTerms,
    Receipt,
)
from polo.receipts import Answer, Submission, answered
from polo.storage.folder import MANIFEST_FILE, checkpoint_path, nonce_path, opening_path
from polo.verifier import Outcome, Policy, Status
from polo.verifier.terminal import show

UNTESTED = Policy("none")
WEAK = b"\x01" + bytes(31)
"""The public key of order 1: it is its own R, and S = 0 signs everything."""


@pytest.fixture(scope="module")
def once() -> dict[str, Any]:
    """Holds the proof that all tests begin with a copy of."""
    return {}


@pytest.fixture
def made(
    once: dict[str, Any],
    make_proof: Callable[..., Any],
    tmp_path_factory: pytest.TempPathFactory,
    tmp_path: Path,
) -> Any:
    if not once:
        once["made"] = make_proof(tmp_path_factory.mktemp("holes") / "proof")
    original = once["made"]
    shutil.copytree(original.path, tmp_path / "copy")
    return replace(original, path=tmp_path / "copy")


def entry(proof: Path, name: str, data: bytes) -> File:
    """A file as a dishonest prover puts it into the folder and lists it."""
    path = proof / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return File(name, len(data), hashlib.sha256(data).digest())


def listing(manifest: Manifest, *more: File, without: tuple[str, ...] = ()) -> Manifest:
    """The manifest with some files more or less, sorted as it must be."""
    kept = {file.path: file for file in manifest.files if file.path not in without}
    kept |= {file.path: file for file in more}
    return replace(manifest, files=tuple(kept[path] for path in sorted(kept)))


def sign_again(proof: Path, key: Any, manifest: Manifest) -> None:
    (proof / MANIFEST_FILE).write_bytes(signing.sign(manifest, key).to_bytes())


def with_shard(manifest: Manifest, number: int, **changes: Any) -> Manifest:
    shards = list(manifest.shards)
    shards[number - 1] = replace(shards[number - 1], **changes)
    return replace(manifest, shards=tuple(shards))


def with_enrolment(manifest: Manifest, issuer: polo.Identity, **changes: Any) -> Manifest:
    """The manifest under an enrolment that the issuer signed like this."""
    enrolment = replace(manifest.enrolment, **changes)
    return replace(manifest, enrolment=signing.sign(enrolment, issuer))


def found(verdict: polo.Verdict, status: Status) -> list[tuple[str, int, str]]:
    return [(check.name, check.shard, check.place) for check in verdict.of(status)]


def names(verdict: polo.Verdict, status: Status) -> set[str]:
    return {check.name for check in verdict.of(status)}


# What is stored must be read


def bare(made: Any, alice: polo.Identity, *, junk: bool) -> Any:
    """The proof without its checkpoints, or with deltas of nothing in their place."""
    stored = tuple(file.path for file in made.manifest.files if "checkpoints/" in file.path)
    assert len(stored) == 4
    for path in stored:
        (made.path / path).unlink()
    deltas = [entry(made.path, checkpoint_path(x, delta=True), b"junk") for x in range(4)]
    if not junk:
        for delta in deltas:
            (made.path / delta.path).unlink()
        (made.path / "checkpoints").rmdir()
    more = deltas if junk else []
    sign_again(made.path, alice, listing(made.manifest, *more, without=stored))
    return made


@pytest.mark.parametrize("accuracy", ["all", "sample", "none"])
def test_deltas_that_lead_from_nothing(made: Any, alice: polo.Identity, accuracy: str) -> None:
    verdict = bare(made, alice, junk=True).verify(policy=Policy(accuracy))
    assert verdict.outcome is Outcome.REJECTED
    assert found(verdict, Status.FAILED) == [("root", 0, checkpoint_path(3, delta=True))]
    unread = [("root", x, "") for x in (3, 2, 1, 0)]
    assert found(verdict, Status.UNDECIDED) == [*unread, ("root", 3, "")]
    assert names(verdict, Status.PASSED) >= {"mark", "files"}


@pytest.mark.parametrize("accuracy", ["all", "none"])
def test_no_checkpoint_at_all(
    made: Any, alice: polo.Identity, tmp_path: Path, accuracy: str
) -> None:
    delivered = tmp_path / "model.safetensors"
    delivered.write_bytes((made.path / checkpoint_path(3)).read_bytes())
    bare(made, alice, junk=False)
    verdict = made.verify(policy=Policy(accuracy))
    assert verdict.outcome is Outcome.UNDECIDED
    assert found(verdict, Status.UNDECIDED) == [("root", 3, "")]
    verdict = made.verify(policy=Policy(accuracy), model=delivered)
    assert verdict.outcome is Outcome.UNDECIDED
    assert found(verdict, Status.UNDECIDED) == [("root", 3, ""), ("delivered", 3, "")]


def test_one_delta_that_is_junk(make_proof: Callable[..., Any], alice: polo.Identity) -> None:
    made = make_proof(deltas=True)
    middle = entry(made.path, checkpoint_path(1, delta=True), b"junk")
    sign_again(made.path, alice, listing(made.manifest, middle))
    verdict = made.verify()
    assert verdict.outcome is Outcome.REJECTED
    assert found(verdict, Status.FAILED) == [("root", 0, checkpoint_path(1, delta=True))]
    assert found(verdict, Status.UNDECIDED) == [("root", 1, ""), ("root", 0, "")]


# What is listed must have a meaning


@pytest.mark.parametrize(
    "path",
    [
        checkpoint_path(4),
        checkpoint_path(4, delta=True),
        checkpoint_path(3, delta=True),
        opening_path(0),
        opening_path(4),
        nonce_path(0),
        nonce_path(4),
        "evidence/replay/000001.json",
        "evidence/faith/000001.safetensors",
    ],
)
def test_a_listed_stray_file(made: Any, alice: polo.Identity, path: str) -> None:
    stray = entry(made.path, path, (made.path / "layout.json").read_bytes())
    sign_again(made.path, alice, listing(made.manifest, stray))
    verdict = made.verify(policy=UNTESTED)
    assert verdict.outcome is Outcome.REJECTED
    assert found(verdict, Status.FAILED) == [("files", 0, MANIFEST_FILE)]
    assert path in next(verdict.of(Status.FAILED)).detail


def test_a_layout_that_is_not_listed(made: Any, alice: polo.Identity) -> None:
    sign_again(made.path, alice, listing(made.manifest, without=("layout.json",)))
    verdict = made.verify(policy=UNTESTED)
    assert verdict.outcome is Outcome.REJECTED
    assert found(verdict, Status.FAILED) == [("layout", 0, "layout.json")]
    (made.path / "layout.json").unlink()
    verdict = made.verify(policy=UNTESTED)
    assert verdict.outcome is Outcome.REJECTED
    assert found(verdict, Status.FAILED) == [("layout", 0, "layout.json")]


@pytest.mark.parametrize("how", ["out of order", "twice"])
def test_a_list_out_of_order_or_with_repeats(made: Any, alice: polo.Identity, how: str) -> None:
    files = made.manifest.files
    listed = files[::-1] if how == "out of order" else (*files, files[-1])
    sign_again(made.path, alice, replace(made.manifest, files=listed))
    verdict = made.verify(policy=UNTESTED)
    assert verdict.outcome is Outcome.REJECTED
    assert found(verdict, Status.FAILED) == [("files", 0, MANIFEST_FILE)]


def test_a_tensor_named_like_the_metadata(
    made: Any, alice: polo.Identity, issuer: polo.Identity
) -> None:
    layout = Layout.from_bytes((made.path / "layout.json").read_bytes(), "layout.json")
    assert all(tensor.name < "__metadata__" for tensor in layout.tensors)
    layout = replace(layout, tensors=(*layout.tensors, Tensor("__metadata__", "F32", (4,))))
    manifest = listing(made.manifest, entry(made.path, "layout.json", layout.to_bytes()))
    terms = replace(manifest.terms, layout=layout.digest)
    sign_again(made.path, alice, with_enrolment(manifest, issuer, terms=terms))
    verdict = made.verify(policy=UNTESTED)
    assert verdict.outcome is Outcome.REJECTED
    assert found(verdict, Status.FAILED) == [("layout", 0, "layout.json")]
    assert "__metadata__" in next(verdict.of(Status.FAILED)).detail


# Terms that a careless or a later issuer signs


def test_a_scheme_that_this_release_does_not_know(
    made: Any, alice: polo.Identity, issuer: polo.Identity
) -> None:
    terms = made.manifest.terms
    terms = replace(terms, scheme=replace(terms.scheme, name="later"))
    sign_again(made.path, alice, with_enrolment(made.manifest, issuer, terms=terms))
    verdict = made.verify()
    assert verdict.outcome is Outcome.UNDECIDED
    assert found(verdict, Status.UNDECIDED) == [("mark", 0, "")]
    assert "'later'" in next(verdict.of(Status.UNDECIDED)).detail
    assert not verdict.per_shard("mark")
    assert not list(verdict.of(Status.FAILED))


@pytest.mark.parametrize(
    ("what", "place"),
    [
        ("seals what cannot verify", "enrolment.terms"),
        ("rarer than bits can be", "enrolment.terms"),
        ("noise on no weight", "enrolment.terms"),
        ("settings of the chain", "enrolment.terms"),
        ("too few nonces", "enrolment"),
        ("too many nonces", "enrolment"),
        ("live, with a count", "enrolment"),
    ],
)
def test_impossible_terms(
    made: Any, alice: polo.Identity, issuer: polo.Identity, what: str, place: str
) -> None:
    terms, drawn = made.manifest.terms, made.manifest.enrolment.nonces
    changes: dict[str, Any] = {
        "seals what cannot verify": {
            "terms": replace(terms, thresholds=replace(terms.thresholds, embed=600_000))
        },
        "rarer than bits can be": {
            "terms": replace(terms, thresholds=replace(terms.thresholds, log2_p=-129))
        },
        "noise on no weight": {"terms": replace(terms, noise=replace(terms.noise, fraction=3906))},
        "settings of the chain": {
            "terms": replace(terms, evidence=(EvidenceTerms("chain", {"a": "b"}),))
        },
        "too few nonces": {"nonces": replace(drawn, count=drawn.count - 1)},
        "too many nonces": {"nonces": replace(drawn, count=drawn.count + 1)},
        "live, with a count": {"nonces": replace(drawn, kind="live")},
    }[what]
    sign_again(made.path, alice, with_enrolment(made.manifest, issuer, **changes))
    verdict = made.verify()
    assert verdict.outcome is Outcome.REJECTED
    assert found(verdict, Status.FAILED) == [("manifest", 0, f"{MANIFEST_FILE}: {place}")]
    assert len(verdict.checks) == 1


def prove(path: Path, key: polo.Identity, source: Any, task: Any) -> None:
    """Train two shards under an enrolment of any kind."""
    import torch

    torch.manual_seed(0)
    model = task.build_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    prover = polo.Prover(source, key=key, store=path)
    with prover.attach(model, optimizer, evaluate=lambda: task.evaluate(model)):
        for _ in range(2):
            task.train_epoch(model, optimizer)
            prover.end_epoch()
    assert prover.finish().shards == 2


def test_an_adapter_on_a_base_that_the_task_lacks(
    enrol: Callable[..., Any], alice: polo.Identity, issuer: polo.Identity, task: Any,
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    issued = enrol()
    terms = replace(issued.record.terms, base=bytes(32))
    record = signing.sign(replace(issued.record, terms=terms), issuer)
    source = polo.OfflineEnrolment(record, issued.drawn)
    with pytest.raises(WeightsError, match="this model has no base"):
        prove(tmp_path / "refused", alice, source, task)
    # A prover of their own making need not look.
    monkeypatch.setattr("polo.weights.base.check_base", lambda model, wanted: None)
    monkeypatch.setattr("polo.weights.base.base_root", lambda model: bytes(32))
    prove(tmp_path / "proof", alice, source, task)
    monkeypatch.undo()
    verdict = polo.verify(tmp_path / "proof", trust=issuer.public_key, task=task)
    assert verdict.outcome is Outcome.UNDECIDED
    assert ("base", 0, "") in found(verdict, Status.UNDECIDED)
    assert sorted(verdict.per_shard("mark")) == [1, 2]


def test_a_transfer_that_is_not_there(made: Any, alice: polo.Identity) -> None:
    sign_again(made.path, alice, replace(made.manifest, transfer=bytes(32)))
    verdict = made.verify()
    assert verdict.outcome is Outcome.UNDECIDED
    assert found(verdict, Status.UNDECIDED) == [("transfer", 0, "ancestors")]
    assert "earlier owners" in next(verdict.of(Status.UNDECIDED)).detail


# Keys that anybody can sign for


@dataclass(frozen=True)
class Nobody:
    """Signs for the key of order 1 without a private key."""

    public_key: bytes = WEAK

    def sign(self, message: bytes) -> bytes:
        signature = b"\x01" + bytes(63)
        # Plain Ed25519 takes it, so nothing but the rule about weak keys is in the way.
        Ed25519PublicKey.from_public_bytes(WEAK).verify(signature, message)
        return signature


def test_a_weak_key_as_issuer(made: Any, alice: polo.Identity) -> None:
    enrolment = signing.sign(replace(made.manifest.enrolment, issuer=WEAK), Nobody())
    sign_again(made.path, alice, replace(made.manifest, enrolment=enrolment))
    for trust in (WEAK, made.issuer.public_key):
        verdict = polo.verify(made.path, trust=trust, task=made.task)
        assert verdict.outcome is Outcome.REJECTED
        assert found(verdict, Status.FAILED) == [("issuer", 0, "enrolment")]
        assert verdict.checks[-1].name == "issuer"


def test_a_weak_key_as_prover(made: Any, issuer: polo.Identity) -> None:
    sign_again(made.path, Nobody(), with_enrolment(made.manifest, issuer, identity=WEAK))
    verdict = made.verify()
    assert verdict.outcome is Outcome.REJECTED
    assert found(verdict, Status.FAILED) == [("signature", 0, MANIFEST_FILE)]
    assert verdict.checks[-1].name == "signature"


def test_a_weak_key_in_a_file(tmp_path: Path) -> None:
    save_public(WEAK, tmp_path / "weak.pub")
    with pytest.raises(SignatureError, match="small order") as error:
        load_public(tmp_path / "weak.pub")
    assert error.value.place == str(tmp_path / "weak.pub")


# What the prover says of itself


def test_matches_that_are_not_what_is_read(made: Any, alice: polo.Identity) -> None:
    bits = made.manifest.terms.scheme.bits
    said = bits if made.manifest.shards[1].matches < bits else bits - 1
    sign_again(made.path, alice, with_shard(made.manifest, 2, matches=said))
    verdict = made.verify()
    assert verdict.outcome is Outcome.REJECTED
    assert found(verdict, Status.FAILED) == [("reading", 2, "")]
    assert f"says {said} bits" in next(verdict.of(Status.FAILED)).detail


@pytest.mark.parametrize("said", [0, 126, 129])
def test_matches_with_which_no_shard_is_sealed(made: Any, alice: polo.Identity, said: int) -> None:
    assert made.manifest.terms.scheme.bits == 128
    sign_again(made.path, alice, with_shard(made.manifest, 2, matches=said))
    verdict = made.verify()
    assert verdict.outcome is Outcome.REJECTED
    assert found(verdict, Status.FAILED) == [("limits", 2, ""), ("reading", 2, "")]


def test_a_receipt_under_an_offline_enrolment(
    made: Any, alice: polo.Identity, issuer: polo.Identity
) -> None:
    digest, root = made.manifest.enrolment.digest, made.manifest.shards[1].root
    receipt = signing.sign(Receipt(digest, 2, root, 1, "log.example", 7, bytes(32)), issuer)
    sign_again(made.path, alice, with_shard(made.manifest, 2, receipt=receipt))
    verdict = made.verify()
    assert verdict.outcome is Outcome.REJECTED
    assert found(verdict, Status.FAILED) == [("receipts", 2, "")]


# Live nonces


@dataclass
class Registry:
    """Hands out nonces in receipts; it answers for the root that it is told."""

    record: Enrolment
    issuer: polo.Identity
    told: dict[int, bytes] = field(default_factory=dict)
    trouble: str = ""

    def source(self, signer: signing.Signer, registry: str | None = None) -> "Registry":
        return self

    def finish(self, folder: Path, *, wait: float = 0.0) -> None:
        pass

    def close(self) -> None:
        pass

    def commit(self, submission: Submission) -> "Future[Answer]":
        shard, root = submission.number, submission.about.root
        nonce = Nonce(shard + 1, bytes([shard + 1] * 32), bytes([shard + 65] * 32), ())
        told = self.told.get(shard, root)
        digest, salted = self.record.digest, nonces.leaf(nonce)
        receipt = Receipt(digest, shard, told, 1_700_000_000, "log.example", shard, salted)
        return answered(Answer(signing.sign(receipt, self.issuer), nonce))


@pytest.mark.parametrize("shard", [0, 1])
def test_a_receipt_for_other_weights(
    enrol: Callable[..., Any], alice: polo.Identity, issuer: polo.Identity, task: Any,
    tmp_path: Path, shard: int,
) -> None:  # fmt: skip
    live = replace(enrol().record, nonces=NonceTerms("live", bytes(32), 0))
    record = signing.sign(live, issuer)
    prove(tmp_path / "honest", alice, Registry(record, issuer), task)
    verdict = polo.verify(tmp_path / "honest", trust=issuer.public_key, task=task)
    assert verdict.outcome is Outcome.ACCEPTED, verdict
    # Now the prover commits to one checkpoint, and goes on from another.
    prove(tmp_path / "other", alice, Registry(record, issuer, {shard: bytes(32)}), task)
    verdict = polo.verify(tmp_path / "other", trust=issuer.public_key, task=task)
    assert verdict.outcome is Outcome.REJECTED
    assert found(verdict, Status.FAILED) == [("nonce", shard + 1, nonce_path(shard + 1))]
    assert "other weights" in next(verdict.of(Status.FAILED)).detail


# What the verifier lacks


def test_a_package_that_is_not_installed(
    make_proof: Callable[..., Any], in_child: Callable[..., Any]
) -> None:
    made = make_proof(deltas=True)
    code = """
import json, sys
sys.modules["zstandard"] = None
import polo
verdict = polo.verify(
    sys.argv[1], trust=bytes.fromhex(sys.argv[2]), policy=polo.Policy(accuracy="none")
)
print(json.dumps(verdict.to_json()))
"""
    done = in_child(code, made.path, made.issuer.public_key.hex(), bare=True)
    verdict = json.loads(done.stdout)
    assert verdict["outcome"] == "undecided"
    undecided = [c for c in verdict["checks"] if c["status"] == Status.UNDECIDED.value]
    assert {check["status"] for check in verdict["checks"]} == {
        Status.PASSED.value, Status.UNDECIDED.value, Status.NOTE.value,
    }  # fmt: skip
    assert [(check["name"], check["shard"]) for check in undecided] == [
        ("root", 0), ("root", 2), ("root", 1), ("root", 0),
    ]  # fmt: skip
    assert "zstandard" in undecided[0]["detail"]


class OtherTest:
    """The tiny task with another way to test."""

    def __init__(self, task: Any, evaluate: Callable[[Any], Any]) -> None:
        self.name, self.version, self.metric = task.name, task.version, task.metric
        self.floor, self.build_model, self.evaluate = task.floor, task.build_model, evaluate


@pytest.mark.parametrize("error", [RuntimeError("out of memory"), WeightsError("odd weights")])
def test_a_task_that_fails(made: Any, error: Exception) -> None:
    def evaluate(model: Any) -> float:
        raise error

    task = OtherTest(made.task, evaluate)
    verdict = polo.verify(made.path, trust=made.issuer.public_key, task=task)
    assert verdict.outcome is Outcome.UNDECIDED
    assert found(verdict, Status.UNDECIDED) == [("accuracy", x, "") for x in (3, 2, 1)]
    detail = next(verdict.of(Status.UNDECIDED)).detail
    assert f"{type(error).__name__}: {error}" in detail


@pytest.mark.parametrize("measured", [float("nan"), float("inf"), 1.5, -0.1])
def test_a_task_that_measures_no_rate(made: Any, measured: float) -> None:
    task = OtherTest(made.task, lambda model: measured)
    verdict = polo.verify(made.path, trust=made.issuer.public_key, task=task)
    assert verdict.outcome is Outcome.REJECTED
    assert found(verdict, Status.FAILED) == [("accuracy", x, "") for x in (3, 2, 1)]


# What is printed


@pytest.mark.parametrize(
    "name",
    [b"\x1b[2J\x1b[31mACCEPTED\x07", b"a\nACCEPTED", "a\u202efed\u2066".encode(), b"\xff\x1b]0;x"],
)
def test_a_file_name_that_acts_on_the_terminal(
    made: Any, capsys: pytest.CaptureFixture[str], name: bytes
) -> None:
    (made.path / os.fsdecode(name)).write_bytes(b"")
    verdict = made.verify(policy=UNTESTED)
    assert verdict.outcome is Outcome.REJECTED
    assert found(verdict, Status.FAILED) == [("files", 0, os.fsdecode(name))]
    print(verdict)
    page = io.StringIO()
    show(verdict, Console(file=page, width=100, color_system=None))
    for text in (capsys.readouterr().out, page.getvalue()):
        assert text.replace("\n", "").isprintable()
        assert not any(line.startswith("ACCEPTED") for line in text.splitlines())
    assert str(verdict).count("\n") == 0
