"""Clients: open connections, new connections, datagrams. Each exchange is judged by the outages during it."""

from __future__ import annotations

import errno
import threading
import time
from collections import Counter
from collections.abc import Callable

from tests.chaos.outages import EVERYONE, Outages
from tests.e2e.cluster import DNS, WEB
from tests.lab import traffic
from tests.lab.netns import Namespace

ANSWER_S = 3.0  # limit of an exchange without an outage: a busy machine, and one TCP retransmission
GIVE_UP_S = 40.0
KEPT = 4  # open connections per VIP
PAUSE_S = 0.05
AGAIN = "no answer"


class Verdicts:
    """The results of all exchanges."""

    def __init__(self, outages: Outages) -> None:
        """Judge by these outages."""
        self.outages = outages
        self.begun = time.monotonic()
        self.counts: Counter[str] = Counter()
        self.faults: list[str] = []
        self.longest_s = 0.0  # without an outage
        self._lock = threading.Lock()

    def judge(self, kind: str, who: str, start: float, error: str = "") -> None:
        """Count an exchange with a backend (EVERYONE if unknown) that ends now."""
        end = time.monotonic()
        excuse = self.outages.excuse(who, start, end)
        with self._lock:
            self.counts[kind] += 1
            if not excuse:
                self.longest_s = max(self.longest_s, end - start)
            if error and not (excuse and _own_outage(error)):
                self._fault(f"{kind} to {who}: {error}")
            elif end - start > ANSWER_S + excuse:
                self._fault(f"{kind} to {who}: {end - start:.1f} s, an outage excuses {excuse:.1f} s")

    def fault(self, text: str) -> None:
        """Count a fault; the first 50 are stored as text."""
        with self._lock:
            self._fault(text)

    def _fault(self, text: str) -> None:
        self.counts["faults"] += 1
        if len(self.faults) < 50:
            self.faults.append(f"{time.monotonic() - self.begun:6.1f} s  {text}")


def _own_outage(error: str) -> bool:
    """Return whether an error reports a link that is down, the host's own or one on the path."""
    return any(f"[Errno {number}]" in error for number in (errno.ENETUNREACH, errno.EHOSTUNREACH))


class Clients:
    """All clients of a run, in threads; a context manager."""

    def __init__(self, space: Namespace, outages: Outages) -> None:
        """Prepare the clients of one namespace."""
        self.space, self.verdicts = space, Verdicts(outages)
        self._end = threading.Event()
        works: list[tuple[Callable[..., None], str]] = []
        for web, dns in zip(WEB, DNS, strict=True):
            works += [(self._kept, web)] * KEPT + [(self._opening, web)] * 2 + [(self._asking, dns)]
        self._threads = [threading.Thread(target=self._run, args=work, daemon=True) for work in works]

    def __enter__(self) -> Clients:
        """Start all."""
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Stop all and wait for pending exchanges."""
        self._end.set()
        for thread in self._threads:
            thread.join(GIVE_UP_S + 5)

    def _run(self, work: Callable[[str], None], vip: str) -> None:
        with self.space.entered():
            work(vip)

    def _kept(self, vip: str) -> None:
        """Send requests on one connection without an end; it must stay open."""
        sock, who = None, EVERYONE
        while not self._end.is_set():
            start, error = time.monotonic(), ""
            try:
                sock = sock or traffic.connect(vip, 80, timeout_s=GIVE_UP_S)
                who = traffic.request(sock).decode().split()[0]
            except (OSError, ValueError) as problem:
                error, sock = f"{type(problem).__name__}: {problem}", None
            self.verdicts.judge("request on an open connection", who, start, error)
            who = who if sock else EVERYONE
            time.sleep(PAUSE_S * 2)
        if sock:
            sock.close()

    def _opening(self, vip: str) -> None:
        """Open a connection, send one request, close it."""
        while not self._end.is_set():
            start, error = time.monotonic(), ""
            try:
                with traffic.connect(vip, 80, timeout_s=GIVE_UP_S) as sock:
                    traffic.request(sock)
            except (OSError, ValueError) as problem:
                error = f"{type(problem).__name__}: {problem}"
            self.verdicts.judge("new connection", EVERYONE, start, error)
            time.sleep(PAUSE_S)

    def _asking(self, vip: str) -> None:
        """Send requests by datagrams; repeat them every second without an answer, as a resolver does."""
        while not self._end.is_set():
            start = time.monotonic()
            error = self._ask(vip)
            while error == AGAIN and time.monotonic() - start < GIVE_UP_S:
                error = self._ask(vip)
            self.verdicts.judge("datagram", EVERYONE, start, error)
            time.sleep(PAUSE_S)

    @staticmethod
    def _ask(vip: str) -> str:
        try:
            traffic.dns_ask(vip, 53, timeout_s=1.0)
        except TimeoutError:
            return AGAIN
        except (OSError, ValueError) as problem:
            return f"{type(problem).__name__}: {problem}"
        return ""
