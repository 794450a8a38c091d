"""`--scheme` on the command line: what fits, what is enrolled, and what is said of the rest."""

import json
from pathlib import Path

import pytest

import polo
from polo.cli import main
from polo.protocol.records import Enrolment, Terms
from polo.watermark.schemes import SCHEMES


def run(command: list[str]) -> int:
    with pytest.raises(SystemExit) as caught:
        main(command)
    return int(caught.value.code or 0)


def enrolled(folder: Path, *options: str) -> Terms:
    """The terms that `polo enrol` signs with these options."""
    for name in ("alice", "issuer"):
        assert run(["keygen", str(folder / name)]) == 0
    command = ["enrol", "--task", "digits", "--out", str(folder / "out"), *options]
    command += ["--identity", str(folder / "alice.pub"), "--issuer", str(folder / "issuer.key")]
    assert run(command) == 0
    record = (folder / "out" / "enrolment.json").read_bytes()
    return Enrolment.from_bytes(record, "enrolment").terms


@pytest.mark.parametrize("scheme", sorted(set(SCHEMES) - {"fedipr"}))
def test_enrolling_with_a_scheme_takes_what_suits_it(scheme: str, tmp_path: Path) -> None:
    wanted = polo.make_terms(polo.tasks.load("digits"), scheme=scheme)
    assert enrolled(tmp_path, "--scheme", scheme) == wanted


def test_carriers_and_finishing_are_the_issuers_to_choose(tmp_path: Path) -> None:
    given = ("--carrier", "8.weight", "3.weight", "--budget", "0.2", "--margin", "0.02")
    terms = enrolled(tmp_path, *given)
    assert terms.carrier == ("3.weight", "8.weight")
    assert (terms.finish.budget, terms.finish.margin) == (200_000, 20_000)


@pytest.mark.parametrize(
    ("option", "value", "told"),
    [
        ("--budget", "1.5", "budget: 1.5 is not from 0 to 1"),
        ("--margin", "-1", "margin: -1 is not from 0 to 1"),
        ("--strength", "4e-7", "strength: 4e-07 would become 0"),
        ("--every", "0", "every: 0 is not from 1 to 1024"),
        ("--strength", "nan", "strength: nan is not from 0 to 1000"),
        ("--shards", "0", "at most 0 shards are allowed, and at least"),
        ("--block", "100", "use a power of two from 16 to 2048"),
    ],
)
def test_numbers_that_terms_cannot_hold_are_refused_with_advice(
    option: str, value: str, told: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("alice", "issuer"):
        assert run(["keygen", str(tmp_path / name)]) == 0
    command = ["enrol", "--task", "digits", "--out", str(tmp_path / "out"), option, value]
    command += ["--identity", str(tmp_path / "alice.pub"), "--issuer", str(tmp_path / "issuer.key")]
    assert run(command) == 2
    said = capsys.readouterr().err
    assert told in said
    assert "what to do: " in said


def test_validate_names_the_scheme_that_would_fit(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["validate", "--task", "digits", "--scheme", "fedipr", "--json"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert not found["fits"]
    assert "fedipr-kernel" in found["advice"]
    assert run(["validate", "--task", "digits", "--scheme", "fedipr-kernel", "--json"]) == 0


def test_an_unknown_scheme_lists_the_known_ones(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["validate", "--task", "digits", "--scheme", "edn"]) == 2
    said = capsys.readouterr().err
    assert "'edn' is unknown" in said
    assert all(name in said for name in SCHEMES)


@pytest.mark.parametrize(("bits", "told"), [("128", False), ("1024", True)])
def test_marks_that_take_most_norm_scales_come_with_advice(
    bits: str, told: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    task = "polo_lab.tasks.norms:DigitsNorms"
    assert run(["validate", "--task", task, "--scheme", "fedipr", "--bits", bits]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert ("--budget 0.2" in said) is told
    # No more than was measured.
    assert ("on ResNet-18 several points, whatever λ and budget" in said) is told
    assert ("hardly any owner was named by such marks (docs/schemes.md)" in said) is told
