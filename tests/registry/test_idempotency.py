"""A retry of a request that made something gets the same answer, and makes nothing."""

import threading

import pytest

ASKED = {"name": "Ada", "role": "auditor", "scopes": ["read"]}


def code(answer):
    return answer.status_code, answer.json().get("code")


def made(operator):
    return [t for t in operator.get("/v1/tokens").json()["items"] if t["name"] == "Ada"]


def test_the_same_word_gives_the_same_answer(person, clock):
    operator, word = person("operator"), {"Idempotency-Key": "a-word"}
    first = operator.post("/v1/tokens", json=ASKED, headers=word)
    clock.advance(5)
    second = operator.post("/v1/tokens", json=ASKED, headers=word)
    assert first.json() == second.json()
    assert len(made(operator)) == 1
    operator.post("/v1/tokens", json=ASKED, headers={"Idempotency-Key": "another"})
    operator.post("/v1/tokens", json=ASKED)
    assert len(made(operator)) == 3


def test_the_same_word_for_something_else_is_refused(person):
    operator, word = person("operator"), {"Idempotency-Key": "a-word"}
    assert operator.post("/v1/tokens", json=ASKED, headers=word).status_code == 201
    other = operator.post("/v1/tokens", json={**ASKED, "days": 3}, headers=word)
    assert code(other) == (409, "idempotency.other")


def test_words_are_each_callers_own(person):
    first, second = person("operator"), person("operator")
    word = {"Idempotency-Key": "a-word"}
    one = first.post("/v1/tokens", json=ASKED, headers=word).json()
    two = second.post("/v1/tokens", json=ASKED, headers=word).json()
    assert one["token"] != two["token"]


def test_a_refused_request_is_not_remembered(person):
    operator, word = person("operator"), {"Idempotency-Key": "a-word"}
    assert operator.post("/v1/tokens", json={}, headers=word).status_code == 422
    assert operator.post("/v1/tokens", json=ASKED, headers=word).status_code == 201


def test_it_is_forgotten_after_a_day(person, clock):
    operator, word = person("operator"), {"Idempotency-Key": "a-word"}
    first = operator.post("/v1/tokens", json=ASKED, headers=word).json()
    clock.advance(24 * 3600 + 1)
    operator.post("/v1/tokens", json=ASKED, headers={"Idempotency-Key": "another"})
    second = operator.post("/v1/tokens", json=ASKED, headers=word).json()
    assert first["token"] != second["token"]


def test_a_race_makes_one(person):
    operator, word = person("operator"), {"Idempotency-Key": "a-word"}
    answers = []

    def work():
        answers.append(operator.post("/v1/tokens", json=ASKED, headers=word))

    threads = [threading.Thread(target=work) for _ in range(5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {code(a) for a in answers} <= {(201, None), (409, "idempotency.busy")}
    assert len(made(operator)) == 1


@pytest.mark.parametrize("word", ["", "x" * 129, "two words"])
def test_odd_words_are_refused(person, word):
    answer = person("operator").post("/v1/tokens", json=ASKED, headers={"Idempotency-Key": word})
    assert code(answer) == (400, "idempotency.word")
