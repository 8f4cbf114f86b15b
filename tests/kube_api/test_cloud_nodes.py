"""`lbagent cloud run --provider baremetal` with the real API server: Nodes are initialised, tainted, deleted, and have routes."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lbagent.cloud.controller.nodes.node_rules import PROVIDED_IP, UNINITIALIZED
from lbagent.objects.decode.decode_pod import SHUT_DOWN
from tests.kube_api.cloud_machines import LEASE_NAME, MORE, NODE_RIGHTS, Machines, write_plug_in
from tests.kube_api.cloud_process import ACCOUNT, WITHIN_S, CloudProcess, rights, verbs
from tests.kube_api.cluster import NODE
from tests.kube_api.control_plane import MERGE
from tests.kube_api.http_proxy import WriteFault
from tests.lab.netns import run

pytestmark = [pytest.mark.root]


def test_a_node_is_initialised(machines: Machines) -> None:
    machines.machine(
        "n1", "172.31.90.11", "fd00:90::11", id="4c4c-01", type="r640", zone="rack-7", externalAddresses=["198.51.100.11"],
        labels={"example.com/row": "b", "topology.kubernetes.io/zone": "no", "mine": "no"},
    )  # fmt: skip
    one = machines.start()
    machines.plane.ask("PATCH", f"/api/v1/nodes/{NODE}", {"metadata": {"labels": {"x": "y"}}}, MERGE)
    node = machines.add("n1")
    machines.plane.ask("PATCH", "/api/v1/nodes/n1", {"metadata": {"labels": {"mine": "yes"}}}, MERGE)
    one.until(lambda: UNINITIALIZED not in machines.taints("n1"), "the taint's end")
    found = machines.node("n1")
    assert found["spec"]["providerID"] == "baremetal://4c4c-01"
    labels = {key: text for key, text in found["metadata"]["labels"].items() if key != "mine"}
    assert labels == {
        "node.kubernetes.io/instance-type": "r640", "beta.kubernetes.io/instance-type": "r640",
        "topology.kubernetes.io/zone": "rack-7", "failure-domain.beta.kubernetes.io/zone": "rack-7",
        "topology.kubernetes.io/region": "home", "failure-domain.beta.kubernetes.io/region": "home",
        "example.com/row": "b",
    }  # fmt: skip
    assert machines.addresses("n1") == [
        ("InternalIP", "172.31.90.11"), ("InternalIP", "fd00:90::11"), ("ExternalIP", "198.51.100.11"), ("HostName", "n1.example"),
    ]  # fmt: skip
    one.until(lambda: "Synced" in machines.events("n1"), "the Event")
    event = machines.events("n1")["Synced"]
    assert (event["message"], event["source"]["component"]) == ("Node synced successfully", "cloud-node-controller")
    assert event["involvedObject"]["uid"] == node["metadata"]["uid"]
    assert machines.node("n1")["metadata"]["labels"]["mine"] == "yes"
    assert machines.node(NODE)["metadata"]["labels"]["x"] == "y"
    assert machines.addresses(NODE) == [("InternalIP", "10.7.0.1")]


def test_what_is_written_first_and_what_survives(machines: Machines) -> None:
    """Addresses are written before the taint is removed; a taint that is added at the same time stays."""
    seen: list[tuple[str, bool]] = []

    def note(write: Any) -> None:
        seen.append((write.resource, UNINITIALIZED in machines.taints("n1")))
        if write.resource == "nodes":
            machines.cloud.front.on_write = lambda _: None
            taints = machines.node("n1")["spec"]["taints"]
            mine = {"key": "mine", "effect": "NoSchedule"}
            machines.plane.ask("PATCH", "/api/v1/nodes/n1", {"spec": {"taints": [*taints, mine]}}, MERGE)

    machines.cloud.front.on_write = note
    machines.machine("n1", "172.31.90.11")
    one = machines.start()
    machines.add("n1")
    one.until(lambda: UNINITIALIZED not in machines.taints("n1"), "the taint's end")
    assert [each for each in seen if each[0] != "events"][:2] == [("nodes/status", True), ("nodes", True)]
    assert "mine" in machines.taints("n1")


def test_a_node_that_the_inventory_lacks_waits(machines: Machines) -> None:
    one = machines.start("--controllers", "cloud-node-controller")
    machines.add("late")
    one.until(lambda: "a Node was not initialised" in one.tail(), "the message")
    assert UNINITIALIZED in machines.taints("late")
    machines.machine("late", "172.31.90.12")
    one.configure(machines.inventory)
    one.until(lambda: UNINITIALIZED not in machines.taints("late"), "the taint's end")


def test_addresses_follow_the_inventory_and_the_kubelet(machines: Machines) -> None:
    machines.machine("n1", "172.31.90.11", "172.31.90.99", externalAddresses=["198.51.100.11"])
    machines.machine("n2", "172.31.90.12")
    one = machines.start()
    machines.add("n1", annotations={PROVIDED_IP: "172.31.90.99"})
    machines.add("n2", annotations={PROVIDED_IP: "192.0.2.1"})
    wanted = [("InternalIP", "172.31.90.99"), ("ExternalIP", "198.51.100.11"), ("HostName", "n1.example")]
    one.until(lambda: UNINITIALIZED not in machines.taints("n1"), "the taint's end")
    assert machines.addresses("n1") == wanted
    one.until(lambda: "the machine has no address 192.0.2.1" in one.tail(), "the message")
    assert UNINITIALIZED in machines.taints("n2")

    machines.machine("n1", "172.31.90.11", "172.31.90.99", externalAddresses=["198.51.100.12"])
    one.configure(machines.inventory)
    wanted[1] = ("ExternalIP", "198.51.100.12")
    one.until(lambda: machines.addresses("n1") == wanted, "the other address")
    machines.cloud.front.writes.clear()
    time.sleep(1.5)
    assert [each.path for each in machines.cloud.writes("nodes", "nodes/status") if "n1" in each.path] == []


def test_nodes_that_are_not_ready(machines: Machines) -> None:
    machines.machine("on", "172.31.90.11")
    machines.machine("off", "172.31.90.12", powered=False)
    machines.add("on")
    machines.add("off")
    machines.add("gone", taint=False)
    machines.add("gone-but-ready", taint=False)
    machines.add("of-another-provider", taint=False, providerID="other://1")
    machines.ready("gone-but-ready", "True")
    uid = machines.node("gone")["metadata"]["uid"]
    one = machines.start()
    one.until(lambda: machines.is_gone("gone"), "the deletion")
    one.until(lambda: SHUT_DOWN in machines.taints("off"), "the taint")
    assert SHUT_DOWN not in machines.taints("on")
    event = one.until(lambda: machines.events("gone").get("DeletingNode"), "the Event")
    assert event["message"] == "Deleting node gone because it does not exist in the cloud provider"
    assert event["involvedObject"]["uid"] == uid
    assert event["source"]["component"] == "cloud-node-lifecycle-controller"

    machines.ready("off", "True")
    one.until(lambda: SHUT_DOWN not in machines.taints("off"), "the taint's end")
    machines.ready("gone-but-ready", "Unknown")
    one.until(lambda: machines.is_gone("gone-but-ready"), "the deletion")
    for name in ("on", "off", "of-another-provider", NODE):
        assert not machines.is_gone(name)
    assert one.log.read_text().count("providerID other://1") == 2  # reported once by each of two controllers


def test_a_wrong_inventory_deletes_nothing(machines: Machines) -> None:
    machines.machine("n1", "172.31.90.11")
    machines.add("n1")
    one = machines.start()
    one.until(lambda: UNINITIALIZED not in machines.taints("n1"), "the taint's end")
    one.configure("machines: []")
    one.until(lambda: "baremetal.yaml:1: machines: at least one machine is needed" in one.tail(), "the message")
    one.configure("machines: [{name: n1, adresses: [172.31.90.11]}]")
    one.until(lambda: "machines[0].adresses: unknown key" in one.tail(), "the message")
    time.sleep(1.5)
    assert not machines.is_gone("n1")
    assert not machines.is_gone(NODE)


PLUG_IN = """
import asyncio, pathlib
from lbagent.cloud.provider import CloudProvider, InstanceMetadata, InstanceNotFound, InstancesV2, Instances, Zone, Zones
WHAT = pathlib.Path(__file__).with_name("what")
class Moody(InstancesV2):
    async def exists(self, node):
        if node.name != "n1":
            return True
        what = WHAT.read_text()
        with WHAT.with_name("asked").open("a") as asked:
            print(what, file=asked)
        if what == "silent":
            await asyncio.sleep(3600)
        if what == "timeout":
            raise TimeoutError
        if what == "broken":
            raise KeyError("what")
        if what == "not found":
            raise InstanceNotFound
        return {"none": None, "zero": 0, "no": False}[what]
    async def is_shut_down(self, node):
        return False
    async def metadata(self, node):
        return None
class Provider(CloudProvider):
    name = "moody"
    def __init__(self, config):
        pass
    def instances_v2(self):
        return Moody()
class Names(Instances):
    async def addresses(self, node_name):
        return (("InternalIP", "172.31.90.21"),)
    async def instance_id(self, node_name):
        if node_name == "gone":
            raise InstanceNotFound
        return f"i-{node_name}"
    async def instance_type(self, node_name):
        return "m1"
class Places(Zones):
    async def zone_of(self, node_name):
        return Zone("z", "r")
class Older(Provider):
    name = "older"
    def instances_v2(self):
        return None
    def instances(self):
        return Names()
    def zones(self):
        return Places()
"""


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """A folder for Python's path, with a package that has two providers."""
    return write_plug_in(tmp_path, PLUG_IN, moody="Provider", older="Older")


def test_only_a_clear_no_deletes(machines: Machines, site: Path) -> None:
    """No error, time-out or other answer does, in any number; False does at the second check."""
    what, asked = site / "what", site / "asked"
    what.write_text("timeout")
    machines.add("n1")
    one = machines.cloud.run("moody", "", *MORE, python_path=site)

    def count(word: str) -> int:
        return asked.read_text().splitlines().count(word) if asked.exists() else 0

    for word in ("timeout", "broken", "not found", "none", "zero"):
        what.write_text(word)
        one.until(lambda word=word: count(word) >= 4, word)
        assert not machines.is_gone("n1"), word
    what.write_text("no")
    one.until(lambda: machines.is_gone("n1"), "the deletion")
    assert count("no") == 2


def test_the_older_parts(machines: Machines, site: Path) -> None:
    one = machines.cloud.run("older", "", *MORE, python_path=site)
    machines.add("n1")
    machines.add("gone")
    one.until(lambda: UNINITIALIZED not in machines.taints("n1"), "the taint's end")
    node = machines.node("n1")
    assert node["spec"]["providerID"] == "older://i-n1"
    assert node["metadata"]["labels"]["node.kubernetes.io/instance-type"] == "m1"
    assert node["metadata"]["labels"]["topology.kubernetes.io/zone"] == "z"
    assert machines.addresses("n1")[0] == ("InternalIP", "172.31.90.21")
    one.until(
        lambda: machines.is_gone("gone"), "the deletion"
    )  # its name is unknown; for n1 the provider has no answer
    assert not machines.is_gone("n1")


@pytest.fixture
def router(machines: Machines) -> Iterator[Any]:
    """The namespace of the control plane, as the router of a node network."""
    namespace = machines.plane.namespace
    namespace.ip(
        "link add machines type veth peer name machines-end",
        "link set machines up",
        "link set machines-end up",
        "addr add 172.31.90.1/24 dev machines",
        "addr add fd00:90::1/64 dev machines nodad",
    )
    yield namespace
    namespace.ip("link del machines")


def test_routes_to_pods(machines: Machines, router: Any, tmp_path: Path) -> None:
    def routes(family: str = "-4") -> dict[str, str]:
        lines = run("ip", "-n", router.name, family, "route", "show", "table", "7654").splitlines()
        return {line.split()[0]: line.split()[2] for line in lines if line.split()[0] != "blackhole"}

    def restart() -> CloudProcess:
        plane = machines.plane
        config = plane.kubeconfig(plane.account_token(ACCOUNT), tmp_path / "inside", 6443)
        one = CloudProcess(
            tmp_path,
            config,
            "baremetal",
            machines.inventory,
            *MORE,
            "--cluster-cidr",
            "10.244.0.0/16,fd00:244::/56",
            namespace=router,
        )
        machines.cloud.processes.append(one)
        one.start()
        return one

    machines.inventory["routes"] = {"table": 7654, "protocol": 79}
    machines.machine("n1", "172.31.90.11", "fd00:90::11")
    machines.machine("n2", "172.31.90.12")
    machines.add("n1", podCIDRs=["10.244.1.0/24", "fd00:244:0:1::/64"], podCIDR="10.244.1.0/24")
    router.ip(
        "route add 10.244.9.0/24 via 172.31.90.12 table 7654 proto 79",  # of a deleted Node
        "route add blackhole 10.244.8.0/24 table 7654 proto 79",
        "route add 10.99.0.0/24 via 172.31.90.77 table 7654 proto 79",  # not of this cluster
        "route add 10.244.7.0/24 via 172.31.90.78 table 7654 proto 3",  # of another program
    )
    one = restart()
    kept = {"10.99.0.0/24": "172.31.90.77", "10.244.7.0/24": "172.31.90.78"}
    one.until(lambda: routes() == kept | {"10.244.1.0/24": "172.31.90.11"}, "the route")
    one.until(lambda: routes("-6") == {"fd00:244:0:1::/64": "fd00:90::11"}, "the IPv6 route")
    one.until(lambda: machines.network("n1") == ("False", "RouteCreated"), "the condition")
    assert "blackhole" not in run("ip", "-n", router.name, "route", "show", "table", "7654")

    machines.add("n2", podCIDRs=["10.244.2.0/24", "fd00:244:0:2::/64"], podCIDR="10.244.2.0/24")
    one.until(lambda: machines.network("n2") == ("True", "NoRouteCreated"), "the condition")
    assert routes()["10.244.2.0/24"] == "172.31.90.12"
    event = one.until(lambda: machines.events("n2").get("FailedToCreateRoute"), "the Event")
    uid = machines.node("n2")["metadata"]["uid"]
    assert f"Could not create route {uid} fd00:244:0:2::/64 for node n2: " in event["message"]
    assert "has no IPv6 address in the inventory" in event["message"]
    time.sleep(1.5)
    assert machines.events("n2")["FailedToCreateRoute"]["count"] == 1
    machines.machine("n1", "172.31.90.13", "fd00:90::11")
    machines.machine("n2", "172.31.90.12", "fd00:90::12")
    one.configure(machines.inventory)
    one.until(lambda: machines.network("n2") == ("False", "RouteCreated"), "the condition")
    one.until(lambda: routes().get("10.244.1.0/24") == "172.31.90.13", "the machine's other address")

    router.ip("route del 10.244.1.0/24 table 7654", "route add 10.244.1.0/24 dev machines table 7654 proto 3")
    one.until(lambda: machines.network("n1") == ("True", "NoRouteCreated"), "the condition")
    one.until(
        lambda: "another program has a route to it" in machines.events("n1")["FailedToCreateRoute"]["message"],
        "the Event",
    )
    router.ip("route del 10.244.1.0/24 table 7654 proto 3")
    one.until(lambda: machines.network("n1") == ("False", "RouteCreated"), "the condition")
    machines.plane.ask("DELETE", "/api/v1/nodes/n1")
    one.until(lambda: routes() == kept | {"10.244.2.0/24": "172.31.90.12"}, "the route's end")
    one.kill()
    assert routes()["10.244.2.0/24"] == "172.31.90.12"


def test_the_rights_of_the_overlay_are_enough_and_each_of_them_is_used(machines: Machines, tmp_path: Path) -> None:
    machines.machine("n1", "172.31.90.11", powered=False)
    machines.add("n1")
    machines.add("gone")
    front = machines.cloud.front
    front.write_faults.append(WriteFault("nodes", 409))
    one = machines.start("--leader-elect-resource-name", LEASE_NAME, elects=True)
    one.until(lambda: machines.is_gone("gone"), "the deletion")
    one.until(
        lambda: machines.taints("n1") >= {SHUT_DOWN} and UNINITIALIZED not in machines.taints("n1"), "both taints"
    )
    end = time.monotonic() + WITHIN_S
    while not front.asked >= verbs(rights(NODE_RIGHTS)) and time.monotonic() < end:
        time.sleep(0.3)
    assert front.asked >= verbs(rights(NODE_RIGHTS))
    assert front.asked <= verbs(rights()) | verbs(rights(NODE_RIGHTS))
