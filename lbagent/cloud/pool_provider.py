"""Provider `pool`: addresses of the operator's pools, as in MetalLB and kube-vip (pure)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lbagent.cloud.manifest_records import BalancerName, node_record, planned_name, service_record
from lbagent.cloud.planned_balancer import Action, PlannedBalancer
from lbagent.cloud.provider_api.provider_rules import balanced_nodes, checked_source_ranges
from lbagent.cloud.service_rules import action_of
from lbagent.model.address import format_ip
from lbagent.model.family import Family
from lbagent.objects.records import ObjectSnapshot, Service
from lbagent.pools.address_request import AddressRequest, Allocation, read_preference
from lbagent.pools.allocate import allocate
from lbagent.pools.read_pools import PoolsFile


def plan(file: PoolsFile, objects: ObjectSnapshot, lb_class: str, name: BalancerName) -> list[PlannedBalancer]:
    """Return what each Service would get, by namespace and name. The addresses in its status are its own."""
    nodes = tuple(node.name for node in balanced_nodes(map(node_record, objects.nodes.values())))
    actions = {key: action_of(service, lb_class) for key, service in objects.services.items()}
    requests = [
        address_request_of(service) for key, service in objects.services.items() if actions[key][0] is Action.ENSURE
    ]
    given = allocate(file.pools, requests, taken_addresses(objects, {request.key for request in requests}))
    rows = []
    for key in sorted(objects.services):
        service, (action, message) = objects.services[key], actions[key]
        if action is Action.ENSURE:
            rows.append(_ensured(service, given[key], nodes, name))
        else:
            held = service.balancer.status if service.balancer and action is Action.DELETE else ()
            rows.append(PlannedBalancer(service=key, action=action, addresses=held, message=message))
    return rows


def _ensured(service: Service, given: Allocation, nodes: tuple[str, ...], name: BalancerName) -> PlannedBalancer:
    record = service_record(service)
    ranges, problems = checked_source_ranges(record)
    messages = [given.problem] if given.problem else []
    messages += problems
    messages += [f"{format_ip(address)} is in no pool, and kept" for address in given.astray]
    return PlannedBalancer(
        service=service.key,
        action=Action.ENSURE if given.addresses else Action.REFUSE,
        name=planned_name(name, record),
        addresses=given.addresses,
        pool=given.pool,
        nodes=nodes,
        source_ranges=ranges,
        message="; ".join(messages),
        has_problem=bool(given.problem or problems),
    )


def address_request_of(service: Service) -> AddressRequest:
    """Return the address request of a Service of type LoadBalancer."""
    balancer = service.balancer
    assert balancer is not None
    return AddressRequest(
        service.namespace,
        service.name,
        service.created,
        balancer.families,
        balancer.require_dual_stack,
        balancer.labels,
        frozenset((port.protocol, port.port) for port in service.ports),
        balancer.pods if service.external_local else "",
        read_preference(balancer.annotations, balancer.load_balancer_ip),
        balancer.status,
    )


def taken_addresses(objects: ObjectSnapshot, requesting: set[str]) -> Mapping[bytes, str]:
    """Return the addresses in use: of nodes, externalIPs, and of Services that use no pool."""
    taken: dict[bytes, str] = {}
    for service in objects.services.values():
        held = service.balancer.status if service.balancer and service.key not in requesting else ()
        for address in (*service.external_ips, *held):
            taken.setdefault(address, f"Service {service.key}")
    for node in objects.nodes.values():
        for address in node.internal_ips:
            taken[address] = f"node {node.name}"
    return taken


def pool_rows(file: PoolsFile, objects: ObjectSnapshot) -> list[dict[str, Any]]:
    """Return a row for each pool and family: how many addresses it has, and how many are in use."""
    used = taken_addresses(objects, set())
    rows: list[dict[str, Any]] = []
    for pool in file.pools:
        for family in Family:
            if count := pool.count(family):
                in_use = sum(Family.of(address) is family and pool.can_give(address) for address in used)
                rows.append(
                    {
                        "pool": pool.name,
                        "family": f"IPv{family}",
                        "in_use": in_use,
                        "addresses": count,
                        "announce": sorted(pool.announce),
                        "priority": pool.priority,
                        "auto_assign": pool.auto_assign,
                    }
                )
    return rows
