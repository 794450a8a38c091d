"""A scheme that another package offers by entry point is used like one that is built in."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import polo
from polo.embedding.presses import PRESSES, press
from polo.errors import TermsError
from polo.protocol.records import SchemeTerms
from polo.testing import Digits, SchemeConformance, TrainingConformance
from polo.watermark.mark import Mark
from polo.watermark.schemes import SCHEMES, scheme

READING = '''
from polo.watermark.ednn import Ednn
from polo.watermark.schemes import Defaults

class Pairs(Ednn):
    """Two blocks form a group, and a bit is the sign of a sum over both."""

    name = "pairs"
    together = 2
    defaults = Defaults(load=0.0625, strength=0.002)

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
'''
PRESSING = """
from polo.embedding.ednn import EdnnPress as PairsPress

nothing = 3

def refuse(mark, terms, device):
    raise ValueError("not today")
"""
ENTRIES = """
[polo.schemes]
pairs = pairs_scheme.reading:Pairs
ednn = pairs_scheme.reading:Misnamed
misnamed = pairs_scheme.reading:Misnamed
half = pairs_scheme.reading:Half
careless = pairs_scheme.reading:Careless
wordy = pairs_scheme.reading:Wordy
absent = pairs_scheme.reading:Absent
nowhere = no_such_package_at_all:Thing
touchy = pairs_scheme.reading:Touchy

[polo.presses]
pairs = pairs_scheme.pressing:PairsPress
half = pairs_scheme.pressing:nothing
touchy = pairs_scheme.pressing:refuse
"""


@pytest.fixture(scope="module", autouse=True)
def package(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """An installed package `pairs-scheme`, for this process and for those that it starts."""
    folder = tmp_path_factory.mktemp("site")
    about = folder / "pairs_scheme-1.0.dist-info"
    code = folder / "pairs_scheme"
    about.mkdir()
    code.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: pairs-scheme\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text(ENTRIES)
    (code / "__init__.py").write_text("")
    (code / "reading.py").write_text(READING)
    (code / "pressing.py").write_text(PRESSING)
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
