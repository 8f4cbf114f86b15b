"""The store of several sources, and a snapshot as changes."""

from __future__ import annotations

from lbagent.model.family import Family
from lbagent.objects.records import Endpoints, EndpointSlice, Node, ObjectChange, ObjectSnapshot
from lbagent.objects.source import initial_changes
from lbagent.objects.store import Store

FIRST, SECOND = Node("n", zone="first"), Node("n", zone="second")


def test_the_source_named_first_holds():
    store = Store(["a", "b"])
    assert store.apply("b", [ObjectChange("Node", "n", None, SECOND)]) == [ObjectChange("Node", "n", None, SECOND)]
    assert store.apply("a", [ObjectChange("Node", "n", None, FIRST)]) == [ObjectChange("Node", "n", SECOND, FIRST)]
    assert store.apply("b", [ObjectChange("Node", "n", SECOND, None)]) == []
    assert store.snapshot().nodes == {"n": FIRST}
    store.apply("b", [ObjectChange("Node", "n", None, SECOND)])
    assert store.apply("a", [ObjectChange("Node", "n", FIRST, None)]) == [ObjectChange("Node", "n", FIRST, SECOND)]
    assert store.snapshot().nodes == {"n": SECOND}


def test_a_snapshot_as_changes():
    assert initial_changes(ObjectSnapshot(nodes={"n": FIRST})) == [ObjectChange("Node", "n", None, FIRST)]


def test_a15_when_a_change_happened_is_passed_on():
    store = Store(["a"])
    (change,) = store.apply("a", [ObjectChange("Node", "n", None, Node("n"), 12.5)])
    assert change.triggered_at == 12.5


def test_facts_are_the_same_objects_until_they_can_change():
    store = Store(["a", "b"])
    slice_, other = EndpointSlice("t", "s-x", "s", Family.IPV4), EndpointSlice("t", "s-x", "s", Family.IPV4, weight=3)
    store.apply("a", [ObjectChange("EndpointSlice", "t/s-x", None, slice_)])
    store.apply("b", [ObjectChange("Node", "n", None, Node("n", internal_ips=(b"\x0a\0\0\1",)))])
    before = store.facts()
    assert before == ({b"\x0a\0\0\1"}, {"t/s"})
    store.apply(
        "a", [ObjectChange("EndpointSlice", "t/s-x", slice_, other), ObjectChange("Service", "t/s", None, None)]
    )
    assert store.facts() is before
    store.apply("a", [ObjectChange("EndpointSlice", "t/s-x", other, EndpointSlice("t", "s-x", "r", Family.IPV4))])
    assert store.facts() == ({b"\x0a\0\0\1"}, {"t/r"})
    store.apply("b", [ObjectChange("Node", "n", Node("n"), Node("n"))])
    assert store.facts() == (set(), {"t/r"})
    store.apply("a", [ObjectChange("EndpointSlice", "t/s-x", slice_, None)])
    assert store.facts() == (set(), set())
    store.apply("a", [ObjectChange("Endpoints", "t/e", None, Endpoints("t", "e"))])
    assert store.facts() == (set(), {"t/e"})
