"""Documents stay true: recorded blocks, commands, settings, links."""

import importlib.util
import json
import re
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[1]
DOCUMENTS = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("examples/*.md")])


@pytest.fixture(scope="module")
def make() -> ModuleType:
    spec = importlib.util.spec_from_file_location("docs_make", ROOT / "docs" / "make.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_recorded_blocks_are_what_was_recorded(make: ModuleType) -> None:
    for path, name, block in make.blocks():
        text = path.read_text()
        assert make.embedded(text, name, block) == text, f"{path.name}: run make docs"


def test_the_recorded_quickstart_is_of_this_release(make: ModuleType) -> None:
    figures = json.loads((ROOT / "docs/recorded/quickstart.json").read_text())
    assert figures["outcome"] == "accepted"
    assert figures["shards"] >= 6
    assert [scene["outcome"] for scene in figures["scenes"]] == [
        "rejected",
        "rejected",
        "claim",
        "no_claim",
        "rejected",
    ]
    assert figures["scenes"][-1]["refused_at"] == ["progress", "replay"]


def test_nothing_recorded_names_a_path_of_the_recording_machine() -> None:
    for path in (ROOT / "docs" / "recorded").iterdir():
        text = path.read_text()
        assert str(ROOT) not in text
        assert "../" not in text, path.name


def test_the_help_is_documented(make: ModuleType) -> None:
    assert (ROOT / "docs/commands.md").read_text() == make.commands(), "run make docs"


def test_every_command_and_setting_is_documented(make: ModuleType) -> None:
    from polo.cli import app

    known = {name for name in app if not name.startswith("-")}
    assert known <= set(make.COMMANDS)
    source = "".join(path.read_text() for path in (ROOT / "src").rglob("*.py"))
    settings = set(re.findall(r"POLO_[A-Z]+", source))
    assert {name for name in settings if f"`{name}`" not in make.COMMANDS_HEAD} == set()


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_links_lead_somewhere(path: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)", path.read_text()):
        if not target.startswith("http"):
            assert (path.parent / target).exists(), target
