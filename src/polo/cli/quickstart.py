"""`polo quickstart`: the main job in small, and what the proof withstands."""

import os
import shutil
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from polo.cli.output import Flag, print_json, progress_bar
from polo.errors import MissingError, StoreError

if TYPE_CHECKING:
    import torch
    from rich.console import Console

    from polo.protocol.challenge import Challenge
    from polo.receipts import OfflineEnrolment
    from polo.verifier import Verdict

EPOCHS = 10
BITS = 256
BATCH = 64
LEARNING_RATE = 0.02
SEGMENT = 2
DRAWS = 36
TOP = 2
FORGED_SHARDS = 6
PRUNED = 0.3
MADE = (
    "issuer.key",
    "issuer.pub",
    "trainer.key",
    "trainer.pub",
    "report.html",
    "stolen.safetensors",
    "unmarked.safetensors",
    "train.safetensors",
    "challenge.json",
)
MADE_FOLDERS = ("data", "enrolment", "proof", "proof.state", "answer")


def quickstart(
    *,
    dir: Path = Path("polo-quickstart"),
    force: Flag = False,
    json: Flag = False,
) -> int:
    """Train, prove, verify and attack a small model, in less than a minute.

    Makes the keys of an issuer and a trainer, enrols the trainer, trains a small convolutional
    network on real handwritten digits with a chain of marks, draws steps of the training and runs
    them again, verifies the proof, and shows what it withstands and what it does not.

    Examples:
    polo quickstart

    polo quickstart --dir first

    Exit code 0 if the proof is accepted, as it should be; otherwise that of the verdict.

    Parameters
    ----------
    dir
        Folder for everything that is made.
    force
        Replace what an earlier quickstart made there.
    json
        Print JSON at the end, and nothing before.
    """
    from rich.console import Console

    console = Console(highlight=False, quiet=json, soft_wrap=True)
    console.print("[bold]PoLO quickstart[/]: two parties, one model, one proof\n")
    _check_installed()
    _make_room(dir, force)
    play = _Play(dir, console)
    verdict = play.run()
    if json:
        print_json(play.results)
    return int(verdict.outcome)


@dataclass
class _Play:
    """The quickstart from curtain to curtain."""

    folder: Path
    console: "Console"
    results: dict[str, Any] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)

    def run(self) -> "Verdict":
        """Enrol, train twice, verify, attack."""
        import torch

        from polo.tasks.digits import Digits

        # So small a network is trained fastest by one thread, above all on a busy machine.
        torch.set_num_threads(1)
        self.task: Digits = Digits()
        issued = self._enrol()
        total = len(self.task.train_data[1])
        self.console.print(f"training {EPOCHS} epochs on {total} real digits, without PoLO …")
        plain, wrong_plain = self._train_plain()
        self.console.print(f"training {EPOCHS} epochs from the same start, with PoLO …")
        model, wrong = self._train_proved(issued)
        self._answer(self._draw())
        self.console.print("verifying, newest shard first, and running the segments again …\n")
        verdict = self._verify()
        self._show(verdict, wrong_plain, wrong)
        self.results = {
            "outcome": verdict.outcome.name.lower(),
            "shards": int(verdict.facts.get("shards", 0)),
            "bits": BITS,
            "seconds": self.seconds,
            "test_images": len(self.task.test_data[1]),
            "wrong_without_polo": wrong_plain,
            "wrong_with_polo": wrong,
            "scenes": self._scenes(model, plain),
        }
        self._goodbye()
        return verdict

    def _enrol(self) -> "OfflineEnrolment":
        from safetensors.numpy import save_file

        from polo import enrolment
        from polo.evidence.replay.data import DataSource
        from polo.evidence.replay.recipe import Recipe
        from polo.keys import Identity, save_public

        self.issuer, self.trainer = Identity.generate(), Identity.generate()
        for name, identity in (("issuer", self.issuer), ("trainer", self.trainer)):
            identity.save(self.folder / f"{name}.key")
            save_public(identity.public_key, self.folder / f"{name}.pub")
        columns = self.task.train_columns()
        save_file(columns, self.folder / "train.safetensors")
        self.data = DataSource.create(self.folder / "data", columns)
        self.recipe = Recipe(
            samples=self.data.samples,
            batch=BATCH,
            rate=LEARNING_RATE,
            every=SEGMENT,
            draws=DRAWS,
            top=TOP,
            seals=EPOCHS,
        )
        steps = self.recipe.steps_per_pass
        self.terms = enrolment.make_terms(
            self.task,
            bits=BITS,
            shards=EPOCHS,
            fewest_steps=steps,
            start="derived",
            progress=True,
            replay=self.recipe,
            data=self.data.root,
        )
        issued = enrolment.enrol(self.terms, identity=self.trainer.public_key, issuer=self.issuer)
        issued.save(self.folder / "enrolment")
        self.console.print(
            f"the issuer signs terms for the trainer: marks of {BITS} bits, at most {EPOCHS} "
            f"shards of at least {steps} steps, a drawn start, and levels chain, progress and "
            "replay"
        )
        self.issued = issued
        return issued

    def _fresh(self) -> "tuple[torch.nn.Module, torch.optim.Optimizer]":
        """The start that the enrolment fixes, and a new optimizer."""
        from polo.evidence.start import draw_start

        model = self.task.build_model()
        draw_start(model, self.issued)
        return model, self.recipe.optimizer(model)

    def _wrong(self, model: "torch.nn.Module") -> int:
        total = len(self.task.test_data[1])
        return total - round(self.task.evaluate(model) * total)

    def _train_plain(self) -> "tuple[torch.nn.Module, int]":
        # The first pass through torch's kernels is slow and belongs to neither run.
        self.task.train_epoch(*self._fresh(), BATCH)
        model, optimizer = self._fresh()
        began = time.perf_counter()
        for _ in range(EPOCHS):
            self.task.train_epoch(model, optimizer, BATCH)
            self.task.evaluate(model)
        self.seconds["training without PoLO"] = time.perf_counter() - began
        return model, self._wrong(model)

    def _train_proved(self, issued: "OfflineEnrolment") -> "tuple[torch.nn.Module, int]":
        from polo.prover import Prover

        model, optimizer = self._fresh()
        began = time.perf_counter()
        prover = Prover(issued, key=self.trainer, store=self.folder / "proof", data=self.data)
        with progress_bar() as tell, prover.attach(model, optimizer):
            for epoch in range(EPOCHS):
                tell("training", epoch, EPOCHS)
                for indices in prover.sampler:
                    self.task.train_step(model, optimizer, self.data.batch(indices))
                prover.end_epoch(evaluate=lambda: self.task.evaluate(model))
        prover.finish()
        self.seconds["training with PoLO"] = time.perf_counter() - began
        self.seconds["embedding"] = prover.timings.embedding
        self.seconds["recording"] = prover.timings.recording
        self.seconds["sealing"] = prover.timings.sealing
        return model, self._wrong(model)

    def _draw(self) -> "Challenge":
        """What the verifier wants to see again."""
        from polo.evidence.replay import challenge

        drawn = challenge.draw(self.folder / "proof")
        challenge.save(drawn, self.folder / "challenge.json")
        self.console.print(
            f"the verifier draws {len(drawn.segments)} segments of {SEGMENT} steps and "
            f"{len(drawn.sealings)} sealings to see again …"
        )
        self.challenge = drawn
        return drawn

    def _answer(self, drawn: "Challenge") -> None:
        """What the trainer shows of them, computed again."""
        from polo.evidence.replay.answer import answer

        began = time.perf_counter()
        with progress_bar() as tell:
            answer(
                self.folder / "proof",
                drawn,
                task=self.task,
                data=self.data,
                key=self.trainer,
                out=self.folder / "answer",
                listener=tell,
            )
        self.seconds["answering"] = time.perf_counter() - began

    def _verify(self) -> "Verdict":
        from polo.verifier import verify
        from polo.verifier.report import render

        began = time.perf_counter()
        with progress_bar() as tell:
            verdict = verify(
                self.folder / "proof",
                trust=self.folder / "issuer.pub",
                task=self.task,
                challenge=self.challenge,
                answer=self.folder / "answer",
                listener=tell,
            )
        self.seconds["verifying"] = time.perf_counter() - began
        (self.folder / "report.html").write_text(render(verdict), encoding="utf-8")
        return verdict

    def _show(self, verdict: "Verdict", wrong_plain: int, wrong: int) -> None:
        from rich.table import Table

        from polo.verifier.terminal import show

        show(verdict, self.console)
        took = {name: f"{seconds:.2f} s" for name, seconds in self.seconds.items()}
        table = Table("", "without PoLO", "with PoLO", box=None, padding=(0, 3))
        table.add_row("training", took["training without PoLO"], took["training with PoLO"])
        table.add_row("  of it embedding", "–", took["embedding"])
        table.add_row("  of it recording", "–", took["recording"])
        table.add_row("  of it sealing", "–", took["sealing"])
        table.add_row("answering the draw", "–", took["answering"])
        table.add_row("verifying", "–", took["verifying"])
        total = len(self.task.test_data[1])
        table.add_row(f"wrong of {total} test digits", str(wrong_plain), str(wrong))
        self.console.print("\n", table, "\n")

    def _scenes(self, model: "torch.nn.Module", plain: "torch.nn.Module") -> list[dict[str, Any]]:
        from polo.cli import scenes

        proof = self.folder / "proof"
        self.console.print("[bold]What if …[/]")
        with tempfile.TemporaryDirectory(prefix="polo-scenes-") as temporary:
            out = Path(temporary)
            return [
                self._tampering(
                    "one bit of one weight is flipped, and everything signed again",
                    scenes.flip_weight(proof, out / "flipped", self.trainer, 4),
                ),
                self._tampering(
                    "two shards are swapped, and everything signed again",
                    scenes.swap_shards(proof, out / "swapped", self.trainer, 2),
                ),
                *self._ownership(model, plain),
                # The forger edits the model in place, so this scene comes last.
                self._forgery(model, out / "forged"),
            ]

    def _ownership(
        self, model: "torch.nn.Module", plain: "torch.nn.Module"
    ) -> list[dict[str, Any]]:
        """A thief's copy is named as the trainer's; an unmarked model is nobody's."""
        from polo.cli import scenes

        stolen = self.folder / "stolen.safetensors"
        copy = scenes.steal(
            model,
            stolen,
            train=lambda copy: self.task.train_epoch(
                copy, self.recipe.changed(rate=LEARNING_RATE / 4).optimizer(copy), BATCH
            ),
            pruned=PRUNED,
        )
        unmarked = self.folder / "unmarked.safetensors"
        scenes.save(plain, unmarked)
        title = (
            f"a thief fine-tunes the model for an epoch, prunes {PRUNED:.0%} and saves it in "
            "bfloat16"
        )
        return [
            self._identified(title, stolen, self._wrong(copy)),
            self._identified("the same network, trained without PoLO", unmarked, None),
        ]

    def _identified(self, title: str, path: Path, wrong: int | None) -> dict[str, Any]:
        from polo.ownership import identify

        result = identify(path, [self.folder / "proof"], trust=self.issuer.public_key)
        claim = result.claims[0]
        self.console.print(f"[green]{title}[/]")
        said = claim.sentence().replace(f"{self.trainer.id[:16]}…", "the trainer")
        self.console.print(f"    {said}")
        if wrong is not None:
            total = len(self.task.test_data[1])
            self.console.print(f"    (the copy is wrong on {wrong} of {total} test digits)")
        return {
            "scene": title,
            "outcome": claim.finding.name.lower(),
            "log2_p": claim.log2_p,
            "eta": claim.eta,
        }

    def _tampering(self, title: str, proof: Path) -> dict[str, Any]:
        """A proof that was changed: rejected, and the place is named."""
        from polo.verifier import Status, verify

        verdict = verify(proof, trust=self.issuer.public_key, task=self.task)
        found = next(verdict.of(Status.FAILED), None)
        place = found.sentence() if found else "no check"
        self.console.print(f"[{'green' if found else 'red'}]{title}[/]")
        self.console.print(f"    {verdict.outcome.words} at {place}")
        return {"scene": title, "outcome": verdict.outcome.name.lower(), "place": place}

    def _forgery(self, model: "torch.nn.Module", out: Path) -> dict[str, Any]:
        """A chain made up without training: it passes level chain, and fails the levels above."""
        from polo import enrolment
        from polo.cli import scenes
        from polo.evidence.replay import challenge
        from polo.keys import Identity
        from polo.verifier import Status, verify

        thief = Identity.generate()
        forged = scenes.forge(
            model,
            enrolment.enrol(self.terms, identity=thief.public_key, issuer=self.issuer),
            thief,
            out,
            shards=FORGED_SHARDS,
            evaluate=lambda: self.task.evaluate(model),
        )
        assert forged.alibi
        drawn = challenge.draw(out)
        verdict = verify(
            out,
            trust=self.issuer.public_key,
            task=self.task,
            challenge=drawn,
            answer=forged.alibi.answer(
                drawn,
                out.with_name("alibi"),
                data=self.data,
                key=thief,
                master=forged.master,
            ),
        )
        failed = list(verdict.of(Status.FAILED))
        refused = {check.level: check.sentence() for check in reversed(failed)}
        each = 1000 * forged.seconds / forged.shards
        title = (
            f"a thief edits the finished model {forged.shards} times, never trains, and shows "
            "states that it made up"
        )
        self.console.print(f"[{'green' if failed else 'red'}]{title}[/]")
        for level in sorted(refused):
            self.console.print(f"    REJECTED at level {level}: {refused[level]}", markup=False)
        alone = "would have been REJECTED" if "chain" in refused else "would have ACCEPTED it"
        self.console.print(
            f"    [yellow]level chain alone {alone}, forged in {each:.0f} ms a shard: the chain "
            "shows order and ownership, not effort[/]\n"
            f"    (who came first? {self._containment(out)})\n"
        )
        return {
            "scene": title,
            "outcome": verdict.outcome.name.lower(),
            "refused_at": sorted(refused),
            "reasons": refused,
            "milliseconds_per_shard": each,
        }

    def _containment(self, forged: Path) -> str:
        """What `polo compare` says about the trainer's chain and a forged one."""
        from polo.ownership import Order, compare

        found = compare(self.folder / "proof", forged, trust=self.issuer.public_key)
        if found.order is Order.FIRST:
            return "polo compare: the trainer; the trainer's marks are in the thief's checkpoints"
        return f"polo compare: {found.order.value}"

    def _goodbye(self) -> None:
        polo = _program()
        for line in (
            "Now try",
            f"    {polo} verify {self.folder}/proof --trust {self.folder}/issuer.pub "
            f"--challenge {self.folder}/challenge.json --answer {self.folder}/answer",
            f"    {polo} show {self.folder}/proof",
            f"    {polo} identify {self.folder}/stolen.safetensors --proof {self.folder}/proof "
            f"--trust {self.folder}/issuer.pub",
            f"    {polo} validate --task digits --bits 1024",
            f"and open {self.folder}/report.html in a browser",
        ):
            self.console.print(line, markup=False)


def _program() -> str:
    """How to call this program from here: by name if it is on the path, else by its file."""
    called = Path(sys.argv[0])
    if called.name != "polo" or shutil.which("polo") == str(called.absolute()):
        return "polo"
    return os.path.relpath(called)


def _make_room(folder: Path, force: bool) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    there = [name for name in (*MADE, *MADE_FOLDERS) if (folder / name).exists()]
    if there and not force:
        raise StoreError(
            f"{there[0]} is there already",
            place=str(folder),
            advice="Give another --dir, or --force to replace what an earlier quickstart made.",
        )
    for name in MADE:
        (folder / name).unlink(missing_ok=True)
    for name in MADE_FOLDERS:
        shutil.rmtree(folder / name, ignore_errors=True)


def _check_installed() -> None:
    try:
        import sklearn  # noqa: F401
        import torch  # noqa: F401
    except ImportError as error:
        raise MissingError(
            f"the quickstart needs torch and scikit-learn: {error}",
            advice="pip install 'polo-proof[quickstart]'",
        ) from error
