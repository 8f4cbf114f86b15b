"""ServiceCalls: the calls that bring a renderer of Services from one State to the next.

A Service is complete when its object and a slice of it exist. The first call is `resync`. Each further State gives
`delete_service`, `update_service`, `add_service` and `update_node_port_services`, in this order, then changed sets of interfaces.
A change of the node's addresses or of NodePorts alone gives only `update_node_port_services`. `Flush` ends a transaction: a
renderer may gather the calls before it; after it they are in force.
"""

from __future__ import annotations

from abc import abstractmethod
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Mapping, Sequence, Set
from typing import Any, ClassVar, NamedTuple, overload

from msgspec import Struct

from lbagent.model.family import Family
from lbagent.model.service import SVC, ServiceName, SVCType
from lbagent.model.state import State, common_prefix_and_suffix
from lbagent.render.renderer_types import Interfaces, IPAddresses, ResolvedService, ResyncEventData
from lbagent.render.service_of_rows import POD_PREFIX, host_ports_of_pod, local_pod_addresses, resolved_service
from lbagent.render.service_renderer import ServiceRenderer
from lbagent.sync.target_protocol import ObjectFacts

_ON_NODE = (SVCType.NODE_PORT, SVCType.HOST_PORT)  # what follows the node's addresses


class View(NamedTuple):
    """Which part of a State a renderer gets."""

    needs_nodes: bool = False
    host_ports: bool = False
    family: Family | None = None  # None: both


class Others(Sequence[ResolvedService]):
    """All Services in force but one. It holds no copy: 10,000 changes of 10,000 Services would need a list each."""

    def __init__(self, services: Sequence[ResolvedService], name: str) -> None:
        self._services = services
        self._name = name

    def __iter__(self) -> Iterator[ResolvedService]:
        return (service for service in self._services if service.id != self._name)

    def __len__(self) -> int:
        return sum(1 for _ in self)

    @overload
    def __getitem__(self, index: int) -> ResolvedService: ...
    @overload
    def __getitem__(self, index: slice) -> list[ResolvedService]: ...
    def __getitem__(self, index: int | slice) -> ResolvedService | list[ResolvedService]:
        return [*self][index]

    def __repr__(self) -> str:
        return repr([*self])


class Call(Struct, frozen=True):
    """One call of a renderer."""

    name: ClassVar[str] = ""

    @abstractmethod
    def apply(self, renderer: ServiceRenderer) -> Awaitable[None]:
        """Make the call."""

    def to_json(self) -> dict[str, Any]:
        """Return the line of a record."""
        return {"call": self.name}


class AddService(Call, frozen=True):
    """A Service is complete now."""

    name = "add_service"
    service: ResolvedService

    def apply(self, renderer: ServiceRenderer) -> Awaitable[None]:
        """Make the call."""
        return renderer.add_service(self.service)

    def to_json(self) -> dict[str, Any]:
        """Return the line of a record."""
        return {"call": self.name, "service": self.service.to_json()}


class UpdateService(Call, frozen=True):
    """A Service changed."""

    name = "update_service"
    old: ResolvedService
    service: ResolvedService
    others: Sequence[ResolvedService]

    def apply(self, renderer: ServiceRenderer) -> Awaitable[None]:
        """Make the call."""
        return renderer.update_service(self.old, self.service, self.others)

    def to_json(self) -> dict[str, Any]:
        """Return the line of a record; `others` are ids."""
        services = {"service": self.service.to_json(), "old": self.old.to_json()}
        return {"call": self.name, **services, "others": _ids(self.others)}


class DeleteService(Call, frozen=True):
    """The object or the last slice of a Service is gone."""

    name = "delete_service"
    service: ResolvedService
    others: Sequence[ResolvedService]

    def apply(self, renderer: ServiceRenderer) -> Awaitable[None]:
        """Make the call."""
        return renderer.delete_service(self.service, self.others)

    def to_json(self) -> dict[str, Any]:
        """Return the line of a record; `others` are ids."""
        return {"call": self.name, "service": self.service.to_json(), "others": _ids(self.others)}


class UpdateNodePortServices(Call, frozen=True):
    """The node's addresses, or NodePorts, changed."""

    name = "update_node_port_services"
    node_ips: IPAddresses
    services: Sequence[ResolvedService]

    def apply(self, renderer: ServiceRenderer) -> Awaitable[None]:
        """Make the call."""
        return renderer.update_node_port_services(self.node_ips, self.services)

    def to_json(self) -> dict[str, Any]:
        """Return the line of a record."""
        services = [service.to_json() for service in self.services]
        return {"call": self.name, "node_ips": self.node_ips.list(), "services": services}


class UpdateLocalFrontendIfs(Call, frozen=True):
    """Clients reach this node by other interfaces."""

    name = "update_local_frontend_ifs"
    old: Interfaces
    new: Interfaces

    def apply(self, renderer: ServiceRenderer) -> Awaitable[None]:
        """Make the call."""
        return renderer.update_local_frontend_ifs(self.old, self.new)

    def to_json(self) -> dict[str, Any]:
        """Return the line of a record."""
        return {"call": self.name, "old": self.old.list(), "new": self.new.list()}


class UpdateLocalBackendIfs(Call, frozen=True):
    """Local Pods that are endpoints have other interfaces."""

    name = "update_local_backend_ifs"
    old: Interfaces
    new: Interfaces

    def apply(self, renderer: ServiceRenderer) -> Awaitable[None]:
        """Make the call."""
        return renderer.update_local_backend_ifs(self.old, self.new)

    def to_json(self) -> dict[str, Any]:
        """Return the line of a record."""
        return {"call": self.name, "old": self.old.list(), "new": self.new.list()}


class Resync(Call, frozen=True):
    """Everything, at start and after a failure."""

    name = "resync"
    snapshot: ResyncEventData

    def apply(self, renderer: ServiceRenderer) -> Awaitable[None]:
        """Make the call."""
        return renderer.resync(self.snapshot)

    def to_json(self) -> dict[str, Any]:
        """Return the line of a record."""
        return {
            "call": self.name,
            "node_ips": self.snapshot.node_ips.list(),
            "services": [service.to_json() for service in self.snapshot.services],
            "frontend_ifs": self.snapshot.frontend_ifs.list(),
            "backend_ifs": self.snapshot.backend_ifs.list(),
        }


class Flush(Call, frozen=True):
    """End of a transaction."""

    name = "flush"

    def apply(self, renderer: ServiceRenderer) -> Awaitable[None]:
        """Make the call."""
        return renderer.flush()


def _ids(services: Iterable[ResolvedService]) -> list[str]:
    return [service.id for service in services]


DeviceOf = Callable[[str], str]  # the interface by which this node reaches an address, '' for none


class Surroundings(NamedTuple):
    """The node around the Services: the interfaces of clients, and those by which Pods are reached."""

    frontend_ifs: Interfaces = Interfaces()
    device_of: DeviceOf = lambda _address: ""


NOWHERE = Surroundings()


class ServiceCalls:
    """Remembers what the calls before have made of a renderer. A change of one Service among 10,000 takes some milliseconds."""

    def __init__(self, view: View = View()) -> None:  # noqa: B008 - immutable
        self._view = view
        self._is_sure = False  # whether the calls so far arrived
        self._known: dict[str, ResolvedService] = {}
        self._node_ips = IPAddresses()
        self._frontend_ifs = self._backend_ifs = Interfaces()
        self._local_pods: Counter[str] = Counter()  # addresses, and of how many Services each is an endpoint
        # What the last call was for: the rows of a Service are the same objects while nothing of it changes.
        self._state = State()
        self._facts = ObjectFacts()
        self._around = NOWHERE

    def forget(self) -> None:
        """Begin again with a resync: not all calls arrived."""
        self._is_sure = False

    def snapshot(self) -> ResyncEventData:
        """Return what the calls so far have made true; Services in the order of the State."""
        names = [*map(str, self._state.by_name)]
        found = [service for name in names for each in (name, POD_PREFIX + name) if (service := self._known.get(each))]
        return ResyncEventData(self._node_ips, tuple(found), self._frontend_ifs, self._backend_ifs)

    def to(self, state: State, facts: ObjectFacts, around: Surroundings = NOWHERE) -> list[Call]:
        """Return the calls that make a State true; none where nothing of it is a renderer's."""
        ips, frontend_ifs, backend_ifs = self._node_ips, self._frontend_ifs, self._backend_ifs
        changed = self._resolve_changed(state, facts)
        if facts is not self._facts or not self._is_sure:
            self._node_ips = self._find_node_ips(facts)
        self._frontend_ifs = around.frontend_ifs
        if self._count_local_pods(changed) or around is not self._around:
            self._backend_ifs = Interfaces(*filter(None, map(around.device_of, self._local_pods)))
        self._state, self._facts, self._around = state, facts, around
        if not self._is_sure:
            self._is_sure = True
            return [Resync(self.snapshot())]
        calls = self._changes(changed)
        if self._node_ips != ips or any(map(_is_of_node_ports, changed)):
            services = tuple(service for service in self.snapshot().services if service.has_node_port())
            calls.append(UpdateNodePortServices(self._node_ips, services))
        if self._frontend_ifs != frontend_ifs:
            calls.append(UpdateLocalFrontendIfs(frontend_ifs, self._frontend_ifs))
        if self._backend_ifs != backend_ifs:
            calls.append(UpdateLocalBackendIfs(backend_ifs, self._backend_ifs))
        return calls

    def _find_node_ips(self, facts: ObjectFacts) -> IPAddresses:
        found = sorted(facts.addresses_of_nodes) if self._view.needs_nodes else facts.node_addresses
        family = self._view.family
        return IPAddresses.of_packed(address for address in found if family in {None, Family.of(address)})

    def _resolve_changed(self, state: State, facts: ObjectFacts) -> list[_Changed]:
        """Bring `_known` to a State; return each Service that is another one now."""
        out = []
        rows_of: Mapping[ServiceName, Sequence[SVC]]
        if facts is self._facts or _hosts(facts) == _hosts(self._facts):
            names = self._names_that_changed(state, facts)
            rows_of = _rows_of(state, names) if names else {}
        else:
            rows_of = state.by_name
            names = rows_of.keys() | self._state.by_name.keys()
        hosts = _hosts(facts) if names else frozenset()
        for name in [*rows_of, *sorted(names - rows_of.keys())]:
            found = {each.id: each for each in self._resolve(str(name), rows_of.get(name, ()), hosts, facts)}
            for service_id in (str(name), POD_PREFIX + str(name)):
                old, new = self._known.pop(service_id, None), found.get(service_id)
                if new is not None:
                    self._known[service_id] = new
                if old is not None or new is not None:
                    out.append(_Changed(old, new))
        return out

    def _names_that_changed(self, state: State, facts: ObjectFacts) -> Set[ServiceName]:
        """Return the Services of rows that are other objects, and those whose slices came or went."""
        old, new = self._state.services, state.services
        prefix, suffix = common_prefix_and_suffix(old, new, state.delta)
        names = {svc.name for rows in (old, new) for svc in rows[prefix : len(rows) - suffix]}
        before, after = self._facts.services_with_endpoints, facts.services_with_endpoints
        if after is not before:
            names.update(map(ServiceName.parse, after ^ before))
        return names

    def _resolve(
        self, name: str, rows: Collection[SVC], hosts: frozenset[bytes], facts: ObjectFacts
    ) -> Iterator[ResolvedService]:
        """Yield the complete Services of a name: the Service, and the HostPorts of a Pod."""
        family = self._view.family
        if family is not None:
            rows = [row for row in rows if Family.of(row.frontend.address) is family]
        if name in facts.services_with_endpoints and (service := resolved_service(name, rows, hosts)) is not None:
            yield service
        if self._view.host_ports and (pod := host_ports_of_pod(name, rows, hosts)) is not None:
            yield pod

    def _count_local_pods(self, changed: Sequence[_Changed]) -> bool:
        """Return whether the set of local Pods is another one."""
        before = self._local_pods.keys() - ()
        for each in changed:
            if each.old is not None:
                self._local_pods.subtract(local_pod_addresses(each.old))
            if each.new is not None:
                self._local_pods.update(local_pod_addresses(each.new))
        self._local_pods = +self._local_pods
        return self._local_pods.keys() != before

    def _changes(self, changed: Sequence[_Changed]) -> list[Call]:
        services = tuple(self._known.values())
        gone = [each.old for each in changed if each.old is not None and each.new is None]
        updates = [(each.old, each.new) for each in changed if each.old is not None and each.new is not None]
        return [
            *(DeleteService(service, Others(services, service.id)) for service in gone),
            *(
                UpdateService(old, new, Others(services, new.id))
                for old, new in updates
                if _without_node_ports(old) != _without_node_ports(new)
            ),
            *(AddService(each.new) for each in changed if each.old is None and each.new is not None),
        ]


class _Changed(NamedTuple):
    """A Service before and after a change; None where it is not complete."""

    old: ResolvedService | None
    new: ResolvedService | None


def _hosts(facts: ObjectFacts) -> frozenset[bytes]:
    return facts.addresses_of_nodes.union(facts.node_addresses)


def _rows_of(state: State, names: Set[ServiceName]) -> dict[ServiceName, list[SVC]]:
    """Return the rows of some Services: an index of all is not worth it."""
    found: dict[ServiceName, list[SVC]] = {}
    for svc in state.services:
        if svc.name in names:
            found.setdefault(svc.name, []).append(svc)
    return found


def _without_node_ports(service: ResolvedService) -> tuple[ResolvedService, tuple[SVC, ...]]:
    """Return what `update_service` is called for."""
    return service.without_node_ports(), tuple(svc for svc in service.svcs if svc.type not in _ON_NODE)


def _is_of_node_ports(changed: _Changed) -> bool:
    """Return whether a Service changed in what is on the node's addresses, and in nothing else."""
    old, new = changed
    if old is None or new is None or _without_node_ports(old) != _without_node_ports(new):
        return False
    return (old.ports, old.svcs) != (new.ports, new.svcs)
