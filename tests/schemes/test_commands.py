"""`--scheme` on the command line: what fits, what is enrolled, and what is said of the rest."""

import json
from pathlib import Path

import pytest

import polo
from polo.cli import main
from polo.protocol.records import Enrolment
from polo.watermark.schemes import SCHEMES


def run(command: list[str]) -> int:
    with pytest.raises(SystemExit) as caught:
        main(command)
    return int(caught.value.code or 0)


@pytest.mark.parametrize("scheme", sorted(set(SCHEMES) - {"fedipr"}))
def test_enrolling_with_a_scheme_takes_what_suits_it(scheme: str, tmp_path: Path) -> None:
    for name in ("alice", "issuer"):
        assert run(["keygen", str(tmp_path / name)]) == 0
    command = ["enrol", "--task", "digits", "--scheme", scheme, "--out", str(tmp_path / "out")]
    command += ["--identity", str(tmp_path / "alice.pub"), "--issuer", str(tmp_path / "issuer.key")]
    assert run(command) == 0
    record = Enrolment.from_bytes((tmp_path / "out" / "enrolment.json").read_bytes(), "enrolment")
    assert record.terms == polo.make_terms(polo.tasks.load("digits"), scheme=scheme)


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
