"""Frameworks are optional: not imported unless asked for, and asked for by name when missing."""

from collections.abc import Callable
from typing import Any

import pytest

FRAMEWORKS = ["transformers", "lightning", "accelerate"]


def test_polo_imports_no_framework(in_child: Callable[..., Any]) -> None:
    code = "import polo, polo.integrations, polo.integrations.loop, sys\nprint(*sys.modules)"
    found = set(in_child(code, bare=True).stdout.split())
    assert "polo.integrations.loop" in found
    assert found.isdisjoint([*FRAMEWORKS, "opacus", "peft"])


@pytest.mark.parametrize("name", FRAMEWORKS)
def test_a_missing_framework_is_named(name: str, in_child: Callable[..., Any]) -> None:
    code = (
        f"import sys\nsys.modules[{name!r}] = None\n"
        "from polo.errors import MissingError\n"
        f"try:\n    import polo.integrations.{name}\n"
        "except MissingError as error:\n    print(error.diagnostics())\n"
    )
    assert f"pip install 'polo-proof[{name}]'" in in_child(code, bare=True).stdout
