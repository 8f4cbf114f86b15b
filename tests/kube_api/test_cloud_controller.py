"""`lbagent cloud run` with the real API server: its writes, their order, and the calls of the provider."""

from __future__ import annotations

import time
import urllib.request

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.kube_api.cloud_process import FINALIZER, WITHIN_S, CloudLab, rights, verbs
from tests.kube_api.cluster import HOME
from tests.kube_api.control_plane import MERGE
from tests.kube_api.http_proxy import WriteFault
from tests.lab.ports import own_port

pytestmark = [pytest.mark.root]


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


def test_an_address_moves_by_a_wish_alone(cloud: CloudLab) -> None:
    pools = {"pools": [{"name": "a", "addresses": ["10.9.0.1-10.9.0.9"]}]}
    one = cloud.run("pool", pools)
    cloud.add("web")
    one.until(lambda: cloud.ips("web") == ["10.9.0.1"], "an address")

    one.configure({"pools": [{"name": "b", "addresses": ["10.9.1.1-10.9.1.2"], "autoAssign": True}]})
    one.until(lambda: "AddressNotInPool" in cloud.events("web"), "the Event")
    assert cloud.ips("web") == ["10.9.0.1"]
    one.until(lambda: not cloud.service("web")["metadata"].get("annotations"), "the end of the annotation")

    one.configure("pools: [{name: b, addresses: [10.9.1.1-10.9.0.1]}]")
    one.until(lambda: "pool.yaml:1: pools[0].addresses[0]" in one.tail(), "a message")
    cloud.add("more")
    one.until(lambda: cloud.ips("more") == ["10.9.1.1"], "an address of the pools as they were good last")

    cloud.patch("web", {"metadata": {"annotations": {"lbagent.io/load-balancer-ips": "10.9.1.1"}}})
    one.until(lambda: "AllocationFailed" in cloud.events("web"), "the refusal")
    assert "Service default/more has it" in cloud.events("web")["AllocationFailed"]["message"]
    assert cloud.ips("web") == ["10.9.0.1"]
    cloud.patch("web", {"metadata": {"annotations": {"lbagent.io/load-balancer-ips": "10.9.1.2"}}})
    one.until(lambda: cloud.ips("web") == ["10.9.1.2"], "the requested address")
    assert cloud.service("web")["metadata"]["annotations"]["lbagent.io/allocated-from"] == "b"


def test_the_oldest_that_waits_gets_what_is_freed(cloud: CloudLab) -> None:
    one = cloud.run("pool", {"pools": [{"name": "a", "addresses": ["10.9.0.1"]}]})
    cloud.add("first")
    one.until(lambda: cloud.ips("first"), "the address")
    cloud.add("b-older")
    time.sleep(1.1)  # creationTimestamp has whole seconds
    cloud.add("a-younger")
    one.until(lambda: "AllocationFailed" in cloud.events("a-younger"), "the Event")
    cloud.patch("first", {"spec": {"type": "NodePort"}})
    one.until(lambda: cloud.ips("b-older") == ["10.9.0.1"], "the freed address")
    assert cloud.ips("a-younger") == cloud.ips("first") == []
    assert cloud.finalizers("first") == []
    assert not cloud.service("first")["metadata"].get("annotations")
    cloud.cluster.delete_service("a-younger")
    one.until(lambda: cloud.is_gone("a-younger"), "the end of one that waited")


def test_a_status_that_another_program_empties_comes_back(cloud: CloudLab) -> None:
    one = cloud.run("pool", {"pools": [{"name": "a", "addresses": ["10.9.0.1-10.9.0.2"]}]})
    cloud.add("web")
    one.until(lambda: cloud.ips("web"), "the address")
    cloud.patch("web", {"status": {"loadBalancer": None}}, "/status")
    cloud.add("other")
    one.until(lambda: cloud.ips("web") == ["10.9.0.1"], "the same address")
    one.until(lambda: cloud.ips("other") == ["10.9.0.2"], "another address")


def test_a_restart_writes_nothing(cloud: CloudLab) -> None:
    pools = {"pools": [{"name": "a", "addresses": ["10.9.0.0/28"]}]}
    one = cloud.run("pool", pools)
    for name in ("a", "b", "c"):
        cloud.add(name)
        one.until(lambda name=name: len(cloud.events(name)) == 2 and cloud.ips(name), name)
    assert len(cloud.front.writes) == 12
    assert one.stop() == 0
    one.start()
    cloud.add("d")
    one.until(lambda: len(cloud.events("d")) == 2, "the Events of the last one")
    assert {write.body["metadata"].get("name", "d").partition(".")[0] for write in cloud.front.writes[12:]} == {"d"}
    assert [cloud.ips(name) for name in "abcd"] == [["10.9.0.1"], ["10.9.0.2"], ["10.9.0.3"], ["10.9.0.4"]]


def test_classes(cloud: CloudLab) -> None:
    cloud.add("plain")
    cloud.add("ours", loadBalancerClass="lbagent.io/xdp")
    cloud.add("theirs", loadBalancerClass="example.com/x")
    cloud.patch("theirs", {"metadata": {"finalizers": [FINALIZER]}})
    one = cloud.fake("--lb-class", "lbagent.io/xdp")
    one.until(lambda: cloud.ips("ours"), "the address")
    cloud.cluster.delete_service("theirs")
    cloud.cluster.delete_service("ours")
    one.until(lambda: cloud.is_gone("ours"), "the deletion")
    assert {call["service"] for call in cloud.calls()} == {"default/ours"}
    assert cloud.ips("plain") == cloud.finalizers("plain") == []
    assert cloud.finalizers("theirs") == [FINALIZER]


def test_a_provider_that_leaves_it_to_another_program(cloud: CloudLab) -> None:
    one = cloud.fake(fail=[{"op": "ensure", "implementedElsewhere": True}])
    cloud.add("web")
    one.until(lambda: cloud.calls("ensure"), "the call")
    one.until(lambda: cloud.events("web"), "an Event")
    time.sleep(1)
    assert len(cloud.calls("ensure")) == 1
    assert cloud.finalizers("web") == [FINALIZER]
    assert cloud.ips("web") == []
    assert set(cloud.events("web")) == {"EnsuringLoadBalancer"}


def test_failures_are_tried_again_and_told_once(cloud: CloudLab) -> None:
    one = cloud.fake(
        fail=[
            {"op": "ensure", "service": "default/web", "times": 3, "error": "quota exceeded"},
            {"op": "ensure", "service": "default/slow", "times": 1, "retryAfterSeconds": 2.0},
            {"op": "delete", "times": 2, "error": "busy"},
        ]
    )
    cloud.add("web")
    cloud.add("slow")
    one.until(lambda: cloud.calls("ensure"), "a call")
    one.until(lambda: cloud.ips("web") and cloud.ips("slow"), "both")
    assert sum(call["service"] == "default/web" for call in cloud.calls("ensure")) == 4
    assert sum(call["service"] == "default/slow" for call in cloud.calls("ensure")) == 2
    event = one.until(lambda: cloud.events("web").get("SyncLoadBalancerFailed"), "the Event")
    one.until(lambda: cloud.events("web")["SyncLoadBalancerFailed"]["count"] == 3, "three times")
    assert (event["type"], event["message"]) == ("Warning", "Error syncing load balancer: quota exceeded")
    cloud.cluster.delete_service("web")
    one.until(lambda: cloud.is_gone("web"), "the deletion")
    assert sum(call["service"] == "default/web" for call in cloud.calls("delete")) == 3


def test_nodes(cloud: CloudLab) -> None:
    def names(*ops: str) -> list[list[str]]:
        return [call["nodes"] for call in cloud.calls(*ops)]

    plane, node = cloud.cluster.plane, "/api/v1/nodes/second"
    one = cloud.fake(fail=[{"op": "update", "times": 1, "error": "not now"}])
    cloud.add("web")
    one.until(lambda: cloud.ips("web"), "the address")
    try:
        cloud.cluster.add_node("second", "10.7.0.2")
        one.until(lambda: len(cloud.calls("ensure")) == 2, "a whole sync after an update that failed")
        assert names("update") == [["demo-node", "second"]]
        assert names("ensure") == [["demo-node"], ["demo-node", "second"]]
        one.until(lambda: "UpdateLoadBalancerFailed" in cloud.events("web"), "the Event")
        text = "Error updating load balancer with new hosts [demo-node second]: not now"
        assert cloud.events("web")["UpdateLoadBalancerFailed"]["message"] == text
        label = {"node.kubernetes.io/exclude-from-external-load-balancers": ""}
        plane.ask("PATCH", node, {"metadata": {"labels": label}}, MERGE)
        one.until(lambda: len(cloud.calls("update")) == 2, "the update")
        plane.ask("PATCH", node, {"metadata": {"labels": {"x": "y"}}}, MERGE)
        plane.ask("PATCH", f"{node}/status", {"status": {"conditions": [{"type": "Ready", "status": "False"}]}}, MERGE)
        plane.ask("PATCH", node, {"spec": {"providerID": "fake://2"}}, MERGE)  # it is excluded
        plane.ask("PATCH", node, {"metadata": {"labels": {**dict.fromkeys(label)}}}, MERGE)
        one.until(lambda: len(cloud.calls("update")) == 3, "the update")
        one.until(lambda: "UpdatedLoadBalancer" in cloud.events("web"), "the Event")
    finally:
        plane.ask("DELETE", node)
    one.until(lambda: len(cloud.calls("update")) == 4, "the last update")
    assert names("update") == [["demo-node", "second"], ["demo-node"], ["demo-node", "second"], ["demo-node"]]
    assert len(cloud.calls("ensure")) == 2


def test_a_service_that_another_one_replaced(cloud: CloudLab) -> None:
    one = cloud.fake()
    old = cloud.add("web")["metadata"]["uid"]
    one.until(lambda: cloud.ips("web"), "the address")
    cloud.patch("web", {"metadata": {"finalizers": None}})
    cloud.cluster.delete_service("web")
    new = cloud.add("web")["metadata"]["uid"]
    one.until(lambda: cloud.ips("web"), "the address")
    calls = [(call["op"], call["uid"]) for call in cloud.calls()]
    assert calls[0] == ("ensure", old)
    assert calls.index(("delete", old)) < calls.index(("ensure", new))


def test_finalizers_that_a_dead_controller_left(cloud: CloudLab) -> None:
    one = cloud.fake()
    for name in ("gone", "other"):
        cloud.add(name)
        one.until(lambda name=name: cloud.ips(name), name)
    one.kill()
    cloud.cluster.delete_service("gone")
    cloud.patch("other", {"spec": {"type": "ClusterIP"}})
    one.start()
    one.until(lambda: cloud.is_gone("gone") and not cloud.finalizers("other"), "the cleanup")
    assert cloud.ips("other") == []
    assert sorted(call["service"] for call in cloud.calls("delete")) == ["default/gone", "default/other"]


def test_an_edit_between_reading_and_writing_survives(cloud: CloudLab) -> None:
    def edit(write: object) -> None:
        if "status" in getattr(write, "body", {}):
            cloud.front.on_write = lambda _: None
            cloud.patch(
                "web", {"metadata": {"annotations": {"note": "mine"}}, "spec": {"publishNotReadyAddresses": True}}
            )

    cloud.front.on_write = edit
    one = cloud.fake()
    cloud.add("web")
    one.until(lambda: cloud.ips("web"), "the address")
    service = cloud.service("web")
    assert service["metadata"]["annotations"] == {"note": "mine"}
    assert service["spec"]["publishNotReadyAddresses"] is True
    assert len(cloud.writes("services/status")) == 3  # the second one was refused
    assert "SyncLoadBalancerFailed" not in cloud.events("web")


def test_health_and_metrics(cloud: CloudLab) -> None:
    health, metrics = own_port(), own_port()
    one = cloud.run(
        "pool", {"pools": [{"name": "a", "addresses": ["10.9.0.1", "fd00:9::/120"]}]},
        "--health-address", f"127.0.0.1:{health}", "--metrics-address", f"127.0.0.1:{metrics}",
    )  # fmt: skip
    cloud.add("web")
    cloud.add("more")
    one.until(
        lambda: cloud.events("web") and "AllocationFailed" in (cloud.events("more") | cloud.events("web")), "both"
    )

    def get(port: int, path: str) -> str:
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        return str(opener.open(f"http://127.0.0.1:{port}{path}", timeout=30).read().decode())

    assert '"healthy":true' in get(health, "/healthz")
    samples = {
        (sample.name, *sorted(sample.labels.values())): sample.value
        for family in text_string_to_metric_families(get(metrics, "/metrics"))
        for sample in family.samples
    }
    assert samples["lbagent_cloud_pool_addresses", "IPv4", "a"] == 1
    assert samples["lbagent_cloud_pool_in_use", "IPv4", "a"] == 1
    assert samples["lbagent_cloud_pool_addresses", "IPv6", "a"] == 255
    assert samples["lbagent_cloud_allocations_failed_total", "a", "no_address"] == 1
    assert samples["service_controller_loadbalancer_sync_total",] >= 2
    assert samples["service_controller_nodesync_error_total",] == 0
    assert ("service_controller_nodesync_latency_seconds_count",) in samples
    assert ("service_controller_update_loadbalancer_host_latency_seconds_count",) in samples


def test_the_shipped_rights_are_enough_and_each_of_them_is_used(cloud: CloudLab) -> None:
    given = verbs(rights())
    one = cloud.run("pool", {"pools": [{"name": "a", "addresses": ["10.9.0.1"]}]}, elects=True)
    cloud.front.write_faults.append(WriteFault("services/status", 409))
    cloud.add("web")
    one.until(lambda: cloud.ips("web"), "the address")
    cloud.add("more")
    one.until(lambda: "AllocationFailed" in cloud.events("more"), "the Event")
    assert one.stop() == 0
    one.start()
    one.until(lambda: cloud.events("more")["AllocationFailed"]["count"] >= 2, "the same Event again")
    end = time.monotonic() + WITHIN_S
    while cloud.front.asked < given and time.monotonic() < end:
        cloud.front.cut()  # a broken watch starts again with a list, to detect a restored server
        time.sleep(3)
    assert cloud.front.asked == given


def test_many_at_once(cloud: CloudLab) -> None:
    """Each has its own address after two patches and two Events."""
    names = [f"web-{number}" for number in range(40)]
    one = cloud.run("pool", {"pools": [{"name": "a", "addresses": ["10.9.0.1-10.9.0.40"]}]})
    for name in names:
        cloud.add(name)

    def addresses() -> list[str]:
        found = cloud.cluster.plane.ask("GET", f"{HOME}/services")["items"]
        return [each["ip"] for item in found for each in item["status"]["loadBalancer"].get("ingress", [])]

    one.until(lambda: len(addresses()) == len(names), "every address")
    assert len(set(addresses())) == len(names)
    one.until(lambda: len(cloud.front.writes) >= 4 * len(names), "the Events")
    assert len(cloud.front.writes) == 4 * len(names)
