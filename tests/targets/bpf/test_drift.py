"""Changes of the maps by another process are seen, the agent's own are not."""

import asyncio
import dataclasses
import struct

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from lbagent.maps.consistency import check
from lbagent.maps.memory_maps import MemoryMaps
from lbagent.model.service import CIDR
from lbagent.render.renderer_types import Difference
from lbagent.targets.bpf import drift as drift_module
from lbagent.targets.bpf.backends import each_backend
from lbagent.targets.bpf.drift import MAX_DIFFERENCES, collect, drift, path_drift
from lbagent.targets.bpf.restore import restore
from tests.targets.bpf.plans import SMALL, Node, backend, paths, service, states
from tests.targets.bpf.test_restore import EVERYTHING

RANGES = (CIDR.parse("10.0.0.0/8"),)


def found(node: Node) -> list[str]:
    return [str(each) for each in drift(node.maps, node.shadow) if each]


def slot(number: int) -> bytes:
    return bytes((10, 96, 0, 1, 0, 80)) + number.to_bytes(2, "little") + bytes((6, 0, 0, 0))


@pytest.mark.parametrize(
    ("deed", "sentence"),
    [
        (
            lambda maps: maps.delete_many("lb4_service", [slot(2)]),
            "10.96.0.1:80/TCP: differs: what lb4_service has of it is not",
        ),
        (lambda maps: maps.put_many("lb4_service", [(slot(9), bytes(12))]), "10.96.0.1:80/TCP"),
        (
            lambda maps: maps.put_many("lb4_service", [(b"\1" + slot(0)[1:], bytes(12))]),
            "1.96.0.1:80/TCP: stale: it is in lb4_service",
        ),
        (lambda maps: maps.delete_many("lb4_backend", [struct.pack("=I", 1)]), "backend 1 in lb4_backend"),
        (lambda maps: maps.put_many("lb4_backend", [(struct.pack("=I", 99), bytes(11) + b"\1")]), "backend 99"),
        (lambda maps: maps.store("lb4_path", [(24, bytes(8))]), "lb4_path is not"),
        (lambda maps: maps.store("lb_filter", [(4096, b"\1" * 8)]), "lb_filter is not"),
        (lambda maps: maps.put_many("lb4_reverse_nat", [(struct.pack("=I", 1), bytes(8))]), "lb4_reverse_nat is not"),
        (lambda maps: maps.put_many("lb_affinity_match", [(bytes(8), b"\1")]), "lb_affinity_match is not"),
        (
            lambda maps: maps.delete_many("lb6_source_range", [maps.items("lb6_source_range")[0][0]]),
            "lb6_source_range is not",
        ),
        (
            lambda maps: maps.put_many("lb6_reverse_nat", [(struct.pack("=I", 77), b"\xfd" + bytes(23))]),
            "lb6_reverse_nat: what is there of service 77 is not",
        ),
        (
            lambda maps: maps.set_maglev("lb4_maglev", {77: struct.pack("=I", 1) * SMALL.maglev_size}),
            "lb4_maglev: what is there of service 77 is not",
        ),
        (
            lambda maps: maps.delete_maglev("lb4_maglev", [*maps.maglev_ids("lb4_maglev")]),
            "lb4_maglev: what is there of service",
        ),
    ],
)
def test_what_a_stranger_did_is_named_and_made_good(deed, sentence):
    node = Node()
    node.serve(*EVERYTHING)
    assert found(node) == []
    deed(node.maps)
    assert any(sentence in line for line in found(node)), found(node)
    node.shadow = restore(node.maps).shadow
    assert node.sync().complete
    assert found(node) == []
    assert check(node.maps, settled=True) == []


@settings(max_examples=30, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.lists(states(), min_size=2, max_size=4), st.integers(1, 7))
def test_plans_between_two_slices_are_no_drift(sequence, every):
    node = Node()
    node.serve(*sequence[0])
    rest = list(sequence[1:])
    for number, line in enumerate(drift(node.maps, node.shadow)):
        assert line is None
        if rest and number % every == 0:
            node.serve(*rest.pop())


def test_a_path_that_is_not_what_the_state_asks_for_is_named():
    """The maps may be as they were written, and still not as they should be: a plan that missed a change."""
    node = Node()
    node.serve(*EVERYTHING)
    assert [line for line in path_drift(node.shadow, node.state, paths) if line] == []
    changed = min(each_backend(node.state), key=lambda backend: backend.id)

    def moved(backend):
        info = paths(backend)
        return replace(info, local=not info.local) if backend.id == changed.id else info

    (line,) = [line for line in path_drift(node.shadow, node.state, moved) if line]
    assert line.detail.startswith(f"the path of backend {changed.id} ({changed.address.with_protocol()})")


async def test_a_comparison_ends_when_it_has_found_enough():
    node = Node()
    node.serve(*EVERYTHING)
    strangers = [(bytes((1, 2, 3, n)) + slot(0)[4:], bytes(12)) for n in range(MAX_DIFFERENCES + 10)]
    node.maps.put_many("lb4_service", strangers)
    assert len(await collect(drift(node.maps, node.shadow), asyncio.Lock())) == MAX_DIFFERENCES


def test_a_backend_beyond_the_limit_is_a_difference():
    node = Node()
    node.serve(*EVERYTHING)
    node.maps.put_many("lb4_backend", [(struct.pack("=I", SMALL.backends), bytes(11) + b"\1")])
    assert any(f"backend {SMALL.backends} " in line for line in found(node)), found(node)


def test_paths_are_compared_to_the_last_one():
    """In pieces; the last one is shorter than the others."""
    node = Node(MemoryMaps(dataclasses.replace(SMALL, backends=5000)))
    node.serve(*EVERYTHING)
    assert found(node) == []
    for name in ("lb4_path", "lb6_path"):
        size = node.maps.specs[name].value_size
        with node.maps.window(name, size - 8, 8) as view:
            view[:] = b"\1" * 8
        assert any(name in line for line in found(node))


class OneByOne(MemoryMaps):
    """Maps that are read entry by entry, as they are in that moment."""

    def batches(self, map_name):
        read: set[bytes] = set()
        while left := [item for item in self.items(map_name) if item[0] not in read]:
            read.add(left[0][0])
            yield *left[0], 1


STICKY = service("10.96.0.7:80", backend("10.244.1.17:80"), session_affinity=True, source_ranges=RANGES, flags=0xD0)
OTHERS = [
    service("10.96.0.1:80", backend("10.244.1.12:80"), backend("10.244.1.15:80"), no_local_backend=True, flags=0x40),
    EVERYTHING[1],
    replace(EVERYTHING[2], no_local_backend=True),
    service("10.96.0.2:80", backend("10.244.1.9:80"), session_affinity=True),
    service("[fd00::1]:443", backend("[fd00:1::2]:8443"), source_ranges=(CIDR.parse("::/0"),), flags=0xC0),
]


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (EVERYTHING, OTHERS),
        (EVERYTHING, [*EVERYTHING, STICKY]),
        ([*EVERYTHING, STICKY], EVERYTHING),
        (EVERYTHING, []),
        ([], EVERYTHING),
    ],
)
def test_a_plan_at_any_moment_of_the_walk_is_no_drift(before, after, monkeypatch):
    monkeypatch.setattr(drift_module, "SLICE", 1)
    moment, left = 0, True
    while left:
        node = Node(OneByOne(SMALL))
        node.serve(*before)
        left = False
        for number, line in enumerate(drift(node.maps, node.shadow)):
            assert line is None, moment
            if number == moment:
                left = True
                node.serve(*after)
        moment += 1
    assert moment > 1


def test_a_frontend_that_came_and_went_during_the_walk_is_no_stranger():
    node = Node(OneByOne(SMALL))
    node.serve(*EVERYTHING)
    node.maps.put_many("lb4_service", [(b"\1" + slot(0)[1:], bytes(12))])
    lines = []
    for number, line in enumerate(drift(node.maps, node.shadow)):
        lines.append(line)
        if number == 10:  # every slot was read
            node.maps.delete_many("lb4_service", [b"\1" + slot(0)[1:]])
    assert set(lines) == {None}


def test_a_look_at_what_is_right_asks_for_nothing_twice():
    node = Node()
    node.serve(*EVERYTHING)
    asked: list[str] = []
    get = node.maps.get
    node.maps.get = lambda name, key: asked.append(name) or get(name, key)
    assert found(node) == []
    assert set(asked) == {"lb4_reverse_nat", "lb6_reverse_nat"}


async def test_other_tasks_run_between_two_slices():
    turns = 0

    async def count() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    task = asyncio.create_task(count())
    await asyncio.sleep(0)
    one, two = Difference("stale", "one"), Difference("stale", "two")
    assert await collect(iter([None, one, None, None, two]), asyncio.Lock()) == [one, two]
    task.cancel()
    assert turns >= 3


@pytest.mark.parametrize("name", ["lb4_path", "lb6_path"])
def test_paths_are_compared_from_the_first_byte_on(name):
    node = Node()
    node.serve(*EVERYTHING)
    node.maps.store(name, [(0, b"\1" + bytes(7))])
    assert f"differs: {name} is not what was written" in found(node)


def test_paths_of_what_could_not_be_written_are_not_looked_at():
    """Its ids are beyond the maps, or it failed before its record was written; that is reported elsewhere."""
    node = Node()
    node.serve(service("10.96.0.1:80", backend("10.244.1.1:80")))
    missing = [replace(backend("10.244.1.2:80"), id=ident) for ident in (7, SMALL.backends, SMALL.backends + 5)]
    state = replace(node.state, services=(service("10.96.0.2:80", *missing),))
    assert [line for line in path_drift(node.shadow, state, paths) if line] == []
