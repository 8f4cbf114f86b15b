"""Random folders: Services of every kind, endpoints in every state, and the next folder with a part changed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import yaml
from hypothesis import strategies as st

from tests.e2e.cluster import NODE

REMOTE, PODS, HOST = ("b1", "b2"), ("b3", "b4"), "host"
BACKENDS = {
    "b1": ("10.77.1.2", "fd77:1::2"),
    "b2": ("10.77.2.2", "fd77:2::2"),
    "b3": ("10.244.0.2", "fd44::2"),
    "b4": ("10.244.1.2", "fd44:1::2"),
    HOST: ("10.77.0.1", "fd77::1"),
}
NODE_OF = {"b1": "node-b1", "b2": "node-b2", "b3": NODE, "b4": NODE, HOST: NODE}
PORTS = (8080, 8081)
FAMILIES = ("IPv4", "IPv6")
STATES = ("ready", "leaving", "gone", "unready")  # leaving: serving and terminating; gone: terminating
CONDITIONS = {
    "ready": {"ready": True, "serving": True, "terminating": False},
    "leaving": {"ready": False, "serving": True, "terminating": True},
    "gone": {"ready": False, "serving": False, "terminating": True},
    "unready": {"ready": False, "serving": False, "terminating": False},
}
RANGES = {
    "lower": ["10.77.0.64/26", "fd77::64:40/122"],
    "upper": ["10.77.0.128/25", "fd77::64:80/121"],
    "nobody": ["192.0.2.0/24"],
}


@dataclass(frozen=True, order=True)
class Frontend:
    """An address to ask."""

    kind: str  # cluster, external, ingress, node
    address: str
    port: int
    protocol: str

    @property
    def version(self) -> int:
        """The family of IP."""
        return 6 if ":" in self.address else 4


@dataclass(frozen=True)
class Endpoint:
    """A backend of a Service in one slice."""

    backend: str
    port: int
    state: str


@dataclass(frozen=True)
class Service:
    """A Service in the words of its spec."""

    number: int
    type: str
    ports: tuple[tuple[str, int], ...]
    families: tuple[str, ...]
    endpoints: tuple[Endpoint, ...]
    external: str = "Cluster"
    internal: str = "Cluster"
    affinity: bool = False
    external_ips: bool = False
    ranges: str = ""
    deny: bool = False
    maglev: bool = False
    weights: tuple[tuple[str, int], ...] = ()

    @property
    def name(self) -> str:
        """Its name."""
        return f"svc{self.number}"

    def addresses(self, kind: str) -> list[str]:
        """Return its addresses of a kind, one for each of its families."""
        digit = {"cluster": 1, "external": 2, "ingress": 3}[kind]
        four, six = f"10.96.{digit}.{self.number + 1}", f"fd00:96::{digit}:{self.number + 1}"
        return [four if family == "IPv4" else six for family in self.families]

    def frontends(self) -> list[Frontend]:
        """Return all addresses to which clients may connect."""
        kinds = ["cluster"]
        kinds += ["external"] if self.external_ips else []
        kinds += ["ingress"] if self.type == "LoadBalancer" else []
        out = [
            Frontend(kind, address, port, protocol)
            for kind in kinds
            for address in self.addresses(kind)
            for protocol, port in self.ports
        ]
        if self.type != "ClusterIP":
            nodes = [BACKENDS[HOST][FAMILIES.index(family)] for family in self.families]
            out += [
                Frontend("node", node, self.node_port(at), proto)
                for node in nodes
                for at, (proto, _) in enumerate(self.ports)
            ]
        return out

    def node_port(self, at: int) -> int:
        """Return the NodePort of a port."""
        return 30000 + 10 * self.number + at

    def objects(self) -> Iterator[dict[str, Any]]:
        """Return it as Kubernetes objects."""
        notes = {"lbagent.io/algorithm": "maglev" if self.maglev else "random"}
        notes |= {"lbagent.io/source-ranges-policy": "deny"} if self.deny and self.ranges else {}
        spec: dict[str, Any] = {
            "type": self.type,
            "clusterIPs": self.addresses("cluster"),
            "clusterIP": self.addresses("cluster")[0],
            "ipFamilies": list(self.families),
            "ipFamilyPolicy": "RequireDualStack" if len(self.families) == 2 else "SingleStack",
            "internalTrafficPolicy": self.internal,
            "sessionAffinity": "ClientIP" if self.affinity else "None",
            "ports": [
                {"name": f"p{at}", "protocol": proto, "port": port, "targetPort": f"p{at}"}
                | ({"nodePort": self.node_port(at)} if self.type != "ClusterIP" else {})
                for at, (proto, port) in enumerate(self.ports)
            ],
        }
        if self.external_ips:
            spec["externalIPs"] = self.addresses("external")
        status = {}
        if self.type != "ClusterIP" or self.external_ips:
            spec["externalTrafficPolicy"] = self.external
        if self.type == "LoadBalancer":
            status = {"loadBalancer": {"ingress": [{"ip": each} for each in self.addresses("ingress")]}}
            if self.ranges:
                spec["loadBalancerSourceRanges"] = RANGES[self.ranges]
        yield {
            "apiVersion": "v1", "kind": "Service", "metadata": {"name": self.name, "namespace": "oracle", "annotations": notes},
            "spec": spec, "status": status,
        }  # fmt: skip
        yield from self._slices()

    def _slices(self) -> Iterator[dict[str, Any]]:
        weights = dict(self.weights)
        for family in self.families:
            for endpoint in self.endpoints:
                yield {
                    "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice",
                    "metadata": {
                        "name": f"{self.name}-{family.lower()}-{endpoint.backend}-{endpoint.port}", "namespace": "oracle",
                        "labels": {"kubernetes.io/service-name": self.name},
                        "annotations": {"lbagent.io/weight": str(weights.get(endpoint.backend, 100))},
                    },
                    "addressType": family,
                    "ports": [{"name": f"p{at}", "protocol": proto, "port": endpoint.port} for at, (proto, _) in enumerate(self.ports)],
                    "endpoints": [{
                        "addresses": [BACKENDS[endpoint.backend][FAMILIES.index(family)]], "nodeName": NODE_OF[endpoint.backend],
                        "conditions": CONDITIONS[endpoint.state],
                    }],
                }  # fmt: skip


@dataclass(frozen=True)
class Folder:
    """Services, and the states that an operator's objects give to backends."""

    services: tuple[Service, ...]
    states: tuple[tuple[str, str], ...] = ()  # backend, state

    def text(self, mark: int) -> str:
        """Return the manifest; the Service `mark` has the port of that number, by which the folder is seen to be in force."""
        objects = [each for service in self.services for each in service.objects()]
        for backend, state in self.states:
            for version in (0, 1):
                address = f"[{BACKENDS[backend][1]}]" if version else BACKENDS[backend][0]
                objects += [_state(f"{address}:{port}/{proto}", state) for port in PORTS for proto in ("TCP", "UDP")]
        ports = [{"name": "p", "protocol": "TCP", "port": mark}]
        marker = {"type": "ClusterIP", "clusterIP": "10.96.9.9", "clusterIPs": ["10.96.9.9"], "ports": ports}
        objects.append(
            {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "mark", "namespace": "oracle"}, "spec": marker}
        )
        return yaml.dump_all(objects, Dumper=getattr(yaml, "CSafeDumper", yaml.SafeDumper))


def _state(address: str, state: str) -> dict[str, Any]:
    name = address.lower().translate(str.maketrans("[]:./", "-----")).strip("-").replace("--", "-")
    return {
        "apiVersion": "lbagent.io/v1alpha1", "kind": "BackendState", "metadata": {"name": name},
        "spec": {"address": address, "state": state},
    }  # fmt: skip


# --- strategies ---

_ENDPOINT = st.builds(
    Endpoint,
    st.sampled_from((*REMOTE, *PODS, HOST)),
    st.sampled_from(PORTS),
    st.sampled_from(("ready", "ready", *STATES)),
)
_ENDPOINTS = st.lists(_ENDPOINT, max_size=5, unique_by=lambda each: (each.backend, each.port)).map(tuple)
_WEIGHTS = st.lists(
    st.tuples(st.sampled_from(tuple(BACKENDS)), st.sampled_from((0, 50, 200))), max_size=2, unique_by=lambda x: x[0]
).map(tuple)
_PORT_LISTS = (("TCP", 80),), (("UDP", 53),), (("TCP", 53), ("UDP", 53)), (("TCP", 80), ("TCP", 8080))
_POLICY = st.sampled_from(("Cluster", "Cluster", "Local"))


def _service(number: int) -> st.SearchStrategy[Service]:
    return st.builds(
        Service,
        number=st.just(number),
        type=st.sampled_from(("ClusterIP", "NodePort", "LoadBalancer")),
        ports=st.sampled_from(_PORT_LISTS),
        families=st.sampled_from((("IPv4",), ("IPv6",), ("IPv4", "IPv6"), ("IPv4", "IPv6"))),
        endpoints=_ENDPOINTS,
        external=_POLICY,
        internal=_POLICY,
        affinity=st.sampled_from((False, False, True)),
        external_ips=st.booleans(),
        ranges=st.sampled_from(("", "", *RANGES)),
        deny=st.booleans(),
        maglev=st.sampled_from((False, False, True)),
        weights=_WEIGHTS,
    )


_STATES = st.lists(
    st.tuples(st.sampled_from(tuple(BACKENDS)), st.sampled_from(("maintenance", "quarantined"))), max_size=1
).map(tuple)


@st.composite
def histories(draw: st.DrawFn, length: int = 3) -> Sequence[Folder]:
    """Return folders, each of them but the first with one part of the one before changed."""
    folder = Folder(tuple(draw(_service(number)) for number in range(draw(st.sampled_from((1, 1, 2))))), draw(_STATES))
    out = [folder]
    while len(out) < length:
        folder = _changed(draw, folder)
        out.append(folder)
    return out


def _changed(draw: st.DrawFn, folder: Folder) -> Folder:
    number = draw(st.sampled_from(range(len(folder.services))))
    old, new = folder.services[number], draw(_service(number))
    match draw(st.sampled_from(("endpoints", "endpoints", "spec", "all", "states"))):
        case "endpoints":
            new = replace(old, endpoints=new.endpoints, weights=new.weights)
        case "spec":
            new = replace(new, endpoints=old.endpoints, families=old.families, ports=old.ports, weights=old.weights)
        case "states":
            return replace(folder, states=draw(_STATES))
    services = tuple(new if each.number == number else each for each in folder.services)
    return replace(folder, services=services)
