"""What provider `edge` would map, from manifests (pure), without a request to a router."""

from __future__ import annotations

from lbagent.cloud.edge import edge_rules
from lbagent.cloud.edge.edge_config import EdgeConfig, NodeChoice
from lbagent.cloud.edge.edge_rules import NoNode
from lbagent.cloud.manifest_records import node_record, service_record
from lbagent.cloud.planned_balancer import Action, PlannedBalancer, PlannedMapping
from lbagent.cloud.provider_api.provider_records import Node
from lbagent.cloud.provider_api.provider_rules import balanced_nodes, checked_source_ranges
from lbagent.cloud.service_rules import action_of
from lbagent.model.address import parse_ip
from lbagent.objects import records
from lbagent.objects.records import ObjectSnapshot


def plan(config: EdgeConfig, objects: ObjectSnapshot, lb_class: str, cluster: str) -> list[PlannedBalancer]:
    """Return what each Service would get, by namespace and name. If two request one port, the older one gets it."""
    nodes = balanced_nodes(map(node_record, objects.nodes.values()))
    rows: dict[str, PlannedBalancer] = {}
    holders: dict[tuple[str, int], str] = {}
    for service in sorted(objects.services.values(), key=lambda each: (each.created, each.key)):
        action, message = action_of(service, lb_class)
        held = service.balancer.status if service.balancer else ()
        if action is Action.ENSURE:
            rows[service.key] = _row(config, service, nodes, cluster, holders)
        else:
            had = held if action is Action.DELETE else ()
            rows[service.key] = PlannedBalancer(service=service.key, action=action, addresses=had, message=message)
    return [rows[key] for key in sorted(rows)]


def _row(
    config: EdgeConfig, raw: records.Service, nodes: list[Node], cluster: str, holders: dict[tuple[str, int], str]
) -> PlannedBalancer:
    assert raw.balancer is not None
    service = service_record(raw)
    name = edge_rules.balancer_name(cluster, service)
    if message := edge_rules.why_not_asked(config, service):
        return PlannedBalancer(service=raw.key, action=Action.IGNORE, message=message)
    chosen: tuple[str, ...] = ()
    problem = edge_rules.why_refused(service)
    try:
        chosen = _chosen(config, nodes)
    except NoNode as error:
        problem = problem or str(error)
    mappings = edge_rules.mappings_of(cluster, service, "")
    taken = [each for each in mappings if each.outside in holders]
    if not problem and taken:
        port = f"{taken[0].external_port}/{taken[0].protocol}"
        problem = f"{port} is mapped for Service {holders[taken[0].outside]}"
    if problem:
        return PlannedBalancer(service=raw.key, action=Action.REFUSE, name=name, message=problem)
    holders.update({each.outside: raw.key for each in mappings})
    ranges, problems = checked_source_ranges(service)
    return PlannedBalancer(
        service=raw.key,
        action=Action.ENSURE,
        name=name,
        addresses=(parse_ip(config.external_ip),) if config.external_ip else raw.balancer.status,
        nodes=chosen,
        source_ranges=ranges,
        message="; ".join(problems),
        has_problem=bool(problems),
        mappings=tuple(
            PlannedMapping(each.protocol, each.external_port, each.internal_port, each.description) for each in mappings
        ),
    )


def _chosen(config: EdgeConfig, nodes: list[Node]) -> tuple[str, ...]:
    """Return the selected node. With `self` it is the controller's node, which is not in manifests."""
    choice = edge_rules.node_choice(config, "")
    if choice is NodeChoice.SELF:
        return ()
    chosen = edge_rules.choose_node(choice, nodes, "")
    edge_rules.node_address(chosen)
    return (chosen.name,)
