"""The input of resolve: narrow, checked, immutable objects, and the snapshot that holds them.

objects/decode reads Kubernetes' shapes (decode/wire.py), checks each part, reports what it left out (`Message`) and keeps the
rest in these records: addresses are packed bytes, ports host order, defaults filled in. Resolve reads nothing else.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from msgspec import Struct

from lbagent.model.address import L3n4Addr, L4Type
from lbagent.model.backend import BackendState
from lbagent.model.family import Family
from lbagent.model.flow_rules import FlowRules
from lbagent.model.select import ANY_OF_TIER, TierMin
from lbagent.model.service import CIDR, Algorithm, SVCNatPolicy
from lbagent.objects.pod_reference import pod_reference
from lbagent.probes.backend_check import BackendCheck


class Origin(Struct, frozen=True, gc=False, order=True):
    """The place of an object. Objects are kept in this order, so that the same folder gives the same IDs.

    `file` is '' for objects that are in no file; `order` counts the objects of one file; `line` is the 1-based first line;
    `source` is the name of the object's source.
    """

    file: str = ""
    order: int = 0
    line: int = 0
    source: str = ""

    @property
    def place(self) -> str:
        """The place as text: `FILE:LINE`, else the source."""
        return f"{self.file}:{self.line}" if self.file else f"source {self.source or 'unknown'}"


NOWHERE = Origin()
# The names of sources: `source` of the origin of all their objects. The operator's BackendStates take precedence over all others.
OPERATOR, FOLDER, KUBE, NATIVE_POOLS, SYNTHETIC = "operator", "folder", "kube", "apilb", "synthetic"


class ServicePort(Struct, frozen=True, gc=False):
    """A port of a Service; `index` is its place in spec.ports, for messages. node_port 0 = none.

    `last_port`: it is the range of ports of one, which begins at `port`; 0: it is none.
    """

    name: str
    protocol: L4Type
    port: int
    node_port: int = 0
    index: int = 0
    last_port: int = 0


class BalancerPort(Struct, frozen=True, gc=False):
    """A port of a Service as written, unchecked; 0 and '' mean none."""

    name: str = ""
    protocol: str = "TCP"
    port: int = 0
    node_port: int = 0
    target_port: int | str = 0


class Balancer(Struct, frozen=True, gc=False):
    """The parts of a Service for its provider (lbagent/cloud), if it is of type LoadBalancer or still has the finalizer.

    `families` are in the order of spec.ipFamilies. `status` has every ingress address, of any ipMode. `pods` is the selector as
    one text.
    """

    wanted: bool = True  # of type LoadBalancer, and not being deleted
    finalizer: bool = False
    load_balancer_class: str = ""
    load_balancer_ip: str = ""
    families: tuple[Family, ...] = ()
    require_dual_stack: bool = False
    annotations: Mapping[str, str] = MappingProxyType({})
    labels: Mapping[str, str] = MappingProxyType({})
    pods: str = ""
    uid: str = ""
    status: tuple[bytes, ...] = ()
    ports: tuple[BalancerPort, ...] = ()
    session_affinity: str = "None"
    publish_not_ready: bool = False
    source_ranges: tuple[str, ...] = ()  # of the field, as written


class Service(Struct, frozen=True, gc=False):
    """A v1 Service, checked. `ignored` is the reason why it has no frontend at all ('' = it may have some).

    `created` is seconds since 1970, 0 = unknown. `ingress` has only addresses that this node serves (ipMode VIP).
    `node_port_ranges`: the source ranges apply to its node ports, too, to which a router sends packets (provider edge); with
    `all_ranges` to node ports and externalIPs. `excluded`: packets to it pass untouched.
    `ranges_given` stays True if every source range was invalid or of the other family: a mistake never opens a VIP. `binds`:
    addresses of this host at which it is also served (lbagent/apilb): loopback ones for the host's own processes, an unspecified
    one for every address of the host.
    """

    namespace: str
    name: str
    origin: Origin = NOWHERE
    created: float = 0.0
    ignored: str = ""
    type: str = "ClusterIP"
    families: tuple[Family, ...] = ()
    cluster_ips: tuple[bytes, ...] = ()
    external_ips: tuple[bytes, ...] = ()
    ingress: tuple[bytes, ...] = ()
    ports: tuple[ServicePort, ...] = ()
    external_local: bool = False
    internal_local: bool = False
    affinity_timeout_s: int = 0  # 0 = no session affinity
    source_ranges: tuple[CIDR, ...] = ()
    ranges_given: bool = False
    ranges_deny: bool = False
    node_port_ranges: bool = False
    all_ranges: bool = False
    excluded: bool = False
    health_check: BackendCheck | None = None
    health_check_node_port: int = 0
    algorithm: Algorithm = Algorithm.RANDOM
    tier_min: TierMin = ANY_OF_TIER
    stale_flows_s: int = 0  # for how long flows go on to an endpoint that is gone (model/stale_flows.py)
    flow_rules: FlowRules | None = None  # None: no word of them
    dsr: bool = False
    nat_policy: SVCNatPolicy = SVCNatPolicy.NONE
    l7_proxy_port: int = 0
    balancer: Balancer | None = None
    binds: tuple[bytes, ...] = ()
    port_ranges: tuple[ServicePort, ...] = ()  # of some of the ports

    @property
    def has_affinity(self) -> bool:
        """Whether a client keeps its backend."""
        return self.affinity_timeout_s > 0

    @property
    def key(self) -> str:
        """Namespace and name in one text."""
        return f"{self.namespace}/{self.name}"


class Endpoint(Struct, frozen=True, gc=False):
    """An endpoint of a slice, conditions with their defaults filled in. `pod` is 'namespace/name' of its targetRef.

    `state` was found by its source, for this Service alone; every BackendState takes precedence. None: not set.
    """

    address: bytes
    ready: bool = True
    serving: bool = True
    terminating: bool = False
    node: str = ""
    zone: str = ""
    pod: str = ""
    for_zones: tuple[str, ...] = ()
    for_nodes: tuple[str, ...] = ()
    state: BackendState | None = None


class SlicePort(Struct, frozen=True, gc=False):
    """A port of a slice; the name of a port without one is ''."""

    name: str
    protocol: L4Type
    port: int


class EndpointSlice(Struct, frozen=True, gc=False):
    """A discovery/v1 EndpointSlice, or one family of one subset (its index) of a v1 Endpoints (`legacy`)."""

    namespace: str
    name: str
    service: str
    family: Family
    origin: Origin = NOWHERE
    ports: tuple[SlicePort, ...] = ()
    endpoints: tuple[Endpoint, ...] = ()
    weight: int | None = None
    tier: int = 0  # 0 to 7: new flows go to the lowest one that is usable
    legacy: bool = False
    subset: int = 0

    @property
    def key(self) -> str:
        """Namespace and name in one text."""
        return f"{self.namespace}/{self.name}"

    @property
    def service_key(self) -> str:
        """The key of the Service it belongs to."""
        return f"{self.namespace}/{self.service}"


class Endpoints(Struct, frozen=True, gc=False):
    """A v1 Endpoints, as slices; read only from folders and only when the Service has no EndpointSlice."""

    namespace: str
    name: str
    origin: Origin = NOWHERE
    slices: tuple[EndpointSlice, ...] = ()

    @property
    def key(self) -> str:
        """Namespace and name in one text; the Service has the same."""
        return f"{self.namespace}/{self.name}"


class Node(Struct, frozen=True, gc=False):
    """A v1 Node: its InternalIPs, its zone label, and whether it is about to be removed (KEP-3836).

    `excluded`: no external balancer sends packets there (node.kubernetes.io/exclude-from-external-load-balancers). `cordoned`:
    spec.unschedulable. `shuts_down`: by its kubelet or its cloud. `ready`: its condition Ready is True.
    """

    name: str
    origin: Origin = NOWHERE
    internal_ips: tuple[bytes, ...] = ()
    zone: str = ""
    leaves: bool = False
    excluded: bool = False
    cordoned: bool = False
    shuts_down: bool = False
    ready: bool = False
    labels: Mapping[str, str] = MappingProxyType({})

    @property
    def key(self) -> str:
        """The name."""
        return self.name


class HostPort(Struct, frozen=True, gc=False):
    """A hostPort of a container; host_ip None = every address of the node. `place` is its path in the Pod."""

    port: int
    target_port: int
    protocol: L4Type
    host_ip: bytes | None = None
    place: tuple[str | int, ...] = ()


class Pod(Struct, frozen=True, gc=False):
    """A v1 Pod: what HostPort frontends, weights and local redirects need. `ready`: its condition Ready is True."""

    namespace: str
    name: str
    origin: Origin = NOWHERE
    created: float = 0.0
    node: str = ""
    ips: tuple[bytes, ...] = ()
    host_ports: tuple[HostPort, ...] = ()
    terminating: bool = False
    finished: bool = False  # phase Succeeded or Failed
    host_network: bool = False
    weight: int | None = None
    ready: bool = False
    labels: Mapping[str, str] = MappingProxyType({})

    @property
    def key(self) -> str:
        """Namespace and name in one text."""
        return f"{self.namespace}/{self.name}"


class RedirectPort(Struct, frozen=True, gc=False):
    """A port of a local redirect's frontend or backend; the name of a port without one is ''."""

    port: int
    protocol: L4Type
    name: str = ""


class LocalRedirect(Struct, frozen=True, gc=False):
    """A LocalRedirectPolicy, or Cilium's object of that meaning (`kind`).

    Its frontend is an `address` with `frontend_ports`, or (None) the Service `service` of its namespace with these ports, () =
    all. `skips_backends`: its pods reach the original Service. `drops_when_empty`: without a ready pod nothing is reached.
    """

    kind: str
    namespace: str
    name: str
    origin: Origin = NOWHERE
    created: float = 0.0
    address: bytes | None = None
    service: str = ""
    frontend_ports: tuple[RedirectPort, ...] = ()
    selector: Mapping[str, str] = MappingProxyType({})
    backend_ports: tuple[RedirectPort, ...] = ()
    skips_backends: bool = False
    drops_when_empty: bool = False

    @property
    def key(self) -> str:
        """Namespace and name in one text."""
        return f"{self.namespace}/{self.name}"

    def selects(self, pod: Pod) -> bool:
        """Return whether a Pod is of its namespace and has all labels of its selector."""
        return pod.namespace == self.namespace and self.selector.items() <= pod.labels.items()


class ServiceCIDR(Struct, frozen=True, gc=False):
    """A ServiceCIDR: ranges of the cluster's ClusterIPs."""

    name: str
    origin: Origin = NOWHERE
    cidrs: tuple[CIDR, ...] = ()

    @property
    def key(self) -> str:
        """The name."""
        return self.name


class StateOverride(Struct, frozen=True, gc=False):
    """A lbagent.io/v1alpha1 BackendState: a state of backends set by the operator (or a health check).

    It concerns one `address`, or (None) every backend whose endpoint refers to the Pod with the key `pod`.
    """

    name: str
    address: L3n4Addr | None
    state: BackendState
    origin: Origin = NOWHERE
    node: str = ""  # '' = on every node
    pod: str = ""  # 'namespace/name'
    created: float = 0.0  # seconds since 1970, 0 = unknown

    @property
    def subject(self) -> str:
        """The backends that it concerns, as an operator writes them: an address with its protocol, or `pod/NAMESPACE/NAME`."""
        return self.address.with_protocol() if self.address else pod_reference(self.pod)

    @property
    def key(self) -> str:
        """The name."""
        return self.name


class FailedChecks(Struct, frozen=True, gc=False):
    """The backends of a Service whose health check fails. `service`: the key of the Service; `why`: numbers of a passive check."""

    service: str
    backends: frozenset[L3n4Addr]
    origin: Origin = NOWHERE
    why: str = ""

    @property
    def key(self) -> str:
        """The key of the Service."""
        return self.service


KubeObject = (
    Service | EndpointSlice | Endpoints | Node | Pod | ServiceCIDR | StateOverride | LocalRedirect | FailedChecks
)
KINDS: dict[str, type[Any]] = {
    "Service": Service,
    "EndpointSlice": EndpointSlice,
    "Endpoints": Endpoints,
    "Node": Node,
    "Pod": Pod,
    "ServiceCIDR": ServiceCIDR,
    "BackendState": StateOverride,
    "LocalRedirectPolicy": LocalRedirect,
    "CiliumLocalRedirectPolicy": LocalRedirect,
    "FailedChecks": FailedChecks,
}

_EMPTY: Mapping[str, Any] = MappingProxyType({})


class ObjectSnapshot(Struct, frozen=True):
    """An immutable snapshot of every object, by kind and key."""

    services: Mapping[str, Service] = _EMPTY
    slices: Mapping[str, EndpointSlice] = _EMPTY
    endpoints: Mapping[str, Endpoints] = _EMPTY
    nodes: Mapping[str, Node] = _EMPTY
    pods: Mapping[str, Pod] = _EMPTY
    service_cidrs: Mapping[str, ServiceCIDR] = _EMPTY
    backend_states: Mapping[str, StateOverride] = _EMPTY
    local_redirects: Mapping[str, LocalRedirect] = _EMPTY
    cilium_local_redirects: Mapping[str, LocalRedirect] = _EMPTY
    failed_checks: Mapping[str, FailedChecks] = _EMPTY

    def of_kind(self, kind: str) -> Mapping[str, Any]:
        """Return the objects of one kind of `KINDS`."""
        return getattr(self, FIELD_OF_KIND[kind])  # type: ignore[no-any-return]


FIELD_OF_KIND = {
    "Service": "services",
    "EndpointSlice": "slices",
    "Endpoints": "endpoints",
    "Node": "nodes",
    "Pod": "pods",
    "ServiceCIDR": "service_cidrs",
    "BackendState": "backend_states",
    "LocalRedirectPolicy": "local_redirects",
    "CiliumLocalRedirectPolicy": "cilium_local_redirects",
    "FailedChecks": "failed_checks",
}


class LastGoodObject(Struct, frozen=True, gc=False):
    """The last good form of an object: the generation of its file, and those of older parts (by field)."""

    obj: KubeObject
    generation: int = 0
    parts: Mapping[str, int] = _EMPTY


class ObjectChange(Struct, frozen=True, gc=False):
    """The change of one object; None = it did not exist, or is gone.

    `triggered_at` is the time of the cause according to its controller: seconds since 1970, 0 = unknown.
    """

    kind: str
    key: str
    old: KubeObject | None
    new: KubeObject | None
    triggered_at: float = 0.0
