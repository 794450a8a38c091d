"""The harness: what is run, recorded, resumed and repeated; the command; tables and figures."""

import importlib.metadata
import json
import os
import subprocess
import sys
import threading
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

import polo
from polo.errors import CapacityError, FormatError, MissingError, PoloError
from polo_lab.cli import answer
from polo_lab.experiments import canvas, catalogue, harness, lines, machine, pages, pool, sharing
from polo_lab.experiments.chart import Chart, Series
from polo_lab.experiments.experiment import Bench, Experiment, Measured
from polo_lab.experiments.harness import Asked
from polo_lab.experiments.lines import Line, Recording, Settings
from polo_lab.experiments.origin import origins
from polo_lab.experiments.table import FORMATS, Table
from polo_lab.training import DivergedError


class Sums:
    """An experiment that adds numbers up, and does what its settings say."""

    def __init__(self) -> None:
        self.measured: list[int] = []
        self.broken = False

    def units(self, quick: bool) -> Iterator[Settings]:
        """Two groups of two runs; one of them trimmed."""
        for seed in range(1 if quick else 4):
            yield {"group": seed // 2, "seed": seed}

    def measure(self, settings: Settings, bench: Bench) -> Measured:
        """A number, or what else may come of a run."""
        seed = settings["seed"]
        self.measured.append(seed)
        bench.once("shared", lambda: (bench.folder / f"of {seed}").write_text("x"))
        if seed == 1:
            return Measured({"sum": float("nan")})
        if seed == 2:
            raise CapacityError("does not fit")
        if seed == 3 and self.broken:
            raise RuntimeError(f"no room in {bench.folder}")
        files = sorted(path.name for path in bench.folder.iterdir())
        return Measured({"sum": seed + 1, "files": files}, {"adding": 0.123456789})

    def tables(self, recording: Recording) -> Iterator[Table]:
        """Two tables."""
        rows = [(str(x.settings["seed"]), x.ended) for x in recording.lines]
        yield Table("Sums", ("seed", "sum"), rows)
        yield Table("How many", ("runs",), [(str(len(rows)),)], "All of them.\nNone is left out.")

    def charts(self, recording: Recording) -> list[Chart]:
        """One chart."""
        points = [(float(x.settings["seed"]), x.figures.get("sum")) for x in recording.lines]
        return [Chart("Sums", "seed", "sum", [Series("ours", points)], {"least": 1.0})]


@pytest.fixture
def alone(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs of other tests do not count."""
    monkeypatch.setattr(sharing, "FOLDER", tmp_path_factory.mktemp("running"))


@pytest.fixture
def sums(monkeypatch: pytest.MonkeyPatch, alone: None) -> Sums:
    made = Sums()
    own = Experiment(
        "sums", "sums", made.units, made.measure, made.tables, made.charts, group=("group",)
    )
    monkeypatch.setattr(catalogue, "_MODULES", {"sums": "sums"})
    monkeypatch.setattr(catalogue, "NAMES", ("sums",))
    for module in (catalogue, harness):
        monkeypatch.setattr(module, "find", lambda _: own)
    return made


def run(folder: Path, **asked: object) -> int:
    return harness.run(harness.find("sums"), Asked(folder=folder, **asked))  # type: ignore[arg-type]


def recorded(folder: Path) -> list[dict[str, object]]:
    return [json.loads(text) for text in (folder / "sums.jsonl").read_text().splitlines()]


def test_every_run_is_one_line_with_all_that_belongs_to_it(sums: Sums, tmp_path: Path) -> None:
    assert run(tmp_path) == 0
    found = recorded(tmp_path)
    assert [line["ended"] for line in found] == ["done", "diverged", "refused", "done"]
    first = found[0]
    assert first["settings"] == {"group": 0, "seed": 0}
    assert first["timings"] == {"adding": 0.123457}
    assert first["machine"]["packages"]["torch"]  # type: ignore[index]
    assert found[1]["figures"] == {"sum": None}
    assert found[2]["note"] == "does not fit"


def test_runs_of_a_group_share_a_bench_and_no_other(sums: Sums, tmp_path: Path) -> None:
    run(tmp_path)
    found = recorded(tmp_path)
    assert [line["figures"].get("files") for line in found] == [["of 0"], None, None, ["of 2"]]  # type: ignore[attr-defined]


def test_what_is_recorded_is_not_run_again_unless_asked(sums: Sums, tmp_path: Path) -> None:
    run(tmp_path)
    run(tmp_path)
    assert sums.measured == [0, 1, 2, 3]
    run(tmp_path, rerun=True)
    assert sums.measured == [0, 1, 2, 3, 0, 1, 2, 3]
    assert len(recorded(tmp_path)) == 4, "a repeated run takes the place of the first"


def test_a_run_that_crashes_is_recorded_counts_and_is_tried_again(
    sums: Sums, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sums.broken = True
    assert run(tmp_path) == 1
    last = recorded(tmp_path)[-1]
    assert (last["ended"], last["note"]) == ("crashed", "RuntimeError: no room in …")
    assert "WRONG: group=1 seed=3" in capsys.readouterr().err
    assert answer(["list", "--results", str(tmp_path)]) == 0
    assert "3 of 4 runs" in capsys.readouterr().out
    sums.broken = False
    assert run(tmp_path) == 0
    assert [line["ended"] for line in recorded(tmp_path)][3:] == ["done"]


def test_a_line_that_was_cut_costs_that_run_alone(sums: Sums, tmp_path: Path) -> None:
    run(tmp_path)
    path = tmp_path / "sums.jsonl"
    path.write_text(path.read_text()[:-30])
    run(tmp_path)
    assert sums.measured == [0, 1, 2, 3, 3]
    assert len(recorded(tmp_path)) == 4


def test_broken_lines_are_told_of(
    sums: Sums, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "sums.jsonl"
    lines.add(path, Line("sums", {"group": 0, "seed": 0}, lines.DONE, note="a\u2028b\u0085c"))
    whole = path.read_bytes()
    path.write_bytes(whole + '{"note":"η'.encode()[:-1] + b"\n<<<<<<< ours\n")
    found = lines.read(path)
    assert [line.note for line in found.lines] == ["a\u2028b\u0085c"]
    assert found.broken == 2
    run(tmp_path)
    assert f"{path}: 2 broken lines left out" in capsys.readouterr().err
    assert sums.measured == [1, 2, 3]
    assert lines.read(path).broken == 0
    aside = (tmp_path / "sums.jsonl.broken").read_bytes()
    assert aside.splitlines() == ['{"note":"η'.encode()[:-1], b"<<<<<<< ours"], "to be mended"


def test_a_repetition_that_crashes_is_recorded_beside_the_run(sums: Sums, tmp_path: Path) -> None:
    run(tmp_path)
    sums.broken = True
    for _ in range(2):
        assert run(tmp_path, rerun=True, only={"seed": "3"}) == 1
        kept = [line["ended"] for line in recorded(tmp_path) if line["settings"]["seed"] == 3]
        assert kept == ["done", "crashed"]
    found = lines.read(tmp_path / "sums.jsonl")
    assert [line.ended for line in found.lines][3:] == ["done"]
    sums.broken = False
    assert run(tmp_path, rerun=True, only={"seed": "3"}) == 0
    assert len(recorded(tmp_path)) == 4


def test_where_lines_cannot_be_written_nothing_is_measured(
    sums: Sums, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "sums.jsonl").mkdir()
    for place in (tmp_path / "file", tmp_path):
        assert answer(["run", "sums", "--results", str(place)]) == 2
        told = capsys.readouterr().err
        assert str(place) in told
        assert "Traceback" not in told
    assert sums.measured == []


def test_broken_data_and_packages_that_are_not_here_are_no_result(
    sums: Sums, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("POLO_DATA", str(tmp_path / "data"))
    own = harness.find("sums")

    def broken(settings: Settings, bench: Bench) -> Measured:
        if settings["seed"] == 0:
            raise FormatError("these are not CIFAR-10's", place=f"{tmp_path}/data/a.npz")
        if settings["seed"] == 1:
            raise FormatError("a proof is wrong", place="manifest.json")
        raise ModuleNotFoundError("No module named 'sklearn'", name="sklearn")

    monkeypatch.setattr(harness, "find", lambda _: Experiment(
        "sums", "", own.units, broken, own.tables, group=("group",)
    ))  # fmt: skip
    assert run(tmp_path) == 1
    assert [line["ended"] for line in recorded(tmp_path)] == ["crashed"], "of the proof alone"
    told = capsys.readouterr().err
    assert "data are broken" in told
    assert "the package sklearn is not here" in told


def test_a_line_that_is_no_run_is_named(
    sums: Sums, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for text in (
        '{"settings": {}, "colour": "red"}',
        '{"experiment": "sums", "settings": [1], "ended": "done"}',
        '{"experiment": "sums", "settings": {}, "ended": "done", "figures": "many"}',
        '{"experiment": "sums", "settings": {}, "ended": "done", "machine": 3}',
        '{"settings": {}}',
    ):
        (tmp_path / "sums.jsonl").write_text(f"\n{text}\n")
        assert answer(["table", "sums", "--results", str(tmp_path)]) == 2
        assert "sums.jsonl, line 2: is no recorded run" in capsys.readouterr().err
    (tmp_path / "sums.jsonl").write_text('{"calls": 5}\n')
    assert answer(["table", "sums", "--results", str(tmp_path)]) == 2
    assert "sums.jsonl, line 1: is no list of calls" in capsys.readouterr().err


@pytest.mark.parametrize("settings", [{"seed": 7}, {"group": 1}, {}])
def test_a_line_with_other_settings_is_left_out_told_of_and_kept(
    sums: Sums, settings: Settings, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(tmp_path) == 0
    where = ["--results", str(tmp_path)]
    assert answer(["table", "sums", *where]) == 0
    whole = capsys.readouterr().out
    lines.add(tmp_path / "sums.jsonl", Line("sums", settings, lines.DONE))
    number = len((tmp_path / "sums.jsonl").read_text().splitlines())
    for command in ("table", "figure"):
        assert answer([command, "sums", *where]) == 0
        shown = capsys.readouterr()
        told = f"sums.jsonl, line {number}: left out; runs have other settings"
        assert told in shown.err
        assert command == "figure" or shown.out in whole
    assert run(tmp_path, rerun=True) == 0
    assert recorded(tmp_path)[-1]["settings"] == settings, "it may be of use to somebody"


def test_pages_leave_out_lines_with_other_settings(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, page = tmp_path / "fidelity.jsonl", tmp_path / "out" / "results.md"
    path.write_bytes((lines.FOLDER / path.name).read_bytes())
    write = ["docs", "--results", str(tmp_path), "--out", str(page.parent)]
    assert answer(write) == 0
    whole = page.read_text()
    capsys.readouterr()
    lines.add(path, Line("fidelity", {"pair": "x"}, lines.DONE))
    assert answer(write) == 0
    assert capsys.readouterr().err.count("left out") == 1, "however often the file is read"
    assert page.read_text() == whole
    lines.add(path, Line("fidelity", {"pair": "x", "seed": 0}, lines.DONE))
    assert answer(write) == 0
    assert capsys.readouterr().err.count("left out") == 2


def test_who_is_killed_loses_the_run_under_way_alone(
    sums: Sums, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    measure = sums.measure

    def killed(settings: Settings, bench: Bench) -> Measured:
        if settings["seed"] == 3:
            raise KeyboardInterrupt
        return measure(settings, bench)

    own = harness.find("sums")
    monkeypatch.setattr(harness, "find", lambda _: Experiment(
        "sums", "", own.units, killed, own.tables, group=own.group
    ))  # fmt: skip
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path)
    assert [line.settings["seed"] for line in lines.read(tmp_path / "sums.jsonl").lines] == [
        0,
        1,
        2,
    ]


@pytest.fixture
def no_gpu(sums: Sums, monkeypatch: pytest.MonkeyPatch) -> None:
    """Odd runs need a GPU, and none is here."""
    own = replace(harness.find("sums"), gpu=lambda settings: bool(settings["seed"] % 2))
    for module in (catalogue, harness):
        monkeypatch.setattr(module, "find", lambda _: own)
    monkeypatch.setattr(machine, "has_gpu", lambda: False)


def test_runs_that_need_a_gpu_are_left_to_a_machine_that_has_one(
    sums: Sums,
    no_gpu: None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    where = ["--results", str(tmp_path)]
    assert answer(["run", "sums", *where]) == 1
    assert sums.measured == [0, 2]
    told = capsys.readouterr()
    assert "2 runs of sums not begun: a GPU is needed, and none is here\n" in told.err
    assert "2 runs are left" in told.out
    for name in ("sums", "all"):
        assert answer(["run", name, *where]) == 2
        told = capsys.readouterr()
        assert "2 runs of sums not begun" in told.err
        assert "--anyway" in told.err
    assert sums.measured == [0, 2]
    assert answer(["run", "sums", "--anyway", "--only", "seed=1", *where]) == 0
    monkeypatch.setattr(machine, "has_gpu", lambda: True)
    assert answer(["run", "sums", *where]) == 0
    assert sums.measured == [0, 2, 1, 3]


def test_the_trimmed_form_needs_no_gpu(
    sums: Sums, no_gpu: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = replace(harness.find("sums"), gpu=lambda _: True)
    assert harness.run(own, Asked(quick=True, folder=tmp_path)) == 0
    assert sums.measured == [0]


def test_one_that_needs_a_gpu_keeps_no_other_from_running(
    sums: Sums, no_gpu: None, tmp_path: Path
) -> None:
    both = [replace(harness.find("sums"), gpu=lambda _, need=need: need) for need in (True, False)]
    assert harness.run_all(both, Asked(folder=tmp_path)) == 2
    assert sums.measured == [0, 1, 2, 3]


def test_what_is_said_to_need_a_gpu_does() -> None:
    for name in catalogue.NAMES:
        experiment = catalogue.find(name)
        needs = [experiment.gpu(unit) for unit in experiment.units(False)]
        assert any(needs) == ("GPU" in experiment.needs), name
        spared = any(word in experiment.needs for word in (" for ", "but for"))
        assert all(needs) == (bool(needs) and "GPU" in experiment.needs and not spared), name


def test_missing_data_is_no_result_and_is_said_once(
    sums: Sums, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    own = harness.find("sums")

    def missing(settings: Settings, bench: Bench) -> Measured:
        raise MissingError("CIFAR-10 is not here", advice="bring it")

    monkeypatch.setattr(harness, "find", lambda _: Experiment(
        "sums", "", own.units, missing, own.tables, group=("group",)
    ))  # fmt: skip
    assert run(tmp_path) == 1
    assert not (tmp_path / "sums.jsonl").exists()
    told = capsys.readouterr()
    assert told.err.count("bring it") == 2, "once for each of two groups"
    assert "sums: nothing was done" in told.out
    assert "4 runs are left; run the same command again when what they miss is there" in told.out


def test_a_training_that_diverges_is_recorded_as_such(
    sums: Sums, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = harness.find("sums")

    def diverging(settings: Settings, bench: Bench) -> Measured:
        raise DivergedError("the loss is nan after epoch 1")

    monkeypatch.setattr(harness, "find", lambda _: Experiment(
        "sums", "", own.units, diverging, own.tables
    ))  # fmt: skip
    assert run(tmp_path) == 0
    found = recorded(tmp_path)
    assert {(line["ended"], line["note"]) for line in found} == {
        ("diverged", "the loss is nan after epoch 1")
    }


def test_some_runs_can_be_chosen_and_time_can_be_up(sums: Sums, tmp_path: Path) -> None:
    assert run(tmp_path, only={"seed": "3"}) == 0
    assert sums.measured == [3]
    assert run(tmp_path, minutes=-1.0) == 1
    assert sums.measured == [3]
    run(tmp_path)
    order = [line["settings"]["seed"] for line in recorded(tmp_path)]  # type: ignore[index]
    assert order == [0, 1, 2, 3], "the headline stands first, whenever it was run"


def test_old_calls_stay_in_a_file_that_is_written_again(sums: Sums, tmp_path: Path) -> None:
    call = {"command": "old", "began": "2026-01-01", "machine": {"cpu": "A"}, "workers": 2}
    (tmp_path / "sums.jsonl").write_text(json.dumps({"calls": [call]}) + "\n")
    run(tmp_path)
    assert recorded(tmp_path)[0] == {"calls": [call]}
    [first, *_] = lines.read(tmp_path / "sums.jsonl").sources()
    assert first["command"] == "old"


def test_runs_that_shared_the_machine_say_so(
    sums: Sums, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pool, "measured", lambda measure, work, **_: map(measure, work))
    run(tmp_path, only={"seed": "0"}, workers=8)
    assert recorded(tmp_path)[0]["workers"] == 1, "there was nothing beside it"
    run(tmp_path, only={"seed": "1,2,3"}, workers=2)
    recording = lines.read(tmp_path / "sums.jsonl")
    assert [line.workers for line in recording.lines] == [1, 2, 2, 2]
    assert ["2 processes" in told for told in origins(recording)] == [False, True]


def test_runs_of_other_calls_count(sums: Sums, tmp_path: Path) -> None:
    with sharing.counted():
        run(tmp_path, only={"seed": "0"})
    run(tmp_path, only={"seed": "3"})
    assert [line.workers for line in lines.read(tmp_path / "sums.jsonl").lines] == [2, 0]


def test_whoever_begins_later_counts_and_the_dead_do_not(alone: None) -> None:
    (sharing.FOLDER / "123-dead").write_text("9\n")
    with sharing.counted() as first:
        assert first() == 1
        with sharing.counted() as second:
            assert (first(), second()) == (2, 2)
        with sharing.counted() as third:
            assert third() == 2
        assert first() == 2, "never three at the same time"
    assert [path.name for path in sharing.FOLDER.iterdir()] == ["123-dead"]


def test_only_neighbours_share_a_bench_where_the_order_counts() -> None:
    units = [{"group": group, "seed": seed} for seed, group in enumerate("aabba")]
    own = Experiment("x", "", lambda _: units, None, None, group=("group",))  # type: ignore[arg-type]
    assert [len(group) for group in harness._grouped(own, units)] == [3, 2]
    ordered = replace(own, ordered=True)
    assert [len(group) for group in harness._grouped(ordered, units)] == [2, 2, 1]


def test_the_checkouts_own_version_is_known_without_installing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def missing(name: str) -> str:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "version", missing)
    assert machine._version("polo-proof") == polo.__version__
    assert machine._version("torch") == "not installed"


def test_a_value_with_a_comma_can_be_chosen() -> None:
    chosen = harness.chosen(catalogue.find("comparison"), Asked(only={"method": "polo, chain"}))
    assert {unit["method"] for unit in chosen} == {"polo, chain"}


@pytest.mark.parametrize(
    ("lengths", "workers", "parts"),
    [
        ((5,), 0, [[0, 1, 2, 3, 4]]),
        ((5,), 2, [[0, 2, 4], [1, 3]]),
        ((5,), 9, [[0], [1], [2], [3], [4]]),
        ((2, 6), 4, [[0, 1], [0, 3], [1, 4], [2, 5]]),
        ((1, 1, 1), 2, [[0], [0], [0]]),
        ((), 3, []),
    ],
)
def test_a_bench_is_parted_where_processes_would_be_idle(
    lengths: tuple[int, ...], workers: int, parts: list[list[int]]
) -> None:
    groups = [[{"at": at} for at in range(length)] for length in lengths]
    found = harness._spread(groups, workers)
    assert [[unit["at"] for unit in part] for part in found] == parts


def test_the_command_runs_shows_and_draws(
    sums: Sums, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    where = ["--results", str(tmp_path)]
    assert answer(["table", "sums", "--quick", *where]) == 2
    assert "polo-lab run sums --quick" in capsys.readouterr().err
    assert answer(["run", "sums", "--quick", *where]) == 0
    assert sums.measured == [0]
    assert answer(["run", "sums", *where]) == 0
    assert answer(["list", *where]) == 0
    assert "4 of 4 runs" in capsys.readouterr().out
    assert answer(["table", "sums", *where, "--format", "csv"]) == 0
    assert capsys.readouterr().out.splitlines()[:3] == ["# Sums", "seed,sum", "0,done"]
    assert answer(["run", "sums", "--only", "seed", *where]) == 2
    for form, begin in (("svg", b"<svg"), ("png", b"\x89PNG")):
        assert answer(["figure", "sums", "--format", form, *where]) == 0
        assert (tmp_path / "figures" / f"sums.{form}").read_bytes().startswith(begin)


def test_settings_that_no_run_has_are_named(
    sums: Sums, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    where = ["--results", str(tmp_path)]
    for only, told in (
        (["bits=1"], "its settings are group, seed"),
        (["seed=9"], "seed may be 0, 1, 2, 3"),
        (["seed=0", "group=1"], "seed may be 0, 1, 2, 3; group may be 0, 1"),
        (["seed=0", "seed=1"], "a setting twice"),
    ):
        assert answer(["run", "sums", *where, *(w for one in only for w in ("--only", one))]) == 2
        assert told in capsys.readouterr().err
    assert answer(["run", "all", "--only", "bits=1", *where]) == 2
    assert "no experiment has runs with bits=1" in capsys.readouterr().err
    assert answer(["run", "all", "--only", "seed=0", *where]) == 0
    assert sums.measured == [0]
    assert answer(["run", "sums", "--only", "seed=0,3", "--only", "group=1,2", *where]) == 0
    assert sums.measured == [0, 3]


@pytest.mark.parametrize("option", ["--workers", "--minutes"])
def test_less_than_nothing_is_refused(
    sums: Sums, tmp_path: Path, option: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert answer(["run", "sums", "--results", str(tmp_path), f"{option}=-1"]) == 2
    assert option in capsys.readouterr().err
    assert sums.measured == []


def test_who_stops_it_is_told_that_nothing_is_lost(
    sums: Sums, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def stopped(*_: object) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr(harness, "run", stopped)
    assert answer(["run", "sums", "--results", str(tmp_path)]) == 130
    assert "what was done is recorded" in capsys.readouterr().err


def test_a_process_that_is_killed_is_no_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setattr(pool, "_prepare", os.getpgid)
    with pytest.raises(PoloError, match="a process was killed"):
        list(pool.measured(os._exit, [3, 3], workers=1, deadline=float("inf")))


def test_processes_end_with_whoever_handed_out_the_work(wait_for: Callable[..., None]) -> None:
    code = (
        "import time; from polo_lab.experiments import pool\n"
        "list(pool.measured(time.sleep, [99, 99], workers=2, deadline=float('inf')))"
    )
    with subprocess.Popen([sys.executable, "-c", code]) as parent:
        children = Path(f"/proc/{parent.pid}/task/{parent.pid}/children")
        wait_for(lambda: len(children.read_text().split()) == 3)
        orphans = [Path(f"/proc/{one}") for one in children.read_text().split()]
        parent.kill()
    wait_for(lambda: not any(one.exists() for one in orphans))


def test_an_unknown_experiment_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert answer(["run", "nothing"]) == 2
    assert "there is no experiment nothing" in capsys.readouterr().err


def test_tables_are_escaped() -> None:
    table = Table("50 % of η_ver", ("a|b", "c"), [("x_1 & 2", '3,"4"')])
    assert r"a\|b" in FORMATS["md"](table)
    assert FORMATS["csv"](table).splitlines()[2] == 'x_1 & 2,"3,""4"""'
    latex = FORMATS["latex"](table)
    assert r"x\_1 \& 2" in latex
    assert r"\caption{50 \% of $\eta$\_ver}" in latex


def test_words_and_titles_stand_before_tables_as_comments() -> None:
    table = Table("Sums", ("a", "b"), [("1", "2")], "Of one\nmachine.\n\n50 % of it.")
    csv = FORMATS["csv"](table).splitlines()
    assert csv == ["# Sums", "# Of one", "# machine.", "#", "# 50 % of it.", "a,b", "1,2"]
    latex = FORMATS["latex"](table).splitlines()
    assert latex[:5] == ["% Of one", "% machine.", "%", "% 50 % of it.", r"\begin{table}"]


def test_one_of_several_tables_can_be_shown(
    sums: Sums, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run(tmp_path)
    capsys.readouterr()
    show = ["table", "sums", "--format", "csv", "--results", str(tmp_path)]
    assert answer(show) == 0
    first, second = capsys.readouterr().out.split("\n\n")
    for number, part in (("1", first), ("2", second)):
        assert answer([*show, "--only-table", number]) == 0
        assert capsys.readouterr().out.strip() == part.strip()
    for number in ("0", "3"):
        assert answer([*show, f"--only-table={number}"]) == 2
    assert "sums has 2 tables, and no number 3" in capsys.readouterr().err


def test_where_nothing_can_be_written_one_line_says_so(
    sums: Sums, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run(tmp_path)
    monkeypatch.setattr(catalogue, "NAMES", ())
    monkeypatch.setattr(pages, "results_page", lambda _: "")
    monkeypatch.setattr(pages, "schemes_page", lambda _: "")
    capsys.readouterr()
    for command in (["figure", "sums"], ["docs"]):
        assert answer([*command, "--results", str(tmp_path), "--out", "/proc/x"]) == 2
        assert capsys.readouterr().err == "polo-lab: /proc/x: No such file or directory\n"

    def full(*_: object) -> None:
        raise OSError("no room")

    monkeypatch.setattr(pages, "write", full)
    assert answer(["docs", "--results", str(tmp_path)]) == 2
    assert capsys.readouterr().err == "polo-lab: the system: no room\n"


def test_a_chart_without_values_or_with_one_is_drawn() -> None:
    for points in ([], [(1.0, 2.0)], [(0.0, None), (1.0, float("nan")), (2.0, 3.0)]):
        chart = Chart("<b>", "x", "y", [Series("a & b", points, steps=True)], sides=[1.0])
        ElementTree.fromstring(canvas.FORMATS["svg"](chart))
        assert canvas.FORMATS["png"](chart).startswith(b"\x89PNG")


def test_png_without_pillow_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "PIL", None)
    with pytest.raises(MissingError, match="Pillow") as caught:
        canvas.FORMATS["png"](Chart("t", "x", "y", []))
    assert "polo-proof[lab]" in caught.value.diagnostics()


def test_what_is_recorded_is_complete_and_names_no_place() -> None:
    for path in sorted(lines.FOLDER.glob("*.jsonl")):
        text = path.read_text(encoding="utf-8")
        assert str(Path(__file__).parents[2]) not in text
        assert "../" not in text, path.name
        assert len(text) < 2_000_000


@pytest.mark.slow
@pytest.mark.parametrize("name", catalogue.NAMES)
def test_every_experiment_runs_in_its_trimmed_form(name: str, tmp_path: Path) -> None:
    experiment = catalogue.find(name)
    assert harness.run(experiment, Asked(quick=True, workers=0, folder=tmp_path)) == 0
    recording = lines.read(lines.path_of(experiment.lines, tmp_path / harness.QUICK))
    assert recording.done
    assert {line.ended for line in recording.lines} <= {lines.DONE, lines.REFUSED}
    assert all("seed" in line.settings for line in recording.lines)
    for table in experiment.tables(recording):
        assert all(len(row) == len(table.head) for row in table.rows)
        for form in FORMATS.values():
            assert form(table)
    for chart in experiment.charts(recording):
        ElementTree.fromstring(canvas.FORMATS["svg"](chart))


def test_the_command_is_recorded_without_places(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = ["x", "run", "fidelity", "--only", "pair=resnet18/cifar10", "--results", "/tmp/here"]
    monkeypatch.setattr("sys.argv", asked)
    told = "polo-lab run fidelity --only pair=resnet18/cifar10 --results here"
    assert machine.command() == told


def test_a_line_of_another_call_is_not_lost_to_one_that_tidies(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, read = tmp_path / "a.jsonl", lines.read
    lines.add(path, Line("a", {"seed": 1}, lines.DONE))
    other = threading.Thread(target=lines.add, args=(path, Line("a", {"seed": 2}, lines.DONE)))

    def slow(place: Path) -> Recording:
        found = read(place)
        other.start()
        other.join(0.2)
        return found

    monkeypatch.setattr(lines, "read", slow)
    lines.tidy(path, [])
    other.join()
    assert [line.settings["seed"] for line in read(path).lines] == [1, 2]


def test_lines_are_values(tmp_path: Path) -> None:
    line = Line("a", {"seed": 1}, lines.DONE, {"x": [1.0, float("inf")]}, {"t": 1.5}, note="n")
    lines.add(tmp_path / "a.jsonl", line)
    [found] = lines.read(tmp_path / "a.jsonl").lines
    assert found.values == {"seed": 1, "x": [1.0, None], "t": 1.5}
