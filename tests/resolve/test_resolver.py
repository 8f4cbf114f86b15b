"""Any order of events results in the same State as all objects at once, and unchanged parts stay the same objects."""

from __future__ import annotations

import random

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from lbagent.model.address import L3n4Addr, L4Type, Scope
from lbagent.model.backend import BackendState
from lbagent.model.ids import IdAllocator, IdAssigner
from lbagent.model.kinds import Algorithm, SVCTrafficPolicy
from lbagent.objects.records import (
    Endpoint,
    Endpoints,
    EndpointSlice,
    HostPort,
    Node,
    ObjectChange,
    ObjectSnapshot,
    Origin,
    Pod,
    Service,
    ServicePort,
    SlicePort,
    StateOverride,
)
from lbagent.objects.source import initial_changes
from lbagent.objects.store import Store
from lbagent.resolve import Options, Resolver, resolve
from lbagent.targets.bpf.plan import differences
from tests.objects.kinds import kind_of

NAMES = ("a", "b", "c")
VIPS = tuple(bytes((10, 96, 0, last)) for last in (1, 2))
PODS = tuple(bytes((10, 244, 0, last)) for last in (1, 2, 3))
NODE_IP = bytes((192, 168, 0, 1))


class Dice:
    """Draws objects with common names and addresses. Hypothesis draws the seed, and smaller worlds first."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)

    def some(self, values, most=2):
        return tuple(self.rng.sample(values, self.rng.randint(1, most)))

    def origin(self):
        return Origin(self.rng.choice(("a.yaml", "b.yaml")), self.rng.randint(0, 3))

    def service(self, name=None):
        pick = self.rng.choice
        port = ServicePort("http", pick((L4Type.TCP, L4Type.TCP, L4Type.UDP)), 80, pick((0, 30080)))
        return Service(
            "d", name or pick(NAMES), self.origin(), pick((1.0, 2.0, 3.0)), pick(("", "", "", "headless")), "LoadBalancer", (4,),
            self.some(VIPS), self.some(VIPS), self.some(VIPS), (port,), pick((True, False)), pick((True, False)),
            algorithm=pick((Algorithm.RANDOM, Algorithm.MAGLEV)),
        )  # fmt: skip

    def endpoint(self):
        pick = self.rng.choice
        return Endpoint(
            pick(PODS), pick((True, True, False)), pick((True, False)), pick((True, False)), pick(("", "n1", "n2")), "",
            pick(("", "d/p1")), pick(((), ("z1",))),
        )  # fmt: skip

    def slice(self, name=None, service=None):
        pick = self.rng.choice
        ports = (SlicePort(pick(("http", "http", "other")), L4Type.TCP, 8080),)
        endpoints = tuple(self.endpoint() for _ in range(self.rng.randint(1, 3)))
        return EndpointSlice(
            "d", name or pick(NAMES), service or pick(NAMES), 4, self.origin(), ports, endpoints, pick((None, None, 0, 50))
        )  # fmt: skip

    def other(self):
        pick = self.rng.choice
        what = pick(("endpoints", "node", "pod", "pod", "state", "state", "state"))
        if what == "endpoints":
            piece = self.slice()
            return Endpoints("d", pick(NAMES), piece.origin, (piece,))
        if what == "node":
            return Node(pick(("n1", "n2", "n2")), self.origin(), (NODE_IP,), pick(("", "z1")))
        if what == "state":
            address = L3n4Addr(pick(PODS), 8080)
            word = pick((BackendState.ACTIVE, BackendState.MAINTENANCE, BackendState.QUARANTINED))
            return StateOverride(pick(("m1", "m2")), address, word, self.origin(), pick(("", "n1", "n2")))
        host_ports = pick(((), (HostPort(30080, 8080, L4Type.TCP),), (HostPort(80, 8080, L4Type.TCP, VIPS[0]),)))
        return Pod(
            "d", pick(("p1", "p2")), self.origin(), pick((0.0, 1.0)), pick(("n1", "n1", "n2")), (pick(PODS),), host_ports,
            pick((True, False)), pick((True, False, False)), False, pick((None, None, 0, 50)),
        )  # fmt: skip

    def history(self, length):
        yield from ((self.service(name), True) for name in NAMES)
        yield from ((self.slice(name, name), True) for name in NAMES)
        for _ in range(length):
            obj = self.rng.choice((self.service, self.slice, self.slice, self.other, self.other))()
            yield obj, self.rng.random() < 0.75


worlds = st.builds(lambda seed, length: list(Dice(seed).history(length)), st.integers(0, 1 << 32), st.integers(0, 12))


def play(history):
    """Return the batches of changes that a history of (object, is it there) means."""
    store = Store(["test"])
    held = {}
    for obj, there in history:
        key = (kind_of(obj), obj.key)
        change = ObjectChange(*key, held.get(key), obj if there else None)
        held[key] = change.new
        yield store.apply("test", [change]), store


@pytest.mark.long
@settings(max_examples=600, deadline=None)
@given(worlds, st.integers(1, 3))
def test_changes_one_by_one_give_what_all_objects_give(history, every):
    resolver = Resolver(Options("n1"))
    for number, (changes, now) in enumerate(play(history)):
        store = now
        resolver.update(changes)
        if number % every == 0:
            resolver.resolve()
    step_by_step = resolver.resolve()
    at_once = resolve(store.snapshot(), Options("n1"))
    assert step_by_step.state.services == at_once.state.services
    assert step_by_step.messages == at_once.messages


@pytest.mark.long
@settings(max_examples=300, deadline=None)
@given(worlds)
@example(list(Dice(447188).history(4)))  # the row for pods stays, with a backend in maintenance elsewhere
def test_the_agent_differs_only_by_resting_rows_of_what_exists(history):
    resolver = Resolver(Options("n1", keep_existing=True))
    before, inside_before = set(), set()
    for changes, now in play(history):
        store = now
        resolver.update(changes)
        rows = resolver.resolve().state.services
        snapshot = store.snapshot()
        fresh = resolve(snapshot, Options("n1")).state
        kept = [row for row in rows if row.frontend.scope is Scope.INTERNAL and row.frontend not in fresh.by_frontend]
        for inside in kept:  # policy Local: the row stays when both scopes have the same backends
            outside = fresh.by_frontend[inside.frontend.with_scope(Scope.EXTERNAL)]
            assert outside.ext_traffic_policy is SVCTrafficPolicy.LOCAL
            assert [b.address for b in inside.selectable] == [b.address for b in outside.selectable]
            assert inside.frontend in inside_before
        inside_before = {row.frontend for row in rows if row.frontend.scope is Scope.INTERNAL}
        for mine, theirs in zip([row for row in rows if row not in kept], fresh.services, strict=True):
            assert [b.address for b in mine.selectable] == [b.address for b in theirs.selectable]
            assert [b.address for b in mine.unselectable] == [b.address for b in theirs.unselectable]
        after = {backend.address for svc in rows for backend in svc.backends}
        assert after <= before | fresh.backends.keys()  # a row is never made for an endpoint that no service selects
        assert before & offered(snapshot, rows) <= after  # and never taken away while the endpoint is there
        before = after


def offered(snapshot, rows):
    """Return the backends that slices name for the ports of Services that have a frontend."""
    ports = {(svc.name.namespace, svc.name.name, svc.port_name, svc.frontend.protocol) for svc in rows}
    found = set()
    for piece in snapshot.slices.values():
        for port in piece.ports:
            if (piece.namespace, piece.service, port.name, port.protocol) in ports:
                found |= {L3n4Addr(endpoint.address, port.port, port.protocol) for endpoint in piece.endpoints}
    return found


@settings(max_examples=150, deadline=None)
@given(worlds, st.randoms(use_true_random=False))
def test_the_order_of_the_first_list_does_not_matter(history, rng):
    *_, (_, store) = play(history)
    snapshot = store.snapshot()
    changes = initial_changes(snapshot)
    rng.shuffle(changes)
    resolver = Resolver(Options("n1"))
    resolver.update(changes)
    assert resolver.resolve().state.services == resolve(snapshot, Options("n1")).state.services


@settings(max_examples=150, deadline=None)
@given(worlds)
def test_no_frontend_twice_and_every_backend_in_one_state(history):
    *_, (_, store) = play(history)
    rows = resolve(store.snapshot(), Options("n1")).state.services
    assert len({svc.frontend for svc in rows}) == len(rows)
    seen = {}
    for svc in rows:
        for backend in svc.backends:
            assert seen.setdefault(backend.address, backend.state) == backend.state
        slots = [backend.address for backend in (*svc.selectable, *svc.unselectable, *svc.slotless)]
        assert len(set(slots)) == len(slots)


@settings(max_examples=100, deadline=None)
@given(worlds)
def test_a_state_says_truly_which_rows_are_the_same_objects_as_before(history):
    """Ids and plans may use it: the State with ids has the same delta."""
    resolver, book = Resolver(Options("n1")), IdAssigner(IdAllocator(), IdAllocator())
    before = given_before = ()
    for changes, store in play(history):
        resolver.update(changes)
        state = resolver.resolve().state
        numbered = book.assign(state)
        assert state.services == resolve(store.snapshot(), Options("n1")).state.services
        assert [svc.frontend for svc in numbered.services] == [svc.frontend for svc in state.services]
        check_since(state, before)
        check_since(numbered, given_before)
        wanted, gone = differences(given_before, numbered.services, numbered.delta)
        assert (wanted, gone) == differences(given_before, numbered.services)
        assert set(wanted) == {new.frontend for new in numbered.services if all(new is not old for old in given_before)}
        before, given_before = state.services, numbered.services


def check_since(state, before):
    delta = state.delta
    if delta is None:
        return
    assert delta.after is state.services
    if delta.before is before:
        old, new = len(before) - delta.suffix, len(state.services) - delta.suffix
        assert 0 <= delta.prefix <= min(old, new)
        assert all(a is b for a, b in zip(before[: delta.prefix], state.services[: delta.prefix], strict=True))
        assert all(a is b for a, b in zip(before[old:], state.services[new:], strict=True))


def test_a_change_of_one_service_leaves_the_rows_of_the_others_untouched():
    many = {
        f"d/{number}": Service("d", str(number), Origin("f", number), families=(4,), cluster_ips=(bytes((10, 0, 0, number)),),
                               ports=(ServicePort("", L4Type.TCP, 80),))
        for number in range(1, 20)
    }  # fmt: skip
    resolver = Resolver(Options("n1"))
    resolver.replace(ObjectSnapshot(services=many))
    before = resolver.resolve().state.services
    piece = EndpointSlice("d", "x", "7", 4, ports=(SlicePort("", L4Type.TCP, 8080),), endpoints=(Endpoint(PODS[0]),))
    resolver.update([ObjectChange("EndpointSlice", piece.key, None, piece)])
    after = resolver.resolve().state.services
    changed = [new.name.name for old, new in zip(before, after, strict=True) if old is not new]
    assert changed == ["7"]  # and not its wildcard row, which is the same as before


def test_nothing_changed_is_the_same_state():
    resolver = Resolver(Options("n1"))
    resolver.replace(ObjectSnapshot())
    assert resolver.resolve() is resolver.resolve()


@pytest.mark.long
@settings(max_examples=60, deadline=None)
@given(worlds, st.lists(st.frozensets(st.sampled_from(["n2", "n3"])), min_size=1), st.booleans())
def test_nodes_that_die_and_return_give_what_all_objects_give(history, deaths, resets):
    """And no Service loses its last endpoint by them. This node, n1, never finds itself dead."""
    options = Options("n1", resets_dead_nodes=resets)
    resolver = Resolver(options)
    for number, (changes, store) in enumerate(play(history)):
        dead = deaths[number % len(deaths)]
        resolver.update(changes)
        resolver.set_dead_nodes(dead)
        found = resolver.resolve().state.services
        fresh = Resolver(options)
        fresh.replace(store.snapshot())
        fresh.set_dead_nodes(dead)
        assert found == fresh.resolve().state.services
        alive = {svc.frontend: svc for svc in resolve(store.snapshot(), options).state.services}
        for svc in found:
            if svc.frontend in alive:
                assert bool(svc.selectable) == bool(alive[svc.frontend].selectable)
