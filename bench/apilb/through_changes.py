"""Connections while servers are added and removed, files are edited, the agent is restarted and HAProxy reloaded: none may fail.

Clients continuously make requests by HTTPS on new connections. All servers stay up. After each change the benchmark waits until it
is in force; from then on no connection may get to a removed server.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, NamedTuple

from bench.apilb.bench_host import BenchHost
from bench.apilb.changing_sides import PATIENCE_S, Change, HaproxySide, NativeSide, Side
from tests.lab.api_hosts import NAMES, ask
from tests.lab.netns import wait_for
from tests.lab.traffic import Load, Tally

WORKERS = 3


class Connection(NamedTuple):
    """An answered connection."""

    began: float
    ended: float
    server: str


class ConnectionsSeen:
    """The results of clients, and the periods in which a server was removed."""

    def __init__(self) -> None:
        self.connections: list[Connection] = []
        self.spans: list[tuple[float, float, str]] = []  # periods in which no connection may get to a server
        self.made: Counter[str] = Counter()
        self.slowest_s = 0.0  # until a change was in force
        self._out: dict[str, float] = {}

    def make(self, change: Change) -> None:
        """Make a change; return when it is in force."""
        began = time.monotonic()
        for name in set(change.servers) & set(self._out):
            self.spans.append((self._out.pop(name), began, name))
        change.make(change.servers)
        now = time.monotonic()
        for name in set(NAMES) - set(change.servers) - set(self._out):
            self._out[name] = now
        self.made[change.what] += 1
        self.slowest_s = max(self.slowest_s, now - began)

    def to_removed(self) -> list[Connection]:
        """Return the connections that began and were answered while their server was removed."""
        spans = [*self.spans, *((since, time.monotonic(), name) for name, since in self._out.items())]
        return [
            each
            for each in self.connections
            if any(name == each.server and since <= each.began and each.ended <= until for since, until, name in spans)
        ]


class ThroughChanges:
    """A host with three servers and one load balancer; cycles of changes during connections."""

    def __init__(self, kind: type[Side]) -> None:
        self.host = BenchHost()
        try:
            self.host.serve()
            self.side: Side = kind(self.host)
        except BaseException:
            self.host.close()
            raise

    def measure(self, connections: int, cycles: int) -> dict[str, Any]:
        """Make at least so many connections and cycles of changes; return the results."""
        seen, changes = ConnectionsSeen(), self.side.changes()
        more = max(1, connections // (cycles * len(changes)))
        with self.host.inside(), Load(self.host.host, [lambda: self._asked(seen)], workers=WORKERS) as load:
            for change in changes * cycles:
                seen.make(change)
                _wait_more(load.tally, more)
            _wait_more(load.tally, connections - _made(load.tally))
        return self._found(seen, load.tally)

    def _asked(self, seen: ConnectionsSeen) -> Any:
        began = time.monotonic()
        server = ask("127.0.0.1", self.side.port)
        seen.connections.append(Connection(began, time.monotonic(), server))
        return SimpleNamespace(backend=server)

    def _found(self, seen: ConnectionsSeen, tally: Tally) -> dict[str, Any]:
        while_out = sum(until - since for since, until, _ in seen.spans)
        return {
            "connections": _made(tally), "failures": tally.failures, "to_removed": len(seen.to_removed()),
            "changes": dict(seen.made), "slowest_change_s": seen.slowest_s, "removed_s": while_out,
            "servers": dict(tally.answered), "slowest_s": tally.slowest_s, "syns_again": tally.syns_again,
        }  # fmt: skip

    def close(self) -> None:
        """Remove everything."""
        self.host.close()


def _made(tally: Tally) -> int:
    return tally.total + len(tally.failures)


def _wait_more(tally: Tally, count: int) -> None:
    goal = _made(tally) + count
    wait_for(lambda: _made(tally) >= goal, f"{count} more connections", PATIENCE_S)


def measure(connections: int, cycles: int, sides: Sequence[type[Side]] = (NativeSide, HaproxySide)) -> dict[str, Any]:
    """Measure both, one after the other."""
    out = {}
    for kind in sides:
        stage = ThroughChanges(kind)
        try:
            out[kind.name] = stage.measure(connections, cycles)
        finally:
            stage.close()
    return out
