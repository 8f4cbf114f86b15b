"""Path records of extra SNAT addresses: written with those of their backend, and taken away with them."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from lbagent.maps import backend_codec, prefilter
from lbagent.maps.consistency import check
from lbagent.maps.layout import PathFlag
from lbagent.maps.lbmaps import backend_counter
from lbagent.maps.map_names import family_map
from lbagent.model.backend import Backend
from lbagent.model.extra_snat_sources import ExtraSnatAddress, extra_snat_stride
from lbagent.model.family import Family
from lbagent.model.ids import BACKEND_ID_LIMIT, IdsExhausted
from lbagent.model.path_info import PathInfo
from lbagent.targets.bpf.apply import Applied, apply
from lbagent.targets.bpf.drift import path_drift
from lbagent.targets.bpf.extra_snat_paths import ids_of, of_backends
from lbagent.targets.bpf.plan import plan, plan_paths
from lbagent.targets.bpf.restore import give_ids
from lbagent.targets.bpf.steps import Phase
from tests.targets.bpf.plans import MAINTENANCE, SMALL, SNAT, Node, backend, paths, service

REMOTE, OTHER = backend("10.244.1.12:8080"), backend("10.244.1.14:8080")
SIX, UDP = backend("[fd00:1::2]:8080"), backend("10.244.1.12:8080/UDP")
STRIDE = SMALL.backends // 5
LIVE, USED = int(PathFlag.LIVE), int(PathFlag.LIVE | PathFlag.SELECTABLE)
L4 = 0x30
A, B = bytes((192, 168, 0, 77)), bytes((192, 168, 0, 79))
A6 = bytes(15) + b"\x77"
FIRST, THIRD = ExtraSnatAddress(1, A), ExtraSnatAddress(3, B)


def ways(*extra_snat: ExtraSnatAddress) -> Callable[[Backend], PathInfo]:
    """Reach backends as `paths` says, with these extra SNAT addresses too."""

    def found(item: Backend) -> PathInfo:
        info = paths(item)
        mine = tuple(each for each in extra_snat if len(each.address) == len(item.address.address))
        return PathInfo(info.snat, info.nexthop, info.mtu, info.local, info.host, mine)

    return found


def sync(node: Node, *extra_snat: ExtraSnatAddress) -> Applied:
    """Plan and apply the node's State."""
    done = apply(plan(node.state, node.shadow, ways(*extra_snat), [*SNAT, A, B]), node.maps, node.shadow)
    assert done.complete, done
    assert check(node.maps, settled=True) == []
    return done


def repath(node: Node, *extra_snat: ExtraSnatAddress) -> Applied:
    """Plan the paths alone, as after a change of the network or of the settings."""
    done = apply(plan_paths(node.shadow, node.state.backends.values(), ways(*extra_snat)), node.maps, node.shadow)
    assert check(node.maps, settled=True) == []
    return done


def record(node: Node, ident: int, family: Family = Family.IPV4) -> backend_codec.PathRecord:
    """Return a record as the map has it."""
    size = 16 if family is Family.IPV4 else 64
    with node.maps.window(family_map(family, "path"), ident * size, size) as view:
        return backend_codec.path_of(bytes(view))


def test_each_address_has_a_record_beside_the_backend_s_own() -> None:
    """All is as in the first one but source address and number; the counters of its id begin at nothing."""
    node = Node()
    node.want(service("10.96.0.1:80", REMOTE), service("10.96.0.1:80/UDP", UDP), service("[fd00::1]:80", SIX))
    planned = plan(node.state, node.shadow, ways(FIRST, THIRD, ExtraSnatAddress(2, A6)), SNAT)
    zeroed = [step for step in planned.steps if step.phase is Phase.COUNTER_ZERO]
    numbers = {step.number(n) for step in zeroed for n in range(len(step.owners))}
    assert {backend_counter(1 + STRIDE), backend_counter(1 + 3 * STRIDE), backend_counter(3 + 2 * STRIDE)} <= numbers
    sync(node, FIRST, THIRD, ExtraSnatAddress(2, A6))
    for ident in (1, 2):
        own = record(node, ident)
        assert (own.snat, own.extra_snat) == (SNAT[0], 0)
        for number, source in ((1, A), (3, B)):
            found = record(node, ident + number * STRIDE)
            assert (found.address, found.port, found.snat) == (own.address, own.port, source)
            assert (found.flags, found.nexthop, found.mtu, found.extra_snat) == (own.flags, 5, 1400, number)
        assert not record(node, ident + 2 * STRIDE).flags
    assert record(node, 3 + 2 * STRIDE, Family.IPV6).snat == A6
    assert node.shadow.extra_snat_paths == 5


def test_the_same_again_writes_nothing_also_after_a_restart() -> None:
    node = Node()
    node.want(service("10.96.0.1:80", REMOTE, OTHER), service("[fd00::1]:80", SIX))
    sync(node, FIRST, THIRD)
    assert plan(node.state, node.shadow, ways(FIRST, THIRD), [*SNAT, A, B]).entries == 0
    services = node.state.services
    node.restart()
    assert node.shadow.extra_snat_paths == 4
    node.want(*services)
    assert plan(node.state, node.shadow, ways(FIRST, THIRD), [*SNAT, A, B]).entries == 0
    assert check(node.maps, settled=True) == []


def test_a_local_backend_s_record_says_nothing_of_that() -> None:
    """Its flows that keep the client's address have the first record."""
    node = Node()
    node.want(service("10.96.0.1:80", backend("10.244.1.11:8080")))
    sync(node, FIRST)
    assert record(node, 1 + STRIDE).flags & 0xF == USED
    node.want()
    sync(node, FIRST)
    bit = prefilter.source_bit(bytes((10, 244, 1, 11)))
    assert bit not in node.shadow.filter_refs


def test_an_address_that_the_node_lacks_takes_no_new_flow() -> None:
    node = Node()
    node.want(service("10.96.0.1:80", REMOTE))
    sync(node, FIRST)
    repath(node, ExtraSnatAddress(1, A, present=False))
    gone = record(node, 1 + STRIDE)
    assert (gone.flags & ~L4, gone.gen) == (LIVE, 0), "its flows live on, should it come back"
    repath(node, FIRST)
    assert record(node, 1 + STRIDE).flags & ~L4 == USED


def test_an_address_that_is_taken_away_ends_its_flows_and_no_others() -> None:
    node = Node()
    node.want(service("10.96.0.1:80", REMOTE))
    sync(node, FIRST, THIRD)
    assert dict(repath(node, THIRD).written) == {"lb4_path": 1}
    assert (record(node, 1 + STRIDE).flags, record(node, 1 + STRIDE).gen) == (0, 1)
    assert (record(node, 1 + 3 * STRIDE).flags & ~L4, record(node, 1 + 3 * STRIDE).gen) == (USED, 0)
    repath(node, ExtraSnatAddress(1, bytes((192, 168, 0, 80))), THIRD)
    assert record(node, 1 + STRIDE).gen == 1, "no flow of the former address is taken for one of the new"
    repath(node)
    assert node.shadow.extra_snat_paths == 0
    assert repath(node).entries == 0


def test_an_address_that_takes_another_s_number_has_another_generation() -> None:
    """Also when the agent did not see the first one go."""
    node = Node()
    node.want(service("10.96.0.1:80", REMOTE))
    sync(node, FIRST)
    repath(node, ExtraSnatAddress(1, B))
    found = record(node, 1 + STRIDE)
    assert (found.snat, found.gen, found.flags & ~L4) == (B, 1, USED)


def test_the_records_of_a_backend_that_is_gone_are_dead() -> None:
    node = Node()
    node.want(service("10.96.0.1:80", REMOTE, OTHER))
    sync(node, FIRST, THIRD)
    node.want(service("10.96.0.1:80", OTHER))
    sync(node, FIRST, THIRD)
    for ident in (1, 1 + STRIDE, 1 + 3 * STRIDE):
        assert (record(node, ident).flags, record(node, ident).gen) == (0, 1)
    assert node.shadow.extra_snat_paths == 2


def test_a_backend_that_takes_no_new_flow_takes_none_by_any_address() -> None:
    node = Node()
    node.want(service("10.96.0.1:80", REMOTE, OTHER))
    sync(node, FIRST)
    resting = backend("10.244.1.12:8080", MAINTENANCE)
    node.want(service("10.96.0.1:80", OTHER, slotless=(resting,)))
    sync(node, FIRST)
    assert record(node, 1).flags & ~L4 == record(node, 1 + STRIDE).flags & ~L4 == LIVE
    node.want(service("10.96.0.1:80", REMOTE, OTHER))
    sync(node, FIRST)
    assert record(node, 1 + STRIDE).flags & ~L4 == USED


def test_a_restart_takes_away_what_has_no_backend() -> None:
    """Backends that went while no agent ran, and records of another number of ids."""
    node = Node()
    node.want(service("10.96.0.1:80", REMOTE, OTHER))
    sync(node, FIRST)
    lone = bytes((10, 244, 9, 9)) + A + bytes((31, 144, 4, 3)) + (1 << 12).to_bytes(2, "little") + bytes(2)
    with node.maps.window("lb4_path", 200 * 16, 16) as view:
        view[:] = lone
    assert any("200" in text for text in check(node.maps, settled=True))
    node.restart()
    node.want(service("10.96.0.1:80", OTHER))
    sync(node, FIRST)
    for ident in (1, 1 + STRIDE, 200):
        assert not record(node, ident).flags
    assert record(node, 2 + STRIDE).flags & ~L4 == USED


def test_a_backend_whose_id_is_another_s_place_keeps_it() -> None:
    """Ids that were given before there were extra SNAT addresses may lie where a record of these would be."""
    node = Node()
    node.book.backend_ids.restore([(OTHER.address, 1 + STRIDE)])
    node.book.backend_ids._next = 1
    node.want(service("10.96.0.1:80", REMOTE, OTHER))
    sync(node)
    repath(node, FIRST, THIRD)
    assert (record(node, 1 + STRIDE).address[-1], record(node, 1 + STRIDE).extra_snat) == (14, 0)
    assert record(node, 1 + 3 * STRIDE).extra_snat == 3
    assert of_backends(node.shadow, {1: 5, 1 + STRIDE: 7, 1 + 3 * STRIDE: 2}) == {1: 7, 1 + STRIDE: 7}
    assert ids_of(node.shadow, 1) == [1, 1 + 3 * STRIDE]
    assert ids_of(node.shadow, 1 + STRIDE) == [1 + STRIDE]


def test_new_ids_leave_room() -> None:
    node = Node()
    give_ids(node.book, SMALL.backends, extra_snat=True)
    node.want(*(service(f"10.96.1.{n}:80", backend(f"10.244.2.{n}:80")) for n in range(1, 60)))
    assert max(item.id for item in node.state.backends.values()) == STRIDE - 1
    assert "each backend takes 5 ids with --snat-address: raise --max-backends" in str(node.book.errors[0][1])
    give_ids(node.book, SMALL.backends, extra_snat=False)
    node.want(*(service(f"10.96.1.{n}:80", backend(f"10.244.2.{n}:80")) for n in range(1, 60)))
    assert node.book.errors == []


def test_only_a_map_that_can_be_larger_is_to_be_raised() -> None:
    for size, advice in (
        (10, "each backend takes 5 ids with --snat-address: raise --max-backends"),
        (BACKEND_ID_LIMIT, "each backend takes 5 ids with --snat-address"),
    ):
        book = Node().book
        give_ids(book, size, extra_snat=True)
        with pytest.raises(IdsExhausted) as caught:
            for number in range(extra_snat_stride(size)):
                book.backend_ids.allocate(number)
        assert f"{advice}; what is served stays" in str(caught.value)


def test_a_wrong_record_is_found() -> None:
    node = Node()
    node.want(service("10.96.0.1:80", REMOTE))
    sync(node, FIRST)
    assert [text for text in path_drift(node.shadow, node.state, ways(FIRST)) if text] == []
    (text,) = (text for text in path_drift(node.shadow, node.state, ways(FIRST, THIRD)) if text)
    assert "backend 1 (10.244.1.12:8080/TCP)" in text.detail
    assert any(path_drift(node.shadow, node.state, ways()))
