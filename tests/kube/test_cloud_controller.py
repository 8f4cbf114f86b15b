"""`lbagent cloud run` before the real API server: what is written, in which order, and what the provider is asked for."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kube.cloud_process import ACCOUNT, FINALIZER, CloudLab, give_rights
from tests.kube.cluster import HOME, Cluster
from tests.kube.http_proxy import HttpProxy

pytestmark = [pytest.mark.root]


@pytest.fixture
def cloud(cluster: Cluster, tmp_path: Path) -> Iterator[CloudLab]:
    give_rights(cluster.plane)
    front = HttpProxy(cluster.plane)
    kubeconfig = cluster.plane.kubeconfig(cluster.plane.account_token(ACCOUNT), tmp_path / "kubeconfig", front.port)
    lab = CloudLab(cluster, front, kubeconfig, tmp_path)
    yield lab
    lab.close()
    front.close()


def test_finalizer_then_provider_then_status(cloud: CloudLab) -> None:
    seen: list[str] = []
    cloud.front.on_write = lambda write: seen.append(f"{write.resource} {len(cloud.calls())}")
    one = cloud.fake(status=[{"ip": "198.51.100.7", "ipMode": "Proxy", "ports": [{"port": 80, "protocol": "TCP"}]}])
    service = cloud.add("web")
    one.until(lambda: cloud.ips("web") == ["198.51.100.7"], "the address")
    first, second = cloud.writes("services/status")
    assert first.body["metadata"]["finalizers"] == [FINALIZER]
    assert "status" not in first.body
    assert second.body["status"]["loadBalancer"]["ingress"][0]["ip"] == "198.51.100.7"
    assert [each for each in seen if each.startswith("services")] == ["services/status 0", "services/status 1"]
    assert cloud.finalizers("web") == [FINALIZER]
    assert cloud.ingress("web") == [
        {"ip": "198.51.100.7", "ipMode": "Proxy", "ports": [{"port": 80, "protocol": "TCP"}]}
    ]
    uid = service["metadata"]["uid"]
    name = "a" + uid.replace("-", "")[:31]
    assert cloud.calls() == [
        {"op": "ensure", "service": "default/web", "uid": uid, "name": name, "nodes": ["demo-node"]}
    ]
    one.until(lambda: len(cloud.events("web")) == 2, "two Events")
    assert {key: (each["type"], each["message"]) for key, each in cloud.events("web").items()} == {
        "EnsuringLoadBalancer": ("Normal", "Ensuring load balancer"),
        "EnsuredLoadBalancer": ("Normal", "Ensured load balancer"),
    }
    assert len(cloud.front.writes) == 4


def test_deletion_and_another_type(cloud: CloudLab) -> None:
    one = cloud.fake()
    for name in ("gone", "other"):
        cloud.add(name)
        one.until(lambda name=name: cloud.ips(name), "the address")
    cloud.patch("other", {"metadata": {"finalizers": [FINALIZER, "example.com/mine"]}})
    cloud.cluster.delete_service("gone")
    cloud.patch("other", {"spec": {"type": "ClusterIP"}})
    one.until(lambda: cloud.is_gone("gone"), "the deletion")
    one.until(lambda: cloud.finalizers("other") == ["example.com/mine"], "the finalizer's end")
    assert cloud.ips("other") == []
    assert sorted(call["service"] for call in cloud.calls("delete")) == ["default/gone", "default/other"]
    one.until(lambda: "DeletedLoadBalancer" in cloud.events("other"), "the Event")
    assert cloud.events("other")["DeletingLoadBalancer"]["message"] == "Deleting load balancer"


def test_pool(cloud: CloudLab) -> None:
    pools = {"pools": [{"name": "office", "addresses": ["172.31.77.200-172.31.77.201"]}]}
    one = cloud.run("pool", pools)
    cloud.add("a")
    one.until(lambda: cloud.ips("a") == ["172.31.77.200"], "an address")
    cloud.add("b")
    one.until(lambda: cloud.ips("b") == ["172.31.77.201"], "an address")
    assert cloud.service("b")["metadata"]["annotations"] == {"lbagent.io/allocated-from": "office"}
    cloud.add("c")
    one.until(lambda: "AllocationFailed" in cloud.events("c"), "the Event")
    assert "office: 2 of 2 in use" in cloud.events("c")["AllocationFailed"]["message"]
    cloud.cluster.delete_service("a")
    one.until(lambda: cloud.ips("c") == ["172.31.77.200"], "the address that was freed")
    assert cloud.cluster.plane.send("GET", f"{HOME}/services/a")[0] == 404
