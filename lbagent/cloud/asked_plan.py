"""What a provider would be asked for, from manifests alone (pure): the plan of those that have none of their own."""

from __future__ import annotations

from collections.abc import Sequence

from lbagent.cloud.planned_balancer import Action, PlannedBalancer
from lbagent.cloud.service_rules import action_of, balancer_name, node_names, source_ranges
from lbagent.objects.records import ObjectSnapshot, Service

UNKNOWN = "the addresses are known when the provider is asked"


def plan(objects: ObjectSnapshot, lb_class: str, given: Sequence[bytes] | None) -> list[PlannedBalancer]:
    """Return what would be asked for each Service, by namespace and name.

    `given`: the addresses that each balancer gets (packed); None: nothing is known but what a status has.
    """
    nodes = node_names(objects.nodes.values())
    return [_row(objects.services[key], lb_class, nodes, given) for key in sorted(objects.services)]


def _row(service: Service, lb_class: str, nodes: tuple[str, ...], given: Sequence[bytes] | None) -> PlannedBalancer:
    action, message = action_of(service, lb_class)
    held = service.balancer.status if service.balancer else ()
    if action is not Action.ENSURE:
        had = held if action is Action.DELETE else ()
        return PlannedBalancer(service=service.key, action=action, addresses=had, message=message)
    return PlannedBalancer(
        service=service.key,
        action=action,
        name=balancer_name(service),
        addresses=held if given is None else tuple(given),
        nodes=nodes,
        source_ranges=source_ranges(service),
        message=UNKNOWN if given is None and not held else "",
    )
