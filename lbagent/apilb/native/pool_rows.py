"""Instances of native mode for the API and the metrics: as the maps serve them, not as the files have them."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator
from typing import NamedTuple

from lbagent.api.types import ApilbRow, ApilbServer
from lbagent.apilb.native.connection_reset import ConnectionReset
from lbagent.apilb.native.native_source import NativeSource
from lbagent.apilb.native.pool_objects import ServedInstance, ServerName
from lbagent.errors import NotFound
from lbagent.model.address import L3n4Addr
from lbagent.observe.apilb_metrics import ApilbSample, ServerSample
from lbagent.probes.checker import Checker, Health


class NativePools(NamedTuple):
    """The parts of the running agent with data for the rows."""

    source: NativeSource
    reset: ConnectionReset


async def rows(native: NativePools | None) -> list[ApilbRow]:
    """Return every instance, in the order of the files. Raises NotFound without native pools."""
    if native is None:
        raise NotFound("this agent serves no native pools: it was started without --apilb")
    connections = await asyncio.to_thread(native.reset.count)
    return [_row(native.source, pool, connections) for pool in native.source.shown.pools]


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


def sample(native: NativePools | None) -> ApilbSample | None:
    """Return what the metrics show."""
    if native is None:
        return None
    source, samples = native.source, []
    for pool in source.shown.pools:
        for server, addresses, found in _servers(source, pool):
            results: Counter[str] = Counter()
            for each in addresses:
                results.update(source.health.results.get((each, pool.check), {}))
            one = pool.instance
            is_up = any(health.up for health, _ in found)
            turns = sum(checker.transitions for _, checker in found if checker)
            samples.append(ServerSample(one.pool, one.name, server.text, is_up, turns, results))
    return ApilbSample(tuple(samples), source.health.seconds, native.reset.ended)


def _servers(
    source: NativeSource, pool: ServedInstance
) -> Iterator[tuple[ServerName, tuple[L3n4Addr, ...], list[tuple[Health, Checker | None]]]]:
    """Yield each server with its addresses, and for checked ones their health and checker."""
    for server, addresses in source.shown.servers.get(pool.key, {}).items():
        found = [(source.shown_health(each, pool.check), source.health.checker(each, pool.check)) for each in addresses]
        yield server, addresses, [(health, checker) for health, checker in found if health]
