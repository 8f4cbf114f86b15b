"""The cloud controller with failing requests, and killed at any of them: one address each, none lost, no finalizer left."""

from __future__ import annotations

import time
from collections import Counter

import pytest

from tests.kube_api.cloud_process import FINALIZER, LEASE, CloudLab
from tests.kube_api.cluster import HOME
from tests.kube_api.http_proxy import Write, WriteFault
from tests.kube_api.write_faults import Killer, name_of, write_faults

pytestmark = [pytest.mark.root]
POOLS = {"pools": [{"name": "a", "addresses": ["10.9.0.1-10.9.0.9"]}]}
STATUS = "services/status"


@pytest.mark.parametrize("fault", write_faults(STATUS), ids=name_of)
def test_each_write_meets_a_fault(cloud: CloudLab, fault: WriteFault) -> None:
    """Finalizer, status, and their removal, without another call of the provider."""
    one = cloud.fake(elects=fault.silent)  # with an election a request has less time
    cloud.front.write_faults.append(fault)
    on_status = [fault]

    def again(write: Write) -> None:
        if "status" in write.body and on_status:
            cloud.front.write_faults.append(on_status.pop())

    cloud.front.on_write = again
    cloud.add("web")
    one.until(lambda: cloud.ips("web"), "the address")
    assert not cloud.front.write_faults
    assert not on_status
    assert cloud.finalizers("web") == [FINALIZER]
    assert len(cloud.calls("ensure")) == 1 or fault == WriteFault(STATUS, 409, passed_on=True)
    cloud.front.write_faults.append(fault)
    cloud.cluster.delete_service("web")
    one.until(lambda: cloud.is_gone("web"), "the deletion")
    assert len(cloud.calls("delete")) == 1
    one.until(lambda: "DeletedLoadBalancer" in cloud.events("web"), "the last Event")
    assert "SyncLoadBalancerFailed" not in cloud.events("web")


def test_a_server_that_fails_for_a_while(cloud: CloudLab) -> None:
    one = cloud.run("pool", POOLS)
    cloud.front.write_faults.extend([WriteFault(STATUS, 500)] * 9)
    for name in ("a", "b"):
        cloud.add(name)
    one.until(lambda: cloud.ips("a") and cloud.ips("b"), "both")
    assert not cloud.front.write_faults
    assert cloud.ips("a") + cloud.ips("b") == ["10.9.0.1", "10.9.0.2"]
    one.until(lambda: "SyncLoadBalancerFailed" in cloud.events("a") | cloud.events("b"), "the Event")


@pytest.mark.parametrize("passed_on", [False, True])
def test_killed_at_every_write(cloud: CloudLab, passed_on: bool) -> None:
    """It dies at its first write, the next time at its second one, and so on, until no write is left."""
    one = cloud.run("pool", POOLS, "--concurrent-syncs", "1")
    one.kill()
    killer = Killer(cloud, one, {STATUS}, passed_on=passed_on)
    names = ["a", "b", "c"]
    for name in names:
        cloud.add(name)
    seen: dict[str, list[str]] = {}

    def is_served() -> bool:
        _check(cloud, names, seen)
        return len(seen) == len(names)

    deaths = 0
    while killer.until_dead(deaths % 3, is_served):
        deaths += 1
        _check(cloud, names, seen)
        assert deaths < 20
    assert deaths >= 2
    assert sorted(ip for name in names for ip in cloud.ips(name)) == ["10.9.0.1", "10.9.0.2", "10.9.0.3"]
    for name in names:
        cloud.cluster.delete_service(name)
    deaths = 0
    while killer.until_dead(deaths % 3, lambda: all(map(cloud.is_gone, names))):
        deaths += 1
        assert deaths < 20
    assert deaths >= 1


def _check(cloud: CloudLab, names: list[str], seen: dict[str, list[str]]) -> None:
    """No address is used twice, none is lost, and none exists without the finalizer."""
    services = {item["metadata"]["name"]: item for item in cloud.cluster.plane.ask("GET", f"{HOME}/services")["items"]}
    held = Counter()
    for name in names:
        service = services[name]
        ips = [entry["ip"] for entry in service["status"]["loadBalancer"].get("ingress", [])]
        held.update(ips)
        assert not ips or FINALIZER in service["metadata"]["finalizers"]
        assert name not in seen or seen[name] == ips, (name, seen, ips)
        if ips:
            seen[name] = ips
    assert max(held.values(), default=1) == 1, held


def test_another_controller_takes_over(cloud: CloudLab) -> None:
    plane = cloud.cluster.plane
    one = cloud.run("pool", POOLS, elects=True, name="one")
    one.until(lambda: plane.send("GET", LEASE)[0] == 200, "the Lease")
    two = cloud.run("pool", POOLS, elects=True, name="two")

    def holder() -> str:
        return str(plane.ask("GET", LEASE)["spec"]["holderIdentity"]).partition("_")[0]

    cloud.add("a")
    one.until(lambda: cloud.ips("a") == ["10.9.0.1"], "the address")
    assert holder() == "one"
    one.kill()
    cloud.add("b")
    two.until(lambda: cloud.ips("b") == ["10.9.0.2"], "the address of the next one")
    assert holder() == "two"
    assert cloud.ips("a") == ["10.9.0.1"]
    assert [each.body["metadata"].get("uid") for each in cloud.writes(STATUS)].count(
        cloud.service("a")["metadata"]["uid"]
    ) == 2  # by the first one, once
    one.start()
    one.until(lambda: "cloud controller starts" in one.tail(), "its start")
    assert two.stop() == 0  # it releases the Lease
    assert holder() != "two"
    one.until(lambda: holder() == "one", "the Lease")
    cloud.add("c")
    one.until(lambda: cloud.ips("c") == ["10.9.0.3"], "the address")


def test_a_leader_that_cannot_renew_writes_nothing_and_comes_back(cloud: CloudLab) -> None:
    one = cloud.run("pool", POOLS, elects=True)
    cloud.add("a")
    one.until(lambda: cloud.ips("a"), "the address")
    cloud.front.write_faults.extend([WriteFault("leases", 500)] * 1000)
    one.until(lambda: "no longer leads" in one.tail(), "the end of the term")
    cloud.add("b")
    time.sleep(1)
    assert cloud.ips("b") == []
    cloud.front.write_faults.clear()
    one.until(lambda: cloud.ips("b") == ["10.9.0.2"], "the address")
    assert cloud.ips("a") == ["10.9.0.1"]


def test_a_server_that_is_not_there_yet(cloud: CloudLab) -> None:
    cloud.front.close()
    one = cloud.run("pool", POOLS, elects=True)
    one.until(lambda: "the Lease cannot be read or written" in one.tail(), "a message")
    assert one.process is not None
    assert one.process.poll() is None
    assert one.stop() == 0
