"""The requests that a provider would get, from manifests (pure): the plan for providers without their own."""

from __future__ import annotations

from collections.abc import Sequence

from lbagent.cloud.manifest_records import BalancerName, node_record, planned_name, service_record
from lbagent.cloud.planned_balancer import Action, PlannedBalancer
from lbagent.cloud.provider_api.provider_rules import balanced_nodes, checked_source_ranges
from lbagent.cloud.service_rules import action_of
from lbagent.objects.records import ObjectSnapshot, Service

UNKNOWN = "the addresses are known after a request to the provider"


def plan(
    objects: ObjectSnapshot, lb_class: str, given: Sequence[bytes] | None, name: BalancerName
) -> list[PlannedBalancer]:
    """Return the request for each Service, by namespace and name.

    `given`: the addresses that each balancer gets (packed); None: only the addresses in a status are known. `name` is the
    provider's.
    """
    nodes = tuple(node.name for node in balanced_nodes(map(node_record, objects.nodes.values())))
    return [_row(objects.services[key], lb_class, nodes, given, name) for key in sorted(objects.services)]


def _row(
    service: Service, lb_class: str, nodes: tuple[str, ...], given: Sequence[bytes] | None, name: BalancerName
) -> PlannedBalancer:
    action, message = action_of(service, lb_class)
    held = service.balancer.status if service.balancer else ()
    if action is not Action.ENSURE:
        had = held if action is Action.DELETE else ()
        return PlannedBalancer(service=service.key, action=action, addresses=had, message=message)
    record = service_record(service)
    ranges, problems = checked_source_ranges(record)
    unknown = (UNKNOWN,) if given is None and not held else ()
    return PlannedBalancer(
        service=service.key,
        action=Action.ENSURE,
        name=planned_name(name, record),
        addresses=held if given is None else tuple(given),
        nodes=nodes,
        source_ranges=ranges,
        message="; ".join((*problems, *unknown)),
        has_problem=bool(problems),
    )
