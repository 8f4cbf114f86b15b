"""The store of several sources, and a snapshot as changes."""

from __future__ import annotations

from lbagent.objects.records import Node, ObjectChange, ObjectSnapshot
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
