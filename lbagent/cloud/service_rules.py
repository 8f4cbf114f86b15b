"""Which Services a provider serves. Source: k8s.io/cloud-provider, service controller."""

from __future__ import annotations

from lbagent.cloud.planned_balancer import Action
from lbagent.objects.records import Service


def action_of(service: Service, lb_class: str) -> tuple[Action, str]:
    """Return the action of a provider that serves a class ('' = Services without one), regardless of addresses, and the reason."""
    balancer = service.balancer
    if balancer is None:
        return Action.IGNORE, f"type {service.type}"
    if (
        service.type == "LoadBalancer" and balancer.load_balancer_class != lb_class
    ):  # its finalizer belongs to its provider too
        theirs = balancer.load_balancer_class
        return Action.IGNORE, f"loadBalancerClass {theirs}" if theirs else f"it has no loadBalancerClass {lb_class}"
    if not balancer.wanted:
        return (Action.DELETE, "") if balancer.finalizer else (Action.IGNORE, "it is being deleted")
    if service.ignored:
        return Action.REFUSE, f"it is {service.ignored}"
    return Action.ENSURE, ""
