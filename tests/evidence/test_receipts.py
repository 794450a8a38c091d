"""Level receipts: a live chain from a small registry, and every kind of lie about it."""

import hashlib
import json
import shutil
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import httpx2
import pytest
import torch

import polo
from polo import cli
from polo.client.http import Patience
from polo.client.log_reader import LogReader
from polo.client.witnesses import Asked, Collected, checkpoints_of, collect
from polo.errors import SignatureError, TermsError
from polo.evidence.receipts.rules import Rules
from polo.keys import Identity
from polo.protocol import entries, log_notes, log_tree, nonces, signing
from polo.protocol.entries import Entry, Inclusion, Inclusions
from polo.protocol.log_notes import COSIGNATURE, Checkpoint, Note, NoteKey
from polo.protocol.records import (
    Enrolment,
    EvidenceTerms,
    File,
    Manifest,
    NonceTerms,
    Receipt,
    Shard,
)
from polo.receipts import Answer, Submission, answered
from polo.storage.folder import MANIFEST_FILE, receipts_path
from polo.verifier import Outcome, Policy, Status
from polo.verifier.report import render

ORIGIN = "registry.example/log"
KAPPA = bytes(range(32))
QUICK = Policy("none")


def key_of(number: int) -> Identity:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    return Identity(Ed25519PrivateKey.from_private_bytes(bytes([number] * 32)))


ISSUER, LOG, STRANGER = key_of(2), key_of(30), key_of(33)
WITNESSES = key_of(31), key_of(32)


def witness_key(at: int) -> NoteKey:
    return NoteKey(f"w{at}.example", WITNESSES[at].public_key, COSIGNATURE)


@dataclass
class SmallRegistry:
    """Takes commitments into a log of its own, between those of others."""

    prover: Identity
    witnesses: int = 0
    clock: int = 1_800_000_000
    leaves: list[bytes] = field(default_factory=list)
    enrolment: Enrolment | None = None
    trouble: str = ""

    def terms(self, terms: Any, **settings: str) -> Any:
        rules = Rules(ORIGIN, NoteKey(ORIGIN, LOG.public_key))
        asked = {**rules.to_settings(), **settings}
        if self.witnesses:
            asked["witnesses"] = ",".join(witness_key(at).text for at in range(self.witnesses))
        return replace(terms, evidence=(terms.evidence[0], EvidenceTerms("receipts", asked)))

    @property
    def record(self) -> Enrolment:
        assert self.enrolment is not None
        return self.enrolment

    def enrol(self, terms: Any) -> None:
        live = NonceTerms("live", entries.secret_commitment(KAPPA), 0)
        bare = Enrolment(terms, self.prover.public_key, live, self.clock, ISSUER.public_key)
        self.enrolment = signing.sign(bare, ISSUER)

    def source(self, *_: object) -> "SmallRegistry":
        return self

    @property
    def nonces(self) -> "SmallRegistry":
        return self

    def commit(self, submission: Submission) -> "Future[Answer]":
        about, files = submission.about, submission.files
        opening = files["opening"].sha256 if submission.number else None
        start, shard = (None, about) if submission.number else (about, None)
        bare = Entry(self.record.digest, start, shard, opening)  # type: ignore[arg-type]
        return answered(self.answer(signing.sign(bare, self.prover)))

    def answer(self, entry: Entry) -> Answer:
        self.clock += 60
        others = [hashlib.sha256(b"%d" % len(self.leaves)).digest()] * 2
        self.leaves += [*others, entry.leaf]
        index = len(self.leaves) - 1
        nonce = entries.live_nonce(KAPPA, entry)
        receipt = Receipt(
            entry.enrolment, entry.number, entry.root, self.clock, ORIGIN, index, nonces.leaf(nonce)
        )
        return Answer(signing.sign(receipt, ISSUER), nonce, self.inclusion(entry, index))

    def inclusion(self, entry: Entry, index: int) -> Inclusion:
        _, nodes = log_tree.Frontier().grown(self.leaves)
        kept = {(item.level, item.index): item.hash for item in nodes}
        size = len(self.leaves)
        path = log_tree.inclusion(index, size, lambda level, at: kept[level, at])
        root = log_tree.root_of(size, lambda level, at: kept[level, at])
        note = log_notes.sign_checkpoint(Checkpoint(ORIGIN, size, root), LOG)
        return Inclusion(entry, index, size, tuple(path), str(self.witnessed(note)))

    def witnessed(self, note: Note) -> Note:
        for at in range(self.witnesses):
            line = log_notes.cosign(note.text, witness_key(at).name, WITNESSES[at], self.clock + 7)
            note = note.signed(line)
        return note

    def finish(self, *_: object, **__: object) -> None: ...

    def close(self) -> None: ...


@dataclass
class Live:
    """A live proof that can be told to lie."""

    path: Path
    registry: SmallRegistry
    task: Any

    @property
    def manifest(self) -> Manifest:
        return Manifest.from_bytes((self.path / MANIFEST_FILE).read_bytes(), MANIFEST_FILE)

    def inclusions(self, shard: int) -> list[Inclusion]:
        place = self.path / receipts_path(shard)
        return list(Inclusions.from_bytes(place.read_bytes(), "inclusions").inclusions)

    def say(self, manifest: Manifest) -> None:
        data = signing.sign(manifest, self.registry.prover).to_bytes()
        (self.path / MANIFEST_FILE).write_bytes(data)

    def put(self, shard: int, data: bytes | None) -> None:
        """Replace a file of inclusions, or leave it out, and sign the list of files again."""
        name, manifest = receipts_path(shard), self.manifest
        files = [file for file in manifest.files if file.path != name]
        if data is None:
            (self.path / name).unlink()
        else:
            (self.path / name).write_bytes(data)
            files.append(File(name, len(data), hashlib.sha256(data).digest()))
        self.say(replace(manifest, files=tuple(sorted(files, key=lambda file: file.path))))

    def show(self, shard: int, **changes: Any) -> None:
        """Change what the log is said to hold of a shard."""
        shown = [
            replace(item, **changes) if item.entry.number == shard else item
            for item in self.inclusions(max(shard, 1))
        ]
        self.put(max(shard, 1), Inclusions(tuple(shown)).to_bytes())

    def entry(self, shard: int) -> Inclusion:
        return next(i for i in self.inclusions(max(shard, 1)) if i.entry.number == shard)

    def with_shard(self, number: int, **changes: Any) -> None:
        manifest = self.manifest
        shards = list(manifest.shards)
        shards[number - 1] = replace(shards[number - 1], **changes)
        self.say(replace(manifest, shards=tuple(shards)))

    def with_receipt(self, number: int, signer: Identity = ISSUER, **changes: Any) -> None:
        manifest = self.manifest
        about: Any = manifest.shards[number - 1] if number else manifest.start
        receipt = signing.sign(replace(about.receipt, **changes), signer)
        if number:
            self.with_shard(number, receipt=receipt)
        else:
            self.say(replace(manifest, start=replace(about, receipt=receipt)))

    def verify(self) -> polo.Verdict:
        return polo.verify(self.path, trust=ISSUER.public_key, task=self.task, policy=QUICK)

    def problems(self) -> list[tuple[str, str, int, str]]:
        """What stands against level receipts."""
        return [
            (check.name, check.status.name, check.shard, check.detail)
            for check in self.verify().problems()
            if check.level == "receipts"
        ]


@pytest.fixture(scope="module")
def made(
    tmp_path_factory: pytest.TempPathFactory, task: Any, alice: Identity
) -> Callable[..., Live]:
    """Trains live proofs, each kind once."""
    found: dict[tuple[Any, ...], Live] = {}

    def make(witnesses: int = 0, **settings: str) -> Live:
        kind = (witnesses, *sorted(settings.items()))
        if kind not in found:
            registry = SmallRegistry(alice, witnesses)
            usual = polo.make_terms(task, bits=128, shards=12, strength=0.02)
            registry.enrol(registry.terms(usual, **settings))
            path = tmp_path_factory.mktemp("live") / "proof"
            torch.manual_seed(0)
            model = task.build_model()
            optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
            prover = polo.Prover(registry, key=alice, store=path)
            with prover.attach(model, optimizer, evaluate=lambda: task.evaluate(model)):
                for _ in range(3):
                    task.train_epoch(model, optimizer)
                    prover.end_epoch()
            prover.finish()
            found[kind] = Live(path, registry, task)
        return found[kind]

    return make


@pytest.fixture
def live(made: Callable[..., Live], tmp_path: Path) -> Callable[..., Live]:
    """A copy of a live proof, to spoil."""

    def copy(witnesses: int = 0, **settings: str) -> Live:
        whole = made(witnesses, **settings)
        shutil.copytree(whole.path, tmp_path / "proof")
        return replace(whole, path=tmp_path / "proof")

    return copy


def test_a_live_chain_shows_the_level(made: Callable[..., Live]) -> None:
    verdict = made().verify()
    assert verdict.outcome is Outcome.ACCEPTED, verdict.headline()
    assert verdict.ended("receipts") is Status.PASSED
    shards = len(made().manifest.shards)
    assert shards >= 2
    assert f"{shards + 1} receipts, 2027-01-15 08:01:00 UTC to" in verdict.found("receipts")
    assert "dates by the registry's word" in verdict.headline()
    (note,) = [check for check in verdict.checks if check.name == "witness"]
    assert note.status is Status.NOTE
    assert "dates" in verdict.caution
    assert "a forger can run live" in verdict.caution
    assert "when it was trained" not in verdict.caution
    assert "back-dating" not in verdict.texts["receipts"].shows


def test_witnesses_make_the_dates_more_than_a_word(made: Callable[..., Live]) -> None:
    verdict = made(2).verify()
    assert verdict.outcome is Outcome.ACCEPTED, verdict.headline()
    (seen,) = [check for check in verdict.checks if check.name == "witness"]
    assert (seen.status, seen.figures["lag"], seen.figures["quorum"]) == (Status.PASSED, 7, 2)
    assert "seen by 2 of 2 witnesses" in verdict.found("receipts")
    assert "dates" not in verdict.caution
    assert "back-dating" in verdict.texts["receipts"].shows


def test_the_page_shows_the_level_and_whose_word_the_dates_are(made: Callable[..., Live]) -> None:
    alone, watched = render(made().verify()), render(made(2).verify())
    for page in (alone, watched):
        assert "Level receipts" in page
        assert "Receipts that hold" in page
        assert "2027-01-15 08:01" in page
        assert "since the first receipt" in page
    assert "The dates are the registry&#x27;s own word" in alone or "registry's own word" in alone
    assert "own word" not in watched
    assert "dates can be off by 7 s at most" in watched


def test_what_is_missing_is_not_decided(live: Callable[..., Live]) -> None:
    proof = live()
    proof.put(2, None)
    ((name, status, shard, detail),) = proof.problems()
    assert (name, status, shard) == ("entry", "UNDECIDED", 2)
    assert "not here" in detail
    assert proof.verify().outcome is Outcome.UNDECIDED


def test_a_start_without_its_entry_is_not_decided(live: Callable[..., Live]) -> None:
    proof = live()
    proof.put(1, Inclusions(tuple(proof.inclusions(1)[1:])).to_bytes())
    ((name, status, shard, detail),) = proof.problems()
    assert (name, status, shard) == ("entry", "UNDECIDED", 0)
    assert "the start" in detail


def test_a_last_shard_without_a_receipt_is_not_decided(live: Callable[..., Live]) -> None:
    proof = live()
    last = len(proof.manifest.shards)
    proof.with_shard(last, receipt=None)
    found = proof.problems()
    assert [item[:3] for item in found] == [
        ("receipt", "UNDECIDED", last),
        ("entry", "UNDECIDED", last),
    ]


def resigned(proof: Live, number: int, signer: Identity, /, **changes: Any) -> Entry:
    """The entry of a shard, changed and signed again."""
    return signing.sign(replace(proof.entry(number).entry, **changes), signer)


def logged(proof: Live, shard: int, entry: Entry) -> None:
    """Put another entry into the log, where the first one was, and sign the log again."""
    registry, old = proof.registry, proof.entry(shard)
    leaves = list(registry.leaves)
    leaves[old.index] = entry.leaf
    other = replace(registry, leaves=leaves)
    shown = other.inclusion(entry, old.index)
    proof.show(
        shard, **{name: getattr(shown, name) for name in ("entry", "size", "path", "checkpoint")}
    )


def _another_steps(proof: Live) -> None:
    shard = proof.entry(2).entry.shard
    assert shard is not None
    entry = resigned(proof, 2, proof.registry.prover, shard=replace(shard, steps=shard.steps + 1))
    logged(proof, 2, entry)


def _another_opening(proof: Live) -> None:
    logged(proof, 2, resigned(proof, 2, proof.registry.prover, opening=bytes(32)))


def _somebody_elses(proof: Live) -> None:
    logged(proof, 2, resigned(proof, 2, STRANGER))


def _another_enrolment(proof: Live) -> None:
    logged(proof, 2, resigned(proof, 2, proof.registry.prover, enrolment=bytes(32)))


def _changed_path(proof: Live) -> None:
    path = proof.entry(2).path
    proof.show(2, path=(bytes(32), *path[1:]))


def _short_path(proof: Live) -> None:
    proof.show(2, path=proof.entry(2).path[:-1])


def _another_place(proof: Live) -> None:
    proof.show(2, index=proof.entry(2).index - 1)


def _forged_checkpoint(proof: Live) -> None:
    note = Note.parse(proof.entry(2).checkpoint, place="x")
    head = Checkpoint.parse(note.text, place="x")
    proof.show(2, checkpoint=str(log_notes.sign_checkpoint(head, STRANGER)))


def _another_log(proof: Live) -> None:
    note = Note.parse(proof.entry(2).checkpoint, place="x")
    head = replace(Checkpoint.parse(note.text, place="x"), origin="other.example/log")
    key, signature = NoteKey(ORIGIN, LOG.public_key), LOG.sign(head.text.encode())
    line = log_notes.NoteSignature(key.name, key.id, signature)
    proof.show(2, checkpoint=str(Note(head.text, (line,))))


def _another_size(proof: Live) -> None:
    proof.show(2, size=proof.entry(2).size + 1)


def _no_note(proof: Live) -> None:
    proof.show(2, checkpoint="nonsense")


def _not_json(proof: Live) -> None:
    proof.put(2, b"[]")


def _of_another_shard(proof: Live) -> None:
    proof.put(2, Inclusions((proof.entry(1),)).to_bytes())


def _twice(proof: Live) -> None:
    proof.put(2, Inclusions((proof.entry(2), proof.entry(2))).to_bytes())


def _huge(proof: Live) -> None:
    proof.put(2, b" " * 300_000)


ENTRIES = {
    "another number of steps": (_another_steps, "another steps than the manifest"),
    "another opening": (_another_opening, "another opening"),
    "signed by somebody else": (_somebody_elses, "the signature is not the one of key"),
    "of another enrolment": (_another_enrolment, "of another enrolment"),
    "a changed path": (_changed_path, "it is not entry"),
    "a short path": (_short_path, "too short"),
    "another place": (_another_place, "the receipt is for entry"),
    "a checkpoint by somebody else": (_forged_checkpoint, "did not sign it"),
    "a checkpoint of another log": (_another_log, "a checkpoint of 'other.example/log'"),
    "another size": (_another_size, "the checkpoint is of"),
    "no note": (_no_note, "is no signed note"),
    "no record": (_not_json, "expected an object"),
    "of another shard": (_of_another_shard, "shows entries of shards [1]"),
    "twice": (_twice, "shows entries of shards [2, 2]"),
    "a huge file": (_huge, "more than 262144 bytes"),
}


@pytest.mark.parametrize("name", ENTRIES)
def test_lies_about_the_log_are_found_and_named(live: Callable[..., Live], name: str) -> None:
    spoil, words = ENTRIES[name]
    proof = live()
    spoil(proof)
    ((check, status, shard, detail),) = proof.problems()
    assert (check, status, shard) == ("entry", "FAILED", 2)
    assert words in detail
    assert proof.verify().outcome is Outcome.REJECTED


RECEIPTS: dict[str, tuple[dict[str, Any], str]] = {
    "signed by somebody else": ({"signer": STRANGER}, "the signature is not the one of key"),
    "of another enrolment": ({"enrolment": bytes(32)}, "for another enrolment"),
    "of another shard": ({"shard": 1}, "for shard 1"),
    "of other weights": ({"root": bytes(32)}, "other weights"),
    "of another log": ({"origin": "other.example"}, "which the terms do not name"),
}


@pytest.mark.parametrize("name", RECEIPTS)
def test_lies_about_receipts_are_found_and_named(live: Callable[..., Live], name: str) -> None:
    changes, words = RECEIPTS[name]
    proof = live()
    # The last shard's receipt: no nonce hangs on it, so nothing but this level looks at it.
    last = len(proof.manifest.shards)
    proof.with_receipt(last, **changes)
    ((check, status, shard, detail),) = proof.problems()
    assert (check, status, shard) == ("receipt", "FAILED", last)
    assert words in detail


def test_times_that_go_backwards(live: Callable[..., Live]) -> None:
    proof = live()
    last = len(proof.manifest.shards)
    before = proof.manifest.shards[last - 2].receipt
    assert before is not None
    proof.with_receipt(last, time=before.time - 5)
    ((check, status, shard, detail),) = proof.problems()
    assert (check, status, shard) == ("dates", "FAILED", last)
    assert "5 seconds older" in detail
    proof.with_receipt(last, time=before.time)
    assert proof.verify().outcome is Outcome.ACCEPTED


def test_places_that_go_backwards(live: Callable[..., Live]) -> None:
    proof = live()
    last = len(proof.manifest.shards)
    entry, registry = proof.entry(last).entry, proof.registry
    # The registry writes the last shard into its log again, in an older place.
    leaves = list(registry.leaves)
    leaves[0] = entry.leaf
    shown = replace(registry, leaves=[*leaves, bytes(32)]).inclusion(entry, 0)
    changed = {name: getattr(shown, name) for name in ("index", "size", "path", "checkpoint")}
    proof.show(last, **changed)
    proof.with_receipt(last, index=0)
    ((check, status, shard, detail),) = proof.problems()
    assert (check, status, shard) == ("dates", "FAILED", last)
    assert "entry 0 of the log comes after" in detail


def test_two_trees_of_one_size_are_a_fork(live: Callable[..., Live]) -> None:
    proof = live()
    last = len(proof.manifest.shards)
    old = proof.entry(1)
    # The first shard is shown in a tree of the last one's size that holds other entries.
    leaves = [hashlib.sha256(leaf).digest() for leaf in proof.registry.leaves]
    leaves[old.index] = old.entry.leaf
    shown = replace(proof.registry, leaves=leaves).inclusion(old.entry, old.index)
    proof.show(1, size=shown.size, path=shown.path, checkpoint=shown.checkpoint)
    ((check, status, shard, detail),) = proof.problems()
    assert (check, status, shard) == ("entry", "FAILED", last)
    assert "it was forked" in detail


def test_shards_that_came_too_fast(live: Callable[..., Live]) -> None:
    assert live(fastest="60").verify().outcome is Outcome.ACCEPTED


def test_shards_that_came_faster_than_the_terms_allow(live: Callable[..., Live]) -> None:
    proof = live(fastest="61")
    found = proof.problems()
    assert {item[:2] for item in found} == {("dates", "FAILED")}
    assert [item[2] for item in found] == [shard.shard for shard in proof.manifest.shards]
    assert "the terms ask for 61 at least" in found[0][3]


def uncosigned(proof: Live, shard: int, *, keep: int) -> None:
    note = Note.parse(proof.entry(shard).checkpoint, place="x")
    proof.show(shard, checkpoint=str(Note(note.text, note.signatures[: 1 + keep])))


def test_too_few_witnesses_are_not_decided(live: Callable[..., Live]) -> None:
    proof = live(2)
    uncosigned(proof, 2, keep=1)
    ((check, status, shard, detail),) = proof.problems()
    assert (check, status, shard) == ("witness", "UNDECIDED", 2)
    assert "2 of 2 witnesses" in detail
    assert proof.verify().outcome is Outcome.UNDECIDED


def test_a_quorum_will_do(live: Callable[..., Live]) -> None:
    proof = live(2, quorum="1")
    uncosigned(proof, 2, keep=1)
    assert proof.verify().outcome is Outcome.ACCEPTED


def reader_of(registry: SmallRegistry, proof: Live, *, ready: bool) -> LogReader:
    """The log of a registry that answers one question: where an entry is, cosigned."""
    found = {}
    for number in range(len(proof.manifest.shards) + 1):
        old = proof.entry(number)
        fresh = registry.inclusion(old.entry, old.index)
        path = [item.hex() for item in fresh.path]
        found[str(old.index)] = {"size": fresh.size, "path": path, "checkpoint": fresh.checkpoint}

    def answer(request: httpx2.Request) -> httpx2.Response:
        assert (request.url.path, request.url.params["quorum"]) == ("/v1/log/inclusion", "2")
        if not ready:
            return httpx2.Response(404, content=iter([b""]))
        said = json.dumps(found[request.url.params["index"]]).encode()
        return httpx2.Response(200, content=iter([said]))

    transport = httpx2.MockTransport(answer)
    return LogReader("http://registry.example", transport=transport, patience=Patience(tries=1))


def asked_of(proof: Live) -> Asked:
    rules = Rules.of(proof.manifest.terms, ISSUER.public_key)
    return Asked(rules.origin, rules.log, rules.witnesses, rules.quorum)


def test_what_witnesses_said_later_is_collected(
    live: Callable[..., Live], alice: Identity, made: Callable[..., Live]
) -> None:
    proof = live(2)
    uncosigned(proof, 0, keep=0)
    uncosigned(proof, 2, keep=1)
    asked = asked_of(proof)
    waiting = reader_of(proof.registry, proof, ready=False)
    assert collect(waiting, proof.path, alice, asked) == Collected(0, 2)
    assert proof.verify().outcome is Outcome.UNDECIDED
    liar = replace(proof.registry, leaves=[bytes(32)] * len(proof.registry.leaves))
    with pytest.raises(SignatureError, match="it is not entry"):
        collect(reader_of(liar, proof, ready=True), proof.path, alice, asked)
    ready = reader_of(proof.registry, proof, ready=True)
    assert collect(ready, proof.path, alice, asked) == Collected(2, 0)
    assert proof.verify().outcome is Outcome.ACCEPTED
    assert collect(ready, proof.path, alice, asked) == Collected(0, 0)
    whole = made(2).manifest
    assert len(checkpoints_of(made(2).path)) == len(whole.shards) + 1
    # A kill between the files and the manifest is mended by doing it again.
    manifest = (proof.path / MANIFEST_FILE).read_bytes()
    uncosigned(proof, 2, keep=0)
    file = (proof.path / receipts_path(2)).read_bytes()
    (proof.path / MANIFEST_FILE).write_bytes(manifest)
    assert proof.verify().outcome is Outcome.REJECTED
    assert (proof.path / receipts_path(2)).read_bytes() == file
    assert collect(ready, proof.path, alice, asked) == Collected(1, 0)
    assert proof.verify().outcome is Outcome.ACCEPTED


def test_collecting_by_command(
    live: Callable[..., Live], alice: Identity, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    alice.save(tmp_path / "alice.key")
    run = ["log", "collect", "http://127.0.0.1:1", str(live(2).path), "--key"]
    # Everything was seen already, so nobody is asked.
    assert cli.run([*run, str(tmp_path / "alice.key")]) == 0
    assert "0 new, 0 not seen by 2 of 2 witnesses yet" in capsys.readouterr().out


def test_a_false_cosignature_fails(live: Callable[..., Live]) -> None:
    proof = live(2)
    note = Note.parse(proof.entry(2).checkpoint, place="x")
    *others, last = note.signatures
    forged = replace(last, signature=last.signature[:-1] + bytes([last.signature[-1] ^ 1]))
    proof.show(2, checkpoint=str(Note(note.text, (*others, forged))))
    ((check, status, _, detail),) = proof.problems()
    assert (check, status) == ("entry", "FAILED")
    assert "the cosignature of w1.example does not hold" in detail


def test_a_receipt_that_is_younger_than_what_witnesses_saw(live: Callable[..., Live]) -> None:
    proof = live(2)
    last = len(proof.manifest.shards)
    receipt = proof.manifest.shards[-1].receipt
    assert receipt is not None
    proof.with_receipt(last, time=receipt.time + 100_000)
    ((check, status, shard, detail),) = proof.problems()
    assert (check, status, shard) == ("dates", "FAILED", last)
    assert "witnesses saw it 99993 seconds before" in detail


def test_a_bundle_for_a_buyer_leaves_the_level_out(
    made: Callable[..., Live], tmp_path: Path
) -> None:
    from polo.protocol.records import Bundle
    from polo.storage.bundle import write_bundle
    from polo.storage.folder import ProofFolder

    for part in (Bundle("public", ()), Bundle("buyer", (1, 2))):
        out = tmp_path / f"{part.kind}.polo"
        write_bundle(ProofFolder(made().path), out, part)
        verdict = polo.verify(out, trust=ISSUER.public_key, policy=QUICK)
        assert "receipts" not in verdict.levels
        noted = [check for check in verdict.of(Status.NOTE) if check.name == "evidence"]
        assert "which only a whole proof shows" in noted[0].detail


def test_offline_nonces_cannot_have_receipts(
    make_proof: Callable[..., Any], task: Any, monkeypatch: pytest.MonkeyPatch, alice: Identity
) -> None:
    usual = polo.make_terms

    def asking(*arguments: Any, **options: Any) -> Any:
        return SmallRegistry(alice).terms(usual(*arguments, **options))

    monkeypatch.setattr(polo, "make_terms", asking)
    verdict = make_proof().verify(policy=QUICK)
    (check,) = [item for item in verdict.problems() if item.level == "receipts"]
    assert (check.name, check.status) == ("evidence", Status.FAILED)
    assert "drawn offline" in check.detail


SETTINGS = Rules(ORIGIN, NoteKey(ORIGIN, LOG.public_key)).to_settings()
WATCHED = {"witnesses": ",".join(witness_key(at).text for at in range(2))}


def test_settings_are_read_back() -> None:
    watched = tuple(witness_key(at) for at in range(2))
    rules = Rules(ORIGIN, NoteKey(ORIGIN, LOG.public_key), watched, 1, 30, 50_000, 10_000, 600)
    assert Rules.from_settings(rules.to_settings()) == rules
    assert Rules.from_settings({**SETTINGS, **WATCHED}).quorum == 2
    assert "witnesses" not in SETTINGS


WRONG = {
    "unknown": {"surprise": "1"},
    "log": {"log": "registry.example"},
    "log, a witness's key": {"log": witness_key(0).text},
    "origin": {"origin": "two words"},
    "witnesses": {"witnesses": ""},
    "witnesses, a log's key": {"witnesses": SETTINGS["log"]},
    "witnesses, one twice": {"witnesses": f"{witness_key(0).text},{witness_key(0).text}"},
    "witnesses, the log itself": {
        "witnesses": NoteKey("w.example", LOG.public_key, COSIGNATURE).text
    },
    "quorum without witnesses": {"quorum": "1"},
    "quorum above their number": {**WATCHED, "quorum": "3"},
    "quorum of nobody": {**WATCHED, "quorum": "0"},
    "fastest": {"fastest": "-1"},
}


@pytest.mark.parametrize("name", WRONG)
def test_settings_that_are_refused(name: str) -> None:
    with pytest.raises(TermsError, match="receipts"):
        Rules.from_settings({**SETTINGS, **WRONG[name]})


def test_settings_that_are_missing() -> None:
    for name in ("origin", "log"):
        with pytest.raises(TermsError, match=name):
            Rules.from_settings({key: text for key, text in SETTINGS.items() if key != name})


def test_the_issuer_is_no_witness(task: Any, alice: Identity) -> None:
    own = NoteKey("w.example", ISSUER.public_key, COSIGNATURE).text
    terms = SmallRegistry(alice).terms(polo.make_terms(task, bits=128), witnesses=own)
    with pytest.raises(TermsError, match="its own witness"):
        Rules.of(terms, ISSUER.public_key)


def test_an_entry_answers_with_one_nonce(made: Callable[..., Live]) -> None:
    proof = made()
    entry = proof.entry(1).entry
    nonce = entries.live_nonce(KAPPA, entry)
    assert nonce == entries.live_nonce(KAPPA, Entry.from_bytes(entry.to_bytes(), "entry"))
    assert isinstance(entry.shard, Shard)
    other = replace(entry, shard=replace(entry.shard, steps=1))
    assert entries.live_nonce(KAPPA, other).nonce != nonce.nonce
    assert proof.manifest.shards[0].receipt is not None
    assert proof.manifest.shards[0].receipt.next_nonce == nonces.leaf(nonce)
