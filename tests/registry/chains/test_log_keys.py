"""The log's key changes while the registry serves: old chains go on, and auditors follow."""

import json
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from sqlalchemy import select, update

from polo.cli import run
from polo.cli.registry import _rotated
from polo.client.audit import Audited, Report, audit
from polo.client.http import Patience
from polo.client.log_reader import LogReader
from polo.errors import TermsError
from polo.keys import Ed25519Verifier, Identity
from polo.protocol.log_notes import Checkpoint, Note, NoteKey, open_checkpoint
from polo.protocol.log_rollover import Rollover, sign_rollover
from polo.registry.context import Registry
from polo.registry.log import keys as log_keys
from polo.registry.operations.auditing import Audit
from polo.registry.schema import log_rollovers

DAY = 86_400


def log_key(terms: Any) -> NoteKey:
    """The key that terms name."""
    settings = next(item.settings for item in terms.evidence if item.level == "receipts")
    return NoteKey.parse(settings["log"], place="terms")


def checkpoint(answer: Any) -> Note:
    return Note.parse(answer["inclusion"]["checkpoint"], place="checkpoint")


def signed_by(note: Note, key: NoteKey) -> bool:
    return bool(note.by(key)) and bool(open_checkpoint(note, key, Ed25519Verifier(), place="x"))


@pytest.fixture
def audited(served: str) -> Iterator[Callable[..., Report]]:
    """Audits the registry as somebody who knows a key."""
    reader = LogReader(served, patience=Patience(tries=1))
    # Tiles are remembered for one audit; here the log grows between two.
    yield lambda key, **options: (reader.hashes.cache_clear(), audit(reader, key, **options))[1]
    reader.close()


def rotate(registry: Registry) -> NoteKey:
    return NoteKey.parse(_rotated(registry, True, registry.clock()), place="key")


def faults(registry: Registry) -> list[str]:
    with registry.database.read() as connection:
        key = registry.vault.log_key(connection).public_key
        return list(Audit(connection, registry.settings.origin, key).faults())


def test_a_running_chain_goes_on_and_new_ones_get_the_new_key(
    registry: Registry, live: Any, enrolled: Callable[..., Any], client: Any
) -> None:
    old = log_key(live.record.terms)
    assert len(checkpoint(live.commit(0)).signatures) == 1
    new = rotate(registry)
    both = checkpoint(live.commit(1))
    assert signed_by(both, old)
    assert signed_by(both, new)
    other = enrolled()
    assert log_key(other.record.terms) == new
    assert signed_by(checkpoint(other.commit(0)), new)
    said = client.get("/v1/keys").json()
    assert said["log"] == new.text
    assert {item["key"] for item in said["keys"] if item["use"] == "log"} == {
        old.public_key.hex(),
        new.public_key.hex(),
    }
    page = client.get("/log").text
    assert old.text.replace("+", "&#43;") in page or old.text in page
    assert new.text.replace("+", "&#43;") in page or new.text in page
    assert faults(registry) == []


def test_the_old_key_stops_when_no_chain_needs_it(
    registry: Registry, live: Any, enrolled: Callable[..., Any], clock: Any
) -> None:
    old = log_key(live.record.terms)
    live.commit(0)
    live.commit(1)
    new = rotate(registry)
    clock.advance(100)
    assert live.close().status_code == 200
    clock.advance(2 * DAY)
    other = enrolled()
    assert signed_by(checkpoint(other.commit(0)), old)  # Its prover may still fetch what it needs.
    clock.advance(log_keys.BESIDE + 1)
    alone = checkpoint(other.commit(1))
    assert alone.by(old) == ()
    assert signed_by(alone, new)
    assert faults(registry) == []


def test_an_auditor_with_the_old_key_follows(
    registry: Registry, live: Any, audited: Callable[..., Report]
) -> None:
    old = log_key(live.record.terms)
    live.commit(0)
    first = audited(old)
    assert first.keys == (old,)
    new, older = rotate(registry), Note.parse(first.note, place="older")
    # Nothing was added since: the old key's checkpoint is still the newest, and still right.
    assert audited(old).findings == []
    live.commit(1)
    assert first.audited is not None
    kept = Audited.from_bytes(first.audited.to_bytes(), "kept")
    again = audited(old, before=kept, since=[older])
    assert again.findings == []
    assert again.keys == (old, new)
    assert again.audited is not None
    assert again.audited.key == new.text
    # Who knows the new key alone still takes what the old one signed.
    assert audited(new, before=kept, since=[older]).findings == []
    newest = rotate(registry)
    live.commit(2)
    assert audited(old).keys == (old, new, newest)


def test_a_rollover_by_another_key_is_refused(
    registry: Registry, live: Any, audited: Callable[..., Report]
) -> None:
    old = log_key(live.record.terms)
    live.commit(0)
    new = rotate(registry)
    live.commit(1)
    with registry.database.begin() as connection:
        text = connection.execute(select(log_rollovers.c.note)).scalar_one()
        at = Rollover.parse(Note.parse(text, place="note").text, place="note").at
        thief, taken = Identity.generate(), registry.vault.log_key(connection)
        forged = Note(Rollover(at, old, new).text, sign_rollover(at, thief, taken).signatures)
        connection.execute(update(log_rollovers).values(note=str(forged)))
    report = audited(old)
    assert "the key which is replaced did not sign" in report.findings[0].detail
    assert report.audited is None
    assert "did not sign" in faults(registry)[0]


def test_a_rollover_from_another_log_is_a_fork(
    registry: Registry, live: Any, audited: Callable[..., Report]
) -> None:
    old = log_key(live.record.terms)
    live.commit(0)
    rotate(registry)
    live.commit(1)
    with registry.database.begin() as connection:
        elsewhere = Checkpoint(old.name, 1, bytes(32))
        old_key = registry.vault.log_key_of(connection, old.public_key)
        note = sign_rollover(elsewhere, old_key, registry.vault.log_key(connection))
        connection.execute(update(log_rollovers).values(note=str(note)))
    (finding,) = audited(old).findings
    assert "it was forked" in finding.detail


@pytest.mark.parametrize("entries", [0, 1])
def test_it_can_change_twice_in_a_second(registry: Registry, live: Any, entries: int) -> None:
    for number in range(entries):
        live.commit(number)
    keys = [rotate(registry), rotate(registry)]
    note = checkpoint(live.commit(entries))
    assert all(signed_by(note, key) for key in (log_key(live.record.terms), *keys))
    assert faults(registry) == []


def test_nobody_can_follow_more_changes_than_these(
    registry: Registry, live: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_keys, "MAX_ROLLOVERS", 1)
    new = rotate(registry)
    with pytest.raises(TermsError, match="has changed 1 times"):
        rotate(registry)
    note = checkpoint(live.commit(0))
    assert signed_by(note, new)
    assert len(note.signatures) == 2


def test_the_command_changes_it(
    registry: Registry, clock: Any, enrolled: Callable[..., Any], capsys: Any
) -> None:
    clock.now = int(time.time())  # As the command's clock is.
    live = enrolled()
    flags = ["--data", str(registry.settings.data), "--database", registry.settings.database]
    flags += ["--set", f"origin={registry.settings.origin}", "--json"]
    assert run(["registry", "keys", "rotate", "--log", *flags]) == 0
    said = json.loads(capsys.readouterr().out)
    note = checkpoint(live.commit(0))
    assert signed_by(note, NoteKey.parse(said["log"], place="said"))
    assert signed_by(note, log_key(live.record.terms))
