"""Counts new connections by whether the proxy of the node did what lbagent would do, and keeps some that differ.

Clients decide how many connections there are: the frontends are those of the State, and the examples are bounded.
"""

from __future__ import annotations

import time
from collections import Counter

from msgspec import Struct, field

from lbagent.model.address import L3n4Addr
from lbagent.targets.comparison.conntrack_events import NewConnection
from lbagent.targets.comparison.expected_backends import Expected, ExpectedBackends

MAX_EXAMPLES = 5  # of one frontend
MAX_ALL_EXAMPLES = 1000
MAX_EXPECTED = 10  # backends that an example names
MAX_FRONTENDS = 20_000


class ShadowExample(Struct, frozen=True):
    """A connection that differs. `got` is '' where no program translated it."""

    client: str
    frontend: str
    got: str
    expected: list[str]
    why: str


class ShadowService(Struct):
    """The connections to one frontend."""

    service: str
    frontend: str
    flows: int = 0
    same: int = 0
    differs: int = 0
    examples: list[ShadowExample] = field(default_factory=list)


class ShadowReport(Struct):
    """All connections to frontends since a time (seconds since the epoch). `unknown`: it changed meanwhile, or was lost."""

    since: float
    flows: int
    same: int
    differs: int
    unknown: int
    services: list[ShadowService]


class ComparedFlows:
    """The counts, from the start or the last `reset`."""

    def __init__(self) -> None:
        self.totals: Counter[str] = Counter()  # never reset: a metric
        self.reset()

    def reset(self) -> None:
        """Begin again."""
        self._since = time.time()
        self._results: Counter[str] = Counter()
        self._services: dict[L3n4Addr, ShadowService] = {}
        self._examples = 0
        self.lost = 0  # how often the kernel lost messages

    def lose(self) -> None:
        """Count connections of which the kernel lost the messages: how many is not known."""
        self.lost += 1
        self._count("unknown")

    def add(self, new: NewConnection, expected: ExpectedBackends, now: float) -> None:
        """Count a connection, where it is one to a frontend."""
        wanted = expected.of(new.client, new.frontend)
        if wanted is None:
            return
        if new.answering in wanted.backends:
            result = "same"
        elif expected.is_changing(new.frontend, now):
            result = "unknown"
        else:
            result = "differs"
        self._count(result)
        row = self._services.get(new.frontend)
        if row is None:
            if len(self._services) >= MAX_FRONTENDS:
                return
            row = ShadowService(str(wanted.row.name), new.frontend.with_protocol())
            self._services[new.frontend] = row
        row.flows += 1
        if result == "same":
            row.same += 1
        elif result == "differs":
            row.differs += 1
            if len(row.examples) < MAX_EXAMPLES and self._examples < MAX_ALL_EXAMPLES:
                self._examples += 1
                row.examples.append(_example(new, wanted))

    def report(self) -> ShadowReport:
        """Return what was counted: frontends with differences first."""
        found = self._results
        services = sorted(self._services.values(), key=lambda row: (-row.differs, row.service, row.frontend))
        return ShadowReport(self._since, found.total(), found["same"], found["differs"], found["unknown"], services)

    def _count(self, result: str) -> None:
        self._results[result] += 1
        self.totals[result] += 1


def _example(new: NewConnection, wanted: Expected) -> ShadowExample:
    got = "" if new.answering == new.frontend else new.answering.with_protocol()
    why = wanted.why or ("another backend answers" if got else "no program translated it")
    names = sorted(each.with_protocol() for each in wanted.backends)
    return ShadowExample(new.client.with_protocol(), new.frontend.with_protocol(), got, names[:MAX_EXPECTED], why)
