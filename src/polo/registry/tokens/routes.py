"""`/v1/tokens`: for operators whose own token has the scope `admin`."""

from typing import Annotated, Literal

from fastapi import APIRouter, Depends, Path, Query, Request
from pydantic import BaseModel, ConfigDict, Field
from starlette.responses import Response

from polo.registry.callers import Caller, registry_of, request_id, role
from polo.registry.context import Registry
from polo.registry.idempotency import once
from polo.registry.lines import ONE_LINE
from polo.registry.paging import Limit, Page
from polo.registry.tokens import service

router = APIRouter(prefix="/v1/tokens", tags=["tokens"])

Here = Annotated[Registry, Depends(registry_of)]
Operator = Annotated[Caller, Depends(role("operator", scope="admin"))]


class TokenRequest(BaseModel):
    """What a new token is to be."""

    model_config = ConfigDict(extra="forbid")

    name: str = Field(min_length=1, max_length=128, pattern=ONE_LINE)
    role: Literal["auditor", "operator"]
    scopes: list[Literal["read", "write", "admin"]] = Field(min_length=1, max_length=3)
    days: int | None = Field(default=None, ge=1, le=3650, description="By default the setting's.")


class TokenView(BaseModel):
    """A token, without what it is made of."""

    id: str
    name: str
    role: str
    scopes: list[str]
    made: int
    expires: int
    revoked: int | None


class NewToken(TokenView):
    """A token that was just made."""

    token: str = Field(description="Shown this once: the registry keeps its hash alone.")


@router.post("", status_code=201, summary="Make a token")
def make(request: Request, body: TokenRequest, registry: Here, caller: Operator) -> NewToken:
    """For a person or a script. `Idempotency-Key` is honoured."""
    with registry.database.begin() as connection:

        def fresh() -> dict[str, object]:
            token, secret = service.make(
                connection,
                body.name,
                body.role,
                body.scopes,
                days=body.days or registry.settings.token_days,
                actor=caller.actor,
                request=request_id(request),
                now=registry.clock(),
            )
            return NewToken(**_view(token).model_dump(), token=secret).model_dump()

        answer = once(registry, connection, request, body.model_dump(), caller, fresh)
    return NewToken.model_validate(answer)


@router.get("", summary="List the tokens")
def index(
    registry: Here,
    _: Operator,
    after: Annotated[str, Query(max_length=32, pattern="^[0-9a-f]*$")] = "",
    limit: Limit = 100,
) -> Page[TokenView]:
    """All of them, revoked and expired ones, too."""
    with registry.database.read() as connection:
        found = service.page(connection, after=after, limit=limit)
    following = found[-1].id if len(found) == limit else None
    return Page[TokenView](items=[_view(token) for token in found], next=following)


@router.delete("/{token}", status_code=204, summary="Revoke a token")
def revoke(
    request: Request,
    token: Annotated[str, Path(pattern="^[0-9a-f]{1,32}$")],
    registry: Here,
    caller: Operator,
) -> Response:
    """It and its sessions are good for nothing from this moment on."""
    with registry.database.begin() as connection:
        service.revoke(
            connection,
            token,
            actor=caller.actor,
            request=request_id(request),
            now=registry.clock(),
        )
    return Response(status_code=204)


def _view(token: service.Token) -> TokenView:
    return TokenView(
        id=token.id,
        name=token.name,
        role=token.role,
        scopes=list(token.scopes),
        made=token.made,
        expires=token.expires,
        revoked=token.revoked,
    )
