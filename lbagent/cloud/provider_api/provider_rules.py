"""Rules that all providers share. Source: k8s.io/cloud-provider, service helpers and service controller (behaviour)."""

from __future__ import annotations

from collections.abc import Iterable

from lbagent.cloud.provider_api.provider_records import Node, Service
from lbagent.objects.decode import source_ranges as decoded
from lbagent.objects.decode.decode_pod import EXCLUDED, TO_BE_DELETED, is_no

ANY_SOURCE = {"IPv4": "0.0.0.0/0", "IPv6": "::/0"}
HEALTH_PATH = "/healthz"
NAME_LENGTH = 32
_COMPARED = (
    "uid",
    "type",
    "load_balancer_class",
    "ports",
    "session_affinity",
    "session_affinity_s",
    "load_balancer_ip",
    "external_ips",
    "annotations",
    "external_traffic_policy",
    "health_check_node_port",
)


def default_load_balancer_name(service: Service) -> str:
    """Return `a` and the UID without dashes, 32 characters."""
    return f"a{service.uid.replace('-', '')}"[:NAME_LENGTH]


def source_ranges(service: Service) -> tuple[str, ...]:
    """Return the ranges of clients, each once, in order. Raises ValueError with each value that is not a range."""
    ranges, problems = checked_source_ranges(service)
    if problems:
        raise ValueError("; ".join(problems))
    return ranges


def checked_source_ranges(service: Service) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the ranges of clients, and a sentence for each rejected value.

    They are from the spec, else from the annotation, else all addresses of the Service's IP families. A rejected value admits
    no client.
    """
    found = decoded.read_source_ranges(service.source_ranges, service.annotations.get(decoded.ANNOTATION, ""))
    if not found.texts:
        any_source = tuple(ANY_SOURCE[word] for word in dict.fromkeys(service.ip_families) if word in ANY_SOURCE)
        return any_source or (ANY_SOURCE["IPv4"],), ()
    return tuple(map(str, found.ranges)), found.problems


def health_check(service: Service) -> tuple[str, int]:
    """Return path and port of a Service's health check on each node, ('', 0) without one."""
    local = service.type == "LoadBalancer" and service.external_traffic_policy == "Local"
    return (HEALTH_PATH, service.health_check_node_port) if local and service.health_check_node_port else ("", 0)


def needs_update(old: Service, new: Service) -> bool:
    """Return whether the load balancer of a Service must be synced again.

    Changes of labels, ClusterIPs or the status do not count; families count by their number.
    """
    if any(getattr(old, field) != getattr(new, field) for field in _COMPARED):
        return True
    ranges_differ = checked_source_ranges(old) != checked_source_ranges(new)
    return ranges_differ or len(old.ip_families) != len(new.ip_families)


def node_included(node: Node) -> bool:
    """Return whether balancers send packets to a node, ready or not."""
    label = node.labels.get(EXCLUDED)
    return not node.leaves and TO_BE_DELETED not in node.taints and (label is None or is_no(label))


def balanced_nodes(nodes: Iterable[Node]) -> list[Node]:
    """Return the nodes to which balancers send packets, by name."""
    return sorted(filter(node_included, nodes), key=lambda node: node.name)
