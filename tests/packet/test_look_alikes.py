"""Flows that differ in one place only: address, port or frontend. The table has one bucket and one SNAT port, so all of them meet."""

from __future__ import annotations

import dataclasses
import ipaddress
from dataclasses import dataclass

import pytest

from lbagent.bpf.load.program_settings import ProgramSettings
from lbagent.maps.reasons import Reason
from tests.packet import expect, table
from tests.packet.caller import Caller
from tests.packet.clock import TimedWorld, ticks_of
from tests.packet.craft import FAMILIES, Family
from tests.packet.world import TCP, BackendRow, World

DEFAULTS = ProgramSettings()
STALE = ticks_of(DEFAULTS.timeout_tcp_s) + 8 * 70  # ticks: a port is free when its flow was silent for so long
BOTH_WAYS = pytest.mark.parametrize("local", [False, True], ids=["remote", "local"])
ADDRESS_BITS = {
    4: (0, 13),
    6: (0, 7, 33, 71, 100),
}  # some of each half and of each end; 7 and 71 are the highest of a word
PORT_BITS = (7, 8, 9)  # 8 is the lowest one in the word that has the port in network order, 7 its highest one


@dataclass(frozen=True)
class Four:
    """Client and frontend of a flow."""

    client: str
    port: int
    vip: str
    vip_port: int


def flipped(fam: Family, address: str, bit: int) -> str:
    """Return the address that differs in one bit, counted from the last one."""
    number = int.from_bytes(fam.packed(address), "big") ^ 1 << bit
    return str(ipaddress.ip_address(number.to_bytes(4 if fam.version == 4 else 16, "big")))


def base(fam: Family) -> Four:
    """Return the flow that all others are like."""
    return Four(fam.client, 40000, fam.vip, 80)


def other_clients(fam: Family) -> list[Four]:
    """Return the flows of clients that are nearly the same."""
    one = base(fam)
    out = [dataclasses.replace(one, client=flipped(fam, one.client, bit)) for bit in ADDRESS_BITS[fam.version]]
    out.append(
        dataclasses.replace(one, client=flipped(fam, flipped(fam, one.client, 7), 0))
    )  # a word's highest bit and another
    return out + [dataclasses.replace(one, port=one.port ^ 1 << bit) for bit in PORT_BITS]


def other_frontends(fam: Family) -> list[Four]:
    """Return the client's flows to frontends that are nearly the same."""
    one = base(fam)
    out = [dataclasses.replace(one, vip=flipped(fam, one.vip, bit)) for bit in ADDRESS_BITS[fam.version]]
    return out + [dataclasses.replace(one, vip_port=one.vip_port ^ 1 << bit) for bit in PORT_BITS]


class Scene:
    """Services with one backend each, for the flow that all are like and for one of the others."""

    def __init__(self, timed: TimedWorld, fam: Family, hook: str, *, local: bool = False) -> None:
        """Begin with an empty world."""
        self.world, self.fam, self.hook, self.local = timed.reset(), fam, hook, local
        self.count = 0

    def backend(self) -> BackendRow:
        """Enter the next backend."""
        self.count += 1
        address = self.fam.local(self.count) if self.local else self.fam.remote(self.count)
        return self.world.backend(self.fam, address, 8080, local=self.local)

    def caller(self, four: Four, backend: BackendRow) -> Caller:
        """Enter the flow's frontend with this backend (again, if it is there), and return its client."""
        world: World = self.world
        known = [row for row in world.services if (row.address, row.port) == (four.vip, four.vip_port)]
        ident = known[0].id if known else None
        service = world.service(self.fam, four.vip, four.vip_port, TCP, [backend], ident=ident)
        return Caller(world, service, four.client, four.port, self.hook)


@BOTH_WAYS
@pytest.mark.parametrize("family", [4, 6], ids=["ipv4", "ipv6"])
def test_each_has_a_backend_of_its_own(still_world: TimedWorld, family: int, hook: str, *, local: bool) -> None:
    """The second flow is a new one, and each packet of both, from either side, goes its own way."""
    fam = FAMILIES[family]
    for four in (*other_clients(fam), *other_frontends(fam)):
        scene = Scene(still_world, fam, hook, local=local)
        first = scene.caller(base(fam), scene.backend())
        first.establish()
        second = scene.caller(four, scene.backend())
        second.establish()
        assert second.backend != first.backend, four
        for flags in ("A", "PA"):
            for talk in (first, second):
                assert talk.stays(flags), four
                assert talk.is_answered(flags), four


def test_clients_of_one_local_backend_keep_their_address(still_world: TimedWorld, fam: Family, hook: str) -> None:
    """Only another frontend of the same client port makes the replies of a backend ambiguous, and a SYN that comes twice does not."""
    for four in other_clients(fam):
        scene = Scene(still_world, fam, hook, local=True)
        backend = scene.backend()
        first, second = scene.caller(base(fam), backend), scene.caller(four, backend)
        for talk in (first, second, first, second):
            assert talk.send("S").counted == {Reason.FWD_LOCAL: 1}, four
            assert talk.source == talk.endpoint


def test_frontends_of_one_local_backend_are_told_apart_by_a_port(
    still_world: TimedWorld, fam: Family, hook: str
) -> None:
    """The client's second flow to the backend has a SNAT port, and each reply comes from its own frontend."""
    for four in other_frontends(fam):
        scene = Scene(still_world, fam, hook, local=True)
        backend = scene.backend()
        first, second = scene.caller(base(fam), backend), scene.caller(four, backend)
        first.establish()
        assert first.source == first.endpoint
        second.send("S")
        assert second.source == (fam.node, 2000), four
        assert second.is_answered("SA"), four
        assert first.is_answered("A"), four


def test_replies_find_the_frontend_of_their_own_client(still_world: TimedWorld, fam: Family, hook: str) -> None:
    """Two clients that are nearly the same have two frontends with one local backend."""
    for four in other_clients(fam):
        scene = Scene(still_world, fam, hook, local=True)
        backend = scene.backend()
        first = scene.caller(base(fam), backend)
        second = scene.caller(dataclasses.replace(four, vip=fam.vip2), backend)
        for talk in (first, second):
            talk.establish()
            assert talk.source == talk.endpoint, four
        for talk in (first, second):
            assert talk.is_answered(), four


def test_backends_that_are_nearly_the_same(still_world: TimedWorld, fam: Family, hook: str) -> None:
    """A reply is accepted only from the backend's address and port; from similar ones it passes untouched."""
    scene = Scene(still_world, fam, hook, local=True)
    backend = scene.backend()
    talk = scene.caller(base(fam), backend)
    talk.establish()
    for bit in ADDRESS_BITS[fam.version]:
        address = flipped(fam, backend.address, bit)
        scene.world.filter("source", fam.packed(address))
        row = dataclasses.replace(backend, address=address)
        frame = expect.local_reply(fam, TCP, row, *talk.endpoint, "A")
        expect.untouched(expect.at_pod(scene.world, frame), frame)
    for bit in PORT_BITS:
        row = dataclasses.replace(backend, port=backend.port ^ 1 << bit)
        frame = expect.local_reply(fam, TCP, row, *talk.endpoint, "A")
        expect.untouched(expect.at_pod(scene.world, frame), frame)
    assert talk.is_answered()


def test_strangers_at_a_snat_port(still_world: TimedWorld, fam: Family, hook: str) -> None:
    """The same for the backend of a SNAT port; and for another address of the node with that port."""
    scene = Scene(still_world, fam, hook)
    backend = scene.backend()
    talk = scene.caller(base(fam), backend)
    talk.establish()
    strangers = [
        dataclasses.replace(backend, address=flipped(fam, backend.address, bit)) for bit in ADDRESS_BITS[fam.version]
    ]
    strangers += [dataclasses.replace(backend, port=backend.port ^ 1 << bit) for bit in PORT_BITS]
    for row in strangers:
        frame = expect.remote_reply(fam, TCP, row, 2000, "A")
        expect.untouched(scene.world.run(hook, frame, scene.world.net.lb1), frame)
    assert talk.is_answered()


def test_a_port_is_held_by_one_flow(still_world: TimedWorld, fam: Family, hook: str) -> None:
    """No similar flow gets it, and the holder gets the same one again."""
    for four in (*other_clients(fam), *other_frontends(fam)):
        scene = Scene(still_world, fam, hook)
        backend = scene.backend()
        first, second = scene.caller(base(fam), backend), scene.caller(four, backend)
        first.send("S")
        assert second.send("S").counted == {Reason.DROP_SNAT_EXHAUSTED: 1}, four
        assert first.stays("S"), four
        assert first.is_answered("SA"), four


def test_who_lost_its_port_notices(still_world: TimedWorld, fam: Family, hook: str) -> None:
    """The port went to a flow that is nearly the same: the first one sends nothing from it, and its end does not free it."""
    for four in (*other_clients(fam), *other_frontends(fam)):
        scene = Scene(still_world, fam, hook)
        backend = scene.backend()
        first, second = scene.caller(base(fam), backend), scene.caller(four, backend)
        first.establish()
        still_world.clock.pass_ticks(STALE)
        second.establish()
        assert second.source == first.source
        first.send("A")
        assert first.went is None, four
        still_world.sweep(fam)
        assert len(table.flows(scene.world, fam)) == 1
        assert table.held_slots(scene.world, fam) == 1, four
        assert second.is_answered(), four
        assert second.stays(), four


def test_backends_whose_numbers_are_nearly_the_same(still_world: TimedWorld, fam: Family, hook: str) -> None:
    """A client port has flows to several local backends through as many frontends: their replies differ, so no port is needed."""
    scene = Scene(still_world, fam, hook, local=True)
    backends = [scene.backend() for _ in range(17)]
    for one, other in ((1, 2), (2, 3), (1, 3), (4, 8), (1, 17), (16, 17)):
        scene.world.forget_flows()
        frontends = (base(fam), dataclasses.replace(base(fam), vip=fam.vip2))
        talks = [scene.caller(four, backends[n - 1]) for four, n in zip(frontends, (one, other), strict=True)]
        for talk in (*talks, *talks):
            assert talk.send("S").counted == {Reason.FWD_LOCAL: 1}, (one, other)
            assert talk.source == talk.endpoint
        for talk in talks:
            assert talk.is_answered("SA")


@BOTH_WAYS
def test_generations_begin_anew(still_world: TimedWorld, fam: Family, hook: str, *, local: bool) -> None:
    """An entry was used 16,384 times, a slot 65,536 times: the flows around that number are like any other."""
    words = {"flow": 4 if fam.version == 4 else 8, "snat": 2 if fam.version == 4 else 4}
    for entry_gen, slot_gen in ((0x3FFD, 0xFFFD), (0x3FFE, 0xFFFE), (0x3FFF, 0xFFFF), (0x1FFF, 0x7FFF), (0, 0)):
        scene = Scene(still_world, fam, hook, local=local)
        for name, gen in (("flow", entry_gen), ("snat", slot_gen)):
            rows = f"lb{fam.version}_{name}"
            size = 8 * words[name]
            places = range(0, scene.world.maps.specs[rows].value_size, size)
            scene.world.maps.store(rows, [(at, gen.to_bytes(8, "little")) for at in places])
        fours = (base(fam), other_clients(fam)[0], other_frontends(fam)[0])
        backends = [scene.backend() for _ in fours]
        for _ in range(2):
            talks = []
            for four, backend in zip(fours, backends, strict=True):
                talks.append(scene.caller(four, backend))
                talks[-1].establish()
            assert len(table.flows(scene.world, fam)) == 3
            assert table.held_slots(scene.world, fam) == (0 if local else 3)
            for talk in talks:
                assert talk.stays()
                assert talk.is_answered()
            for talk in talks:
                assert talk.is_answered("R")
            still_world.clock.pass_ticks(ticks_of(DEFAULTS.timeout_closing_s) + 1)
            still_world.sweep(fam)
            assert table.flows(scene.world, fam) == []
            assert table.held_slots(scene.world, fam) == 0
