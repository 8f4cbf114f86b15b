"""All SNAT ports of a backend's first source address are held: flows take those of the node's extra SNAT addresses."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import pytest

from lbagent.bpf.load.program_settings import ProgramSettings
from lbagent.maps.layout import PathFlag
from lbagent.maps.reasons import Reason
from lbagent.model.extra_snat_sources import ExtraSnatSources
from tests.packet import craft, expect, table
from tests.packet.caller import Caller, sweep
from tests.packet.craft import FAMILIES, Family
from tests.packet.harness import SMALL, open_world
from tests.packet.test_icmp import check_error, l3, with_hops_of
from tests.packet.test_migrate import Change, changes
from tests.packet.world import TCP, UDP, BackendRow, ServiceRow, World

PORTS = (2000, 2001, 2002, 2003)
TEXTS = {4: ("203.0.113.77", "203.0.113.79"), 6: ("2001:db8:feed::77", "2001:db8:feed::79")}
NUMBERS = {4: (1, 3), 6: (2, 4)}  # the others are free: addresses that were taken away
PACKED = {version: [FAMILIES[version].packed(text) for text in TEXTS[version]] for version in (4, 6)}
EXTRA_SNAT = ExtraSnatSources((PACKED[4][0], b"", PACKED[4][1]), (b"", PACKED[6][0], b"", PACKED[6][1]))
FOUR_PORTS = ProgramSettings(snat_port_min=PORTS[0], snat_port_max=PORTS[-1], extra_snat=EXTRA_SNAT)
AGE = 3 * table.SLOT_UNIT  # ticks


@pytest.fixture(scope="module")
def loaded_extra_snat_world() -> Iterator[World]:
    """Load programs with four SNAT ports and two extra SNAT addresses of each family."""
    with open_world(FOUR_PORTS) as world:
        yield world


@pytest.fixture
def extra_snat_world(loaded_extra_snat_world: World) -> World:
    """Return it with nothing in it."""
    loaded_extra_snat_world.reset()
    return loaded_extra_snat_world


@pytest.fixture(scope="module")
def loaded_one_port_world() -> Iterator[World]:
    """Load programs with a single SNAT port."""
    with open_world(ProgramSettings(snat_port_min=2000, snat_port_max=2000, extra_snat=EXTRA_SNAT)) as world:
        yield world


class Crowd:
    """Clients of a service with one remote backend."""

    def __init__(self, world: World, fam: Family, hook: str, proto: int = TCP, vip: str = "") -> None:
        self.world, self.fam, self.hook = world, fam, hook
        self.backend: BackendRow = world.backend(fam, fam.remote(1), 8080, proto)
        for number, text in zip(NUMBERS[fam.version], TEXTS[fam.version], strict=True):
            world.extra_snat(self.backend, number, text)
        self.service: ServiceRow = world.service(fam, vip or fam.vip, 80, proto, [self.backend])
        self.clients: list[Caller] = []

    @property
    def addresses(self) -> list[str]:
        """The source addresses in the order in which they are used."""
        return [self.fam.node2, *TEXTS[self.fam.version]]

    def client(self) -> Caller:
        """Return one that has sent nothing yet."""
        self.clients.append(Caller(self.world, self.service, port=40000 + len(self.clients), hook=self.hook))
        return self.clients[-1]

    def establish(self, count: int) -> list[Caller]:
        """Let so many open a connection."""
        out = [self.client() for _ in range(count)]
        for each in out:
            assert not each.establish().dropped
        return out

    def check(self) -> None:
        """Every connection continues in both directions."""
        for each in self.clients:
            assert each.stays()
            assert each.is_answered()


@pytest.mark.parametrize("proto", [TCP, UDP], ids=["tcp", "udp"])
def test_one_address_after_the_other(extra_snat_world: World, fam: Family, hook: str, proto: int) -> None:
    """Four ports with each of three addresses carry twelve connections, no two of them from the same place; the next one is dropped."""
    crowd = Crowd(extra_snat_world, fam, hook, proto)
    crowd.establish(12)
    sources = [each.source for each in crowd.clients]
    assert [address for address, _ in sources] == [address for address in crowd.addresses for _ in PORTS]
    assert set(sources) == {(address, port) for address in crowd.addresses for port in PORTS}
    crowd.check()
    late = Caller(extra_snat_world, crowd.service, client=fam.client2, hook=hook)
    assert late.send("S").counted == {Reason.DROP_SNAT_EXHAUSTED: 1}
    crowd.check()


def test_both_directions_byte_by_byte(extra_snat_world: World, fam: Family, hook: str) -> None:
    """A request is sent from the extra SNAT address, and the reply to it is the frontend's; by the fast path and beside it."""
    crowd = Crowd(extra_snat_world, fam, hook)
    crowd.establish(5)
    client = crowd.clients[-1]
    assert client.source[0] == TEXTS[fam.version][0]
    frame = craft.frame(craft.tcp(fam, fam.client, client.port, fam.vip, 80, "PA", load=b"x" * 100))
    out = extra_snat_world.run(hook, frame)
    wanted = expect.translated(
        frame,
        src=client.source[0],
        sport=client.source[1],
        dst=crowd.backend.address,
        dport=8080,
        hop=1,
        **expect.TO_BACKEND,
    )
    assert out.packet == wanted, expect.difference(out.packet, wanted)
    assert out.counted == {Reason.FWD_ESTABLISHED: 1}
    for flags in ("A", "FA"):
        reply = expect.remote_reply(
            fam, TCP, crowd.backend, client.source[1], flags, to=client.source[0], load=b"y" * 99
        )
        back = extra_snat_world.run(hook, reply, extra_snat_world.net.lb1)
        expect.replied(back, reply, crowd.service, fam.client, client.port)
        assert back.counted == {Reason.FWD_REPLY: 1}


def test_a_packet_of_no_flow_passes(extra_snat_world: World, fam: Family, hook: str) -> None:
    """A packet to an extra SNAT address that is no reply is for the node itself: a free port, another backend, another address."""
    crowd = Crowd(extra_snat_world, fam, hook)
    other = extra_snat_world.backend(fam, fam.remote(2), 8080)
    crowd.establish(5)
    address, port = crowd.clients[-1].source
    free = next(number for number in PORTS if number != port)
    for backend, to, number in (
        (crowd.backend, address, free),
        (other, address, port),
        (crowd.backend, TEXTS[fam.version][1], port),
    ):
        frame = expect.remote_reply(fam, TCP, backend, number, "A", to=to)
        expect.untouched(extra_snat_world.run(hook, frame, extra_snat_world.net.lb1), frame)


def test_a_refused_flow_gives_its_port_back(extra_snat_world: World, fam: Family, hook: str) -> None:
    """The backend's RST frees a port of an extra SNAT address at once."""
    crowd = Crowd(extra_snat_world, fam, hook)
    crowd.establish(11)
    refused = crowd.client()
    assert not refused.send("S").dropped
    late = Caller(extra_snat_world, crowd.service, client=fam.client2, hook=hook)
    assert late.send("S").dropped
    assert refused.is_answered("RA")
    assert not late.send("S").dropped
    assert late.source == refused.source
    assert late.is_answered("SA")


def test_flows_of_extra_snat_addresses_expire(extra_snat_world: World, fam: Family, hook: str) -> None:
    """The sweep frees their slots, and counts them under ids of their own while they live."""
    crowd = Crowd(extra_snat_world, fam, hook)
    crowd.establish(7)
    assert sweep(extra_snat_world, fam)[0] == 7
    ids = {flow.port: flow.backend for flow in table.flows(extra_snat_world, fam)}
    extra_snat_id = 1 + NUMBERS[fam.version][0] * (SMALL.backends // 5)
    assert [ids[each.port] for each in crowd.clients] == [1] * 4 + [extra_snat_id] * 3
    assert table.held_slots(extra_snat_world, fam) == 7
    table.age(extra_snat_world, fam, 20000)
    assert sweep(extra_snat_world, fam)[0] == 0
    assert table.held_slots(extra_snat_world, fam) == 0


def test_half_open_flows_give_way_before_the_next_address_is_used(
    extra_snat_world: World, fam: Family, hook: str
) -> None:
    """A flood's ports are taken back where they are: it does not spread over all addresses."""
    crowd = Crowd(extra_snat_world, fam, hook)
    for _ in range(4):
        crowd.client().send("S")
    table.later(extra_snat_world, fam, AGE)
    late = crowd.client()
    assert not late.send("S").dropped
    assert late.source[0] == fam.node2
    fresh = [crowd.client() for _ in range(4)]  # three take the others; then only flows of this moment are left there
    for each in fresh:
        assert not each.send("S").dropped
    assert [each.source[0] for each in fresh] == [fam.node2] * 3 + [TEXTS[fam.version][0]]


def test_half_open_flows_give_way_with_every_address(extra_snat_world: World, fam: Family, hook: str) -> None:
    """When all addresses are held, the last one by a flood, a new connection takes the port of a flow that was not established."""
    crowd = Crowd(extra_snat_world, fam, hook)
    crowd.establish(8)
    for _ in range(4):
        crowd.client().send("S")
    table.later(extra_snat_world, fam, AGE)
    for each in crowd.clients[:8]:
        assert each.stays()
    late = Caller(extra_snat_world, crowd.service, client=fam.client2, hook=hook)
    assert not late.send("S").dropped
    assert late.source[0] == TEXTS[fam.version][1]


def test_a_conversation_is_spared_while_another_address_has_ports(
    extra_snat_world: World, fam: Family, hook: str
) -> None:
    """A silent UDP conversation that lasted loses its port only when every address is used up."""
    crowd = Crowd(extra_snat_world, fam, hook, UDP)

    def lasted(count: int) -> list[Caller]:
        out = crowd.establish(count)
        table.later(extra_snat_world, fam, table.SLOT_UNIT)
        for each in out:
            assert each.stays()
            assert each.is_answered()
        return out

    first = lasted(4)
    table.later(extra_snat_world, fam, AGE)
    late = crowd.client()
    assert not late.send().dropped
    assert late.source[0] == TEXTS[fam.version][0]
    assert all(each.stays() for each in first)
    lasted(7)
    table.later(extra_snat_world, fam, AGE)
    last = Caller(extra_snat_world, crowd.service, client=fam.client2, hook=hook)
    assert not last.send().dropped
    assert last.source[0] in TEXTS[fam.version]


def test_an_address_that_the_node_lacks_is_not_used(extra_snat_world: World, fam: Family, hook: str) -> None:
    """Its flows continue, new ones skip it, and one that is opened again moves to another address and releases its port."""
    crowd = Crowd(extra_snat_world, fam, hook)
    crowd.establish(5)
    moved = crowd.clients.pop()
    extra_snat_world.extra_snat(crowd.backend, NUMBERS[fam.version][0], TEXTS[fam.version][0], selectable=False)
    assert moved.stays()
    assert moved.is_answered()
    late = crowd.client()
    assert not late.send("S").dropped
    assert late.source[0] == TEXTS[fam.version][1]
    held = table.held_slots(extra_snat_world, fam)
    assert not moved.send("S").dropped
    assert moved.source[0] == TEXTS[fam.version][1]
    assert table.held_slots(extra_snat_world, fam) == held


@pytest.mark.parametrize("field", ["address", "port", "proto"])
def test_a_record_of_another_backend_is_passed_over(
    extra_snat_world: World, fam: Family, hook: str, field: str
) -> None:
    """Between two writes a record may still be that of the backend whose id this one has now: no new flow takes it."""
    crowd = Crowd(extra_snat_world, fam, hook)
    other = {"address": fam.remote(2), "port": 8081, "proto": UDP}[field]
    before = dataclasses.replace(crowd.backend, **{field: other})
    extra_snat_world.extra_snat(before, NUMBERS[fam.version][0], TEXTS[fam.version][0])
    crowd.establish(5)
    assert crowd.clients[-1].source[0] == TEXTS[fam.version][1]
    crowd.check()


@pytest.mark.parametrize("proto", [TCP, UDP], ids=["tcp", "udp"])
def test_an_address_that_was_taken_away(extra_snat_world: World, fam: Family, hook: str, proto: int) -> None:
    """Only its flows end, as those of a backend that is gone: TCP gets a RST, UDP continues from another address."""
    crowd = Crowd(extra_snat_world, fam, hook, proto)
    crowd.establish(9)
    ident = crowd.backend.id + NUMBERS[fam.version][0] * (SMALL.backends // 5)
    gone = dataclasses.replace(crowd.backend, id=ident)
    extra_snat_world.path_flags(gone, clear=PathFlag.LIVE | PathFlag.SELECTABLE, bump=True)
    lost = crowd.clients[4:8]
    del crowd.clients[4:8]
    crowd.check()
    out = lost[0].send()
    if proto == TCP:
        assert out.counted == {Reason.REJECT_BACKEND_GONE: 1}
    else:
        assert not out.dropped
        assert lost[0].source[0] == TEXTS[fam.version][1]
    crowd.check()


def test_a_extra_snat_address_may_be_the_first_of_another_backend(
    extra_snat_world: World, fam: Family, hook: str
) -> None:
    """The node has two devices, and each one's address is the other's extra SNAT address."""
    crowd = Crowd(extra_snat_world, fam, hook)
    other = extra_snat_world.backend(fam, fam.remote(2), 8080)
    hop = extra_snat_world.nexthop(extra_snat_world.net.lb1, craft.BACKEND_MAC, craft.NODE2_MAC)
    extra_snat_world.path(other, flags=PathFlag.LIVE | PathFlag.SELECTABLE, nexthop=hop, snat=TEXTS[fam.version][0])
    service = extra_snat_world.service(fam, fam.vip2, 80, TCP, [other])
    crowd.establish(8)
    for n in range(4):
        caller = Caller(extra_snat_world, service, port=40000 + n, hook=hook)
        assert not caller.establish().dropped
        assert caller.source[0] == TEXTS[fam.version][0]
        assert caller.is_answered()
    crowd.check()


def test_replies_of_a_removed_service_are_told_apart_by_the_address(
    loaded_one_port_world: World, fam: Family, hook: str
) -> None:
    """One client port, one backend and one SNAT port, with two addresses and two frontends: each reply is its own frontend's."""
    world = loaded_one_port_world
    world.reset()
    crowd = Crowd(world, fam, hook)
    second = world.service(fam, fam.vip2, 80, TCP, [crowd.backend])
    first = crowd.client()
    other = Caller(world, second, port=first.port, hook=hook)
    for each in (first, other):
        assert not each.establish().dropped
    assert (first.source, other.source) == ((fam.node2, 2000), (TEXTS[fam.version][0], 2000))
    world.remove_service(crowd.service)
    world.remove_service(second)
    assert first.is_answered()
    assert other.is_answered()


def test_an_icmp_error_to_a_extra_snat_address_goes_to_its_client(
    extra_snat_world: World, fam: Family, hook: str
) -> None:
    """PMTU discovery of an upload works from every source address."""
    crowd = Crowd(extra_snat_world, fam, hook)
    crowd.establish(4)
    sent = craft.frame(craft.tcp(fam, fam.client, 45000, fam.vip, 80, "S", load=b"x" * 40))
    out = extra_snat_world.run(hook, sent)
    source = expect.source(out)
    assert source[0] == TEXTS[fam.version][0]
    layer = fam.too_big(1320)
    error = craft.icmp_error(fam, fam.router2, source[0], layer, l3(out.packet))
    back = extra_snat_world.run(
        hook, craft.frame(error, src=craft.BACKEND_MAC, dst=craft.NODE2_MAC), extra_snat_world.net.lb1
    )
    assert back.forwarded
    quoted = with_hops_of(fam, l3(sent), 63)
    check_error(back.packet, src=fam.router2, dst=fam.client, quoted=quoted, kind=layer, mtu=1320)


GROWN = dataclasses.replace(SMALL, flow4=1 << 13, flow6=1 << 13, snat4=1 << 16, snat6=1 << 16)
FEWER = dataclasses.replace(SMALL, flow4=1 << 10, flow6=1 << 10, snat4=1 << 12, snat6=1 << 12)


@pytest.fixture(scope="module", params=["grow", "shrink"])
def loaded_extra_snat_change(request: pytest.FixtureRequest) -> Iterator[Change]:
    """Both directions, loaded once."""
    yield from changes(SMALL, {"grow": GROWN, "shrink": FEWER}[request.param], options=FOUR_PORTS)


@pytest.fixture
def extra_snat_change_world(loaded_extra_snat_change: Change) -> Change:
    """A change with nothing in its maps."""
    loaded_extra_snat_change.reset()
    return loaded_extra_snat_change


def test_flows_of_extra_snat_addresses_move_to_maps_of_another_size(
    extra_snat_change_world: Change, fam: Family, hook: str
) -> None:
    """Before, under both programs, with a half moved, with all moved, after."""
    change = extra_snat_change_world
    crowd = Crowd(change.world, fam, hook)
    crowd.establish(8)
    change.begin()
    crowd.check()
    crowd.establish(4)
    change.some(0.5)
    crowd.check()
    assert change.all()[fam.version].lost == 0
    crowd.check()
    change.end()
    crowd.check()
    sources = [each.source for each in crowd.clients]
    assert len(set(sources)) == 12
