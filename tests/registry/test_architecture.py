"""The document about the rooms names those of the registry, and those that are left free."""

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
ROOMS = ROOT / "src" / "polo" / "registry"
LATER = {"ledger", "listings", "transfers", "disputes"}


def section() -> str:
    text = (ROOT / "docs" / "architecture.md").read_text()
    return text.partition("\n## The registry's rooms\n")[2].partition("\n## ")[0]


def test_every_room_is_named():
    rows = re.findall(r"^\| (`.+?) \|", section(), re.MULTILINE)
    named = {name for row in rows for name in re.findall(r"`([a-z]+)`", row)}
    assert named == {path.parent.name for path in ROOMS.glob("*/__init__.py")}


def test_rooms_that_are_left_free_are_named_and_empty():
    named = re.findall(r"^\| `registry/([a-z]+)` \| .+ \| .+ \|$", section(), re.MULTILINE)
    assert set(named) == LATER
    assert not [name for name in named if (ROOMS / name).exists()]
