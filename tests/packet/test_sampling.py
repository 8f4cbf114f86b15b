"""The programs for `monitor --all` and `capture`: each packet of a service is recorded as it arrives and as it leaves, and treated alike."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from lbagent.bpf.compiler import builder
from lbagent.bpf.compiler.artifact import Program
from lbagent.bpf.load.program_settings import ProgramSettings
from lbagent.kernel.opcodes import decode
from lbagent.maps.event_reader import Event
from lbagent.maps.layout import LB_CONFIG
from lbagent.maps.reasons import Reason
from tests.packet import craft, expect
from tests.packet.craft import Family
from tests.packet.harness import one_cpu, open_world
from tests.packet.test_events import PAYLOAD, contents, header_bytes, reading, request, serve
from tests.packet.world import TC_INGRESS, TCP, UDP, XDP, Outcome, World


@pytest.fixture(scope="module")
def sampled() -> Iterator[World]:
    """Programs that record all packets."""
    with one_cpu(), open_world(ProgramSettings(events=4096, sample=1, frames_after=True)) as world:
        yield world


@pytest.fixture(scope="module")
def plain() -> Iterator[World]:
    """Programs without."""
    with one_cpu(), open_world(ProgramSettings(events=4096)) as world:
        yield world


def conversation(
    world: World, fam: Family, hook: str, proto: int, *, local: bool, vlans: tuple[int, ...] = ()
) -> list[Outcome]:
    """A client's packets and a backend's answers, in turns."""
    world.reset()
    backend = world.backend(fam, fam.local(1) if local else fam.remote(1), 8080, proto, local=local)
    world.service(fam, fam.vip, 80, proto, [backend], ident=77)
    found = []
    for flags in ("S", "A", "PA", "A", "FA"):
        load = PAYLOAD if flags == "PA" else b""
        more = {"flags": flags} if proto == TCP else {}
        asked = world.run(hook, request(fam, proto, load=load, vlans=vlans, **more))
        found.append(asked)
        answer = "SA" if flags == "S" else flags
        if local:
            frame = expect.local_reply(fam, proto, backend, fam.client, 40000, answer)
            found.append(world.run(TC_INGRESS, frame, world.net.pod0))
        else:
            frame = expect.remote_reply(fam, proto, backend, expect.source(asked)[1], answer)
            found.append(world.run(hook, frame, world.net.lb1))
    return found


@pytest.mark.parametrize("local", [False, True], ids=["remote", "local"])
@pytest.mark.parametrize("proto", [TCP, UDP], ids=["tcp", "udp"])
@pytest.mark.parametrize("hook", [XDP, TC_INGRESS])
def test_packets_fare_as_without(
    sampled: World, plain: World, fam: Family, hook: str, proto: int, *, local: bool
) -> None:
    """Verdict, bytes and counters; the ports are those of the hash, which both worlds share."""
    with_records = conversation(sampled, fam, hook, proto, local=local)
    without = conversation(plain, fam, hook, proto, local=local)
    assert [(each.verdict, each.packet, each.counted) for each in with_records] == [
        (each.verdict, each.packet, each.counted) for each in without
    ]
    assert all(each.counted for each in without)


@pytest.mark.parametrize("local", [False, True], ids=["remote", "local"])
@pytest.mark.parametrize("proto", [TCP, UDP], ids=["tcp", "udp"])
@pytest.mark.parametrize("hook", [XDP, TC_INGRESS])
def test_every_packet_is_recorded_as_it_comes_and_as_it_leaves(
    sampled: World, fam: Family, hook: str, proto: int, *, local: bool
) -> None:
    with reading(sampled) as reader:
        done = conversation(sampled, fam, hook, proto, local=local)
        found = reader.read()
    pairs = list(zip(found[::2], found[1::2], strict=True))
    assert len(pairs) == len(done) == 10
    size = header_bytes(fam, proto)
    for number, (outcome, (before, after)) in enumerate(zip(done, pairs, strict=True)):
        assert (before.is_after, after.is_after) == (False, True)
        assert before.is_known == after.is_known == (number > 0)
        assert after.number == before.number + 1
        assert {Reason(before.reason): 1} == outcome.counted
        assert (before.reason, before.backend, before.service, before.snat_port) == (
            after.reason, after.backend, after.service, after.snat_port,
        )  # fmt: skip
        assert before.service == 77
        assert bool(before.snat_port) == (not local)
        assert before.frame[:size] != outcome.packet[:size]
        assert same_headers(after, outcome, size)
    assert PAYLOAD[:4] not in contents(sampled)


def same_headers(after: Event, outcome: Outcome, size: int) -> bool:
    """A packet for the stack has the MAC addresses it came with; what is sent has those of the next hop."""
    start = 0 if after.device else 12
    return after.frame[start:size] == outcome.packet[start:size]


def test_tags_and_other_frames(sampled: World, plain: World, fam: Family) -> None:
    """A frame with a tag is recorded with it; what is for no service is not recorded."""
    outcomes = conversation(sampled, fam, XDP, UDP, local=True, vlans=(7,))
    assert [each.packet for each in outcomes] == [
        each.packet for each in conversation(plain, fam, XDP, UDP, local=True, vlans=(7,))
    ]
    sampled.reset()
    serve(sampled, fam)
    other = craft.frame(craft.tcp(fam, fam.client, 40000, fam.remote(9), 80))
    with reading(sampled) as reader:
        assert sampled.run(XDP, other).passed
        assert reader.read() == []
        sampled.run(XDP, request(fam, vlans=(7,)))
        assert next(event.frame[12:16] for event in reader.read()) == bytes((0x81, 0, 0, 7))


def test_one_in_so_many(fam: Family) -> None:
    """Of packets of an established flow: of 4,000 some 500. New flows are recorded as ever, and refusals also beyond --event-rate."""
    with one_cpu(), open_world(ProgramSettings(events=1 << 16, sample=8, event_rate=10)) as world:
        backend = world.backend(fam, fam.local(1), 8080, local=True)
        world.service(fam, fam.vip, 80, TCP, [backend], ident=77)
        world.service(fam, fam.vip, 81, TCP, [], ident=78)
        with reading(world) as reader:
            world.run(XDP, request(fam))
            world.run(TC_INGRESS, expect.local_reply(fam, TCP, backend, fam.client, 40000), world.net.pod0)
            world.run(XDP, request(fam, flags="A", load=b""))
            assert [event.is_known for event in reader.read()] == [False, True, True]
            for number in range(4000):
                world.run(XDP, request(fam, flags="A", seq=number, load=b""))
            found = reader.read()
            assert 500 - 6 * 21 < len(found) < 500 + 6 * 21
            assert all(event.is_known and not event.is_after for event in found)
            for number in range(100):
                world.run(XDP, request(fam, sport=50000 + number))
                world.run(XDP, craft.frame(craft.tcp(fam, fam.client, 50000 + number, fam.vip, 81)))
            found = reader.read()
            assert [event.is_known for event in found] == [False] * 200
            assert sum(Reason(event.reason) is Reason.REJECT_NO_BACKEND for event in found) == 100


def test_only_programs_for_readers_have_code_for_it() -> None:
    """The others do not read its settings, which would cost each packet an instruction; programs that the agent runs are the same."""
    plain = builder.ensure_artifact()
    sampling = builder.sampling_artifact(plain)
    settings = {LB_CONFIG.offsets()[name] for name in ("sample_below", "frames_after")}
    readers = {
        name: {each for each, program in artifact.programs.items() if settings & set(read_settings(program))}
        for name, artifact in (("plain", plain), ("sampling", sampling))
    }
    assert readers["plain"] == set()
    assert {"xdp", "tc_ingress", "tc_egress"} <= readers["sampling"]
    assert list(sampling.programs) == list(plain.programs)
    assert {name for name, each in plain.programs.items() if each == sampling.programs[name]} >= {"sweep4", "connect4"}
    assert sampling.source_hash != plain.source_hash


def read_settings(program: Program) -> Iterator[int]:
    """The offsets in lb_config that a program reads directly behind the record's address."""
    for item in program.relocations:
        if item.map_name == "lb_config" and item.value:
            yield decode(program.insns, item.index + 2).offset
