"""The interface of probes: one request to one server with a deadline, and an outcome in one word.

`tcp`, `http`, `https`, `udp` and `grpc` are in files of those names (tcp_probe.py and so on). checker.py derives a state from many
outcomes.
"""

from __future__ import annotations

import ssl
from collections.abc import Callable
from enum import StrEnum
from typing import Any, Protocol, runtime_checkable

from msgspec import Struct

from lbagent.probes.check_time import CheckTimeout

MAX_TEXT = 200  # characters of a failure's text


class Result(StrEnum):
    """Results of a check: the words of lbagent_apilb_checks_total."""

    OK = "ok"
    STATUS = "status"  # other than 200-399
    REFUSED = "refused"
    TIMEOUT = "timeout"
    TLS = "tls"
    HTTP = "http"  # no answer of HTTP
    CONNECTION = "connection"  # it broke, or there is no route to the server


class Outcome(Struct, frozen=True):
    """A finished check. `text` is for operators."""

    result: Result
    text: str

    @property
    def is_up(self) -> bool:
        """Whether the server answered as a healthy one."""
        return self.result is Result.OK


class Probe(Protocol):
    """Probes one server repeatedly. Use it inside the event loop; it never blocks."""

    async def ask(self, *, may_use_idle: bool = False) -> Outcome:
        """Check once; it ends after the time-out of its ProbeSpec at the latest.

        With `may_use_idle` a probe may use a connection that it kept. Raises OSError or ValueError when this node lacks something
        (a CA file): the server's health stays unknown.
        """
        ...

    def close(self) -> None:
        """Close what it kept."""
        ...


class InProgress(Protocol):
    """A check that has begun."""

    began: float

    def cancel(self) -> None:
        """End it, if it is still in progress; it has no outcome then."""
        ...


Done = Callable[[Any, Outcome], None]


@runtime_checkable
class QuickProbe(Probe, Protocol):
    """A probe whose checks need no task."""

    def begin(self, done: Done) -> InProgress:
        """Check once; `done` is called later, with what this returns and the outcome."""
        ...


class NotHttp(Exception):
    """The server answered, but not by HTTP."""


FAILURES = (CheckTimeout, NotHttp, OSError)  # errors that end a check; ssl.SSLError is an OSError


def outcome_of(failure: Exception, timeout_s: float) -> Outcome:
    """Return the outcome of a check that one of FAILURES ended."""
    match failure:
        case CheckTimeout():
            return Outcome(Result.TIMEOUT, f"no answer within {timeout_s:g} s")
        case ConnectionRefusedError():
            return Outcome(Result.REFUSED, "connection refused")
        case NotHttp():
            return Outcome(Result.HTTP, str(failure)[:MAX_TEXT])
        case ssl.SSLError():
            return Outcome(Result.TLS, f"TLS: {failure.reason or failure}"[:MAX_TEXT])
        case TimeoutError():
            return Outcome(Result.TIMEOUT, "the connection timed out")
    return Outcome(Result.CONNECTION, (getattr(failure, "strerror", None) or str(failure))[:MAX_TEXT])
