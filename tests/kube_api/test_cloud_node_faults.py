"""The controllers of Nodes with failing requests, killed at any of them, and two at once: no Node is tainted or deleted wrongly."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from lbagent.cloud.controller.nodes.node_rules import UNINITIALIZED
from lbagent.objects.decode.decode_pod import SHUT_DOWN
from tests.kube_api.cloud_machines import MORE, Machines, write_plug_in
from tests.kube_api.cloud_process import CloudProcess
from tests.kube_api.cluster import NODE
from tests.kube_api.control_plane import MERGE, Obj
from tests.kube_api.http_proxy import Write, WriteFault
from tests.kube_api.write_faults import Killer, name_of, write_faults
from tests.lab.netns import LabError

pytestmark = [pytest.mark.root]
WRITTEN = ("nodes", "nodes/status")
NETWORKS = {"new": "10.244.1.0/24", "on": "10.244.2.0/24"}
LEFT = "10.244.9.0/24"  # a route to the pods of a deleted Node
MINE = {"key": "mine", "effect": "NoSchedule"}

PLUG_IN = """
import json, pathlib
from lbagent.cloud.provider import CloudProvider, InstanceMetadata, InstancesV2, Route, Routes
HERE = pathlib.Path(__file__).parent
def read(name):
    return json.loads((HERE / name).read_text())
def write(name, value):
    (HERE / "new").write_text(json.dumps(value))
    (HERE / "new").replace(HERE / name)
class Inventory(InstancesV2):
    async def exists(self, node):
        return node.name in read("machines")
    async def is_shut_down(self, node):
        return read("machines")[node.name]["off"]
    async def metadata(self, node):
        if node.name not in read("machines"):
            raise LookupError(node.name)
        return InstanceMetadata(f"kept://{node.name}", addresses=(("InternalIP", read("machines")[node.name]["ip"]),))
class Ways(Routes):
    async def list(self, cluster):
        return [Route(to, node, to) for to, node in read("routes").items()]
    async def create(self, cluster, name_hint, route):
        write("routes", read("routes") | {route.destination: route.target_node})
    async def delete(self, cluster, route):
        write("routes", {to: node for to, node in read("routes").items() if to != route.destination})
class Kept(CloudProvider):
    name = "kept"
    def __init__(self, config):
        pass
    def instances_v2(self):
        return Inventory()
    def routes(self):
        return Ways()
"""


class Site:
    """Nodes in each state, and a provider whose machines and routes are files."""

    def __init__(self, machines: Machines, folder: Path) -> None:
        self.machines, self.cloud = machines, machines.cloud
        self.missing: list[str] = []
        self.folder = write_plug_in(folder, PLUG_IN, kept="Kept")
        self.inventory: dict[str, Obj] = {}
        for name, ip in ((NODE, "10.7.0.1"), ("new", "172.31.90.11"), ("on", "172.31.90.12"), ("off", "172.31.90.13")):
            self.install(name, ip, off=name == "off")
        (self.folder / "routes").write_text(json.dumps({LEFT: "left"}))
        for name in ("on", "off", "gone", "gone-but-ready"):
            cidr = {"podCIDRs": [NETWORKS[name]], "podCIDR": NETWORKS[name]} if name in NETWORKS else {}
            machines.add(name, taint=False, providerID=f"kept://{name}", **cidr)
        machines.ready("gone-but-ready", "True")
        machines.plane.ask("PATCH", "/api/v1/nodes/off", {"spec": {"taints": [MINE]}}, MERGE)
        machines.add("new", podCIDRs=[NETWORKS["new"]], podCIDR=NETWORKS["new"])

    def install(self, name: str, ip: str, *, off: bool = False) -> None:
        """Add a machine."""
        self.inventory[name] = {"ip": ip, "off": off}
        (self.folder / "machines.new").write_text(json.dumps(self.inventory))
        (self.folder / "machines.new").replace(self.folder / "machines")

    def start(self, **options: Any) -> CloudProcess:
        return self.cloud.run("kept", "", *MORE, "--cluster-cidr", "10.244.0.0/16", python_path=self.folder, **options)

    def routes(self) -> dict[str, str]:
        return dict(json.loads((self.folder / "routes").read_text()))

    def is_done(self) -> bool:
        """Return whether each Node matches its machine; assert the invariants."""
        self.assert_right()
        machines = self.machines
        wanted = {
            "initialised": UNINITIALIZED not in machines.taints("new"),
            "tainted": SHUT_DOWN in machines.taints("off"),
            "deleted": machines.is_gone("gone"),
            "conditions": all(machines.network(name) == ("False", "RouteCreated") for name in NETWORKS),
            "addresses": all(
                ("InternalIP", each["ip"]) in machines.addresses(name) for name, each in self.inventory.items()
            ),
            "routes": self.routes() == {to: name for name, to in NETWORKS.items()},
        }
        self.missing = [name for name, is_so in wanted.items() if not is_so]
        return not self.missing

    def assert_right(self) -> None:
        found = {item["metadata"]["name"]: item for item in self.machines.plane.ask("GET", "/api/v1/nodes")["items"]}
        assert found.keys() >= {NODE, "new", "on", "off", "gone-but-ready"}
        tainted = {name for name, item in found.items() if SHUT_DOWN in json.dumps(item["spec"].get("taints", ()))}
        assert tainted <= {"off"}
        assert MINE in found["off"]["spec"]["taints"]
        new = found["new"]
        is_waiting = UNINITIALIZED in json.dumps(new["spec"].get("taints", ()))
        assert is_waiting != bool(new["spec"].get("providerID")), "the taint goes with what it waits for"
        assert is_waiting or {"type": "InternalIP", "address": "172.31.90.11"} in new["status"]["addresses"]
        deleted = {write.path.rsplit("/", 1)[1] for write in self.cloud.writes("nodes") if write.method == "DELETE"}
        assert deleted <= {"gone"}


@pytest.fixture
def site(machines: Machines, tmp_path: Path) -> Site:
    return Site(machines, tmp_path)


def until_done(one: CloudProcess, site: Site) -> None:
    try:
        one.until(site.is_done, "each Node as its machine is", 25)
    except LabError as error:
        raise LabError(f"not done: {site.missing}\n{error}") from None


class EachWrite:
    """Applies a fault to each write once; writes of another kind, or to another Node, count separately."""

    def __init__(self, site: Site, fault: WriteFault) -> None:
        self._faults, self._fault = site.cloud.front.write_faults, fault
        self.met: set[tuple[str, str, str]] = set()
        site.cloud.front.on_write = self

    def __call__(self, write: Write) -> None:
        part = next(
            (name for name in ("taints", "conditions", "addresses") if f'"{name}"' in json.dumps(write.body)), ""
        )
        key = (write.method, write.path, part)
        if write.resource in WRITTEN and key not in self.met:
            self.met.add(key)
            self._faults.append(self._fault._replace(resource=write.resource))


@pytest.mark.parametrize("fault", write_faults("nodes"), ids=name_of)
def test_each_write_meets_a_fault(site: Site, fault: WriteFault) -> None:
    """Addresses, labels and taint, the condition, the taint of a machine that is off, its end, and the deletion."""
    met = EachWrite(site, fault).met
    one = site.start(elects=fault.silent)  # with an election a request has less time
    until_done(one, site)
    site.machines.ready("off", "True")
    one.until(lambda: site.machines.taints("off") == {"mine"}, "the taint's end")
    assert {(method, part) for method, _, part in met} == {
        ("PATCH", "addresses"),
        ("PATCH", "taints"),
        ("PATCH", "conditions"),
        ("DELETE", ""),
    }
    if fault.status != 409 or not fault.passed_on:  # a refusal of an applied write counts as a refusal
        one.until(lambda: "Synced" in site.machines.events("new"), "the Event")
        assert site.machines.events("new")["Synced"]["count"] == 1
    assert site.machines.events("gone")["DeletingNode"]["count"] == 1
    site.assert_right()


@pytest.mark.parametrize("passed_on", [False, True])
def test_killed_at_every_write(site: Site, passed_on: bool) -> None:
    """It dies at its first write, the next time at its second one, and so on, until no write is left."""
    one = site.start()
    one.kill()
    killer, deaths = Killer(site.cloud, one, WRITTEN, passed_on=passed_on), 0
    while killer.until_dead(deaths % 3, site.is_done):
        deaths += 1
        site.assert_right()
        assert deaths < 30
    assert deaths >= 2


def test_two_at_once(site: Site) -> None:
    """Without an election, and with faults between them."""
    EachWrite(site, WriteFault("nodes", 500, passed_on=True))
    both = [site.start(name=name) for name in ("one", "two")]
    for each in both:
        until_done(each, site)
    site.machines.ready("off", "True")
    both[0].until(lambda: site.machines.taints("off") == {"mine"}, "the taint's end")
    for each in both:
        assert each.stop() == 0
    site.assert_right()


def test_another_one_takes_over(site: Site) -> None:
    one, two = site.start(elects=True, name="one"), site.start(elects=True, name="two")
    until_done(one, site)
    for first, second, name in ((one, two, "late"), (two, one, "later")):
        first.kill()
        site.install(name, "172.31.90.14")
        site.machines.add(name)
        second.until(lambda name=name: UNINITIALIZED not in site.machines.taints(name), "the taint's end", 120)
        first.start()
    site.assert_right()


def test_a_node_that_changes_at_the_moment_of_the_write(site: Site) -> None:
    """One returns before its deletion, with the same name; one becomes ready before it gets the taint."""
    met = set()

    def change(write: Write) -> None:
        if write.path in met:
            return
        if write.method == "DELETE":
            site.machines.plane.ask("DELETE", "/api/v1/nodes/gone")
            site.install("gone", "172.31.90.15")
            site.machines.add("gone")
            met.add(write.path)
        elif write.path.endswith("/off") and SHUT_DOWN in json.dumps(write.body):
            met.add(write.path)
            site.machines.ready("off", "True")

    site.cloud.front.on_write = change
    one = site.start()
    one.until(lambda: len(met) == 2, "both writes")
    one.until(lambda: UNINITIALIZED not in site.machines.taints("gone"), "the Node that is back")
    one.until(lambda: site.machines.network("on") == ("False", "RouteCreated"), "the routes")
    assert site.machines.node("gone")["spec"]["providerID"] == "kept://gone"
    patches = [write for write in site.cloud.writes("nodes") if write.path.endswith("/off")]
    assert len(patches) == 1, "it was not written again for a Node that is ready"
    assert site.machines.taints("off") == {"mine"}
