"""Turning templates into answers: one environment, one policy for what a page may load."""

import datetime
import functools
import hashlib
import importlib.resources
from collections.abc import Mapping
from typing import Any

import jinja2
from fastapi import Request
from fastapi.responses import HTMLResponse
from markupsafe import Markup, escape

from polo.checks import plain

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
    "connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "no-store",
}
"""What every page is sent with. `no-store`: a page may show what only an operator may see."""

_FILES = importlib.resources.files("polo.registry.pages")


def answer(
    request: Request,
    template: str,
    values: Mapping[str, Any],
    *,
    status: int = 200,
    headers: Mapping[str, str] | None = None,
) -> HTMLResponse:
    """A page, with the headers that all pages have."""
    shared = {"path": request.url.path, "style": asset("registry.css"), "script": asset("live.js")}
    return page(written(template, {**shared, **values}), status=status, headers=headers)


def written(template: str, values: Mapping[str, Any]) -> Markup:
    """A template with its values; safe as it stands."""
    text = environment().get_template(template).render(values)
    return Markup(text)  # noqa: S704 (the environment escapes all that is not markup already)


def page(text: str, *, status: int = 200, headers: Mapping[str, str] | None = None) -> HTMLResponse:
    """Written text as an answer, with the headers that all pages have."""
    return HTMLResponse(text, status, headers={**HEADERS, **(headers or {})})


@functools.cache
def environment() -> jinja2.Environment:
    """The templates, all of which escape what they are given."""
    found = jinja2.Environment(
        loader=jinja2.FunctionLoader(_template),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        finalize=_harmless,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    found.filters.update(
        when=when, span=span, short=short, figure=figure, grouped=grouped, size=size
    )
    return found


def _template(name: str) -> str | None:
    file = _FILES.joinpath("templates", name)
    return file.read_text("utf-8") if file.is_file() else None


def _harmless(value: object) -> object:
    """Spell out control and direction marks, which escaping leaves in place."""
    return plain(value) if isinstance(value, str) and not isinstance(value, Markup) else value


@functools.cache
def content(name: str) -> bytes:
    """A file that pages load: the style sheet with the charts' rules, or the script."""
    text = _FILES.joinpath("static", name).read_text("utf-8")
    if name == "registry.css":
        # Imported late: it brings numpy with it, which the server starts without.
        from polo.verifier import charts

        text = charts.STYLE + text
    return text.encode()


@functools.cache
def asset(name: str) -> str:
    """Address of a file that pages load; it changes with the file, which may be kept for ever."""
    return f"/static/{hashlib.sha256(content(name)).hexdigest()[:16]}/{name}"


def when(time: int | None) -> Markup:
    """A time, for people and for programs.

    >>> print(when(1_700_000_000))
    <time datetime="2023-11-14T22:13:20Z">14 Nov 2023, 22:13:20 UTC</time>
    """
    if time is None:
        return Markup("–")
    try:
        moment = datetime.datetime.fromtimestamp(time, datetime.UTC)
    except (OverflowError, ValueError, OSError):
        return escape(f"second {time}")
    exact = moment.strftime("%Y-%m-%dT%H:%M:%SZ")
    words = f"{moment.day} {moment.strftime('%b %Y, %H:%M:%S')} UTC"
    return Markup('<time datetime="{}">{}</time>').format(exact, words)


def span(seconds: float | None) -> str:
    """A length of time.

    >>> span(7), span(95), span(4000), span(200_000)
    ('7 s', '1 min 35 s', '1 h 6 min', '2 d 7 h')
    """
    if seconds is None:
        return "–"
    for size, unit, next_size, next_unit in ((86400, "d", 3600, "h"), (3600, "h", 60, "min")):
        if seconds >= size:
            rest = int(seconds % size // next_size)
            return f"{int(seconds // size)} {unit}" + (f" {rest} {next_unit}" if rest else "")
    if seconds >= 60:
        rest = int(seconds % 60)
        return f"{int(seconds // 60)} min" + (f" {rest} s" if rest else "")
    return f"{seconds:g} s"


def short(key: str | bytes, length: int = 12) -> str:
    """The beginning of a digest.

    >>> short("0123456789abcdef")
    '0123456789ab…'
    """
    text = key.hex() if isinstance(key, bytes) else key
    return text if len(text) <= length + 1 else f"{text[:length]}…"


def figure(value: float | None, digits: int = 3) -> str:
    """A number with a real minus sign, or a dash where there is none.

    >>> figure(-64.25, 1), figure(None)
    ('−64.2', '–')
    """
    return "–" if value is None else f"{value:.{digits}f}".replace("-", "−")


def grouped(value: int) -> str:
    """A whole number as a person reads it.

    >>> grouped(1234567)
    '1,234,567'
    """
    return f"{value:,}"


def size(count: int) -> str:
    """A number of bytes.

    >>> size(900), size(45_000_000), size(2 * 2**30)
    ('900 bytes', '42.9 MiB', '2 GiB')
    """
    for unit, name in ((2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB")):
        if count >= unit:
            return f"{count / unit:.3g} {name}"
    return f"{count} bytes"
