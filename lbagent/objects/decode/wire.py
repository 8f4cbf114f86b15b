"""Kubernetes' own shapes, as narrow as we need them, and a converter that leaves out only the part that is wrong.

Every field is optional and every list may hold null: what a manifest lacks is said by sync/checks, with the object's name.
Unknown fields are ignored (version skew). Source: Kubernetes API v1, discovery.k8s.io/v1.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, TypeVar

import msgspec
from msgspec import Struct


class Meta(Struct, gc=False):
    """ObjectMeta."""

    name: str | None = None
    namespace: str | None = None
    labels: dict[Any, Any] | None = None
    annotations: dict[Any, Any] | None = None
    creationTimestamp: str | None = None  # noqa: N815 - Kubernetes' spelling, here and below
    deletionTimestamp: str | None = None  # noqa: N815


class Port(Struct, gc=False):
    """ServicePort, EndpointPort and the port of a subset."""

    name: str | None = None
    protocol: str | None = None
    port: int | None = None
    nodePort: int | None = None  # noqa: N815


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


class Named(Struct, gc=False):
    """ForZone and ForNode."""

    name: str | None = None


class Hints(Struct, gc=False):
    """EndpointHints."""

    forZones: list[Named | None] | None = None  # noqa: N815
    forNodes: list[Named | None] | None = None  # noqa: N815


class Reference(Struct, gc=False):
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
    targetRef: Reference | None = None  # noqa: N815


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
    targetRef: Reference | None = None  # noqa: N815


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


class NodeStatus(Struct, gc=False):
    """NodeStatus."""

    addresses: list[NodeAddress | None] | None = None


class Node(Struct, gc=False):
    """v1 Node."""

    metadata: Meta | None = None
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


class PodStatus(Struct, gc=False):
    """PodStatus."""

    phase: str | None = None
    podIP: str | None = None  # noqa: N815
    podIPs: list[PodIP | None] | None = None  # noqa: N815


class Pod(Struct, gc=False):
    """v1 Pod."""

    metadata: Meta | None = None
    spec: PodSpec | None = None
    status: PodStatus | None = None


class BackendStateSpec(Struct, gc=False):
    """Spec of lbagent.io/v1alpha1 BackendState."""

    address: str | None = None
    state: str | None = None
    node: str | None = None


class BackendState(Struct, gc=False):
    """lbagent.io/v1alpha1 BackendState."""

    metadata: Meta | None = None
    spec: BackendStateSpec | None = None


T = TypeVar("T")
FieldPath = tuple[str | int, ...]
_WHERE = re.compile(r"^(?P<what>.*?)(?: - at `(?P<path>[^`]*)`)?$", re.DOTALL)
_STEP = re.compile(r"\.([A-Za-z_]\w*)|\[(\d+)\]")
_MAX_FAULTS = 100  # an object with more wrong parts than this is not an object


def path_text(path: FieldPath) -> str:
    """Return `spec.ports[1].port`."""
    text = ""
    for step in path:
        text += f"[{step}]" if isinstance(step, int) else (f".{step}" if text else step)
    return text


def convert(raw: Any, kind: type[T], complain: Callable[[FieldPath, str, str, Any], None]) -> T | None:
    """Convert a parsed object, taking out the parts of the wrong type; None when nothing is left.

    `complain(path, problem, kept, what was taken out)` is called for each part. `raw` is changed: a wrong list item becomes
    null (so that the items after it keep their index), a wrong field is removed.
    """
    for _ in range(_MAX_FAULTS):
        try:
            return msgspec.convert(raw, kind)
        except msgspec.ValidationError as error:
            if not _take_out(raw, str(error), complain):
                return None
    complain((), f"more than {_MAX_FAULTS} fields of a wrong type", "the object is left out", None)
    return None


def _take_out(raw: Any, text: str, complain: Callable[[FieldPath, str, str, Any], None]) -> bool:
    match = _WHERE.match(text)
    what, where = (match["what"], match["path"] or "") if match else (text, "")
    path: list[str | int] = [m[1] or int(m[2]) for m in _STEP.finditer(where)]
    problem = what[:1].lower() + what[1:].replace("`", "").replace(" | null", "")
    if not path:
        complain((), problem, "the object is left out", None)
        return False
    indexes = [at for at, step in enumerate(path) if isinstance(step, int)]
    cut = indexes[-1] + 1 if indexes else len(path)
    holder: Any = raw
    for step in path[: cut - 1]:
        holder = holder[step]
    last = path[cut - 1]
    item = holder[last]
    if isinstance(last, int):
        holder[last] = None
        kept = f"{path_text(tuple(path[:cut]))} is left out" if cut < len(path) else "it is left out"
    else:
        del holder[last]
        kept = "the field is left out"
    complain(tuple(path), problem, kept, item if isinstance(last, int) else None)
    return True
