"""`polo submit`: what a run that crashed or was cut off left to do at its registry."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from polo.cli.keys import passphrase_of
from polo.cli.live import day
from polo.cli.output import Flag, print_json, progress_bar
from polo.errors import SignatureError, StoreError

if TYPE_CHECKING:
    from polo.client.client import Client
    from polo.client.enrolled import LiveEnrolment
    from polo.keys import Identity
    from polo.protocol.records import Manifest
    from polo.prover.answering import Answering

_CODES = {"accepted": 0, "rejected": 1}


def submit(
    proof: Path,
    /,
    *,
    key: Path,
    asker: Annotated[Path | None, Parameter(name="--as")] = None,
    registry: str | None = None,
    close: Flag = False,
    unwitnessed: Flag = False,
    wait: float = 3600.0,
    data: Path | None = None,
    arrays: Path | None = None,
    task: str | None = None,
    device: str | None = None,
    report: Path | None = None,
    no_verify: Flag = False,
    passphrase: Flag = False,
    json: Flag = False,
) -> int:
    """Hand a proof in at its registry: what is missing of receipts, the close, answers, verdict.

    Examples:
    polo submit proof --key alice.key

    polo submit proof --key alice.key --close --report report.html

    It does what a run that crashed or was cut off left to do, and can be repeated.
    Exit code 0 accepted or nothing left to do, 1 rejected, 2 could not be decided
    or done.

    Parameters
    ----------
    proof
        Your proof; what is private must lie beside it.
    key
        Your private key, with which it was trained.
    asker
        The key that took its place at the registry since (polo identity rotate).
    registry
        Address of the registry, if it is another than when it was trained.
    close
        Close the chain although training did not finish: it cannot be gone on with then.
    unwitnessed
        Close the chain although the witnesses that the terms name have not cosigned: nobody can
        accept it then.
    wait
        Most seconds to wait for a receipt, for witnesses, and for the verdict.
    data
        Folder that polo data made, to answer a replay challenge.
    arrays
        The training data themselves, to answer a replay challenge.
    task
        The task, if it is not the registered one that the terms name.
    device
        Where to compute an answer: cpu or cuda; by default where it was trained.
    report
        Write the registry's report of its verification here.
    no_verify
        Do not ask for a verification.
    passphrase
        Your key is protected: ask, or take POLO_PASSPHRASE.
    json
        Print JSON.
    """
    from polo.client.enrolled import LiveEnrolment
    from polo.keys import Identity

    if report and report.exists():
        raise StoreError("is there already", place=str(report), advice="Give a new file.")
    signer = Identity.load(key, passphrase_of() if passphrase else None)
    enrolment = LiveEnrolment.of_proof(proof, registry)
    if signer.public_key != enrolment.record.identity:
        raise SignatureError(
            "belongs to another key",
            place=str(proof),
            advice="Give the key that it was trained with: --key",
        )
    caller = Identity.load(asker, passphrase_of() if passphrase else None) if asker else signer
    errand = _Errand(proof, enrolment, signer, caller, say=not json, wait=wait)
    try:
        if data is not None and arrays is not None:
            errand.prepare(data, arrays, task, device)
        if not errand.hand_in(close=close, unwitnessed=unwitnessed):
            return _ended({"state": "open"}, json)
        left = errand.answer(data, arrays, task, device)
        if left or no_verify:
            return _ended({"state": "closed", "challenges": left}, json, code=2 if left else 0)
        done = errand.verify(report)
    finally:
        errand.close()
    return _ended(done, json, code=_CODES.get(str(done.get("outcome")), 2))


class _Errand:
    """One visit to the registry, with one proof."""

    def __init__(
        self,
        proof: Path,
        enrolment: "LiveEnrolment",
        signer: "Identity",
        caller: "Identity",
        *,
        say: bool,
        wait: float,
    ) -> None:
        from polo.storage.folder import ProofFolder
        from polo.storage.writer import ProofWriter

        self._proof = proof
        self._enrolment = enrolment
        self._signer = signer
        self._print = print if say else lambda *_: None
        self._wait = wait
        retention = ProofFolder(proof).manifest().retention
        self._writer: ProofWriter = ProofWriter(proof, signer, retention)
        self._source = enrolment.source(signer, asker=caller)
        self._client: Client = enrolment.client(caller)
        self._answering: Answering | None = None

    def close(self) -> None:
        """Let go of proof and registry."""
        self._source.close()
        self._client.close()
        self._writer.close()

    def prepare(self, data: Path, arrays: Path, task: str | None, device: str | None) -> None:
        """Be ready to run steps of the newest shard again, if they are drawn before its receipt."""
        from polo.cli.data import load_arrays
        from polo.cli.devices import checked_device
        from polo.cli.tasks import load_task
        from polo.evidence.receipts.rules import replays
        from polo.evidence.replay.data import DataSource
        from polo.prover.answering import Answering

        terms = self._manifest.terms
        if replays(terms):
            source = DataSource.load(data.parent if data.is_file() else data, load_arrays(arrays))
            own = load_task(task or terms.task.name)
            self._answering = Answering(
                self._proof, own, source, self._signer, checked_device(device)
            )

    def hand_in(self, *, close: bool, unwitnessed: bool) -> bool:
        """Get the last receipt and close the chain; whether it is closed now."""
        from polo.client import closing
        from polo.client.submitting import commit_open

        self._client.enrolment(self._enrolment.id)  # One that is away is said now, not in an hour.
        with progress_bar() as tell:
            tell("waiting for the last receipt", 0, 1)
            running = self._answering
            if commit_open(
                self._writer,
                self._source,
                seconds=self._wait,
                respond=running.ask if running else None,
                work=running.work if running else lambda: None,
            ):
                if running:
                    running.clear()
                self._print(f"shard {len(self._manifest.shards)} has its receipt now")
        if not self._manifest.finished:
            if not close:
                self._print(
                    "all sealed shards have their receipts; the proof is not finished: go on with "
                    "training, or close it as it is with --close"
                )
                return False
            self._writer.finish(0)
        self._writer.close()
        with progress_bar() as tell:
            closing.close(
                self._client,
                self._proof,
                self._signer,
                tell,
                wait=self._wait,
                unwitnessed=unwitnessed,
            )
        self._print(
            f"the chain is closed, with {len(self._manifest.shards)} shards; all nonces come from "
            "the registry's secret"
        )
        return True

    def answer(
        self, data: Path | None, arrays: Path | None, task: str | None, device: str | None
    ) -> list[dict[str, Any]]:
        """Answer what is drawn; returns the challenges that are left."""
        from polo.client import closing

        with progress_bar() as tell:
            left = closing.answer_checkpoints(self._client, self._manifest, self._proof, tell)
            if closing.asks_replay(self._manifest):
                drawn = closing.drawn_replays(
                    self._client, self._enrolment.id, tell, seconds=self._wait
                )
                left = [asked for asked in drawn if asked.get("state") == "open"]
        if left and (data is None or arrays is None):
            first = min(int(asked["due"]) for asked in left)
            self._print(
                "the registry has drawn steps to run again: give --data and --arrays to answer. "
                f"Without an answer by {day(first)} the chain has failed"
            )
            return left
        for asked in left:
            assert data is not None
            assert arrays is not None
            self._replay(asked, data, arrays, task, device)
        return []

    def _replay(
        self, asked: dict[str, Any], data: Path, arrays: Path, task: str | None, device: str | None
    ) -> None:
        """Compute the answer to a replay challenge, and send it."""
        import tempfile

        from polo.cli.data import load_arrays
        from polo.cli.devices import checked_device
        from polo.cli.tasks import load_task
        from polo.evidence.replay import answer as answers
        from polo.evidence.replay.data import DataSource
        from polo.protocol.challenge import Challenge
        from polo.storage.answers import pack

        challenge = Challenge.from_json(asked["record"], "challenge")
        source = DataSource.load(data.parent if data.is_file() else data, load_arrays(arrays))
        with tempfile.TemporaryDirectory(prefix="polo-") as temporary, progress_bar() as tell:
            made = answers.answer(
                self._proof,
                challenge,
                task=load_task(task or self._manifest.terms.task.name),
                data=source,
                key=self._signer,
                out=Path(temporary) / "answer",
                device=checked_device(device),
                listener=tell,
            )
            packed = Path(temporary) / "answer.tar"
            pack(made, challenge, packed)
            upload = self._client.upload(
                packed, enrolment=self._enrolment.id, kind="answer", tell=tell
            )
            self._client.answer(str(asked["id"]), upload)
        self._print("the replay challenge is answered")

    def verify(self, report: Path | None) -> dict[str, Any]:
        """Have the chain verified, unless this very proof was accepted; waits for the verdict."""
        from polo.client import submitting

        digest = self._manifest.digest.hex()
        done = submitting.accepted(self._client, self._enrolment.id, digest) or self._verified()
        if report and done.get("report"):
            report.write_bytes(self._client.report(str(done["id"])))
            self._print(f"{report}  the registry's report")
        self._print(f"the registry's verdict: {done.get('outcome') or done.get('progress')}")
        return done

    def _verified(self) -> dict[str, Any]:
        from polo.client import closing, submitting

        with progress_bar() as tell:
            self._await_challenges(lambda words: tell(words, 0, 1))
            upload = submitting.bring_files(self._client, self._enrolment, self._proof, tell)
            number = submitting.verify(self._client, self._enrolment.id, upload)
            return closing.awaited(
                lambda: self._client.verification(number),
                lambda words: tell(f"verifying: {words}", 0, 1),
                seconds=self._wait,
            )

    def _await_challenges(self, tell: Any) -> None:
        """Wait until the registry has judged what was answered; replays it judges by verifying."""
        from polo.client.closing import awaited

        def look() -> dict[str, Any]:
            judging = any(
                asked.get("state") == "open"
                # With a word about it, it could not be checked, and waiting does not help.
                or (asked.get("state") == "answered" and not asked.get("detail"))
                for asked in self._client.challenges(self._enrolment.id)
                if asked.get("kind") == "checkpoint"
            )
            return {"state": "running" if judging else "done", "progress": "judging checkpoints"}

        awaited(look, tell, seconds=self._wait)

    @property
    def _manifest(self) -> "Manifest":
        from polo.storage.folder import ProofFolder

        return ProofFolder(self._proof).manifest()


def _ended(done: dict[str, Any], json: bool, *, code: int = 0) -> int:
    if json:
        print_json(done)
    return code
