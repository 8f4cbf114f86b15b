"""The patches of a Node: labels, addresses, taints."""

from __future__ import annotations

from typing import Any

import pytest

from lbagent.cloud.controller.nodes import node_rules
from lbagent.cloud.controller.nodes.node_rules import PROVIDED_IP, UNINITIALIZED, wanted_addresses
from lbagent.cloud.provider import InstanceMetadata, Node
from lbagent.objects.decode.decode_pod import SHUT_DOWN

INTERNAL, SECOND, SIX = ("InternalIP", "10.0.0.1"), ("InternalIP", "10.0.0.2"), ("InternalIP", "fd00::1")
EXTERNAL, HOST = ("ExternalIP", "198.51.100.1"), ("HostName", "n1")
ALL = (INTERNAL, SECOND, SIX, EXTERNAL)


@pytest.mark.parametrize(
    ("provided", "wanted"),
    [
        (None, (*ALL, HOST)),
        ("10.0.0.2", (SECOND, EXTERNAL, HOST)),
        ("198.51.100.1", (EXTERNAL, INTERNAL, SECOND, SIX, HOST)),
        ("fd00::1,10.0.0.2", (SIX, SECOND, EXTERNAL, HOST)),
        ("fd00:0::1, 10.0.0.1", (SIX, INTERNAL, EXTERNAL, HOST)),
    ],
)
def test_the_address_of_the_kubelet_comes_first(provided: str | None, wanted: Any) -> None:
    node = Node(name="n1", addresses=(HOST,), annotations={} if provided is None else {PROVIDED_IP: provided})
    assert wanted_addresses(node, ALL) == wanted


@pytest.mark.parametrize(
    ("provided", "problem"), [("10.0.0.9", "no address 10.0.0.9"), ("", "'' is not an address"), ("n1", "'n1'")]
)
def test_an_address_that_the_machine_has_not(provided: str, problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        wanted_addresses(Node(name="n1", annotations={PROVIDED_IP: provided}), ALL)


def test_no_address_and_another_name() -> None:
    node = Node(name="n1", addresses=(INTERNAL, HOST), annotations={PROVIDED_IP: "10.0.0.9"})
    assert wanted_addresses(node, ()) == ()
    other = ("HostName", "other")
    assert wanted_addresses(Node(name="n1", addresses=(HOST,)), (INTERNAL, other)) == (INTERNAL, other)


def test_the_order_of_addresses_counts() -> None:
    raw = {"status": {"addresses": [{"type": kind, "address": text} for kind, text in (INTERNAL, SECOND)]}}
    assert node_rules.addresses_patch(raw, (INTERNAL, SECOND)) is None
    assert node_rules.addresses_patch(raw, (SECOND, INTERNAL)) is not None
    assert node_rules.addresses_patch({}, (INTERNAL,)) is not None


def node(*taints: str, **spec: Any) -> dict[str, Any]:
    entries = [{"key": key, "effect": "NoSchedule"} for key in taints]
    return {"metadata": {"labels": {"a/b": "1"}}, "spec": {"taints": entries, **spec}}


def test_the_patch_that_initialises() -> None:
    metadata = InstanceMetadata(
        "p://1", "m", zone="z", additional_labels=(("a/b", "2"), ("c", "3"), ("x.k8s.io/y", "4"))
    )
    found = node_rules.initialising_patch(node(UNINITIALIZED, "mine"), metadata)
    assert found == {
        "spec": {"taints": [{"key": "mine", "effect": "NoSchedule"}], "providerID": "p://1"},
        "metadata": {
            "labels": {
                "node.kubernetes.io/instance-type": "m",
                "beta.kubernetes.io/instance-type": "m",
                "topology.kubernetes.io/zone": "z",
                "failure-domain.beta.kubernetes.io/zone": "z",
                "c": "3",
            }
        },
    }
    assert node_rules.initialising_patch(node("mine"), metadata) is None
    there = node_rules.initialising_patch(node(UNINITIALIZED, providerID="p://0"), metadata)
    assert there is not None
    assert there["spec"] == {"taints": None}


def test_older_names_of_labels_count() -> None:
    assert node_rules.outdated_labels(
        {"failure-domain.beta.kubernetes.io/zone": "z", "topology.kubernetes.io/zone": "y"}
    ) == {"topology.kubernetes.io/zone": "z"}
    assert node_rules.outdated_labels({"beta.kubernetes.io/instance-type": "m"}) == {
        "node.kubernetes.io/instance-type": "m"
    }
    assert node_rules.outdated_labels({"topology.kubernetes.io/region": "r"}) == {}
    same = {"failure-domain.beta.kubernetes.io/region": "r", "topology.kubernetes.io/region": "r"}
    assert node_rules.outdated_labels(same) == {}


def test_the_taint_of_a_machine_that_is_off() -> None:
    taint = {"key": SHUT_DOWN, "effect": "NoSchedule"}
    assert node_rules.shut_down_patch(node("mine"), off=False) is None
    on = node_rules.shut_down_patch(node("mine"), off=True)
    assert on == {"spec": {"taints": [{"key": "mine", "effect": "NoSchedule"}, taint]}}
    assert node_rules.shut_down_patch(node(SHUT_DOWN), off=True) is None
    ready = node("mine") | {"status": {"conditions": [{"type": "Ready", "status": "True"}]}}
    assert node_rules.shut_down_patch(ready, off=True) is None, "it runs by now"
    unknown = node("mine") | {"status": {"conditions": [{"type": "Ready", "status": "Unknown"}]}}
    assert node_rules.shut_down_patch(unknown, off=True) == on
    assert node_rules.shut_down_patch(node(SHUT_DOWN), off=False) == {"spec": {"taints": None}}
