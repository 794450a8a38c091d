"""`polo data`, and what `polo enrol` makes of it."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

import polo
from polo import cli
from polo.evidence.replay.data import DataSource, load_record
from polo.evidence.replay.recipe import Recipe
from polo.tasks.digits import Digits


def run(*arguments: object) -> int:
    return cli.run([str(argument) for argument in arguments])


@pytest.fixture(scope="module")
def columns() -> dict[str, Any]:
    return Digits().train_columns()


@pytest.fixture
def folder(tmp_path: Path, columns: dict[str, Any], alice: Any, issuer: Any) -> Path:
    """Keys and data, as they lie before an enrolment."""
    np.savez(tmp_path / "train.npz", **columns)
    alice.save(tmp_path / "alice.key")
    issuer.save(tmp_path / "issuer.key")
    polo.keys.save_public(alice.public_key, tmp_path / "alice.pub")
    assert run("data", tmp_path / "train.npz", "--out", tmp_path / "data") == 0
    return tmp_path


def enrol(folder: Path, *options: object, task: str = "digits") -> int:
    return run(
        "enrol", "--task", task, "--identity", folder / "alice.pub", "--issuer",
        folder / "issuer.key", "--out", folder / "enrolment", *options,
    )  # fmt: skip


def terms(folder: Path) -> Any:
    return polo.OfflineEnrolment.load(folder / "enrolment").record.terms


def test_data_in_either_format(
    tmp_path: Path, columns: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    np.savez(tmp_path / "train.npz", **columns)
    save_file(columns, tmp_path / "train.safetensors")
    for name in ("train.npz", "train.safetensors"):
        out = tmp_path / name.replace(".", "-")
        assert run("data", tmp_path / name, "--out", out) == 0
        assert "1347 samples of image F32 [1, 8, 8], label I64 []" in capsys.readouterr().out
        assert load_record(out / "data.json").columns == Digits.columns
        DataSource.load(out, columns).check()


def test_data_as_json(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    capsys.readouterr()
    assert run("data", folder / "train.npz", "--out", folder / "more", "--json") == 0
    said = json.loads(capsys.readouterr().out)
    assert said == json.loads((folder / "more" / "data.json").read_bytes())


def test_an_enrolment_asks_for_replay(folder: Path, columns: dict[str, Any]) -> None:
    given = ("--data", folder / "data" / "data.json", "--recipe", "rate=1e-3", "optimizer=adam")
    assert enrol(folder, *given, "betas=0.8,0.99", "batch=32") == 0
    found = terms(folder)
    assert found.data == DataSource.load(folder / "data", columns).root
    assert found.history == "all"
    (chain, replay) = found.evidence
    wanted = Recipe(samples=1347, batch=32, optimizer="adam", rate=0.001, betas=(0.8, 0.99))
    assert (chain.level, replay.level) == ("chain", "replay")
    assert Recipe.from_settings(replay.settings, "terms") == wanted


def test_a_recipe_from_a_file_with_changes(folder: Path) -> None:
    (folder / "recipe.toml").write_text(
        'rate = 1\nschedule = "steps"\nmilestones = [10, 20]\nnesterov = true\n'
    )
    data = folder / "data" / "data.json"
    assert enrol(folder, "--data", data, "--recipe", folder / "recipe.toml", "gamma=0.5") == 0
    recipe = Recipe.from_settings(terms(folder).evidence[1].settings, "terms")
    assert (recipe.peak, recipe.milestones, recipe.gamma, recipe.nesterov) == (
        1.0, (10, 20), 0.5, True,
    )  # fmt: skip


def test_the_folder_of_the_data_will_do(folder: Path, columns: dict[str, Any]) -> None:
    assert enrol(folder, "--data", folder / "data") == 0
    assert terms(folder).data == DataSource.load(folder / "data", columns).root


def test_data_that_a_verifier_would_refuse_are_named_before_anything_is_trained(
    tmp_path: Path, columns: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    image, label = columns["image"], columns["label"]
    few = np.arange(len(label)) % 8
    traced = image[few].copy()
    traced[:, 0, 0, 0] = 1e-20 * (1 + np.random.default_rng(0).random(len(label)))
    for rows, word in (
        ({"image": 16 * image, "label": label}, "samples 0 to 63: the task refuses a pixel"),
        ({"image": image[few], "label": label[few]}, "data: 1339 of 1347 samples repeat another"),
        (
            {"image": traced, "label": label[few]},
            "of 64 samples teach a model something of their own",
        ),
        ({"picture": image, "label": label}, "trains on other columns than these data have"),
        ({"image": image * np.float32("nan"), "label": label}, "image holds what is no number"),
        ({"image": image, "label": label[:7]}, "columns of different lengths"),
        ({"image": image[:0], "label": label[:0]}, "0 samples"),
    ):
        np.savez(tmp_path / "train.npz", **rows)
        given = (tmp_path / "train.npz", "--out", tmp_path / "data", "--task", "digits")
        assert run("data", *given) == 2
        assert word in " ".join(capsys.readouterr().err.split())
        assert not (tmp_path / "data").exists()
    np.savez(tmp_path / "train.npz", **columns)
    assert run("data", *given) == 0


def test_weak_terms_are_signed_with_notes(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    weak = ("draws=1", "top=0", "seals=0", "effect=0")
    assert enrol(folder, "--data", folder / "data", "--recipe", *weak) == 0
    said = capsys.readouterr().err
    for word in ("the start is free", "escape with 90%; draws=44", "top=0", "seals=0", "effect=0"):
        assert word in said
    assert said.count("note: ") == 5


def test_allowances_that_void_a_check_are_noted(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    weak = ("tolerance=500000", "effect=1000", "every=400", "schedule=steps", "gamma=0.01")
    weak += ("milestones=40,80,120",)
    assert enrol(folder, "--data", folder / "data", "--start", "derived", "--recipe", *weak) == 0
    said = capsys.readouterr().err
    for word in ("tolerance=500000", "effect=1000", "every=400", "gamma=0.01, 3 times"):
        assert f"note: {word}" in said


def test_sound_terms_have_no_notes(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert enrol(folder, "--data", folder / "data", "--start", "derived") == 0
    assert "note: " not in capsys.readouterr().err


def test_without_data_nothing_changes(folder: Path) -> None:
    assert enrol(folder) == 0
    assert terms(folder).data is None
    assert [item.level for item in terms(folder).evidence] == ["chain"]


@pytest.mark.parametrize(
    ("options", "why"),
    [
        (["--recipe", "rate=0.1"], "a recipe needs the data"),
        (["--data", "{0}/data/data.json", "--recipe", "speed=1"], "no setting 'speed'"),
        (["--data", "{0}/data/data.json", "--recipe", "rate=fast"], "recipe.rate"),
        (["--data", "{0}/data/data.json", "--recipe", "samples=5"], "recipe.samples"),
        (["--data", "{0}/data/data.json", "--recipe", "{0}/no.toml"], "nor a file of settings"),
        (["--data", "{0}/data/data.json", "--recipe", "rate"], "such as rate=0.05"),
        (["--data", "{0}/data/data.json", "--recipe", "schedule=cosine"], "needs total"),
        (["--data", "{0}/data/data.json", "--recipe", "schedule=steps"], "needs milestones"),
        (["--data", "{0}/data/data.json", "--recipe", "{0}/alice.pub"], "no TOML"),
        (["--data", "{0}/data/secret"], "not a JSON document"),
        (["--data", "{0}/data/leaves"], "not a JSON document"),
        (["--data", "{0}/nothing.json"], "cannot be opened"),
    ],
)
def test_mistakes_of_an_issuer(
    folder: Path, options: list[str], why: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert enrol(folder, *(option.format(folder) for option in options)) == 2
    said = capsys.readouterr().err
    assert why in said
    assert "Traceback" not in said
    assert not (folder / "enrolment").exists()


def test_data_of_another_task(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    np.savez(folder / "other.npz", label=np.zeros(200, np.int64))
    assert run("data", folder / "other.npz", "--out", folder / "other") == 0
    assert enrol(folder, "--data", folder / "other" / "data.json") == 2
    said = capsys.readouterr().err
    assert "other columns than these data" in said
    assert "image F32 [1, 8, 8]" in said


@pytest.mark.parametrize(
    ("name", "content", "why"),
    [
        ("no.npz", None, "cannot be read"),
        ("odd.npz", b"PK\x03\x04 nothing more", "holds no arrays"),
        ("odd.npz", b"\x80\x04K\x05.", "holds no arrays"),
        ("odd.safetensors", b"\xff" * 40, "holds no arrays"),
        ("odd.pt", b"", "neither .npz nor .safetensors"),
    ],
)
def test_files_that_hold_no_data(
    tmp_path: Path, name: str, content: bytes | None, why: str,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    if content is not None:
        (tmp_path / name).write_bytes(content)
    assert run("data", tmp_path / name, "--out", tmp_path / "out") == 2
    assert why in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_objects_are_never_unpickled(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    class Evil:
        def __reduce__(self) -> tuple[Any, ...]:
            return Path.touch, (tmp_path / "owned",)

    np.savez(tmp_path / "evil.npz", x=np.array([Evil()], dtype=object))
    assert run("data", tmp_path / "evil.npz", "--out", tmp_path / "out") == 2
    assert "holds no arrays" in capsys.readouterr().err
    assert not (tmp_path / "owned").exists()


def test_a_second_commitment_into_the_same_folder(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = (folder / "data" / "data.json").read_bytes()
    assert run("data", folder / "train.npz", "--out", folder / "data") == 2
    assert "holds a commitment already" in capsys.readouterr().err
    assert (folder / "data" / "data.json").read_bytes() == before


def test_terms_and_data_go_together(task: Any) -> None:
    recipe = Recipe(samples=256, batch=32)
    found = polo.make_terms(task, bits=128, replay=recipe, data=bytes(32))
    assert (found.data, found.history) == (bytes(32), "all")
    for options in ({"replay": recipe}, {"data": bytes(32)}):
        with pytest.raises(polo.errors.TermsError, match="go together"):
            polo.make_terms(task, bits=128, **options)


def test_a_task_that_cannot_be_replayed(task: Any) -> None:
    class Bare:
        name, version, metric, floor = "bare", 1, "accuracy", (0.1,)
        build_model = staticmethod(task.build_model)
        evaluate = staticmethod(task.evaluate)

    recipe = Recipe(samples=256, batch=32)
    with pytest.raises(polo.errors.TaskError, match="cannot be replayed"):
        polo.make_terms(Bare(), bits=128, replay=recipe, data=bytes(32))
