"""--new-flows: what may begin no flow is left to the stack, where another proxy translates it."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator

import pytest

from lbagent.bpf.load.program_settings import ProgramSettings
from lbagent.maps.reasons import Reason
from tests.packet import craft, expect
from tests.packet.craft import Family
from tests.packet.harness import open_world
from tests.packet.world import TCP, UDP, BackendRow, Outcome, World

PLACES = pytest.mark.parametrize("local", [False, True], ids=["remote", "local"])


@pytest.fixture(scope="module")
def syn() -> Iterator[World]:
    """Load programs with `--new-flows syn`."""
    with open_world(ProgramSettings(new_flows="syn")) as world:
        yield world


@pytest.fixture
def syn_world(syn: World) -> World:
    """Return it with nothing in it."""
    syn.reset()
    return syn


def serve(world: World, fam: Family, proto: int = TCP, *, local: bool = False) -> BackendRow:
    """Give the frontend one backend."""
    backend = world.backend(fam, fam.local(1) if local else fam.remote(1), 8080, proto, local=local)
    world.service(fam, fam.vip, 80, proto, [backend])
    return backend


def segment(fam: Family, flags: str, proto: int = TCP, sport: int = 40000, dport: int = 80) -> bytes:
    """Return a packet of the client."""
    return craft.frame(craft.segment(fam, proto, fam.client, sport, fam.vip, dport, flags))


def is_left_alone(outcome: Outcome, frame: bytes) -> None:
    """Assert that the stack gets it as it came, and that it is counted."""
    expect.untouched(outcome, frame)
    assert outcome.counted == {Reason.PASS_NEW_FLOW: 1}


@PLACES
@pytest.mark.parametrize("flags", ["A", "PA", "FA", "R", "SA"])
def test_a_segment_of_no_flow_is_passed(syn_world: World, fam: Family, hook: str, flags: str, *, local: bool) -> None:
    serve(syn_world, fam, local=local)
    frame = segment(fam, flags)
    for _ in range(2):  # and no flow is made of it
        is_left_alone(syn_world.run(hook, frame), frame)


@PLACES
def test_a_connection_from_its_syn_on_is_balanced(syn_world: World, fam: Family, hook: str, *, local: bool) -> None:
    """The tuple of one that was left alone, too."""
    backend = serve(syn_world, fam, local=local)
    syn_world.run(hook, segment(fam, "A"))
    for flags in ("S", "A", "PA", "FA"):
        assert expect.destination(syn_world.run(hook, segment(fam, flags))) == backend.endpoint


def test_datagrams_are_balanced(syn_world: World, fam: Family, hook: str) -> None:
    backend = serve(syn_world, fam, UDP)
    assert expect.destination(syn_world.run(hook, segment(fam, "", UDP))) == backend.endpoint


def key(fam: Family, sport: int = 40000) -> bytes:
    """Return the key of the client's UDP conversation with the frontend: the words of docs/maps.md, little-endian."""
    client, vip = fam.packed(fam.client), fam.packed(fam.vip)
    here, there = sport.to_bytes(2, "big"), (80).to_bytes(2, "big")
    if len(vip) == 4:
        return b"\0\x40" + here + client + b"\0\0" + there + vip
    return b"\0\x40" + vip[14:] + there + here + client + vip


def until(seconds: int) -> bytes:
    """Return the value of a conversation that the kernel forgets after these seconds."""
    return (time.monotonic_ns() + seconds * 10**9).to_bytes(8, sys.byteorder)


def test_a_conversation_that_the_kernel_translates_is_left_to_it(syn_world: World, fam: Family, hook: str) -> None:
    backend = serve(syn_world, fam, UDP)
    frame, other = segment(fam, "", UDP), segment(fam, "", UDP, sport=40001)
    name = f"lb{fam.version}_left"
    syn_world.put(name, [(key(fam), until(60))])
    for _ in range(2):
        is_left_alone(syn_world.run(hook, frame), frame)
    assert expect.destination(syn_world.run(hook, other)) == backend.endpoint
    syn_world.put(name, [(key(fam, 40001), until(60))])
    assert expect.destination(syn_world.run(hook, other)) == backend.endpoint  # it is a flow
    syn_world.maps.delete_many(name, [key(fam)])
    assert expect.destination(syn_world.run(hook, frame)) == backend.endpoint


def test_a_conversation_that_the_kernel_forgot_is_balanced(syn_world: World, fam: Family, hook: str) -> None:
    """Also where no agent has deleted it."""
    backend = serve(syn_world, fam, UDP)
    syn_world.put(f"lb{fam.version}_left", [(key(fam), until(-1))])
    assert expect.destination(syn_world.run(hook, segment(fam, "", UDP))) == backend.endpoint


def test_by_default_no_conversation_is_left_to_the_kernel(world: World, fam: Family, hook: str) -> None:
    backend = serve(world, fam, UDP)
    world.put(f"lb{fam.version}_left", [(key(fam), until(60))])
    assert expect.destination(world.run(hook, segment(fam, "", UDP))) == backend.endpoint


def test_a_port_without_a_service_is_refused_as_ever(syn_world: World, fam: Family, hook: str) -> None:
    serve(syn_world, fam)
    frame = segment(fam, "A", dport=81)
    syn_world.wildcard(fam, fam.vip)
    assert syn_world.run(hook, frame).counted == {Reason.REJECT_UNDEFINED_PORT: 1}


def test_without_backends_it_is_passed_too(syn_world: World, fam: Family, hook: str) -> None:
    """A connection outlives its Service's readiness: the other proxy keeps it."""
    syn_world.service(fam, fam.vip, 80, TCP, [])
    frame = segment(fam, "A")
    is_left_alone(syn_world.run(hook, frame), frame)


@PLACES
def test_by_default_it_gets_a_backend(world: World, fam: Family, hook: str, *, local: bool) -> None:
    backend = serve(world, fam, local=local)
    assert expect.destination(world.run(hook, segment(fam, "A"))) == backend.endpoint
