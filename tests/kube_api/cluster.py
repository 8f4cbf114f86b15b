"""The objects in the API server: nodes, Services, and Pods that consist of their status. The controller creates the slices."""

from __future__ import annotations

import copy
from collections.abc import Iterable
from typing import Any

import yaml

from tests.kube_api.control_plane import MERGE, ControlPlane, Obj
from tests.lab.agent import KubeAgent
from tests.lab.netns import wait_for
from tests.lab.topology import ROOT

NODE = KubeAgent.name
RBAC = ROOT / "deploy" / "kubernetes" / "rbac.yaml"
CRD = ROOT / "deploy" / "kubernetes" / "backendstates.yaml"
POLICY_CRD = ROOT / "deploy" / "kubernetes" / "localredirectpolicies.yaml"
CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
BACKEND_STATES = "/apis/lbagent.io/v1alpha1/backendstates"
POLICIES = {
    "LocalRedirectPolicy": "/apis/lbagent.io/v1alpha1/namespaces/default/localredirectpolicies",
    "CiliumLocalRedirectPolicy": "/apis/cilium.io/v2/namespaces/default/ciliumlocalredirectpolicies",
}
ROLE = "/apis/rbac.authorization.k8s.io/v1/clusterroles/lbagent"
BINDING = "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings"
HOME = "/api/v1/namespaces/default"
SLICES = "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices"
NAMESPACE_READY_S = 20


def manifest() -> list[Obj]:
    """Return the objects of the manifest with the agent's rights."""
    return list(yaml.safe_load_all(RBAC.read_text()))


def collection(obj: Obj) -> str:
    """Return the path to which an object of the manifest is posted."""
    api, meta = obj["apiVersion"], obj["metadata"]
    root = f"/api/{api}" if "/" not in api else f"/apis/{api}"
    within = f"/namespaces/{meta['namespace']}" if "namespace" in meta else ""
    return f"{root}{within}/{obj['kind'].lower()}s"


class Cluster:
    """Makes and changes objects of the namespace default."""

    def __init__(self, plane: ControlPlane) -> None:
        self.plane = plane

    def prepare(self, *, node: bool = True) -> None:
        """Create the agent's account and rights in a new cluster, and by default a node."""
        for namespace in ("default", "kube-system"):
            wait_for(
                lambda name=namespace: self.plane.send("GET", f"/api/v1/namespaces/{name}")[0] == 200,
                f"the namespace {namespace}",
                NAMESPACE_READY_S,
            )
        for obj in manifest():
            self.plane.ask("POST", collection(obj), obj)
        if node:
            self.add_node(NODE)

    def clear(self) -> None:
        """Delete the objects of a test; the node, the rights and default/kubernetes stay."""
        for name in self.names(f"{HOME}/services"):
            if name != "kubernetes":
                self.plane.ask("DELETE", f"{HOME}/services/{name}")
        self.plane.ask("DELETE", f"{HOME}/pods?gracePeriodSeconds=0")
        others = "kubernetes.io/service-name!=kubernetes"
        wait_for(lambda: self._clear_slices(others), "the end of the slices", 20)
        self.plane.ask("DELETE", f"{HOME}/events")
        for path in (BACKEND_STATES, *POLICIES.values()):
            self.plane.send("DELETE", path)

    def _clear_slices(self, selector: str) -> bool:
        self.plane.ask("DELETE", f"{SLICES}?labelSelector={selector}")
        return not self.plane.ask("GET", f"{SLICES}?labelSelector={selector}")["items"]

    def names(self, path: str) -> list[str]:
        return [item["metadata"]["name"] for item in self.plane.ask("GET", path)["items"]]

    # --- nodes ---

    def add_node(self, name: str, address: str = "10.7.0.1", zone: str = "a") -> None:
        labels = {"topology.kubernetes.io/zone": zone, "kubernetes.io/hostname": name}
        meta = {"name": name, "labels": labels}
        self.plane.ask("POST", "/api/v1/nodes", {"apiVersion": "v1", "kind": "Node", "metadata": meta})
        status = {"addresses": [{"type": "InternalIP", "address": address}]}
        self.plane.ask("PATCH", f"/api/v1/nodes/{name}/status", {"status": status}, MERGE)

    # --- services ---

    def add_service(
        self, name: str, *, selector: bool = True, annotations: dict[str, str] | None = None, **spec: Any
    ) -> Obj:
        """Create a Service for the Pods with its name; the server chooses its address unless `clusterIPs` is given."""
        ports = spec.pop("ports", [{"name": "http", "port": 80, "protocol": "TCP", "targetPort": 8080}])
        body = {"ports": ports, **({"selector": {"app": name}} if selector else {}), **spec}
        meta = {"name": name, "namespace": "default", "annotations": annotations or {}}
        return dict(
            self.plane.ask(
                "POST", f"{HOME}/services", {"apiVersion": "v1", "kind": "Service", "metadata": meta, "spec": body}
            )
        )

    def add_services(self, count: int) -> None:
        """Make Services web-0, web-1, ... without Pods, each with a slice of one endpoint."""
        for number in range(count):
            self.add_service(f"web-{number}", selector=False)
            self.put_slice(f"web-{number}-x", f"web-{number}", f"10.244.1.{number + 1}")

    def patch_service(self, name: str, patch: Obj) -> None:
        self.plane.ask("PATCH", f"{HOME}/services/{name}", patch, MERGE)

    def delete_service(self, name: str) -> None:
        self.plane.ask("DELETE", f"{HOME}/services/{name}")

    # --- pods ---

    def add_pod(self, name: str, app: str, *ips: str, ready: bool = True, node: str = NODE, **container: Any) -> None:
        """Create a running Pod with these addresses."""
        spec = {"nodeName": node, "containers": [{"name": "c", "image": "none", **container}]}
        meta = {"name": name, "namespace": "default", "labels": {"app": app}}
        self.plane.ask("POST", f"{HOME}/pods", {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": spec})
        self.set_pod(name, ips, ready=ready)

    def set_pod(self, name: str, ips: Iterable[str], *, ready: bool) -> None:
        """Write a Pod's status, as its kubelet would."""
        status = {
            "phase": "Running",
            "podIPs": [{"ip": ip} for ip in ips],
            "podIP": next(iter(ips)),
            "conditions": [{"type": "Ready", "status": "True" if ready else "False"}],
        }
        self.plane.ask("PATCH", f"{HOME}/pods/{name}/status", {"status": status}, MERGE)

    def delete_pod(self, name: str, grace_s: int = 0) -> None:
        self.plane.ask("DELETE", f"{HOME}/pods/{name}?gracePeriodSeconds={grace_s}")

    # --- slices of the test ---

    def put_slice(self, name: str, service: str, *addresses: str, **more: Any) -> None:
        """Create or replace a slice that no controller owns."""
        meta = {"name": name, "namespace": "default", "labels": {"kubernetes.io/service-name": service}}
        body = {
            "apiVersion": "discovery.k8s.io/v1",
            "kind": "EndpointSlice",
            "metadata": meta,
            "addressType": "IPv4",
            "ports": [{"name": "http", "port": 8080, "protocol": "TCP"}],
            "endpoints": [{"addresses": [address], "conditions": {"ready": True}} for address in addresses],
            **more,
        }
        if self.plane.send("PUT", f"{SLICES}/{name}", body)[0] == 404:
            self.plane.ask("POST", SLICES, body)

    # --- rights ---

    def set_rules(self, rules: list[Obj]) -> None:
        """Replace the agent's rights."""
        role = next(obj for obj in manifest() if obj["kind"] == "ClusterRole")
        self.plane.ask("PUT", ROLE, role | {"rules": rules})

    def install_backend_states(self) -> None:
        """Install the CustomResourceDefinition, and wait until its objects are served."""
        self.plane.send("POST", CRDS, yaml.safe_load(CRD.read_text()))
        wait_for(lambda: self.plane.send("GET", BACKEND_STATES)[0] == 200, "BackendStates", 20)

    def install_policies(self) -> None:
        """Install the definitions of both kinds of local redirects: the shipped one, and one like Cilium's."""
        ours = yaml.safe_load(POLICY_CRD.read_text())
        cilium = copy.deepcopy(ours)
        names = ours["spec"]["names"]
        plural = f"cilium{names['plural']}"
        cilium["metadata"]["name"] = f"{plural}.cilium.io"
        kind = f"Cilium{names['kind']}"
        cilium["spec"]["group"], cilium["spec"]["versions"][0]["name"] = "cilium.io", "v2"
        cilium["spec"]["names"] = {
            "kind": kind, "listKind": f"{kind}List", "plural": plural, "singular": kind.lower(),
        }  # fmt: skip
        for definition in (ours, cilium):
            self.plane.send("POST", CRDS, definition)
        for path in POLICIES.values():
            wait_for(lambda path=path: self.plane.send("GET", path)[0] == 200, "local redirects", 20)

    def add_policy(self, kind: str, name: str, spec: Obj) -> None:
        """Create a local redirect of a kind."""
        api = "cilium.io/v2" if kind.startswith("Cilium") else "lbagent.io/v1alpha1"
        body = {"apiVersion": api, "kind": kind, "metadata": {"name": name, "namespace": "default"}, "spec": spec}
        self.plane.ask("POST", POLICIES[kind], body)

    def add_backend_state(self, name: str, **spec: Any) -> None:
        body = {"apiVersion": "lbagent.io/v1alpha1", "kind": "BackendState", "metadata": {"name": name}, "spec": spec}
        self.plane.ask("POST", BACKEND_STATES, body)

    def events(self) -> list[Obj]:
        """Return lbagent's Events; the server's own controllers write Events too."""
        found = self.plane.ask("GET", f"{HOME}/events")["items"]
        return [event for event in found if event["source"].get("component") == "lbagent"]
