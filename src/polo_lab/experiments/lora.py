"""A pretrained language model, LoRA and PoLO: what marks cost, and whether merging hides them.

Each run trains an adapter shard by shard, verifies the proof, merges the adapter into the base and
looks for its marks there, in float32 and in bfloat16. The adapter of a training without PoLO is
looked at, too: nobody may be named there. Every run is one line of JSON, written when it is done.
"""

import contextlib
import copy
import json
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

import polo
from polo.integrations.peft import Adapter, save_base
from polo.ownership import Finding
from polo_lab.experiments import machine
from polo_lab.tasks.lora import SmolLM, SmolLMChat, SmolLMWikiText

TASKS: dict[str, type[SmolLM]] = {"chat": SmolLMChat, "wikitext": SmolLMWikiText}
MARGINS = {"ednn": 0.05, "signed": 0.01}
"""How far past zero bits are turned; with more, few bits of a `signed` mark could be turned."""

PLAIN = "plain"
BLOCK = 64


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
    steps: int = 20
    batch: int = 4
    rate: float = 2e-3
    seed: int = 0


@dataclass
class Row:
    """One run.

    Attributes:
        task: `wikitext` or `chat`.
        scheme: Scheme of the marks, or `plain` for a training without PoLO.
        bits: Bits of a mark.
        seed: Seed of the run.
        shards: Shards that were sealed.
        steps: Steps of each.
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
    """

    task: str
    scheme: str
    bits: int
    seed: int
    shards: int = 0
    steps: int = 0
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

    @property
    def wrong(self) -> bool:
        """Whether something came out as it must not."""
        if self.scheme == PLAIN:
            return False
        named = all(found["finding"] == "claim" for found in self.merged.values())
        return self.verdict != "accepted" or not named or self.stranger["finding"] == "claim"


def run(
    tasks: Sequence[str],
    schemes: Sequence[str],
    bits: Sequence[int],
    course: Course,
    *,
    out: Path,
) -> int:
    """Measure every combination that is not recorded yet; 1 if one came out as it must not.

    Args:
        tasks: Names of tasks.
        schemes: Names of schemes.
        bits: Bits of marks.
        course: How to train.
        out: JSON lines.
    """
    done = {_key(row) for row in _recorded(out)}
    said = {"command": machine.command(), "course": asdict(course), "time": _now()}
    _write(out, {"run": {**machine.describe(), **said}})
    wrong = 0
    for name in tasks:
        with contextlib.closing(_Bench(name, course)) as bench:
            for scheme in schemes:
                for size in (0,) if scheme == PLAIN else bits:
                    if (name, scheme, size, course.seed) in done:
                        continue
                    row = bench.measure(scheme, size)
                    wrong += row.wrong
                    _write(out, {"row": _rounded(asdict(row))})
                    _tell(row)
    return int(wrong > 0)


class _Bench:
    """One task: its base on disk, an adapter without marks, and runs with them."""

    def __init__(self, name: str, course: Course) -> None:
        self.name, self.course = name, course
        self.task = TASKS[name]()
        self._folder = tempfile.TemporaryDirectory(prefix="polo-lora-")
        self.folder = Path(self._folder.name)
        self.base = self.folder / "base.safetensors"
        self.plain = self._train_plain()

    def close(self) -> None:
        """Remove what was written."""
        self._folder.cleanup()

    def _train_plain(self) -> Row:
        view = self._fresh()
        save_base(view, self.base)
        row = Row(self.name, PLAIN, 0, self.course.seed, steps=self.course.steps)
        row.start = self.task.evaluate(view)
        optimizer = torch.optim.AdamW(view.parameters(), lr=self.course.rate)
        began = time.perf_counter()
        for shard in range(self.course.shards):
            self._train(view, optimizer, shard)
        row.training = (time.perf_counter() - began) / (self.course.shards * self.course.steps)
        row.accuracy = [self.task.evaluate(view)]
        _save_merged(view, torch.float32, self.folder / "stranger.safetensors")
        return row

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
                began = time.perf_counter()
                self._train(view, optimizer, shard)
                training += time.perf_counter() - began
                prover.end_epoch()
        proof = prover.finish()
        steps = self.course.shards * self.course.steps
        sealed = proof.manifest.shards
        row.shards, row.steps = len(sealed), self.course.steps
        row.training, row.pressing = training / steps, prover.timings.embedding / steps
        row.sealing = (prover.timings.sealing - testing) / max(1, self.course.shards)
        row.accuracy = [shard.metrics["accuracy"] / 1e6 for shard in sealed]
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


def _recorded(out: Path) -> Iterator[dict[str, Any]]:
    if not out.exists():
        return
    for line in out.read_text(encoding="utf-8").splitlines():
        try:
            found = json.loads(line)
        except json.JSONDecodeError:
            continue
        if "row" in found:
            yield found["row"]


def _key(row: dict[str, Any]) -> tuple[str, str, int, int]:
    return row["task"], row["scheme"], row["bits"], row["seed"]


def _write(out: Path, line: dict[str, Any]) -> None:
    with out.open("a", encoding="utf-8") as file:
        file.write(json.dumps(line, ensure_ascii=False) + "\n")


def _rounded(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _rounded(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_rounded(item) for item in value]
    return round(value, 4) if isinstance(value, float) else value


def _tell(row: Row) -> None:
    accuracy = row.accuracy[-1] if row.accuracy else 0.0
    found = row.merged.get("float32", {}).get("finding", "–")
    print(
        f"{row.task} {row.scheme} {row.bits}: {row.shards} shards, accuracy {row.start:.4f} → "
        f"{accuracy:.4f}, {row.verdict or '–'}, merged: {found}",
        file=sys.stderr,
    )


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
