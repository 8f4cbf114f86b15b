"""ServiceCalls: the calls that bring a renderer of Services from one State to the next.

A Service is complete when its object and a slice of it exist. The first call is `resync`. Each further State gives
`delete_service`, `update_service` and `add_service`, in this order. A change of the node's addresses or of NodePorts alone
gives one `update_node_port_services`. `FLUSH` ends a transaction: a renderer may gather the calls before it; after it they
are in force.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lbagent.model.address import format_ip
from lbagent.model.service import SVC, ServiceName
from lbagent.model.state import State
from lbagent.sync.target_protocol import ObjectFacts
from lbagent.targets.resolved_service import ResolvedService, resolved_service

Call = Mapping[str, Any]  # `call` is its name, the others are its arguments
FLUSH: Call = {"call": "flush"}


class ServiceCalls:
    """Remembers what the calls before have made of the renderer."""

    def __init__(self) -> None:
        self._known: dict[str, ResolvedService] | None = None  # None: nothing is sure
        self._node_ips: tuple[str, ...] = ()
        # What is not resolved again: the rows of a Service are the same objects while nothing of it changes.
        self._rows: dict[ServiceName, tuple[SVC, ...]] = {}
        self._resolved: dict[ServiceName, ResolvedService | None] = {}
        self._addresses_of_nodes: frozenset[bytes] = frozenset()

    def forget(self) -> None:
        """Begin again with a resync: not all calls arrived."""
        self._known = None

    def to(self, state: State, facts: ObjectFacts) -> list[Call]:
        """Return the calls that make a State true; none where nothing of it is a renderer's."""
        before, ips_before = self._known, self._node_ips
        services = self._known = self._complete(state, facts)
        node_ips = self._node_ips = tuple(map(format_ip, facts.node_addresses))
        if before is None:
            return [{"call": "resync", "node_ips": node_ips, "services": list(services.values())}]
        return [*_changes(before, services), *_node_ports(before, services, node_ips, is_new=node_ips != ips_before)]

    def _complete(self, state: State, facts: ObjectFacts) -> dict[str, ResolvedService]:
        """Return the Services that are there, by NAMESPACE/NAME."""
        hosts = facts.addresses_of_nodes.union(facts.node_addresses)
        if hosts != self._addresses_of_nodes:
            self._addresses_of_nodes, self._rows = hosts, {}
        rows_of, resolved = state.by_name, {}
        for name, rows in rows_of.items():
            known = self._rows.get(name, ())
            if len(known) == len(rows) and all(map(_is_same, known, rows)):
                resolved[name] = self._resolved[name]
            else:
                resolved[name] = resolved_service(str(name), rows, hosts)
        self._rows, self._resolved = dict(rows_of), resolved
        there = facts.services_with_endpoints
        return {each.id: each for each in resolved.values() if each is not None and each.id in there}


def _is_same(one: SVC, other: SVC) -> bool:
    return one is other


def _changes(before: Mapping[str, ResolvedService], after: Mapping[str, ResolvedService]) -> list[Call]:
    gone = [name for name in before if name not in after]
    calls: list[Call] = [
        {"call": "delete_service", "service": before[name], "others": _others(name, after)} for name in gone
    ]
    for name, service in after.items():
        old = before.get(name)
        if old is not None and old != service and old.without_node_ports() != service.without_node_ports():
            calls.append({"call": "update_service", "service": service, "old": old, "others": _others(name, after)})
    calls += [{"call": "add_service", "service": service} for name, service in after.items() if name not in before]
    return calls


def _others(name: str, services: Mapping[str, ResolvedService]) -> list[str]:
    return [other for other in services if other != name]


def _node_ports(
    before: Mapping[str, ResolvedService],
    after: Mapping[str, ResolvedService],
    node_ips: tuple[str, ...],
    *,
    is_new: bool,
) -> list[Call]:
    """Return the call about NodePorts, where they or the node's addresses are all that changed."""
    if not is_new:
        is_new = any(
            old != new and old.without_node_ports() == new.without_node_ports()
            for name, new in after.items()
            if (old := before.get(name)) is not None
        )
    if not is_new:
        return []
    services = [service for service in after.values() if service.has_node_port]
    return [{"call": "update_node_port_services", "node_ips": node_ips, "services": services}]
