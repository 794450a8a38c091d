"""Terms of an enrolment: the task's, with what this registry and its log promise. numpy."""

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from polo.errors import FormatError, TermsError
from polo.evidence.receipts.rules import Rules
from polo.evidence.replay.recipe import Recipe
from polo.protocol.effort import DataRecord
from polo.protocol.log_notes import NoteKey
from polo.protocol.records import EvidenceTerms, ShardTerms, StartTerms, Terms
from polo.registry.problems import Problem
from polo.registry.tasks.offers import Offer
from polo.registry.tasks.service import Offered


def terms_for(
    offered: Offered,
    *,
    origin: str,
    log: NoteKey,
    witnesses: Iterable[NoteKey] = (),
    keep: int | None = None,
    bits: int | None = None,
    data: DataRecord | None = None,
    parent: bytes | None = None,
) -> Terms:
    """The terms that an enrolment gets.

    Args:
        offered: The task.
        origin: The registry's name.
        log: The log's key.
        witnesses: Keys of the witnesses that terms may ask for.
        keep: Days that uploaded files are kept, where the offer does not say.
        bits: Bits of a mark, where the prover chooses.
        data: The data, where steps are to be run again.
        parent: Root of the model that training starts from, if it goes on from one.
    """
    offer, terms = offered.offer, offered.terms
    if bits is not None:
        terms = _with_bits(offered, bits)
    if parent is not None:
        task = replace(terms.task, floor=terms.task.floor[-1:])
        terms = replace(terms, task=task, start=StartTerms("parent", parent))
    rules = _rules(offer, origin, log, witnesses, keep)
    evidence = [*terms.evidence, EvidenceTerms("receipts", rules)]
    terms = replace(terms, history=offer.history)
    if offer.recipe is not None:
        terms, recipe = _replayed(offered, terms, data)
        evidence.append(EvidenceTerms("replay", recipe.to_settings()))
    elif data is not None:
        raise Problem(422, "enrolment.options", "this task's terms ask for no data")
    order = ("chain", "receipts", "uniqueness", "progress", "replay")
    evidence.sort(key=lambda item: order.index(item.level))
    terms = replace(terms, evidence=tuple(evidence))
    terms.check()
    return terms


def _rules(
    offer: Offer, origin: str, log: NoteKey, witnesses: Iterable[NoteKey], keep: int | None
) -> dict[str, str]:
    options: dict[str, Any] = {"keep": keep, **offer.receipts}
    if options.get("quorum"):
        options["witnesses"] = tuple(witnesses)
    rules = Rules(origin, log, **options)
    rules.check()
    return rules.to_settings()


def _with_bits(offered: Offered, bits: int) -> Terms:
    from polo.watermark.mark import carrier_of

    allowed = offered.offer.bits
    if not allowed.least <= bits <= allowed.most:
        raise Problem(
            422,
            "enrolment.options",
            f"{bits} bits; this registry enrols for {allowed.least} to {allowed.most}",
        )
    terms = replace(offered.terms, scheme=replace(offered.terms.scheme, bits=bits))
    terms.check()
    carrier_of(terms, offered.layout)
    return terms


def _replayed(offered: Offered, terms: Terms, data: DataRecord | None) -> tuple[Terms, Recipe]:
    if data is None:
        raise Problem(
            422,
            "enrolment.options",
            "the terms ask for level replay, so they must name the data",
            advice="Commit to your data first: polo data ARRAYS --out DATA. Then give it: "
            "polo enrol … --data DATA, or in a request the content of data.json as `data`.",
        )
    if data.columns != offered.columns:
        raise TermsError("the task trains on other columns than these data have", place="data")
    given: dict[str, Any] = {
        key: tuple(value) if isinstance(value, list) else value
        for key, value in (offered.offer.recipe or {}).items()
    }
    try:
        recipe = Recipe(samples=data.samples, **given)
    except TypeError as error:
        raise FormatError(str(error), place=f"tasks: {offered.offer.task}.recipe") from error
    steps = max(terms.shards.fewest_steps, recipe.steps_per_pass)
    shards = ShardTerms(terms.shards.least, terms.shards.most, steps)
    return replace(terms, data=data.root, shards=shards), recipe
