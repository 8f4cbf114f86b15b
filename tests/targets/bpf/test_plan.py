"""What a plan writes, and what it does not."""

import pytest
from msgspec.structs import replace

from lbagent.maps import backend_codec, prefilter
from lbagent.maps.consistency import check
from lbagent.maps.layout import LB_COUNTER
from lbagent.maps.lbmaps import backend_counter, service_counter
from lbagent.model.address import L3n4Addr
from lbagent.model.path_info import PathInfo
from lbagent.model.service import CIDR, Algorithm
from lbagent.targets.bpf.apply import apply
from lbagent.targets.bpf.plan import differences, plan, plan_paths
from lbagent.targets.bpf.steps import Phase
from lbagent.testing.faulty_maps import FaultyMaps
from tests.targets.bpf.plans import ACTIVE, MAINTENANCE, QUARANTINED, SNAT, TERMINATING, Node, backend, paths, service

ONE, TWO, THREE = (backend(f"10.244.1.{n}:8080") for n in (11, 12, 13))


def written(done) -> dict[str, int]:
    return dict(done.written)


def path(node: Node, text: str) -> backend_codec.PathRecord:
    """Return the record of a backend, as the map has it."""
    address = L3n4Addr.parse(text)
    digit, size = ("4", 16) if len(address.address) == 4 else ("6", 64)
    ident = node.book.backend_ids.get(address)
    with node.maps.window(f"lb{digit}_path", ident * size, size) as view:
        return backend_codec.path_of(bytes(view))


def is_set(node: Node, bit: int) -> bool:
    with node.maps.window("lb_filter", bit >> 3, 1) as view:
        return bool(view[0] >> (bit & 7) & 1)


def test_the_same_state_again_writes_nothing():
    node = Node()
    node.serve(service("10.96.0.1:80", ONE, TWO), service("10.96.0.2:80", TWO))
    assert plan(node.state, node.shadow, paths, SNAT).entries == 0
    node.want(*node.state.services)
    assert node.sync().entries == 0


def test_equal_services_made_anew_write_nothing():
    node = Node()
    node.serve(service("10.96.0.1:80", ONE, TWO, algorithm=Algorithm.MAGLEV, session_affinity=True))
    node.serve(service("10.96.0.1:80", ONE, TWO, algorithm=Algorithm.MAGLEV, session_affinity=True))
    again = replace(service("10.96.0.1:80", ONE, TWO, algorithm=Algorithm.MAGLEV, session_affinity=True))
    assert written(node.serve(again)) == {}


def test_a_new_backend_costs_its_own_entries_and_the_master():
    node = Node()
    node.serve(service("10.96.0.1:80", ONE, TWO), service("10.96.0.2:80", ONE))
    done = node.serve(service("10.96.0.1:80", ONE, TWO, THREE), node.state.services[1])
    assert written(done) == {"lb4_backend": 1, "lb4_path": 2, "lb4_service": 2, "lb_filter": 2, "lb_metrics": 1}


def test_a_backend_leaves_with_its_last_service():
    node = Node()
    node.serve(service("10.96.0.1:80", ONE, TWO), service("10.96.0.2:80", TWO))
    keep = service("10.96.0.2:80", TWO)
    node.serve(service("10.96.0.1:80", ONE), keep)
    assert len(node.maps.items("lb4_backend")) == 2
    node.serve(service("10.96.0.1:80", ONE))
    assert [backend_codec.backend_of(row)[0] for _, row in node.maps.items("lb4_backend")] == [ONE.address]


def test_a_backend_that_moves_to_another_service_is_never_gone():
    node = Node()
    node.serve(service("10.96.0.1:80", ONE), service("10.96.0.2:80", TWO))
    before = path(node, "10.244.1.11:8080")
    seen = []
    real = node.maps
    node.maps = FaultyMaps(real, after=lambda *_: seen.append(len(real.items("lb4_backend"))))
    node.serve(service("10.96.0.1:80", TWO), service("10.96.0.2:80", ONE))
    node.maps = real
    assert set(seen) == {2}
    assert path(node, "10.244.1.11:8080") == before


def test_everything_of_a_service_goes_with_it():
    node = Node()
    ranges = (CIDR.parse("10.0.0.0/8"),)
    full = service(
        "10.96.0.1:80", ONE, TWO, session_affinity=True, source_ranges=ranges, algorithm=Algorithm.MAGLEV, flags=0xD0
    )
    six = service("[fd00::1]:80", backend("[fd00:1::1]:80"), source_ranges=(CIDR.parse("fd00::/8"),))
    node.serve(full, six)
    assert check(node.maps, settled=True) == []
    node.serve()
    for name in node.maps.specs:
        assert node.maps.items(name) == [], name
    assert node.maps.maglev("lb4_maglev") == {}
    assert {used for used, _ in node.shadow.pressure().values()} == {0}
    assert not node.shadow.refs
    assert not node.shadow.filter_refs
    assert set(node.shadow.set_bits()) == {bit for address in SNAT for bit in prefilter.snat_bits(address)}


def test_fewer_backends_leave_no_stale_slot():
    node = Node()
    node.serve(service("10.96.0.1:80", ONE, TWO, THREE))
    node.serve(service("10.96.0.1:80", THREE))
    assert len(node.maps.items("lb4_service")) == 2
    assert check(node.maps, settled=True) == []


def test_who_stops_being_selectable_enters_the_selectable_slots_only_after_the_master():
    """COUNT 2 -> 1 with a terminating backend: as long as the master says 2, slot 2 must be one that takes flows."""
    node = Node()
    old_guest = backend("10.244.1.20:8080", TERMINATING)
    node.serve(service("10.96.0.1:80", ONE, THREE, unselectable=(old_guest,)))
    leaving = backend("10.244.1.11:8080", TERMINATING)
    node.want(service("10.96.0.1:80", THREE, unselectable=(leaving, old_guest)))
    planned = plan(node.state, node.shadow, paths, SNAT)
    order = [(step.phase, step.map) for step in planned.steps if step.map == "lb4_service"]
    assert order == [
        (Phase.SLOT_IN, "lb4_service"),
        (Phase.MASTER_IN, "lb4_service"),
        (Phase.SLOT_TAIL, "lb4_service"),
    ]
    assert apply(planned, node.maps, node.shadow).complete
    assert check(node.maps, settled=True) == []


@pytest.mark.parametrize(
    ("state", "group", "selectable"),
    [
        (ACTIVE, "selectable", True),
        (TERMINATING, "selectable", True),  # no other backend is left
        (TERMINATING, "unselectable", False),
        (QUARANTINED, "unselectable", False),
        (QUARANTINED, "slotless", False),
        (MAINTENANCE, "slotless", False),
        (ACTIVE, "slotless", True),  # only filtered: its flows live on, and so may a SYN of one
    ],
)
def test_the_path_says_whether_a_new_flow_may_come(state, group, selectable):
    node = Node()
    one = backend("10.244.1.12:8080", state)
    node.serve(service("10.96.0.1:80", **{group: (one,)}) if group != "selectable" else service("10.96.0.1:80", one))
    found = path(node, "10.244.1.12:8080")
    assert bool(found.flags & 2) is selectable
    assert found.live
    assert backend_codec.backend_of(node.maps.items("lb4_backend")[0][1])[1] == state


def test_a_shared_backend_has_its_most_alive_state():
    node = Node()
    gone, alive = backend("10.244.1.12:8080", TERMINATING), backend("10.244.1.12:8080")
    node.serve(service("10.96.0.1:80", unselectable=(gone,)), service("10.96.0.2:80", alive))
    assert backend_codec.backend_of(node.maps.items("lb4_backend")[0][1])[1] == ACTIVE
    assert node.shadow.states() == {ACTIVE: 1}
    node.serve(service("10.96.0.1:80", unselectable=(gone,)))
    assert backend_codec.backend_of(node.maps.items("lb4_backend")[0][1])[1] == TERMINATING
    assert node.shadow.states() == {TERMINATING: 1}
    assert not path(node, "10.244.1.12:8080").flags & 2


def test_the_generation_survives_a_backend_and_grows_for_the_next_of_its_id():
    node = Node()
    generations = []
    for _ in range(3):
        node.serve(service("10.96.0.1:80", TWO))
        ident = node.book.backend_ids.get(TWO.address)
        generations.append(path(node, "10.244.1.12:8080").gen)
        node.serve(service("10.96.0.1:80"))
        with node.maps.window("lb4_path", ident * 16, 16) as view:
            assert not backend_codec.path_of(bytes(view)).live
        node.restart()  # a start forgets which ids were given: the same one is given again
        node.want(service("10.96.0.1:80"))
        node.sync()
    assert ident == 1
    assert generations == [0, 1, 2]


def test_a_path_record_that_lives_under_another_address_is_ended_first():
    node = Node()
    node.serve(service("10.96.0.1:80", TWO))
    node.maps.delete_many("lb4_backend", [key for key, _ in node.maps.items("lb4_backend")])
    node.maps.delete_many("lb4_service", [key for key, _ in node.maps.items("lb4_service")])
    node.restart()  # the record is all that is left of id 1
    node.serve(service("10.96.0.1:80", THREE))
    assert node.book.backend_ids.get(THREE.address) == 1
    found = path(node, "10.244.1.13:8080")
    assert (found.address, found.gen, found.live) == (bytes((10, 244, 1, 13)), 1, True)


def test_filter_bits_follow_frontends_node_addresses_and_local_backends():
    node = Node()
    vip, six = bytes((10, 96, 0, 1)), bytes.fromhex("fd00") + bytes(13) + b"\1"
    local, remote = bytes((10, 244, 1, 11)), bytes((10, 244, 1, 12))
    node.serve(service("10.96.0.1:80", ONE, TWO), service("10.96.0.1:443", TWO), service("[fd00::1]:80"))
    assert is_set(node, prefilter.vip_bit(vip))
    assert is_set(node, prefilter.vip_bit(six))
    assert is_set(node, prefilter.source_bit(local))
    assert not is_set(node, prefilter.source_bit(remote))
    assert all(is_set(node, bit) for address in SNAT for bit in prefilter.snat_bits(address))
    node.serve(service("10.96.0.1:443", TWO))
    assert is_set(node, prefilter.vip_bit(vip)), "another frontend has the address"
    assert not is_set(node, prefilter.vip_bit(six))
    assert not is_set(node, prefilter.source_bit(local))


def test_pods_of_this_node_are_in_the_prefilter_as_destinations():
    node = Node()
    pod, far, web = (bytes((10, 244, 1, last)) for last in (11, 12, 13))
    dns = service("10.96.0.1:53/UDP", backend("10.244.1.11:53/UDP"), backend("10.244.1.12:53/UDP"))
    node.serve(dns, service("10.96.0.1:80", backend("10.244.1.13:80"), backend("10.244.1.11:80")))
    assert is_set(node, prefilter.direct_bit(pod))
    assert not is_set(node, prefilter.vip_bit(pod)), "then it would be an address that the node translates to"
    assert not is_set(node, prefilter.direct_bit(far))
    assert is_set(node, prefilter.direct_bit(web))
    assert [is_set(node, prefilter.datagram_bit(address)) for address in (pod, far, web)] == [True, False, False]
    assert check(node.maps, settled=True) == []
    node.restart()
    node.serve(service("10.96.0.1:80", backend("10.244.1.13:80"), backend("10.244.1.11:80")))
    assert not is_set(node, prefilter.datagram_bit(pod))
    assert is_set(node, prefilter.source_bit(pod)), "its backend of TCP lives on"
    assert is_set(node, prefilter.direct_bit(pod))


def test_a_process_of_the_node_is_not_asked_for_directly():
    node = Node()
    node.want(service("10.96.0.1:53/UDP", backend("10.244.1.11:53/UDP")))
    here = PathInfo(local=True, host=True)
    assert apply(plan(node.state, node.shadow, lambda _: here, SNAT), node.maps, node.shadow).complete
    assert is_set(node, prefilter.source_bit(bytes((10, 244, 1, 11))))
    assert not is_set(node, prefilter.direct_bit(bytes((10, 244, 1, 11))))


def test_addresses_that_are_gone_stay_in_the_prefilter_for_as_long_as_their_flows_may_live():
    node, vip, local = Node(), bytes((10, 96, 0, 1)), bytes((10, 244, 1, 11))
    bits = prefilter.vip_bit(vip), prefilter.source_bit(local)

    def at(now: float, *services) -> list[bool]:
        node.want(*services)
        assert apply(plan(node.state, node.shadow, paths, SNAT), node.maps, node.shadow, now, linger_s=100).complete
        return [is_set(node, bit) for bit in bits]

    assert at(1000, service("10.96.0.1:80", ONE)) == [True, True]
    assert at(2000) == [True, True]
    assert at(2099) == [True, True]
    assert at(2101) == [False, False]
    at(3000, service("10.96.0.1:80", ONE))
    at(3001)
    at(3050, service("10.96.0.1:80", ONE))
    assert at(3200, service("10.96.0.1:80", ONE)) == [True, True], "in use again"
    at(4000)
    node.restart()
    assert at(5000) == [True, True], "an agent that starts does not know since when"
    assert at(5101) == [False, False]


def test_the_node_s_own_addresses_change_alone():
    node = Node()
    node.serve(service("10.96.0.1:80", ONE))
    other = bytes((192, 168, 0, 2))
    done = apply(plan(node.state, node.shadow, paths, [other]), node.maps, node.shadow)
    assert all(is_set(node, bit) for bit in prefilter.snat_bits(other))
    assert not any(is_set(node, bit) for bit in prefilter.snat_bits(SNAT[0]))
    assert set(done.written) == {"lb_filter"}
    assert apply(plan(node.state, node.shadow, paths), node.maps, node.shadow).entries == 0, "None leaves them"
    assert all(is_set(node, bit) for bit in prefilter.snat_bits(other))


def test_a_new_way_to_a_backend_is_one_write_of_its_record():
    node = Node()
    node.serve(service("10.96.0.1:80", TWO, backend("10.244.1.14:8080")))
    ways = {bytes((10, 244, 1, 12)): PathInfo(SNAT[0], 77, 1400)}

    def moved(found):
        return ways.get(found.address.address) or paths(found)

    planned = plan_paths(node.shadow, node.state.backends.values(), moved)
    assert planned.entries == 1
    done = apply(planned, node.maps, node.shadow)
    assert (done.complete, written(done)) == (True, {"lb4_path": 1})
    assert path(node, "10.244.1.12:8080").nexthop == 77
    assert path(node, "10.244.1.12:8080").live
    assert plan_paths(node.shadow, node.state.backends.values(), moved).entries == 0
    assert apply(plan(node.state, node.shadow, moved, SNAT), node.maps, node.shadow).entries == 0


def test_a_backend_that_turns_out_to_be_local_gets_its_filter_bit_and_keeps_it_while_it_lives():
    node = Node()
    node.serve(service("10.96.0.1:80", TWO))
    address = bytes((10, 244, 1, 12))
    backends = list(node.state.backends.values())
    apply(plan_paths(node.shadow, backends, lambda _: PathInfo(local=True)), node.maps, node.shadow)
    assert is_set(node, prefilter.source_bit(address))
    assert path(node, "10.244.1.12:8080").flags & 4
    apply(plan_paths(node.shadow, backends, paths), node.maps, node.shadow)
    assert not path(node, "10.244.1.12:8080").flags & 4
    assert is_set(node, prefilter.source_bit(address))  # flows that were made while it was local live on
    assert check(node.maps, settled=True) == []
    node.serve()
    assert not is_set(node, prefilter.source_bit(address))


def test_paths_of_backends_that_are_gone_are_not_written():
    node = Node()
    node.serve(service("10.96.0.1:80", TWO))
    former = list(node.state.backends.values())
    node.serve(service("10.96.0.1:80"))
    assert plan_paths(node.shadow, former, lambda _: PathInfo(local=True)).entries == 0


def test_only_what_is_another_object_is_looked_at():
    services = [service(f"10.96.0.{n}:80") for n in range(1, 6)]
    assert differences(services, list(services)) == ({}, [])
    changed = [*services[:2], service("10.96.0.3:80", ONE), *services[3:]]
    assert differences(services, changed) == ({services[2].frontend: changed[2]}, [])
    assert differences(services, services[1:]) == ({}, [services[0].frontend])
    assert differences(services, [*services, ONE_MORE]) == ({ONE_MORE.frontend: ONE_MORE}, [])
    assert differences(services, services[::-1]) == ({}, [])


ONE_MORE = service("10.96.0.9:80")


def test_a_plan_changes_nothing_by_itself():
    node = Node()
    node.serve(service("10.96.0.1:80", ONE))
    node.want(service("10.96.0.2:80", TWO))
    first = plan(node.state, node.shadow, paths, SNAT)
    second = plan(node.state, node.shadow, paths, SNAT)
    assert first.steps == second.steps
    assert first.entries > 0


def test_who_gets_an_id_anew_is_counted_from_nothing():
    node = Node()
    node.serve(service("10.96.0.1:80", ONE), service("10.96.0.2:80"))
    indexes = [service_counter(1), service_counter(2), backend_counter(1)]
    for index in indexes:
        with node.maps.window("lb_metrics", 16 * index, 16) as cell:
            cell[:] = LB_COUNTER.pack(3, 300)
    node.serve(service("10.96.0.1:80", ONE, TWO), service("10.96.0.2:80", TWO))
    assert node.maps.counters(indexes) == [(3, 300)] * 3, "what stays continues to count"
    node.serve()
    node.restart()
    node.serve(service("10.96.0.9:80", THREE))
    assert node.maps.counters(indexes) == [(0, 0), (3, 300), (0, 0)]


def test_a_service_without_an_id_is_a_mistake_of_ours():
    node = Node()
    with pytest.raises(ValueError, match="no id"):
        plan(replace(node.state, services=(service("10.96.0.1:80"),)), node.shadow, paths)
