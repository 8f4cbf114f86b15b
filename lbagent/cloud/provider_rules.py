"""Rules every provider shares. Source: k8s.io/cloud-provider, service helpers and service controller (behaviour)."""

from __future__ import annotations

import ipaddress

from lbagent.cloud.provider_records import Node, Service
from lbagent.objects.decode.decode_pod import EXCLUDED, TO_BE_DELETED, is_no

RANGES_ANNOTATION = "service.beta.kubernetes.io/load-balancer-source-ranges"
EVERYONE = "0.0.0.0/0"
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
    """Return the ranges of clients: of the spec, else of the annotation, else `EVERYONE`; each once, in order.

    Raises ValueError for what is no CIDR.
    """
    where, texts = "spec.loadBalancerSourceRanges", list(service.source_ranges)
    if not texts:
        where, texts = RANGES_ANNOTATION, service.annotations.get(RANGES_ANNOTATION, "").strip().split(",")
    if texts == [""]:
        return (EVERYONE,)
    found: dict[str, None] = {}
    for text in map(str.strip, texts):
        try:
            if "/" not in text:
                raise ValueError
            found[str(ipaddress.ip_network(text, strict=False))] = None
        except ValueError:
            raise ValueError(f"{where}: {text!r} is no range of addresses like 192.0.2.0/24") from None
    return tuple(found)


def health_check(service: Service) -> tuple[str, int]:
    """Return path and port of a Service's health check on each node, ('', 0) without one."""
    local = service.type == "LoadBalancer" and service.external_traffic_policy == "Local"
    return (HEALTH_PATH, service.health_check_node_port) if local and service.health_check_node_port else ("", 0)


def needs_update(old: Service, new: Service) -> bool:
    """Return whether the load balancer of a Service has to be looked at again.

    Not for other labels, ClusterIPs or another status; families count by their number.
    """
    if any(getattr(old, field) != getattr(new, field) for field in _COMPARED):
        return True
    return _ranges(old) != _ranges(new) or len(old.ip_families) != len(new.ip_families)


def _ranges(service: Service) -> tuple[str, ...]:
    try:
        return source_ranges(service)
    except ValueError:
        return service.source_ranges


def node_included(node: Node) -> bool:
    """Return whether balancers send packets to a node. Whether it is ready does not count."""
    label = node.labels.get(EXCLUDED)
    return not node.leaves and TO_BE_DELETED not in node.taints and (label is None or is_no(label))
