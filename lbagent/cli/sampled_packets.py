"""Keeps the agent recording packets for a command: one request that stays open, and is made again after the agent has gone."""

from __future__ import annotations

import select
import time
from contextlib import ExitStack
from http.client import HTTPException
from typing import TYPE_CHECKING, Self

from lbagent.api.client import AgentClient
from lbagent.errors import AgentUnreachable, LbError

if TYPE_CHECKING:
    from http.client import HTTPResponse

START_S = 120.0  # until the programs are in force: the verifier takes a minute on a busy machine
BEATS_S = 10.0  # without a sign of life the agent counts as gone
RETRY_S = 1.0
GONE = "the agent does not answer: packets are recorded again when it does"
BACK = "the agent answers again: packets are recorded"


class SampledPackets:
    """The request. While it is open, one in `every` packets of the quick path is recorded, and all others."""

    def __init__(self, path: str, *, every: int = 1, frames_after: bool = False) -> None:
        """Return once the programs are in force. Raises AgentUnreachable, NotFound without bpf, Refused, LbError."""
        self._client = AgentClient(path, START_S)
        self._query = {"every": every, "frames_after": int(frames_after)}
        self._stream: HTTPResponse | None = None
        self._closing = ExitStack()
        self._heard = self._tried = 0.0
        self._open()

    def __enter__(self) -> Self:
        """Return the request."""
        return self

    def __exit__(self, *exc: object) -> None:
        """End it: the programs of before are put in force again."""
        self._close()

    def follow(self) -> str:
        """Look after the request, without waiting for long; return what the operator should know, '' mostly."""
        if self._stream is not None:
            if self._lives(self._stream):
                return ""
            self._close()
            self._tried = time.monotonic()
            return GONE
        if time.monotonic() - self._tried < RETRY_S:
            return ""
        self._tried = time.monotonic()
        try:
            self._open()
        except LbError:
            return ""
        return BACK

    def _open(self) -> None:
        with ExitStack() as closing:
            stream = closing.enter_context(self._client.stream("sampling", self._query, START_S))
            while not (line := stream.readline()).startswith(b"event: sampling"):
                if not line:
                    raise AgentUnreachable("the agent ended the request: it records no packets")
            self._stream, self._heard, self._closing = stream, time.monotonic(), closing.pop_all()

    def _lives(self, stream: HTTPResponse) -> bool:
        """Take what the agent has sent."""
        while select.select([stream.fileno()], [], [], 0)[0]:
            try:
                if not stream.readline():
                    return False
            except (OSError, HTTPException):
                return False
            self._heard = time.monotonic()
        return time.monotonic() - self._heard < BEATS_S

    def _close(self) -> None:
        self._closing.close()
        self._stream = None
