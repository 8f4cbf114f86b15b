"""Hashes spread similar keys: clients over the buckets of the flow table and the SNAT ports, backends over the SNAT slots.

The expected spread is that of random numbers, less a margin of a third. Equally good hashes are accepted, so no test has their
numbers.
"""

from __future__ import annotations

from collections import Counter

import pytest

from lbagent.maps.layout import FLOW_WAYS
from tests.packet import table
from tests.packet.caller import Caller
from tests.packet.clock import TimedWorld
from tests.packet.craft import Family
from tests.packet.expect import SNAT_PORTS
from tests.packet.world import TCP, UDP, XDP, World

CLIENTS = 128
BUCKETS_AT_LEAST = 80  # of 1,024: at random 128 clients would meet 120, give or take 3
BACKENDS = 40
SLOTS_AT_LEAST = 20  # of 64: at random 40 backends would meet 30, give or take 2.5

Clients = list[tuple[str, int]]
LAST_BITS = {4: "198.51.{}.{}", 6: "2001:db8:100::{:x}:{:x}"}
FIRST_BITS = {4: "{}.{}.100.7", 6: "2001:{:x}:{:x}::7"}


def alike(fam: Family, what: str) -> Clients:
    """Return clients that differ in a few bits: of the port, of the end or of the beginning of the address."""
    if what == "ports":
        return [(fam.client, 40000 + n) for n in range(CLIENTS)]
    text = (LAST_BITS if what == "last bits" else FIRST_BITS)[fam.version]
    return [(text.format(16 + n // 16, 64 + n % 16), 40000) for n in range(CLIENTS)]


@pytest.mark.parametrize("what", ["ports", "last bits", "first bits"])
@pytest.mark.parametrize("proto", [TCP, UDP], ids=["tcp", "udp"])
def test_clients_that_are_alike_have_buckets_of_their_own(world: World, fam: Family, proto: int, what: str) -> None:
    """And SNAT ports from the whole range."""
    backend = world.backend(fam, fam.remote(1), 8080, proto)
    service = world.service(fam, fam.vip, 80, proto, [backend])
    ports = []
    for client, port in alike(fam, what):
        talk = Caller(world, service, client, port, XDP)
        talk.send("S")
        ports.append(talk.source[1])
    buckets = {flow.position // FLOW_WAYS for flow in table.flows(world, fam)}
    assert len(buckets) >= BUCKETS_AT_LEAST
    assert len(set(ports)) == CLIENTS, "no two flows from one port"
    eighths = Counter((port - SNAT_PORTS.start) * 8 // len(SNAT_PORTS) for port in ports)
    assert len(eighths) == 8
    assert max(eighths.values()) < CLIENTS // 3


@pytest.mark.parametrize("what", ["ports", "last bits", "first bits"])
def test_backends_that_are_alike_have_slots_of_their_own(still_world: TimedWorld, fam: Family, what: str) -> None:
    """One client has flows to all of them from one port; with slots in common the port would be held soon."""
    world = still_world.world
    talk: Caller | None = None
    slots: set[int] = set()
    for n in range(BACKENDS):
        text = (LAST_BITS if what == "last bits" else FIRST_BITS)[fam.version]
        address = fam.remote(1) if what == "ports" else text.format(16 + n // 16, 64 + n % 16)
        row = world.backend(fam, address, 8080 + (n if what == "ports" else 0))
        ident = talk.service.id if talk else None
        talk = Caller(world, world.service(fam, fam.vip, 80, TCP, [row], ident=ident))
        talk.send("S")
        assert talk.source == (fam.node2, 2000)
        slots.update(table.held_slot_indexes(world, fam))
        world.forget_flows()
    assert len(slots) >= SLOTS_AT_LEAST


def test_protocols_have_slots_of_their_own(still_world: TimedWorld, fam: Family) -> None:
    """A client uses a backend's port by TCP and by UDP, from one SNAT port."""
    for n in range(4):
        world = still_world.reset()
        talks = []
        for proto in (TCP, UDP):
            row = world.backend(fam, fam.remote(1 + n), 53, proto)
            talks.append(Caller(world, world.service(fam, fam.vip, 53, proto, [row])))
            talks[-1].establish()
        assert talks[0].source == talks[1].source == (fam.node2, 2000)
        held = [table.slot_holder(world, fam, index) for index in table.held_slot_indexes(world, fam)]
        assert held == [talks[0].endpoint] * 2, "each has a slot"
        for talk in talks:
            assert talk.stays()
            assert talk.is_answered()
