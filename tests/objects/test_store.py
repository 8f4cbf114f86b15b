"""The store of several sources, and services out of nothing."""

from __future__ import annotations

import asyncio

import pytest

from lbagent.errors import ConfigError
from lbagent.objects.records import Node, ObjectChange, ObjectSnapshot
from lbagent.objects.source import initial_changes
from lbagent.objects.store import Store
from lbagent.resolve import Options, resolve
from lbagent.sources.synthetic import SyntheticSource, parse_synthetic

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


async def test_synthetic_services():
    source = SyntheticSource(3, 2)
    told = []
    task = asyncio.create_task(source.run(told.append))
    await source.synced.wait()
    rows = resolve(source.snapshot(), Options("n")).state
    assert [svc.frontend.with_protocol() for svc in rows.services if not svc.wildcard] == [
        "10.96.0.1:80/TCP", "10.96.0.2:80/TCP", "10.96.0.3:80/TCP"
    ]  # fmt: skip
    assert len(rows.backends) == 6
    source.change(1)
    assert [len(change.new.endpoints) for change in told[-1]] == [1]
    source.change(1)
    assert source.snapshot() == SyntheticSource(3, 2).snapshot()
    task.cancel()


@pytest.mark.parametrize("text", ["", "10", "a:b", "10:", "70000:1", "60000:1000", "-1:5"])
def test_synthetic_sizes_that_are_none(text):
    with pytest.raises(ConfigError, match="--synthetic"):
        parse_synthetic(text)


def test_synthetic_sizes():
    assert parse_synthetic("10000:10") == (10000, 10)
