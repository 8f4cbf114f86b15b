"""Which Services get mappings, to which node, and the rows of `cloud plan`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lbagent.cloud.edge import edge_rules
from lbagent.cloud.edge.edge_config import EdgeConfig, NodeChoice
from lbagent.cloud.edge.edge_rules import NoNode, Owner
from lbagent.cloud.provider import Node, Service, ServicePort
from tests.cli.conftest import Run, lb, no_agent  # noqa: F401

ASKS = {edge_rules.TYPE: edge_rules.IGD}
NAMES = st.from_regex(r"[a-z0-9]([-a-z0-9]{0,10}[a-z0-9])?", fullmatch=True)


def service(*ports: ServicePort, **fields: Any) -> Service:
    some = ports or (ServicePort("http", "TCP", 80, 30080, 8080),)
    given_fields = {
        "namespace": "shop",
        "name": "web",
        "type": "LoadBalancer",
        "annotations": ASKS,
        "ports": some,
    } | fields
    return Service(**given_fields)


@pytest.mark.parametrize(
    ("found", "problem"),
    [
        (service(), ""),
        (service(load_balancer_ip="192.0.2.1", source_ranges=("192.0.2.0/24",), external_traffic_policy="Local"), ""),
        (service(ip_families=("IPv6", "IPv4")), ""),
        (service(ServicePort("a", "TCP", 53, 30053), ServicePort("b", "UDP", 53, 30053, "")), ""),
        (service(annotations={edge_rules.TYPE: "igd"}), "unsupported value 'igd'; upnp-igd is possible"),
        (service(type="NodePort"), "type NodePort is not LoadBalancer"),
        (service(cluster_ips=("None",)), "headless"),
        (service(publish_not_ready_addresses=True), "publishNotReadyAddresses"),
        (service(ip_families=("IPv6",)), "ipFamilies: IPv6"),
        (service(session_affinity="ClientIP"), "sessionAffinity ClientIP"),
        (service(ServicePort("a", "SCTP", 80, 30080)), "port a: protocol SCTP"),
        (service(ServicePort("", "TCP", 80, 30080, "http")), "port 80: targetPort 'http' is a name"),
        (service(ServicePort("a", "TCP", 80, 30080), ServicePort("b", "TCP", 81, 0)), "port b: it has no nodePort"),
    ],
)
def test_refusals(found: Service, problem: str) -> None:
    text = edge_rules.why_refused(found)
    assert problem in text
    assert bool(text) == bool(problem)


def test_who_asks() -> None:
    labelled = service(annotations={}, labels=ASKS)
    assert edge_rules.why_not_asked(EdgeConfig(), service()) == ""
    assert "no annotation" in edge_rules.why_not_asked(EdgeConfig(), service(annotations={}))
    assert "is a label" in edge_rules.why_not_asked(EdgeConfig(), labelled)
    assert edge_rules.why_not_asked(EdgeConfig(accept_labels=True), labelled) == ""
    assert edge_rules.why_refused(labelled) == ""
    assert "unsupported value" in edge_rules.why_refused(service(annotations={}, labels={edge_rules.TYPE: "x"}))


@given(NAMES, NAMES, NAMES, NAMES | st.just(""))
def test_a_description_says_whose_a_mapping_is(cluster: str, namespace: str, name: str, port: str) -> None:
    found = service(ServicePort(port, "UDP", 53, 30053), namespace=namespace, name=name)
    (mapping,) = edge_rules.mappings_of(cluster, found, "192.0.2.1")
    assert mapping.description == f"{cluster}/{namespace}/{name}/{port}"
    assert edge_rules.owner_of(mapping.description) == Owner(cluster, found.key, port)
    assert (mapping.protocol, mapping.external_port, mapping.internal_port) == ("UDP", 53, 30053)


@given(st.text("ab/ ", max_size=12))
def test_other_descriptions_are_of_no_one(text: str) -> None:
    found = edge_rules.owner_of(text)
    assert found is None or f"{found.cluster}/{found.service}/{found.port}" == text


def node(name: str, *addresses: str, ready: bool = False, kind: str = "InternalIP") -> Node:
    return Node(name=name, ready=ready, addresses=tuple((kind, each) for each in addresses))


def test_the_node() -> None:
    one, two = node("n1", "192.0.2.1"), node("n2", "fd00::2", "192.0.2.2", ready=True)
    assert edge_rules.choose_node(NodeChoice.EXACT_ONE, [one], "") is one
    assert edge_rules.choose_node(NodeChoice.SELF, [two, one], "n1") is one
    assert edge_rules.choose_node(NodeChoice.FIRST_READY, [two, one], "") is two
    assert edge_rules.choose_node(NodeChoice.FIRST_READY, [node("n3"), one], "") is one  # none is ready
    assert edge_rules.node_address(two) == "192.0.2.2"
    for choice, nodes, name, problem in (
        (NodeChoice.EXACT_ONE, [one, two], "", r"must be exactly 1 \(2 given\)"),
        (NodeChoice.EXACT_ONE, [], "", r"must be exactly 1 \(0 given\)"),
        (NodeChoice.SELF, [one], "n9", "'n9'"),
        (NodeChoice.SELF, [one], "", "--node-name"),
        (NodeChoice.FIRST_READY, [], "", "no node"),
    ):
        with pytest.raises(NoNode, match=problem):
            edge_rules.choose_node(choice, nodes, name)
    with pytest.raises(NoNode, match="error getting node 'n1' internal IP"):
        edge_rules.node_address(node("n1", "192.0.2.1", kind="ExternalIP"))
    assert edge_rules.node_choice(EdgeConfig(), "") is NodeChoice.EXACT_ONE
    assert edge_rules.node_choice(EdgeConfig(), "n1") is NodeChoice.SELF
    assert edge_rules.node_choice(EdgeConfig(node=NodeChoice.FIRST_READY), "n1") is NodeChoice.FIRST_READY


# --- the plan ---

NODE = "apiVersion: v1\nkind: Node\nmetadata: {name: n1}\nstatus: {addresses: [{type: InternalIP, address: 192.0.2.101}]}\n---\n"


def yaml(
    name: str, port: str = "port: 80, nodePort: 30080", meta: str = "", spec: str = "", value: str = "upnp-igd"
) -> str:
    annotation = f", annotations: {{{edge_rules.TYPE}: {value}}}" if value else ""
    return (
        f"apiVersion: v1\nkind: Service\nmetadata: {{name: {name}, namespace: shop{annotation}{meta}}}\n"
        f"spec: {{type: LoadBalancer, clusterIP: 10.96.0.1, ports: [{{name: http, {port}}}]{spec}}}\n---\n"
    )


@pytest.fixture
def rows(lb: Run, no_agent: None, tmp_path: Path) -> Any:  # noqa: F811
    def run(text: str, *more: str, code: int = 0, config: str = "") -> dict[str, dict[str, Any]]:
        (tmp_path / "m").mkdir(exist_ok=True)
        (tmp_path / "m" / "a.yaml").write_text(text)
        (tmp_path / "c.yaml").write_text(config)
        arguments = ["--config", str(tmp_path / "c.yaml")] if config else []
        done = lb("cloud", "plan", "-f", str(tmp_path / "m"), "--provider", "edge", *arguments, *more, "-o", "json")
        assert done.code == code, done.err
        return {row["service"]: row for row in json.loads(done.out)}

    return run


def test_a_planned_row(rows: Any) -> None:
    text = NODE + yaml("web", spec=", loadBalancerSourceRanges: [192.0.2.0/24]")
    assert rows(text, "--cluster-name", "home", config="externalIP: 203.0.113.9") == {
        "shop/web": {
            "service": "shop/web",
            "action": "ensure",
            "name": "home/shop/web",
            "addresses": ["203.0.113.9"],
            "pool": "",
            "mappings": [
                {"protocol": "TCP", "external_port": 80, "internal_port": 30080, "description": "home/shop/web/http"}
            ],
            "nodes": ["n1"],
            "source_ranges": ["192.0.2.0/24"],
            "message": "",
        }
    }


def test_planned_refusals(rows: Any) -> None:
    text = NODE + "".join(
        (
            yaml("plain", value=""),
            yaml("other", value="else"),
            yaml("named", "port: 81, nodePort: 30081, targetPort: http"),
            yaml("affine", "port: 82, nodePort: 30082", spec=", sessionAffinity: ClientIP"),
            yaml("unready", "port: 83, nodePort: 30083", spec=", publishNotReadyAddresses: true"),
            yaml("bare", "port: 84"),
            yaml("sctp", "port: 85, nodePort: 30085, protocol: SCTP"),
            yaml("young", meta=', creationTimestamp: "2026-01-02T00:00:00Z"'),
            yaml("old", meta=', creationTimestamp: "2026-01-01T00:00:00Z"'),
            yaml("class", spec=", loadBalancerClass: x/y"),
        )
    )
    found = {key.removeprefix("shop/"): (row["action"], row["message"]) for key, row in rows(text, code=1).items()}
    assert found["plain"] == ("ignore", "it has no annotation midokura.com/load-balancer-type: upnp-igd")
    assert found["class"][0] == "ignore"
    assert found.pop("old") == ("ensure", "")
    assert found["young"] == ("refuse", "80/TCP is mapped for Service shop/old")
    words = {
        "other": "else",
        "named": "targetPort",
        "affine": "sessionAffinity",
        "unready": "publishNotReady",
        "bare": "nodePort",
        "sctp": "SCTP",
    }
    for name, word in words.items():
        assert found[name][0] == "refuse", name
        assert word in found[name][1], found[name]


def test_planned_nodes(rows: Any) -> None:
    two = NODE + NODE.replace("n1", "n2").replace("101", "102")
    assert rows(NODE + yaml("web"))["shop/web"]["nodes"] == ["n1"]
    assert "must be exactly 1 (2 given)" in rows(two + yaml("web"), code=1)["shop/web"]["message"]
    assert rows(two + yaml("web"), config="node: first-ready")["shop/web"]["nodes"] == ["n1"]
    assert rows(two + yaml("web"), config="node: self")["shop/web"]["nodes"] == []


def test_a_wrong_configuration_of_the_plan(lb: Run, no_agent: None, tmp_path: Path) -> None:  # noqa: F811
    (tmp_path / "a.yaml").write_text(yaml("web"))
    (tmp_path / "c.conf").write_text("\nlease: never")
    done = lb(
        "cloud", "plan", "-f", str(tmp_path / "a.yaml"), "--provider", "edge", "--config", str(tmp_path / "c.conf")
    )
    assert (done.code, f"{tmp_path}/c.conf:2: lease: 'never' is no time" in done.err) == (2, True)
