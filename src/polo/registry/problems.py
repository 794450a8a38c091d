"""Errors as people and programs get them: `application/problem+json` with a stable code.

Every code is in docs/errors.md, whose anchor is the problem's `type`. Programs go by `code`, never
by the sentences.
"""

import http
from collections.abc import Mapping
from typing import Any

from polo import errors

MEDIA_TYPE = "application/problem+json"
PATH = "/v1/problems"
"""Where a registry explains its codes."""

CODES: dict[str, str] = {
    "body.broken": "The body is not what its content type says.",
    "body.invalid": "The body or a parameter is not what the resource takes; `errors` says where.",
    "body.slow": "The body took longer than the registry waits.",
    "body.too-large": "The body is larger than this resource takes.",
    "caller.bad-header": "The `Authorization` header cannot be read.",
    "caller.bad-signature": "The signature is not this key's over this request.",
    "caller.bad-token": "The token is unknown, has expired, or was revoked.",
    "caller.csrf": "A form came without the token of its page.",
    "caller.forbidden": "Whoever asks has not the role for this.",
    "caller.missing": "The resource needs a signed request or a token.",
    "caller.replayed": "A request with this nonce was here before.",
    "caller.revoked": "The identity was revoked.",
    "caller.scope": "The token has not the scope for this.",
    "caller.stale": "The request's time is too far from the registry's.",
    "caller.unknown-key": "No identity is registered with this key.",
    "caller.weak-key": "The key is one that anybody can sign for.",
    "error.capacity": "The model cannot carry the mark that the terms ask for.",
    "error.chain": "Steps of the protocol are out of order.",
    "error.format": "Bytes do not say what they must.",
    "error.internal": "The registry failed; the request's id is in its log.",
    "error.limit": "A size or a count is beyond what is allowed.",
    "error.missing": "The registry has not installed what this needs.",
    "error.other": "The protocol refuses it.",
    "error.signature": "A signature or an identity does not hold.",
    "error.store": "A file or a record cannot be read or written.",
    "error.task": "The task is unknown, or does not fit.",
    "error.terms": "Terms contradict themselves or what they are used with.",
    "error.weights": "The weights cannot be committed to.",
    "identity.known": "The key is registered already.",
    "identity.missing": "There is no such identity.",
    "identity.not-yours": "Only the identity itself, or an operator, may do this.",
    "identity.revoked": "The identity was revoked.",
    "idempotency.busy": "The same request is being answered at this moment.",
    "idempotency.other": "The `Idempotency-Key` was used for another request.",
    "idempotency.word": "The `Idempotency-Key` is empty, too long, or not printable.",
    "rate.exceeded": "Too many requests; `Retry-After` says when to come back.",
    "registry.busy": "The registry cannot do it right now; try again.",
    "request.failed": "The request cannot be answered.",
    "resource.missing": "There is nothing at this address.",
    "resource.method": "The resource does not take this method.",
    "token.missing": "There is no such token.",
}
"""What every code means. Domains add theirs when they are imported."""

_CLASSES: tuple[tuple[type[errors.PoloError], str], ...] = (
    (errors.LimitError, "error.limit"),
    (errors.FormatError, "error.format"),
    (errors.SignatureError, "error.signature"),
    (errors.ChainError, "error.chain"),
    (errors.TermsError, "error.terms"),
    (errors.CapacityError, "error.capacity"),
    (errors.WeightsError, "error.weights"),
    (errors.StoreError, "error.store"),
    (errors.TaskError, "error.task"),
    (errors.MissingError, "error.missing"),
)


class Problem(errors.PoloError):
    """Something that a caller did, or that the registry will not do.

    Attributes:
        status: The HTTP status.
        code: A stable word of `CODES`.
        detail: What is wrong here, in one sentence.
        headers: More headers of the answer.
        errors: Which fields are wrong, for `body.invalid`.
    """

    def __init__(
        self,
        status: int,
        code: str,
        detail: str,
        *,
        advice: str = "",
        headers: Mapping[str, str] | None = None,
        errors: list[dict[str, str]] | None = None,
    ) -> None:
        super().__init__(detail, advice=advice)
        self.status = status
        self.code = code
        self.detail = detail
        self.headers = dict(headers or {})
        self.errors = errors

    def to_json(self, public_url: str, request: str) -> dict[str, Any]:
        """The body of the answer."""
        value: dict[str, Any] = {
            "type": f"{public_url}{PATH}#{self.code.replace('.', '-')}",
            "title": http.HTTPStatus(self.status).phrase,
            "status": self.status,
            "code": self.code,
            "detail": self.detail,
            "advice": self.advice,
            "request": request,
        }
        return value if self.errors is None else {**value, "errors": self.errors}


def problem_of(error: errors.PoloError) -> Problem:
    """The problem that stands for an error of the protocol: 422, with a code by its class."""
    if isinstance(error, Problem):
        return error
    for kind, code in _CLASSES:
        if isinstance(error, kind):
            return Problem(422, code, str(error), advice=error.advice)
    return Problem(422, "error.other", str(error), advice=error.advice)


def document() -> str:
    """What `GET /v1/problems` answers, and docs/errors.md holds."""
    lines = [
        "# Errors of a registry",
        "",
        "A registry answers what it refuses as `application/problem+json` (RFC 9457), with the",
        "fields `type` (an anchor on this page), `title`, `status`, `code`, `detail`, `advice` and",
        "`request` (the id that its log has, too). Programs go by `code`: it never changes.",
    ]
    for code, meaning in sorted(CODES.items()):
        lines += ["", f'<a id="{code.replace(".", "-")}"></a>', f"## {code}", "", meaning]
    return "\n".join(lines) + "\n"
