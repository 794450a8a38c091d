"""`polo data`: commit to training data, and the recipe of training as the command line takes it."""

import tomllib
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from polo.cli.output import Flag, print_json
from polo.errors import StoreError, TermsError, WeightsError

if TYPE_CHECKING:
    import numpy as np

    from polo.evidence.replay.recipe import Recipe
    from polo.protocol.effort import DataRecord
    from polo.tasks import Task

_MAX_RECIPE = 64 * 1024
_NEEDED = {"total": ("cosine", "linear"), "milestones": ("steps",)}
_UNREADABLE = (ValueError, KeyError, TypeError, EOFError, zipfile.BadZipFile)


def data(arrays: Path, /, *, out: Path, task: str = "", json: Flag = False) -> None:
    """Commit to training data, so that steps of training can be run again (level replay).

    Writes data.json, for the issuer, and what you need to show drawn samples later; keep that to
    yourself: with it anybody can test whether some sample is among your data.

    Examples:
    polo data train.npz --out my-data --task digits

    polo enrol --task digits --identity alice.pub --issuer issuer.key --out enrolment
    --data my-data/data.json --recipe rate=0.05 every=16

    Parameters
    ----------
    arrays
        The data, .npz or .safetensors: an array per column, the samples along the first dimension.
    out
        Folder to write.
    task
        Say first what a verifier would object to in these data: samples that this task refuses, or
        that are copies of each other. Nothing is written then.
    json
        Print JSON.
    """
    from polo.evidence.replay.data import DataSource

    rows = load_arrays(arrays)
    if task:
        _check_for(task, rows)
    record = DataSource.create(out, rows).record
    if json:
        print_json(record.to_json())
        return
    print(f"{record.samples} samples of {_listed(record.columns)}")
    print(f"{out / 'data.json'}  root of the data; for the issuer, public")
    print(f"{out}  the rest of it is confidential: it proves which samples you have")


def _check_for(name: str, rows: "dict[str, np.ndarray[Any, Any]]") -> None:
    """Refuse data that a verifier with this task would refuse."""
    from polo import tasks
    from polo.evidence.replay.foresight import objections

    if found := list(objections(tasks.load(name), rows)):
        raise TermsError(
            "; ".join(found),
            place="data",
            advice="Train on other data; without --task they are committed to all the same.",
        )


def load_arrays(path: Path) -> "dict[str, np.ndarray[Any, Any]]":
    """The arrays in an .npz or .safetensors file, whole."""
    import numpy as np
    import safetensors
    from safetensors.numpy import load_file

    if path.suffix not in (".npz", ".safetensors"):
        raise StoreError("is neither .npz nor .safetensors", place=str(path))
    try:
        if path.suffix == ".safetensors":
            return load_file(path)
        with path.open("rb") as file, np.load(file, allow_pickle=False) as archive:
            return dict(archive)
    except OSError as error:
        raise StoreError(f"cannot be read: {error.strerror or error}", place=str(path)) from error
    except (*_UNREADABLE, safetensors.SafetensorError) as error:
        raise WeightsError(
            f"holds no arrays that can be read: {str(error)[:200]}",
            place=str(path),
            advice="Save plain arrays, without objects: numpy.savez(FILE, image=…, label=…).",
        ) from error


def recipe_of(record: "DataRecord", task: "Task", given: Sequence[str]) -> "Recipe":
    """The recipe for some data and a task.

    Args:
        record: What the trainer committed to.
        task: The task; what a sample is must be the same there.
        given: Settings as `key=value`, or TOML files of them; the rest are defaults.
    """
    from polo.evidence.replay.recipe import Recipe

    columns = getattr(task, "columns", None)
    if columns != record.columns:
        raise TermsError(
            f"the task {task.name!r} trains on other columns than these data have",
            place="data",
            advice=f"It takes {_listed(columns or ())}; the data have {_listed(record.columns)}.",
        )
    chosen: dict[str, Any] = {"samples": record.samples}
    for item in given:
        chosen |= _setting(item) if "=" in item else _settings(Path(item))
    if chosen["samples"] != record.samples:
        raise TermsError(f"the data have {record.samples} samples", place="recipe.samples")
    for key, schedules in _NEEDED.items():
        if chosen.get("schedule") in schedules and key not in chosen:
            raise TermsError(
                f"the schedule {chosen['schedule']} needs {key}",
                place="recipe",
                advice=f"Give {key} in steps of the whole chain, too.",
            )
    return Recipe(**chosen)


def _setting(text: str) -> dict[str, Any]:
    from polo.evidence.replay.recipe import KINDS

    key, _, value = text.partition("=")
    _check_known(key)
    return {key: KINDS[key].read(value.replace(",", " "), f"recipe.{key}")}


def _settings(path: Path) -> dict[str, Any]:
    from polo.weights.files import open_plain

    if not path.exists():
        raise TermsError(
            f"{str(path)[:200]!r} is neither a setting nor a file of settings",
            place="recipe",
            advice="Give settings as key=value, such as rate=0.05, or a TOML file.",
        )
    with open_plain(path) as file:
        text = file.read(_MAX_RECIPE + 1)
    try:
        found = tomllib.loads(text[:_MAX_RECIPE].decode())
    except ValueError as error:
        raise TermsError(f"no TOML of settings: {str(error)[:200]}", place=str(path)) from error
    for key in found:
        _check_known(key)
    return {key: tuple(value) if isinstance(value, list) else value for key, value in found.items()}


def _check_known(key: str) -> None:
    from polo.evidence.replay.recipe import KINDS

    if key not in KINDS:
        raise TermsError(
            f"there is no setting {key[:64]!r}", place="recipe", advice=f"Use {', '.join(KINDS)}."
        )


def _listed(columns: Sequence[Any]) -> str:
    return ", ".join(f"{item.name} {item.dtype} {list(item.shape)}" for item in columns) or "none"
