"""Access to a frontend, and the set of backends by client: source ranges, scopes, affinity."""

from __future__ import annotations

import struct
from collections.abc import Iterator

import pytest

from lbagent.bpf.load.program_settings import ProgramSettings
from lbagent.maps.reasons import Reason
from tests.packet import craft, expect
from tests.packet.craft import LOCAL_MAC, POD_MAC, Family
from tests.packet.harness import open_world
from tests.packet.world import (
    MAGLEV,
    ROUTABLE,
    SOURCE_RANGE,
    TCP,
    TWO_SCOPES,
    TYPE_LOAD_BALANCER,
    UDP,
    XDP,
    Outcome,
    World,
)

LOOPBACK = 0x0800
RANGED = TYPE_LOAD_BALANCER | ROUTABLE | SOURCE_RANGE


def syn(fam: Family, client: str, sport: int = 40000, vip: str = "", flags: str = "S") -> bytes:
    """Return a client's SYN."""
    return craft.frame(craft.tcp(fam, client, sport, vip or fam.vip, 80, flags))


def inside_outside(fam: Family) -> tuple[str, str, list[str]]:
    """Return an address in the ranges, one outside, and the ranges."""
    if fam.version == 4:
        return "198.51.100.7", "198.51.101.7", ["198.51.100.0/24", "192.0.2.77/32"]
    return "2001:db8:100::7", "2001:db8:101::7", ["2001:db8:100::/48", "2001:db8:200::1/128"]


@pytest.mark.parametrize("deny", [False, True])
def test_source_ranges(world: World, fam: Family, hook: str, *, deny: bool) -> None:
    """Allow lets in only what is listed, deny only what is not; the rest is dropped and counted."""
    inside, outside, ranges = inside_outside(fam)
    backend = world.backend(fam, fam.remote(1), 8080)
    world.service(fam, fam.vip, 80, TCP, [backend], flags=RANGED, ranges=ranges, deny=deny)
    good, bad = (outside, inside) if deny else (inside, outside)
    frame = syn(fam, good)
    expect.forwarded_to(world.run(hook, frame), frame, backend)
    out = world.run(hook, syn(fam, bad))
    assert out.dropped
    assert out.counted == {Reason.DROP_SOURCE_RANGE: 1}


@pytest.mark.parametrize("deny", [False, True])
def test_a_range_may_say_itself_what_it_means(world: World, fam: Family, hook: str, *, deny: bool) -> None:
    """While a list turns from allow to deny or back: 2 lets in, 3 keeps out, independent of the service; the longest prefix applies."""
    inside, outside, ranges = inside_outside(fam)
    backend = world.backend(fam, fam.remote(1), 8080)
    row = world.service(fam, fam.vip, 80, TCP, [backend], flags=RANGED, deny=deny)
    everybody = ["0.0.0.0/0" if fam.version == 4 else "::/0"]
    for lets_in, keeps_out, good, bad in ((ranges, everybody, inside, outside), (everybody, ranges, outside, inside)):
        world.ranges(row, lets_in, value=2)
        world.ranges(row, keeps_out, value=3)
        assert world.run(hook, syn(fam, good)).forwarded
        assert world.run(hook, syn(fam, bad)).counted == {Reason.DROP_SOURCE_RANGE: 1}


def test_ranges_of_one_service_are_not_anothers(world: World, fam: Family, hook: str) -> None:
    """The ranges belong to a frontend, not to an address."""
    inside, outside, ranges = inside_outside(fam)
    backend = world.backend(fam, fam.remote(1), 8080)
    world.service(fam, fam.vip, 80, TCP, [backend], flags=RANGED, ranges=ranges)
    world.service(fam, fam.vip2, 80, TCP, [backend], flags=RANGED, ranges=[ranges[1]])
    assert world.run(hook, syn(fam, inside)).forwarded
    assert world.run(hook, syn(fam, inside, vip=fam.vip2)).dropped
    assert world.run(hook, syn(fam, outside, vip=fam.vip2)).dropped


def test_check_without_any_range_lets_nobody_in(world: World, fam: Family, hook: str) -> None:
    """All ranges were of the other family: closed, not open. With deny: open."""
    backend = world.backend(fam, fam.remote(1), 8080)
    world.service(fam, fam.vip, 80, TCP, [backend], flags=RANGED)
    world.service(fam, fam.vip2, 80, TCP, [backend], flags=RANGED, deny=True)
    assert world.run(hook, syn(fam, fam.client)).dropped
    assert world.run(hook, syn(fam, fam.client, vip=fam.vip2)).forwarded


def test_ranges_come_before_the_answer(world: World, fam: Family, hook: str) -> None:
    """A source that is not allowed gets no answer about a service without backends."""
    _, outside, ranges = inside_outside(fam)
    world.service(fam, fam.vip, 80, TCP, flags=RANGED, ranges=ranges)
    assert world.run(hook, syn(fam, outside)).dropped


# --- scopes ---


def from_pod(world: World, fam: Family, hook: str, sport: int = 40000) -> Outcome:
    """Run a pod's SYN to the VIP at a hook of the pod's device."""
    frame = craft.frame(craft.tcp(fam, fam.local(9), sport, fam.vip, 80), src=LOCAL_MAC, dst=POD_MAC)
    return world.run(hook, frame, world.net.pod0)


def test_two_scopes(world: World, fam: Family, hook: str) -> None:
    """Sources outside use the external row, pods the `/i` row."""
    local, remote = world.backend(fam, fam.local(1), 8080, local=True), world.backend(fam, fam.remote(1), 8080)
    flags = TYPE_LOAD_BALANCER | ROUTABLE | TWO_SCOPES
    world.service(fam, fam.vip, 80, TCP, [local], flags=flags)
    world.service(fam, fam.vip, 80, TCP, [remote], flags=flags, scope=1)
    outside, inside = world.run(hook, syn(fam, fam.client)), from_pod(world, fam, hook)
    assert expect.destination(outside) == local.endpoint
    assert expect.destination(inside) == remote.endpoint


def test_one_row_serves_both_scopes(world: World, fam: Family, hook: str) -> None:
    """Without an `/i` row pods use the external one."""
    backend = world.backend(fam, fam.remote(1), 8080)
    world.service(fam, fam.vip, 80, TCP, [backend])
    assert expect.destination(from_pod(world, fam, hook)) == backend.endpoint
    assert expect.destination(world.run(hook, syn(fam, fam.client))) == backend.endpoint


def test_two_scopes_and_no_row_of_the_inside(world: World, fam: Family, hook: str) -> None:
    """A master with the flag for two scopes is enough for pods while the other row is missing; its slots are the external ones."""
    backend = world.backend(fam, fam.remote(1), 8080)
    world.service(fam, fam.vip, 80, TCP, [backend], flags=TYPE_LOAD_BALANCER | ROUTABLE | TWO_SCOPES)
    assert expect.destination(from_pod(world, fam, hook)) == backend.endpoint


def test_the_inside_row_has_slots_of_its_own(world: World, fam: Family, hook: str) -> None:
    """Its numbers of backends are not those of the external row."""
    outside = [world.backend(fam, fam.remote(1), 8080)]
    inside = [world.backend(fam, fam.remote(n), 8080) for n in range(2, 6)]
    flags = TYPE_LOAD_BALANCER | ROUTABLE | TWO_SCOPES
    world.service(fam, fam.vip, 80, TCP, outside, flags=flags)
    world.service(fam, fam.vip, 80, TCP, inside, flags=flags, scope=1)
    chosen = {expect.destination(from_pod(world, fam, hook, sport)) for sport in range(40000, 40060)}
    assert chosen == {backend.endpoint for backend in inside}
    assert expect.destination(world.run(hook, syn(fam, fam.client))) == outside[0].endpoint


def test_loopback_frontends_are_not_for_the_wire(world: World, fam: Family, hook: str) -> None:
    """Such a row serves sockets of the node only, inside and out."""
    world.service(fam, fam.vip, 80, TCP, [world.backend(fam, fam.remote(1), 8080)], flags=LOOPBACK)
    frame = syn(fam, fam.client)
    out = world.run(hook, frame)
    expect.untouched(out, frame)
    assert out.counted == {Reason.PASS_NOT_SERVICE: 1}
    assert from_pod(world, fam, hook).passed


@pytest.fixture(scope="module")
def closed_world() -> Iterator[World]:
    """Load programs with `--external-clusterip` off."""
    with open_world(ProgramSettings(external_clusterip=False)) as world:
        yield world


def test_cluster_ip_from_outside_when_closed(closed_world: World, fam: Family, hook: str) -> None:
    """With `--external-clusterip` off only pods reach a ClusterIP; other frontends are open to all."""
    world = closed_world
    world.reset()
    backend = world.backend(fam, fam.remote(1), 8080)
    world.service(fam, fam.vip, 80, TCP, [backend], flags=0)
    world.service(fam, fam.vip2, 80, TCP, [backend])
    out = world.run(hook, syn(fam, fam.client))
    assert out.dropped
    assert out.counted == {Reason.DROP_NOT_ROUTABLE: 1}
    assert world.run(hook, syn(fam, fam.client, vip=fam.vip2)).forwarded
    assert from_pod(world, fam, hook).forwarded


def test_undefined_port_of_a_closed_cluster_ip(closed_world: World, fam: Family, hook: str) -> None:
    """From outside the address is as closed as its services; a pod gets port unreachable, by tc if XDP cannot send to it."""
    world = closed_world
    world.reset()
    world.service(fam, fam.vip, 80, TCP, [world.backend(fam, fam.remote(1), 8080)], flags=0)
    world.wildcard(fam, fam.vip)
    frame = craft.frame(craft.tcp(fam, fam.client, 40000, fam.vip, 81))
    out = world.run(hook, frame)
    assert out.dropped
    assert out.counted == {Reason.DROP_NOT_ROUTABLE: 1}
    inside = craft.frame(craft.tcp(fam, fam.local(9), 40000, fam.vip, 81), src=craft.LOCAL_MAC, dst=craft.POD_MAC)
    told = Reason.PASS_NEIGHBOR if hook == "xdp" else Reason.REJECT_UNDEFINED_PORT
    assert world.run(hook, inside, world.net.pod0).counted == {told: 1}


@pytest.mark.parametrize("vlans", [(), (5,)], ids=["short", "tagged"])
def test_frames_of_a_pod_that_are_not_plain(
    closed_world: World, fam: Family, hook: str, vlans: tuple[int, ...]
) -> None:
    """A datagram too short for the parser of plain frames, and one with a VLAN tag, are as much from inside as others."""
    world = closed_world
    world.reset()
    world.service(fam, fam.vip, 53, UDP, [world.backend(fam, fam.local(1), 53, UDP, local=True)], flags=0)
    packet = craft.udp(fam, fam.local(9), 40000, fam.vip, 53, b"?")
    frame = craft.frame(packet, src=LOCAL_MAC, dst=POD_MAC, vlans=vlans)
    assert world.run(hook, frame, world.net.pod0).counted == {Reason.FWD_LOCAL: 1}


def test_cluster_ip_from_outside_by_default(world: World, fam: Family, hook: str) -> None:
    """By default every client is admitted, as by kube-proxy."""
    backend = world.backend(fam, fam.remote(1), 8080)
    world.service(fam, fam.vip, 80, TCP, [backend], flags=0)
    assert world.run(hook, syn(fam, fam.client)).forwarded


# --- affinity ---


def test_affinity_holds_a_client(world: World, fam: Family, hook: str) -> None:
    """Connections of one client go to one backend, whatever their ports; other clients are free."""
    backends = [world.backend(fam, fam.remote(n), 8080) for n in range(1, 9)]
    world.service(fam, fam.vip, 80, TCP, backends, affinity_s=300)
    mine = {expect.destination(world.run(hook, syn(fam, fam.client, 40000 + n))) for n in range(30)}
    assert len(mine) == 1
    base = "198.51.100." if fam.version == 4 else "2001:db8:100::"
    others = {expect.destination(world.run(hook, syn(fam, f"{base}{n}"))) for n in range(20, 80)}
    assert len(others) > 4


def test_affinity_is_per_service(world: World, fam: Family, hook: str) -> None:
    """Two services with the same backends hold a client each on its own."""
    backends = [world.backend(fam, fam.remote(n), 8080) for n in range(1, 9)]
    for vip in (fam.vip, fam.vip2):
        world.service(fam, vip, 80, TCP, backends, affinity_s=300)
    base = "198.51.100." if fam.version == 4 else "2001:db8:100::"
    pairs = [
        tuple(expect.destination(world.run(hook, syn(fam, f"{base}{n}", vip=vip))) for vip in (fam.vip, fam.vip2))
        for n in range(20, 60)
    ]
    assert any(one != other for one, other in pairs)


def test_affinity_to_a_backend_that_left_the_service(world: World, fam: Family, hook: str) -> None:
    """The held backend lost its match row: the client gets another one, and keeps that."""
    backends = [world.backend(fam, fam.remote(n), 8080) for n in (1, 2)]
    row = world.service(fam, fam.vip, 80, TCP, backends, affinity_s=300)
    held = expect.destination(world.run(hook, syn(fam, fam.client)))
    gone = next(b for b in backends if b.endpoint == held)
    stays = next(b for b in backends if b.endpoint != held)
    from lbagent.maps import layout

    world.slot(row, 1, target=stays.id)
    world.slot(row, 0, target=row.target, count=1)
    world.maps.delete_many(
        "lb_affinity_match", [layout.LB_AFFINITY_MATCH.pack(gone.id, row.id.to_bytes(2, "big"), b"\0\0")]
    )
    for n in range(5):
        assert expect.destination(world.run(hook, syn(fam, fam.client, 41000 + n))) == stays.endpoint


def test_affinity_ends_with_its_time(world: World, fam: Family, hook: str) -> None:
    """A client is held by its entry until the time-out, and not after it. `last_used` is set back (ns since boot)."""
    backends = [world.backend(fam, fam.remote(n), 8080) for n in range(1, 9)]
    world.service(fam, fam.vip, 80, TCP, backends, affinity_s=10)
    name = f"lb{fam.version}_affinity"
    seen: dict[float, set[tuple[str, int]]] = {9.5: set(), 10.5: set()}
    for age_s, met in seen.items():
        for n in range(40):
            met.add(expect.destination(world.run(hook, syn(fam, fam.client, int(age_s * 1000) + n))))
            aged = []
            for key, value in world.maps.items(name):
                last, backend = struct.unpack("=QI4x", value)
                aged.append((key, struct.pack("=QI4x", last - int(age_s * 1e9), backend)))
            assert len(aged) == 1
            world.maps.put_many(name, aged)
    assert len(seen[9.5]) == 1
    assert len(seen[10.5]) > 3


def test_affinity_beats_maglev(world: World, fam: Family, hook: str) -> None:
    """A held client keeps its backend, independent of the table."""
    backends = [world.backend(fam, fam.remote(n), 8080) for n in (1, 2)]
    row = world.service(fam, fam.vip, 80, TCP, backends, affinity_s=300, algorithm=MAGLEV)
    world.maglev(row, [backends[0].id] * world.sizes.maglev_size)
    assert expect.destination(world.run(hook, syn(fam, fam.client, 40000))) == backends[0].endpoint
    world.maglev(row, [backends[1].id] * world.sizes.maglev_size)
    assert expect.destination(world.run(hook, syn(fam, fam.client, 40001))) == backends[0].endpoint
    assert expect.destination(world.run(hook, syn(fam, fam.client2, 40001))) == backends[1].endpoint


def test_affinity_of_udp(world: World, fam: Family) -> None:
    """Datagrams are held as well."""
    backends = [world.backend(fam, fam.remote(n), 53, UDP) for n in range(1, 9)]
    world.service(fam, fam.vip, 53, UDP, backends, affinity_s=300)
    outs = [world.run(XDP, craft.frame(craft.udp(fam, fam.client, 40000 + n, fam.vip, 53))) for n in range(30)]
    assert len({expect.destination(out) for out in outs}) == 1
