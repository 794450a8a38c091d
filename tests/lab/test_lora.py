"""A pretrained language model in the laboratory: its data, its weights, and the experiment."""

import json
import lzma
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

import polo
from polo.errors import FormatError, MissingError
from polo.tasks import Task
from polo.tasks.training import HeldOut, Trainable
from polo_lab.data import text
from polo_lab.experiments import lines, llm, llm_report
from polo_lab.experiments.experiment import Bench
from polo_lab.experiments.lines import DONE, Line, Recording
from polo_lab.models import smollm
from polo_lab.models.shapes import SHAPES, shaped_model, skeleton
from polo_lab.tasks.lora import WINDOW, SmolLMChat, SmolLMWikiText, adapted
from polo_lab.tasks.shaped import ShapedLM

PROSE = (
    "The river rises in the hills above the town and runs south through farmland to the sea. In "
    "spring the snow melts and the water is high; in summer children swim below the old bridge. "
    "The first settlers came in the nineteenth century and built a mill, a church and a school."
)


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder in the form of both data sets, with text that is made up of numbers."""
    generator = np.random.default_rng(0)
    for part in ("train_first1MB", "test"):
        words = " ".join(map(str, generator.integers(0, 100, 4000)))
        with lzma.open(tmp_path / f"wikitext2_raw_{part}.txt.xz", "wt") as file:
            file.write(words)
    turns = [
        [{"sender": "a", "text": " ".join(map(str, row))} for row in talk]
        for talk in generator.integers(0, 100, (40, 3, 12))
    ]
    packed = "\n".join(json.dumps({"turns": talk}) for talk in turns)
    (tmp_path / "chitchat_byu.jsonl").write_text(packed)
    monkeypatch.setenv("POLO_DATA", str(tmp_path))
    monkeypatch.setattr(text, "_DIGESTS", {})
    return tmp_path


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    """A Llama of nine small layers and random weights in the place of the pretrained one."""
    from transformers import LlamaConfig, LlamaForCausalLM

    def build() -> Any:
        settings = LlamaConfig(
            vocab_size=128, hidden_size=64, intermediate_size=64, num_hidden_layers=9,
            num_attention_heads=2, num_key_value_heads=1, tie_word_embeddings=True,
        )  # fmt: skip
        with torch.random.fork_rng():
            torch.manual_seed(3)
            return LlamaForCausalLM(settings).requires_grad_(False).eval()

    letters = SimpleNamespace(encode=lambda said: SimpleNamespace(ids=[ord(c) % 128 for c in said]))
    monkeypatch.setattr(smollm, "base_model", build)
    monkeypatch.setattr(smollm, "tokenizer", lambda: letters)


def test_wikitext_is_read_under_its_original_names_first(data: Path) -> None:
    assert text.wikitext("train").split()[0].isdigit()
    (data / "wikitext-2-raw").mkdir()
    (data / "wikitext-2-raw" / "wiki.train.raw").write_text(" = Title = \n")
    assert text.wikitext("train") == " = Title = \n"


def test_conversations_come_turn_by_turn(data: Path) -> None:
    talks = list(text.chitchat())
    assert len(talks) == 40
    assert all(len(turns) == 3 for turns in talks)


@pytest.mark.parametrize("line", ["[]", "{}", '{"turns": [3]}', "{", '{"turns": 5}'])
def test_what_is_no_conversation_is_refused(data: Path, line: str) -> None:
    (data / "chitchat_byu.jsonl").write_text(line)
    with pytest.raises(FormatError, match="line 1"):
        list(text.chitchat())


def test_broken_files_are_refused(data: Path) -> None:
    (data / "wikitext2_raw_test.txt.xz").write_bytes(b"no archive")
    with pytest.raises(FormatError, match="cannot be unpacked"):
        text.wikitext("test")
    (data / "wikitext2_raw_test.txt").write_bytes(b"\xff\xfe\xff")
    with pytest.raises(FormatError, match="no UTF-8"):
        text.wikitext("test")


def test_without_data_it_is_said_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("POLO_DATA", raising=False)
    with pytest.raises(MissingError, match="WikiText-2 is not here"):
        text.wikitext("train")


def test_rows_of_a_head_come_back_in_order() -> None:
    """llama.cpp's converter cuts each head into halves and puts their rows in turns."""
    heads, size, inputs = 3, 8, 5
    own = np.arange(heads * size * inputs).reshape(heads * size, inputs)
    halves = own.reshape(heads, 2, size // 2, inputs)
    packed = np.stack([halves[:, 0], halves[:, 1]], axis=2).reshape(heads * size, inputs)
    assert (smollm._unturned(packed, heads) == own).all()
    assert not (packed == own).all()


@pytest.mark.parametrize("kind", [SmolLMWikiText, SmolLMChat])
def test_a_task_about_adapters_keeps_to_the_interfaces(data: Path, tiny: None, kind: Any) -> None:
    task = kind()
    assert isinstance(task, Task)
    assert isinstance(task, Trainable)
    assert isinstance(task, HeldOut)
    inputs, labels = task.train_part
    assert inputs.shape == labels.shape == (len(inputs), WINDOW)
    assert torch.equal(inputs[:, 1:], labels[:, :-1])
    seen = {row.numpy().tobytes() for row in inputs}
    assert len(seen) == len(inputs)
    assert not any(row.numpy().tobytes() in seen for row in task.test_part[0])
    view = task.build_model()
    assert 0 <= task.evaluate(view) <= 1
    task.held_out_loss(view).backward()
    trained = [name for name, p in view.named_parameters() if p.grad is not None]
    assert len(trained) == 8 * 2 * 2
    assert polo.capacity_of(view, block=64).objection(1024, 125_000) == ""


@pytest.mark.slow
def test_the_experiment_measures_the_pretrained_model(
    data: Path, tiny: None, tmp_path: Path
) -> None:
    course, bench = llm.Course(shards=2, steps=6), Bench(tmp_path)
    for scheme, bits in ((llm.PLAIN, 0), ("ednn", 512)):
        settings = llm._settings("smollm2-135m", "wikitext", scheme, bits, course)
        made = llm.measure(settings, bench)
        assert made.figures["loss"] > 0
    assert made.figures["verdict"] == "accepted"
    assert made.figures["sealed"] == 2
    assert made.figures["merged"]["float32"]["finding"] == "claim"
    assert made.figures["stranger"]["finding"] == "no_claim"
    assert made.timings["verifying"] > 0


def test_a_run_is_wrong_where_the_stranger_is_named() -> None:
    named = {"finding": "claim", "log2_p": -99.0, "eta": 0.9}
    settings = llm._settings("tiny", "letters", "ednn", 512, llm.Course())
    figures = {"verdict": "accepted", "merged": {"float32": named}}
    other = {**named, "finding": "no_claim"}
    assert not llm.wrong(Line("llm", settings, DONE, {**figures, "stranger": other}))
    assert llm.wrong(Line("llm", settings, DONE, {**figures, "stranger": named}))


@pytest.mark.full
def test_the_pretrained_model_knows_english() -> None:
    """Rows of a head in a wrong order give a perplexity of thousands."""
    model, tokenizer = smollm.base_model(), smollm.tokenizer()
    ids = torch.tensor([tokenizer.encode("The capital of France is").ids])
    with torch.no_grad():
        best = model(ids).logits[0, -1].argmax().item()
        prose = torch.tensor([tokenizer.encode(PROSE).ids])
        loss = model(input_ids=prose, labels=prose).loss
    assert tokenizer.decode([best]) == " Paris"
    assert tokenizer.decode(prose[0].tolist()) == PROSE
    assert loss.exp() < 40
    assert model.lm_head.weight is model.model.embed_tokens.weight
    assert not any(parameter.requires_grad for parameter in model.parameters())


@pytest.mark.full
def test_models_of_a_process_share_the_pretrained_weights() -> None:
    one, other = smollm.base_model(), smollm.base_model()
    assert one.model.norm.weight.data_ptr() == other.model.norm.weight.data_ptr()
    assert one.model.norm.weight is not other.model.norm.weight


@pytest.mark.full
def test_an_adapter_of_the_pretrained_model_is_proved(data: Path, tmp_path: Path) -> None:
    course, bench = llm.Course(shards=2, steps=6), Bench(tmp_path)
    made = llm.measure(llm._settings("smollm2-135m", "chat", "signed", 512, course), bench)
    assert (made.figures["verdict"], made.figures["sealed"]) == ("accepted", 2)
    assert made.figures["merged"]["float32"]["finding"] == "claim"
    assert made.figures["stranger"]["finding"] == "no_claim"


def test_without_the_package_it_is_said_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(smollm, "_PACKAGE", "no_such_package")
    with pytest.raises(MissingError, match="SmolLM2 is not here"):
        smollm.gguf_path()


def test_a_model_in_bfloat16_has_no_other_form() -> None:
    named = {"finding": "claim", "log2_p": -99.0, "eta": 0.9}
    settings = llm._settings("8b", "letters", "ednn", 512, llm.LARGE["8b"])
    figures = {
        "verdict": "accepted", "merged": {"bfloat16": named}, "stranger": {}, "accuracy": [0.1],
        "eta": [1.0], "sealed": 4, "proof_bytes": 10, "loss": 3.0, "start": 0.0,
    }  # fmt: skip
    times = dict.fromkeys(llm._TIMINGS, 1.0)
    line = Line("llm", settings, DONE, figures, times)
    assert not llm.wrong(line)
    [first, *_] = llm_report.tables(Recording([line]))
    cells = dict(zip(first.head, first.rows[0], strict=True))
    assert (cells["η, merged"], cells["η, bf16"], cells["log2 p"]) == ("–", "0.900", "-99")
    assert (cells["owner named"], cells["stranger named"]) == ("1 of 1", "–")
    assert "random weights in the shape of Llama-3.1-8B" in first.words


def test_lines_that_are_recorded_keep_their_settings() -> None:
    known = {line.key for line in lines.read(lines.path_of("llm", lines.FOLDER)).lines}
    assert known <= {lines.key_of(unit) for unit in llm.units(False)}


@pytest.mark.parametrize("package", ["peft", "transformers"])
def test_without_a_package_for_adapters_it_is_said_what_to_do(
    package: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(MissingError, match=package) as caught:
        ShapedLM("tiny").build_model()
    assert f"polo-proof[{package}]" in caught.value.diagnostics()


@pytest.mark.parametrize(("shape", "weights"), [("1.3b", 1_317_277_696), ("8b", 8_030_261_248)])
def test_shapes_have_as_many_weights_as_they_say(shape: str, weights: int) -> None:
    """GPT-Neo-1.3B has 1,315,575,808 weights, Llama-3.1-8B has 8,030,261,248."""
    model, _ = skeleton(shape)
    assert sum(parameter.numel() for parameter in model.parameters()) == weights
    assert {parameter.device.type for parameter in model.parameters()} == {"meta"}


def test_a_shape_whose_head_is_tied_has_one_tensor_for_both(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(SHAPES, "tied", {**SHAPES["tiny"], "tie_word_embeddings": True})
    model: Any = shaped_model("tied")
    assert model.lm_head.weight is model.model.embed_tokens.weight
    other: Any = shaped_model("tiny")
    assert other.lm_head.weight is not other.model.embed_tokens.weight
    view = adapted(model)
    assert torch.isfinite(view(input_ids=torch.zeros(1, 4, dtype=torch.long)).logits).all()


def test_recorded_runs_become_tables() -> None:
    found = {"finding": "claim", "log2_p": -100.0, "eta": 0.9}
    times = {"training": 0.5, "pressing": 0.01, "sealing": 1.0, "verifying": 2.0, "replaying": 30.0}
    times |= {"reading": 0.25, "hashing": 1.5}
    plain = {"start": 0.24, "accuracy": [0.27], "loss": 3.5, "sealed": 0}
    marked = {**plain, "sealed": 2, "accuracy": [0.25, 0.26], "eta": [1.0, 0.99]}
    marked |= {"merged": {"float32": found, "bfloat16": found}, "proof_bytes": 1_000_000}
    marked |= {"stranger": {**found, "finding": "no_claim"}}
    settings = [
        llm._settings("8b", "letters", scheme, bits, llm.Course(steps=20))
        for scheme, bits in ((llm.PLAIN, 0), ("signed", 512))
    ]
    recording = Recording(
        [
            Line("llm", own, DONE, figures, times)
            for own, figures in zip(settings, (plain, marked), strict=True)
        ]
    )
    text = "\n".join(llm_report.sections(recording))
    assert "| 8b | letters | signed | 512 | 2 | 0.2600 | -1.0 points | 0.990 | 0.900 |" in text
    assert "2 of 2 | no |" in text
    assert "random weights in the shape of Llama-3.1-8B" in text
    assert (
        "| 8b | letters | full replay | – | 3.5000 | 60 | 1 | 30.00 s | – | 30.00 s | – |" in text
    )
    assert "| 512 | 3.5000 | 60 | 1 | 33.00 s | 3.60 s | 2.00 s | 0.25 s | 1.50 s |" in text
    assert "| LLaMA-3.1-8B | allenai/wildchat | polo | 512 | 1.1951 | 37.5 % | 81.18 min |" in text
    assert list(llm_report.sections(Recording())) == []
