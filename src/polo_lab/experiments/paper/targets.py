"""What is aimed at, and whether recorded runs reach it. Without a run nothing is said.

Times are judged only where a run had the machine to itself, and only against times of the same
engine: rows of `timing` against each other, and rows of `fidelity` against their own training: a
replay of theirs is computed, and not run.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from polo_lab.baselines import chain, pol_vanilla
from polo_lab.experiments.lines import Recording
from polo_lab.experiments.paper import fidelity, timing
from polo_lab.experiments.paper.pairs import HEADLINE, LONG
from polo_lab.experiments.paper.subject import NONE

PLAIN = 0.945
"""Accuracy of plain training of the headline, at least."""

MARKS, TESTS, FULL, SAMPLED = 0.02, 1.3, 15.0, 50.0
"""Marks verified in a part of generation, at most; with all tests in a multiple of bare tests, at
most; and how many times as fast as full replay, all shards and sampled, at least."""

Row = Mapping[str, Any]


def of_ours(found: Mapping[str, Recording]) -> Iterator[str]:
    """A sentence with yes or no for every aim that a recorded run is about."""
    marked = [row for row in fidelity.rows(found["fidelity"]) if _headline(row)]
    timed = [row for row in timing.rows(found["timing"]) if _headline(row)]
    yield from _plain(found["fidelity"])
    for row in marked:
        yield from _verified(row)
    for replay in timed:
        if replay["method"] == pol_vanilla.METHOD and "verify_all" in replay:
            for row in timed:
                if row["method"] == chain.METHOD and _comparable(row, replay):
                    yield _replayed(row, replay)


def _headline(row: Row) -> bool:
    """Whether a run is one of the headline, of full length, and was alone."""
    return bool(row["pair"] == HEADLINE and row["epochs"] >= LONG and row["at_once"] == "1")


def _comparable(row: Row, replay: Row) -> bool:
    """Whether two runs of `timing` are of the same training on such a machine."""
    return all(row[name] == replay[name] for name in ("pair", "epochs", "seed", "gpu"))


def _answer(reached: bool) -> str:
    return "yes" if reached else "no"


def _plain(recording: Recording) -> Iterator[str]:
    for row in (line.values for line in recording.done):
        if row["pair"] == HEADLINE and row["epochs"] >= LONG and row["scheme"] == NONE:
            yield (
                f"Plain training of {HEADLINE} reaches {PLAIN:.1%} in {row['epochs']} epochs: "
                f"{_answer(row['accuracy'] >= PLAIN)}, {row['accuracy']:.2%}."
            )


def _verified(row: Row) -> Iterator[str]:
    named, bare = _named("fidelity", row), row["test"] * row["shards"]
    marks, whole = row["verify_none"] / row["training"], row["verify_all"] / bare
    yield (
        f"{named}: hashing, deriving and reading all {row['shards']} marks takes at most "
        f"{MARKS:.0%} of generation: {_answer(marks <= MARKS)}, {marks:.2%} "
        f"({row['verify_none']:.2f} s of {row['training']:.1f} s)."
    )
    yield (
        f"{named}: with the tests of all shards verification takes at most {TESTS:g} times the "
        f"bare tests: {_answer(whole <= TESTS)}, {whole:.2f} times ({row['verify_all']:.2f} s; "
        f"bare tests {bare:.2f} s). That is {row['verify_all'] / row['training']:.2%} of its own "
        f"training, and {row['verify_sample'] / row['training']:.2%} where shards are sampled."
    )
    steps = row["training"] - row["sealing"]
    full, some = steps / row["verify_all"], steps / row["verify_sample"]
    yield (
        f"{named}: whoever ran all its steps again as fast as they were trained, sealing left out, "
        f"would take {steps:.1f} s. Verifying all shards is at least {FULL:g} times as fast as "
        f"that: {_answer(full >= FULL)}, {full:.1f} times; sampled at least {SAMPLED:g} times: "
        f"{_answer(some >= SAMPLED)}, {some:.1f} times."
    )


def _replayed(row: Row, replay: Row) -> str:
    """PoLO's verification against full replay of a run as long, by the same engine."""
    took = replay["verify_all"]
    full, some = took / row["verify_all"], took / row["verify_sampled"]
    return (
        f"{_named('timing', row)}: verifying all shards is at least {FULL:g} times as fast as full "
        f"replay, which takes {took:.1f} s: {_answer(full >= FULL)}, {full:.1f} times; sampled at "
        f"least {SAMPLED:g} times: {_answer(some >= SAMPLED)}, {some:.1f} times."
    )


def _named(experiment: str, row: Row) -> str:
    return f"{experiment}, {row['pair']}, {row['scheme']}, {row['bits']} bits"
