"""Tasks: what the operator offers, built without torch in the server."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from polo.errors import FormatError, PoloError, StoreError, TaskError, TermsError
from polo.registry.operations.doctor import WARNING, examine
from polo.registry.problems import Problem
from polo.registry.settings import Settings
from polo.registry.tasks import building, offers, service
from polo.registry.tasks.offers import Bits, Offer
from polo.registry.tasks.service import Tasks


def test_tasks_are_listed(client: Any, live: Any) -> None:
    listed = client.get("/v1/tasks").json()
    assert listed["broken"] == {}
    (digits,) = listed["items"]
    assert (digits["name"], digits["version"], digits["metric"]) == ("digits", 1, "accuracy")
    assert digits["layout"] == live.record.terms.layout.hex()
    assert digits["levels"] == ["chain", "receipts", "uniqueness", "progress", "replay"]
    assert digits["bits"] == {"usual": 128, "least": 128, "most": 512}
    assert digits["floor"][0] == 200_000
    shown = client.get("/v1/tasks/digits").json()
    assert shown["terms"]["shards"]["most"] == 6
    assert client.get("/v1/tasks/poker").json()["code"] == "task.missing"


def test_a_task_is_built_once(built: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def build(*_: Any, **__: Any) -> bytes:
        raise AssertionError("built again")

    monkeypatch.setattr(service, "_build", build)
    again = Tasks(built, str(built / "tasks.toml"))
    assert again.get("digits").terms.task.name == "digits"


def test_a_task_that_cannot_be_built_says_why(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "tasks.toml"
    file.write_text("[digits]\nbits = 40000\n[nothing]\n")
    tasks = Tasks(tmp_path, str(file))
    with pytest.raises(PoloError, match="40000 bits"):
        tasks.get("digits")
    with pytest.raises(PoloError, match="unknown here") as refused:
        tasks.get("nothing")
    assert "Tell the registry's operator" in refused.value.advice
    # So does the operator's log, once for each try.
    told = [record.getMessage() for record in caplog.records if "cannot be offered" in record.msg]
    assert len(told) == 2
    assert "40000 bits" in told[0]
    assert "task nothing" in told[1]


@pytest.mark.slow
@pytest.mark.parametrize("offers", ["[lab-cifar]\n"])
def test_a_task_without_its_data_is_broken_and_nobody_is_enrolled_for_it(
    client: Any,
    client_of: Any,
    alice: Any,
    settings: Settings,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("POLO_DATA", str(tmp_path))
    listed = client.get("/v1/tasks").json()
    assert listed["items"] == []
    assert "CIFAR-10 is not here" in listed["broken"]["lab-cifar"]
    refused = client_of(alice).post("/v1/enrolments", json={"task": "lab-cifar"})
    assert (refused.status_code, refused.json()["code"]) == (422, "error.missing")
    assert "the data that models are tested on" in refused.json()["advice"]
    # The doctor is asked at the machine, and gives the task's own advice.
    [line] = [line for line in examine(settings) if line.about == "tasks"]
    assert (line.state, "CIFAR-10 is not here" in line.found) == (WARNING, True)
    assert "cifar-10-batches-bin" in line.advice


def test_data_are_asked_for_where_models_are_tested_alone(tmp_path: Path) -> None:
    (tmp_path / "tasks.toml").write_text("[lab-cifar]\n")
    tasks = Tasks(tmp_path, str(tmp_path / "tasks.toml"), tested=False)
    assert tasks.get("lab-cifar").terms.task.name == "lab-cifar"


def test_a_task_that_was_built_is_asked_again_for_other_data(
    built: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    def build(offer: Offer, **_: Any) -> bytes:
        asked.append(offer.task)
        raise TermsError("the data are not there")

    monkeypatch.setattr(service, "_build", build)
    monkeypatch.setenv("POLO_DATA", "/elsewhere")
    with pytest.raises(TermsError):
        Tasks(built, str(built / "tasks.toml")).get("digits")
    assert asked == ["digits"]


class Untestable:
    """A task whose test does not work, or works without running the model as a whole."""

    def __init__(self, error: Exception | None) -> None:
        self.error = error
        self.ran = False

    def build_model(self) -> Any:
        from torch import nn

        model = nn.Sequential(nn.Linear(2, 2))
        model.__dict__["hidden"] = [nn.Linear(2, 2)]
        return model

    def evaluate(self, model: Any) -> float:
        import torch

        if self.error:
            raise self.error
        # As an adapter keeps its base: where torch does not look for modules.
        model.hidden[0](torch.zeros(1, 2))
        self.ran = True
        return 0.0


def test_a_test_is_begun_and_never_run() -> None:
    task: Any = Untestable(None)
    building.check_data(task)
    assert not task.ran


def test_a_test_that_fails_is_told() -> None:
    task: Any = Untestable(OSError("no such file"))
    with pytest.raises(TaskError, match=r"cannot be tested here: OSError: no such file"):
        building.check_data(task)


def test_the_server_never_loads_torch(built: Path) -> None:
    code = (
        "import sys; from pathlib import Path\n"
        "import polo.registry.app\n"
        "assert 'numpy' not in sys.modules, 'numpy'\n"
        "from polo.registry.tasks.service import Tasks\n"
        "from polo.registry.enrolments.terms import terms_for\n"
        "from polo.protocol.log_notes import NoteKey\n"
        "folder = Path(sys.argv[1])\n"
        "offered = Tasks(folder, str(folder / 'tasks.toml')).get('digits')\n"
        "terms_for(offered, origin='a.test', log=NoteKey('a.test', bytes(32)), bits=256)\n"
        "assert 'torch' not in sys.modules, 'torch'\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(built)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def test_the_usual_offers() -> None:
    assert set(offers.load("")) == {"digits", "lab-cifar"}


def test_an_offer_of_everything() -> None:
    offer = Offer.of(
        "digits",
        {
            "bits": {"usual": 256, "least": 128, "most": 512},
            "history": "streaming",
            "checkpoints": 0.25,
            "fastest": 10,
            "noise": [0.01, 0.02],
            "shards": 9,
            "keep": 30,
            "gpu": True,
        },
    )
    assert offer.bits == Bits(256, 128, 512)
    assert offer.receipts == {"fastest": 10, "checkpoints": 250_000, "keep": 30}
    assert (offer.queue, Offer("digits").queue) == ("gpu", "cpu")
    assert offer.options == {"noise": [0.01, 0.02], "shards": 9}
    assert Offer.of("digits", {"recipe": {}}).history == "all"
    assert Offer.of("digits", {"bits": 300}).bits == Bits(300, 300, 300)


@pytest.mark.parametrize(
    "table",
    [
        {"bites": 1},
        {"bits": "many"},
        {"bits": {"usual": 5, "least": 8, "most": 9}},
        {"bits": {"some": 5}},
        {"shards": -1},
        {"shards": True},
        {"checkpoints": 2},
        {"history": "none"},
        {"noise": [1]},
        {"progress": "yes"},
        {"carrier": [1]},
        {"scheme": 5},
        {"gpu": 1},
        {"keep": -1},
        5,
    ],
)
def test_offers_that_are_refused(table: Any) -> None:
    with pytest.raises(FormatError):
        Offer.of("digits", table)


def test_files_of_offers_that_are_refused(tmp_path: Path) -> None:
    with pytest.raises(StoreError):
        offers.load(str(tmp_path / "none"))
    (tmp_path / "x").write_bytes(b"\xff = ")
    with pytest.raises(FormatError):
        offers.load(str(tmp_path / "x"))
    with pytest.raises(TermsError):
        Offer.of("digits", {"replays": 0.5})


@pytest.mark.parametrize(
    ("table", "place", "words"),
    [
        ({"replays": 1}, "replays", "need a recipe"),
        ({"replays": 1, "recipe": {}, "history": "all"}, "replays", "at the close"),
        ({"replays": 1, "recipe": {}, "history": "after-close"}, "replays", "at the close"),
        ({"recipe": {}, "history": "streaming"}, "replays", "while it grows"),
        ({"replays": 0, "recipe": {}, "history": "streaming"}, "replays", "while it grows"),
        ({"progress": True, "history": "streaming"}, "progress", "all checkpoints"),
        ({"replays": 1, "recipe": {"tolerance": 1000}}, "recipe.tolerance", "a drawn start"),
    ],
)
def test_offers_that_could_not_work_are_refused(
    table: dict[str, Any], place: str, words: str
) -> None:
    with pytest.raises(TermsError, match=words) as refusal:
        Offer.of("digits", table)
    assert refusal.value.place == f"tasks: digits.{place}"
    assert refusal.value.advice or words == "need a recipe"


def test_steps_are_drawn_while_a_chain_streams() -> None:
    offer = Offer.of("digits", {"replays": 0.5, "recipe": {"draws": 4}})
    assert (offer.history, offer.receipts["replays"]) == ("streaming", 500_000)
    tolerant = {"replays": 1, "recipe": {"tolerance": 1000}, "start": "derived"}
    assert Offer.of("digits", tolerant).history == "streaming"


def test_strangers_cannot_have_a_broken_task_built_over_and_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tries = []

    def build(offer: Offer, **_: Any) -> bytes:
        tries.append(offer.task)
        raise TermsError("cannot be built")

    monkeypatch.setattr(service, "_build", build)
    tasks = Tasks(tmp_path)
    for _ in range(5):
        with pytest.raises(TermsError, match="cannot be built"):
            tasks.get("digits")
    assert tries == ["digits"]
    monkeypatch.setattr(service, "FAILED_SECONDS", -1)
    tasks = Tasks(tmp_path)
    for _ in range(2):
        with pytest.raises(TermsError, match="cannot be built"):
            tasks.get("digits")
    assert len(tries) == 3


def test_nobody_waits_long_while_a_task_is_built(tmp_path: Path) -> None:
    with service._building, pytest.raises(Problem, match="being made ready") as caught:
        Tasks(tmp_path).get("digits")
    assert (caught.value.status, caught.value.headers) == (503, {"Retry-After": "5"})
