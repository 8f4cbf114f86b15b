"""The running checkers: one for each address and ProbeSpec, shared by all that check a server in the same way."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping

from lbagent.model.address import L3n4Addr
from lbagent.model.histogram import Histogram
from lbagent.probes.checker import FIRST_S, Checker, Health
from lbagent.probes.destination import MarkOf, unmarked
from lbagent.probes.probe_kinds import SharedParts, make_probe
from lbagent.probes.probe_protocol import Outcome, Result
from lbagent.probes.probe_spec import ProbeSpec

Key = tuple[L3n4Addr, ProbeSpec]
BOUNDS_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
# Checks per second: with more, most reuse the TLS connection of the previous check (a handshake costs 1 to 2 ms), and this many
# handshakes per second remain. Each check connects by TCP anyway, which detects a server that accepts no connections.
MANY_A_SECOND, FRESH_A_SECOND = 25.0, 8.0
FIRST_A_SECOND = 100  # first checks of servers that are new together, unless their interval is over before


class HealthChecks:
    """Starts, ends and reads checkers. Use it inside the event loop."""

    def __init__(
        self,
        on_change: Callable[[], None],
        known: Mapping[Key, Health],
        *,
        counts_results: bool = True,
        mark_of: MarkOf = unmarked,
        keeps_connections: bool = True,
    ) -> None:
        """`known` is the health of servers when an earlier agent ended: it holds until a check changes it.

        `counts_results`: fill `seconds` and `results`, which cost memory for each server. `mark_of`, `keeps_connections`: see
        SharedParts.
        """
        self.seconds = Histogram(BOUNDS_S)
        self.results: dict[Key, Counter[Result]] = {}
        self._counts_results, self._mark_of, self._keeps_connections = counts_results, mark_of, keeps_connections
        self._on_change = on_change
        self._known = dict(known)
        self.down: dict[ProbeSpec, set[L3n4Addr]] = {}  # servers that are down, by their check
        self._checkers: dict[Key, Checker] = {}
        self._users: Counter[Key] = Counter()
        self._rate = 0.0
        self._first_end = 0.0  # when the first checks of all servers so far will have begun
        self._shared: SharedParts | None = None  # set at the first use: an event loop runs then

    def use(self, keys: Iterable[Key]) -> None:
        """Check these, and no others."""
        self.change(keys, list(self._users.elements()))

    def change(self, added: Iterable[Key], removed: Iterable[Key]) -> None:
        """Begin to use the checks of `added`, and end the use of those of `removed`: a check has as many users as it was added."""
        self._shared = self._shared or SharedParts(self._mark_of, keeps_connections=self._keeps_connections)
        users = self._users
        now = time.monotonic()
        for key in added:
            users[key] += 1
            if key not in self._checkers:
                self._first_end = max(self._first_end, now) + 1 / FIRST_A_SECOND
                self._start(key, max(FIRST_S, self._first_end - now))
        for key in removed:
            users[key] -= 1
            if not users[key]:
                del users[key]
                self._end(key)
        self._known.clear()  # the health of a server that is not in use is dropped

    def _end(self, key: Key) -> None:
        server, check = key
        self._checkers.pop(key).close()
        self.results.pop(key, None)
        self._rate -= 1 / check.interval
        if server in self.down.get(check, ()):
            self.down[check].discard(server)
        if check in self.down and not self.down[check]:
            del self.down[check]

    def _turned(self, checker: Checker) -> None:
        """Follow the change of a server."""
        if checker.health.up:
            self.down.get(checker.check, set()).discard(checker.server)
        else:
            self.down.setdefault(checker.check, set()).add(checker.server)
        self._on_change()

    def _start(self, key: Key, first_s: float) -> None:
        assert self._shared is not None
        server, check = key
        checker = self._checkers[key] = Checker(
            server,
            check,
            make_probe(server, check, self._shared),
            health=self._known.get(key, NOT_CHECKED),
            on_change=self._turned,
            on_outcome=self._counter(key) if self._counts_results else None,
            uses=self._uses,
        )
        self._rate += 1 / check.interval
        if not checker.health.up:
            self.down.setdefault(check, set()).add(server)
        checker.start(first_s)

    def _counter(self, key: Key) -> Callable[[Outcome, float], None]:
        """Return what counts the results of a server."""
        results = self.results[key] = Counter()

        def note(outcome: Outcome, seconds: float) -> None:
            results[outcome.result] += 1
            self.seconds.observe(seconds)

        return note

    def _uses(self) -> int:
        """Return how many checks use one connection."""
        return 1 if self._rate <= MANY_A_SECOND else round(self._rate / FRESH_A_SECOND)

    def checker(self, server: L3n4Addr, check: ProbeSpec) -> Checker | None:
        """Return the checker of a server, if there is one."""
        return self._checkers.get((server, check))

    def is_down(self, server: L3n4Addr, check: ProbeSpec) -> bool:
        """Return whether a server is down; before its first check it counts as up."""
        return server in self.down.get(check, ())

    def all(self) -> dict[Key, Health]:
        """Return the health of every checked server."""
        return {key: checker.health for key, checker in self._checkers.items()}

    def close(self) -> None:
        """End all checks."""
        for checker in self._checkers.values():
            checker.close()
        if self._shared is not None:
            self._shared.close()
        self._checkers.clear()
        self._users.clear()


NOT_CHECKED = Health()
