"""Who is asking: an identity by its signature, a person by a token or a session of the pages.

Routes name what they need: `Depends(callers.signed)`, `Depends(callers.anyone)`,
`Depends(callers.role("operator"))`. A person with a token needs the scope `read` to look, `write`
to change, and `admin` where a route says so.
"""

import hashlib
import hmac
from dataclasses import dataclass
from typing import Any

from fastapi import Request
from sqlalchemy import Connection, delete, insert, select
from sqlalchemy.exc import IntegrityError
from starlette.concurrency import run_in_threadpool

from polo.errors import FormatError
from polo.keys import Ed25519Verifier, is_weak
from polo.protocol import requests as protocol
from polo.protocol.requests import Authorization
from polo.registry.context import Registry
from polo.registry.problems import Problem
from polo.registry.schema import identities, requests, sessions, tokens

ROLES = ("prover", "auditor", "operator")
SCOPES = ("read", "write", "admin")
TOKEN_PREFIX = "polo_"  # noqa: S105
CSRF_HEADER = "x-csrf-token"
CSRF_FIELD = "csrf"
SAFE = ("GET", "HEAD", "OPTIONS")

_MAX_TOKEN = 128
_PURGE_EVERY = 60
_CHALLENGE = {"WWW-Authenticate": 'PoLO, Bearer realm="polo"'}
_SIGN = "Sign the request with an identity's key, as polo.Client does; a token will not do here."

Security = list[dict[str, list[str]]]
"""Ways to say who asks, as OpenAPI writes them: names of schemes, any of which will do."""

SIGNED: Security = [{"signature": []}]
KNOWN: Security = [*SIGNED, {"token": []}]
ANYONE: Security = [{}, *KNOWN]


@dataclass(frozen=True)
class Caller:
    """Whoever asks.

    Attributes:
        identity: Id of the identity that signed; None for people.
        token: Id of the person's token; None for identities.
        role: `prover`, `auditor`, `operator`, or `guest` for anybody.
        scopes: What a token may do; identities may all that their role may.
        key: The raw public key that signed; None for people.
        session: SHA-256 of the session cookie, where it is one.
    """

    identity: str | None = None
    token: str | None = None
    role: str = "guest"
    scopes: frozenset[str] = frozenset()
    key: bytes | None = None
    session: bytes | None = None

    @property
    def actor(self) -> str:
        """How audit events name the caller."""
        return self.identity or (f"token {self.token}" if self.token else "guest")

    @property
    def looks_after(self) -> bool:
        """Whether the caller may see what is only for auditors and operators."""
        return self.is_at_least("auditor") and (self.token is None or "read" in self.scopes)

    def is_at_least(self, role: str) -> bool:
        """Whether the caller may do what this role may; operators may what auditors may."""
        return self.role == role or (role == "auditor" and self.role == "operator")


GUEST = Caller()


def registry_of(request: Request) -> Registry:
    """The registry that answers this request."""
    registry: Registry = request.app.state.registry
    return registry


def request_id(request: Request) -> str:
    """The request's id, as the log and the answer have it."""
    found: str = getattr(request.state, "request", "")
    return found


def authorization(request: Request, body: bytes, registry: Registry) -> Authorization:
    """What a signed request says, with its time and signature checked, and nothing else.

    The nonce is not spent and the key not looked up: `signed` does both.
    """
    return authorization_over(request, protocol.body_digest(body), registry, registry.clock())


def authorization_over(
    request: Request, digest: bytes, registry: Registry, begun: int
) -> Authorization:
    """The same for a body that was not kept in memory.

    Args:
        request: The request.
        digest: SHA-256 of its body.
        registry: The registry.
        begun: When the request came; a large body takes longer than a signature is fresh.
    """
    given = _signature(request)
    try:
        message = protocol.message(
            request.method,
            registry.settings.origin,
            target_of(request),
            digest,
            given.time,
            given.nonce,
        )
    except FormatError as error:
        raise _refused(request, "caller.bad-header", error.message, error.advice) from error
    if not given.is_fresh(begun):
        raise _refused(
            request,
            "caller.stale",
            f"signed {begun - given.time} s before the registry's clock",
            f"{protocol.WINDOW} s are allowed. Set the clock by the Date header of this answer.",
        )
    if is_weak(given.key):
        raise _refused(request, "caller.weak-key", "a key of small order, or not canonical")
    if not Ed25519Verifier().verify(given.key, message, given.signature):
        raise _refused(
            request,
            "caller.bad-signature",
            f"not the signature of key {given.key.hex()[:16]}… over this request",
            f"Sign for the origin {registry.settings.origin!r}, with path and query as sent.",
        )
    return given


def target_of(request: Request) -> str:
    """Path and query, as they came."""
    raw = request.scope.get("raw_path") or request.scope["path"].encode()
    query = request.scope.get("query_string", b"")
    target: bytes = raw.split(b"?")[0] + (b"?" + query if query else b"")
    return target.decode("ascii", "replace")


def claimed(request: Request, registry: Registry) -> None:
    """Refuse a signature that cannot hold, whatever the body will be: unknown key, or stale."""
    given = _signature(request)
    if not given.is_fresh(registry.clock()):
        raise _refused(request, "caller.stale", "signed too long ago, or in the future")
    with registry.database.read() as connection:
        identity_at(connection, given.key)


async def possession(request: Request) -> Caller:
    """Whoever holds the key that signed, registered or not; for registering one."""
    registry = registry_of(request)
    given = authorization(request, await request.body(), registry)
    # Anybody can make keys without end, so it is the address that pays.
    request.state.charged = True
    registry.limits.addresses.take(getattr(request.state, "address", ""))
    await run_in_threadpool(_spend, registry, given)
    return Caller(key=given.key)


async def signed(request: Request) -> Caller:
    """The registered identity that signed."""
    registry = registry_of(request)
    given = authorization(request, await request.body(), registry)
    return await _charged(registry, request, given)


async def signed_over(request: Request, digest: bytes, begun: int) -> Caller:
    """The registered identity that signed a body of this digest; see `authorization_over`."""
    registry = registry_of(request)
    given = authorization_over(request, digest, registry, begun)
    return await _charged(registry, request, given)


async def anyone(request: Request) -> Caller:
    """Whoever it is; a signature, token or session that is given must hold."""
    header = request.headers.get("authorization", "")
    if header.startswith(protocol.SCHEME + " "):
        return await signed(request)
    if header:
        return await _bearer(request, header)
    if (cookie := session_cookie(request)) is not None:
        return await _session(request, cookie)
    return GUEST


@dataclass(frozen=True)
class Role:
    """A dependency: whoever asks has one of these roles, and the scope; see `role`."""

    names: tuple[str, ...]
    scope: str | None = None

    async def __call__(self, request: Request) -> Caller:
        """Whoever asks, or a `Problem`."""
        caller, wanted = await anyone(request), " and ".join(self.names)
        if caller is GUEST:
            raise _missing(f"This is for {wanted}.")
        if not any(caller.is_at_least(name) for name in self.names):
            raise Problem(403, "caller.forbidden", f"this is for {wanted}, not {caller.role}")
        check_scope(caller, self.scope or ("read" if request.method in SAFE else "write"))
        return caller


def role(*names: str, scope: str | None = None) -> Role:
    """A dependency: whoever asks has one of these roles, and the scope.

    Args:
        names: Roles; an operator may what an auditor may.
        scope: What a token needs; by default `read` to look and `write` to change.
    """
    return Role(names, scope)


def security_of(dependency: object) -> Security | None:
    """How callers say who they are to a dependency of a route; None if it does not ask."""
    if dependency in (signed, possession):
        return SIGNED
    if isinstance(dependency, Role):
        return KNOWN
    return ANYONE if dependency is anyone else None


def check_scope(caller: Caller, scope: str) -> None:
    """Refuse a token that is not made for this."""
    if caller.token is not None and scope not in caller.scopes:
        raise Problem(403, "caller.scope", f"the token has not the scope {scope!r}")


def identity_at(connection: Connection, key: bytes) -> Caller:
    """The identity whose key this is now; to be asked in the transaction that relies on it."""
    row = connection.execute(select(identities).where(identities.c.key == key)).first()
    if row is None:
        raise Problem(
            401,
            "caller.unknown-key",
            f"no identity is registered with key {key.hex()[:16]}…",
            advice="Register it: POST /v1/identities.",
            headers=_CHALLENGE,
        )
    if row.revoked is not None:
        raise Problem(403, "caller.revoked", "the identity was revoked")
    return Caller(identity=row.id, role=row.role, scopes=frozenset(SCOPES), key=key)


def spend(connection: Connection, given: Authorization) -> None:
    """Use up a request's nonce; a second request with it is refused."""
    try:
        with connection.begin_nested():
            connection.execute(
                insert(requests).values(key=given.key, nonce=given.nonce, time=given.time)
            )
    except IntegrityError as error:
        raise Problem(
            401,
            "caller.replayed",
            "a request with this nonce was here before",
            advice="Sign each request anew.",
            headers=_CHALLENGE,
        ) from error


def forget_spent(connection: Connection, now: int) -> int:
    """Drop nonces of requests that are too old to be accepted again; returns how many."""
    gone = connection.execute(delete(requests).where(requests.c.time < now - 2 * protocol.WINDOW))
    return gone.rowcount


def token_hash(token: str) -> bytes:
    """What the database has of a token or of a session's cookie."""
    return hashlib.sha256(token.encode()).digest()


def session_cookie(request: Request) -> str | None:
    """The cookie of a person who signed in on the pages."""
    return request.cookies.get(cookie_name(registry_of(request)))


def cookie_name(registry: Registry) -> str:
    """The name of the session's cookie; browsers hold `__Host-` to https and to this host."""
    return "__Host-polo-session" if registry.settings.secure else "polo-session"


def csrf_token(cookie: str) -> str:
    """What the forms of a session must send along; nobody without the cookie can compute it."""
    return hmac.digest(cookie.encode(), b"polo csrf 1", "sha256").hex()


async def check_csrf(request: Request, cookie: str) -> None:
    """Refuse what changes something unless it comes from a page of ours."""
    if request.method in SAFE:
        return
    given: Any = request.headers.get(CSRF_HEADER)
    if given is None:
        kind = request.headers.get("content-type", "").split(";")[0].strip().lower()
        if kind == "application/x-www-form-urlencoded":  # Files come with the header instead.
            given = (await request.form()).get(CSRF_FIELD)
    if not isinstance(given, str) or not hmac.compare_digest(
        given.encode(), csrf_token(cookie).encode()
    ):
        raise Problem(
            403, "caller.csrf", "the form's token is not this session's", advice="Reload the page."
        )


async def _charged(registry: Registry, request: Request, given: Authorization) -> Caller:
    # Before anything is written: whoever asks too often must not keep the database busy.
    request.state.charged = True
    registry.limits.keys.check(given.key.hex())
    try:
        caller = await run_in_threadpool(_admit, registry, request, given)
    except Problem:
        request.state.charged = False  # Not known to be anybody: the address pays.
        raise
    charge(request, given.key.hex())
    return caller


def _admit(registry: Registry, request: Request, given: Authorization) -> Caller:
    with registry.database.begin() as connection:
        spend(connection, given)
        _purge(registry, connection)
        caller = identity_at(connection, given.key)
    request.state.caller = caller.actor
    return caller


def _spend(registry: Registry, given: Authorization) -> None:
    with registry.database.begin() as connection:
        spend(connection, given)
        _purge(registry, connection)


def _purge(registry: Registry, connection: Connection) -> None:
    now = registry.clock()
    if now - registry.purged >= _PURGE_EVERY:
        registry.purged = now
        forget_spent(connection, now)


async def _bearer(request: Request, header: str) -> Caller:
    kind, _, token = header.partition(" ")
    if kind.lower() != "bearer" or not token.startswith(TOKEN_PREFIX) or len(token) > _MAX_TOKEN:
        raise _refused(
            request,
            "caller.bad-header",
            "neither a signed request nor a token",
            f"{protocol.SCHEME} key=…, or Bearer {TOKEN_PREFIX}…",
        )
    caller = await run_in_threadpool(_token, registry_of(request), tokens.c.hash, token)
    if caller is None:
        raise _refused(request, "caller.bad-token", "the token is unknown, expired or revoked")
    return _known(request, caller)


async def _session(request: Request, cookie: str) -> Caller:
    caller = await run_in_threadpool(_token, registry_of(request), sessions.c.hash, cookie)
    if caller is None:  # A session that is over is no attack: the page asks to sign in again.
        return GUEST
    await check_csrf(request, cookie)
    return _known(request, caller)


def _known(request: Request, caller: Caller) -> Caller:
    charge(request, caller.actor)
    request.state.caller = caller.actor
    return caller


def _token(registry: Registry, column: Any, secret: str) -> Caller | None:
    """The caller whose token, or session, has this secret; None if it is not good (any more)."""
    now = registry.clock()
    query = select(tokens).where(
        column == token_hash(secret), tokens.c.revoked.is_(None), tokens.c.expires > now
    )
    by_session = column.table is sessions
    if by_session:
        query = query.join(sessions, sessions.c.token == tokens.c.id)
        query = query.where(sessions.c.expires > now)
    with registry.database.read() as connection:
        row = connection.execute(query).first()
    if row is None:
        return None
    scopes = frozenset(row.scopes.split())
    session = token_hash(secret) if by_session else None
    return Caller(token=row.id, role=row.role, scopes=scopes, session=session)


def charge(request: Request, name: str) -> None:
    """Let the request cost whoever made it, and not the address."""
    request.state.charged = True
    registry_of(request).limits.keys.take(name)


def _refused(request: Request, code: str, detail: str, advice: str = "") -> Problem:
    """A refusal that costs the address more than a request does, so that guessing is slow."""
    request.state.charged = True
    registry_of(request).limits.addresses.punish(getattr(request.state, "address", ""))
    return Problem(401, code, detail, advice=advice, headers=_CHALLENGE)


def _signature(request: Request) -> Authorization:
    """What the header of a signed request says, where only that will do."""
    header = request.headers.get("authorization", "")
    if not header:
        raise _missing("This needs a signed request.", _SIGN)
    if header.partition(" ")[0].lower() == "bearer":
        raise _refused(request, "caller.bad-header", "a token where an identity must sign", _SIGN)
    try:
        return Authorization.parse(header)
    except FormatError as error:
        raise _refused(request, "caller.bad-header", error.message, error.advice) from error


def _missing(
    detail: str, advice: str = "Sign the request, or send a token: Authorization: Bearer polo_…"
) -> Problem:
    return Problem(401, "caller.missing", detail, advice=advice, headers=_CHALLENGE)
