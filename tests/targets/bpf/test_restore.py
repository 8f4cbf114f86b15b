"""What a start finds in the maps."""

import dataclasses
import struct

import pytest
from hypothesis import HealthCheck, given, settings

from lbagent.maps.consistency import check
from lbagent.maps.dump import dump
from lbagent.maps.memory_maps import MemoryMaps
from lbagent.model.address import L3n4Addr
from lbagent.model.family import Family
from lbagent.model.ids import IdAllocator, IdsExhausted
from lbagent.model.service import CIDR, Algorithm
from lbagent.targets.bpf import restore as restore_module
from lbagent.targets.bpf.apply import apply
from lbagent.targets.bpf.plan import plan
from lbagent.targets.bpf.restore import id_assigner, nothing_restored, restore
from tests.targets.bpf.plans import MAINTENANCE, QUARANTINED, SMALL, SNAT, Node, backend, paths, service, states

EVERYTHING = [
    service("10.96.0.1:80", backend("10.244.1.11:80"), backend("10.244.1.12:80"), session_affinity=True, flags=0x50),
    service(
        "10.96.0.1:80/UDP", backend("10.244.1.12:80/UDP"), unselectable=(backend("10.244.1.13:80/UDP", QUARANTINED),)
    ),
    service("10.96.0.2:80/TCP/i", backend("10.244.1.12:80"), algorithm=Algorithm.MAGLEV),
    service("10.96.0.2:80", slotless=(backend("10.244.1.9:80", MAINTENANCE),), no_local_backend=True),
    service(
        "[fd00::1]:443",
        backend("[fd00:1::1]:8443"),
        source_ranges=(CIDR.parse("fd00::/8"),),
        session_affinity=True,
        flags=0xD0,
    ),
]


def test_empty_maps_give_an_empty_shadow():
    found = restore(Node().maps)
    assert (found.service_ids, found.backend_ids) == ([], [])
    assert found.shadow.frontends == {}


def test_maps_that_are_new_need_no_look():
    """What is known of them without one is what a look would find, and the first plan writes the same."""
    looked, known = restore(MemoryMaps(SMALL)), nothing_restored(SMALL)
    assert (known.service_ids, known.backend_ids) == (looked.service_ids, looked.backend_ids)
    assert (known.shadow.needs_full_sync, known.shadow.prune) == (looked.shadow.needs_full_sync, looked.shadow.prune)
    wanted = Node().want(*EVERYTHING)
    plans = [plan(wanted, each.shadow, paths, SNAT) for each in (looked, known)]
    assert plans[0].steps == plans[1].steps
    assert plans[1].full_sync
    maps = MemoryMaps(SMALL)
    assert apply(plans[1], maps, known.shadow).complete
    assert check(maps) == []
    assert known.shadow.pressure() == restore(maps).shadow.pressure()


def test_ids_are_those_in_the_maps():
    node = Node()
    node.serve(*EVERYTHING)
    found = restore(node.maps)
    assert dict(found.service_ids) == {
        L3n4Addr.parse("10.96.0.1:80"): 1,
        L3n4Addr.parse("10.96.0.1:80/UDP"): 2,
        L3n4Addr.parse("10.96.0.2:80/i"): 3,
        L3n4Addr.parse("10.96.0.2:80"): 4,
        L3n4Addr.parse("[fd00::1]:443"): 5,
    }
    assert dict(found.backend_ids) == {svc.address: svc.id for svc in node.state.backends.values()}


def test_a_restart_with_nothing_to_change_writes_nothing():
    node = Node()
    node.serve(*EVERYTHING)
    before, pressure, users = dump(node.maps), node.shadow.pressure(), dict(node.shadow.filter_refs)
    node.restart()
    assert (node.shadow.pressure(), node.shadow.filter_refs) == (pressure, users)
    node.want(*EVERYTHING)
    done = node.sync()
    assert (done.complete, done.written) == (True, {})
    assert dump(node.maps) == before
    assert not node.shadow.needs_full_sync
    assert node.sync().entries == 0


def test_what_was_deleted_meanwhile_is_pruned():
    node = Node()
    node.serve(*EVERYTHING)
    node.restart()
    node.want(EVERYTHING[1])
    node.sync()
    assert [line for line in dump(node.maps) if line.startswith("REV")] == ["REV: ID=2 ADDR=10.96.0.1:80"]
    assert check(node.maps, settled=True) == []
    node.serve()
    assert dump(node.maps) == []


def test_entries_of_nobody_are_pruned():
    node = Node()
    node.serve(EVERYTHING[0])
    maps, ident = node.maps, struct.pack("=I", 77)
    maps.put_many("lb4_reverse_nat", [(ident, bytes((10, 96, 0, 9, 0, 80, 6, 0)))])
    maps.put_many("lb_affinity_match", [(ident + b"\0\x4d\0\0", b"\1")])
    maps.put_many("lb4_source_range", [(struct.pack("=I", 40) + b"\0\x4e\0\0" + bytes((10, 0, 0, 0)), b"\1")])
    maps.set_maglev("lb6_maglev", {79: bytes(4 * 251)})
    maps.put_many("lb6_backend", [(struct.pack("=I", 80), b"\xfd" * 16 + b"\0\x50\6\0" + bytes(4))])
    maps.store(
        "lb4_path", [(90 * 16, bytes((10, 9, 9, 9)) + bytes(4)), (90 * 16 + 8, bytes((0, 80, 4, 1, 0, 0, 0, 0)))]
    )
    maps.store("lb_filter", [(4096, b"\xff" * 8)])
    node.restart()
    node.want(EVERYTHING[0])
    assert node.sync().complete
    assert check(maps, settled=True) == []
    fresh = Node()
    fresh.serve(EVERYTHING[0])
    assert dump(maps) == dump(fresh.maps)
    with maps.window("lb4_path", 90 * 16, 16) as view:
        assert bytes(view)[8:] == bytes((0, 80, 5, 0, 0, 0, 0, 0)), "the generation survives"
    with maps.window("lb_filter", 0, 384 * 1024) as ours, fresh.maps.window("lb_filter", 0, 384 * 1024) as theirs:
        assert bytes(ours) == bytes(theirs)


def test_an_orphan_that_went_may_come_back_as_an_entry_of_a_service():
    node = Node()
    first = service("10.96.0.1:80", backend("10.244.1.1:80"))
    node.serve(first)
    stray = struct.pack("=I", 1) + b"\0\2\0\0"  # backend 1 as one of service 2
    node.maps.put_many("lb_affinity_match", [(stray, b"\1")])
    node.restart()
    node.serve(first)
    assert node.maps.get("lb_affinity_match", stray) is None
    both = first, service("10.96.0.2:80", backend("10.244.1.1:80"), session_affinity=True)
    for _ in range(2):
        node.serve(*both)
        assert node.maps.get("lb_affinity_match", stray) is not None
        assert check(node.maps, settled=True) == []


def test_two_frontends_with_one_id_are_told_apart():
    """Only another program can write such maps; one of the two gets another id, both are served."""
    node = Node()
    node.serve(*EVERYTHING[:2])
    for key, value in node.maps.items("lb4_service"):
        node.maps.put_many("lb4_service", [(key, value[:6] + b"\0\1" + value[8:])])
    node.restart()
    node.want(*EVERYTHING[:2])
    assert node.sync().complete
    assert check(node.maps, settled=True) == []
    assert min(svc.id for svc in node.state.services) == 1


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(states(), states())
def test_a_start_into_another_state_ends_where_a_fresh_one_does(before, after):
    node = Node()
    node.serve(*before)
    ids = {svc.frontend: svc.id for svc in node.state.services}
    node.restart()
    node.want(*after)
    assert node.sync().complete
    assert check(node.maps, settled=True) == []
    for svc in node.state.services:
        assert svc.id == ids.get(svc.frontend, svc.id)
    assert node.sync().entries == 0


def test_a_backend_row_beyond_the_limit_is_no_backend():
    """Maps are made with the limit of their day; an id that no path record can have is left where it is."""
    node = Node()
    node.serve(*EVERYTHING)
    before = [line for line in dump(node.maps) if not line.startswith("BE")]
    value = node.maps.items("lb4_backend")[0][1]
    node.maps.put_many("lb4_backend", [((SMALL.backends).to_bytes(4, "little"), value)])
    found = node.restart()
    assert max(ident for _, ident in found.backend_ids) < SMALL.backends
    node.want(*EVERYTHING)
    assert node.sync().complete
    assert [line for line in dump(node.maps) if not line.startswith("BE")] == before


def test_the_id_of_a_frontend_is_its_masters():
    """Slots are written before their master: where an agent died between, they have the id to come."""
    node = Node()
    node.serve(service("10.96.0.1:80", backend("10.244.1.11:80"), backend("10.244.1.12:80")))
    for key, value in node.maps.items("lb4_service"):
        if key[6:8] == (1).to_bytes(2, "little"):
            node.maps.put_many("lb4_service", [(key, value[:6] + (77).to_bytes(2, "big") + value[8:])])
    assert restore(node.maps).service_ids == [(L3n4Addr.parse("10.96.0.1:80"), 1)]
    (master,) = [key for key, _ in node.maps.items("lb4_service") if key[6:8] == bytes(2)]
    node.maps.delete_many("lb4_service", [master])
    assert restore(node.maps).service_ids == [(L3n4Addr.parse("10.96.0.1:80"), 77)], (
        "that of any slot where there is none"
    )


def test_a_second_row_of_a_frontend_under_another_id_goes():
    node = Node()
    node.serve(EVERYTHING[0])
    ((own, row),) = node.maps.items("lb4_reverse_nat")
    node.maps.put_many("lb4_reverse_nat", [(struct.pack("=I", 78), row), (struct.pack("=I", 79), row)])
    node.restart()
    node.want(EVERYTHING[0])
    assert dict(node.sync().written) == {"lb4_reverse_nat": 2}
    assert node.maps.items("lb4_reverse_nat") == [(own, row)]


def test_a_slot_without_a_master_goes_and_nothing_else():
    node = Node()
    node.serve(EVERYTHING[0])
    stray = bytes((10, 96, 9, 9, 0, 80, 1, 0, 6, 0, 0, 0)), (1).to_bytes(4, "little") + bytes((0, 0, 0, 77, 0, 0, 0, 0))
    node.maps.put_many("lb4_service", [stray])
    node.restart()
    node.want(EVERYTHING[0])
    assert dict(node.sync().written) == {"lb4_service": 1}
    assert node.maps.get("lb4_service", stray[0]) is None


def test_what_belongs_to_id_0_goes():
    """Wildcard rows have it, and nothing but themselves."""
    node = Node()
    wildcard = service("10.96.0.1:0/NONE", wildcard=True)
    node.serve(EVERYTHING[0], wildcard)
    node.maps.put_many("lb_affinity_match", [(struct.pack("=I", 1) + bytes(4), b"\1")])
    node.maps.put_many("lb4_source_range", [(struct.pack("=I", 40) + bytes(4) + bytes((10, 0, 0, 0)), b"\1")])
    node.maps.set_maglev("lb4_maglev", {0: bytes(4 * 251)})
    node.restart()
    node.want(EVERYTHING[0], wildcard)
    assert dict(node.sync().written) == {"lb_affinity_match": 1, "lb4_source_range": 1, "lb4_maglev": 1}
    assert node.maps.maglev("lb4_maglev") == {}
    assert node.maps.items("lb4_source_range") == []
    assert len(node.maps.items("lb_affinity_match")) == 2


def test_records_beyond_the_first_piece_are_read():
    node = Node(MemoryMaps(dataclasses.replace(SMALL, backends=1 << 13)))
    node.book.backend_ids = IdAllocator(first=4095, limit=1 << 13)
    node.serve(service("10.96.0.1:80", *[backend(f"10.244.1.{n}:80") for n in range(1, 5)]))
    used = list(node.shadow.paths[Family.IPV4].used())
    assert used == [4095, 4096, 4097, 4098]
    found = restore(node.maps).shadow
    assert found.paths[Family.IPV4].memory[:] == node.shadow.paths[Family.IPV4].memory[:]
    assert list(found.paths[Family.IPV6].used()) == []


@pytest.mark.parametrize(("size", "advice"), [(5, "; raise --max-backends"), (8, ""), (9, "")])
def test_ids_begin_at_1_and_end_with_the_maps(size, advice, monkeypatch):
    monkeypatch.setattr(restore_module, "BACKEND_ID_LIMIT", 8)
    monkeypatch.setattr(restore_module, "SERVICE_ID_LIMIT", 3)
    ids = id_assigner(restore(Node().maps), size)
    limit = min(size, 8)
    assert [ids.backend_ids.allocate(n) for n in range(limit - 1)] == list(range(1, limit))
    with pytest.raises(IdsExhausted, match=f"none is left for x{advice}; what"):
        ids.backend_ids.allocate("x")
    assert [ids.service_ids.allocate(n) for n in range(2)] == [1, 2]
    with pytest.raises(IdsExhausted):
        ids.service_ids.allocate("x")
