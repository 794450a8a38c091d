"""The application as its OpenAPI document describes it, asked for everything, right and wrong.

Cases are drawn by schemathesis from the document that the application gives itself: values that fit
and values that do not. Whatever comes, the answer is one that the document knows, and never a
failure of the registry's.
"""

import json
import secrets
import shutil
import time

import hypothesis
import live_chain
import pytest
import requests
import schemathesis
from hypothesis import HealthCheck, Phase
from schemathesis.core.failures import FailureGroup
from schemathesis.generation import GenerationMode
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from polo.protocol import requests as signing
from polo.registry import problems
from polo.registry.app import create_app
from polo.registry.settings import Settings
from polo.registry.tasks.service import Tasks

EXAMPLES = 4
LONGEST = 10.0
CHECKS = [
    status_code_conformance,
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
]
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def tasks(tmp_path_factory):
    """The folder of a registry whose tasks are built, which takes seconds."""
    folder = tmp_path_factory.mktemp("built")
    (folder / "tasks.toml").write_text("[digits]\n")
    Tasks(folder, str(folder / "tasks.toml")).get("digits")
    return folder


@pytest.fixture
def settings(tmp_path, database_url, tasks):
    shutil.copytree(tasks / "tasks", tmp_path / "data" / "tasks")
    return Settings(
        data=tmp_path / "data",
        database=database_url,
        origin="registry.test/log",
        rate=100_000,
        guest_rate=100_000,
        tasks=str(tasks / "tasks.toml"),
    )


@pytest.fixture
def chain(registry, client):
    """Something to ask about."""
    made = live_chain.enrol(registry, live_chain.identity(1))
    made.clock = registry.clock
    for _ in range(3):
        made.commit(client)
    return made


def nobody(_chain, _prepared):
    return {}


def prover(chain, prepared):
    """The signature of whoever owns the chain, over the request as it is."""
    body = prepared.body or b""
    body = body.encode() if isinstance(body, str) else body
    return {
        "Authorization": signing.sign(
            chain.prover,
            prepared.method,
            chain.log.name,
            prepared.path_url,
            body,
            time=chain.clock(),
            nonce=secrets.token_bytes(16),
        )
    }


@pytest.fixture
def operator(token_of):
    secret = token_of("operator")
    return lambda _chain, _prepared: {"Authorization": f"Bearer {secret}"}


@pytest.fixture(params=["nobody", "prover", "operator"])
def caller(request):
    """Who asks: gives the headers that say so."""
    if request.param == "operator":
        return request.getfixturevalue("operator")
    return {"nobody": nobody, "prover": prover}[request.param]


def operations(app, mode):
    schema = schemathesis.openapi.from_dict(app.openapi())
    for found in schema.get_all_operations():
        operation = found.ok()
        try:
            yield operation, operation.as_strategy(generation_mode=mode)
        except schemathesis.errors.SchemathesisError:
            continue


@pytest.mark.parametrize(
    "database_url", ["sqlite", pytest.param("postgresql", marks=pytest.mark.full)], indirect=True
)
@pytest.mark.parametrize("mode", [GenerationMode.POSITIVE, GenerationMode.NEGATIVE])
def test_every_answer_is_in_the_document(registry, client, chain, caller, mode):
    asked, wrong = 0, []
    for operation, strategy in operations(create_app(registry), mode):

        @hypothesis.settings(
            max_examples=EXAMPLES,
            deadline=None,
            database=None,
            derandomize=True,
            phases=[Phase.explicit, Phase.generate],
            suppress_health_check=list(HealthCheck),
        )
        @hypothesis.given(case=strategy, known=hypothesis.strategies.booleans())
        def ask(case, known):
            nonlocal asked
            asked += send(client, chain, caller, case, known)

        try:
            ask()
        except hypothesis.errors.Unsatisfiable:
            continue
        except (AssertionError, FailureGroup) as error:
            wrong.append(f"{operation.method.upper()} {operation.path}: {str(error)[:800]}")
    assert not wrong, "\n\n".join(wrong)
    assert asked > 100
    assert client.get("/readyz").status_code == 200
    other = live_chain.enrol(registry, live_chain.identity(2))
    other.clock = registry.clock
    other.commit(client)


def send(client, chain, caller, case, known):
    """Send one case, and check its answer; whether it could be sent at all."""
    ends = case.operation.path.endswith(("/withdraw", "/close"))
    if known and not ends and "enrolment" in (case.path_parameters or {}):
        case.path_parameters["enrolment"] = chain.id
    try:
        prepared = requests.Request(**case.as_transport_kwargs("http://testserver")).prepare()
        headers = {**prepared.headers, **caller(chain, prepared)}
        begun = time.monotonic()
        answer = client.request(
            prepared.method, prepared.url, content=prepared.body, headers=headers
        )
    except (requests.RequestException, UnicodeError, ValueError, signing.FormatError):
        return False  # No client can send it.
    told = (case.method, prepared.url, prepared.body, answer.status_code, answer.text[:500])
    assert time.monotonic() - begun < LONGEST, told
    assert answer.status_code < 500, told
    if answer.status_code >= 400:
        assert answer.headers["content-type"] == problems.MEDIA_TYPE, told
        problem = json.loads(answer.content)
        assert problem["code"] in problems.CODES, told
        assert problem["status"] == answer.status_code, told
    case.validate_response(answer, checks=CHECKS)
    return True
