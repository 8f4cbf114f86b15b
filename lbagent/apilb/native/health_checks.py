"""The running checkers: one for each address and ProbeSpec, shared by instances with the same check of a server."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import Callable, Iterable

from lbagent.apilb.native.kept_state import KeptHealth
from lbagent.model.address import L3n4Addr
from lbagent.model.histogram import Histogram
from lbagent.probes.check_time import LoopClock
from lbagent.probes.checker import Checker, Health
from lbagent.probes.https_probe import Contexts
from lbagent.probes.probe_kinds import make_probe
from lbagent.probes.probe_protocol import Outcome, Result
from lbagent.probes.probe_spec import ProbeSpec
from lbagent.task_failure import log_failure

Key = tuple[L3n4Addr, ProbeSpec]
BOUNDS_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
# Checks per second: with more, most reuse the TLS connection of the previous check (a handshake costs 1 to 2 ms), and this many
# handshakes per second remain. Each check connects by TCP anyway, which detects a server that accepts no connections.
MANY_A_SECOND, FRESH_A_SECOND = 25.0, 8.0


class HealthChecks:
    """Starts, ends and reads checkers. Use it inside the event loop."""

    def __init__(self, on_change: Callable[[], None], kept: Iterable[KeptHealth]) -> None:
        """`kept` is the health of servers when an earlier agent ended: it holds until a check changes it."""
        self.seconds = Histogram(BOUNDS_S)
        self.results: dict[Key, Counter[Result]] = {}
        self._on_change = on_change
        self._kept = {_key_of(each): Health(each.up, each.since, each.last) for each in kept}
        self._contexts = Contexts()
        self._checkers: dict[Key, tuple[Checker, asyncio.Task[None]]] = {}
        self._rate = 0.0
        self._clock: LoopClock | None = None  # set at the first use: an event loop runs then

    def use(self, keys: set[Key]) -> None:
        """Check these, and no others."""
        self._clock = self._clock or LoopClock()
        for key in self._checkers.keys() - keys:
            self._checkers.pop(key)[1].cancel()
            self.results.pop(key, None)
        for key in keys - self._checkers.keys():
            self._start(key)
        self._kept.clear()  # the health of a server that is not in use is dropped
        self._rate = sum(1 / check.interval for _, check in self._checkers)

    def _start(self, key: Key) -> None:
        assert self._clock is not None
        server, check = key
        results = self.results[key] = Counter()

        def note(outcome: Outcome, seconds: float) -> None:
            results[outcome.result] += 1
            self.seconds.observe(seconds)

        checker = Checker(
            server,
            check,
            make_probe(server, check, self._contexts, self._clock),
            health=self._kept.get(key, Health()),
            on_change=self._on_change,
            on_outcome=note,
            uses=self._uses,
        )
        task = asyncio.create_task(checker.run(), name=f"check {server}")
        task.add_done_callback(log_failure)
        self._checkers[key] = checker, task

    def _uses(self) -> int:
        """Return how many checks use one connection."""
        return 1 if self._rate <= MANY_A_SECOND else round(self._rate / FRESH_A_SECOND)

    def checker(self, server: L3n4Addr, check: ProbeSpec) -> Checker | None:
        """Return the checker of a server, if there is one."""
        found = self._checkers.get((server, check))
        return found[0] if found else None

    def is_down(self, server: L3n4Addr, check: ProbeSpec) -> bool:
        """Return whether a server is down; before its first check it counts as up."""
        checker = self.checker(server, check)
        return checker is not None and not checker.health.up

    def all(self) -> dict[Key, Health]:
        """Return the health of every checked server."""
        return {key: checker.health for key, (checker, _) in self._checkers.items()}

    def kept(self) -> tuple[KeptHealth, ...]:
        """Return what the next agent needs: the health of each checked server."""
        found = ((key, checker.health) for key, (checker, _) in self._checkers.items() if checker.health.since)
        return tuple(
            KeptHealth(server.with_protocol(), check, health.up, health.since, health.last)
            for (server, check), health in found
        )

    async def close(self) -> None:
        """End all checks."""
        if self._clock is not None:
            self._clock.close()
        tasks = [task for _, task in self._checkers.values()]
        for task in tasks:
            task.cancel()
        self._checkers.clear()
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.gather(*tasks, return_exceptions=True)


def _key_of(kept: KeptHealth) -> Key:
    return L3n4Addr.parse(kept.address), kept.check
