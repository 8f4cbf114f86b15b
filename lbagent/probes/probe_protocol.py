"""What every probe is: one question to one server with a deadline, and an outcome in one word.

`tcp`, `http`, `https` and `udp` are in files of those names (tcp_probe.py and so on). checker.py makes a state of many outcomes.
"""

from __future__ import annotations

import ssl
from enum import StrEnum
from typing import Protocol

from msgspec import Struct

from lbagent.probes.check_time import CheckTimeout

MAX_TEXT = 200  # characters of what a failure says


class Result(StrEnum):
    """How a check ended: the words of lbagent_apilb_checks_total."""

    OK = "ok"
    STATUS = "status"  # another one than 200-399
    REFUSED = "refused"
    TIMEOUT = "timeout"
    TLS = "tls"
    HTTP = "http"  # no answer of HTTP
    CONNECTION = "connection"  # it broke, or there is no way to the server


class Outcome(Struct, frozen=True):
    """A finished check. `text` is what an operator reads."""

    result: Result
    text: str

    @property
    def is_up(self) -> bool:
        """Whether the server answered as one that lives."""
        return self.result is Result.OK


class Probe(Protocol):
    """Asks one server, again and again. Use it inside the event loop; nothing of it blocks."""

    async def ask(self, *, may_use_idle: bool = False) -> Outcome:
        """Check once; it ends after the time-out of its ProbeSpec at the latest.

        With `may_use_idle` a probe may go on with a connection that it kept. Raises OSError or ValueError when something of this
        node is missing (a CA file): that says nothing of the server.
        """
        ...

    def close(self) -> None:
        """End what it kept."""
        ...


class NotHttp(Exception):
    """The server answered, and not as HTTP does."""


FAILURES = (CheckTimeout, NotHttp, OSError)  # what ends a question; ssl.SSLError is an OSError


def outcome_of(failure: Exception, timeout_s: float) -> Outcome:
    """Return the outcome of a question that one of FAILURES ended."""
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
