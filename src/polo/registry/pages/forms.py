"""Forms that only our own pages can send.

A form carries a word that is computed from a cookie. A page of somebody else can make a browser
send the cookie, and cannot know the word. People who have signed in have the cookie of their
session; for the others there is one that stands for nothing but the form.
"""

import hmac
import secrets
from urllib.parse import urlsplit

from fastapi import Request
from fastapi.responses import Response
from starlette.datastructures import FormData, UploadFile

from polo.registry import callers
from polo.registry.context import Registry
from polo.registry.problems import Problem

MAX_FIELDS = 16
_HOURS = 12


def cookie_name(registry: Registry) -> str:
    """The name of the cookie of those who have not signed in."""
    return "__Host-polo-form" if registry.settings.secure else "polo-form"


def guest_word(request: Request, registry: Registry) -> tuple[str, str | None]:
    """The word for a form of somebody who has not signed in, and the cookie to set, if any."""
    held = request.cookies.get(cookie_name(registry))
    fresh = None if held else secrets.token_urlsafe(32)
    return callers.csrf_token(held or fresh or ""), fresh


def remember(response: Response, registry: Registry, fresh: str | None) -> None:
    """Set the cookie that belongs to a form, where there is a new one."""
    if fresh is not None:
        set_cookie(response, registry, cookie_name(registry), fresh, _HOURS * 3600)


def set_cookie(response: Response, registry: Registry, name: str, value: str, age: int) -> None:
    """A cookie that scripts cannot read, and that no other site's request carries."""
    response.set_cookie(
        name,
        value,
        max_age=age,
        path="/",
        secure=registry.settings.secure,
        httponly=True,
        samesite="strict",
    )


async def of_guest(request: Request, registry: Registry) -> FormData:
    """The fields of a form from somebody who has not signed in."""
    check_origin(request, registry)
    form = await request.form(max_files=0, max_fields=MAX_FIELDS)
    check_word(text(form, callers.CSRF_FIELD), request.cookies.get(cookie_name(registry), ""))
    return form


def check_word(given: str, cookie: str) -> None:
    """Refuse a form whose word is not its cookie's."""
    word = callers.csrf_token(cookie)
    if not cookie or not hmac.compare_digest(given.encode(), word.encode()):
        raise Problem(
            403,
            "caller.csrf",
            "the form came without its page's word or cookie",
            advice="Allow cookies for this site, reload the page, and send it again.",
        )


def check_origin(request: Request, registry: Registry) -> None:
    """Refuse what another site's page sends, before its body is read."""
    origin = request.headers.get("origin")
    hosts = {request.headers.get("host", ""), urlsplit(registry.settings.public_url).netloc}
    foreign = origin is not None and urlsplit(origin).netloc not in hosts
    if foreign or request.headers.get("sec-fetch-site", "none") not in ("same-origin", "none"):
        raise Problem(403, "caller.csrf", "the form was sent by a page of another site")


def text(form: FormData, name: str, most: int = 256) -> str:
    """One field of a form, or nothing."""
    value = form.get(name, "")
    return "" if isinstance(value, UploadFile) else value.strip()[:most]
