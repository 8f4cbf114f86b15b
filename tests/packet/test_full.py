"""What is full degrades as designed: new flows suffer, never an established one."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterator

import pytest

from lbagent.bpf.load.program_settings import ProgramSettings
from lbagent.maps.reasons import Reason
from tests.packet import craft, expect, table
from tests.packet.craft import Family
from tests.packet.harness import SMALL, open_world
from tests.packet.plain_frames import plain
from tests.packet.world import TCP, UDP, XDP, BackendRow, Outcome, World

pytestmark = pytest.mark.early

TINY = dataclasses.replace(SMALL, flow4=256, flow6=256, snat4=1 << 12, snat6=1 << 12, spill=2048)


@pytest.fixture(scope="module")
def tiny_world() -> Iterator[World]:
    """Load programs with 256 entries of flow table."""
    with open_world(sizes=TINY) as world:
        yield world


@pytest.fixture(scope="module")
def few_ports_world() -> Iterator[World]:
    """Load programs with four SNAT ports."""
    with open_world(ProgramSettings(snat_port_min=2000, snat_port_max=2003)) as world:
        yield world


def client(fam: Family, n: int) -> tuple[str, int]:
    """Return the n-th client."""
    base = f"198.51.{n >> 8}.{n & 255}" if fam.version == 4 else f"2001:db8:100::{n + 1:x}"
    return base, 20000 + n * 3 % 40000


def send(world: World, fam: Family, n: int, flags: str, proto: int = TCP, hook: str = XDP) -> Outcome:
    """Send a packet of the n-th client."""
    return world.run(hook, plain(fam, proto, *client(fam, n), fam.vip, 80, flags))


def place(out: Outcome) -> tuple[object, object]:
    """Return where a packet went and as whom."""
    assert not out.dropped, out
    return expect.destination(out), expect.source(out)


def establish(world: World, fam: Family, n: int, backends: list[BackendRow], proto: int = TCP) -> tuple[object, object]:
    """Open a flow with a reply and an ACK; return its place."""
    first = place(send(world, fam, n, "S", proto))
    backend = next(b for b in backends if b.endpoint == first[0])
    if backend.local:
        expect.at_pod(world, expect.local_reply(fam, proto, backend, *client(fam, n)))
    else:
        port = first[1][1]  # type: ignore[index]
        world.run(XDP, expect.remote_reply(fam, proto, backend, port), world.net.lb1)
    assert place(send(world, fam, n, "A", proto)) == first
    return first


def serve(world: World, fam: Family, *, local: bool, proto: int = TCP, count: int = 4) -> list[BackendRow]:
    """Enter a service."""
    world.reset()
    backends = [
        world.backend(fam, fam.local(n) if local else fam.remote(n), 8080, proto, local=local)
        for n in range(1, count + 1)
    ]
    world.service(fam, fam.vip, 80, proto, backends)
    return backends


def test_snat_ports_run_out(few_ports_world: World, fam: Family, hook: str) -> None:
    """Four ports, four flows to one backend: the fifth is dropped and counted, the four continue."""
    world = few_ports_world
    backends = serve(world, fam, local=False, count=1)
    outs = [send(world, fam, n, "S", hook=hook) for n in range(6)]
    assert [out.forwarded for out in outs] == [True] * 4 + [False] * 2
    assert {expect.source(out)[1] for out in outs[:4]} == {2000, 2001, 2002, 2003}
    assert all(out.counted == {Reason.DROP_SNAT_EXHAUSTED: 1} for out in outs[4:])
    for n in range(4):
        assert place(send(world, fam, n, "A", hook=hook)) == place(outs[n])
        back = world.run(hook, expect.remote_reply(fam, TCP, backends[0], expect.source(outs[n])[1]), world.net.lb1)
        assert expect.destination(back) == client(fam, n)


def test_ports_are_per_backend(few_ports_world: World, fam: Family) -> None:
    """One backend's full range does not concern another one."""
    world = few_ports_world
    backends = serve(world, fam, local=False, count=3)
    outs = [send(world, fam, n, "S") for n in range(60)]
    taken = Counter(
        place for place, _ in {(expect.destination(out), expect.source(out)) for out in outs if out.forwarded}
    )
    assert taken == {b.endpoint: 4 for b in backends}


def test_a_freed_port_is_used_again(few_ports_world: World, fam: Family) -> None:
    """When a flow ends its port serves the next one; a late reply for the old flow does not reach the new client as a mix."""
    world = few_ports_world
    backends = serve(world, fam, local=False, count=1)
    places = [place(send(world, fam, n, "S")) for n in range(4)]
    assert send(world, fam, 4, "S").dropped
    world.run(XDP, expect.remote_reply(fam, TCP, backends[0], places[0][1][1], "R"), world.net.lb1)  # type: ignore[index]
    table.age(world, fam, 20000, lambda flow: flow.client == client(fam, 0)[0])
    from tests.packet.test_state import sweep

    sweep(world, fam)
    out = send(world, fam, 4, "S")
    assert out.forwarded
    assert expect.source(out)[1] == places[0][1][1]  # type: ignore[index]
    back = world.run(XDP, expect.remote_reply(fam, TCP, backends[0], expect.source(out)[1]), world.net.lb1)
    assert expect.destination(back) == client(fam, 4)


@pytest.mark.parametrize("local", [False, True], ids=["remote", "local"])
@pytest.mark.parametrize("proto", [TCP, UDP], ids=["tcp", "udp"])
def test_more_established_flows_than_entries(tiny_world: World, fam: Family, proto: int, *, local: bool) -> None:
    """600 flows in 256 entries: all of them keep backend and port (the rest spills), and replies find their way."""
    backends = serve(tiny_world, fam, local=local, proto=proto)
    places: dict[int, tuple[object, object]] = {}
    for n in range(600):
        out = send(tiny_world, fam, n, "A", proto)  # no SYN: such a flow may not be forwarded without state
        if out.dropped:
            continue
        places[n] = place(out)
        backend = next(b for b in backends if b.endpoint == places[n][0])
        if local:
            expect.at_pod(tiny_world, expect.local_reply(fam, proto, backend, *client(fam, n), "A"))
        else:
            tiny_world.run(XDP, expect.remote_reply(fam, proto, backend, places[n][1][1], "A"), tiny_world.net.lb1)  # type: ignore[index]
    assert len(places) == 600
    spilled = Counter[Reason]()
    for n, before in places.items():
        out = send(tiny_world, fam, n, "A", proto)
        assert place(out) == before, n
        spilled += out.counted
    assert spilled[Reason.FWD_SPILL] >= 600 - 256
    for n, before in places.items():
        backend = next(b for b in backends if b.endpoint == before[0])
        if local:
            back = expect.at_pod(tiny_world, expect.local_reply(fam, proto, backend, *client(fam, n), "A"))
        else:
            back = tiny_world.run(XDP, expect.remote_reply(fam, proto, backend, before[1][1], "A"), tiny_world.net.lb1)  # type: ignore[index]
        assert (expect.source(back), expect.destination(back)) == ((fam.vip, 80), client(fam, n)), n


@pytest.mark.parametrize("local", [False, True], ids=["remote", "local"])
def test_syn_flood_beside_established_flows(tiny_world: World, fam: Family, *, local: bool) -> None:
    """120 established flows in a table of 256, 2,000 SYNs each sent twice: no established flow is moved or dropped."""
    backends = serve(tiny_world, fam, local=local)
    places = {n: establish(tiny_world, fam, n, backends) for n in range(120)}
    answered = Counter[bool]()
    for n in range(5000, 7000):
        first, second = send(tiny_world, fam, n, "S"), send(tiny_world, fam, n, "S")
        answered[first.dropped] += 1
        if not first.dropped and not second.dropped:
            assert place(first)[0] in {b.endpoint for b in backends}
        if n % 16 == 0:
            probe = n % 120
            assert place(send(tiny_world, fam, probe, "A")) == places[probe]
    for n, before in places.items():
        assert place(send(tiny_world, fam, n, "A")) == before
    assert answered[True] < 200


def test_new_flows_are_served_when_the_table_is_full(tiny_world: World, fam: Family, hook: str) -> None:
    """With every entry established a new connection is still forwarded, its reply translated, its data to the same backend."""
    backends = serve(tiny_world, fam, local=False)
    for n in range(500):
        establish(tiny_world, fam, n, backends)
    served = 0
    for n in range(5000, 5040):
        out = send(tiny_world, fam, n, "S", hook=hook)
        if out.dropped:
            continue
        first = place(out)
        backend = next(b for b in backends if b.endpoint == first[0])
        back = tiny_world.run(hook, expect.remote_reply(fam, TCP, backend, first[1][1]), tiny_world.net.lb1)  # type: ignore[index]
        assert expect.destination(back) == client(fam, n)
        assert place(send(tiny_world, fam, n, "A", hook=hook)) == first
        served += 1
    assert served >= 38


def test_no_entry_twice(tiny_world: World, fam: Family) -> None:
    """However full: a flow has one entry, a SNAT port of a backend one holder."""
    backends = serve(tiny_world, fam, local=False)
    for n in range(300):
        establish(tiny_world, fam, n, backends)
    found = table.flows(tiny_world, fam)
    assert max(Counter((f.client, f.port, f.udp) for f in found).values()) == 1
    assert max(Counter((f.backend, f.snat_port) for f in found).values()) == 1


def test_errors_about_spilled_flows(tiny_world: World, fam: Family) -> None:
    """A local backend's reply to a flow in the spill map reaches its client from the VIP, too."""
    backends = serve(tiny_world, fam, local=True, proto=UDP)
    outs = {n: send(tiny_world, fam, n, "", UDP) for n in range(500)}
    for n, out in outs.items():
        backend = next(b for b in backends if b.endpoint == expect.destination(out))
        expect.at_pod(tiny_world, expect.local_reply(fam, UDP, backend, *client(fam, n)))
    spilled = [n for n in outs if send(tiny_world, fam, n, "", UDP).counted[Reason.FWD_SPILL]]
    assert len(spilled) > 100
    for n in spilled[::5]:
        address, port = client(fam, n)
        source = expect.destination(outs[n])[0]
        packet = craft.icmp_error(fam, source, address, fam.unreachable(), outs[n].packet[14:])
        out = expect.at_pod(tiny_world, craft.frame(packet, src=craft.LOCAL_MAC, dst=craft.POD_MAC))
        seen = expect.parsed(out)
        assert seen.quoted is not None
        assert (fam.text(seen.src), fam.text(seen.quoted.dst), seen.quoted.dport) == (fam.vip, fam.vip, 80)
        assert (fam.text(seen.quoted.src), seen.quoted.sport) == (address, port)


def test_a_spilled_flow_that_moves_is_heard_from_its_new_backend(tiny_world: World, fam: Family, hook: str) -> None:
    """The backend of a spilled UDP flow goes: replies of the next one find the flow, those of the old one do not any more."""
    world = tiny_world
    backends = serve(world, fam, local=True, proto=UDP, count=2)
    for n in range(400):
        out = send(world, fam, n, "", UDP)
        if out.dropped:
            continue
        held = next(b for b in backends if b.endpoint == expect.destination(out))
        expect.at_pod(world, expect.local_reply(fam, UDP, held, *client(fam, n)))
        if out.counted[Reason.FWD_SPILL]:
            break
    else:
        pytest.fail("no flow spilled")
    other = next(b for b in backends if b is not held)
    world.slot(world.services[0], 1, target=other.id)
    world.slot(world.services[0], 0, target=world.services[0].target, count=1)
    world.remove_backend(held)
    moved = send(world, fam, n, "", UDP, hook)
    assert expect.destination(moved) == other.endpoint
    answer = expect.at_pod(world, expect.local_reply(fam, UDP, other, *client(fam, n)))
    assert (expect.source(answer), expect.destination(answer)) == ((fam.vip, 80), client(fam, n))
    late = expect.local_reply(fam, UDP, held, *client(fam, n))
    expect.untouched(expect.at_pod(world, late), late)


def test_flows_first_seen_in_the_middle_give_way(tiny_world: World, fam: Family, hook: str) -> None:
    """A flood of ACKs fills the table: a second or two later each new connection gets the entry of one of them, and keeps it."""
    backends = serve(tiny_world, fam, local=False)
    for n in range(600):
        send(tiny_world, fam, n, "A")
    assert len(table.flows(tiny_world, fam)) == 256
    assert table.age(tiny_world, fam, 3, lambda flow: flow.state == table.MID) == 256
    for n in range(5000, 5040):
        out = send(tiny_world, fam, n, "S", hook=hook)
        assert out.counted == {Reason.FWD_NEW: 1}, n
        assert place(out)[0] in {backend.endpoint for backend in backends}
        assert place(send(tiny_world, fam, n, "A", hook=hook)) == place(out)
