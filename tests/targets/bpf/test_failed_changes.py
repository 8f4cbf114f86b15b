"""A change that breaks off at any write, of any kind of entry, is finished by the next plan, and leaves nothing of the old or the new."""

from __future__ import annotations

import pytest

from lbagent.errors import KernelError, LbError
from lbagent.maps import backend_codec
from lbagent.maps.consistency import check
from lbagent.maps.layout import LB_COUNTER
from lbagent.maps.lbmaps import service_counter
from lbagent.maps.memory_maps import MemoryMaps
from lbagent.model.flags import ServiceFlags
from lbagent.model.ids import IdAllocator, IdAssigner
from lbagent.model.service import CIDR, Algorithm
from lbagent.targets.bpf import apply as applier
from lbagent.targets.bpf.drift import drift
from lbagent.testing.faulty_maps import FaultyMaps, fail_at
from tests.targets.bpf.plans import (
    MAINTENANCE,
    QUARANTINED,
    SMALL,
    TERMINATING,
    Node,
    backend,
    backends_of,
    contents,
    service,
    wanted_of,
)
from tests.targets.bpf.test_apply import RefusesFrontend, unknown
from tests.targets.bpf.test_plan_order import change

ONE, TWO, THREE = (backend(f"10.244.1.{n}:8080") for n in (11, 12, 13))
SIX, SEVEN = backend("[fd00:1::6]:8080"), backend("[fd00:1::7]:8080")
ALLOW, DENY = ServiceFlags.ROUTABLE | 0x80, ServiceFlags.ROUTABLE | 0x80 | 0x4000
TEN, SOME = CIDR.parse("10.0.0.0/8"), CIDR.parse("10.1.0.0/16")
EVERYTHING = {"session_affinity": True, "algorithm": Algorithm.MAGLEV, "source_ranges": (TEN,), "flags": ALLOW}


def web(*backends, **more):
    return service("10.96.0.1:80", *backends, **more)


CHANGES = {
    "backends": ([web(ONE, TWO)], [web(TWO, THREE)]),
    "everything comes": ([web(ONE)], [web(ONE, TWO, **EVERYTHING)]),
    "everything goes": ([web(ONE, TWO, **EVERYTHING)], [web(ONE)]),
    "from one table to none, with another backend": (
        [web(ONE, TWO, algorithm=Algorithm.MAGLEV)],
        [web(ONE, THREE)],
    ),
    "affinity stops": ([web(ONE, TWO, session_affinity=True)], [web(ONE, TWO)]),
    "the rule turns round": (
        [web(ONE, source_ranges=(TEN, SOME), flags=ALLOW)],
        [web(ONE, source_ranges=(SOME, CIDR.parse("192.168.0.0/16")), flags=DENY)],
    ),
    "groups": (
        [web(ONE, TWO, backend("10.244.1.14:8080"))],
        [
            web(
                ONE,
                unselectable=(backend("10.244.1.12:8080", QUARANTINED),),
                slotless=(backend("10.244.1.14:8080", MAINTENANCE),),
            )
        ],
    ),
    "a new one beside an old one": ([web(ONE)], [web(ONE), service("[fd00::1]:80", SIX, SEVEN, **EVERYTHING)]),
    "all goes": ([web(ONE, TWO, **EVERYTHING), service("[fd00::1]:80", SIX)], []),
    "one moves into the other": (
        [service("[fd00::1]:80", SIX, session_affinity=True), service("[fd00::2]:80", SEVEN)],
        [service("[fd00::2]:80", SIX, session_affinity=True)],
    ),
}


def assert_counted(node: Node) -> None:
    """What the Shadow says of how full the maps are is so."""
    maps = node.maps
    there = {
        name: len(maps.maglev(name) if name.endswith("_maglev") else maps.items(name))
        for name in node.shadow.pressure()
    }
    assert {name: used for name, (used, _) in node.shadow.pressure().items()} == there


def broken_off(before, after):
    """Yield, for each n, n and a node whose change broke off before its n-th write; last one that did not break off."""
    number, broke = 0, True
    while broke:
        node = Node()
        node.serve(*before)
        inner = node.maps
        node.want(*after)
        node.maps = FaultyMaps(inner, before=fail_at(number, KernelError("update", 12, "a map")))
        done = node.sync()
        broke = node.maps.writes > number
        assert done.complete is not broke
        node.maps = inner
        yield number, node
        number += 1
    assert number > 2


@pytest.mark.parametrize("name", CHANGES)
def test_a_change_that_breaks_off_anywhere_is_finished(name):
    before, after = CHANGES[name]
    calm = Node()
    calm.serve(*before)
    calm.serve(*after)
    for number, node in broken_off(before, after):
        assert check(node.maps) == []
        assert unknown(node) == []
        assert_counted(node)
        node.serve(*after)
        assert contents(node.maps) == contents(calm.maps), number
        assert (node.shadow.refs, node.shadow.filter_refs) == (calm.shadow.refs, calm.shadow.filter_refs), number
        assert node.shadow.pressure() == calm.shadow.pressure()
        node.serve()
        assert node.shadow.refs == {}
        assert not any(found for kind, found in contents(node.maps).items() if kind != "lb_filter"), number


@pytest.mark.parametrize("name", CHANGES)
def test_what_broke_off_and_is_not_wanted_any_more_leaves_nothing(name):
    for number, node in broken_off(*CHANGES[name]):
        done = node.serve()
        assert node.shadow.refs == {}, number
        assert node.shadow.frontends == {}
        assert not any(found for kind, found in contents(node.maps).items() if kind != "lb_filter"), number
        assert node.shadow.states() == {}
        assert unknown(node) == []
        assert {used for used, _ in node.shadow.pressure().values()} == {0}, done


def test_what_was_done_of_a_change_of_ranges_is_not_done_again():
    before, after = CHANGES["the rule turns round"]
    calm = Node()
    calm.serve(*before)
    whole = calm.serve(*after).entries
    for number in range(whole):
        node = Node()
        node.serve(*before)
        inner = node.maps
        node.want(*after)
        node.maps = FaultyMaps(inner, before=fail_at(number, KernelError("update", 12, "a map")))
        done = node.sync().entries
        assert done == number
        node.maps = inner
        assert node.sync().entries == whole - number


def test_states_of_backends_of_what_failed_are_not_known():
    node = Node()
    node.want(web(ONE, TWO))
    node.maps = RefusesFrontend(node.maps, bytes((10, 96, 0, 1)))
    assert not node.sync().complete
    assert node.shadow.states() == {}


class NotTheKernel(FaultyMaps):
    """Raises an error that does not say how much is done, in place of one write of a map."""

    def __init__(self, inner, name: str):
        super().__init__(inner, before=self.refuse)
        self.name, self.left = name, 1

    def refuse(self, _: int, name: str) -> None:
        if name == self.name and self.left:
            self.left -= 1
            raise LbError("out of order")


@pytest.mark.parametrize(
    "name", ["lb4_service", "lb4_backend", "lb4_path", "lb_filter", "lb4_reverse_nat", "lb_metrics"]
)
def test_an_error_that_does_not_say_what_is_done_is_made_good(name):
    wanted = [web(ONE, TWO), service("10.96.0.2:80", THREE)]
    node, inner = Node(), MemoryMaps(SMALL)
    node.want(*wanted)
    node.maps = NotTheKernel(inner, name)
    done = node.sync()
    assert done.failed
    assert [str(error) for error in {*done.failed.values(), *done.errors}] == ["out of order"]
    node.maps = inner
    assert check(inner) == []
    assert [line for line in unknown(node) if "lb4_service" in line or "lb_filter" in line] == []
    node.serve(*wanted)
    assert unknown(node) == []
    assert check(inner, settled=True) == []
    for svc in wanted:
        assert backends_of(inner, svc.frontend) == wanted_of(svc)


@pytest.mark.parametrize("name", ["lb4_path", "lb6_path"])
def test_of_a_record_that_never_became_valid_the_rest_is_known(name):
    """All but the word that makes it valid was stored."""
    wanted = web(ONE, TWO) if name == "lb4_path" else service("[fd00::1]:80", SIX, SEVEN)
    words = 2 * backend_codec.META_AT[16 if name == "lb4_path" else 64] // 8
    node, stores = Node(), iter(range(100))

    def refuse(_: int, map_name: str) -> None:
        if map_name == name and next(stores) == words:
            raise KernelError("update", 12, name)

    node.want(wanted)
    node.maps = FaultyMaps(node.maps, before=refuse)
    assert list(node.sync().failed) == [wanted.frontend]
    assert [line for line in drift(node.maps, node.shadow) if line] == []
    assert node.sync().complete
    assert check(node.maps, settled=True) == []


# --- another id ---


def give_other_ids(node: Node, first: int = 50) -> None:
    """Frontends get ids from `first` on; backends keep theirs."""
    node.book = IdAssigner(IdAllocator(first, 1 << 16), node.book.backend_ids)


def test_a_frontend_that_gets_another_id_takes_everything_along():
    node = Node()
    full = web(ONE, TWO, **EVERYTHING)
    node.serve(full)
    with node.maps.window("lb_metrics", 16 * service_counter(50), 16) as cell:
        cell[:] = LB_COUNTER.pack(3, 300)
    give_other_ids(node)
    seen = []
    node.maps = FaultyMaps(node.maps, after=lambda *_: seen.append(check(node.maps.inner)))
    node.want(full)
    done = node.sync()
    node.maps = node.maps.inner
    assert [found for found in seen if found] == []
    assert done.complete
    assert dict(done.written) == {
        "lb_metrics": 1, "lb4_service": 3, "lb_affinity_match": 4, "lb4_maglev": 2, "lb4_source_range": 2, "lb4_reverse_nat": 2,
    }  # fmt: skip
    assert node.maps.counters([service_counter(50)]) == [(0, 0)], "the earlier holder of the id is not counted"
    assert check(node.maps, settled=True) == []
    assert list(node.maps.maglev("lb4_maglev")) == [50]
    assert [key for key, _ in node.maps.items("lb4_reverse_nat")] == [(50).to_bytes(4, "little")]
    assert {key[4:6] for key, _ in node.maps.items("lb_affinity_match")} == {bytes((0, 50))}
    assert {key[4:6] for key, _ in node.maps.items("lb4_source_range")} == {bytes((0, 50))}
    assert {value[6:8] for _, value in node.maps.items("lb4_service")} == {bytes((0, 50))}
    assert unknown(node) == []


def test_a_rule_that_turns_round_under_another_id_needs_no_words_of_its_own():
    """No client is asked by the old list any more once slot 0 has the new id: entries are plain ones at any time."""
    node = Node()
    node.serve(web(ONE, source_ranges=(TEN, SOME), flags=ALLOW))
    give_other_ids(node)
    seen = set()

    def look(*_) -> None:
        seen.update(value for _, value in inner.items("lb4_source_range"))

    inner = node.maps
    node.maps = FaultyMaps(inner, after=look)
    node.want(web(ONE, source_ranges=(SOME,), flags=DENY))
    assert node.sync().written["lb4_source_range"] == 3
    assert seen == {b"\1"}
    assert {key[4:6] for key, _ in inner.items("lb4_source_range")} == {bytes((0, 50))}


@pytest.mark.parametrize("more", [{}, EVERYTHING])
def test_a_change_of_the_id_that_breaks_off_anywhere_is_finished(more):
    calm = Node()
    calm.serve(web(ONE, TWO, **more))
    give_other_ids(calm)
    calm.serve(web(ONE, TWO, **more))
    number, broke = 0, True
    while broke:
        node = Node()
        node.serve(web(ONE, TWO, **more))
        give_other_ids(node)
        inner = node.maps
        node.want(web(ONE, TWO, **more))
        node.maps = FaultyMaps(inner, before=fail_at(number, KernelError("update", 12, "a map")))
        broke = not node.sync().complete
        node.maps = inner
        assert check(inner) == []
        assert node.sync().complete
        assert contents(inner) == contents(calm.maps), number
        assert unknown(node) == []
        number += 1
    assert number > 2


@pytest.mark.parametrize("then", [(), "other backends", "another id", "the first id"])
def test_of_a_change_of_the_id_that_breaks_off_nothing_stays_that_is_not_wanted(then):
    """Whatever is wanted next: no frontend, less of it, a third id, the id it had."""
    number, broke = 0, True
    while broke:
        node = Node()
        node.serve(web(ONE, TWO, **EVERYTHING))
        first = node.book
        give_other_ids(node)
        inner = node.maps
        node.want(web(ONE, TWO, **EVERYTHING))
        node.maps = FaultyMaps(inner, before=fail_at(number, KernelError("update", 12, "a map")))
        broke = not node.sync().complete
        node.maps = inner
        assert unknown(node) == [], number
        assert_counted(node)
        if then == "another id":
            give_other_ids(node, 60)
        elif then == "the first id":
            node.book = first
        wanted = [] if not then else [web(TWO)] if then == "other backends" else [web(ONE, TWO, **EVERYTHING)]
        node.serve(*wanted)
        assert check(inner, settled=True) == [], number
        assert unknown(node) == []
        assert_counted(node)
        assert then or not any(found for kind, found in contents(inner).items() if kind != "lb_filter"), number
        number += 1
    assert number > 2


def test_a_change_of_the_id_may_break_off_twice():
    """Once towards one id, then towards the next; then the frontend goes."""
    for first in range(6, 18):
        for second in range(0, 18, 3):
            node = Node()
            node.serve(web(ONE, TWO, **EVERYTHING))
            inner = node.maps
            for ident, number in ((50, first), (60, second)):
                give_other_ids(node, ident)
                node.want(web(ONE, TWO, **EVERYTHING))
                node.maps = FaultyMaps(inner, before=fail_at(number, KernelError("update", 12, "a map")))
                node.sync()
                node.maps = inner
                assert unknown(node) == []
            node.serve()
            assert not any(found for kind, found in contents(inner).items() if kind != "lb_filter")


# --- what goes ---


def test_what_is_taken_away_is_counted_entry_by_entry():
    node = Node()
    node.serve(web(ONE, TWO, **EVERYTHING), service("[fd00::1]:80", SIX), service("10.96.0.2:0/NONE", wildcard=True))
    keep = [service("[fd00::1]:80", SIX), service("10.96.0.2:0/NONE", wildcard=True)]
    assert dict(node.serve(*keep).written) == {
        "lb4_service": 3, "lb4_backend": 2, "lb4_path": 2, "lb_affinity_match": 2, "lb4_maglev": 1,
        "lb4_source_range": 1, "lb4_reverse_nat": 1, "lb_filter": 3,
    }  # fmt: skip
    assert dict(node.serve(keep[1]).written) == {
        "lb6_service": 2, "lb6_backend": 1, "lb6_path": 1, "lb6_reverse_nat": 1, "lb_filter": 1,
    }  # fmt: skip
    assert dict(node.serve().written) == {"lb4_service": 1, "lb_filter": 1}


def test_a_wildcard_row_is_one_entry_and_a_bit():
    node = Node()
    node.serve()
    assert dict(node.serve(service("10.96.0.2:0/NONE", wildcard=True)).written) == {"lb4_service": 1, "lb_filter": 1}


def test_what_a_start_finds_and_nobody_wants_goes_without_half_a_service_on_the_way():
    node = Node()
    node.serve(web(ONE, TWO, **EVERYTHING), service("[fd00::1]:80", SIX, SEVEN))
    node.restart()
    change(node, ())
    assert not any(found for kind, found in contents(node.maps).items() if kind != "lb_filter")


def test_a_start_takes_away_each_backend_once():
    node = Node()
    node.serve(web(ONE, TWO), service("[fd00::1]:80", SIX))
    node.restart()
    node.want(web(ONE))
    done = node.sync()
    assert (done.written["lb4_backend"], done.written["lb4_path"]) == (1, 1)
    assert (done.written["lb6_backend"], done.written["lb6_path"]) == (1, 1)


def test_who_goes_asks_for_no_bit_of_the_prefilter():
    node = Node()
    node.serve(web(TWO))
    with node.maps.window("lb_filter", 0, node.maps.specs["lb_filter"].value_size) as window:
        window[:] = bytes(len(window))
    node.restart()
    node.want()
    assert node.sync().written["lb_filter"] == 2 * 2, "two bits for each address that the node translates to"


# --- how much at once ---


class Counting(MemoryMaps):
    """Notes how many entries each call has."""

    def __init__(self) -> None:
        super().__init__(SMALL)
        self.calls: dict[str, list[int]] = {}

    def put_batch(self, map_name, keys, values, start, stop):
        self.calls.setdefault(map_name, []).append(stop - start)
        super().put_batch(map_name, keys, values, start, stop)

    def set_maglev(self, map_name, tables):
        self.calls.setdefault(map_name, []).append(len(tables))
        super().set_maglev(map_name, tables)


def test_tables_and_entries_are_written_in_pieces(monkeypatch):
    """Between two of them the event loop runs other work."""
    monkeypatch.setattr(applier, "TABLES_AT_ONCE", 2)
    monkeypatch.setattr(applier, "ENTRIES_AT_ONCE", 4)
    node = Node(Counting())
    node.serve(*[service(f"10.96.0.{n}:80", ONE, algorithm=Algorithm.MAGLEV) for n in range(1, 6)])
    assert node.maps.calls == {
        "lb4_backend": [1], "lb4_service": [4, 1, 4, 1], "lb4_maglev": [2, 2, 1], "lb4_reverse_nat": [4, 1],
    }  # fmt: skip
    assert check(node.maps, settled=True) == []


def test_dying_backends_are_kept_apart_from_the_count():
    """Terminating backends serve while there is no other one; each way is one more plan."""
    dying, active = backend("10.244.1.11:8080", TERMINATING), backend("10.244.1.12:8080")
    node = Node()
    for svc in (web(dying), web(active, unselectable=(dying,)), web(dying), web(active, unselectable=(dying,))):
        change(node, (svc,))
        assert check(node.maps, settled=True) == []
        found = node.shadow.paths[svc.frontend.family]
        takes_flows = found.get(node.book.backend_ids.get(dying.address))[11] & 2
        assert bool(takes_flows) is (svc.selectable == (dying,))
