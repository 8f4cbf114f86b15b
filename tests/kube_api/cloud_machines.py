"""Nodes and their machines, for tests of the cloud controllers of Nodes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from lbagent.cloud.controller.nodes.node_rules import UNINITIALIZED
from tests.kube_api.cloud_process import CloudLab, CloudProcess
from tests.kube_api.cluster import NODE
from tests.kube_api.control_plane import MERGE, STRATEGIC, Obj

HERE = {"name": NODE, "addresses": ["10.7.0.1"]}  # the Node that all tests have: it is not ready
MORE = (
    "--node-monitor-period",
    "300ms",
    "--node-status-update-frequency",
    "500ms",
    "--route-reconciliation-period",
    "500ms",
)
LEASE_NAME = "lbagent-cloud-nodes"
NODE_RIGHTS = "nodes/rbac.yaml"


class Machines:
    """Nodes as from kubelets, and the inventory of their machines."""

    def __init__(self, cloud: CloudLab) -> None:
        self.cloud, self.plane = cloud, cloud.cluster.plane
        self.inventory: Obj = {"machines": [HERE], "region": "home"}

    def machine(self, name: str, *addresses: str, **more: Any) -> None:
        self.inventory["machines"] = [each for each in self.inventory["machines"] if each["name"] != name]
        self.inventory["machines"].append({"name": name, "addresses": list(addresses), **more})

    def start(self, *more: str, **options: Any) -> CloudProcess:
        return self.cloud.run("baremetal", self.inventory, *MORE, *more, **options)

    def add(self, name: str, *, taint: bool = True, annotations: Obj | None = None, **spec: Any) -> Obj:
        """Create a Node as a kubelet with a cloud provider does."""
        if taint:
            spec["taints"] = [{"key": UNINITIALIZED, "value": "true", "effect": "NoSchedule"}]
        meta = {"name": name, "annotations": annotations or {}}
        self.plane.ask("POST", "/api/v1/nodes", {"apiVersion": "v1", "kind": "Node", "metadata": meta, "spec": spec})
        status = {"addresses": [{"type": "HostName", "address": f"{name}.example"}]}
        return dict(self.plane.ask("PATCH", f"/api/v1/nodes/{name}/status", {"status": status}, MERGE))

    def ready(self, name: str, status: str) -> None:
        condition = {"type": "Ready", "status": status}
        self.plane.ask("PATCH", f"/api/v1/nodes/{name}/status", {"status": {"conditions": [condition]}}, STRATEGIC)

    def node(self, name: str) -> Obj:
        return dict(self.plane.ask("GET", f"/api/v1/nodes/{name}"))

    def is_gone(self, name: str) -> bool:
        return self.plane.send("GET", f"/api/v1/nodes/{name}")[0] == 404

    def taints(self, name: str) -> set[str]:
        return {taint["key"] for taint in self.node(name)["spec"].get("taints", ())}

    def addresses(self, name: str) -> list[tuple[str, str]]:
        return [(each["type"], each["address"]) for each in self.node(name)["status"].get("addresses", ())]

    def network(self, name: str) -> tuple[str, str]:
        found = self.node(name)["status"].get("conditions", ())
        return next(
            ((each["status"], each["reason"]) for each in found if each["type"] == "NetworkUnavailable"), ("", "")
        )

    def events(self, name: str) -> dict[str, Obj]:
        found = self.plane.ask("GET", "/api/v1/namespaces/default/events")["items"]
        return {each["reason"]: each for each in found if each["involvedObject"]["name"] == name}

    def close(self) -> None:
        """End the controllers and remove the created objects."""
        for each in self.cloud.processes:
            each.close()
        for name in self.cloud.cluster.names("/api/v1/nodes"):
            if name != NODE:
                self.plane.send("DELETE", f"/api/v1/nodes/{name}")
        self.plane.send("DELETE", f"/apis/coordination.k8s.io/v1/namespaces/kube-system/leases/{LEASE_NAME}")


def write_plug_in(folder: Path, text: str, **providers: str) -> Path:
    """Create a package `plugged` with these providers, each with the name of its class; return the folder for Python's path."""
    info = folder / "site" / "plugged-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: plugged\nVersion: 1.0\n")
    lines = [f"{name} = plugged:{made}" for name, made in providers.items()]
    (info / "entry_points.txt").write_text("\n".join(["[lbagent.cloud_providers]", *lines]) + "\n")
    (info.parent / "plugged.py").write_text(text)
    return info.parent
