"""Which Services a provider serves, from which nodes, for which clients. Source: k8s.io/cloud-provider, service controller."""

from __future__ import annotations

from collections.abc import Iterable

from lbagent.cloud.planned_balancer import Action
from lbagent.cloud.provider_rules import RANGES_ANNOTATION
from lbagent.objects.records import Node, Service

EVERYONE = {4: "0.0.0.0/0", 6: "::/0"}


def action_of(service: Service, lb_class: str) -> tuple[Action, str]:
    """Return what a provider that serves a class ('' = Services without one) does, before it looks at addresses, and why."""
    balancer = service.balancer
    if balancer is None:
        return Action.IGNORE, f"type {service.type}"
    if (
        service.type == "LoadBalancer" and balancer.load_balancer_class != lb_class
    ):  # its finalizer is its provider's, too
        theirs = balancer.load_balancer_class
        return Action.IGNORE, f"loadBalancerClass {theirs}" if theirs else f"it has no loadBalancerClass {lb_class}"
    if not balancer.wanted:
        return (Action.DELETE, "") if balancer.finalizer else (Action.IGNORE, "it is being deleted")
    if service.ignored:
        return Action.REFUSE, f"it is {service.ignored}"
    return Action.ENSURE, ""


def balancer_name(service: Service) -> str:
    """Return the name of a balancer: `a` and the UID without dashes, 32 characters; '' without a UID."""
    uid = service.balancer.uid if service.balancer else ""
    return f"a{uid.replace('-', '')}"[:32] if uid else ""


def node_names(nodes: Iterable[Node]) -> tuple[str, ...]:
    """Return the nodes that balancers may send packets to, by name; whether one is ready does not count."""
    return tuple(sorted(node.name for node in nodes if not (node.leaves or node.excluded)))


def source_ranges(service: Service) -> tuple[str, ...]:
    """Return the ranges of clients: of the spec, else of the annotation, else everybody."""
    if service.source_ranges:
        return tuple(map(str, service.source_ranges))
    annotations = service.balancer.annotations if service.balancer else {}
    texts = [text.strip() for text in annotations.get(RANGES_ANNOTATION, "").split(",")]
    families = service.balancer.families if service.balancer else ()
    return tuple(filter(None, texts)) or tuple(EVERYONE[family] for family in families)
