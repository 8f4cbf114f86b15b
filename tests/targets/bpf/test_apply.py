"""What happens when writing fails: the service that fails waits, all other services are served."""

import dataclasses
import gc

import pytest
from msgspec import structs

from lbagent.errors import KernelError, MapFull
from lbagent.maps import backend_codec, prefilter
from lbagent.maps.consistency import check
from lbagent.maps.dump import dump
from lbagent.maps.layout import U32, PathFlag
from lbagent.maps.memory_maps import MemoryMaps
from lbagent.maps.specs import Sizes
from lbagent.model.family import Family
from lbagent.model.flags import ServiceFlags
from lbagent.model.ids import IdAllocator
from lbagent.model.path_info import PathInfo
from lbagent.model.service import CIDR, Algorithm
from lbagent.targets.bpf import capacity, plan
from lbagent.targets.bpf.apply import apply
from lbagent.targets.bpf.drift import drift
from lbagent.targets.bpf.steps import NO_OWNER, Phase, Plan, Steps
from lbagent.testing.faulty_maps import FaultyMaps, fail_at
from tests.targets.bpf import plans
from tests.targets.bpf.plans import SMALL, Node, backend, backends_of, service, wanted_of


def sized(**change) -> Node:
    return Node(MemoryMaps(Sizes(**{**{name: getattr(SMALL, name) for name in Sizes.__dataclass_fields__}, **change})))


def some(first: int, count: int):
    return [backend(f"10.244.{n >> 8}.{n & 255}:80") for n in range(first, first + count)]


def test_a_service_that_does_not_fit_fails_alone():
    node = sized(services=20)
    small, big, other = (
        service("10.96.0.1:80", *some(1, 3)),
        service("10.96.0.2:80", *some(1, 30)),
        service("10.96.0.3:80"),
    )
    node.want(small, big, other)
    done = node.sync()
    assert list(done.failed) == [big.frontend]
    assert not done.complete
    error = done.failed[big.frontend]
    assert isinstance(error, MapFull)
    for part in ("lb4_service", "4 of 20", "31 more needed", "--max-service-slots", "keeps serving"):
        assert part in str(error)
    assert check(node.maps) == []
    assert backends_of(node.maps, small.frontend) == wanted_of(small)
    assert backends_of(node.maps, big.frontend) is None, "no packet finds a service that is not complete"


def test_a_service_that_grows_too_large_has_as_many_backends_as_fit():
    """4 and 6 of 20 entries are used: 10 of its 27 new backends fit."""
    node = sized(services=20)
    node.serve(service("10.96.0.1:80", *some(1, 3)), service("10.96.0.2:80", *some(1, 5)))
    grown, other = service("10.96.0.1:80", *some(1, 30)), service("10.96.0.2:80", *some(2, 5))
    node.want(grown, other)
    done = node.sync()
    assert list(done.failed) == [grown.frontend]
    assert check(node.maps) == []
    assert backends_of(node.maps, grown.frontend) == wanted_of(service("10.96.0.1:80", *some(1, 13)))
    assert backends_of(node.maps, other.frontend) == wanted_of(other)
    assert "10 of 20 entries used, 27 more needed" in str(done.failed[grown.frontend])
    assert "13 of its 30 backends; no new flow goes to 10.244.0.14:80/TCP" in str(done.failed[grown.frontend])
    assert grown.frontend in node.shadow.dirty


def test_it_is_made_good_when_there_is_room_again():
    node = sized(services=20)
    first, second = service("10.96.0.1:80", *some(1, 12)), service("10.96.0.2:80", *some(1, 12))
    node.want(first, second)
    assert list(node.sync().failed) == [second.frontend]
    assert list(node.sync().failed) == [second.frontend], "trying again does no harm"
    node.want(second)
    for _ in range(2):
        done = node.sync()
    assert done.complete
    assert backends_of(node.maps, second.frontend) == wanted_of(second)
    assert check(node.maps, settled=True) == []
    assert node.shadow.pressure()["lb4_service"] == (13, 20)


def test_a_full_backend_map_stops_only_those_that_need_the_new_ones():
    node = sized(backends=8)
    old, new, shared = (
        service("10.96.0.1:80", *some(1, 6)),
        service("10.96.0.2:80", *some(100, 4)),
        service("10.96.0.3:80", *some(2, 2)),
    )
    node.want(old, new, shared)
    assert list(node.sync().failed) == []
    assert node.book.errors[0][0] == new.frontend, "the ids ran out before the map"


def test_a_backend_id_beyond_the_maps_is_refused_and_says_what_to_raise():
    node = sized(backends=16)
    node.book.backend_ids = IdAllocator()  # it has nothing of the maps
    fits, too_many = service("10.96.0.1:80", *some(1, 10)), service("10.96.0.2:80", *some(50, 10))
    node.want(fits, too_many)
    done = node.sync()
    assert list(done.failed) == [too_many.frontend]
    assert "--max-backends" in str(done.failed[too_many.frontend])
    assert check(node.maps, settled=True) == []
    node.want(fits)
    assert node.sync().complete
    assert check(node.maps, settled=True) == []


def test_a_map_that_is_fuller_than_known_stops_who_does_not_fit_and_is_made_good():
    node = sized(services=20)
    strangers = [(bytes((1, 1, 1, n, 0, 0, 1, 0)) + bytes(4), bytes(12)) for n in range(9)]  # slots without a master
    node.maps.put_many("lb4_service", strangers)
    first, second = service("10.96.0.1:80", *some(1, 4)), service("10.96.0.2:80", *some(1, 12))
    node.want(first, second)
    done = node.sync()
    assert second.frontend in done.failed
    assert "lb4_service is full: 20 of 20" in str(done.failed[second.frontend])
    assert check(node.maps) == []
    node.maps.delete_many("lb4_service", [key for key, _ in strangers])
    assert node.sync().complete
    assert check(node.maps, settled=True) == []
    assert backends_of(node.maps, second.frontend) == wanted_of(second)


def test_a_full_range_map_stops_the_service_before_its_master_and_never_opens_it():
    node = sized(source_ranges=3)
    ranges = tuple(CIDR.parse(f"10.{n}.0.0/16") for n in range(5))
    guarded = service("10.96.0.1:80", *some(1, 1), source_ranges=ranges, flags=0xC0, check_source_range=True)
    node.want(guarded, service("10.96.0.2:80", *some(1, 1)))
    done = node.sync()
    assert list(done.failed) == [guarded.frontend]
    assert "--max-source-ranges" in str(done.failed[guarded.frontend])
    assert backends_of(node.maps, guarded.frontend) is None


@pytest.mark.parametrize("name", ["lb_affinity_match", "lb4_service"])
def test_a_map_is_full_with_its_last_entry(name):
    """Four backends take four entries (five slots): with room for as many they are served, with room for one less they are refused."""
    needed = {"lb_affinity_match": 4, "lb4_service": 5}[name]
    sticky = service("10.96.0.1:80", *some(1, 4), session_affinity=True)
    for room, refused in ((needed, False), (needed - 1, True)):
        node = Node()
        specs = dict(node.shadow.specs)
        specs[name] = dataclasses.replace(specs[name], max_entries=room)
        node.shadow.specs = specs
        node.want(sticky)
        done = node.sync()
        assert list(done.failed) == [sticky.frontend] * refused
        if refused:
            assert f"{name} is full: 0 of {room} entries used, {needed} more needed" in str(
                done.failed[sticky.frontend]
            )


def test_entries_that_stay_need_no_room():
    """A backend more is one entry more; matches that leave make room for others of the same frontend."""
    node = Node()
    node.serve(service("10.96.0.1:80", *some(1, 3), session_affinity=True))
    specs = dict(node.shadow.specs)
    specs["lb_affinity_match"] = dataclasses.replace(specs["lb_affinity_match"], max_entries=4)
    node.shadow.specs = specs
    node.serve(service("10.96.0.1:80", *some(2, 3), session_affinity=True))
    node.serve(service("10.96.0.1:80", *some(10, 3), session_affinity=True))
    assert check(node.maps, settled=True) == []


def test_a_frontend_has_no_more_backends_than_slot_numbers(monkeypatch):
    monkeypatch.setattr(capacity, "MAX_SLOTS", 3)
    node = Node()
    fits, too_many = service("10.96.0.1:80", *some(1, 3)), service("10.96.0.2:80", *some(1, 4))
    node.want(fits, too_many)
    done = node.sync()
    assert list(done.failed) == [too_many.frontend]
    assert "10.96.0.2:80/TCP has 4 backends, at most 3 fit" in str(done.failed[too_many.frontend])
    assert backends_of(node.maps, too_many.frontend) == wanted_of(service("10.96.0.2:80", *some(1, 3)))
    assert check(node.maps, settled=True) == []
    other = service("10.96.0.2:80", *some(2, 4))
    node.want(fits, other)
    assert list(node.sync().failed) == [other.frontend]
    assert backends_of(node.maps, other.frontend) == wanted_of(service("10.96.0.2:80", *some(2, 3)))
    node.serve(fits, service("10.96.0.2:80", *some(3, 3)))


@pytest.mark.parametrize(
    ("before", "after", "fits"),
    [
        (("10.0.0.0/8", "10.1.0.0/16", "10.2.0.0/16"), ("10.0.0.0/8", "10.1.0.0/16", "10.2.0.0/16"), True),
        (("10.0.0.0/8", "10.1.0.0/16", "10.2.0.0/16"), ("10.0.0.0/8",), True),
        (("10.0.0.0/8", "10.1.0.0/16"), ("10.0.0.0/8", "10.1.0.0/16", "0.0.0.0/0"), True),
        (("10.0.0.0/8", "10.1.0.0/16"), ("10.0.0.0/8", "10.2.0.0/16", "10.3.0.0/16"), True),
        (("10.0.0.0/8",), ("10.1.0.0/16", "10.2.0.0/16", "10.3.0.0/16", "10.4.0.0/16"), False),
    ],
)
def test_a_list_that_turns_round_takes_the_room_of_the_old_one(before, after, fits):
    """Three entries fit."""

    def guarded(ranges, *, deny):
        flags = ServiceFlags.ROUTABLE | ServiceFlags.SOURCE_RANGE | (ServiceFlags.SOURCE_RANGE_DENY if deny else 0)
        nets = tuple(map(CIDR.parse, ranges))
        return service("10.96.0.1:80", *some(1, 1), source_ranges=nets, source_ranges_deny=deny, flags=flags)

    node = sized(source_ranges=3)
    node.serve(guarded(before, deny=True))
    node.want(guarded(after, deny=False))
    done = node.sync()
    assert done.complete == fits, done
    assert check(node.maps, settled=True) == []


class RefusesFrontend(FaultyMaps):
    """Writes no slot of one address."""

    def __init__(self, inner, address):
        super().__init__(inner)
        self.address = address

    def put_many(self, map_name, items):
        for done, item in enumerate(items):
            if map_name == "lb4_service" and item[0].startswith(self.address):
                error = KernelError("update", 12, map_name)
                error.done = done
                raise error
            self.inner.put_many(map_name, [item])


def test_what_no_service_needs_goes_although_another_one_failed():
    """A backend that two services leave is taken away; where one of the two failed it stays, for its slots may name it."""
    for stopped, gone in (("10.96.0.3:80", True), ("10.96.0.2:80", False)):
        node = Node()
        shared, rest, third = some(1, 1), some(2, 1), some(3, 1)
        node.serve(
            service("10.96.0.1:80", *shared, *rest),
            service("10.96.0.2:80", *shared, *rest),
            service("10.96.0.3:80", *third),
        )
        wanted = {
            "10.96.0.1:80": service("10.96.0.1:80", *rest),
            "10.96.0.2:80": service("10.96.0.2:80", *rest),
            "10.96.0.3:80": service("10.96.0.3:80", *third, *rest),
        }
        ident = node.book.backend_ids.get(shared[0].address)
        node.want(*wanted.values())
        node.maps = RefusesFrontend(node.maps, wanted[stopped].frontend.address)
        done = node.sync()
        assert list(done.failed) == [wanted[stopped].frontend]
        assert (node.maps.get("lb4_backend", ident.to_bytes(4, "little")) is None) == gone, stopped


@pytest.mark.parametrize("number", range(60))
def test_a_failure_at_any_write_is_named_and_made_good(number):
    node, calm = Node(), Node()
    before = [
        service("10.96.0.1:80", *some(1, 3), algorithm=Algorithm.MAGLEV, session_affinity=True),
        service("10.96.0.2:80", *some(2, 3)),
    ]
    after = [
        service("10.96.0.1:80", *some(2, 3), algorithm=Algorithm.MAGLEV, session_affinity=True),
        service("10.96.0.3:80", *some(9, 2), source_ranges=(CIDR.parse("10.0.0.0/8"),), flags=0xC0),
    ]
    for one in (node, calm):
        one.serve(*before)
        one.want(*after)
    calm.sync()
    node.maps = FaultyMaps(node.maps, before=fail_at(number, KernelError("update", 12, "lb4_service")))
    done = node.sync()
    assert done.complete == (node.maps.writes <= number)
    assert check(node.maps.inner) == []
    assert node.sync().complete
    assert dump(node.maps) == dump(calm.maps)
    assert check(node.maps, settled=True) == []


def unknown(node: Node) -> list[str]:
    """Return where the maps are not what the Shadow says; half a path record that no program reads yet is no difference."""
    found = drift(node.maps, node.shadow)
    return [str(each) for each in found if each and "_path is not" not in each.detail]


@pytest.mark.parametrize("number", range(70))
def test_after_a_failure_at_any_write_it_is_known_what_the_maps_hold(number):
    """Else the next plan would leave entries of the failed one behind, or take others for written."""
    node = Node()
    node.serve(
        service("10.96.0.1:80", *some(1, 3), algorithm=Algorithm.MAGLEV, session_affinity=True),
        service("10.96.0.2:80", *some(2, 3)),
        service("[fd00::1]:80", backend("[fd00:1::1]:80"), backend("[fd00:1::2]:80")),
    )
    node.want(
        service("10.96.0.1:80", *some(2, 4), algorithm=Algorithm.MAGLEV),
        service("10.96.0.3:80", *some(9, 2), source_ranges=(CIDR.parse("10.0.0.0/8"),), flags=0xC0),
        service("10.96.0.4:80", source_ranges=(CIDR.parse("10.0.0.0/8"),), flags=0xC0),  # without backends
        service("[fd00::1]:80", backend("[fd00:1::2]:80"), backend("[fd00:1::4]:80")),
    )
    node.maps = FaultyMaps(node.maps, before=fail_at(number, KernelError("update", 12, "lb4_service")))
    done = node.sync()
    assert done.complete == (node.maps.writes <= number)
    assert unknown(node) == []
    node.maps = node.maps.inner
    if number % 2:  # what failed is not requested any more
        node.want()
    assert node.sync().complete
    assert unknown(node) == []
    assert check(node.maps, settled=True) == []


@pytest.mark.parametrize("word", range(12))
def test_a_path_that_cannot_be_written_fails_the_service_of_that_backend_alone(word):
    """A path of IPv6 is four words (two addresses), then the word that makes it valid."""
    wanted = [service(f"[fd00::{n}]:80", backend(f"[fd00:1::{n}]:80")) for n in (1, 2, 3)]
    node = Node()
    node.want(*wanted)
    stores = iter(range(100))

    def refuse(_: int, name: str) -> None:
        if name == "lb6_path" and next(stores) == word:
            raise KernelError("update", 12, name)

    node.maps = FaultyMaps(node.maps, before=refuse)
    done = node.sync()
    assert list(done.failed) == [wanted[word // 4].frontend]
    assert not done.errors
    assert node.sync().complete
    assert check(node.maps, settled=True) == []


def test_the_filter_forgets_a_service_that_never_came():
    """Its address was let in before its entries were written; then it failed, and then it was not requested any more."""
    node = Node()
    refused = service("10.96.0.1:80", *some(1, 1))
    node.want(refused)
    node.maps = RefusesFrontend(node.maps, refused.frontend.address)
    bit = prefilter.vip_bit(refused.frontend.address)
    assert list(node.sync().failed) == [refused.frontend]
    node.maps = node.maps.inner
    node.want()
    assert node.sync().complete
    assert not node.shadow.bit(bit)
    assert unknown(node) == []


def test_a_backend_that_is_another_one_at_the_same_address_gets_another_path():
    """Its state and its slots are the same; it is on this node now."""

    def paths_of(found):
        return PathInfo(b"", 0, 1500, local=True) if found.local else PathInfo(plans.SNAT[0], 5, 1400)

    node = Node()
    far = backend("10.244.1.1:80")
    for one in (far, structs.replace(far, node_name="me", local=True)):
        node.want(service("10.96.0.1:80", one))
        assert apply(plan.plan(node.state, node.shadow, paths_of, plans.SNAT), node.maps, node.shadow).complete
        path = backend_codec.path_of(node.shadow.paths[Family.IPV4].get(1))
        assert bool(path.flags & PathFlag.LOCAL) == one.local


def test_a_service_is_told_its_first_failure():
    """A backend of two services cannot be written, and one of them has failed before."""
    node = Node()
    first, second = service("10.96.0.1:80", *some(1, 1)), service("10.96.0.2:80", *some(1, 1))
    node.want(first, second)
    codes = {"lb_metrics": [12], "lb4_backend": [28]}

    def refuse(_: int, name: str) -> None:
        if codes.get(name):
            raise KernelError("update", codes[name].pop(), name)

    node.maps = FaultyMaps(node.maps, before=refuse)
    done = node.sync()
    assert done.errors == []
    assert {frontend: error.errno for frontend, error in done.failed.items()} == {
        first.frontend: 12,
        second.frontend: 28,
    }
    assert node.sync().complete
    assert check(node.maps, settled=True) == []


def test_an_orphan_that_cannot_be_taken_away_is_an_error_of_no_service():
    node = Node()
    served = service("10.96.0.1:80", *some(1, 2))
    node.serve(served)
    stray = bytes((77, 0, 0, 0, 0, 99, 0, 0))  # the affinity of a service that is not there
    node.maps.put_many("lb_affinity_match", [(stray, b"\0")])
    node.restart()
    node.want(served)
    node.maps = FaultyMaps(node.maps, before=fail_at(0, KernelError("delete", 12, "lb_affinity_match")))
    done = node.sync()
    assert (done.failed, [error.errno for error in done.errors]) == ({}, [12])
    assert not done.complete
    assert node.maps.get("lb_affinity_match", stray) is not None
    assert node.sync().complete
    assert node.maps.get("lb_affinity_match", stray) is None
    assert check(node.maps, settled=True) == []


def test_every_entry_that_is_written_is_counted():
    node = Node()
    node.maps = FaultyMaps(MemoryMaps(SMALL))
    done = node.serve(service("10.96.0.1:80", *some(1, 2)))
    assert done.written["lb4_service"] == 3
    assert done.written["lb4_backend"] == 2
    assert done.written["lb4_reverse_nat"] == 1
    # the frontend, two of the backend with an odd address, two bits for each address that the node translates to
    assert done.written["lb_filter"] == 1 + 2 + 2 * len(plans.SNAT)
    done = node.serve()
    assert done.written["lb4_service"] == 3
    assert done.written["lb_filter"] == 3
    assert done.entries == sum(done.written.values())


def test_a_plan_may_be_applied_twice():
    from lbagent.targets.bpf.restore import restore
    from tests.targets.bpf.plans import SNAT, paths

    node = Node()
    node.want(service("10.96.0.1:80", *some(1, 3), algorithm=Algorithm.MAGLEV))
    planned = plan.plan(node.state, node.shadow, paths, SNAT)
    assert apply(planned, node.maps, node.shadow).complete
    first = dump(node.maps)
    assert apply(planned, node.maps, restore(node.maps).shadow).complete
    assert dump(node.maps) == first
    assert check(node.maps, settled=True) == []


def test_pressure_counts_without_walking():
    node = Node()
    node.serve(
        service("10.96.0.1:80", *some(1, 3), session_affinity=True, algorithm=Algorithm.MAGLEV),
        service("[fd00::1]:80", backend("[fd00:1::1]:80"), source_ranges=(CIDR.parse("fd00::/8"), CIDR.parse("::/0"))),
    )
    found = {name: used for name, (used, _) in node.shadow.pressure().items()}
    assert found == {
        "lb4_service": 4, "lb6_service": 2, "lb4_backend": 3, "lb6_backend": 1, "lb_affinity_match": 3,
        "lb4_source_range": 0, "lb6_source_range": 2, "lb4_maglev": 1, "lb6_maglev": 0, "lb4_reverse_nat": 1,
        "lb6_reverse_nat": 1, "lb4_port_range": 0, "lb6_port_range": 0,
    }  # fmt: skip
    for name, used in found.items():
        assert len(node.maps.maglev(name) if "maglev" in name else node.maps.items(name)) == used, name
    assert node.shadow.pressure()["lb4_service"] == (4, 1024)


@pytest.mark.long
def test_what_was_carried_out_is_gone_without_a_garbage_collection():
    """A plan of 10,000 services holds tens of MiB."""
    node = Node()
    node.serve(service("10.96.0.1:80", *some(1, 3)))
    gc.collect()
    gc.disable()
    try:
        node.serve(service("10.96.0.1:80", *some(1, 5)), service("10.96.0.2:80", *some(3, 9)))
        assert gc.collect() == 0
    finally:
        gc.enable()


def test_a_fault_in_a_later_run_of_ids_leaves_the_records_before_it_known():
    node, steps = sized(backends=16), Steps()
    for ident in (1, 2, 5, 6):
        steps.at(Phase.PATH_IN, "lb4_path").add(NO_OWNER, U32.pack(ident), bytes((10, 0, 0, ident)) * 4)
    faulty = FaultyMaps(node.maps, before=fail_at(3, KernelError("mmap", 12, "lb4_path")))
    done = apply(Plan([], steps.ordered(), {}), faulty, node.shadow)
    assert list(node.shadow.paths[Family.IPV4].used()) == [1, 2, 5]
    assert (done.written["lb4_path"], len(done.errors)) == (3, 1)
