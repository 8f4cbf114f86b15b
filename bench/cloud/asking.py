"""An outside client: a new connection every 10 ms, independent of earlier ones. `python -m bench.cloud.asking ADDRESS` is its process.

A request is answered when the backend's text arrives on its connection. The kernel repeats a lost SYN after a second, so a request
in an outage is answered late; the first one after the outage is answered at once, and ends the gap.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import selectors
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from types import TracebackType
from typing import NamedTuple, Self

from tests.lab.netns import Namespace
from tests.lab.topology import ROOT
from tests.lab.traffic import syns_again

EVERY_S = 0.01
GIVE_UP_S = 5.0
PORT = 80
PROMPT_S = 0.5  # an answer that takes longer had a lost SYN, or no backend


class Ask(NamedTuple):
    """Start and answer of a request (None: no answer), in seconds of the monotonic clock."""

    began: float
    answered: float | None


def longest_gap_s(asks: Sequence[Ask], since: float = 0.0) -> float:
    """Return the longest time between two answers after a time; a gap without an end counts to the last request."""
    answers = sorted(ask.answered for ask in asks if ask.answered is not None and ask.answered >= since)
    last = max((ask.began for ask in asks), default=0.0)
    ends = [*answers, max(last, answers[-1])] if answers else [since, last]
    return max((after - before for before, after in itertools.pairwise(ends)), default=0.0)


def failing_s(asks: Sequence[Ask], since: float) -> float:
    """Return how long after a time the last request began that was not answered promptly; 0 if all were."""
    bad = [ask.began - since for ask in asks if ask.began >= since and not is_prompt(ask)]
    return max(bad, default=0.0)


def is_prompt(ask: Ask) -> bool:
    """Return whether it was answered without a lost packet."""
    return ask.answered is not None and ask.answered - ask.began < PROMPT_S


class Asker:
    """The process of a client of one address; a context manager. `asks` is set after its end."""

    def __init__(self, space: Namespace, address: str) -> None:
        """Take its namespace and the address."""
        self.space, self.address = space, address
        self.asks: list[Ask] = []
        self.syns_again = 0

    def __enter__(self) -> Self:
        """Start; return when it sends requests."""
        self._syns_before = syns_again(self.space)
        argv = [sys.executable, "-m", "bench.cloud.asking", self.address]
        self._process = self.space.popen(argv, stdout=subprocess.PIPE, cwd=ROOT)
        assert self._process.stdout is not None
        self._process.stdout.readline()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, where: TracebackType | None
    ) -> None:
        """End it, and read its results."""
        self._process.send_signal(signal.SIGTERM)
        text, _ = self._process.communicate()
        self.syns_again = syns_again(self.space) - self._syns_before
        if text:
            self.asks = [Ask(*pair) for pair in json.loads(text)]

    @property
    def failures(self) -> int:
        """The number of requests without an answer."""
        return sum(ask.answered is None for ask in self.asks)


class _Client:
    """The loop of the process."""

    def __init__(self, address: str) -> None:
        self._to = (address, PORT)
        self._selector = selectors.DefaultSelector()
        self._open: dict[socket.socket, int] = {}  # number of the request
        self.began: list[float] = []
        self.answered: list[float | None] = []
        self.ends = False

    def run(self) -> None:
        due = time.monotonic()
        until = float("inf")
        while time.monotonic() < until and (self._open or not self.ends):
            now = time.monotonic()
            if self.ends and until == float("inf"):
                until = now + GIVE_UP_S
            if now >= due and not self.ends:
                self._ask(now)
                due = max(due + EVERY_S, now)
            for key, _ in self._selector.select(max(0.0, min(due - time.monotonic(), EVERY_S))):
                self._take(key.fileobj)  # type: ignore[arg-type]
            self._give_up(now)

    def _ask(self, now: float) -> None:
        sock = socket.socket()
        sock.setblocking(False)
        self.began.append(now)
        self.answered.append(None)
        with contextlib.suppress(BlockingIOError):
            try:
                sock.connect(self._to)
            except BlockingIOError:
                raise
            except OSError:  # no route: it was not answered
                sock.close()
                return
        self._open[sock] = len(self.began) - 1
        self._selector.register(sock, selectors.EVENT_READ)

    def _take(self, sock: socket.socket) -> None:
        try:
            data = sock.recv(16)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if data:
            self.answered[self._open[sock]] = time.monotonic()
        self._close(sock)

    def _give_up(self, now: float) -> None:
        while self._open:
            sock = next(iter(self._open))
            if now - self.began[self._open[sock]] < GIVE_UP_S:
                return
            self._close(sock)

    def _close(self, sock: socket.socket) -> None:
        self._selector.unregister(sock)
        del self._open[sock]
        sock.close()


def main(address: str) -> None:
    """Send requests until SIGTERM; then print [[began, answered], ...]."""
    client = _Client(address)

    def end(*_: object) -> None:
        client.ends = True

    signal.signal(signal.SIGTERM, end)
    print("asking", flush=True)
    client.run()
    print(json.dumps(list(zip(client.began, client.answered, strict=True))))


if __name__ == "__main__":
    main(sys.argv[1])
