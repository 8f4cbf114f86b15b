"""`lbagent cloud`: what Services of type LoadBalancer would get, from manifests."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import Run, lb, no_agent  # noqa: F401

POOLS = 'pools: [{name: office, addresses: [10.0.0.1-10.0.0.2, "fd00::1"], announce: [l2]}]'
PLUG_IN = """
from lbagent.cloud.provider import CloudProvider, LoadBalancer, LoadBalancerStatus

class Balancers(LoadBalancer):
    def name(self, cluster, service):
        return f"{cluster}-{service.name}"
    async def get(self, cluster, service):
        return None
    async def ensure(self, cluster, service, nodes):
        return LoadBalancerStatus()
    async def update(self, cluster, service, nodes):
        pass
    async def ensure_deleted(self, cluster, service):
        pass

class make(CloudProvider):
    def __init__(self, config):
        pass
    def load_balancer(self):
        return Balancers()
"""
NODE = (
    "apiVersion: v1\nkind: Node\nmetadata: {name: n1%s}\nstatus: {addresses: [{type: InternalIP, address: %s}]}\n---\n"
)


def service(name: str, spec: str = "", meta: str = "", status: str = "", kind: str = "LoadBalancer") -> str:
    return (
        f"apiVersion: v1\nkind: Service\nmetadata: {{name: {name}, namespace: shop{meta}}}\n"
        f"spec: {{type: {kind}, clusterIP: 10.96.0.1, ports: [{{port: 80, nodePort: 30080}}]{spec}}}\n"
        + (f"status: {{loadBalancer: {{ingress: [{{ip: {status}}}]}}}}\n" if status else "")
        + "---\n"
    )


class Planner:
    def __init__(self, lb: Run, folder: Path) -> None:  # noqa: F811
        self.lb, self.folder = lb, folder
        (folder / "pools.yaml").write_text(POOLS)

    def rows(self, text: str, *more: str, code: int = 0) -> dict[str, dict[str, Any]]:
        (self.folder / "m").mkdir(exist_ok=True)
        (self.folder / "m" / "a.yaml").write_text(text)
        arguments = ["-f", str(self.folder / "m"), "--provider", "pool", "--config", str(self.folder / "pools.yaml")]
        done = self.lb("cloud", "plan", *arguments, *more, "-o", "json")
        assert done.code == code, done.err
        return {row["service"]: row for row in json.loads(done.out)}


@pytest.fixture
def planner(lb: Run, no_agent: None, tmp_path: Path) -> Planner:  # noqa: F811
    return Planner(lb, tmp_path)


def test_a_row(planner: Planner) -> None:
    text = NODE % ("", "10.0.0.1") + service(
        "web", ", loadBalancerSourceRanges: [192.0.2.0/24]", ", uid: 0a1b2c3d-0000-1111-2222-333344445555"
    )
    assert planner.rows(text) == {
        "shop/web": {
            "service": "shop/web",
            "action": "ensure",
            "name": "a0a1b2c3d00001111222233334444555",  # a, the UID without dashes, 32 characters
            "addresses": ["10.0.0.2"],  # the first one is a node's
            "pool": "office",
            "mappings": [],
            "nodes": ["n1"],
            "source_ranges": ["192.0.2.0/24"],
            "message": "",
        }
    }


@pytest.mark.parametrize(
    ("text", "lb_class", "action", "message"),
    [
        (service("s"), "", "ensure", ""),
        (service("s", kind="ClusterIP"), "", "ignore", "type ClusterIP"),
        (service("s", ", loadBalancerClass: x/y"), "", "ignore", "loadBalancerClass x/y"),
        (service("s", ", loadBalancerClass: x/y"), "x/y", "ensure", ""),
        (service("s"), "x/y", "ignore", "it has no loadBalancerClass x/y"),
        (
            service("s", meta=', deletionTimestamp: "2026-01-01T00:00:00Z"'),
            "",
            "ignore",
            "it is being deleted",
        ),
        (
            service(
                "s",
                meta=', deletionTimestamp: "2026-01-01T00:00:00Z", finalizers: [service.kubernetes.io/load-balancer-cleanup]',
            ),
            "",
            "delete",
            "",
        ),
        (
            service("s", meta=", finalizers: [service.kubernetes.io/load-balancer-cleanup]", kind="ClusterIP"),
            "",
            "delete",
            "",
        ),
        (service("s", meta=", finalizers: [example.com/other]", kind="ClusterIP"), "", "ignore", "type ClusterIP"),
    ],
)
def test_actions(planner: Planner, text: str, lb_class: str, action: str, message: str) -> None:
    row = planner.rows(text, *(["--lb-class", lb_class] if lb_class else []))["shop/s"]
    assert (row["action"], row["message"]) == (action, message)


def test_a_status_counts_as_given_whatever_its_mode(planner: Planner) -> None:
    rows = planner.rows(service("a") + service("b", status="10.0.0.1, ipMode: Proxy") + service("c", status="10.0.0.9"))
    assert {key: row["addresses"] for key, row in rows.items()} == {
        "shop/a": ["10.0.0.2"],
        "shop/b": ["10.0.0.1"],
        "shop/c": ["10.0.0.9"],
    }
    assert rows["shop/c"]["message"] == "10.0.0.9 is in no pool, and kept"


def test_what_others_have_is_not_given(planner: Planner) -> None:
    text = service("a") + service("theirs", ", loadBalancerClass: x/y", status="10.0.0.1")
    rows = planner.rows(text + service("plain", ", externalIPs: [10.0.0.2]", kind="ClusterIP"), code=1)
    assert rows["shop/a"]["action"] == "refuse"
    assert rows["shop/a"]["message"] == "no IPv4 address is free: office: 2 of 2 in use"


def test_families_in_their_order_and_both_or_none(planner: Planner) -> None:
    families = ", ipFamilies: [IPv6, IPv4], ipFamilyPolicy: RequireDualStack"
    rows = planner.rows(service("a", families) + service("b", families), code=1)
    assert rows["shop/a"]["addresses"] == ["fd00::1", "10.0.0.1"]
    assert (rows["shop/b"]["action"], rows["shop/b"]["addresses"]) == ("refuse", [])


def test_sharing_and_policy(planner: Planner) -> None:
    shared = ", annotations: {lbagent.io/allow-shared-ip: k}"
    local = ", externalTrafficPolicy: Local, selector: {app: web}"
    rows = planner.rows(
        service("a", "", shared)
        + service("b", "", shared).replace("port: 80", "port: 81")
        + service("c", local, shared).replace("port: 80", "port: 82")
        + service("d", local, shared).replace("port: 80", "port: 83"),
    )
    assert {key: row["addresses"] for key, row in rows.items()} == {
        "shop/a": ["10.0.0.1"],
        "shop/b": ["10.0.0.1"],
        "shop/c": ["10.0.0.2"],
        "shop/d": ["10.0.0.2"],
    }


def test_a_wish(planner: Planner) -> None:
    rows = planner.rows(service("a", ", loadBalancerIP: 10.0.0.2") + service("b", ", loadBalancerIP: 10.0.0.7"), code=1)
    assert rows["shop/a"]["addresses"] == ["10.0.0.2"]
    assert (rows["shop/b"]["addresses"], rows["shop/b"]["message"]) == (
        [],
        "10.0.0.7 is requested, and no pool has it",
    )


@pytest.mark.parametrize(
    ("meta", "nodes"),
    [
        ("", ["n1"]),
        (", labels: {node.kubernetes.io/exclude-from-external-load-balancers: ''}", []),
        (", labels: {node.kubernetes.io/exclude-from-external-load-balancers: 'true'}", []),
        (", labels: {node.kubernetes.io/exclude-from-external-load-balancers: 'false'}", ["n1"]),
        (', deletionTimestamp: "2026-01-01T00:00:00Z"', []),
    ],
)
def test_nodes(planner: Planner, meta: str, nodes: list[str]) -> None:
    assert planner.rows(NODE % (meta, "192.0.2.1") + service("s"))["shop/s"]["nodes"] == nodes


@pytest.mark.parametrize(
    ("spec", "meta", "ranges"),
    [
        ("", "", ["0.0.0.0/0"]),
        (", ipFamilies: [IPv4, IPv6]", "", ["0.0.0.0/0", "::/0"]),
        ("", ", annotations: {service.beta.kubernetes.io/load-balancer-source-ranges: '10.0.0.0/8, 192.0.2.0/24'}", ["10.0.0.0/8", "192.0.2.0/24"]),
    ],
)  # fmt: skip
def test_source_ranges(planner: Planner, spec: str, meta: str, ranges: list[str]) -> None:
    assert planner.rows(service("s", spec, meta))["shop/s"]["source_ranges"] == ranges


def test_source_ranges_that_are_refused_are_named(planner: Planner) -> None:
    key = "service.beta.kubernetes.io/load-balancer-source-ranges"
    meta = f", annotations: {{{key}: '10.1.2.3/8, foo.bar, 10.0.0.1/33, 10.0.0.1, 10.0.0.0/8'}}"
    row = planner.rows(service("s", "", meta), code=1)["shop/s"]
    assert row["source_ranges"] == ["10.0.0.0/8"]  # host bits masked, once
    for bad in ("foo.bar", "10.0.0.1/33", "10.0.0.1"):
        assert f"{key}: {bad!r}" in row["message"]
    assert planner.rows(service("s", ", loadBalancerSourceRanges: [192.0.2.0/24]", meta))["shop/s"][
        "source_ranges"
    ] == ["192.0.2.0/24"]


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["--provider", "cloudy"], "unknown provider 'cloudy'; there are: none, pool"),
        (["--provider", "pool"], "provider pool needs the pools file"),
        (["--provider", "pool", "--config", "bad.yaml"], "bad.yaml:1: pools[0].addresses: it is missing"),
        (["--provider", "none", "-f", "nowhere"], "nowhere: No such file or directory"),
    ],
)
def test_wrong_usage(planner: Planner, monkeypatch: pytest.MonkeyPatch, arguments: list[str], problem: str) -> None:
    monkeypatch.chdir(planner.folder)
    Path("bad.yaml").write_text("pools: [{name: a}]")
    done = planner.lb("cloud", "plan", "-f", ".", *arguments)
    assert done.code == 2
    assert problem in done.err


def test_provider_none_ignores_everything(planner: Planner) -> None:
    (planner.folder / "m").mkdir()
    (planner.folder / "m" / "a.yaml").write_text(service("s"))
    done = planner.lb("cloud", "plan", "-f", str(planner.folder / "m"), "--provider", "none", "-o", "json")
    assert [(row["service"], row["action"]) for row in json.loads(done.out)] == [("shop/s", "ignore")]


def test_the_fake_provider_gives_what_its_file_says(planner: Planner) -> None:
    config = planner.folder / "fake.yaml"
    config.write_text("status: [{ip: 198.51.100.7}, {hostname: lb.example}]\n")
    more = ("--provider", "fake", "--config", str(config))
    found = planner.rows(NODE % ("", "10.0.0.1") + service("web") + service("other", ", loadBalancerClass: x"), *more)
    assert (found["shop/web"]["action"], found["shop/web"]["addresses"]) == ("ensure", ["198.51.100.7"])
    assert (found["shop/web"]["nodes"], found["shop/other"]["action"]) == (["n1"], "ignore")
    config.write_text("statuses: []\n")
    done = planner.lb("cloud", "plan", "-f", str(planner.folder / "m"), *more)
    assert (done.code, f"{config}:1: statuses: unknown key" in done.err) == (2, True)


def test_of_a_provider_without_a_plan_its_own_only_status_is_known(planner: Planner, tmp_path: Path) -> None:
    plug_in = tmp_path / "plugin"
    info = plug_in / "someprovider-1.0.dist-info"
    info.mkdir(parents=True)
    info.joinpath("METADATA").write_text("Metadata-Version: 2.1\nName: someprovider\nVersion: 1.0\n")
    info.joinpath("entry_points.txt").write_text("[lbagent.cloud_providers]\nsome = some_provider:make\n")
    plug_in.joinpath("some_provider.py").write_text(PLUG_IN)
    sys.path.insert(0, str(plug_in))
    try:
        found = planner.rows(service("web") + service("old", status="10.0.0.9"), "--provider", "some")
    finally:
        sys.path.remove(str(plug_in))
    assert (found["shop/web"]["action"], found["shop/web"]["addresses"]) == ("ensure", [])
    assert "known after a request to the provider" in found["shop/web"]["message"]
    assert (found["shop/old"]["addresses"], found["shop/old"]["message"]) == (["10.0.0.9"], "")
    assert found["shop/web"]["name"] == "kubernetes-web"  # the plug-in's own


def test_pools_and_providers(planner: Planner) -> None:
    planner.rows(service("a", status="10.0.0.1"))
    config = str(planner.folder / "pools.yaml")
    done = planner.lb("cloud", "pools", "--config", config, "-f", str(planner.folder / "m"), "-o", "json")
    assert [(row["family"], row["in_use"], row["addresses"]) for row in json.loads(done.out)] == [
        ("IPv4", 1, 2),
        ("IPv6", 0, 1),
    ]
    assert [row["name"] for row in json.loads(planner.lb("cloud", "providers", "-o", "json").out)] == [
        "none",
        "pool",
        "edge",
        "baremetal",
        "fake",
    ]


def test_config_check_announce(planner: Planner) -> None:
    config = str(planner.folder / "pools.yaml")
    done = planner.lb("config", "check", "--announce", config)
    assert (done.code, done.out) == (0, f"{config}: ok\nconfiguration: ok\n")
    (planner.folder / "pools.yaml").write_text("pool: []\n")
    done = planner.lb("config", "check", "--announce", config)
    assert (done.code, done.err) == (2, f"error: {config}:1: pool: unknown key; did you mean 'pools'?\n")
