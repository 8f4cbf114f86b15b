"""The status page and its two requests, for browsers: `--ui` of the agent, and `lbagent ui`.

A browser runs pages of other origins, too. So the field Host must name the listener (a foreign name that leads to its address does
not), no answer allows another origin, and the page can run and load nothing but itself: its style and script are allowed by their
hashes. Source: CSP Level 3; Fetch; RFC 9110, 15.5.20 (421).
"""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Sequence
from functools import cache
from http import HTTPStatus
from importlib.resources import files

from lbagent.http.http_server import Handler, Headers, Request, Response

PAGE = "/"
SUMMARY, EVENTS = "/v1/summary", "/v1/events"
PAGE_FILE = "status_page.html"
METHODS = "GET", "HEAD"
LOCALHOST = "localhost"
PLAIN_TYPE, HTML_TYPE, EVENTS_TYPE = "text/plain; charset=utf-8", "text/html; charset=utf-8", "text/event-stream"
NO_STORE: Headers = (("Cache-Control", "no-store"),)
_INLINE = re.compile(rb"<(style|script)>(.*?)</\1>", re.DOTALL)
_PORT = re.compile(r":\d*$")


class StatusPage:
    """Answers for the page's paths at an address that browsers reach."""

    PATHS = frozenset((PAGE, SUMMARY, EVENTS))

    def __init__(self, answer: Handler, hosts: Sequence[str] = ()) -> None:
        """`answer` answers for /v1/summary and /v1/events. `hosts`: further names of the listener."""
        self._answer = answer
        self._hosts = frozenset(host.lower() for host in hosts)

    async def answer(self, request: Request) -> Response:
        """Return the answer to a request for one of PATHS."""
        if request.method not in METHODS:
            return _guarded(
                _plain(HTTPStatus.METHOD_NOT_ALLOWED, "only GET and HEAD are served", (("Allow", ", ".join(METHODS)),))
            )
        if not self._is_own(request):
            return _guarded(
                _plain(
                    HTTPStatus.MISDIRECTED_REQUEST,
                    "the name in Host is none of this listener; use its address or localhost, or allow the name with --ui-host",
                )
            )
        if request.path == PAGE:
            return _guarded(Response(200, page(), HTML_TYPE, NO_STORE))
        return _guarded(await self._answer(Request("GET", request.path, {}, b"")))  # no query: browsers get few rows

    def _is_own(self, request: Request) -> bool:
        host = _PORT.sub("", request.host).lower()
        address = host[1:-1] if host.startswith("[") and host.endswith("]") else host
        return host == LOCALHOST or host in self._hosts or (address != "" and address == request.local)


@cache
def page() -> bytes:
    """Return the page's file."""
    return files("lbagent.api").joinpath(PAGE_FILE).read_bytes()


@cache
def _security() -> Headers:
    hashes = {"style": "", "script": ""}
    for found in _INLINE.finditer(page()):
        digest = base64.b64encode(hashlib.sha256(found[2]).digest()).decode()
        hashes[found[1].decode()] += f" 'sha256-{digest}'"
    policy = "; ".join(
        (
            "default-src 'none'",
            f"style-src{hashes['style']}",
            f"script-src{hashes['script']}",
            "connect-src 'self'",
            "base-uri 'none'",
            "form-action 'none'",
            "frame-ancestors 'none'",
        )
    )
    return (
        ("Content-Security-Policy", policy),
        ("X-Content-Type-Options", "nosniff"),
        ("Referrer-Policy", "no-referrer"),
        ("Cross-Origin-Resource-Policy", "same-origin"),
    )


def _guarded(response: Response) -> Response:
    return Response(response.status, response.body, response.content_type, (*response.headers, *_security()))


def _plain(status: HTTPStatus, text: str, headers: Headers = ()) -> Response:
    return Response(status, (text + "\n").encode(), PLAIN_TYPE, (*NO_STORE, *headers))
