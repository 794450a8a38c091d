"""Verifying a proof: signatures and files first, then the chain from the newest shard back."""

import contextlib
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path

from polo._version import __version__
from polo.checks import Check, Status, counted, problem
from polo.errors import FormatError, PoloError, StoreError
from polo.evidence import start
from polo.evidence.receipts.check import receipts
from polo.evidence.uniqueness import uniqueness
from polo.keys import Ed25519Verifier, Trust, TrustStore, trusted_keys
from polo.protocol import canonical, chain, signing
from polo.protocol.carrier import Carrier
from polo.protocol.challenge import Challenge
from polo.protocol.layout import Layout
from polo.protocol.records import Bundle, Manifest, Nonce, Terms, identity_of
from polo.storage import history
from polo.storage.bundle import files_of, opened
from polo.storage.folder import LAYOUT_FILE, MANIFEST_FILE, ProofFolder
from polo.tasks import Task
from polo.verifier import accuracy, delivered, files, lineage, walking
from polo.verifier.effort import KNOWN, Effort, Request, effort_of
from polo.verifier.final import about, verify_final
from polo.verifier.hashers import Hashers
from polo.verifier.marks import Marks
from polo.verifier.policy import Policy
from polo.verifier.verdict import Owner, Verdict, described
from polo.watermark.mark import carrier_of
from polo.weights.checkpoint import HeldCheckpoint
from polo.weights.hashing import commit

CHECKED = (*KNOWN, "receipts", "uniqueness")
"""Levels above the chain that are checked here; all of them need the whole proof."""

_WAIT = 0.1
"""Seconds between two words about how far marks are read."""

Listener = Callable[[str, int, int], None]
"""Hears what is being done, how much of it is done, and how much there is."""


def verify(
    proof: str | Path,
    *,
    trust: Trust | Iterable[Trust] | None = None,
    task: Task | str | None = None,
    policy: Policy | None = None,
    model: str | Path | None = None,
    challenge: Challenge | None = None,
    answer: str | Path | None = None,
    streamed: Mapping[int, int] | None = None,
    listener: Listener | None = None,
) -> Verdict:
    """Check a proof offline.

    Args:
        proof: The proof folder, or a bundle.
        trust: Whose enrolments to accept: public keys, `.pub` files, or a trust store; by default
            the user's own store.
        task: The task, or its name; by default the registered one that the terms name.
        policy: How to verify.
        model: A delivered model file to compare with the proof's last checkpoint; with
            `final_only` the model to look for marks in.
        challenge: What you drew to be run again, where the terms ask for replay.
        answer: Folder of the prover's answer to it.
        streamed: For a registry: the segments that it drew and ran again while the chain grew, by
            shard, all of which came out as recorded.
        listener: Hears about progress.

    Returns:
        The verdict. Nothing that a proof contains makes this function raise.
    """
    checks: list[Check] = []
    trusted = trusted_keys(TrustStore() if trust is None else trust)
    policy = policy or Policy()
    if policy.final_only:
        return verify_final(Path(proof), trusted, Path(model) if model else None, policy)
    request = Request(challenge, Path(answer) if answer else None, policy.device, streamed)
    run = _Run(Path(proof), trusted, task, policy, listener or (lambda *_: None), request)
    try:
        for check in run.checks(Path(model) if model else None):
            checks.append(check)
    except OSError as error:
        # A full disk, a file that goes away: the verifier's trouble, not the prover's fault.
        checks.append(Check("files", Status.UNDECIDED, f"the system says: {error}"))
    return Verdict(str(proof), tuple(checks), run.facts, run.levels, run.bundle, run.owners)


class _Run:
    """One verification; each method yields the checks of one part."""

    def __init__(
        self,
        path: Path,
        trusted: dict[bytes, str],
        task: Task | str | None,
        policy: Policy,
        listener: Listener,
        request: Request,
        *,
        earlier: bool = False,
    ) -> None:
        self._earlier = earlier
        self._path = path
        self._trusted = trusted
        self._task = task
        self._policy = policy
        self._request = request
        self._tell = listener
        self._signatures = Ed25519Verifier()
        self.facts: dict[str, str | int] = {}
        self.levels: tuple[str, ...] = ("chain",)
        self.bundle: Bundle | None = None
        self.manifest: Manifest | None = None
        self.owners: tuple[Owner, ...] = ()
        self._shown: set[str] | None = None
        self._nonces: dict[int, Nonce] = {}
        self._reading: walking.Aside[Check] = walking.Aside()
        self._unheard: OSError | None = None

    def checks(self, model: Path | None) -> Iterator[Check]:
        """All checks, in order; what cannot be reached is not checked."""
        with contextlib.ExitStack() as stack:
            try:
                folder = stack.enter_context(opened(self._path))
            except StoreError as error:
                yield problem("manifest", error, Status.UNDECIDED)
                return
            except PoloError as error:
                yield problem("bundle", error)
                return
            for check in self._checks(folder, model):
                yield about(check, folder, self._path)

    def _checks(self, path: Path, model: Path | None) -> Iterator[Check]:
        try:
            folder = ProofFolder(path)
            manifest = folder.manifest()
        except StoreError as error:
            yield problem("manifest", error, Status.UNDECIDED)
            return
        except PoloError as error:
            yield problem("manifest", error)
            return
        yield Check("manifest", Status.PASSED, f"format {manifest.FORMAT}")
        self.manifest = manifest
        self._note_facts(manifest)
        try:
            yield from self._part(folder, manifest)
        except PoloError as error:
            yield problem("bundle", error)
            return
        trusted = True
        for check in self._parties(manifest):
            trusted = trusted and check.status is Status.PASSED
            yield check
        if not trusted:
            return
        try:
            layout = self._layout(folder, manifest)
            carrier = carrier_of(manifest.terms, layout)
        except PoloError as error:
            yield problem("layout", error)
            return
        yield Check("layout", Status.PASSED, counted(len(layout.tensors), "tensor"))
        count = len(history.stored(manifest))
        with contextlib.ExitStack() as stack:
            hashers = stack.enter_context(Hashers(layout, count, self._policy.threads))
            # Who breaks off waits for one mark, and it for no file.
            stack.callback(self._reading.join)
            checked = files.Files(
                folder,
                manifest,
                layout,
                hashers,
                shown=self._shown,
                earlier=self._earlier,
                threads=self._policy.threads,
            )
            stack.enter_context(checked)
            stack.callback(self._reading.leave)
            marks = Marks(
                folder,
                manifest,
                carrier,
                sound=checked,
                is_shown=lambda path: self._shown is None or path in self._shown,
                threads=self._policy.threads,
            )
            self._nonces = marks.nonces
            # Where there is much to hash, that is done while marks are read and weights tested; no
            # file is looked at before it is known to be as signed.
            if hashers.by_processes:
                self._reading.start(self._marks(marks))
            else:
                self._reading.make(self._marks(marks))
                checked.wait()
            if self._asked():
                # Levels of effort need the nonces.
                self._wait_for(marks)
            weights = _made(self._about_weights(folder, manifest, carrier, checked, hashers, model))
            yield from checked.checks(self._tell)
            yield from self._structure(manifest)
            self._wait_for(marks)
            yield from self._reading.found()
            yield from weights
            if self._unheard:
                raise self._unheard
        yield from self._start(manifest, layout)
        yield from self._remarks(manifest)
        if not self._earlier:
            yield from self._owners(folder, manifest)

    def _about_weights(
        self,
        folder: ProofFolder,
        manifest: Manifest,
        carrier: Carrier,
        sound: files.Files,
        hashers: Hashers,
        model: Path | None,
    ) -> Iterator[Check]:
        """Levels of the registry's, the base, and the weights, or what is delivered of them."""
        if self._reading.error:
            # Nothing is said after that.
            return
        if "receipts" in self.levels and not self._earlier:
            yield from receipts(folder, manifest, sound)
        if "uniqueness" in self.levels and not self._earlier:
            yield from uniqueness(folder, manifest, sound)
        if manifest.terms.base is not None:
            yield self._base(manifest, carrier.layout, manifest.terms.base)
        if self._shown is None:
            yield from self._weights(folder, manifest, carrier, sound, hashers, model)
        elif model:
            yield delivered.compare_root(model, carrier.layout, manifest.last_root)

    def _owners(self, folder: ProofFolder, manifest: Manifest) -> Iterator[Check]:
        """Earlier owners, each verified like this one, and the transfers between them."""
        history_of = lineage.Lineage(folder, manifest, partial=self._shown is not None)
        yield from history_of.checks(self._examine)
        self.owners = history_of.owners(self._trusted)

    def _examine(self, path: Path) -> lineage.Examined:
        policy = Policy("none", threads=self._policy.threads)
        run = _Run(path, self._trusted, self._task, policy, self._tell, Request(), earlier=True)
        return lineage.Examined(tuple(run.checks(None)), run.manifest)

    def _part(self, folder: ProofFolder, manifest: Manifest) -> Iterator[Check]:
        """What part of the proof this is; what is left out on purpose is not missed."""
        bundle = folder.bundle()
        if bundle is None:
            return
        held = files_of(bundle, manifest)
        self.bundle = bundle
        self.facts["bundle"] = described(bundle, len(manifest.shards))
        if bundle.kind != "verifier":
            self._shown = {file.path for file in held}
            # What a bundle leaves out is no part of a verdict on a disclosure, like accuracy.
            self.levels = tuple(level for level in self.levels if level not in CHECKED)
        yield Check("bundle", Status.PASSED, str(self.facts["bundle"]))
        if self._policy.whole and self._shown is not None:
            yield Check(
                "bundle",
                Status.UNDECIDED,
                "only part of the proof is here, and a whole one was asked for",
                advice="Ask the prover for the verifier's bundle.",
            )

    def _note_facts(self, manifest: Manifest) -> None:
        terms = manifest.terms
        self.levels = tuple(item.level for item in terms.evidence)
        self.facts = {
            "identity": identity_of(manifest.enrolment.identity).hex(),
            "issuer": identity_of(manifest.enrolment.issuer).hex(),
            "task": f"{terms.task.name} (version {terms.task.version})",
            "metric": terms.task.metric,
            "shards": len(manifest.shards),
            "start": terms.start.kind,
            **({"base": terms.base.hex()} if terms.base else {}),
            "bits": terms.scheme.bits,
            "scheme": f"{terms.scheme.name}, {terms.scheme.key} keys, {terms.scheme.bits} bits",
            "eta_verify": str(terms.thresholds.verify / 1e6),
            "log2_p_threshold": terms.thresholds.log2_p,
            "final_root": manifest.root_before(len(manifest.shards) + 1).hex(),
            "issued": manifest.enrolment.issued,
            "verified": int(time.time()),
            "version": __version__,
            "policy": f"accuracy: {self._policy.accuracy}, tolerance {self._policy.tolerance:g}"
            + (", whole proofs only" if self._policy.whole else ""),
        }

    def _parties(self, manifest: Manifest) -> Iterator[Check]:
        enrolment = manifest.enrolment
        issuer = identity_of(enrolment.issuer).hex()[:16]
        try:
            signing.check(enrolment, enrolment.issuer, self._signatures, place="enrolment")
        except PoloError as error:
            yield problem("issuer", error)
            return
        if name := self._trusted.get(enrolment.issuer):
            yield Check("issuer", Status.PASSED, f"{name} ({issuer}…) signed the terms")
        else:
            yield Check(
                "issuer",
                Status.UNDECIDED,
                f"the terms are signed by {issuer}…, whom you do not trust",
                advice="If you know this issuer: polo verify … --trust ISSUER.pub",
            )
        try:
            signing.check(manifest, enrolment.identity, self._signatures, place=MANIFEST_FILE)
        except PoloError as error:
            yield problem("signature", error)
            return
        yield Check(
            "signature", Status.PASSED, f"signed by {identity_of(enrolment.identity).hex()[:16]}…"
        )

    def _layout(self, folder: ProofFolder, manifest: Manifest) -> Layout:
        listed = next((file for file in manifest.files if file.path == LAYOUT_FILE), None)
        if listed is None:
            raise FormatError("is not in the signed list of files", place=LAYOUT_FILE)
        folder.check_file(listed, canonical.MAX_DOCUMENT_BYTES)
        layout = folder.layout()
        if layout.digest != manifest.terms.layout:
            raise FormatError("it is not the layout that the terms name", place=LAYOUT_FILE)
        return layout

    def _structure(self, manifest: Manifest) -> Iterator[Check]:
        found = list(chain.faults(manifest))
        for rule in chain.RULES:
            broken = [fault for fault in found if fault.check == rule]
            for fault in broken:
                yield Check(rule, Status.FAILED, fault.detail, shard=fault.shard)
            if not broken:
                yield Check(rule, Status.PASSED, counted(len(manifest.shards), "shard"))

    def _wait_for(self, marks: Marks) -> None:
        """Wait until all marks are read, and say so; what the listener fails with comes later."""
        try:
            while not self._reading.is_done(_WAIT):
                self._tell("reading marks", marks.done, marks.total)
        except OSError as error:
            self._unheard = self._unheard or error
            self._reading.join()

    def _marks(self, marks: Marks) -> Iterator[Check]:
        """Every mark, where this part of a proof shows any."""
        if self.bundle and self.bundle.kind == "public":
            detail = "the marks were not checked, since a public bundle shows no nonce"
            advice = "Ask the prover for a disclosure, or for the verifier's bundle."
            yield Check("mark", Status.UNDECIDED, detail, advice=advice)
        else:
            yield from marks.checks()

    def _weights(
        self,
        folder: ProofFolder,
        manifest: Manifest,
        carrier: Carrier,
        sound: files.Files,
        hashers: Hashers,
        model: Path | None,
    ) -> Iterator[Check]:
        """Roots of the stored checkpoints, what levels make of them, and a delivered file."""
        stored, layout = history.stored(manifest), carrier.layout
        bench = accuracy.Bench(manifest, layout, self._task, self._policy)
        yield from bench.problems()
        levels = self._effort(folder, manifest, carrier)
        yield from levels.opening()
        to_test = set(self._policy.shards_to_test([x for x in stored if x]) if bench.ready else ())
        seen: set[int] = set()
        try:
            kept = history.checkpoints(folder, manifest, layout, sound=sound)
            last = {len(manifest.shards)} if model else set()
            looked_at = set(stored) if levels.looking else to_test | last
            held = hashers.holding and not levels.looking
            spare = bench.spare(len(to_test)) if held else None
            walk = walking.seen(
                kept,
                hashers,
                looked_at=looked_at,
                keeping=levels.looking,
                longer=spare is not None,
                threads=self._policy.threads,
            )
            pairs = bench.loaded(walk, to_test, spare) if spare else ((one, None) for one in walk)
            # Closed before the hashers are, whatever happens.
            with contextlib.closing(walk), contextlib.closing(pairs):
                for done, (one, loaded) in enumerate(pairs):
                    if self._reading.error:
                        return
                    self._tell("testing weights", done, len(stored))
                    seen.add(one.number)
                    root = self._root(manifest, one)
                    yield root
                    if root.status is Status.PASSED:
                        yield from levels.see(one.number, one.checkpoint)
                        if one.number in to_test:
                            yield from bench.test(one, loaded)
                    if model and one.number == len(manifest.shards):
                        yield self._delivered(model, one, root)
        except PoloError as error:
            yield problem("root", error)
        yield from levels.closing()
        for number in stored:
            if number not in seen:
                detail = "the stored weights could not be read, so they were not checked"
                yield Check("root", Status.UNDECIDED, detail, shard=number)
        if len(manifest.shards) not in seen:
            for name in ("root", "delivered") if model else ("root",):
                detail = "the last checkpoint is not here, so there is no model to speak of"
                yield Check(name, Status.UNDECIDED, detail, shard=len(manifest.shards))

    def _effort(self, folder: ProofFolder, manifest: Manifest, carrier: Carrier) -> Effort:
        """The levels of effort that the terms ask for."""
        asked = self._asked()
        if not asked:
            return Effort({})
        try:
            task, _ = accuracy.model_of(manifest, carrier.layout, self._task)
            return effort_of(
                folder, manifest, carrier, self._nonces, task, self._request, self._tell
            )
        except Exception as error:  # The task is the verifier's own and may fail as it likes.
            found = accuracy.obstacle("evidence", error)
            return Effort({}, tuple(replace(found, level=level) for level in asked))

    def _delivered(self, model: Path, last: walking.Seen, root: Check) -> Check:
        """Whether a file is the last checkpoint, if that is what it must be."""
        if root.status is not Status.PASSED:
            detail = "the last checkpoint is not that of the chain, so nothing is compared with it"
            return Check("delivered", Status.UNDECIDED, detail, place=str(model))
        found = delivered.compare(model, last.checkpoint)
        if isinstance(last.checkpoint, HeldCheckpoint):
            return found
        again = commit(last.checkpoint, threads=self._policy.threads).root
        detail = "the last checkpoint changed while it was verified"
        return found if again == last.root else Check("delivered", Status.FAILED, detail)

    def _root(self, manifest: Manifest, one: walking.Seen) -> Check:
        if isinstance(one.root, PoloError):
            return problem("root", one.root, shard=one.number)
        same = one.root == manifest.root_before(one.number + 1)
        return Check(
            "root",
            Status.PASSED if same else Status.FAILED,
            f"root {one.root.hex()[:16]}…" if same else "the weights are not those of the chain",
            shard=one.number,
        )

    def _start(self, manifest: Manifest, layout: Layout) -> Iterator[Check]:
        """How W_0 came about."""
        kind = manifest.terms.start.kind
        if kind == "free":
            detail = "free: nothing is claimed about the start; it may have been trained before"
            yield Check("start", Status.NOTE, detail)
        elif kind == "parent":
            yield from _parent(manifest)
        else:
            try:
                _, model = accuracy.model_of(manifest, layout, self._task)
                found = list(start.check(manifest, model, threads=self._policy.threads))
            except Exception as error:  # The task is the verifier's own and may fail as it likes.
                found = [accuracy.obstacle("start", error)]
            yield from found

    def _base(self, manifest: Manifest, layout: Layout, base: bytes) -> Check:
        """Whether the verifier's own task has the base that the terms name."""
        root = f"{base.hex()[:16]}…"
        if self._shown is not None or (self._policy.accuracy == "none" and not self._asked()):
            detail = f"the proof is of an adapter on the base {root}, which was not looked at"
            return Check("base", Status.NOTE, detail)
        try:
            accuracy.model_of(manifest, layout, self._task)
        except Exception as error:  # The task is the verifier's own and may fail as it likes.
            return accuracy.obstacle("base", error)
        return Check("base", Status.PASSED, f"the task's own base is {root}, as the terms say")

    def _asked(self) -> list[str]:
        """Levels of effort that the terms ask for and that are checked here."""
        return [level for level in self.levels if level in KNOWN]

    def _remarks(self, manifest: Manifest) -> Iterator[Check]:
        """What a reader should know, and what this release cannot check."""
        terms = manifest.terms
        kept = sum(1 for number in history.stored(manifest) if number)
        detail = f"{kept} of {len(manifest.shards)} checkpoints are here; accuracy of the others "
        detail += "cannot be tested, and offline they may never have existed"
        if self._shown is not None:
            detail = "this bundle holds no weights, so roots and accuracy were not checked"
            yield Check("history", Status.NOTE, detail)
        elif kept == len(manifest.shards):
            yield Check("history", Status.NOTE, "every shard's checkpoint is here")
        elif terms.history == "all":
            yield Check("history", Status.FAILED, f"the terms ask for all checkpoints; {detail}")
        else:
            yield Check("history", Status.NOTE, detail)
        yield from self._streamed(terms, whole=kept == len(manifest.shards))
        if not manifest.finished:
            yield Check("closing", Status.NOTE, "the prover has not closed the proof yet")
        elif manifest.outside:
            detail = (
                f"{manifest.outside} optimizer steps after the last shard are outside the proof"
            )
            yield Check("closing", Status.NOTE, detail)
        yield from self._unchecked(manifest)

    def _streamed(self, terms: Terms, *, whole: bool) -> Iterator[Check]:
        """What a registry was to see of checkpoints that need not be here."""
        if terms.history == "streaming" and "receipts" in self.levels:
            detail = "streaming: each receipt says that the registry had the shard's opening first"
            yield Check("history", Status.NOTE, f"{detail}; that is its word")
        elif terms.history in ("streaming", "after-close") and not whole:
            detail = f"{terms.history} history: what the registry saw of the checkpoints that are "
            advice = "Ask the registry for its verdict, or the prover for all checkpoints."
            yield Check("history", Status.UNDECIDED, f"{detail}not here is not here", advice=advice)

    def _unchecked(self, manifest: Manifest) -> Iterator[Check]:
        """Levels that the terms ask for and that were not looked at."""
        for level in (item.level for item in manifest.terms.evidence[1:]):
            if self._earlier:
                detail = f"the earlier owner's terms asked for {level}, which was not checked again"
                yield Check("evidence", Status.NOTE, detail, level=level)
            elif level not in CHECKED:
                detail = f"the terms ask for {level}, which this release cannot check"
                advice = "Use a release of PoLO that knows this level."
                yield Check("evidence", Status.UNDECIDED, detail, advice=advice, level=level)
            elif self._shown is not None:
                detail = f"the terms ask for {level}, which only a whole proof shows"
                advice = "Ask the prover for the verifier's bundle."
                yield Check("evidence", Status.NOTE, detail, advice=advice)


def _made(checks: Iterator[Check]) -> Iterator[Check]:
    """The same checks, made now; what the system breaks them off with comes at their end."""
    found, broken = list[Check](), list[OSError]()
    try:
        found.extend(checks)
    except OSError as error:
        broken.append(error)

    def told() -> Iterator[Check]:
        yield from found
        for error in broken:
            raise error

    return told()


def _parent(manifest: Manifest) -> Iterator[Check]:
    """A start that the terms name by its root."""
    if manifest.start.root != manifest.terms.start.parent:
        detail = "the chain does not start from the model that the terms name"
        yield Check("start", Status.FAILED, detail)
        return
    root = manifest.start.root.hex()[:16]
    detail = f"parent: it starts from {root}…, as the terms ask; effort counts from there on"
    yield Check("start", Status.PASSED, detail)
    if manifest.transfer is None:
        detail = "the model was somebody's before; no transfer shows that they handed it on"
        yield Check("start", Status.NOTE, detail)
