"""Pages over HTTP: what they show, what they never show, and which forms they refuse."""

import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import event, func, select, update
from starlette.testclient import TestClient

from polo.registry import migrations, schema
from polo.registry.database import Database
from polo.registry.pages import desk, render

PAGES = {
    "/": "Latest chains",
    "/chains": "Chains",
    "/chains/{growing}": "Terms",
    "/chains/{closed}": "Verification",
    "/chains/{empty}": "No checkpoint is committed yet",
    "/chains/{hostile}": "Challenges",
    "/verifications/{accepted}": "Accepted",
    "/verifications/{running}": "reading mark 7 of 12",
    "/verifications/{waiting}": "Waiting to be verified",
    "/verifications/{broken}": "broke off",
    "/verifications/{rejected}": "Rejected",
    "/log": "polo log audit",
    "/whose": "safetensors",
    "/whose/{claimed}": "2 claimants",
    "/whose/{unclaimed}": "Nobody’s, as far as this registry knows",
    "/whose/{scanning}": "Scanning",
    "/whose/{unreadable}": "could not be scanned",
    "/login": "Token",
    "/nothing": "There is nothing here",
}
PRIVATE = ["/operator"]
FOLLOWED = ["/verifications/{running}", "/verifications/{waiting}", "/verifications/{broken}"]
"""For auditors and operators: nothing is decided there yet."""

AS_AUDITOR = {"Authorization": "Bearer polo_" + "a" * 40}


class Outline(HTMLParser):
    """Collects what a page is made of."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def named(self, *names: str) -> list[dict[str, str | None]]:
        return [given for tag, given in self.tags if tag in names]


@pytest.mark.parametrize("template", PAGES)
def test_a_page_is_whole_and_holds_to_its_policy(
    reader: TestClient, shown: Any, template: str
) -> None:
    headers = AS_AUDITOR if template in FOLLOWED else {}
    answer = reader.get(shown.place(template), headers=headers)
    assert answer.status_code == (404 if template == "/nothing" else 200)
    assert PAGES[template] in answer.text
    check_page(answer)


@pytest.mark.parametrize("template", FOLLOWED)
def test_what_has_no_verdict_is_for_auditors_and_operators(
    reader: TestClient, shown: Any, template: str
) -> None:
    for place in (template, f"{template}/live"):
        hidden = reader.get(shown.place(place))
        assert hidden.status_code == 404
        assert "no verdict yet" in hidden.text
        assert reader.get(shown.place(place), headers=AS_AUDITOR).status_code == 200
    key = shown.place(template).rpartition("/")[2]
    assert reader.get(f"/v1/verifications/{key}").status_code == 404
    assert reader.get(f"/v1/verifications/{key}", headers=AS_AUDITOR).json()["id"] == key
    for chain in ("/chains/{closed}", "/chains/{hostile}"):
        place = shown.place(chain)
        assert key not in reader.get(place).text
        listed = reader.get(f"/v1/enrolments/{place.rpartition('/')[2]}/verifications").json()
        assert {item["state"] for item in listed["verifications"]} == {"done"}
    both = [
        reader.get(shown.place(c), headers=AS_AUDITOR).text
        for c in ("/chains/{closed}", "/chains/{hostile}")
    ]
    assert sum(key in page for page in both) == 1


def test_a_verdict_is_for_everybody_and_its_report_is_not(reader: TestClient, shown: Any) -> None:
    key = shown.verifications["accepted"]
    said = reader.get(f"/v1/verifications/{key}").json()
    assert said["outcome"] == said["verdict"]["outcome"] == "accepted"
    assert key in reader.get(shown.place("/chains/{closed}")).text
    assert reader.get(f"/v1/verifications/{key}/report").status_code == 401


def test_a_queue_that_nobody_serves_is_said(
    filled: Any, visitor: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("polo.registry.jobs.presence.has_gpu", lambda: False)
    key = filled.verifications["waiting"]
    job = {"kind": "verify", "subject": key, "queue": "gpu", "state": "waiting"}
    with filled.registry.database.begin() as connection:
        connection.execute(schema.jobs.insert().values(**job, tries=0, due=0))
    page = visitor.get(f"/verifications/{key}", headers=AS_AUDITOR)
    assert "serves the queue <code>gpu</code>" in page.text
    check_page(page)
    said = visitor.get(f"/v1/verifications/{key}", headers=AS_AUDITOR).json()
    assert said["progress"].endswith("serves the queue gpu now")
    told = visitor.get("/readyz")
    assert told.status_code == 200
    assert "queue gpu: nobody serves it, and 1 jobs wait in it" in told.text
    monkeypatch.setattr("polo.registry.jobs.presence.has_gpu", lambda: True)
    assert visitor.get("/readyz").text == "ready\n"
    assert "serves the queue" not in visitor.get(f"/verifications/{key}", headers=AS_AUDITOR).text


def check_page(answer: Any) -> None:
    policy = answer.headers["content-security-policy"]
    assert policy == render.POLICY
    assert "unsafe" not in policy
    assert answer.headers["cache-control"] == "no-store"
    outline = Outline(answer.text)
    assert len(outline.named("h1")) == len(outline.named("main")) == 1
    assert all("src" in script for script in outline.named("script"))
    assert not outline.named("style")
    for _, given in outline.tags:
        assert not [name for name in given if name.startswith("on") or name == "style"], given
        for link in (given.get("href"), given.get("src"), given.get("action")):
            assert link is None or link.startswith(("/", "#", "data:,")), link
            assert link is None or not link.startswith("//")


def test_markup_in_names_comes_out_harmless(operator: TestClient, filled: Any) -> None:
    for template in (*PAGES, *PRIVATE):
        page = operator.get(filled.place(template)).text
        assert "<img" not in page
        assert "\u202e" not in page
        assert not [given for _, given in Outline(page).tags if "onerror" in given]
    page = operator.get(filled.place("/chains/{hostile}")).text
    assert "&lt;img src=x onerror=alert(1)&gt;" in page
    assert "\\u202e" in page


def test_no_page_shows_a_secret(operator: TestClient, filled: Any, trained: Any) -> None:
    secrets = [b"\xa7" * 32, b"drawn: secret"]
    with filled.registry.database.read() as connection:
        rows = connection.execute(select(schema.commitments.c.opening)).scalars()
        openings = [opening for opening in rows if opening]
    for template in (*PAGES, *PRIVATE):
        page = operator.get(filled.place(template)).text
        for secret in secrets:
            assert secret.hex() not in page
            assert secret.decode("latin-1") not in page
        assert not [opening for opening in openings if opening in page]


def test_a_chain_has_a_row_per_commitment_with_its_figures(
    reader: TestClient, shown: Any, trained: Any
) -> None:
    page = reader.get(shown.place("/chains/{growing}")).text
    rows = re.findall(r'<tr id="shard-(\d+)"', page)
    assert rows == [str(number) for number in range(12, -1, -1)]
    shard = trained.manifest.shards[6]
    row = page.split('<tr id="shard-7"')[1].split("</tr>")[0]
    assert f">{shard.matches / 128:.3f}<" in row
    assert f">{shard.metrics['accuracy'] / 1e6:.3f}<" in row
    assert f"mark read: {shard.matches} of 128 bits" in row
    assert "waits" in page.split('<tr id="shard-12"')[1].split("</tr>")[0]
    assert "whole checkpoint passed" in page.split('<tr id="shard-5"')[1].split("</tr>")[0]


def test_charts_say_in_words_what_they_draw(reader: TestClient, shown: Any) -> None:
    page = reader.get(shown.place("/chains/{growing}")).text
    charts = re.findall(r'<svg class="polo-chart" viewBox="0 0 312.*?</svg>', page, re.DOTALL)
    assert len(charts) == 3
    for at, chart in enumerate(charts):
        assert f'aria-labelledby="plot-{at}-title plot-{at}-desc"' in chart
        assert chart.count("<title>shard") == 12
        assert "12 of 12 shards have a value" in chart


def test_a_fragment_is_sent_again_only_when_something_changed(
    visitor: TestClient, filled: Any
) -> None:
    place = filled.place("/chains/{growing}/live")
    first = visitor.get(place)
    assert first.status_code == 200
    assert 'data-more="yes"' in first.text
    again = visitor.get(place, headers={"If-None-Match": first.headers["etag"]})
    assert again.status_code == 304
    assert again.text == ""
    with filled.registry.database.begin() as connection:
        own = schema.challenges.c.state == "open"
        connection.execute(update(schema.challenges).where(own).values(state="passed"))
    later = visitor.get(place, headers={"If-None-Match": first.headers["etag"]})
    assert later.status_code == 200
    assert later.headers["etag"] != first.headers["etag"]


def test_it_is_said_how_many_entries_a_witness_saw(visitor: TestClient, filled: Any) -> None:
    place = filled.place("/chains/{growing}/live")
    first = visitor.get(place)
    assert '<b>13</b> <span class="quiet">of 13 entries' in first.text
    with filled.registry.database.begin() as connection:
        own = schema.commitments.c.enrolment == filled.chains["growing"]
        newest = select(func.max(schema.commitments.c.index)).where(own)
        before = {"size": connection.execute(newest).scalar_one()}
        values = {"root": b"", "time": 1, "note": "", **before}
        connection.execute(schema.log_heads.insert().values(values))
        connection.execute(update(schema.cosignatures).values(before))
    later = visitor.get(place, headers={"If-None-Match": first.headers["etag"]})
    assert '<b>12</b> <span class="quiet">of 13 entries' in later.text


def test_a_verdict_names_what_became_of_other_chains(reader: TestClient, shown: Any) -> None:
    page = reader.get(shown.place("/verifications/{accepted}")).text
    assert "Of the same identity&#39;s other chains here 1 failed, 2 were withdrawn." in page


def test_a_list_shows_the_verdict_of_each_chain(reader: TestClient, shown: Any) -> None:
    page = reader.get("/chains").text
    rows = {
        row.partition('href="/chains/')[2][:64]: row
        for row in page.split("<tr>")
        if "/chains/" in row
    }
    assert "accepted" in rows[shown.chains["closed"]]
    assert "rejected" in rows[shown.chains["hostile"]]
    assert "<td>–</td>" in rows[shown.chains["growing"]]


def test_what_has_ended_is_not_refreshed(reader: TestClient, shown: Any) -> None:
    running = shown.place("/verifications/{running}")
    assert "data-source" in reader.get(running, headers=AS_AUDITOR).text
    ended = reader.get(shown.place("/verifications/{accepted}")).text
    assert "data-source" not in ended
    assert "http-equiv" not in ended


def test_lists_come_page_by_page(visitor: TestClient, filled: Any) -> None:
    seen: list[str] = []
    with filled.registry.database.begin() as connection:
        row = connection.execute(select(schema.enrolments)).mappings().first()
        for number in range(60):
            values = {**row, "id": f"{number:064x}", "issued": 5_000 + number // 3}
            connection.execute(schema.enrolments.insert().values(values))
    place = "/chains"
    while place:
        page = visitor.get(place).text
        seen += re.findall(r'href="/chains/([0-9a-f]{64})"', page)
        more = re.search(r'href="(/chains\?before=[^"]+)" rel="next"', page)
        place = more[1] if more else ""
    assert len(seen) == len(set(seen)) == 64


@pytest.mark.parametrize(
    "place", ["/chains?before=x", "/chains/zz", "/chains/zz/live", "/log?before=-1",
              "/verifications/zz", "/verifications/zz/live", "/static/0/registry.css", "/whose/zz"]
)  # fmt: skip
def test_wrong_addresses_are_answered_with_a_page(reader: TestClient, place: str) -> None:
    answer = reader.get(place)
    assert answer.status_code == 404
    assert "<h1>There is nothing here</h1>" in answer.text
    check_page(answer)


def test_programs_get_a_problem_and_people_a_page(reader: TestClient, shown: Any) -> None:
    asked = {"Accept": "application/json"}
    answer = reader.get("/chains/zz", headers=asked)
    assert answer.headers["content-type"] == "application/problem+json"
    assert answer.json()["code"] == "resource.missing"


def test_files_may_be_kept_for_ever(reader: TestClient, shown: Any) -> None:
    page = reader.get("/").text
    for place in re.findall(r'"(/static/[^"]+)"', page):
        answer = reader.get(place)
        assert answer.status_code == 200
        assert "immutable" in answer.headers["cache-control"]


def test_an_empty_registry_says_how_to_start(client: TestClient) -> None:
    assert "No chain is enrolled yet" in client.get("/").text
    assert "The log is empty" in client.get("/log").text
    assert "no chains" in client.get("/chains").text


# The operator's pages.


def test_the_operators_page_needs_a_sign_in(reader: TestClient, shown: Any) -> None:
    answer = reader.get("/operator")
    assert answer.status_code == 303
    assert answer.headers["location"] == "/login"


def test_a_wrong_token_is_refused_and_not_repeated(visitor: TestClient, signing_in: Any) -> None:
    answer = signing_in(visitor, "polo_wrong<b>")
    assert answer.status_code == 401
    assert "unknown, expired or revoked" in answer.text
    assert "polo_wrong" not in answer.text
    assert "polo-session" not in answer.headers.get("set-cookie", "")


def test_signing_in_and_out(operator: TestClient, signing_in: Any, word_of: Any) -> None:
    page = operator.get("/operator")
    assert page.status_code == 200
    assert "Open challenges" in page.text
    check_page(page)
    out = operator.post("/logout", data={"csrf": word_of(page.text)})
    assert out.status_code == 303
    assert operator.get("/operator").status_code == 303


def test_the_session_is_for_this_host_alone(visitor: TestClient, signing_in: Any) -> None:
    from_login = signing_in(visitor, "polo_" + "o" * 40).headers["set-cookie"]
    assert "HttpOnly" in from_login
    assert "SameSite=strict" in from_login
    assert "Path=/" in from_login


ACTIONS = [
    "/logout",
    "/operator/tokens",
    "/operator/tokens/books/revoke",
    "/operator/identities/{identity}/revoke",
    "/operator/jobs/1/retry",
    f"/operator/challenges/{'0' * 32}/check",
    "/operator/enrolments/{closed}/verify",
]


def test_forms_without_their_word_are_refused(
    operator: TestClient, filled: Any, alice: Any
) -> None:
    before = everything(filled)
    fields = {"name": "n", "role": "operator", "scopes": "read", "days": "1"}
    for action in ACTIONS:
        place = action.format(identity=alice.id, **filled.chains)
        for word in ({}, {"csrf": ""}, {"csrf": "0" * 64}):
            answer = operator.post(place, data={**fields, **word})
            assert answer.status_code == 403, place
            assert "caller.csrf" in answer.text
    assert everything(filled) == before
    assert operator.get("/operator").status_code == 200


def everything(filled: Any) -> list[Any]:
    with filled.registry.database.read() as connection:
        tables = (schema.tokens, schema.identities, schema.jobs, schema.events, schema.sessions)
        return [connection.execute(select(table)).all() for table in tables]


def test_an_answer_that_could_not_be_checked_is_checked_again(
    operator: TestClient, filled: Any, word_of: Any
) -> None:
    open_ = schema.challenges.c.state == "open"
    with filled.registry.database.begin() as connection:
        key = connection.execute(select(schema.challenges.c.id).where(open_)).scalar_one()
        stuck = {"state": "answered", "detail": "another platform <b>"}
        connection.execute(update(schema.challenges).where(open_).values(stuck))
    place = filled.place("/chains/{growing}")
    assert "could not be checked, and an operator must look" in operator.get(place).text
    desk = operator.get("/operator").text
    assert "another platform &lt;b&gt;" in desk
    check = f"/operator/challenges/{key}/check"
    assert f'action="{check}"' in desk
    answer = operator.post(check, data={"csrf": word_of(desk)})
    assert (answer.status_code, answer.headers["location"]) == (303, "/operator?done=challenge")
    later = operator.get("/operator?done=challenge").text
    assert "The answer will be checked again." in later
    assert "another platform" not in later
    with filled.registry.database.read() as connection:
        kinds = select(schema.jobs.c.state).where(schema.jobs.c.kind == "challenges.check")
        assert connection.execute(kinds).scalars().all() == ["waiting"]
    assert (
        operator.post(check.replace(key, "0" * 32), data={"csrf": word_of(desk)}).status_code == 404
    )


@pytest.mark.parametrize("place", ["/login", "/whose"])
def test_forms_of_guests_need_their_word_and_their_cookie(
    visitor: TestClient, filled: Any, place: str, word_of: Any
) -> None:
    def send(word: str, **headers: str) -> int:
        if place == "/login":
            fields = {"csrf": word, "token": "polo_" + "o" * 40}
            return int(visitor.post(place, data=fields, headers=headers).status_code)
        files = {"csrf": (None, word), "model": ("m.safetensors", b"x" * 100_000)}
        return int(visitor.post(place, files=files, headers=headers).status_code)

    assert send("") == 403
    word = word_of(visitor.get(place).text)
    assert send(word[::-1]) == 403
    assert send(word, Origin="https://evil.example") == 403
    assert send(word, **{"Sec-Fetch-Site": "cross-site"}) == 403
    visitor.cookies.clear()
    assert send(word) == 403
    with filled.registry.database.read() as connection:
        assert len(connection.execute(select(schema.scans)).all()) == 4
        assert connection.execute(select(schema.sessions)).all() == []
    assert list((filled.registry.settings.data / "found").glob("*")) == []


def test_a_token_is_shown_once(operator: TestClient, filled: Any, word_of: Any) -> None:
    word = word_of(operator.get("/operator").text)
    fields = {"csrf": word, "name": "a <b>script</b>", "role": "auditor", "scopes": "read"}
    page = operator.post("/operator/tokens", data={**fields, "days": "7"})
    token = re.search(r">(polo_[\w-]{40,})<", page.text)[1]  # type: ignore[index]
    assert "a &lt;b&gt;script&lt;/b&gt;" in page.text
    assert token not in operator.get("/operator").text
    assert operator.post("/operator/tokens", data={**fields, "days": "0"}).status_code == 422


def test_auditors_look_and_do_not_act(
    visitor: TestClient, filled: Any, signing_in: Any, word_of: Any
) -> None:
    signing_in(visitor, "polo_" + "a" * 40)
    page = visitor.get("/operator").text
    assert "Events" in page
    assert "Make a token" not in page
    assert "Revoke" not in page
    answer = visitor.post("/operator/tokens/first/revoke", data={"csrf": word_of(page)})
    assert answer.status_code == 403
    assert "This is not for you" in answer.text


def test_revoking_a_token_ends_its_sessions(
    operator: TestClient, filled: Any, word_of: Any
) -> None:
    word = word_of(operator.get("/operator").text)
    answer = operator.post("/operator/tokens/first/revoke", data={"csrf": word})
    assert answer.status_code == 303
    assert operator.get("/operator").status_code == 303


def test_revoking_an_identity(operator: TestClient, filled: Any, alice: Any, word_of: Any) -> None:
    word = word_of(operator.get("/operator").text)
    answer = operator.post(f"/operator/identities/{alice.id}/revoke", data={"csrf": word})
    page = operator.get(answer.headers["location"]).text
    assert "The identity was revoked." in page
    with filled.registry.database.read() as connection:
        own = select(schema.identities.c.revoked).where(schema.identities.c.id == alice.id)
        assert connection.execute(own).scalar() is not None


def test_a_broken_job_is_done_again(operator: TestClient, filled: Any, word_of: Any) -> None:
    word = {"csrf": word_of(operator.get("/operator").text)}
    with filled.registry.database.read() as connection:
        number = connection.execute(select(schema.jobs.c.id)).scalar_one()
    answer = operator.post(f"/operator/jobs/{number}/retry", data=word)
    assert "The job will be done again." in operator.get(answer.headers["location"]).text
    with filled.registry.database.read() as connection:
        row = connection.execute(select(schema.jobs)).one()
    assert (row.state, row.tries, row.error) == ("waiting", 0, None)
    assert operator.post(f"/operator/jobs/{number + 1}/retry", data=word).status_code == 404


def test_what_cannot_be_verified_says_why(operator: TestClient, filled: Any, word_of: Any) -> None:
    word = {"csrf": word_of(operator.get("/operator").text)}
    place = filled.place("/operator/enrolments/{growing}/verify")
    answer = operator.post(place, data=word)
    assert answer.status_code == 409
    assert "The chain is not closed." in answer.text
    check_page(answer)


# Whose model is this?


def upload(client: TestClient, word: str, *parts: tuple[str, Any]) -> Any:
    return client.post("/whose", files=[("csrf", (None, word)), *parts])


def test_a_file_is_taken_and_scanned(
    visitor: TestClient, filled: Any, trained: Any, word_of: Any
) -> None:
    from polo.registry.objects import key_of

    word = word_of(visitor.get("/whose").text)
    answer = upload(visitor, word, ("model", ("found.safetensors", trained.model)))
    assert answer.status_code == 303, answer.text
    page = visitor.get(answer.headers["location"])
    assert "Waiting to be scanned" in page.text
    check_page(page)
    with filled.registry.database.read() as connection:
        own = schema.scans.c.id == answer.headers["location"].removeprefix("/whose/")
        row = connection.execute(select(schema.scans).where(own)).one()
    assert row.asked.startswith("visitor ")
    assert filled.registry.objects.get(key_of(row.sha256)) == trained.model
    assert list((filled.registry.settings.data / "found").glob("*")) == []


@pytest.mark.parametrize(
    ("parts", "status"),
    [
        ([], 400),
        ([("model", ("empty.safetensors", b""))], 400),
        ([("model", ("a", b"x")), ("model", ("b", b"x"))], 400),
        ([("note", (None, "x" * 5000)), ("model", ("a", b"x"))], 400),
        ([("n", (None, "x"))] * 9 + [("model", ("a", b"x"))], 400),
        ([("model", ("large", b"x" * 300_000))], 413),
    ],
)
def test_broken_and_oversized_forms_leave_nothing(
    reader: TestClient, shown: Any, word_of: Any, monkeypatch: Any, parts: Any, status: int
) -> None:
    small = replace(shown.registry.settings, max_found=200_000)
    monkeypatch.setattr(shown.registry, "settings", small)
    word = word_of(reader.get("/whose").text)
    answer = upload(reader, word, *parts)
    assert answer.status_code == status
    check_page(answer)
    assert list((shown.registry.settings.data / "found").glob("*")) == []


def test_a_full_disk_and_a_crowd_are_answered_with_patience(
    reader: TestClient, shown: Any, word_of: Any, monkeypatch: Any
) -> None:
    from polo.registry.pages import receiving, whose

    word = word_of(reader.get("/whose").text)
    model = ("model", ("m.safetensors", b"x" * 1000))
    with monkeypatch.context() as patch:
        patch.setattr(receiving, "SPARE", 2**70)
        assert upload(reader, word, model).status_code == 503
    with monkeypatch.context() as patch:
        patch.setattr(whose, "_receiving", whose.MOST_RECEIVED)
        assert upload(reader, word, model).status_code == 503
    assert whose._receiving == 0
    assert list((shown.registry.settings.data / "found").glob("*")) == []


def test_a_form_that_ends_early_leaves_nothing(
    reader: TestClient, shown: Any, word_of: Any
) -> None:
    word = word_of(reader.get("/whose").text)
    fields = f'--b\r\nContent-Disposition: form-data; name="csrf"\r\n\r\n{word}\r\n--b\r\n'
    for cut in ("", 'Content-Disposition: form-data; name="model"; filename="m"\r\n\r\nxxx'):
        kind = {"Content-Type": "multipart/form-data; boundary=b"}
        answer = reader.post("/whose", content=(fields + cut).encode(), headers=kind)
        assert answer.status_code == 400
    assert list((shown.registry.settings.data / "found").glob("*")) == []


def test_a_chains_own_scan_has_no_page(visitor: TestClient, filled: Any) -> None:
    with filled.registry.database.begin() as connection:
        chain = filled.chains["closed"]
        connection.execute(update(schema.scans).values(enrolment=chain))
    assert visitor.get(filled.place("/whose/{claimed}")).status_code == 404


def test_every_page_over_both_databases(operator: TestClient, filled: Any) -> None:
    for template, words in {**PAGES, "/operator": "Events"}.items():
        assert words in operator.get(filled.place(template)).text, template


def test_the_commands_to_paste_exist() -> None:
    import polo.cli
    from polo.registry.pages import start

    commands = start.commands("https://polo.example")
    lines = "\n".join([*commands.enrol, *commands.submit, *commands.audit]).replace("\\\n", "")
    pasted = [line.split() for line in lines.splitlines() if line.startswith("polo ")]
    assert len(pasted) == 6
    for _, *words in pasted:
        polo.cli.app.parse_args(words, exit_on_error=False, print_error=False)


def test_every_page_is_documented() -> None:
    from polo.registry.pages import operator, routes, whose

    text = (Path(__file__).parents[3] / "docs" / "pages.md").read_text("utf-8")
    routers = (routes.router, operator.router, whose.router)
    pages = [route.path for router in routers for route in router.routes if "GET" in route.methods]
    shown = [path for path in pages if not path.endswith("/live") and "static" not in path]
    assert len(shown) == 9
    assert [path for path in shown if f"| `{path}` |" not in text] == []


def test_the_newest_identities_are_read_along_an_index(tmp_path: Path) -> None:
    """However many identities there are, the operator's page does not look at all of them."""
    database = Database(f"sqlite:///{tmp_path / 'registry.sqlite'}")
    migrations.upgrade(database)
    seen: list[tuple[str, Any]] = []

    def note(_c: Any, _k: Any, statement: str, values: Any, _x: Any, _many: bool) -> None:
        seen.append((statement, values))

    with database.read() as connection:
        event.listen(database.engine, "before_cursor_execute", note)
        desk._identities(connection)
        event.remove(database.engine, "before_cursor_execute", note)
        [(statement, values)] = seen
        plan = connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {statement}", values)
        steps = [row[3] for row in plan]
    database.close()
    assert steps == ["SCAN identities USING INDEX ix_identities_registered_id"]
