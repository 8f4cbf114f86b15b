"""What the API and the metrics show of native pools: never more than the maps hold."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from functools import partial
from types import SimpleNamespace

from lbagent.apilb.native.connection_reset import ConnectionReset
from lbagent.apilb.native.native_source import NativeSource
from lbagent.apilb.native.pool_rows import NativePools
from lbagent.model.address import L3n4Addr
from lbagent.model.backend import BackendState
from lbagent.model.state import State
from tests.apilb.native import test_native_source
from tests.apilb.native.test_native_source import A, B, Host, listener, states, until

host = test_native_source.host  # the fixture


@contextlib.asynccontextmanager
async def following(source: NativeSource) -> AsyncIterator[tuple[NativePools, asyncio.Event]]:
    """Follow maps that hold the first report; what is written ends only while the event is set."""
    writes_end = asyncio.Event()

    async def settled() -> None:
        await writes_end.wait()

    reset = ConnectionReset(SimpleNamespace(), source.pools_with_addresses, State)
    task = asyncio.create_task(source.follow_maps(settled))
    try:
        writes_end.set()
        await until(lambda: source.in_force is not None)
        writes_end.clear()
        yield NativePools(source, reset), writes_end
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def up(native: NativePools) -> dict[str, bool]:
    """Return which servers the API shows as up; the metrics show the same."""
    servers = [server for row in await native.rows() for server in row.servers]
    shown = {server.address: server.up for server in servers}
    sample = native.sample()
    assert {server.server: server.up for server in sample.servers} == shown
    return shown


async def test_a_server_is_shown_down_and_up_once_the_maps_hold_it(host: Host) -> None:
    host.write("lb", str(A), str(B))
    async with host.source() as source, following(source) as (native, writes_end):
        was_up, is_up = {str(A): True, str(B): True}, {str(A): False, str(B): True}
        rounds: tuple[tuple[set[L3n4Addr], BackendState | None], ...] = (({A}, BackendState.QUARANTINED), (set(), None))
        for down, state in rounds:
            host.down = down
            await until(partial(_is_reported, source, state))  # not written
            assert await up(native) == was_up
            writes_end.set()
            await until(lambda: source.in_force is source.reported)
            writes_end.clear()
            assert await up(native) == is_up
            was_up, is_up = is_up, was_up


def _is_reported(source: NativeSource, state: BackendState | None) -> bool:
    return states(source)[str(A)] is state


async def test_pools_and_taken_binds_are_shown_once_the_maps_hold_them(host: Host) -> None:
    host.write("lb", str(A))
    async with host.source() as source, following(source) as (native, writes_end):
        host.listeners = [listener("127.0.0.1", 7443)]
        await until(lambda: not source.snapshot().services)
        assert [row.status for row in await native.rows()] == ["running"]
        writes_end.set()
        await until(lambda: source.shown.taken)
        writes_end.clear()
        assert [row.status for row in await native.rows()] == ["a process listens on 127.0.0.1:7443"]
        host.listeners = []
        host.write("other", str(B))
        await until(lambda: len(source.snapshot().services) == 2)
        assert [row.name for row in await native.rows()] == ["lb"]
        writes_end.set()
        await until(lambda: source.in_force is source.reported and not source.shown.taken)
        assert {row.name: row.status for row in await native.rows()} == {"lb": "running", "other": "running"}


async def test_the_checks_of_one_backend(host: Host) -> None:
    """Of each pool that has it, as the maps serve it; a backend that no pool has is not checked."""
    host.write("lb", str(A), str(B))
    host.write("other", str(A))
    async with host.source() as source, following(source) as (native, writes_end):
        host.down = {A}
        await until(partial(_is_reported, source, BackendState.QUARANTINED))
        assert [each.up for each in native.checks_of(A)] == [True, True]  # not written
        writes_end.set()
        await until(lambda: source.in_force is source.reported)
        writes_end.clear()
        first, second = native.checks_of(A)
        assert (first.pool, second.pool, first.server, first.kind) == ("p/lb", "p/other", str(A), "https")
        assert (first.up, first.last, first.interval_s) == (False, "refused", 0.02)
        assert first.results["refused"] >= 2
        assert first.transitions == 1
        assert first.since > 0
        (check,) = native.checks_of(B)
        assert (check.up, check.last, check.results.keys()) == (True, "fine", {"ok"})
        assert native.checks_of(L3n4Addr(B.address, B.port + 1)) == []


async def test_before_the_maps_hold_anything_the_first_report_is_shown(host: Host) -> None:
    """A later agent starts while the maps serve what an earlier one wrote."""
    host.write("lb", str(A))
    async with host.source() as source:
        reset = ConnectionReset(SimpleNamespace(), source.pools_with_addresses, State)
        assert await up(NativePools(source, reset)) == {str(A): True}
