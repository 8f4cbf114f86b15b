"""The event rings: a record for each new flow and each refusal, with the frame as it arrived and nothing of its payload."""

from __future__ import annotations

import mmap
import struct
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from lbagent.bpf.load.program_settings import ProgramSettings
from lbagent.kernel import bpf_map
from lbagent.kernel.bpf_prog import prog_info
from lbagent.kernel.cpus import possible_cpus
from lbagent.maps import pins
from lbagent.maps.event_layout import EventHook
from lbagent.maps.event_map import event_counts, event_map, pin_event_map, store_generation
from lbagent.maps.event_reader import Event, EventReader
from lbagent.maps.reasons import Reason
from tests.maps.conftest import private_bpffs
from tests.packet import craft
from tests.packet.craft import Family
from tests.packet.harness import one_cpu, open_world
from tests.packet.world import SOURCE_RANGE, TC_EGRESS, TC_INGRESS, TCP, UDP, XDP, World

OPTIONS = [("MSS", 1460), ("SAckOK", b""), ("Timestamp", (1, 0)), ("NOP", None), ("WScale", 7)]
PAYLOAD = b"\xa5\x5a" * 40
HOOKS = {XDP: EventHook.XDP, TC_INGRESS: EventHook.TC_INGRESS, TC_EGRESS: EventHook.TC_EGRESS}


@contextmanager
def reading(world: World) -> Iterator[EventReader]:
    """Read the events of a world from now on."""
    with private_bpffs() as bpffs:
        pins.ensure_pin_dir(bpffs)
        pin_event_map(bpffs, world.maps.fd("lb_events"))
        with EventReader(bpffs) as reader:
            yield reader


def serve(world: World, fam: Family, proto: int = TCP, *, local: bool = False) -> int:
    """Give the frontend one backend; return its id."""
    backend = world.backend(fam, fam.local(1) if local else fam.remote(1), 8080, proto, local=local)
    world.service(fam, fam.vip, 80, proto, [backend], ident=77)
    return backend.id


def request(
    fam: Family,
    proto: int = TCP,
    *,
    sport: int = 40000,
    load: bytes = PAYLOAD,
    vlans: tuple[int, ...] = (),
    **fields: object,
) -> bytes:
    return craft.frame(craft.segment(fam, proto, fam.client, sport, fam.vip, 80, load=load, **fields), vlans=vlans)


def header_bytes(fam: Family, proto: int, options: int = 0, tags: int = 0) -> int:
    """Return the bytes up to the end of the L4 header."""
    return 14 + 4 * tags + (20 if fam.version == 4 else 40) + (8 if proto == UDP else 20 + options)


def only(reader: EventReader) -> Event:
    (event,) = reader.read()
    return event


@pytest.mark.parametrize("local", [False, True], ids=["remote", "local"])
@pytest.mark.parametrize("proto", [TCP, UDP], ids=["tcp", "udp"])
def test_a_new_flow_is_an_event_with_all_about_it(
    world: World, fam: Family, hook: str, proto: int, *, local: bool
) -> None:
    ident, frame = serve(world, fam, proto, local=local), request(fam, proto)
    store_generation(world.maps.fd("lb_events"), 4711)
    with reading(world) as reader:
        before = time.time()
        done = world.run(hook, frame)
        event = only(reader)
        assert reader.read() == []
    assert event.frame == frame[: header_bytes(fam, proto)]  # before the translation
    assert done.packet != frame
    assert (event.length, event.device) == (len(frame), world.net.lb0)
    assert {Reason(event.reason): 1} == done.counted
    assert (event.backend, event.service, event.generation) == (ident, 77, 4711)
    assert event.hook == HOOKS[hook]
    assert 0 <= event.cpu < possible_cpus()
    sport = int.from_bytes(done.packet[header_bytes(fam, proto) - (8 if proto == UDP else 20) :][:2], "big")
    assert event.snat_port == (sport if sport != 40000 else 0)
    if not local:
        assert event.snat_port
    del before  # the clock of this world stands still


@pytest.mark.parametrize("count", range(1, 6))
def test_options_of_tcp_are_kept_and_payload_is_not(world: World, fam: Family, hook: str, count: int) -> None:
    """Every length of a TCP header, with payload behind it, in slots whose earlier frame was longer."""
    serve(world, fam)
    with reading(world) as reader:
        for number in range(3):
            frame = request(fam, sport=41000 + 10 * count + number, options=OPTIONS[:count], seq=number)
            world.run(hook, frame)
            event = only(reader)
            size = frame.index(PAYLOAD)
            assert event.frame == frame[: min(size, 96)]
    assert PAYLOAD[:4] not in contents(world)


@pytest.mark.parametrize("tags", [1, 2])
def test_tags_are_part_of_the_frame(world: World, fam: Family, tags: int) -> None:
    serve(world, fam)
    frame = request(fam, vlans=(7, 8)[:tags], options=OPTIONS)
    with reading(world) as reader:
        done = world.run(XDP, frame)
        assert done.counted, done
        assert only(reader).frame == frame[: min(96, frame.index(PAYLOAD))]
    assert PAYLOAD[:4] not in contents(world)


def contents(world: World) -> bytes:
    """Return all bytes of the rings."""
    fd = world.maps.fd("lb_events")
    return bpf_map.map_lookup(fd, bytes(4), bpf_map.map_info(fd).value_size) or b""


def test_packets_of_established_flows_are_none(world: World, fam: Family, hook: str) -> None:
    serve(world, fam)
    with reading(world) as reader:
        world.run(hook, request(fam, load=b""))
        assert len(reader.read()) == 1
        for flags in ("A", "PA", "FA"):
            world.run(hook, request(fam, flags=flags))
        assert reader.read() == []


REFUSALS: dict[str, tuple[Reason, Callable[[World, Family], None]]] = {
    "no backend": (Reason.REJECT_NO_BACKEND, lambda world, fam: void(world.service(fam, fam.vip, 80, ident=77))),
    "source range": (
        Reason.DROP_SOURCE_RANGE,
        lambda world, fam: void(
            world.service(fam, fam.vip, 80, TCP, [world.backend(fam, fam.remote(1), 8080)], ident=77,
                          flags=0x20 | 0x40 | SOURCE_RANGE, ranges=["192.88.99.0/24" if fam.version == 4 else "2001:db8:ffff::/48"])
        ),
    ),
}  # fmt: skip


def void(_row: object) -> None:
    return None


@pytest.mark.parametrize("kind", REFUSALS)
def test_a_refusal_is_an_event(world: World, fam: Family, hook: str, kind: str) -> None:
    reason, prepare = REFUSALS[kind]
    prepare(world, fam)
    frame = request(fam)
    with reading(world) as reader:
        done = world.run(hook, frame)
        event = only(reader)
    assert done.counted == {reason: 1}
    assert (event.reason, event.service, event.backend, event.snat_port) == (reason, 77, 0, 0)
    assert event.frame == frame[: header_bytes(fam, TCP)]  # not the answer
    assert event.length == len(frame)
    assert PAYLOAD[:4] not in contents(world)


def test_a_packet_of_no_service_is_none(world: World, fam: Family, hook: str) -> None:
    world.service(fam, fam.vip, 80, TCP, [world.backend(fam, fam.remote(1), 8080)])
    with reading(world) as reader:
        done = world.run(hook, craft.frame(craft.segment(fam, TCP, fam.client, 40000, fam.vip, 81)))
        assert done.counted == {Reason.PASS_NOT_SERVICE: 1}
        assert reader.read() == []


def test_the_ids_of_an_earlier_packet_are_not_those_of_the_next(world: World, fam: Family, hook: str) -> None:
    """A flow with its service and backend, then a frame that is refused before any service is found."""
    serve(world, fam)
    world.wildcard(fam, fam.vip)
    with reading(world) as reader:
        world.run(hook, request(fam))
        world.run(hook, craft.frame(craft.segment(fam, TCP, fam.client, 40000, fam.vip, 81)))
        first, second = reader.read()
    assert first.service == 77
    assert first.backend
    assert (second.reason, second.service, second.backend) == (Reason.REJECT_UNDEFINED_PORT, 0, 0)


def test_refusals_are_limited_and_new_flows_are_not(fam: Family) -> None:
    """At most --event-rate a second and CPU; the others are counted as left out."""
    rate, sent = 7, 40
    with one_cpu(), open_world(ProgramSettings(events=4096, event_rate=rate, reject_rate=1 << 20)) as world:
        world.service(fam, fam.vip, 81)
        serve(world, fam)
        with reading(world) as reader, world.net.inside():
            began = time.monotonic()
            for number in range(sent):
                world.raw(XDP, craft.frame(craft.segment(fam, TCP, fam.client, 40000 + number, fam.vip, 81)))
            for number in range(sent):
                world.raw(XDP, request(fam, sport=50000 + number))
            took = time.monotonic() - began
            found = reader.read()
            refused = [event for event in found if event.reason == Reason.REJECT_NO_BACKEND]
            assert rate <= len(refused) <= rate * (1 + took) + 1
            assert len(found) - len(refused) == sent
            assert reader.limited == sent - len(refused)
            assert event_counts(world.maps.fd("lb_events")) == (len(found), sent - len(refused))


def test_a_rate_of_nothing_records_no_refusal(fam: Family) -> None:
    with open_world(ProgramSettings(events=64, event_rate=0)) as world:
        world.service(fam, fam.vip, 80)
        with reading(world) as reader:
            assert world.run(XDP, request(fam)).counted == {Reason.REJECT_NO_BACKEND: 1}
            assert reader.read() == []


def test_old_records_are_overwritten_and_counted_as_lost(fam: Family) -> None:
    """A ring of 8 records: of 20 new flows the last 7 can be read, as the oldest slot may be being written."""
    with one_cpu(), open_world(ProgramSettings(events=8 * possible_cpus())) as world:
        serve(world, fam)
        with reading(world) as reader, world.net.inside():
            for number in range(20):
                world.raw(XDP, request(fam, sport=50000 + number))
            found = reader.read()
            l4 = header_bytes(fam, TCP) - 20
            assert [int.from_bytes(event.frame[l4 : l4 + 2], "big") for event in found] == list(range(50013, 50020))
            assert reader.lost == 13
            world.raw(XDP, request(fam, sport=50020))
            assert [event.number for event in reader.read()] == [20]
            assert reader.lost == 13


def test_without_events_the_programs_have_no_code_of_them(fam: Family) -> None:
    """--events 0: the verifier removes it, and a flow is served as before."""
    sizes = {}
    for events in (0, 1024):
        with open_world(ProgramSettings(events=events)) as world:
            sizes[events] = {name: prog_info(fd).jited_bytes for name, fd in world.programs.items()}
            slow = [name for name in world.programs if "flow_create" in name or "event" in name]
            serve(world, fam)
            assert world.run(XDP, request(fam)).forwarded
            if not events:
                assert "lb_events" not in world.maps.fds  # type: ignore[attr-defined]
    for name in slow:
        assert sizes[0][name] < sizes[1024][name], name
    assert sizes[0]["xdp"] == sizes[1024]["xdp"]  # the quick path is the same


def test_time_is_that_of_the_packet(fam: Family) -> None:
    with open_world(ProgramSettings(events=64)) as world:
        serve(world, fam)
        with reading(world) as reader:
            before = time.time()
            world.run(XDP, request(fam))
            after = time.time()
            assert before - 0.05 <= only(reader).time <= after + 0.05


def test_record_bytes(fam: Family) -> None:
    """The record by its bytes, without the reader: what other tools may map."""
    with one_cpu(), open_world(ProgramSettings(events=4 * possible_cpus())) as world:
        ident = serve(world, fam, UDP)
        store_generation(world.maps.fd("lb_events"), 3)
        frame = request(fam, UDP)
        world.run(XDP, frame)
        rings = possible_cpus()
        spec = event_map(4 * rings)
        assert spec.value_size == rings * 5 * 128
        with mmap.mmap(world.maps.fd("lb_events"), spec.value_size, mmap.MAP_SHARED, mmap.PROT_READ) as view:
            (at,) = [ring for ring in range(0, spec.value_size, 5 * 128) if view[ring]]
            head, record = view[at : at + 128], view[at + 128 : at + 256]
        assert struct.unpack_from("=4Q", head)[0] == 1
        assert struct.unpack_from("=4Q", head)[3] == 3
        number, generation, _, device, rest, ids = struct.unpack_from("=IIQIIQ", record)
        assert (number, generation, device) == (0, 3, world.net.lb0)
        assert (rest & 0xFFFFFF, rest >> 24) == (len(frame), Reason.FWD_NEW)
        assert (ids & 0xFFFFF, ids >> 20 & 0xFFFF, ids >> 52 & 0x7F, ids >> 59) == (
            ident,
            77,
            header_bytes(fam, UDP),
            0,
        )
        size = header_bytes(fam, UDP)
        assert record[32 : 32 + size] == frame[:size]
        assert record[32 + size :] == bytes(96 - size)
