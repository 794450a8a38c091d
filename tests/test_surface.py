"""What the package shows to the outside, and what it costs to import."""

import ast
import importlib.util
import pkgutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import polo

PUBLIC = [
    "Client",
    "DataSource",
    "EmbeddingWarning",
    "Identity",
    "LiveEnrolment",
    "OfflineEnrolment",
    "Outcome",
    "Policy",
    "PoloError",
    "Proof",
    "Prover",
    "ReceiptWarning",
    "Recipe",
    "TrustStore",
    "Verdict",
    "__version__",
    "capacity_of",
    "compare",
    "draw_start",
    "enrol",
    "errors",
    "identify",
    "keys",
    "load_weights",
    "make_terms",
    "released",
    "tasks",
    "verify",
    "weights",
]


def test_the_public_names_are_these_and_no_others() -> None:
    assert sorted(polo.__all__) == PUBLIC
    assert dir(polo) == polo.__all__


@pytest.mark.parametrize("name", PUBLIC)
def test_every_public_name_is_there(name: str) -> None:
    assert getattr(polo, name) is not None


def test_other_names_are_not() -> None:
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        polo.nothing  # noqa: B018
    assert not hasattr(polo, "Checkpoint")


# What must not be loaded, by what is imported.
LIGHT = {
    "import polo": ["numpy", "torch", "rich", "safetensors", "cryptography"],
    "import polo.cli": ["numpy", "torch"],
    "import polo.protocol.records, polo.protocol.chain": ["numpy", "torch", "cryptography"],
    "import polo; polo.Identity, polo.tasks, polo.errors": ["numpy", "torch", "rich"],
    "import polo; polo.verify, polo.weights, polo.make_terms": ["torch", "rich"],
    "import polo.watermark, polo.storage.history, polo.storage.writer": ["torch", "rich"],
}


@pytest.mark.parametrize("code", LIGHT)
def test_importing_loads_no_more_than_it_needs(code: str, in_child: Callable[..., Any]) -> None:
    found = in_child(f"{code}\nimport sys\nprint(*sys.modules)", bare=True).stdout.split()
    assert "polo" in found
    assert sorted(set(LIGHT[code]) & set(found)) == []


def modules() -> list[str]:
    return [
        module.name
        for module in pkgutil.walk_packages(polo.__path__, "polo.")
        if not module.name.split(".")[-1].startswith("_")
    ]


@pytest.mark.parametrize("name", ["polo", *modules()])
def test_every_module_says_what_it_is_for(name: str) -> None:
    spec = importlib.util.find_spec(name)
    assert spec is not None
    assert spec.origin is not None
    text = ast.get_docstring(ast.parse(Path(spec.origin).read_text(encoding="utf-8")))
    assert text
    assert text.splitlines()[0].rstrip().endswith((".", ":", "?"))


def test_the_version_is_the_one_of_the_distribution() -> None:
    from importlib.metadata import version

    assert polo.__version__ == version("polo-proof")
