"""The own Node: the fields in use; a change of its taints builds no Service again."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from lbagent.model.address import L4Type, parse_ip
from lbagent.objects.decode.decode_object import decode_object
from lbagent.objects.records import Node, ObjectChange, Origin, Service, ServicePort
from lbagent.resolve import Options, Resolver


@pytest.mark.parametrize(
    ("more", "leaves"),
    [
        ({}, False),
        ({"spec": {"taints": None}}, False),
        ({"spec": {"taints": [{"key": "node.kubernetes.io/unschedulable"}, None]}}, False),
        ({"spec": {"taints": [{"key": "ToBeDeletedByClusterAutoscaler", "value": "1"}]}}, True),
        ({"metadata": {"name": "n1", "deletionTimestamp": "2026-01-01T00:00:00Z"}}, True),
    ],
)
def test_a9_a_node_that_is_about_to_go_away(more: dict[str, Any], leaves: bool) -> None:
    found = decode_object({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n1"}} | more, Origin())
    assert isinstance(found.obj, Node)
    assert (found.obj.leaves, found.messages) == (leaves, ())


@pytest.mark.parametrize(
    ("more", "cordoned", "shuts_down"),
    [
        ({}, False, False),
        ({"spec": {"unschedulable": True}}, True, False),
        ({"spec": {"taints": [{"key": "node.cloudprovider.kubernetes.io/shutdown"}]}}, False, True),
        ({"status": {"conditions": [None, {"type": "Ready", "message": "node is shutting down"}]}}, False, True),
        ({"status": {"conditions": [{"type": "Ready", "message": "kubelet is posting ready status"}]}}, False, False),
    ],
)
def test_a_node_that_is_cordoned_or_shuts_down(more: dict[str, Any], cordoned: bool, shuts_down: bool) -> None:
    meta = {"name": "n1", "labels": {"role": "edge", 7: None}}
    node = decode_object({"apiVersion": "v1", "kind": "Node", "metadata": meta} | more, Origin()).obj
    assert isinstance(node, Node)
    assert (node.cordoned, node.shuts_down, node.leaves) == (cordoned, shuts_down, False)
    assert node.labels["role"] == "edge"


def test_a4_a_zone_or_address_concerns_every_service_and_a_taint_none() -> None:
    resolver, node = Resolver(Options("n1")), Node("n1", internal_ips=(parse_ip("192.0.2.1"),))
    port = ServicePort("http", L4Type.TCP, 80, 30080)
    web = Service("d", "web", type="NodePort", families=(4,), ports=(port,))
    resolver.update([ObjectChange("Node", "n1", None, node), ObjectChange("Service", "d/web", None, web)])
    known = resolver.resolve()
    resolver.update([ObjectChange("Node", "n1", node, replace(node, leaves=True))])
    assert resolver.resolve() is known
    moved = replace(node, leaves=True, internal_ips=(parse_ip("192.0.2.2"),))
    resolver.update([ObjectChange("Node", "n1", node, moved)])
    assert [svc.frontend.ip for svc in resolver.resolve().state.services] == ["0.0.0.0", "192.0.2.2"]
    resolver.update([ObjectChange("Node", "n1", moved, replace(moved, zone="a"))])
    assert resolver.local_node().zone == "a"
