"""A drain continues by itself, ends once, and is kept, also over a restart of the agent, by whichever way it began."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable
from pathlib import Path

import pytest
from msgspec.structs import replace

from lbagent.api import drains as drains_module
from lbagent.api.drains import DrainRow, Drains
from lbagent.errors import LbError
from lbagent.model.address import L3n4Addr
from lbagent.model.backend import Backend, BackendState
from lbagent.model.service import SVC, ServiceName
from lbagent.model.state import State
from lbagent.sources.operator import KeptDrain, OperatorSource
from lbagent.targets.data_plane import FlowCounts

ONE, TWO = L3n4Addr.parse("10.0.0.1:80/TCP"), L3n4Addr.parse("10.0.0.2:80/TCP")
COUNTED = 3  # checks after the one that begins a drain: two sweeps end after it, and a count follows
FRONTEND = L3n4Addr.parse("10.96.0.1:80")


def state_of(*backends: Backend) -> State:
    return State(1, (SVC(FRONTEND, 1, ServiceName("shop", "web"), slotless=backends),))


class Clock:
    """time.time and time.monotonic, moved by hand."""

    def __init__(self) -> None:
        self.now = 1_795_000_000.0

    def time(self) -> float:
        return self.now

    monotonic = time


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(drains_module, "time", clock)
    return clock


class Node:
    """An agent's drains over an operator's file; its restart is another Node over the same folder."""

    def __init__(self, folder: Path) -> None:
        self.operator = OperatorSource(str(folder))
        self.state = state_of(*(Backend(n, each, BackendState.MAINTENANCE) for n, each in ((1, ONE), (2, TWO))))
        self.live: dict[int, int] | None = {}
        self.sweeps, self.counts = 0, 0
        self.failing: tuple[L3n4Addr, ...] = ()
        self.drains = Drains(self.operator, lambda: self.state, self.count, lambda: self.sweeps, lambda: self.failing)

    async def count(self) -> FlowCounts:
        self.counts += 1
        self.sweeps += 1
        return FlowCounts(self.live)

    async def drain(self, *addresses: L3n4Addr, timeout_s: float = 300.0) -> None:
        begun = self.drains.begun(addresses, timeout_s)
        await self.operator.set_states(addresses, BackendState.MAINTENANCE, drains=begun)
        await self.drains.check()

    async def checks(self, number: int) -> None:
        for _ in range(number):
            await self.drains.check()

    def row(self, address: L3n4Addr = ONE) -> DrainRow:
        return {row.address: row for row in self.drains.rows()}[address.with_protocol()]


@pytest.fixture
def node(tmp_path: Path, clock: Clock) -> Node:
    return Node(tmp_path)


async def test_flows_at_the_start_now_and_at_the_end(node: Node, clock: Clock) -> None:
    node.live = {1: 12}
    await node.drain(ONE)
    row = node.row()
    assert (row.state, row.flows, row.flows_at_start, row.counted) == ("draining", 12, 12, False)
    assert (row.since, row.timeout_s, row.remaining_s, row.ended) == (clock.now, 300.0, 300.0, 0.0)
    clock.now += 100
    node.live = {1: 3}
    await node.checks(COUNTED)
    row = node.row()
    assert (row.flows, row.flows_at_start, row.remaining_s, row.counted) == (3, 12, 200.0, True)
    assert node.drains.flows_left(10) == {"10.0.0.1:80/TCP": 3}
    node.live = {}
    await node.drains.check()
    row = node.row()
    assert (row.state, row.flows, row.flows_at_start, row.remaining_s) == ("drained", 0, 12, 0.0)
    assert (row.timeout_s, row.ended) == (300.0, clock.now)
    assert node.drains.flows_left(10) == {}


async def test_flows_at_the_start_where_the_first_count_is_older(node: Node) -> None:
    """A count is shared for a second: flows of that second are in the next one."""
    node.live = {1: 0}
    await node.drain(ONE)
    for flows in (6, 5):
        node.live = {1: flows}
        await node.drains.check()
        assert (node.row().flows, node.row().flows_at_start) == (flows, 6)


async def test_flows_are_counted_by_a_sweep_of_its_own(node: Node) -> None:
    """The sweep that was running began before the drain."""
    await node.drain(ONE)
    await node.checks(COUNTED - 1)
    assert (node.row().state, node.row().counted) == ("draining", False)
    await node.drains.check()
    assert (node.row().state, node.row().counted) == ("drained", True)


async def test_a_count_that_is_not_there_ends_nothing(node: Node) -> None:
    node.live = None
    await node.drain(ONE)
    await node.checks(5)
    row = node.row()
    assert (row.state, row.flows, row.flows_at_start) == ("draining", -1, -1)


@pytest.mark.parametrize("still", ["active", "failing"])
async def test_nothing_ends_while_the_maps_may_give_new_flows(node: Node, still: str) -> None:
    """The state is set, and its write failed or has not come yet."""
    in_maintenance = node.state
    if still == "active":
        node.state = state_of(Backend(1, ONE))
    else:
        node.failing = (ONE,)
    await node.drain(ONE)
    await node.checks(5)
    assert node.row().state == "draining"
    node.state, node.failing = in_maintenance, ()
    await node.checks(COUNTED)
    assert node.row().state == "draining", "its own sweeps begin now"
    await node.drains.check()
    assert node.row().state == "drained"


async def test_its_time_is_over(node: Node, clock: Clock) -> None:
    node.live = {1: 4}
    await node.drain(ONE, timeout_s=60)
    clock.now += 60
    await node.drains.check()
    row = node.row()
    assert (row.state, row.flows, row.flows_at_start, row.ended) == ("timed-out", 4, 4, clock.now)
    assert node.operator.state_of(ONE) is BackendState.MAINTENANCE


async def test_a_backend_that_is_gone_has_no_flow(node: Node, clock: Clock) -> None:
    node.live = {1: 4}
    await node.drain(ONE)
    node.state = state_of()
    await node.checks(COUNTED)
    assert node.row().state == "drained"
    clock.now += 61
    await node.drains.check()
    assert node.drains.rows() == [], "its end could be read for a minute"
    assert node.operator.drains == {}


async def test_an_agent_that_is_killed_goes_on_after_its_start(node: Node, clock: Clock, tmp_path: Path) -> None:
    """It gets what the file has and nothing else; the deadline stays."""
    node.live = {1: 12, 2: 1}
    await node.drain(ONE, TWO)
    node.live = {1: 5}
    await node.checks(COUNTED)
    assert node.row(TWO).state == "drained"
    clock.now += 100
    again = Node(tmp_path)
    row = again.row()
    assert (row.state, row.flows, row.flows_at_start, row.remaining_s) == ("draining", -1, 12, 200.0)
    assert again.row(TWO).state == "drained"
    again.live = {1: 4}
    await again.drains.check()
    assert again.row().flows == 4
    again.live = {}
    await again.checks(COUNTED - 1)
    assert again.row().state == "draining", "no sweep of this agent counts yet"
    await again.drains.check()
    assert (again.row().state, again.row().flows_at_start) == ("drained", 12)
    assert Node(tmp_path).row().state == "drained"


async def test_a_deadline_passes_while_no_agent_runs(node: Node, clock: Clock, tmp_path: Path) -> None:
    node.live = {1: 12}
    await node.drain(ONE)
    clock.now += 1000
    again = Node(tmp_path)
    again.live = {1: 2}
    await again.drains.check()
    assert (again.row().state, again.row().flows) == ("timed-out", 2)
    assert (Node(tmp_path).row().state, Node(tmp_path).row().flows) == ("timed-out", 2)


async def test_a_second_drain_joins_and_the_later_deadline_holds(node: Node, clock: Clock, tmp_path: Path) -> None:
    node.live = {1: 12}
    await node.drain(ONE, timeout_s=100)
    since = clock.now
    clock.now += 50
    node.live = {1: 3}
    await node.drain(ONE, timeout_s=20)
    row = node.row()
    assert (row.since, row.flows_at_start, row.flows, row.remaining_s) == (since, 12, 3, 50.0)
    await node.drain(ONE, timeout_s=200)
    assert (node.row().since, node.row().remaining_s, node.row().timeout_s) == (since, 200.0, 250.0)
    assert Node(tmp_path).row().remaining_s == 200.0
    clock.now += 100
    await node.drains.check()
    assert node.row().state == "draining"
    clock.now += 100
    await node.drains.check()
    assert node.row().state == "timed-out"
    await node.drain(ONE)
    assert (node.row().state, node.row().since, node.row().flows_at_start) == ("draining", clock.now, 3)


async def test_set_state_active_and_clear_state_cancel(node: Node, tmp_path: Path) -> None:
    await node.drain(ONE, TWO)
    await node.operator.set_states([ONE], BackendState.MAINTENANCE)
    assert len(node.drains.rows()) == 2, "the state that it has"
    await node.operator.set_states([ONE], BackendState.ACTIVE)
    assert [row.address for row in node.drains.rows()] == ["10.0.0.2:80/TCP"]
    assert await node.operator.forget([TWO]) == ["10.0.0.2:80/TCP"]
    assert node.drains.rows() == []
    assert Node(tmp_path).drains.rows() == []


async def test_a_check_that_comes_late_does_not_bring_a_drain_back(node: Node) -> None:
    """It was cancelled, or prolonged, while flows were counted."""
    node.live = {1: 1}
    await node.drain(ONE, TWO)
    one, two = (node.operator.drains[each.with_protocol()] for each in (ONE, TWO))
    await node.operator.set_states([ONE], BackendState.ACTIVE)
    await node.drain(TWO, timeout_s=1000)
    await node.operator.update_drains([replace(each, result="timed-out", ended=1.0) for each in (one, two)])
    assert [(drain.address, drain.result) for drain in node.operator.drains.values()] == [("10.0.0.2:80/TCP", "")]


async def test_a_backend_that_may_not_take_the_state_is_drained_beside_the_others(node: Node) -> None:
    """`--node` finds a Pod that is terminating; clear-state cancels that drain, too."""
    node.live = {2: 1}
    begun = node.drains.begun([ONE, TWO], 300)
    await node.operator.set_states([ONE], BackendState.MAINTENANCE, drains=begun)
    await node.drains.check()
    assert [row.address for row in node.drains.rows()] == ["10.0.0.1:80/TCP", "10.0.0.2:80/TCP"]
    assert await node.operator.forget([ONE, TWO]) == ["10.0.0.1:80/TCP", "10.0.0.2:80/TCP"]


async def test_an_end_that_cannot_be_written_holds_and_is_written_later(
    node: Node, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    await node.drain(ONE)

    async def full(drains: Iterable[KeptDrain], forgotten: Collection[str] = ()) -> None:
        raise LbError("no space left")

    with monkeypatch.context() as patch:
        patch.setattr(node.operator, "update_drains", full)
        await node.checks(4)
        assert node.row().state == "drained"
    assert caplog.text.count("what became of drains could not be written") == 1
    assert Node(tmp_path).row().state == "draining"
    await node.drains.check()
    assert Node(tmp_path).row().state == "drained"


async def test_it_goes_on_though_no_command_follows_and_costs_nothing_after(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(drains_module, "CHECK_INTERVAL_S", 0.001)
    running = asyncio.create_task(node.drains.run())
    await asyncio.sleep(0.01)
    assert node.counts == 0
    await node.drain(ONE)
    async with asyncio.timeout(10):
        while node.row().state != "drained":  # noqa: ASYNC110 it has no event
            await asyncio.sleep(0.001)
    counts = node.counts
    await asyncio.sleep(0.02)
    assert node.counts == counts
    running.cancel()
