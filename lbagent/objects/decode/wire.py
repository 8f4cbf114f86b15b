"""Kubernetes' own shapes, with only the fields that lbagent reads.

Every field is optional and every list may hold null: the decoder of each kind (decode_service.py and its siblings) reports what
an object lacks. Unknown fields are ignored (version skew). Source: Kubernetes API v1, discovery.k8s.io/v1.
"""

from __future__ import annotations

from typing import Any

from msgspec import Struct


class Meta(Struct, gc=False):
    """ObjectMeta."""

    name: str | None = None
    namespace: str | None = None
    labels: dict[Any, Any] | None = None
    annotations: dict[Any, Any] | None = None
    creationTimestamp: str | None = None  # noqa: N815 - Kubernetes' spelling, here and below
    deletionTimestamp: str | None = None  # noqa: N815
    finalizers: list[str | None] | None = None
    uid: str | None = None


class Port(Struct, gc=False):
    """ServicePort, EndpointPort and the port of a subset."""

    name: str | None = None
    protocol: str | None = None
    port: int | None = None
    nodePort: int | None = None  # noqa: N815
    targetPort: Any = None  # noqa: N815


class ClientIP(Struct, gc=False):
    """ClientIPConfig."""

    timeoutSeconds: int | None = None  # noqa: N815


class AffinityConfig(Struct, gc=False):
    """SessionAffinityConfig."""

    clientIP: ClientIP | None = None  # noqa: N815


class ServiceSpec(Struct, gc=False):
    """ServiceSpec."""

    type: str | None = None
    clusterIP: str | None = None  # noqa: N815
    clusterIPs: list[str | None] | None = None  # noqa: N815
    ipFamilies: list[str | None] | None = None  # noqa: N815
    ports: list[Port | None] | None = None
    externalIPs: list[str | None] | None = None  # noqa: N815
    sessionAffinity: str | None = None  # noqa: N815
    sessionAffinityConfig: AffinityConfig | None = None  # noqa: N815
    externalTrafficPolicy: str | None = None  # noqa: N815
    internalTrafficPolicy: str | None = None  # noqa: N815
    loadBalancerSourceRanges: list[str | None] | None = None  # noqa: N815
    healthCheckNodePort: int | None = None  # noqa: N815
    ipFamilyPolicy: str | None = None  # noqa: N815
    loadBalancerClass: str | None = None  # noqa: N815
    loadBalancerIP: str | None = None  # noqa: N815
    publishNotReadyAddresses: Any = None  # noqa: N815
    selector: dict[Any, Any] | None = None


class Ingress(Struct, gc=False):
    """LoadBalancerIngress."""

    ip: str | None = None
    ipMode: str | None = None  # noqa: N815


class LoadBalancerStatus(Struct, gc=False):
    """LoadBalancerStatus."""

    ingress: list[Ingress | None] | None = None


class ServiceStatus(Struct, gc=False):
    """ServiceStatus."""

    loadBalancer: LoadBalancerStatus | None = None  # noqa: N815


class Service(Struct, gc=False):
    """v1 Service."""

    metadata: Meta | None = None
    spec: ServiceSpec | None = None
    status: ServiceStatus | None = None


class Conditions(Struct, gc=False):
    """EndpointConditions."""

    ready: bool | None = None
    serving: bool | None = None
    terminating: bool | None = None


class HintTarget(Struct, gc=False):
    """ForZone and ForNode."""

    name: str | None = None


class Hints(Struct, gc=False):
    """EndpointHints."""

    forZones: list[HintTarget | None] | None = None  # noqa: N815
    forNodes: list[HintTarget | None] | None = None  # noqa: N815


class ObjectReference(Struct, gc=False):
    """ObjectReference."""

    kind: str | None = None
    name: str | None = None
    namespace: str | None = None


class Endpoint(Struct, gc=False):
    """discovery/v1 Endpoint."""

    addresses: list[str | None] | None = None
    conditions: Conditions | None = None
    hints: Hints | None = None
    nodeName: str | None = None  # noqa: N815
    zone: str | None = None
    targetRef: ObjectReference | None = None  # noqa: N815


class EndpointSlice(Struct, gc=False):
    """discovery/v1 EndpointSlice."""

    metadata: Meta | None = None
    addressType: str | None = None  # noqa: N815
    ports: list[Port | None] | None = None
    endpoints: list[Endpoint | None] | None = None


class Address(Struct, gc=False):
    """EndpointAddress of a v1 Endpoints."""

    ip: str | None = None
    nodeName: str | None = None  # noqa: N815
    targetRef: ObjectReference | None = None  # noqa: N815


class Subset(Struct, gc=False):
    """EndpointSubset."""

    addresses: list[Address | None] | None = None
    notReadyAddresses: list[Address | None] | None = None  # noqa: N815
    ports: list[Port | None] | None = None


class Endpoints(Struct, gc=False):
    """v1 Endpoints."""

    metadata: Meta | None = None
    subsets: list[Subset | None] | None = None


class NodeAddress(Struct, gc=False):
    """NodeAddress."""

    type: str | None = None
    address: str | None = None


class NodeCondition(Struct, gc=False):
    """NodeCondition."""

    type: str | None = None
    status: str | None = None
    message: str | None = None


class NodeStatus(Struct, gc=False):
    """NodeStatus."""

    addresses: list[NodeAddress | None] | None = None
    conditions: list[NodeCondition | None] | None = None


class Taint(Struct, gc=False):
    """Taint."""

    key: str | None = None


class NodeSpec(Struct, gc=False):
    """NodeSpec."""

    taints: list[Taint | None] | None = None
    unschedulable: bool | None = None


class Node(Struct, gc=False):
    """v1 Node."""

    metadata: Meta | None = None
    spec: NodeSpec | None = None
    status: NodeStatus | None = None


class ContainerPort(Struct, gc=False):
    """ContainerPort."""

    containerPort: int | None = None  # noqa: N815
    hostPort: int | None = None  # noqa: N815
    hostIP: str | None = None  # noqa: N815
    protocol: str | None = None


class Container(Struct, gc=False):
    """Container."""

    ports: list[ContainerPort | None] | None = None
    restartPolicy: str | None = None  # noqa: N815


class PodSpec(Struct, gc=False):
    """PodSpec."""

    nodeName: str | None = None  # noqa: N815
    hostNetwork: bool | None = None  # noqa: N815
    containers: list[Container | None] | None = None
    initContainers: list[Container | None] | None = None  # noqa: N815


class PodIP(Struct, gc=False):
    """PodIP."""

    ip: str | None = None


class PodCondition(Struct, gc=False):
    """PodCondition."""

    type: str | None = None
    status: str | None = None


class PodStatus(Struct, gc=False):
    """PodStatus."""

    phase: str | None = None
    conditions: list[PodCondition | None] | None = None
    podIP: str | None = None  # noqa: N815
    podIPs: list[PodIP | None] | None = None  # noqa: N815


class Pod(Struct, gc=False):
    """v1 Pod."""

    metadata: Meta | None = None
    spec: PodSpec | None = None
    status: PodStatus | None = None


class ServiceCIDRSpec(Struct, gc=False):
    """networking.k8s.io ServiceCIDRSpec."""

    cidrs: list[str | None] | None = None


class ServiceCIDR(Struct, gc=False):
    """networking.k8s.io ServiceCIDR."""

    metadata: Meta | None = None
    spec: ServiceCIDRSpec | None = None


class BackendStateSpec(Struct, gc=False):
    """Spec of lbagent.io/v1alpha1 BackendState."""

    address: str | None = None
    ref: str | None = None
    state: str | None = None
    node: str | None = None


class BackendState(Struct, gc=False):
    """lbagent.io/v1alpha1 BackendState."""

    metadata: Meta | None = None
    spec: BackendStateSpec | None = None


class RedirectPort(Struct, gc=False):
    """PortInfo of a local redirect; Cilium writes the port as a string."""

    port: Any = None
    protocol: str | None = None
    name: str | None = None


class AddressMatcher(Struct, gc=False):
    """addressMatcher of a local redirect."""

    ip: str | None = None
    toPorts: list[RedirectPort | None] | None = None  # noqa: N815


class ServiceMatcher(Struct, gc=False):
    """serviceMatcher of a local redirect."""

    serviceName: str | None = None  # noqa: N815
    namespace: str | None = None
    toPorts: list[RedirectPort | None] | None = None  # noqa: N815


class RedirectFrontend(Struct, gc=False):
    """redirectFrontend."""

    addressMatcher: AddressMatcher | None = None  # noqa: N815
    serviceMatcher: ServiceMatcher | None = None  # noqa: N815


class LabelSelector(Struct, gc=False):
    """LabelSelector, of which only matchLabels is possible in a local redirect."""

    matchLabels: dict[Any, Any] | None = None  # noqa: N815
    matchExpressions: Any = None  # noqa: N815


class RedirectBackend(Struct, gc=False):
    """redirectBackend."""

    localEndpointSelector: LabelSelector | None = None  # noqa: N815
    toPorts: list[RedirectPort | None] | None = None  # noqa: N815


class LocalRedirectSpec(Struct, gc=False):
    """Spec of a local redirect."""

    redirectFrontend: RedirectFrontend | None = None  # noqa: N815
    redirectBackend: RedirectBackend | None = None  # noqa: N815
    skipRedirectFromBackend: bool | None = None  # noqa: N815
    description: str | None = None


class LocalRedirectPolicy(Struct, gc=False):
    """lbagent.io/v1alpha1 LocalRedirectPolicy, cilium.io/v2 CiliumLocalRedirectPolicy."""

    metadata: Meta | None = None
    spec: LocalRedirectSpec | None = None
