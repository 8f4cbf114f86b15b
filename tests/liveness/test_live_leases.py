"""What is read from Leases that anyone with the right may have written."""

from __future__ import annotations

import json
from typing import Any

import pytest

from lbagent.kube.object_cache import metadata_of
from lbagent.kube.resources import Resource
from lbagent.liveness.live_leases import LiveCache, NodeLease

A_KEY = "suspected.lbagent.io/" + "13b3ef6c6a9a3ea6"  # no hash of any name below


def read(**metadata: Any) -> object:
    cache = LiveCache(Resource("Lease", "/leases", "leases"))
    raw = json.dumps(
        {"metadata": {"namespace": "kube-system", "name": "lbagent-live-a", "resourceVersion": "7"} | metadata}
    )
    change = cache.put(raw.encode(), metadata_of(raw.encode()))
    return change.new if change else None


@pytest.mark.parametrize("annotations", [None, {}, {"lbagent.io/addresses": ""}, {"other": "10.0.0.1"}])
def test_a_lease_without_an_address_is_of_no_node_that_takes_part(annotations: dict[str, str] | None) -> None:
    assert read(annotations=annotations) == NodeLease()


def test_what_is_no_address_is_left_out() -> None:
    found = read(annotations={"lbagent.io/addresses": "10.0.0.1 10.0.0.256 fd00::1 nonsense 10.0.0.1/24 ::g"})
    assert found == NodeLease(("10.0.0.1", "fd00::1"))


def test_an_annotation_whose_key_is_not_that_of_the_observer_counts_for_nothing() -> None:
    """Its writer could not remove it: an observer looks for its own key."""
    found = read(annotations={"lbagent.io/addresses": "10.0.0.1", A_KEY: "b", "suspected.lbagent.io/b": "b"})
    assert found == NodeLease(("10.0.0.1",))
