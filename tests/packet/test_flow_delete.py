"""Flows are deleted, or reset, only if they are as they were read; what they held is free then."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from lbagent.bpf.compiler import builder
from lbagent.bpf.load import program_settings
from lbagent.bpf.run.flow_delete import FlowDeleter
from lbagent.kernel import jiffies
from lbagent.maps.flow_reader import SPILLED, RawFlow, raw_flows
from lbagent.maps.reasons import Reason
from lbagent.model import family as model
from tests.packet import expect, table
from tests.packet.caller import Caller
from tests.packet.clock import TimedWorld, open_timed_world
from tests.packet.craft import Family
from tests.packet.harness import DEFAULTS, SEEDS, SMALL
from tests.packet.test_service_gone import BOTH_WAYS, Talk, is_reset
from tests.packet.world import TCP, UDP, World


@pytest.fixture(scope="module")
def loaded() -> Iterator[TimedWorld]:
    with open_timed_world() as timed:
        yield timed


@pytest.fixture
def timed(loaded: TimedWorld) -> TimedWorld:
    loaded.world.reset()
    loaded.clock.restart()
    return loaded


def read(world: World, fam: Family) -> list[RawFlow]:
    return [raw for piece in raw_flows(world.maps, model.Family(fam.version)) for raw in piece]


@contextmanager
def deleting(timed: TimedWorld, *, reset: bool = False, idle_over: int = 0) -> Iterator[FlowDeleter]:
    fds = timed.world.maps.fds
    config = program_settings.pack_config(DEFAULTS, SMALL, SEEDS, jiffies.hz())
    with FlowDeleter(
        fds, config, timed.clock.splice(builder.ensure_artifact(), fds), reset=reset, idle_over=idle_over
    ) as made:
        yield made


def delete(timed: TimedWorld, fam: Family, flows: list[RawFlow], *, reset: bool = False, idle_over: int = 0) -> int:
    with deleting(timed, reset=reset, idle_over=idle_over) as deleter:
        return deleter.delete(model.Family(fam.version), flows)


def several(world: World, fam: Family, proto: int = TCP, count: int = 3, *, local: bool = False) -> list[Caller]:
    """Return established flows of as many clients to one backend."""
    backend = world.backend(fam, fam.local(1) if local else fam.remote(1), 8080, proto, local=local)
    service = world.service(fam, fam.vip, 80, proto, [backend])
    callers = [Caller(world, service, port=40000 + n) for n in range(count)]
    for each in callers:
        each.establish()
    return callers


@BOTH_WAYS
@pytest.mark.parametrize("proto", [TCP, UDP], ids=["tcp", "udp"])
def test_a_flow_leaves_with_its_port_and_others_stay(
    timed: TimedWorld, fam: Family, proto: int, *, local: bool
) -> None:
    world = timed.world
    callers = several(world, fam, proto, local=local)
    before = table.flows(world, fam)
    (chosen,) = [flow for flow in read(world, fam) if table.host_order(flow[2]) == 40001]
    assert delete(timed, fam, [chosen]) == 1
    assert table.flows(world, fam) == [flow for flow in before if flow.port != 40001]
    held = {table.host_order(slot["client_port"]) for slot in table.held_slot_fields(world, fam).values()}
    assert held == (set() if local else {40000, 40002})
    assert callers[0].stays()
    assert callers[2].stays()
    out = callers[1].send()
    assert out.counted in ({Reason.FWD_NEW: 1}, {Reason.FWD_LOCAL: 1})
    assert {flow.port for flow in table.flows(world, fam)} == {40000, 40001, 40002}


def test_a_flow_that_changed_stays(timed: TimedWorld, fam: Family) -> None:
    """Its state, its backend, or the flow in the entry: none of it is deleted by what was read before."""
    world = timed.world
    backend = world.backend(fam, fam.remote(1), 8080)
    service = world.service(fam, fam.vip, 80, TCP, [backend])
    caller = Caller(world, service)
    caller.send("S")
    opening = read(world, fam)
    assert caller.is_answered("SA")
    assert caller.stays()
    for reset in (False, True):
        assert delete(timed, fam, opening, reset=reset) == 0
    assert caller.stays()
    established = read(world, fam)
    assert delete(timed, fam, established) == 1
    caller.send("S")
    now = table.flows(world, fam)
    for reset in (False, True):
        assert delete(timed, fam, established, reset=reset) == 0, "another incarnation of the same flow"
    assert table.flows(world, fam) == now
    assert delete(timed, fam, read(world, fam)) == 1
    assert delete(timed, fam, established) == 0


def test_an_entry_that_another_flow_took_stays(timed: TimedWorld, fam: Family) -> None:
    """Also where only the client's address, or only the frontend, differs."""
    world = timed.world
    backend = world.backend(fam, fam.remote(1), 8080)
    services = [world.service(fam, vip, 80, TCP, [backend]) for vip in (fam.vip, fam.vip2)]
    first = Caller(world, services[0])
    first.establish()
    (old,) = read(world, fam)
    at, own, port, client, vip_port, vip, *rest = old
    others = [
        (at, own, port, client, vip_port, bytes((*vip[:-3], vip[-3] ^ 1, *vip[-2:])), *rest),
        (at, own, port, client, vip_port ^ 0x100, vip, *rest),
        (at, own, port, bytes((client[0] ^ 1, *client[1:])), vip_port, vip, *rest),
        (at, own, port ^ 0x100, client, vip_port, vip, *rest),
        (at, own ^ 1 << 14, port, client, vip_port, vip, *rest),
        (at ^ 1, own, port, client, vip_port, vip, *rest),
        (SPILLED, own, port, client, vip_port, vip, *rest),
    ]
    before = world.maps.items(f"lb{fam.version}_flow")
    assert delete(timed, fam, others) == 0
    assert world.maps.items(f"lb{fam.version}_flow") == before
    assert first.stays()


@BOTH_WAYS
def test_a_reset_flow_is_answered_with_rst(timed: TimedWorld, fam: Family, hook: str, *, local: bool) -> None:
    """The client's next packet, and each one after it; the backend's packets are not the flow's any more."""
    world = timed.world
    talk = Talk(world, fam, hook, TCP, local=local)
    assert delete(timed, fam, read(world, fam), reset=True) == 1
    assert table.held_slot_fields(world, fam) == {}
    out = talk.from_backend()
    assert not out.forwarded or expect.source(out) != (fam.vip, 80)
    for flags in ("PA", "A", "FA"):
        is_reset(talk.from_client(flags), fam, Reason.REJECT_BACKEND_GONE)
    out = talk.from_client("S")
    assert expect.destination(out) == talk.backend.endpoint


def test_a_reset_lasts_as_long_as_the_flow_would(timed: TimedWorld, fam: Family, hook: str) -> None:
    """An hour later, after sweeps. A RST of the client gets no answer."""
    world = timed.world
    talk = Talk(world, fam, hook, TCP, local=False)
    timed.clock.pass_ticks(3000)
    assert delete(timed, fam, read(world, fam), reset=True) == 1
    for _ in range(2):
        timed.clock.pass_ticks(3500)
        timed.sweep(fam)
    out = talk.from_client("RA")
    assert out.dropped
    is_reset(talk.from_client(), fam, Reason.REJECT_BACKEND_GONE)


def test_udp_has_no_reset(timed: TimedWorld, fam: Family) -> None:
    world = timed.world
    (caller,) = several(world, fam, UDP, 1)
    assert delete(timed, fam, read(world, fam), reset=True) == 1
    assert table.flows(world, fam) == []
    assert caller.send().counted == {Reason.FWD_NEW: 1}


def test_only_flows_that_are_still_idle(timed: TimedWorld, fam: Family) -> None:
    world = timed.world
    callers = several(world, fam)
    flows = read(world, fam)
    timed.clock.pass_ticks(10)
    assert delete(timed, fam, flows, idle_over=11) == 0
    assert callers[0].stays()
    assert delete(timed, fam, flows, idle_over=10) == 2
    assert [flow.port for flow in table.flows(world, fam)] == [40000]


@BOTH_WAYS
@pytest.mark.parametrize("reset", [False, True], ids=["delete", "reset"])
def test_spilled_flows_leave_with_both_rows(timed: TimedWorld, fam: Family, *, local: bool, reset: bool) -> None:
    """Ten flows of one client port: two of them spill."""
    world = timed.world
    backends = [world.backend(fam, fam.local(n) if local else fam.remote(n), 8080, local=local) for n in range(1, 11)]
    services = [world.service(fam, fam.vip, 80 + n, TCP, [each]) for n, each in enumerate(backends)]
    callers = [Caller(world, service) for service in services]
    for each in callers:
        each.send("A")
        assert each.is_answered("A")
        assert each.stays()
    spilled = [flow for flow in read(world, fam) if flow[0] == SPILLED]
    assert len(spilled) == 2
    rows = len(world.maps.items(f"lb{fam.version}_spill"))
    assert rows == (4 if local else 2)
    stale = [(*flow[:6], flow[6] ^ 1 << 44, *flow[7:]) for flow in spilled]
    assert delete(timed, fam, stale, reset=reset) == 0
    assert delete(timed, fam, spilled, reset=reset) == 2
    assert len(world.maps.items(f"lb{fam.version}_spill")) == (2 if reset else 0)
    if not local:
        assert len(table.held_slot_fields(world, fam)) == 8
    ports = {table.host_order(flow[4]) for flow in spilled}
    for each in callers:
        if each.service.port not in ports:
            assert each.stays()
        elif reset:
            assert each.send().counted == {Reason.REJECT_BACKEND_GONE: 1}
        else:
            assert each.send("S").forwarded or local


def test_many_flows_at_once(timed: TimedWorld, fam: Family) -> None:
    """More than one run of the program takes."""
    world = timed.world
    several(world, fam, TCP, 100)
    flows = read(world, fam)
    assert len(flows) == 100
    assert delete(timed, fam, flows[:70]) == 70
    assert len(table.flows(world, fam)) == 30
    assert len(table.held_slot_fields(world, fam)) == 30
    assert delete(timed, fam, flows) == 30
