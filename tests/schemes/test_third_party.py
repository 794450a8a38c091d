"""A scheme that another package offers by entry point is used like one that is built in."""

import configparser
import os
import re
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import polo
from polo.checks import Status
from polo.cli import run
from polo.embedding.presses import PRESSES, press
from polo.errors import TermsError
from polo.keys import save_public
from polo.protocol.records import SchemeTerms
from polo.testing import Digits, SchemeConformance, TrainingConformance
from polo.watermark.mark import Mark
from polo.watermark.reading import read
from polo.watermark.schemes import SCHEMES, scheme

EASY = {"strength": 0.02, "budget": 1.0}
FICKLE = SchemeTerms("fickle", 32, 256, 125_000, "block", 1000, "sum", 1)
ODD = '''

class Misnamed(Ednn):
    name = "other"

class Half:
    name = "half"

class Careless(Ednn):
    name = "careless"
    together = 0

class Wordy(Ednn):
    name = "wordy"
    together = "two"

def explode():
    raise RuntimeError("it is Monday")

class Touchy(Ednn):
    name = "touchy"

    def objection(self, tensor, *, norm=None):
        explode()

class Fickle(Ednn):
    """Reads well until somebody says otherwise."""

    name = "fickle"
    mood = "good"

    def matches(self, mark, values, groups):
        if Fickle.mood == "bad":
            explode()
        right = super().matches(mark, values, groups)
        return right.ravel() if Fickle.mood == "odd" else right
'''
ODD_PRESSES = """
nothing = 3

def refuse(mark, terms, device):
    raise ValueError("not today")

class Fickle(PairsPress):
    mood = "good"

    def gradient(self, values):
        if Fickle.mood == "bad":
            raise ValueError("no slope today")
        found = super().gradient(values)
        return {"flat": found.ravel(), "nothing": None}.get(Fickle.mood, found)

    def finish(self, values):
        if Fickle.mood == "bad at the end":
            raise KeyError("budget")
        if Fickle.mood == "greedy":
            values.zero_()
        found = super().finish(values)
        spoilt = {"flat at the end": found.ravel(), "spoilt at the end": found / 0}
        return spoilt.get(Fickle.mood, found)
"""
ENTRIES = """
[polo.schemes]
ednn = pairs_scheme.reading:Misnamed
misnamed = pairs_scheme.reading:Misnamed
half = pairs_scheme.reading:Half
careless = pairs_scheme.reading:Careless
wordy = pairs_scheme.reading:Wordy
absent = pairs_scheme.reading:Absent
nowhere = no_such_package_at_all:Thing
touchy = pairs_scheme.reading:Touchy
fickle = pairs_scheme.reading:Fickle

[polo.presses]
half = pairs_scheme.pressing:nothing
touchy = pairs_scheme.pressing:refuse
fickle = pairs_scheme.pressing:Fickle
"""


def documented(name: str) -> str:
    """A file of the package that the documentation shows."""
    page = (Path(__file__).parents[2] / "docs" / "architecture.md").read_text(encoding="utf-8")
    [block] = re.findall(rf"```\w+\n# {re.escape(name)}\n(.*?)```", page, re.DOTALL)
    return str(block)


@pytest.fixture(scope="module", autouse=True)
def package(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """An installed package `pairs-scheme`, for this process and for those that it starts."""
    folder = tmp_path_factory.mktemp("site")
    about = folder / "pairs_scheme-1.0.dist-info"
    code = folder / "pairs_scheme"
    about.mkdir()
    code.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: pairs-scheme\nVersion: 1.0\n")
    offers = tomllib.loads(documented("pyproject.toml"))["project"]["entry-points"]
    entries = configparser.ConfigParser()
    entries.read_string(ENTRIES)
    for group, own in offers.items():
        entries[group].update(own)
    with (about / "entry_points.txt").open("w") as file:
        entries.write(file)
    (code / "__init__.py").write_text("")
    (code / "reading.py").write_text(documented("pairs_scheme/reading.py") + ODD)
    (code / "pressing.py").write_text(documented("pairs_scheme/pressing.py") + ODD_PRESSES)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(folder)
        found = [str(folder), *filter(None, [os.environ.get("PYTHONPATH")])]
        patch.setenv("PYTHONPATH", os.pathsep.join(found))
        yield folder


class TestPairs(SchemeConformance):
    scheme = "pairs"


@pytest.mark.slow
class TestTrainingWithPairs(TrainingConformance):
    scheme = "pairs"


def test_a_proof_is_made_and_verified(make_proof: Callable[..., Any]) -> None:
    terms = {"scheme": "pairs", "bits": 128, "strength": 0.01}
    made = make_proof(task=Digits(), epochs=2, terms=terms)
    assert made.manifest.terms.scheme.name == "pairs"
    assert len(made.manifest.shards) == 2
    assert made.verify().outcome is polo.Outcome.ACCEPTED


def test_without_the_package_the_verdict_is_undecided(
    make_proof: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    made = make_proof(task=Digits(), epochs=1, terms={"scheme": "pairs", "strength": 0.01})
    from polo.watermark import schemes

    schemes._offered.cache_clear()
    monkeypatch.setattr("polo.watermark.schemes.offered", lambda group, name: None)
    verdict = made.verify()
    assert verdict.outcome is polo.Outcome.UNDECIDED
    (check,) = [check for check in verdict.checks if check.name == "mark"]
    assert "'pairs' is unknown" in check.detail
    assert "polo.schemes" in check.advice
    schemes._offered.cache_clear()


def test_no_package_takes_a_built_in_name() -> None:
    assert scheme("ednn") is SCHEMES["ednn"]


@pytest.mark.parametrize("name", ["misnamed", "half", "careless", "wordy", "absent", "nowhere"])
def test_a_broken_offer_names_its_package(name: str) -> None:
    with pytest.raises(TermsError, match=r"the package pairs-scheme offers") as caught:
        scheme(name)
    assert name in str(caught.value)
    assert "pairs-scheme" in caught.value.advice


def test_an_offer_that_raises_names_its_package() -> None:
    with pytest.raises(TermsError, match=r"package pairs-scheme .*RuntimeError: it is Monday"):
        polo.make_terms(Digits(), scheme="touchy", bits=128)
    terms = SchemeTerms("touchy", 32, 256, 125_000, "block", 1000, "sum", 1)
    mark = Mark(terms, (0,), bytes(32))
    with pytest.raises(TermsError, match=r"package pairs-scheme .*ValueError: not today"):
        press(mark, polo.make_terms(Digits()), torch.device("cpu"))


BLAMED = "the package pairs-scheme offers the scheme 'fickle' as "


@pytest.fixture
def fickle(make_proof: Callable[..., Any]) -> Any:
    """A proof of a scheme that can still read and press as long as it is in the mood."""
    return make_proof(task=Digits(), epochs=1, terms={"scheme": "fickle", "bits": 64, **EASY})


@pytest.mark.parametrize(("mood", "why"), [("bad", "it is Monday"), ("odd", "by group and bit")])
def test_a_scheme_that_fails_to_read_is_named_and_nothing_is_decided(
    mood: str,
    why: str,
    fickle: Any,
    issuer: polo.Identity,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert fickle.verify().outcome is polo.Outcome.ACCEPTED
    monkeypatch.setattr("pairs_scheme.reading.Fickle.mood", mood)
    verdict = fickle.verify()
    assert verdict.outcome is polo.Outcome.UNDECIDED
    assert {check.name for check in verdict.of(Status.UNDECIDED)} >= {"mark"}
    save_public(issuer.public_key, tmp_path / "issuer.pub")
    command = ["verify", str(fickle.path), "--trust", str(tmp_path / "issuer.pub")]
    assert run([*command, "--task", "polo.testing:Digits"]) == 2
    said = " ".join("".join(capsys.readouterr()).split())
    assert BLAMED in said
    assert why in said
    with pytest.raises(TermsError, match=why) as caught:
        read(Mark(FICKLE, (0,), bytes(32)), np.ones((1, 256)))
    assert BLAMED in caught.value.message
    assert "pairs-scheme" in caught.value.advice


@pytest.mark.parametrize(
    ("mood", "why"),
    [
        ("bad", "ValueError: no slope today"),
        ("bad at the end", "KeyError: 'budget'"),
        ("flat", r"gradient\(\) returned a tensor of \(\d+,\), and not of \(\d+, 256\)"),
        ("nothing", r"gradient\(\) returned NoneType, and not a tensor"),
        ("flat at the end", r"finish\(\) returned a tensor of"),
        ("spoilt at the end", r"finish\(\) returned numbers that are not finite"),
    ],
)
def test_a_press_that_fails_under_way_names_its_package(
    mood: str, why: str, monkeypatch: pytest.MonkeyPatch, make_proof: Callable[..., Any]
) -> None:
    import pairs_scheme.pressing  # type: ignore[import-not-found]

    monkeypatch.setattr(pairs_scheme.pressing.Fickle, "mood", mood)
    with pytest.raises(TermsError, match=why) as caught:
        make_proof(task=Digits(), epochs=1, terms={"scheme": "fickle", "strength": 0.0})
    assert BLAMED in caught.value.message
    assert "pairs-scheme" in caught.value.advice


def test_a_press_that_writes_over_what_it_is_given_does_no_harm(
    monkeypatch: pytest.MonkeyPatch, make_proof: Callable[..., Any]
) -> None:
    import pairs_scheme.pressing

    monkeypatch.setattr(pairs_scheme.pressing.Fickle, "mood", "greedy")
    made = make_proof(task=Digits(), epochs=1, terms={"scheme": "fickle", "strength": 0.0})
    # An edit that makes all weights zero is a whole one, and beyond any budget.
    assert not made.proof.shards


def test_no_package_is_blamed_for_what_is_built_in(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any) -> None:
        raise RuntimeError("our own fault")

    monkeypatch.setattr(type(SCHEMES["ednn"]), "matches", broken)
    mark = Mark(SchemeTerms("ednn", 32, 256, 125_000, "block", 1000, "sum", 1), (0,), bytes(32))
    with pytest.raises(RuntimeError, match="our own fault"):
        read(mark, np.ones((1, 256)))


def test_an_unknown_scheme_lists_what_there_is() -> None:
    with pytest.raises(TermsError, match="'nobody' is unknown") as caught:
        polo.make_terms(Digits(), scheme="nobody")
    assert all(name in str(caught.value) for name in (*SCHEMES, "pairs"))
    assert "Install" in caught.value.advice
    with pytest.raises(TermsError, match="'Pair' is unknown") as caught:
        scheme("Pair")
    assert "Did you mean pairs?" in caught.value.advice


def test_a_scheme_that_nothing_presses_is_refused() -> None:
    def pressed(name: str) -> Any:
        mark = Mark(SchemeTerms(name, 32, 256, 125_000, "dense", 1000, "sum", 1), (0,), bytes(32))
        return press(mark, polo.make_terms(Digits()), torch.device("cpu"))

    with pytest.raises(TermsError, match="can press marks of the scheme 'misnamed'") as caught:
        pressed("misnamed")
    assert all(name in str(caught.value) for name in (*PRESSES, "pairs"))
    with pytest.raises(TermsError, match="the package pairs-scheme offers"):
        pressed("half")
