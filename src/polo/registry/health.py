"""Whether the registry is alive, whether it can answer, its figures, and its public keys."""

from typing import Annotated

from fastapi import APIRouter, Depends
from fastapi.responses import PlainTextResponse
from prometheus_client import CONTENT_TYPE_LATEST
from pydantic import BaseModel, Field
from sqlalchemy import text

from polo.protocol.log_notes import NoteKey
from polo.registry import migrations
from polo.registry.callers import Caller, registry_of, role
from polo.registry.context import Registry
from polo.registry.jobs import presence
from polo.registry.operations import figures
from polo.registry.problems import PATH, Problem, document
from polo.registry.vault import LOG

router = APIRouter(tags=["registry"])

Here = Annotated[Registry, Depends(registry_of)]


class PublicKey(BaseModel):
    """One public key of the registry."""

    key: str = Field(description="The raw Ed25519 public key, in hexadecimal.")
    use: str = Field(description="`issuer` (enrolments, receipts, verdicts) or `log`.")
    since: int = Field(description="From when it signs, in seconds since 1970.")
    until: int | None = Field(description="When a newer key took over; what it signed stays valid.")


class Keys(BaseModel):
    """Who the registry is."""

    origin: str = Field(
        description="The registry's and its log's name; requests are signed for it."
    )
    log: str = Field(description="The log's newest key, as a C2SP verifier key.")
    keys: list[PublicKey]


@router.get("/healthz", response_class=PlainTextResponse, summary="Is it alive?")
def healthz() -> str:
    """Answers as long as the process does."""
    return "ok\n"


@router.get("/readyz", response_class=PlainTextResponse, summary="Can it answer?")
def readyz(registry: Here) -> str:
    """Asks the database, too; 503 if it cannot answer or has another shape than needed.

    It is ready, and says so, where nobody serves a queue: commitments need none.
    """
    needed = {"cpu", *(offer.queue for offer in registry.tasks.offers.values())}
    with registry.database.read() as connection:
        found = connection.execute(text("select version_num from alembic_version")).scalar()
        if found != migrations.latest():
            raise Problem(503, "registry.busy", "the database waits for its migration")
        lacking = presence.unserved(connection, registry.settings, registry.clock(), needed)
    return "".join(["ready\n", *(f"{queue}\n" for queue in lacking)])


class Figures(PlainTextResponse):
    """Text in Prometheus's format."""

    media_type = CONTENT_TYPE_LATEST


@router.get("/metrics", response_class=Figures, summary="Figures for Prometheus")
def metrics(registry: Here, _: Annotated[Caller, Depends(role("auditor"))]) -> Figures:
    """Needs a token of an auditor or operator: figures tell who is training, and how fast."""
    return Figures(registry.metrics.text() + figures.text(registry))


class Markdown(PlainTextResponse):
    """Text that says what it is."""

    media_type = "text/markdown"


@router.get(PATH, response_class=Markdown, summary="What the codes of problems mean")
def explained() -> Markdown:
    """Every code that a problem may have, in Markdown."""
    return Markdown(document())


@router.get("/v1/keys", summary="The registry's public keys")
def keys(registry: Here) -> Keys:
    """All keys, old ones included, so that old receipts can be checked."""
    with registry.database.read() as connection:
        found = registry.vault.published(connection)
    log = next(item for item in found if item.use == LOG and item.until is None)
    return Keys(
        origin=registry.settings.origin,
        log=NoteKey(registry.settings.origin, log.key).text,
        keys=[
            PublicKey(key=item.key.hex(), use=item.use, since=item.since, until=item.until)
            for item in found
        ],
    )
