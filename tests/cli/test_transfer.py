"""`polo transfer` and `polo enrol --parent` as seller and buyer use them, mistakes included."""

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from shlex import split
from typing import Any

import pytest
import torch

import polo
from polo import cli
from polo.protocol.records import Transfer
from polo.storage.folder import ProofFolder

TASK = """
from torch import nn


class Tiny:
    name, version, metric, floor = "tiny", 1, "accuracy", (0.15,)

    def build_model(self):
        return nn.Sequential(
            nn.Linear(16, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(),
            nn.Linear(64, 4),
        )

    def evaluate(self, model):
        return 0.5
"""


def run(*arguments: object) -> int:
    return cli.run([str(argument) for argument in arguments])


@pytest.fixture
def shop(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    make_proof: Callable[..., Any],
    alice: polo.Identity,
    bob: polo.Identity,
    carol: polo.Identity,
    issuer: polo.Identity,
) -> Any:
    """The current folder: keys of everybody, and alice's finished proof."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("POLO_TRUST", str(tmp_path / "trust"))
    for name, key in (("alice", alice), ("bob", bob), ("carol", carol), ("issuer", issuer)):
        key.save(tmp_path / f"{name}.key")
        polo.keys.save_public(key.public_key, tmp_path / f"{name}.pub")
    Path("transfer_shop.py").write_text(TASK)
    return make_proof(tmp_path / "alice-proof", epochs=2)


@pytest.fixture
def bought(shop: Any, buy: Callable[..., Any], bob: polo.Identity) -> Any:
    """Bob's proof, before he asks for the model."""
    return buy(Path("bob-proof"), bob, seller=shop.path, seller_key=None)


REQUEST = split("transfer request bob-proof --from alice-proof --key bob.key --out t.json")
SIGN = split("transfer sign t.json --proof alice-proof --key alice.key")
COMPLETE = split("transfer complete bob-proof t.json --from alice-proof --key bob.key")
VERIFY = split("verify bob-proof --trust issuer.pub --accuracy none")


def fails(capsys: pytest.CaptureFixture[str], words: str, *arguments: object) -> None:
    capsys.readouterr()
    assert run(*arguments) == 2
    output = capsys.readouterr()
    assert "Traceback" not in output.err
    assert words in " ".join(output.err.split()), output.err


def test_a_model_changes_hands(
    bought: Any, capsys: pytest.CaptureFixture[str], alice: polo.Identity, bob: polo.Identity
) -> None:
    assert run(*REQUEST) == 0
    assert "polo transfer sign t.json" in capsys.readouterr().out
    assert run(*SIGN) == 0
    assert "the model is theirs" in capsys.readouterr().out
    assert run(*COMPLETE) == 0
    assert "polo verify bob-proof" in capsys.readouterr().out
    assert run(*VERIFY) == 0
    assert "1 transfer and 2 marks of earlier owners hold" in " ".join(
        capsys.readouterr().out.split()
    )
    assert run("transfer", "show", "bob-proof") == 0
    shown = capsys.readouterr().out
    assert f"{alice.id[:16]}…  shards 1 to 2" in shown
    assert f"{bob.id[:16]}…  shards 3 to 3" in shown
    assert run("transfer", "show", "bob-proof", "--json") == 0
    owners = json.loads(capsys.readouterr().out)
    assert [(o["id"], o["first"], o["last"], o["how"]) for o in owners] == [
        (alice.id, 1, 2, "trained"),
        (bob.id, 3, 3, "transfer"),
    ]


def test_every_step_prints_json(bought: Any, capsys: pytest.CaptureFixture[str]) -> None:
    for order, word in ((REQUEST, "transfer"), (SIGN, "transfer"), (COMPLETE, "proof")):
        assert run(*order, "--json") == 0
        assert json.loads(capsys.readouterr().out)["format"] == f"polo/{word}/1"


def test_bundles_will_do(bought: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert (
        run("export", "alice-proof", "--as", "verifier", "--to", "bob", "--out", "alice.polo") == 0
    )
    order = ["alice.polo" if part == "alice-proof" else part for part in REQUEST]
    assert run(*order) == 0
    assert run(*SIGN) == 0
    assert run(*("alice.polo" if part == "alice-proof" else part for part in COMPLETE)) == 0
    assert run("export", "bob-proof", "--as", "verifier", "--to", "bob", "--out", "bob.polo") == 0
    assert run("transfer", "show", "bob.polo") == 0
    assert run("verify", "bob.polo", "--trust", "issuer.pub", "--accuracy", "none") == 0


def test_a_buyer_is_enrolled_with_a_parent(
    shop: Any, bob: polo.Identity, capsys: pytest.CaptureFixture[str]
) -> None:
    order = split("enrol --task transfer_shop:Tiny --identity bob.pub --issuer issuer.key")
    order += split("--bits 128 --shards 5 --out enrolment --parent alice-proof")
    assert run(*order) == 0, capsys.readouterr().err
    enrolment = polo.OfflineEnrolment.load("enrolment")
    assert enrolment.record.terms.start.parent == shop.manifest.last_root
    model = shop.task.build_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02)
    prover = polo.Prover("enrolment", key="bob.key", store="bob-proof")
    with pytest.raises(polo.errors.WeightsError, match="differs"):
        prover.attach(model, optimizer, parent="alice-proof")
    polo.load_weights(model, "alice-proof")
    with prover.attach(model, optimizer):
        shop.task.train_epoch(model, optimizer)
        prover.end_epoch()
    assert prover.finish().shards == 1
    for step in (REQUEST, SIGN, COMPLETE, VERIFY):
        assert run(*step) == 0, capsys.readouterr()


def test_parents_that_will_not_do(shop: Any, capsys: pytest.CaptureFixture[str]) -> None:
    order = split("enrol --task digits --identity bob.pub --issuer issuer.key --out e --parent")
    fails(capsys, "no proof here", *order, "nowhere")
    fails(capsys, "not those of the task's model", *order, "alice-proof")
    manifest = Path("alice-proof/manifest.json")
    manifest.write_bytes(manifest.read_bytes().replace(b'"outside":0', b'"outside":1'))
    fails(capsys, "signature", *order, "alice-proof")
    assert not Path("e").exists()


def test_the_wrong_order(bought: Any, capsys: pytest.CaptureFixture[str]) -> None:
    fails(capsys, "cannot be opened", *SIGN)
    fails(capsys, "cannot be opened", *COMPLETE)
    assert run(*REQUEST) == 0
    fails(capsys, "the seller has not signed it", *COMPLETE)
    fails(capsys, "exists already", *REQUEST)
    assert ProofFolder("bob-proof").manifest().transfer is None


def test_the_wrong_key(bought: Any, capsys: pytest.CaptureFixture[str]) -> None:
    fails(capsys, "not to the key you gave", *(p.replace("bob.key", "carol.key") for p in REQUEST))
    fails(capsys, "cannot be read", *(p.replace("bob.key", "lost.key") for p in REQUEST))
    fails(capsys, "threat-model.md", *(p.replace("bob.key", "lost.key") for p in REQUEST))
    assert not Path("t.json").exists()
    assert run(*REQUEST) == 0
    fails(capsys, "not to the key you gave", *(p.replace("alice.key", "bob.key") for p in SIGN))
    fails(capsys, "docs/threat-model.md", *(p.replace("alice.key", "bob.key") for p in SIGN))
    fails(capsys, "asks somebody else", *(p.replace("alice", "bob") for p in SIGN))
    assert run(*SIGN) == 0
    fails(capsys, "not to the key", *(p.replace("bob.key", "alice.key") for p in COMPLETE))


def test_an_altered_request(bought: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(*REQUEST) == 0
    asked = Transfer.from_bytes(Path("t.json").read_bytes(), "t.json")
    Path("t.json").write_bytes(replace(asked, first=bytes(32)).to_bytes())
    fails(capsys, "altered, or never signed", *SIGN)
    Path("t.json").write_bytes(b"{}")
    fails(capsys, "expected format polo/transfer/1", *SIGN)
    Path("t.json").write_bytes(b" " * 100_000)
    fails(capsys, "t.json", *SIGN)


def test_a_second_sale(
    bought: Any,
    buy: Callable[..., Any],
    bob: polo.Identity,
    carol: polo.Identity,
    capsys: pytest.CaptureFixture[str],
) -> None:
    buy(Path("carol-proof"), carol, seller=Path("alice-proof"), seller_key=None)
    shutil.copytree("alice-proof", "copy")
    assert run(*REQUEST) == 0
    assert run(*SIGN) == 0
    assert run(*(part.replace("bob", "carol").replace("t.json", "c.json") for part in REQUEST)) == 0
    sign = [part.replace("t.json", "c.json") for part in SIGN]
    fails(capsys, f"you handed this model to {bob.id[:16]}", *sign)
    fails(capsys, "Unknown option", *sign, "--again")


def test_mistakes_of_the_buyer(
    shop: Any,
    bought: Any,
    buy: Callable[..., Any],
    alice: polo.Identity,
    carol: polo.Identity,
    capsys: pytest.CaptureFixture[str],
) -> None:
    buy(Path("empty"), carol, seller=shop.path, seller_key=None, epochs=0)
    order = split("transfer request empty --from alice-proof --key carol.key --out t.json")
    fails(capsys, "you have sealed no shard yet", *order)
    order = split("transfer request alice-proof --from bob-proof --key alice.key --out t.json")
    fails(capsys, "your terms name no parent", *order)
    fails(capsys, "inside your proof", *REQUEST[:-1], "bob-proof/t.json")
    fails(capsys, "no such folder", *REQUEST[:-1], "nowhere/t.json")
    fails(capsys, "no proof here", *(p.replace("alice-proof", "nowhere") for p in REQUEST))
    fails(capsys, "no proof here", "transfer", "show", "nowhere")


def test_a_protected_key(bought: Any, bob: polo.Identity, monkeypatch: pytest.MonkeyPatch) -> None:
    Path("bob.key").unlink()
    bob.save("bob.key", b"correct horse")
    monkeypatch.delenv("POLO_PASSPHRASE", raising=False)
    assert run(*REQUEST) == 2
    monkeypatch.setenv("POLO_PASSPHRASE", "correct horse")
    assert run(*REQUEST, "--passphrase") == 0


def test_a_request_from_a_public_bundle_says_what_is_left_to_do(
    bought: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("export", "alice-proof", "--as", "public", "--out", "pub.polo") == 0
    capsys.readouterr()
    assert run(*("pub.polo" if part == "alice-proof" else part for part in REQUEST)) == 0
    said = capsys.readouterr().out
    assert "--proof pub.polo" not in said
    assert "pub.polo shows no mark" in said


def test_a_link_in_the_place_of_a_request(bought: Any, capsys: pytest.CaptureFixture[str]) -> None:
    Path("t.json").symlink_to("nowhere")
    fails(capsys, "exists already", *REQUEST)
    assert not Path("nowhere").exists()


def test_swapped_arguments(bought: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(*REQUEST) == 0
    sign = split("transfer sign alice-proof --proof t.json --key alice.key")
    fails(capsys, "polo transfer sign TRANSFER.json --proof PROOF", *sign)
    complete = split("transfer complete t.json bob-proof --from alice-proof --key bob.key")
    fails(capsys, "polo transfer complete PROOF TRANSFER.json", *complete)


def test_a_public_key_for_a_private_one(bought: Any, capsys: pytest.CaptureFixture[str]) -> None:
    fails(capsys, "Give the .key file", *(p.replace("bob.key", "bob.pub") for p in REQUEST))
    order = split("enrol --task transfer_shop:Tiny --identity bob.pub --issuer issuer.pub --out e")
    fails(capsys, "Give the .key file", *order, "--bits", "128")
    assert not Path("e").exists()
