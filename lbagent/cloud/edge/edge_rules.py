"""Which Services get port mappings, which ones, and to which node (pure). Source: cloud-provider-edge (behaviour).

The mapping's description is `CLUSTER/NAMESPACE/SERVICE/PORT`: it identifies the owner of a mapping, also for the next process.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from ipaddress import IPv4Address, IPv4Network, ip_network

from msgspec import Struct

from lbagent.cloud.edge.edge_config import EdgeConfig, NodeChoice
from lbagent.cloud.edge.protocols.port_mapping import PortMapping, is_special
from lbagent.cloud.provider_api.provider_records import Node, Service
from lbagent.objects.decode.decode_balancer import ROUTER_IGD, ROUTER_TYPE

TYPE, IGD = ROUTER_TYPE, ROUTER_IGD
PROTOCOLS = ("TCP", "UDP")


class Owner(Struct, frozen=True):
    """The owner of a mapping, by its description."""

    cluster: str
    service: str  # NAMESPACE/NAME
    port: str


def balancer_name(cluster: str, service: Service) -> str:
    """Return the name of a Service's balancer."""
    return f"{cluster}/{service.namespace}/{service.name}"


def owner_of(description: str) -> Owner | None:
    """Return the owner of a mapping; None if no such controller created it."""
    parts = description.split("/")
    if len(parts) != 4 or not all(parts[:3]):
        return None
    return Owner(parts[0], f"{parts[1]}/{parts[2]}", parts[3])


def why_not_asked(config: EdgeConfig, service: Service) -> str:
    """Return why a Service requests no mappings, '' if it does."""
    if TYPE in service.annotations:
        return ""
    if TYPE not in service.labels:
        return f"it has no annotation {TYPE}: {IGD}"
    if config.accept_labels:
        return ""
    return (
        f"{TYPE} is a label; it counts as an annotation, or with `acceptLabels: true` in the provider's configuration"
    )


def is_asked_by_label(service: Service) -> bool:
    """Return whether a label requests mappings, and no annotation does."""
    return TYPE not in service.annotations and TYPE in service.labels


def why_refused(service: Service) -> str:
    """Return why a Service that requests mappings gets none, '' if it gets them."""
    if (word := service.annotations.get(TYPE, service.labels.get(TYPE))) != IGD:
        return f"{TYPE}: unsupported value {word!r}; {IGD} is possible"
    if service.type != "LoadBalancer":
        return f"type {service.type} is not LoadBalancer"
    if "None" in service.cluster_ips:
        return "it is headless (clusterIP: None)"
    if service.publish_not_ready_addresses:
        return "publishNotReadyAddresses is not supported"
    if service.ip_families and "IPv4" not in service.ip_families:
        return f"ipFamilies: {', '.join(service.ip_families)}: only IPv4 is translated by a router"
    if service.session_affinity not in ("None", ""):
        return f"sessionAffinity {service.session_affinity} is not supported"
    return _why_no_ports(service)


def _why_no_ports(service: Service) -> str:
    for port in service.ports:
        where = f"port {port.name or port.port}"
        if port.protocol not in PROTOCOLS:
            return f"{where}: protocol {port.protocol} is not supported; TCP and UDP are"
        if isinstance(port.target_port, str) and port.target_port:
            return f"{where}: targetPort {port.target_port!r} is a name; only numbers are supported"
        if not port.node_port:
            return f"{where}: it has no nodePort"
    return "" if service.ports else "it has no ports"


def mappings_of(cluster: str, service: Service, client: str) -> tuple[PortMapping, ...]:
    """Return the mappings of a Service to the node at an address, in the order of its ports."""
    name = balancer_name(cluster, service)
    return tuple(
        PortMapping(port.protocol, port.port, client, port.node_port, f"{name}/{port.name}") for port in service.ports
    )


def why_address_refused(address: str, nodes: Iterable[Node], cluster_ips: Iterable[str]) -> str:
    """Return why an external address must not be in a status, by any reporter; '' if it may.

    The service range is unknown; an address in the /24 of a ClusterIP counts as in it.
    """
    if is_special(address):
        return "it is a special address (loopback, link-local, multicast, reserved or unspecified)"
    outside = IPv4Address(address)
    for node in nodes:
        if ("InternalIP", address) in node.addresses:
            return f"it is the address of the node {node.name}"
        if any(outside in ip_network(text, strict=False) for text in node.pod_cidrs):
            return f"it is in a pod range of the node {node.name}"
    for text in cluster_ips:
        if ":" not in text and outside in IPv4Network((text, 24), strict=False):
            return f"it is in the service range, beside the ClusterIP {text}"
    return ""


class NoNode(ValueError):
    """No node can be the target; the text is the reason."""


def node_choice(config: EdgeConfig, node_name: str) -> NodeChoice:
    """Return the node selection for a controller on this node ('' = unknown)."""
    return config.node or (NodeChoice.SELF if node_name else NodeChoice.EXACT_ONE)


def choose_node(choice: NodeChoice, nodes: Sequence[Node], node_name: str) -> Node:
    """Return the node to which packets are sent. Raises NoNode."""
    ordered = sorted(nodes, key=lambda node: node.name)
    if choice is NodeChoice.EXACT_ONE:
        if len(ordered) != 1:
            raise NoNode(f"unsupported number of nodes: must be exactly 1 ({len(ordered)} given)")
        return ordered[0]
    if choice is NodeChoice.SELF:
        if not node_name:
            raise NoNode("`node: self` needs --node-name")
        found = next((node for node in ordered if node.name == node_name), None)
        if found is None:
            raise NoNode(f"node {node_name!r}, on which this controller runs, is not one that gets packets")
        return found
    if not ordered:
        raise NoNode("there is no node that gets packets")
    return next((node for node in ordered if node.ready), ordered[0])


def node_address(node: Node) -> str:
    """Return the first IPv4 InternalIP of a node. Raises NoNode."""
    for kind, text in node.addresses:
        if kind == "InternalIP":
            try:
                return str(IPv4Address(text))
            except ValueError:
                continue
    raise NoNode(f"error getting node {node.name!r} internal IP: it has none that is IPv4")
