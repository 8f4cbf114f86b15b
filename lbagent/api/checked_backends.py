"""The health checks of backends for lists and metrics."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import NamedTuple

from msgspec import Struct

from lbagent.model.address import L3n4Addr
from lbagent.model.cooperative import Cooperative
from lbagent.probes.backend_check import CheckedService
from lbagent.sources.backend_health import BackendHealth

NOT_CHECKED_YET = "none"
MAX_SERIES = 5000  # with more backends the metrics have none of single ones: `backend list` has them all


class CheckRow(Struct):
    """The health check of a backend, as lists have it."""

    type: str  # tcp, http, https, grpc, udp
    state: str  # up, down; none: it was not checked yet
    since: float  # seconds since the epoch; 0: it was not checked yet
    error: str  # of the last check; '': it succeeded


class CheckedBackends(NamedTuple):
    """Reads the results of checks."""

    results: Callable[[], Iterable[BackendHealth]]
    services: Callable[[], Mapping[str, CheckedService]]  # whose backends are checked, by key
    panics: Callable[[], Collection[str]]  # those of which so many checks fail that they change nothing
    times_out: Callable[[], Iterable[tuple[tuple[str, str], int]]] = (
        tuple  # how often a passive check took which one out
    )

    def by_backend(self, only: Collection[L3n4Addr] | None = None) -> Cooperative[Mapping[L3n4Addr, CheckRow]]:
        """Return the check of each backend, or of `only` these. Of the checks of several Services a failing one comes first."""
        found: dict[L3n4Addr, CheckRow] = {}
        for each in self.results():
            if (only is None or each.backend in only) and _is_worse(each, found.get(each.backend)):
                found[each.backend] = _row(each)
            yield
        return found

    def up(self) -> Iterator[tuple[tuple[str, str], bool]]:
        """Yield Service and backend of each that was checked, and whether it is up; nothing where there are too many."""
        if sum(len(each.backends) for each in self.services().values()) > MAX_SERIES:
            return
        for each in self.results():
            if each.is_known:
                yield (each.service, each.backend.with_protocol()), each.health.up

    def in_panic(self) -> Iterator[tuple[tuple[str], bool]]:
        """Yield each Service whose backends are checked, and whether its checks change nothing."""
        panics = self.panics()
        for service in self.services():
            yield (service,), service in panics


NOTHING_CHECKED = CheckedBackends(tuple, dict, tuple)


def _is_worse(found: BackendHealth, than: CheckRow | None) -> bool:
    return than is None or (not found.health.up and than.state != "down")


def _row(found: BackendHealth) -> CheckRow:
    health = found.health
    state = ("up" if health.up else "down") if found.is_known else NOT_CHECKED_YET
    return CheckRow(found.type, state, health.since, health.error)
