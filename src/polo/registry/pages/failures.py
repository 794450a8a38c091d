"""Errors as pages, for people; programs get `application/problem+json`."""

import http

from fastapi import Request
from fastapi.responses import HTMLResponse

from polo.registry.pages import render
from polo.registry.problems import Problem

_TITLES = {
    401: "Please sign in",
    403: "This is not for you",
    404: "There is nothing here",
    405: "This page does not take that",
    408: "That took too long",
    409: "That cannot be done now",
    413: "That is too large",
    422: "That cannot be read",
    429: "Too many requests",
    500: "The registry failed",
    503: "The registry is busy",
}
_DETAILS = {404: "No page has this address.", 405: "The page cannot be used in this way."}
"""Said in the place of the bare phrase that a status comes with."""


def wants_page(request: Request, problem: Problem) -> bool:
    """Whether whoever asks is a person in front of a browser, and there is something to say."""
    html = "text/html" in request.headers.get("accept", "")
    return html and problem.status >= 400 and not request.url.path.startswith(("/v1/", "/log/"))


def page(request: Request, problem: Problem, number: str) -> HTMLResponse:
    """The page that says what is wrong, and what to do.

    Args:
        request: The request.
        problem: What is wrong.
        number: The request's id.
    """
    phrase = http.HTTPStatus(problem.status).phrase
    given = _DETAILS.get(problem.status, "") if problem.detail == phrase else problem.detail
    detail = given[:1].upper() + given[1:]
    values = {
        "status": problem.status,
        "code": problem.code,
        "title": _TITLES.get(problem.status, phrase),
        "detail": detail if not detail or detail.endswith((".", "!", "?")) else f"{detail}.",
        "advice": problem.advice,
        "number": number,
    }
    return render.answer(
        request, "failure.html", values, status=problem.status, headers=problem.headers
    )
