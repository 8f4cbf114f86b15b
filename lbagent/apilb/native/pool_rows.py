"""Instances of native mode for the API and the metrics: as the maps serve them, not as the files have them."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from msgspec import Struct

from lbagent.apilb.native.connection_reset import ConnectionReset
from lbagent.apilb.native.native_source import NativeSource
from lbagent.apilb.native.pool_objects import ServedInstance, ServerName, full_name
from lbagent.apilb.native.server_check import ServerCheck
from lbagent.model.address import L3n4Addr
from lbagent.model.histogram import Histogram
from lbagent.probes.checker import Checker, Health


class ApilbServer(Struct):
    """A server of an instance of native mode."""

    address: str  # as in its file: HOST or HOST:PORT
    up: bool  # one of its addresses is; also while none of them was checked yet
    since: float  # seconds since the epoch; 0: not checked yet
    last: str  # the last check, in words
    connections: int = 0  # of this host's processes, at this moment


class ApilbRow(Struct):
    """An instance of native mode that this host serves."""

    pool: str
    name: str
    bind_address: str
    on_marked_down: str  # keep, reset
    status: str  # running, or why its bind is not served
    servers: list[ApilbServer]


class ServerSample(Struct, frozen=True):
    """One server of one instance. `results` counts the checks by how they ended."""

    pool: str
    name: str
    server: str
    up: bool
    transitions: int
    results: Mapping[str, int]

    @property
    def names(self) -> tuple[str, str, str]:
        """The values of SERVER_LABELS."""
        return self.pool, self.name, self.server


class ApilbSample(Struct, frozen=True):
    """All of them, and how long checks take."""

    servers: tuple[ServerSample, ...]
    seconds: Histogram
    ended: int  # connections to servers that were found down


class NativePools(NamedTuple):
    """The parts of the running agent with data for the rows."""

    source: NativeSource
    reset: ConnectionReset

    async def rows(self) -> list[ApilbRow]:
        """Return every instance, in the order of the files."""
        connections = await asyncio.to_thread(self.reset.count)
        return [_row(self.source, pool, connections) for pool in self.source.shown.pools]

    def checks_of(self, address: L3n4Addr) -> list[ServerCheck]:
        """Return the checks of a backend, in the order of the files."""
        source, found = self.source, []
        for pool in source.shown.pools:
            for server, addresses in source.shown.servers.get(pool.key, {}).items():
                if address in addresses:
                    found.append(_check(source, pool, server, address))
        return found

    def sample(self) -> ApilbSample:
        """Return the values of the metrics."""
        source, samples = self.source, []
        for pool in source.shown.pools:
            for server, addresses, found in _servers(source, pool):
                results: Counter[str] = Counter()
                for each in addresses:
                    results.update(source.health.results.get((each, pool.check), {}))
                one = pool.instance
                is_up = any(health.up for health, _ in found)
                turns = sum(checker.transitions for _, checker in found if checker)
                samples.append(ServerSample(one.pool, one.name, server.text, is_up, turns, results))
        return ApilbSample(tuple(samples), source.health.seconds, self.reset.ended)


def _row(source: NativeSource, pool: ServedInstance, connections: Counter[tuple[str, L3n4Addr]]) -> ApilbRow:
    place = source.shown.taken.get(pool.key)
    servers = []
    for server, addresses, found in _servers(source, pool):
        latest = max((health for health, _ in found), key=lambda health: health.since, default=None)
        is_up = any(health.up for health, _ in found)
        last = "; ".join(dict.fromkeys((checker and checker.problem) or health.last for health, checker in found))
        number = sum(connections[pool.key, each] for each in addresses)
        row = ApilbServer(server.text, is_up, latest.since if latest else 0.0, last or "not checked yet", number)
        servers.append(row if addresses else ApilbServer(server.text, False, 0.0, "it has no address"))
    status = f"a process listens on {place}" if place else "running"
    one = pool.instance
    return ApilbRow(one.pool, one.name, one.bind_address, one.on_marked_down.value, status, servers)


def _check(source: NativeSource, pool: ServedInstance, server: ServerName, address: L3n4Addr) -> ServerCheck:
    check, checker = pool.check, source.health.checker(address, pool.check)
    health = source.shown_health(address, check) or Health()
    results = {str(result): count for result, count in source.health.results.get((address, check), {}).items()}
    last = (checker and checker.problem) or health.last or "not checked yet"
    turns = checker.transitions if checker else 0
    name = full_name(pool.instance)
    return ServerCheck(
        name, server.text, check.kind.value, check.interval, health.up, health.since, last, turns, results
    )


def _servers(
    source: NativeSource, pool: ServedInstance
) -> Iterator[tuple[ServerName, tuple[L3n4Addr, ...], list[tuple[Health, Checker | None]]]]:
    """Yield each server with its addresses, and for checked ones their health and checker."""
    for server, addresses in source.shown.servers.get(pool.key, {}).items():
        found = [(source.shown_health(each, pool.check), source.health.checker(each, pool.check)) for each in addresses]
        yield server, addresses, [(health, checker) for health, checker in found if health]
