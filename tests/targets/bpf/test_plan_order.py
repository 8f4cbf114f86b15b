"""After every single write the maps hold whole services only, whatever changes into whatever."""

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from lbagent.errors import KernelError
from lbagent.maps.consistency import check
from lbagent.maps.dump import dump
from lbagent.maps.memory_maps import MemoryMaps
from lbagent.model.family import Family
from lbagent.targets.bpf.restore import restore
from lbagent.testing.faulty_maps import FaultyMaps, Killed, fail_at, fail_often
from tests.targets.bpf.meaning import meaning_of
from tests.targets.bpf.plans import Node, backends_of, states, wanted_of

RELAXED = settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))


class Watched(FaultyMaps):
    """Maps that are checked after every write."""

    def __init__(self, node: Node):
        super().__init__(node.maps, after=self.look)
        self.before_state, self.node = node.state, node

    def look(self, number: int, name: str) -> None:
        wrong = check(self.inner)
        assert not wrong, f"after write {number} ({name}): {wrong}"
        before = {svc.frontend: svc for svc in self.before_state.services}
        for svc in self.node.state.services:
            old = before.get(svc.frontend)
            if old is None:
                continue
            found = backends_of(self.inner, svc.frontend)
            assert found is not None, f"{svc.frontend} vanished at write {number} ({name})"
            assert found <= wanted_of(old) | wanted_of(svc), f"{svc.frontend}: a flow may go astray at write {number}"
            if old.selectable and svc.selectable:
                assert found, f"{svc.frontend} had no backend at write {number} ({name})"


def change(node: Node, services) -> None:
    """Go to another State under watch."""
    watched = Watched(node)
    node.want(*services)
    node.maps = watched
    done = node.sync()
    node.maps = watched.inner
    assert done.complete
    assert done.entries - done.written.get("lb_filter", 0) <= watched.writes, (
        "except bits, several of which are one word"
    )


@pytest.mark.long
@RELAXED
@given(st.lists(states(), min_size=2, max_size=4))
def test_no_prefix_of_the_writes_shows_half_a_service(sequence):
    node = Node()
    for services in sequence:
        change(node, services)
        assert check(node.maps, settled=True) == []
        for svc in node.state.services:
            assert backends_of(node.maps, svc.frontend) == wanted_of(svc)


@RELAXED
@given(st.lists(states(), min_size=1, max_size=4))
def test_the_way_does_not_matter(sequence):
    """Many small plans leave the maps as one restart does: nothing to write."""
    node = Node()
    for services in sequence:
        node.serve(*services)
    again = Node(node.maps)
    again.restart()
    again.want(*sequence[-1])
    assert again.state.services == node.state.services, "the ids are those of before"
    done = again.sync()
    assert (done.complete, done.entries) == (True, 0), done
    assert_same(again.shadow, node.shadow)


@pytest.mark.long
@settings(RELAXED, max_examples=80)
@given(st.lists(st.tuples(states(), st.booleans()), min_size=1, max_size=5))
def test_the_maps_are_those_of_a_fresh_start(sequence):
    """Any sequence of States, with restarts in between: except for ids, the maps are what the last State makes of empty ones."""
    node, fresh = Node(), Node()
    for services, begins_anew in sequence:
        node.serve(*services)
        if begins_anew:
            node.restart()
    fresh.serve(*sequence[-1][0])
    assert meaning_of(node.maps) == meaning_of(fresh.maps)


def assert_same(one, other):
    """Two Shadows say the same about the maps."""
    assert one.frontends == other.frontends
    assert one.refs == other.refs
    assert one.filter_refs == other.filter_refs
    assert one.snat_bits == other.snat_bits
    assert one.pressure() == other.pressure()
    for family in Family:
        assert one.backend_rows[family].memory[:] == other.backend_rows[family].memory[:]
        assert one.paths[family].memory[:] == other.paths[family].memory[:]
    assert one.filter[:] == other.filter[:]


def copy_of(maps: MemoryMaps) -> MemoryMaps:
    """Return maps with the same contents."""
    twin = MemoryMaps(maps.sizes)
    for name, entries in maps._entries.items():
        twin._entries[name] = dict(entries)
    twin._tables = {name: dict(tables) for name, tables in maps._tables.items()}
    for name, array in maps._arrays.items():
        twin._array(name)[:] = array[:]
    return twin


@pytest.mark.long
# no shrinking: one example is some hundred restarts
@settings(
    max_examples=15,
    deadline=None,
    suppress_health_check=list(HealthCheck),
    phases=(Phase.explicit, Phase.reuse, Phase.generate),
)
@given(states(), states())
def test_a_kill_at_any_write_is_made_good_by_the_next_start(before, after):
    start = Node()
    start.serve(*before)
    number, killed = 0, True
    while killed:
        node = Node(copy_of(start.maps))
        node.restart()
        node.want(*before)
        node.sync()
        node.want(*after)
        known = {svc.frontend: svc.id for svc in start.state.services}
        node.maps = FaultyMaps(node.maps, before=fail_at(number, Killed()))
        try:
            node.sync()
            killed = False
        except Killed:
            number += 1
        reborn = Node(node.maps.inner)
        reborn.restart()
        reborn.want(*after)
        assert reborn.sync().complete
        assert check(reborn.maps, settled=True) == [], f"killed at write {number}"
        for svc in reborn.state.services:
            assert backends_of(reborn.maps, svc.frontend) == wanted_of(svc)
            assert svc.id == known.get(svc.frontend, svc.id), "a service kept its id"
        twice = plan_again(reborn)
        assert twice == 0, f"killed at write {number}: a second start still writes"


def plan_again(node: Node) -> int:
    """Return how many entries a second start would write."""
    node.restart()
    node.want(*node.state.services)
    done = node.sync()
    assert not done.written, done.written
    return done.entries


@RELAXED
@given(st.lists(states(), min_size=1, max_size=3), st.integers(0, 1 << 30))
def test_failing_writes_are_made_good_by_trying_again(sequence, seed):
    node, calm = Node(), Node()
    fails = fail_often(0.1, seed)
    for services in sequence:
        calm.serve(*services)
        watched = Watched(node)
        watched.before = fails
        node.want(*services)
        node.maps = watched
        for _ in range(200):
            if node.sync().complete:
                break
        else:
            pytest.fail("it never converged")
        node.maps = watched.inner
    assert check(node.maps, settled=True) == []
    assert dump(node.maps) == dump(calm.maps)
    again = restore(node.maps).shadow
    for family in Family:
        assert node.shadow.backend_rows[family].memory[:] == again.backend_rows[family].memory[:]
        assert node.shadow.paths[family].memory[:] == again.paths[family].memory[:]
    assert node.shadow.filter[:] == again.filter[:]
    assert node.shadow.refs == calm.shadow.refs
    assert node.shadow.filter_refs == calm.shadow.filter_refs
    assert node.shadow.pressure() == calm.shadow.pressure()


@RELAXED
@given(states(), states(), st.data())
def test_one_failed_write_leaves_every_other_service_as_wanted(before, after, data):
    node = Node()
    node.serve(*before)
    watched = Watched(node)
    node.want(*after)
    writes = FaultyMaps(copy_of(node.maps))
    rehearsal = Node(writes)
    rehearsal.restart()
    rehearsal.want(*after)
    rehearsal.sync()
    number = data.draw(st.integers(0, max(0, writes.writes - 1)))
    watched.before = fail_at(number, KernelError("update", 12, "a map"))
    node.maps = watched
    done = node.sync()
    node.maps = watched.inner
    for svc in node.state.services:
        if svc.frontend not in done.failed:
            assert backends_of(node.maps, svc.frontend) == wanted_of(svc)
