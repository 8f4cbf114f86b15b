"""A program uses only those fields of the scratch record that its caller filled for this packet: other bytes have no effect."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

import pytest

from lbagent.kernel import bpf_map
from tests.packet import (
    test_direct,
    test_direct_tcp,
    test_fragmentation,
    test_icmp,
    test_leases,
    test_lifecycle,
    test_limits,
    test_service_gone,
    test_victims,
)
from tests.packet.clock import TimedWorld
from tests.packet.craft import Family
from tests.packet.world import TCP, UDP, World

Scenario = Callable[..., None]
KEY = struct.pack("=I", 0)


def named(*scenarios: Scenario) -> Any:
    """Run a test with each of these."""
    return pytest.mark.parametrize("scenario", scenarios, ids=[each.__name__[len("test_") :] for each in scenarios])


@pytest.fixture(params=[0, 1, 255], autouse=True)
def left_over(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fill the record of each CPU with such bytes before each packet."""
    run = World.raw

    def filled(world: World, *arguments: Any, **named: Any) -> Any:
        size = len(world.maps.get("lb_scratch", KEY) or b"")
        bpf_map.map_update(world.maps.fd("lb_scratch"), KEY, bytes([request.param]) * size)  # type: ignore[attr-defined]
        return run(world, *arguments, **named)

    monkeypatch.setattr(World, "raw", filled)


@named(
    test_direct.test_the_frontend_first,
    test_direct.test_established_or_not,
    test_direct_tcp.test_before_the_handshake_is_over,
    test_lifecycle.test_connection_without_its_syn,
    test_lifecycle.test_port_used_again_after_the_connection_closed,
    test_limits.test_the_last_but_one_hop,
)
def test_conversations(world: World, fam: Family, hook: str, scenario: Scenario) -> None:
    """New flows, flows that move to a SNAT port, and connections whose first packet was no SYN."""
    scenario(world, fam, hook)


@pytest.mark.parametrize("local", [False, True], ids=["remote", "local"])
@named(
    test_lifecycle.test_backend_gone_moves_udp,
    test_lifecycle.test_maintenance_keeps_connections_and_moves_new_ones,
    test_limits.test_packet_larger_than_the_way_out,
    test_service_gone.test_udp_is_unreachable,
)
def test_flows_that_change(world: World, fam: Family, hook: str, scenario: Scenario, *, local: bool) -> None:
    """Another backend, none at all, or a way that is too small."""
    scenario(world, fam, hook, local=local)


@named(
    test_direct.test_flows_in_the_spill_map_make_way,
    test_leases.test_a_handshake_without_an_entry,
    test_victims.test_a_spilled_flow_has_all_that_an_entry_has,
    test_victims.test_who_loses_the_entry_loses_the_port_as_well,
)
def test_where_room_is_short(still_world: TimedWorld, fam: Family, hook: str, scenario: Scenario) -> None:
    """One bucket, one SNAT port: flows without an entry, in the spill map, and such that lose their port."""
    scenario(still_world, fam, hook)


@pytest.mark.parametrize("proto", [TCP, UDP])
def test_errors_and_fragments(world: World, fam: Family, hook: str, proto: int) -> None:
    """About a request, and a datagram that leaves in pieces."""
    test_icmp.test_about_a_request_to_a_remote_backend(world, fam, hook, proto, None, "too-big", "router")
    if fam.version == 4:
        world.reset()
        test_fragmentation.test_a_large_request_leaves_in_fragments(world, proto, 2900)
