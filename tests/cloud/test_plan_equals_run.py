"""`cloud plan` and `cloud run` agree: for any Service and Nodes, the same name, nodes, ranges, mappings and refusals."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lbagent.cloud import pool_provider, request_plan
from lbagent.cloud.builtin.pool_balancers import PoolBalancers
from lbagent.cloud.controller.watched_objects import WatchedNode, WatchedService, watched
from lbagent.cloud.edge import edge_plan, edge_rules
from lbagent.cloud.edge.edge_balancers import EdgeBalancers
from lbagent.cloud.edge.edge_config import EdgeConfig, NodeChoice
from lbagent.cloud.edge.edge_rules import IGD, TYPE
from lbagent.cloud.manifest_records import service_record
from lbagent.cloud.planned_balancer import Action, PlannedBalancer
from lbagent.cloud.provider import Node, Refusal, Service, needs_update
from lbagent.cloud.provider_api.provider_rules import balanced_nodes, checked_source_ranges
from lbagent.objects.decode.decode_object import decode_json
from lbagent.objects.decode.decode_pod import EXCLUDED, TO_BE_DELETED
from lbagent.objects.decode.source_ranges import ANNOTATION
from lbagent.objects.records import NOWHERE, ObjectSnapshot
from lbagent.pools.read_pools import parse_pools

CLUSTER, KEY, UID = "home", "shop/web", "1b4e28ba-2fa1-11d2-883f-0016d3cca427"
POOLS = parse_pools('pools: [{name: office, addresses: [10.0.0.1-10.0.0.2, "fd00::1"], announce: [l2]}]', "pools.yaml")
RANGES = st.sampled_from([
    "10.0.0.0/8", "10.1.2.3/8", "192.0.2.0/24", "0.0.0.0/0", "::/0", "2001:db8::/32", "2001:db8::1/32",
    "10.0.0.1", "10.0.0.1/33", "foo.bar", "", " 192.0.2.0/24 ", "10.0.0.0/08", "10.0.0.0/255.0.0.0", "::ffff:10.0.0.0/104",
])  # fmt: skip
LISTS = st.one_of(st.none(), st.lists(RANGES, max_size=4))


@st.composite
def services(draw: st.DrawFn) -> dict[str, Any]:
    meta: dict[str, Any] = {"name": "web", "namespace": "shop", "uid": UID, "annotations": {}}
    if draw(st.integers(0, 7)):
        meta["annotations"][TYPE] = draw(st.sampled_from([IGD] * 9 + ["else"]))
    if draw(st.booleans()):
        meta["labels"] = {TYPE: IGD}
    if (found := draw(LISTS)) is not None:
        meta["annotations"][ANNOTATION] = ", ".join(found)
    families = draw(st.sampled_from([["IPv4"], ["IPv4"], ["IPv4"], ["IPv6"], ["IPv4", "IPv6"], ["IPv6", "IPv4"]]))
    numbers = draw(st.lists(st.sampled_from([80, 443, 53]), min_size=1, max_size=3, unique=True))
    ports = [
        {
            "name": f"p{number}",
            "port": number,
            "protocol": draw(st.sampled_from(["TCP"] * 8 + ["UDP"] * 8 + ["SCTP"])),
            "nodePort": draw(st.sampled_from([30000 + number] * 15 + [0])),
            "targetPort": draw(st.sampled_from([8080] * 15 + ["http"])),
        }
        for number in numbers
    ]
    spec: dict[str, Any] = {
        "type": "LoadBalancer",
        "clusterIP": "10.96.0.1" if families[0] == "IPv4" else "fd96::1",
        "ipFamilies": families,
        "ipFamilyPolicy": "SingleStack" if len(families) == 1 else "RequireDualStack",
        "ports": ports,
        "sessionAffinity": draw(st.sampled_from(["None"] * 7 + ["ClientIP"])),
        "publishNotReadyAddresses": draw(st.sampled_from([False] * 15 + [True])),
    }
    spec["clusterIPs"] = ["10.96.0.1" if word == "IPv4" else "fd96::1" for word in families]
    if (found := draw(LISTS)) is not None:
        spec["loadBalancerSourceRanges"] = found
    return {"apiVersion": "v1", "kind": "Service", "metadata": meta, "spec": spec}


@st.composite
def nodes(draw: st.DrawFn) -> list[dict[str, Any]]:
    found = []
    for number, name in enumerate(
        draw(st.lists(st.sampled_from("abcd"), min_size=draw(st.sampled_from([0, 2, 3])), max_size=4, unique=True))
    ):
        meta: dict[str, Any] = {"name": name, "labels": {}}
        if draw(st.integers(0, 3)) == 0:
            meta["labels"][EXCLUDED] = draw(st.sampled_from(["", "true", "false"]))
        if draw(st.integers(0, 5)) == 0:
            meta["deletionTimestamp"] = "2026-01-01T00:00:00Z"
        addresses = [
            {"type": "InternalIP", "address": f"fd00::{number}"},
            {"type": "ExternalIP", "address": "192.0.2.1"},
        ]
        addresses += [{"type": "InternalIP", "address": f"10.0.0.{10 + number}"}] * draw(st.sampled_from([1] * 7 + [0]))
        ready = draw(st.sampled_from(["True", "False", "Unknown", ""]))
        conditions = [{"type": "MemoryPressure", "status": "True"}, *[{"type": "Ready", "status": ready}] * bool(ready)]
        taints = [{"key": TO_BE_DELETED}] * draw(st.sampled_from([0, 0, 0, 1]))
        spec = {"taints": taints, "unschedulable": draw(st.booleans())}
        status = {"addresses": addresses, "conditions": conditions}
        found.append({"apiVersion": "v1", "kind": "Node", "metadata": meta, "spec": spec, "status": status})
    return found


def planned(service: dict[str, Any], machines: list[dict[str, Any]]) -> ObjectSnapshot:
    """Return the objects of `cloud plan`."""
    one = decode_json("Service", json.dumps(service).encode(), NOWHERE).obj
    others = [decode_json("Node", json.dumps(each).encode(), NOWHERE).obj for each in machines]
    return ObjectSnapshot(services={KEY: one}, nodes={each.key: each for each in others})  # type: ignore[dict-item, union-attr]


def run(service: dict[str, Any], machines: list[dict[str, Any]]) -> tuple[Service, list[Node]]:
    """Return the controller's arguments for a provider's `ensure`."""
    raw = json.dumps(service).encode()
    one = watched(decode_json("Service", raw, NOWHERE).obj, raw)
    others = [
        watched(decode_json("Node", each, NOWHERE).obj, each) for each in (json.dumps(m).encode() for m in machines)
    ]
    assert isinstance(one, WatchedService)
    return one.record, balanced_nodes([each.record for each in others if isinstance(each, WatchedNode)])


@given(services(), nodes())
def test_pools(service: dict[str, Any], machines: list[dict[str, Any]]) -> None:
    record, there = run(service, machines)
    balancers = PoolBalancers(POOLS)
    (row,) = pool_provider.plan(POOLS, planned(service, machines), "", lambda each: balancers.name(CLUSTER, each))
    (same,) = request_plan.plan(planned(service, machines), "", None, lambda each: balancers.name(CLUSTER, each))
    for each in (row, same):
        assert each.name == balancers.name(CLUSTER, record) == "a1b4e28ba2fa111d2883f0016d3cca42"
        assert list(each.nodes) == [node.name for node in there]
        same_ranges(each, record)


def same_ranges(row: PlannedBalancer, record: Service) -> None:
    ranges, problems = checked_source_ranges(record)
    assert row.source_ranges == ranges
    assert bool(problems) <= row.has_problem
    for problem in problems:
        assert problem in row.message


@pytest.mark.parametrize("choice", [NodeChoice.FIRST_READY, NodeChoice.EXACT_ONE])
@given(services(), nodes(), st.booleans())
def test_port_mappings(
    choice: NodeChoice, service: dict[str, Any], machines: list[dict[str, Any]], labels: bool
) -> None:
    config = EdgeConfig(node=choice, accept_labels=labels)
    record, there = run(service, machines)
    balancers = EdgeBalancers(config)
    (row,) = edge_plan.plan(config, planned(service, machines), "", CLUSTER)
    if row.action is Action.IGNORE:
        assert edge_rules.why_not_asked(config, record) == row.message
        return
    assert row.name == balancers.name(CLUSTER, record)
    if row.action is Action.REFUSE:
        with pytest.raises(Refusal) as refusal:
            balancers._wanted(CLUSTER, record, there)
        assert str(refusal.value) == row.message
        return
    mappings = balancers._wanted(CLUSTER, record, there)
    assert row.action is Action.ENSURE
    chosen = {text: node.name for node in there for _, text in node.addresses}
    assert row.nodes == tuple({chosen[each.client]: None for each in mappings})
    assert [(each.protocol, each.external_port, each.internal_port, each.description) for each in row.mappings] == [
        (each.protocol, each.external_port, each.internal_port, each.description) for each in mappings
    ]
    same_ranges(row, record)


@given(services(), st.sampled_from(["loadBalancerIP", "externalTrafficPolicy", "plain"]))
def test_no_rule_sees_a_difference(service: dict[str, Any], field: str) -> None:
    """The record of a manifest equals that of the API's object in all fields that rules compare."""
    if field == "loadBalancerIP":
        service["spec"][field] = "10.0.0.9"
    if field == "externalTrafficPolicy":
        service["spec"] |= {field: "Local", "healthCheckNodePort": 30999}
    for port in service["spec"]["ports"]:
        port["protocol"] = "TCP"
    service["spec"]["sessionAffinity"] = "None"
    service["spec"].setdefault("externalTrafficPolicy", "Cluster")
    record, _ = run(service, [])
    assert not needs_update(record, service_record(planned(service, []).services[KEY]))


def test_first_ready_is_the_first_node_that_is_ready() -> None:
    machines = [
        {
            "metadata": {"name": name},
            "status": {"addresses": [{"type": "InternalIP", "address": address}], "conditions": [ready]},
        }
        for name, address, ready in (
            ("a", "10.0.0.1", {"type": "Ready", "status": "False"}),
            ("b", "10.0.0.2", {"type": "Ready", "status": "True"}),
            ("c", "10.0.0.3", {"type": "Ready", "status": "True"}),
        )
    ]
    meta = {"name": "web", "namespace": "shop", "uid": UID, "annotations": {TYPE: IGD}}
    spec = {"type": "LoadBalancer", "ipFamilies": ["IPv4"], "ports": [{"port": 80, "nodePort": 30080}]}
    config = EdgeConfig(node=NodeChoice.FIRST_READY)
    (row,) = edge_plan.plan(config, planned({"metadata": meta, "spec": spec}, machines), "", CLUSTER)
    record, there = run({"metadata": meta, "spec": spec}, machines)
    assert row.nodes == ("b",)
    assert {each.client for each in EdgeBalancers(config)._wanted(CLUSTER, record, there)} == {"10.0.0.2"}


def test_a_service_without_a_uid_is_named_as_a_pattern() -> None:
    service = {
        "metadata": {"name": "web", "namespace": "shop"},
        "spec": {"type": "LoadBalancer", "ports": [{"port": 80}]},
    }
    balancers = PoolBalancers(POOLS)
    (row,) = pool_provider.plan(POOLS, planned(service, []), "", lambda each: balancers.name(CLUSTER, each))
    assert row.name == "a<uid>"
