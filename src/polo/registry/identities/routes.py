"""`/v1/identities`."""

from typing import Annotated, Literal

from fastapi import APIRouter, Depends, Path, Query, Request
from pydantic import BaseModel, ConfigDict, Field
from sqlalchemy import Connection

from polo.keys import Ed25519Verifier
from polo.protocol.requests import rotation_message
from polo.registry.callers import Caller, anyone, possession, registry_of, request_id, role, signed
from polo.registry.context import Registry
from polo.registry.identities import service
from polo.registry.lines import ONE_LINE
from polo.registry.problems import Problem

router = APIRouter(prefix="/v1/identities", tags=["identities"])

Here = Annotated[Registry, Depends(registry_of)]
Id = Annotated[str, Path(pattern="^[0-9a-f]{64}$", description="The identity's fingerprint.")]
Hex32 = Annotated[str, Field(pattern="^[0-9a-f]{64}$")]
Hex64 = Annotated[str, Field(pattern="^[0-9a-f]{128}$")]


class Registration(BaseModel):
    """A key wants to be known."""

    model_config = ConfigDict(extra="forbid")

    name: str = Field(
        min_length=1,
        max_length=128,
        pattern=ONE_LINE,
        description="What people call it; anybody can take any name.",
    )


class Rotation(BaseModel):
    """A new key, which signs that it wants to take over."""

    model_config = ConfigDict(extra="forbid")

    key: Hex32 = Field(description="The new raw public key.")
    signature: Hex64 = Field(
        description="The new key's over `polo rotation 1\\n<id>\\n<old key>\\n<new key>`."
    )


class Revocation(BaseModel):
    """Why an identity is taken out of use."""

    model_config = ConfigDict(extra="forbid")

    reason: str = Field(default="", max_length=500, pattern=ONE_LINE)


class RoleChange(BaseModel):
    """What an identity may do from now on."""

    model_config = ConfigDict(extra="forbid")

    role: Literal["prover", "auditor", "operator"]


class KeyView(BaseModel):
    """A key, and when it counted."""

    key: str
    since: int
    until: int | None


class IdentityView(BaseModel):
    """An identity, as everybody may see it."""

    id: str
    key: str = Field(description="The raw public key that counts now, in hexadecimal.")
    name: str
    role: str
    registered: int
    revoked: int | None
    keys: list[KeyView] = Field(description="All keys it ever had, the oldest first.")


@router.post("", status_code=201, summary="Register a key")
def register(
    request: Request,
    body: Registration,
    registry: Here,
    caller: Annotated[Caller, Depends(possession)],
) -> IdentityView:
    """Signed by the key itself, which shows that the caller holds it."""
    assert caller.key is not None
    with registry.database.begin() as connection:
        made = service.register(
            connection,
            caller.key,
            body.name,
            request=request_id(request),
            now=registry.clock(),
        )
    return view(made)


@router.get("", summary="Whose key it is")
def find(
    registry: Here,
    _: Annotated[Caller, Depends(anyone)],
    key: Annotated[str, Query(pattern="^[0-9a-f]{64}$", description="A raw public key.")],
) -> IdentityView:
    """The identity that has or had this key: its id stays when its key changes."""
    with registry.database.read() as connection:
        return view(service.holding(connection, bytes.fromhex(key)))


@router.get("/{identity}", summary="Look an identity up")
def show(identity: Id, registry: Here, _: Annotated[Caller, Depends(anyone)]) -> IdentityView:
    """Anybody may."""
    with registry.database.read() as connection:
        return view(service.get(connection, identity))


@router.post("/{identity}/rotate", summary="Change the key")
def rotate(
    request: Request,
    identity: Id,
    body: Rotation,
    registry: Here,
    caller: Annotated[Caller, Depends(signed)],
) -> IdentityView:
    """Signed by the key that counts now; the new key signs, too, in the body."""
    _own(caller, identity)
    new = bytes.fromhex(body.key)
    with registry.database.begin() as connection:
        current = _locked(registry, connection, identity)
        if current.key != caller.key:
            raise Problem(409, "identity.known", "the key was changed by another request")
        message = rotation_message(identity, current.key, new)
        if not Ed25519Verifier().verify(new, message, bytes.fromhex(body.signature)):
            raise Problem(422, "caller.bad-signature", "not the new key's signature")
        return view(
            service.rotate(
                connection,
                identity,
                new,
                actor=caller.actor,
                request=request_id(request),
                now=registry.clock(),
            )
        )


@router.post("/{identity}/revoke", summary="Take an identity out of use")
def revoke(
    request: Request,
    identity: Id,
    body: Revocation,
    registry: Here,
    caller: Annotated[Caller, Depends(role("prover", "auditor", "operator"))],
) -> IdentityView:
    """By the identity itself or an operator, and for good; its chains stay as they are."""
    if caller.role != "operator":
        _own(caller, identity)
    with registry.database.begin() as connection:
        _locked(registry, connection, identity)
        return view(
            service.revoke(
                connection,
                identity,
                body.reason,
                actor=caller.actor,
                request=request_id(request),
                now=registry.clock(),
            )
        )


@router.post("/{identity}/role", summary="Change what an identity may do")
def change_role(
    request: Request,
    identity: Id,
    body: RoleChange,
    registry: Here,
    caller: Annotated[Caller, Depends(role("operator", scope="admin"))],
) -> IdentityView:
    """By an operator."""
    with registry.database.begin() as connection:
        _locked(registry, connection, identity)
        return view(
            service.set_role(
                connection,
                identity,
                body.role,
                actor=caller.actor,
                request=request_id(request),
                now=registry.clock(),
            )
        )


def view(identity: service.Identity) -> IdentityView:
    """An identity as JSON."""
    return IdentityView(
        id=identity.id,
        key=identity.key.hex(),
        name=identity.name,
        role=identity.role,
        registered=identity.registered,
        revoked=identity.revoked,
        keys=[
            KeyView(key=item.key.hex(), since=item.since, until=item.until)
            for item in identity.keys
        ],
    )


def _own(caller: Caller, identity: str) -> None:
    if caller.identity != identity:
        raise Problem(403, "identity.not-yours", "only the identity itself may do this")


def _locked(registry: Registry, connection: Connection, identity: str) -> service.Identity:
    """The identity, which nobody else changes until the transaction ends."""
    registry.database.lock(connection, f"identity {identity}")
    return service.get(connection, identity)
