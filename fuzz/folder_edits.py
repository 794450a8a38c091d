"""Changes to a proof folder that can be written down, so that a plan of them is an input."""

import contextlib
import functools
import hashlib
import json
import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fuzz import mutation, proofs

_MOST = 2**17


def apply(folder: Path, edits: list[Any]) -> bool:
    """Do what a plan says, as far as it makes sense; whether anything was changed."""
    before = _digest(folder)
    for edit in edits:
        if isinstance(edit, list) and len(edit) > 1 and edit[0] in KINDS:
            # A plan that makes no sense (a file that is gone, an offset that is a word) does less.
            with contextlib.suppress(OSError, ValueError, TypeError, LookupError, RecursionError):
                path = _inside(folder, edit[1])
                if edit[0] in _ANYWHERE or _plain(path):
                    _EDITS[edit[0]](path, *edit[2:])
    return _digest(folder) != before


def _inside(folder: Path, name: Any) -> Path:
    """The file of a name; the plan itself must never leave the folder."""
    path = folder / str(name)
    if ".." in path.parts or not path.is_relative_to(folder) or path == folder:
        raise ValueError(f"{name} is outside")
    if any(parent.is_symlink() for parent in path.parents):
        raise ValueError(f"{name} lies behind a link")
    return path


def _plain(path: Path) -> bool:
    return path.is_file() and not path.is_symlink()


def _digest(folder: Path) -> dict[str, Any]:
    return {str(path): path.read_bytes() if _plain(path) else None for path in folder.rglob("*")}


def _set(path: Path, way: list[Any], value: Any) -> None:
    """Put a value at a place in a JSON document."""
    document = json.loads(path.read_bytes())
    *outer, last = way
    functools.reduce(lambda inner, key: inner[key], outer, document)[last] = value
    path.write_bytes(mutation.spell(document))


def _drop(path: Path, way: list[Any]) -> None:
    document = json.loads(path.read_bytes())
    *outer, last = way
    del functools.reduce(lambda inner, key: inner[key], outer, document)[last]
    path.write_bytes(mutation.spell(document))


def _put(path: Path, at: int, fresh: str) -> None:
    """Write bytes over those of a file."""
    data = bytearray(path.read_bytes())
    at %= len(data)
    data[at : at + len(fresh) // 2] = bytes.fromhex(fresh)
    path.write_bytes(data[:_MOST])


def _cut(path: Path, size: int) -> None:
    path.write_bytes(path.read_bytes()[:size])


def _grow(path: Path, size: int) -> None:
    os.truncate(path, min(path.stat().st_size + size, _MOST))


def _swap(path: Path, other: str) -> None:
    second = path.parent / Path(other).name
    if _plain(second):
        one, two = path.read_bytes(), second.read_bytes()
        path.write_bytes(two)
        second.write_bytes(one)


def _new(path: Path, content: str) -> None:
    if path.exists() and not _plain(path):
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(bytes.fromhex(content))


def _instead(path: Path, kind: str) -> None:
    """Something else than a file where a file should be."""
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
    if kind == "folder":
        path.mkdir()
    elif kind == "pipe":
        os.mkfifo(path)
    elif kind == "loop":
        path.symlink_to(path.name)
    elif kind in ("/etc/passwd", "/dev/zero", "../manifest.json", "nowhere"):
        path.symlink_to(kind)


_EDITS: dict[str, Callable[..., None]] = {
    "set": _set, "drop": _drop, "put": _put, "cut": _cut, "grow": _grow, "swap": _swap,
    "new": _new, "instead": _instead,
}  # fmt: skip
_ANYWHERE = ("new", "instead")
KINDS = tuple(_EDITS)


def draw(folder: Path, kind: str, rng: random.Random) -> list[Any]:
    """An edit of this kind that means something in this folder."""
    found = (path for path in folder.rglob("*") if path.is_file())
    files = sorted(path.relative_to(folder).as_posix() for path in found)
    name = rng.choice(files)
    size = (folder / name).stat().st_size
    if kind in ("set", "drop"):
        documents = [name for name in files if name.endswith(".json")]
        name = rng.choice([*["manifest.json"] * 4, *documents])
        way = _way(json.loads((folder / name).read_bytes()), rng)
        value = rng.choice(rng.choice((mutation.NUMBERS, mutation.OTHERS)))
        return [kind, name, way, value] if kind == "set" else [kind, name, way]
    more: dict[str, list[Any]] = {
        "put": [rng.randrange(size), rng.randbytes(rng.choice((1, 4, 8))).hex()],
        "cut": [rng.randrange(size)],
        "grow": [rng.choice((1, 8, 4096))],
        "swap": [rng.choice(files)],
        "new": ["00"],
        "instead": [rng.choice(("nothing", "folder", "pipe", "loop", "/etc/passwd", "/dev/zero"))],
    }
    if kind == "new":
        name = rng.choice(("x", "nonces/000009.json", "bundle.json", "transfer.json", "\u202e"))
    return [kind, name, *more[kind]]


def _way(value: Any, rng: random.Random) -> list[Any]:
    """The way to some place in a document."""
    way: list[Any] = []
    while isinstance(value, (dict, list)) and value and (not way or rng.randrange(5)):
        way.append(rng.choice(sorted(value) if isinstance(value, dict) else range(len(value))))
        value = value[way[-1]]
    return way


def sign(folder: Path, who: int) -> None:
    """List the files as they are (1), sign as the issuer (2), sign as the prover (4)."""
    path = folder / "manifest.json"
    if not _plain(path):
        return
    with contextlib.suppress(ValueError, TypeError, LookupError, AttributeError, RecursionError):
        manifest = json.loads(path.read_bytes())
        if who & 1:
            for file in manifest["files"]:
                _relist(folder, file)
        if who & 2:
            manifest["enrolment"] = _signed(manifest["enrolment"], proofs.ISSUER)
        if who & 4:
            identity = manifest["enrolment"]["identity"]
            bought = identity == proofs.BUYER.public_key.hex()
            manifest = _signed(manifest, proofs.BUYER if bought else proofs.PROVER)
        if who & 7:
            path.write_bytes(mutation.spell(manifest))


def _relist(folder: Path, file: dict[str, Any]) -> None:
    place = _inside(folder, file["path"])
    if _plain(place):
        data = place.read_bytes()
        file |= {"size": len(data), "sha256": hashlib.sha256(data).hexdigest()}


def _signed(document: dict[str, Any], key: Any) -> dict[str, Any]:
    body = {name: value for name, value in document.items() if name != "signature"}
    return {**body, "signature": key.sign(b"polo signature 1\n" + mutation.spell(body)).hex()}
