"""`polo disclose`, `export` and `import` as people use them, mistakes included."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

import polo
from polo import cli
from polo.cli.bundles import parse_shards
from polo.errors import PoloError
from polo.protocol.records import Retention
from polo.storage.writer import ProofWriter

GOLDEN = Path(__file__).parents[2] / "vectors" / "golden"
ISSUER = GOLDEN / "issuer.pub"
Run = Callable[..., tuple[int, str]]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Runs a command where a proof lies; gives its exit code and all it printed."""
    monkeypatch.setenv("POLO_TRUST", str(tmp_path / "trust"))
    shutil.copytree(GOLDEN / "v1", tmp_path / "proof")
    monkeypatch.chdir(tmp_path)

    def command(line: str) -> tuple[int, str]:
        capsys.readouterr()
        code = cli.run(line.split(" "))
        output = capsys.readouterr()
        assert "Traceback" not in output.err
        return code, " ".join((output.out + output.err).split())

    return command


def test_disclose_and_verify(run: Run) -> None:
    code, said = run("disclose proof --shards 1,last --to Bob --out bob.polo")
    assert code == 0
    assert "burnt as secret evidence: marks 1 and 3 (Bob will know where they sit)" in said
    assert "the others stay: 1 of 3 marks are still secret" in said
    assert "each opening shows up to 95% of the weights" in said, "it is a tiny model"
    code, said = run(f"verify bob.polo --trust {ISSUER}")
    assert code == 0
    assert "ACCEPTED as a disclosure: order, identity and marks 1 and 3 of 3 hold" in said
    assert run(f"verify bob.polo --trust {ISSUER} --whole")[0] == 2
    code, said = run(f"verify bob.polo --trust {ISSUER} --json --report bob.html")
    assert json.loads(said)["bundle"]["kind"] == "buyer"
    assert "as a disclosure" in Path("bob.html").read_text()
    code, said = run("show bob.polo")
    assert "a disclosure: marks 1 and 3 of 3" in said
    assert run("show bob.polo --json")[0] == 0


def test_the_list(run: Run) -> None:
    assert "nobody was shown a mark yet 3 of 3 marks" in run("disclose proof --list")[1]
    run("disclose proof --shards 2 --to Bob --out bob.polo")
    said = run("disclose proof --list")[1]
    assert "Bob buyer 2" in said
    assert "2 of 3 marks are still secret" in said
    run("export proof --as verifier --to market --out market.polo")
    assert "0 of 3 marks are still secret" in run("disclose proof --list")[1]
    found = json.loads(run("disclose proof --list --json")[1])
    assert [entry["to"] for entry in found["shown"]] == ["Bob", "market"]
    assert (found["secret"], found["of"]) == ([], 3)


def test_json(run: Run) -> None:
    found = json.loads(run("disclose proof --shards 2-3 --to Bob --out bob.polo --json")[1])
    assert found == {
        "file": "bob.polo",
        "kind": "buyer",
        "shards": [2, 3],
        "to": "Bob",
        "secret": 1,
        "of": 3,
    }
    assert json.loads(run("export proof --as public --out p.polo --json")[1])["secret"] == 1
    found = json.loads(run("import bob.polo --out bought --json")[1])
    assert found == {"folder": "bought", "kind": "buyer", "shards": [2, 3]}


def test_export_and_import(run: Run) -> None:
    code, said = run("export proof --as public --out p.polo")
    assert code == 0
    assert "shows no nonce and no weight" in said
    assert not Path("proof.state").exists(), "a public bundle needs no entry"
    code, said = run(f"verify p.polo --trust {ISSUER}")
    assert code == 2
    assert "COULD NOT DECIDE: signatures, order and links hold" in said
    code, said = run("export proof --as verifier --out v.polo")
    assert code == 2
    assert "say who gets it" in said
    code, said = run("export proof --as verifier --to market --out v.polo")
    assert code == 0
    assert "every nonce and every stored checkpoint" in said
    assert run(f"verify v.polo --trust {ISSUER} --accuracy none --whole")[0] == 0
    code, said = run("import v.polo --out copy")
    assert code == 0
    assert "polo verify copy" in said
    assert run(f"verify copy --trust {ISSUER} --accuracy none")[0] == 0


def test_passing_on_what_was_shown(run: Run) -> None:
    run("disclose proof --shards 1,3 --to Bob --out bob.polo")
    run("import bob.polo --out bought")
    code, said = run("disclose bought --shards 3 --to Carol --out carol.polo")
    assert code == 0
    assert "its prover knows" in said
    assert run(f"verify carol.polo --trust {ISSUER}")[0] == 0
    code, said = run("disclose bought --shards 2 --to Carol --out dora.polo")
    assert code == 2
    assert "mark 2 cannot be shown: nonces/000002.json is not here" in said
    assert run("export bought --as public --out public.polo")[0] == 0
    assert run("export bought --as verifier --to Carol --out whole.polo")[0] == 2
    assert not Path("whole.polo").exists()
    assert "Carol buyer 3" in run("disclose bought --list")[1]


MISTAKES = {
    "disclose": "PROOF",
    "disclose nothing --list": "no proof here",
    "disclose proof": "--shards is missing",
    "disclose proof --shards 1 --to Bob": "--out is missing",
    "disclose proof --shards 1 --out b.polo": "--to is missing",
    "disclose proof --shards 4 --to Bob --out b.polo": "there is no shard 4",
    "disclose proof --shards 0 --to Bob --out b.polo": "there is no shard 0",
    "disclose proof --shards 3-2 --to Bob --out b.polo": "the range 3-2 runs backwards",
    "disclose proof --shards 9-2 --to Bob --out b.polo": "there is no shard 9-2",
    "disclose proof --shards 1 --to  --out b.polo": "say who gets it",
    "disclose proof --shards 1 --to Bob --out nosuch/q.polo": "no such folder",
    "export proof --as public --out nosuch/q.polo": "no such folder",
    "verify proof --report nosuch/x.html": "in a folder that does not exist",
    "verify proof --report proof.d": "is a folder",
    "disclose proof --shards 1;2 --to Bob --out b.polo": "is no shard",
    "disclose proof --shards , --to Bob --out b.polo": "is no shard",
    "disclose proof --shards 1 --to Bob --out bob.tar": "--out bob.tar.polo",
    "disclose proof --shards 1 --to Bob --out proof/b.polo": "nobody signed",
    "disclose proof --shards 1 --to Bob --out taken.polo": "never overwritten",
    "disclose taken.polo --shards 1 --to Bob --out b.polo": "polo import taken.polo",
    "export proof --as buyer --out b.polo": "buyer",
    "export proof --out b.polo": "--as",
    "export proof --as public": "--out",
    "import proof --out x": "is a folder",
    "import nothing --out x": "nothing",
    "import taken.polo --out proof": "exists already",
    "import taken.polo --out x": "no bundle",
    "import zipped.polo --out x": "zip file",
    "import cut.polo --out x": "ends too early",
    "import good.polo --out a/b/c": "no such folder",
    "verify zipped.polo": "zip file",
    "verify cut.polo": "ends too early",
    "show zipped.polo": "zip file",
    "show nothing.polo": "no proof here",
}


@pytest.mark.parametrize("line", MISTAKES)
def test_mistakes_say_what_to_do(run: Run, line: str) -> None:
    Path("taken.polo").write_text("text")
    Path("zipped.polo").write_bytes(b"PK\x03\x04" + bytes(1000))
    run("export proof --as public --out good.polo")
    Path("cut.polo").write_bytes(Path("good.polo").read_bytes()[:3000])
    Path("proof.d").mkdir()
    before = sorted(Path().iterdir())
    code, said = run(line)
    assert code == (1 if line == "verify cut.polo" else 2)
    assert MISTAKES[line] in said
    after = [path for path in sorted(Path().iterdir()) if path.name != "proof.state"]
    assert after == before
    assert Path("taken.polo").read_text() == "text"


@pytest.mark.parametrize(
    ("text", "shards"),
    [
        ("3", (3,)),
        ("3,9", (3, 9)),
        ("9, 3,3", (3, 9)),
        ("2-5", (2, 3, 4, 5)),
        ("last", (50,)),
        ("49-last,1", (1, 49, 50)),
    ],
)
def test_shards_as_people_type_them(text: str, shards: tuple[int, ...]) -> None:
    assert parse_shards(text, 50) == shards


@pytest.mark.parametrize(
    "text", ["", "51", "1-51", "1--2", "-1", "1-", "x", "1.5", "²", "1-2-3", "9" * 100, "first"]
)
def test_shards_that_are_none(text: str) -> None:
    with pytest.raises(PoloError):
        parse_shards(text, 50)
    with pytest.raises(PoloError):
        parse_shards("last", 0)


def test_a_buyer_checks_the_model_they_got(run: Run) -> None:
    """Without weights in the bundle the root tells whether a file is the last checkpoint."""
    run("disclose proof --shards 1 --to Bob --out bob.polo")
    verify = f"verify bob.polo --trust {ISSUER} --model"
    last = Path("proof/checkpoints/000003.safetensors")
    code, said = run(f"{verify} {last}")
    assert code == 0
    assert "it is exactly the last checkpoint" in said
    assert "a file you hold" not in said
    data = bytearray(last.read_bytes())
    data[-1] ^= 1
    Path("other.safetensors").write_bytes(data)
    code, said = run(f"{verify} other.safetensors")
    assert code == 1
    assert "its root is another" in said
    code, said = run(f"{verify} proof/openings/000001.safetensors")
    assert code == 2
    assert "not exactly those of the layout" in said


def test_part_of_a_proof_cannot_be_gone_on_with(run: Run, alice: polo.Identity) -> None:
    run("disclose proof --shards 1 --to Bob --out bob.polo")
    run("import bob.polo --out part")
    with pytest.raises(PoloError, match="holds part of a proof"):
        ProofWriter("part", alice, Retention("all", 1, False))
