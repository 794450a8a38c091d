"""The one writer of the log: groups, races, restarts, two processes, a full queue."""

import asyncio
import random
import secrets
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from sqlalchemy import event, func, select
from sqlalchemy.exc import OperationalError

from polo.errors import PoloError
from polo.protocol import log_tiles, log_tree
from polo.protocol.entries import leaf_hash
from polo.protocol.log_tiles import Tile
from polo.protocol.requests import Authorization
from polo.registry.commitments import sequencer as sequencers
from polo.registry.commitments.answers import Receipted
from polo.registry.commitments.rules import Submission
from polo.registry.context import Registry
from polo.registry.log import service as log
from polo.registry.problems import Problem
from polo.registry.schema import commitments, log_leaves, log_nodes
from polo.registry.settings import Settings


def submission(registry: Registry, live: Any, entry: Any) -> Submission:
    chain = registry.sequencer.chains.get(live.id)
    given = Authorization(live.key.public_key, registry.clock(), secrets.token_bytes(16), bytes(64))
    return Submission(chain, entry, entry.to_bytes(), given)


def codes(results: Any) -> Counter[str]:
    return Counter(
        found.code if isinstance(found, Problem) else type(found).__name__ for found in results
    )


def check_log(registry: Registry, old: tuple[int, bytes] | None = None) -> tuple[int, bytes]:
    """The whole log, from its leaves: root, nodes, tiles, and that it goes on from before."""
    with registry.database.read() as connection:
        head = log.current(connection)
        rows = connection.execute(
            select(log_leaves.c.index, log_leaves.c.hash, log_leaves.c.entry).order_by(
                log_leaves.c.index
            )
        ).all()
        assert [row[0] for row in rows] == list(range(head.size))
        leaves = [bytes(row[1]) for row in rows]
        assert leaves == [leaf_hash(bytes(row[2])) for row in rows]
        grown, nodes = log_tree.Frontier().grown(leaves)
        assert grown.root == head.root
        stored = connection.execute(select(log_nodes.c.level, log_nodes.c.index, log_nodes.c.hash))
        expected = {(node.level, node.index): node.hash for node in nodes if node.level}
        assert {(level, index): bytes(found) for level, index, found in stored} == expected
        known = {(node.level, node.index): node.hash for node in nodes}
        for level in (0, 1):
            for tile in log_tiles.tiles_of(head.size, level):
                wanted = log_tiles.tile_bytes(tile, lambda *at: known[at])
                assert log.tile(connection, tile) == wanted
        for tile in log_tiles.tiles_of(head.size, None):
            entries = log_tiles.entries_of(log.tile(connection, tile), tile)
            first = tile.index * 256
            assert entries == [bytes(row[2]) for row in rows[first : first + 256]]
        if old is not None:
            proof = log.consistency(connection, old[0], head.size)
            log_tree.check_consistency(*old, head.size, head.root, proof, place="log")
        assert connection.execute(select(func.count()).select_from(commitments)).scalar() == len(
            rows
        )
    return head.size, head.root


def test_a_group_is_answered_in_order(registry: Registry, enrolled: Callable[..., Any]) -> None:
    lives = [enrolled() for _ in range(5)]
    group = [submission(registry, live, live.entry(x)) for x in range(3) for live in lives]
    results = registry.sequencer.settle(group)
    assert codes(results) == {"Receipted": 15}
    assert [found.place.index for found in results] == list(range(15))
    assert {found.place.checkpoint for found in results} == {results[0].place.checkpoint}
    check_log(registry)


def test_what_is_refused_does_not_sink_the_others(
    registry: Registry, enrolled: Callable[..., Any]
) -> None:
    one, two = enrolled(), enrolled()
    group = [
        submission(registry, one, one.entry(0)),
        submission(registry, one, one.entry(2)),
        submission(registry, two, two.entry(0)),
        submission(registry, one, one.entry(0)),
        submission(registry, one, one.start(bytes(32))),
        submission(registry, one, one.shard(1, root=one.start().root)),
        submission(registry, one, one.entry(1)),
        submission(registry, one, one.shard(2, root=one.entry(1).root)),
    ]
    group.append(group[2])
    results = registry.sequencer.settle(group)
    assert codes(results) == {
        "Receipted": 4,
        "commitment.out-of-order": 1,
        "commitment.differs": 1,
        "commitment.repeated-root": 2,
        "caller.replayed": 1,
    }
    assert results[0].receipt == results[3].receipt
    assert check_log(registry)[0] == 3


def test_racing_threads_get_exactly_one_receipt_a_shard(
    registry: Registry, enrolled: Callable[..., Any]
) -> None:
    live, last = enrolled(), bytes(32)
    for number in range(3):
        rivals = [live.shard(number, epochs=x) if number else live.start(bytes([x] * 32))
                  for x in range(1, 33)]  # fmt: skip
        ready = threading.Barrier(32)

        def race(entry: Any, ready: Any = ready) -> Any:
            ready.wait()
            return registry.sequencer.settle([submission(registry, live, entry)])[0]

        if number:
            # All rivals start where the winner of the last round ended.
            rivals = [live.shard(number, epochs=x, previous=last) for x in range(1, 33)]
        with ThreadPoolExecutor(32) as pool:
            results = list(pool.map(race, rivals))
        winners = [found for found in results if isinstance(found, Receipted)]
        assert codes(results) == {"Receipted": 1, "commitment.differs": 31}
        last = log_entry(registry, winners[0].place.index).root
    assert check_log(registry)[0] == 3


def log_entry(registry: Registry, index: int) -> Any:
    from polo.protocol.entries import Entry

    with registry.database.read() as connection:
        query = select(log_leaves.c.entry).where(log_leaves.c.index == index)
        return Entry.from_bytes(bytes(connection.execute(query).scalar_one()), "entry")


def test_the_same_entry_from_many_threads_gets_one_receipt(registry: Registry, live: Any) -> None:
    def send(_: int) -> Any:
        return registry.sequencer.settle([submission(registry, live, live.start())])[0]

    with ThreadPoolExecutor(16) as pool:
        results = list(pool.map(send, range(32)))
    assert codes(results) == {"Receipted": 32}
    assert len({found.receipt for found in results}) == 1
    assert check_log(registry)[0] == 1


def test_the_log_is_consistent_after_random_batches(
    registry: Registry, enrolled: Callable[..., Any]
) -> None:
    drawing, old = random.Random(7), None
    lives = [enrolled() for _ in range(12)]
    waiting = [(live, x) for x in range(7) for live in lives]
    while waiting:
        size = drawing.choice((1, 2, 3, 7, 20))
        batch, waiting = waiting[:size], waiting[size:]
        group = [submission(registry, live, live.entry(x)) for live, x in batch]
        assert codes(registry.sequencer.settle(group)) == {"Receipted": len(batch)}
        old = check_log(registry, old) if drawing.random() < 0.3 else old
    assert check_log(registry, old)[0] == 84


@pytest.fixture
def twin(registry: Registry, settings: Settings, clock: Any) -> Iterator[Registry]:
    """A second server process, as the database sees it."""
    opened = Registry.open(settings, clock=clock)
    yield opened
    opened.close()


def test_two_processes_write_one_log(
    registry: Registry, twin: Registry, enrolled: Callable[..., Any]
) -> None:
    lives = [enrolled() for _ in range(6)]

    def grow(at: int) -> list[Any]:
        own, found = (registry, twin)[at % 2], []
        for x in range(5):
            found += own.sequencer.settle([submission(own, lives[at], lives[at].entry(x))])
        return found

    with ThreadPoolExecutor(6) as pool:
        results = [item for found in pool.map(grow, range(6)) for item in found]
    assert codes(results) == {"Receipted": 30}
    assert sorted(found.place.index for found in results) == list(range(30))
    check_log(registry)
    check_log(twin)


def test_a_transaction_that_breaks_leaves_nothing(
    registry: Registry, live: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    registry.sequencer.settle([submission(registry, live, live.entry(0))])
    before = check_log(registry)
    whole = sequencers.Group.settle

    def broken(group: Any) -> Any:
        whole(group)
        raise OSError("the disk is full")

    monkeypatch.setattr(sequencers.Group, "settle", broken)
    with pytest.raises(OSError, match="full"):
        registry.sequencer.settle([submission(registry, live, live.entry(1))])
    monkeypatch.setattr(sequencers.Group, "settle", whole)
    assert check_log(registry) == before
    assert codes(registry.sequencer.settle([submission(registry, live, live.entry(1))])) == {
        "Receipted": 1
    }
    check_log(registry, before)


def test_one_entry_that_breaks_its_group_breaks_alone(
    registry: Registry, enrolled: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    good, bad = enrolled(), enrolled()
    whole = sequencers.Group.settle

    def picky(group: Any) -> Any:
        if any(item.chain.id == bad.id for item in group.submissions):
            raise RuntimeError("cannot be written")
        return whole(group)

    monkeypatch.setattr(sequencers.Group, "settle", picky)

    async def both() -> list[Any]:
        group = [submission(registry, live, live.entry(0)) for live in (good, bad)]
        waiting = [registry.sequencer.submit(item) for item in group]
        return await asyncio.gather(*waiting, return_exceptions=True)

    assert codes(asyncio.run(both())) == {"Receipted": 1, "registry.busy": 1}


def test_a_database_that_is_gone_is_not_asked_again_for_each(
    registry: Registry, enrolled: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    lives, tries = [enrolled() for _ in range(3)], []

    def gone(group: Any) -> Any:
        tries.append(len(group.submissions))
        raise OperationalError("insert", {}, Exception("database is locked"))

    monkeypatch.setattr(sequencers.Group, "settle", gone)

    async def all_of_them() -> list[Any]:
        group = [submission(registry, live, live.entry(0)) for live in lives]
        waiting = [registry.sequencer.submit(item) for item in group]
        return await asyncio.gather(*waiting, return_exceptions=True)

    assert codes(asyncio.run(all_of_them())) == {"registry.busy": 3}
    assert sum(tries) == 3


def test_after_a_restart_the_chain_goes_on(
    registry: Registry, settings: Settings, clock: Any, live: Any
) -> None:
    first = registry.sequencer.settle([submission(registry, live, live.entry(0))])[0]
    before = check_log(registry)
    registry.close()
    again = Registry.open(settings, clock=clock)
    try:
        same = again.sequencer.settle([submission(again, live, live.entry(0))])[0]
        assert isinstance(first, Receipted)
        assert isinstance(same, Receipted)
        assert (same.receipt, same.nonce) == (first.receipt, first.nonce)
        assert codes(again.sequencer.settle([submission(again, live, live.entry(1))])) == {
            "Receipted": 1
        }
        check_log(again, before)
    finally:
        again.close()


def test_too_many_waiting_are_asked_to_come_back(
    registry: Registry, live: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    held, taken = threading.Event(), threading.Event()
    whole = registry.sequencer.settle

    def slow(group: Any) -> Any:
        taken.set()
        held.wait(30)
        return whole(group)

    monkeypatch.setattr(registry.sequencer, "settle", slow)
    item = submission(registry, live, live.entry(0))

    async def crowd() -> list[Any]:
        first = asyncio.ensure_future(registry.sequencer.submit(item))
        await asyncio.to_thread(taken.wait, 30)
        rest = [
            asyncio.ensure_future(
                registry.sequencer.submit(submission(registry, live, live.entry(0)))
            )
            for _ in range(sequencers.WAITING + 5)
        ]
        await asyncio.sleep(0)
        done = [task for task in rest if task.done()]
        held.set()
        full = [task.exception() for task in done]
        answered = await asyncio.gather(first, *(task for task in rest if task not in done))
        return [*full, *answered]

    results = asyncio.run(crowd())
    assert codes(results) == {"commitment.queue-full": 5, "Receipted": sequencers.WAITING + 1}
    refused = next(found for found in results if isinstance(found, Problem))
    assert (refused.status, refused.headers["Retry-After"]) == (503, "1")
    assert len({found.receipt for found in results if isinstance(found, Receipted)}) == 1


def test_what_waits_at_the_end_is_written(registry: Registry, live: Any) -> None:
    async def leave() -> Any:
        waiting = asyncio.ensure_future(
            registry.sequencer.submit(submission(registry, live, live.entry(0)))
        )
        await asyncio.sleep(0)
        await asyncio.to_thread(registry.sequencer.close)
        with pytest.raises(Problem, match="shutting down"):
            await registry.sequencer.submit(submission(registry, live, live.entry(1)))
        return await waiting

    assert isinstance(asyncio.run(leave()), Receipted)


def test_a_log_that_was_edited_takes_nothing_more(registry: Registry, live: Any) -> None:
    for number in range(3):
        registry.sequencer.settle([submission(registry, live, live.entry(number))])
    with registry.database.begin() as connection:
        connection.execute(log_nodes.update().values(hash=bytes(32)))
    registry.sequencer._growth._kept = None
    with pytest.raises(PoloError, match="do not lead to the root"):
        registry.sequencer.settle([submission(registry, live, live.entry(3))])


def test_the_tiles_of_nothing(registry: Registry) -> None:
    with registry.database.read() as connection, pytest.raises(Problem, match="nothing"):
        log.tile(connection, Tile(0, 0, 1))


def test_no_group_and_no_proof_reads_a_whole_table(
    registry: Registry, live: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SQLite says how it finds rows; on PostgreSQL the same statements have the same indexes."""
    for number in range(6):
        registry.sequencer.settle([submission(registry, live, live.entry(number))])
    if not registry.database.is_sqlite:
        return
    seen: list[tuple[str, Any]] = []

    def note(_: Any, __: Any, statement: str, values: Any, *___: Any) -> None:
        if statement.lstrip().startswith(("SELECT", "UPDATE")):
            seen.append((statement, values))

    event.listen(registry.database.engine, "before_cursor_execute", note)
    registry.sequencer.settle([submission(registry, live, live.entry(6))])
    registry.sequencer.settle([submission(registry, live, live.entry(6))])
    with registry.database.read() as connection:
        log.inclusion(connection, 3, 7)
        log.consistency(connection, 3, 7)
    event.remove(registry.database.engine, "before_cursor_execute", note)
    assert len(seen) > 8
    with registry.database.read() as connection:
        for statement, values in seen:
            given = values[0] if isinstance(values, list) else values
            plan = connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {statement}", given)
            steps = [row[3] for row in plan]
            # The newest head is the first of its index; of the registry's keys there are few.
            fine = ("log_heads", "issuer_keys")
            scans = (it.removeprefix("SCAN ") for it in steps if it.startswith("SCAN "))
            bad = [scan for scan in scans if not scan.startswith(fine)]
            assert not bad, (statement, steps)
