"""Full maps: whatever does not fit, no frontend has a backend or a client that it shall not have; with room all is as wanted."""

from __future__ import annotations

import dataclasses
from ipaddress import ip_address, ip_network

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from lbagent.maps.consistency import check
from lbagent.maps.lbmaps import LBMaps
from lbagent.model.address import L3n4Addr
from lbagent.model.flags import ServiceFlags
from lbagent.model.service import SVC
from lbagent.model.state import State
from lbagent.targets.bpf.drift import drift
from lbagent.testing.faulty_maps import FaultyMaps
from tests.targets.bpf.meaning import meaning_of
from tests.targets.bpf.plans import Node, backends_of, states, wanted_of

CLIENTS = {
    4: ("9.9.9.9", "10.0.0.1", "192.168.1.1", "192.168.2.1"),
    16: ("2001:db8::1", "fd00::1"),
}


def admits(maps: LBMaps, frontend: L3n4Addr, client: str) -> bool:
    """Return whether a client gets in, read from the bytes (bpf/include/service/service.h); False without a master."""
    size = len(frontend.address)
    digit = "4" if size == 4 else "6"
    key = frontend.address + frontend.port.to_bytes(2, "big") + bytes((0, 0))
    master = maps.get(f"lb{digit}_service", key + bytes((frontend.protocol.number, frontend.scope, 0, 0)))
    if master is None:
        return False
    flags = master[8] | master[9] << 8
    if not flags & 0x80:
        return True
    found: dict[int, int] = {}
    for entry, value in maps.items(f"lb{digit}_source_range"):
        bits = int.from_bytes(entry[:4], "little") - 32
        if entry[4:6] == master[6:8] and ip_address(client) in ip_network((entry[8 : 8 + size], bits)):
            found[bits] = value[0]
    if found and found[max(found)] >= 2:
        return found[max(found)] == 2
    return bool(found) is not bool(flags & 0x4000)


def is_wanted(svc: SVC, client: str) -> bool:
    """Return whether a frontend shall admit a client."""
    if not svc.flags & ServiceFlags.SOURCE_RANGE:
        return True
    listed = any(cidr.contains(ip_address(client).packed) for cidr in svc.source_ranges)
    return listed is not svc.source_ranges_deny


class Guarded(FaultyMaps):
    """Maps that are checked after every write: no new flow goes where neither the State before nor the new one sends it."""

    def __init__(self, inner: LBMaps, before: State, after: State):
        super().__init__(inner, after=self.look)
        self.states = before.by_frontend, after.by_frontend
        self.served = {frontend for frontend in before.by_frontend if backends_of(inner, frontend)}

    def look(self, number: int, name: str) -> None:
        assert check(self.inner) == [], f"after write {number} ({name})"
        for frontend in {frontend for state in self.states for frontend in state}:
            services = [state[frontend] for state in self.states if frontend in state]
            found = backends_of(self.inner, frontend)
            if found is None:
                continue
            allowed = set().union(*(wanted_of(svc) for svc in services))
            assert found <= allowed, f"{frontend} at write {number} ({name})"
            if frontend in self.served and all(svc.selectable for svc in services):
                assert found, f"{frontend} has no backend at write {number} ({name})"
            for client in CLIENTS[len(frontend.address)]:
                if admits(self.inner, frontend, client):
                    assert any(is_wanted(svc, client) for svc in services), (
                        f"{client} at {frontend} in write {number} ({name})"
                    )


@st.composite
def worlds(draw) -> tuple[SVC, ...]:
    """Draw the services of a State, some of which name the clients that they refuse."""
    out = []
    for svc in draw(states()):
        if svc.source_ranges and draw(st.booleans()):
            flags = ServiceFlags(svc.flags | ServiceFlags.SOURCE_RANGE_DENY)
            svc = replace(svc, source_ranges_deny=True, flags=flags)
        out.append(replace(svc, check_source_range=bool(svc.source_ranges)))
    return tuple(out)


@st.composite
def rooms(draw) -> dict[str, int]:
    """Draw small limits of all maps that a frontend may find full."""
    slots, ranges = draw(st.integers(0, 20)), draw(st.integers(0, 5))
    matches = draw(st.integers(0, 8))
    return {
        "lb4_service": slots,
        "lb6_service": draw(st.integers(0, 20)),
        "lb_affinity_match": matches,
        "lb4_source_range": ranges,
        "lb6_source_range": draw(st.integers(0, 3)),
    }


def give_room(node: Node, limits: dict[str, int]) -> None:
    """Let the maps and the plans have other limits."""
    for specs in (node.maps.specs, node.shadow.specs):
        for name, entries in limits.items():
            specs[name] = dataclasses.replace(specs[name], max_entries=entries)


def assert_nothing_opens(node: Node) -> None:
    """No frontend, backend or client is in the maps that the State does not have."""
    wanted = node.state.by_frontend
    for frontend in node.shadow.frontends:
        found = backends_of(node.maps, frontend)
        if found is None:
            continue
        assert frontend in wanted, "what is gone goes"
        assert found <= wanted_of(wanted[frontend])
        for client in CLIENTS[len(frontend.address)]:
            assert not admits(node.maps, frontend, client) or is_wanted(wanted[frontend], client)


def sync_until_it_rests(node: Node) -> None:
    """Sync while freed entries make room for what waits."""
    for _ in range(20):
        done = node.sync()
        assert_nothing_opens(node)
        if not done.entries:
            return
    raise AssertionError("a plan writes without end")


@pytest.mark.long
@settings(max_examples=80, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.lists(st.tuples(worlds(), st.booleans()), min_size=1, max_size=4), rooms())
def test_what_does_not_fit_opens_nothing_and_is_made_good(sequence, limits):
    node, calm = Node(), Node()
    give_room(node, limits)
    for services, restarts in sequence:
        before = node.state
        calm.serve(*services)
        node.want(*services)
        inner = node.maps
        node.maps = Guarded(inner, before, node.state)
        done = node.sync()
        node.maps = inner
        assert done.errors == []
        assert_nothing_opens(node)
        assert [text for text in drift(inner, node.shadow) if text] == []
        for svc in node.state.services:
            if svc.frontend not in done.failed:
                assert backends_of(inner, svc.frontend) == wanted_of(svc)
                assert all(
                    admits(inner, svc.frontend, client) is is_wanted(svc, client)
                    for client in CLIENTS[len(svc.frontend.address)]
                )
        if restarts:
            node.restart()
            give_room(node, limits)
            node.want(*services)
    sync_until_it_rests(node)
    give_room(node, dict.fromkeys(limits, 1024))
    sync_until_it_rests(node)
    assert node.sync().complete
    assert check(node.maps, settled=True) == []
    assert [text for text in drift(node.maps, node.shadow) if text] == []
    for svc in node.state.services:
        assert backends_of(node.maps, svc.frontend) == wanted_of(svc)
    assert meaning_of(node.maps) == meaning_of(calm.maps)
