"""Every error that a registry can answer has a stable code, and the code is documented."""

import ast
import inspect
from pathlib import Path

import pytest

import polo.registry.app  # noqa: F401  (the domains add their codes)
from polo import errors
from polo.registry import problems

ROOT = Path(__file__).resolve().parents[2]
SOURCES = sorted((ROOT / "src" / "polo" / "registry").rglob("*.py"))


def codes_in(path):
    """Words that look like a code and are arguments of a call, with their lines."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "Problem":
            second = node.args[1] if len(node.args) > 1 else None
            if isinstance(second, ast.Constant):
                yield second.value, node.lineno


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_code_is_known(path):
    unknown = [
        f"{path.name}:{line} {code}" for code, line in codes_in(path) if code not in problems.CODES
    ]
    assert unknown == []


def test_the_document_lists_every_code():
    written = (ROOT / "docs" / "errors.md").read_text()
    assert written == problems.document(), "run make docs"


def test_codes_are_words():
    for code, meaning in problems.CODES.items():
        area, dot, word = code.partition(".")
        assert dot
        assert (area + word).replace("-", "").isalpha(), code
        assert meaning.endswith("."), code


def made(kind):
    needed = {"code": "x", "status": 400} if issubclass(kind, errors.RegistryError) else {}
    known = inspect.signature(kind).parameters
    needed = {name: value for name, value in needed.items() if name in known}
    return kind("it is wrong", place="here", advice="do this", **needed)


@pytest.mark.parametrize(
    "kind",
    [
        item
        for item in vars(errors).values()
        if isinstance(item, type) and issubclass(item, errors.PoloError)
    ],
)
def test_every_error_of_the_protocol_becomes_a_problem(kind):
    problem = problems.problem_of(made(kind))
    assert problem.status == 422
    assert problem.code in problems.CODES
    assert (problem.detail, problem.advice) == ("here: it is wrong", "do this")


def test_a_problem_stays_what_it_is():
    problem = problems.Problem(404, "resource.missing", "nothing")
    assert problems.problem_of(problem) is problem
