"""ServiceCalls: the calls that bring a renderer of Services from one State to the next.

A Service is complete when its object and a slice of it exist. The first call is `resync`. Each further State gives
`delete_service`, `update_service`, `add_service` and `update_node_port_services`, in this order, then changed sets of interfaces.
A change of the node's addresses or of NodePorts alone gives only `update_node_port_services`. `Flush` ends a transaction: a
renderer may gather the calls before it; after it they are in force.
"""

from __future__ import annotations

from abc import abstractmethod
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, NamedTuple, overload

from msgspec import Struct

from lbagent.model.family import Family
from lbagent.model.service import SVC, ServiceName, SVCType
from lbagent.model.state import State
from lbagent.render.renderer_types import Interfaces, IPAddresses, ResolvedService, ResyncEventData
from lbagent.render.service_of_rows import host_ports_of_pod, local_pod_addresses, resolved_service
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
    """Remembers what the calls before have made of a renderer."""

    def __init__(self, view: View = View()) -> None:  # noqa: B008 - immutable
        self._view = view
        self._known: dict[str, ResolvedService] | None = None  # None: nothing is sure
        self._node_ips = IPAddresses()
        self._frontend_ifs = self._backend_ifs = Interfaces()
        # What is not resolved again: the rows of a Service are the same objects while nothing of it changes.
        self._rows: dict[ServiceName, tuple[SVC, ...]] = {}
        self._resolved: dict[ServiceName, tuple[ResolvedService, ...]] = {}
        self._addresses_of_nodes: frozenset[bytes] = frozenset()
        self._local_pods: Counter[str] = Counter()  # addresses, and how many Services each is an endpoint of

    def forget(self) -> None:
        """Begin again with a resync: not all calls arrived."""
        self._known = None

    def snapshot(self) -> ResyncEventData:
        """Return what the calls so far have made true."""
        services = tuple((self._known or {}).values())
        return ResyncEventData(self._node_ips, services, self._frontend_ifs, self._backend_ifs)

    def to(self, state: State, facts: ObjectFacts, around: Surroundings = NOWHERE) -> list[Call]:
        """Return the calls that make a State true; none where nothing of it is a renderer's."""
        before, ips, frontend_ifs, backend_ifs = self._known, self._node_ips, self._frontend_ifs, self._backend_ifs
        services = self._known = self._complete(state, facts)
        self._node_ips = self._find_node_ips(facts)
        self._frontend_ifs = around.frontend_ifs
        self._count_local_pods(before, services)
        self._backend_ifs = Interfaces(*filter(None, map(around.device_of, self._local_pods)))
        if before is None:
            return [Resync(self.snapshot())]
        calls = [*_changes(before, services), *_node_ports(before, services, self._node_ips, ips)]
        if self._frontend_ifs != frontend_ifs:
            calls.append(UpdateLocalFrontendIfs(frontend_ifs, self._frontend_ifs))
        if self._backend_ifs != backend_ifs:
            calls.append(UpdateLocalBackendIfs(backend_ifs, self._backend_ifs))
        return calls

    def _find_node_ips(self, facts: ObjectFacts) -> IPAddresses:
        found = sorted(facts.addresses_of_nodes) if self._view.needs_nodes else facts.node_addresses
        family = self._view.family
        return IPAddresses.of_packed(address for address in found if family in {None, Family.of(address)})

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
                resolved[name] = tuple(self._resolve(str(name), rows))
        self._rows, self._resolved = dict(rows_of), resolved
        return {each.id: each for found in resolved.values() for each in found if _is_complete(each, facts)}

    def _resolve(self, name: str, rows: Collection[SVC]) -> Iterator[ResolvedService]:
        family, hosts = self._view.family, self._addresses_of_nodes
        if family is not None:
            rows = [row for row in rows if Family.of(row.frontend.address) is family]
        if (service := resolved_service(name, rows, hosts)) is not None:
            yield service
        if self._view.host_ports and (pod := host_ports_of_pod(name, rows, hosts)) is not None:
            yield pod

    def _count_local_pods(
        self, before: Mapping[str, ResolvedService] | None, after: Mapping[str, ResolvedService]
    ) -> None:
        if before is None:
            before = {}
            self._local_pods.clear()
        for name, service in before.items():
            if service is not after.get(name):
                self._local_pods.subtract(local_pod_addresses(service))
        for name, service in after.items():
            if service is not before.get(name):
                self._local_pods.update(local_pod_addresses(service))
        if len(self._local_pods) != len(+self._local_pods):
            self._local_pods = +self._local_pods


def _is_same(one: SVC, other: SVC) -> bool:
    return one is other


def _is_complete(service: ResolvedService, facts: ObjectFacts) -> bool:
    return service.id in facts.services_with_endpoints or service.svcs[0].type is SVCType.HOST_PORT


def _changes(before: Mapping[str, ResolvedService], after: Mapping[str, ResolvedService]) -> Iterator[Call]:
    services = tuple(after.values())
    for name, service in before.items():
        if name not in after:
            yield DeleteService(service, Others(services, name))
    added = []
    for name, service in after.items():
        old = before.get(name)
        if old is None:
            added.append(AddService(service))
        elif service is not old and _without_node_ports(service) != _without_node_ports(old):
            yield UpdateService(old, service, Others(services, name))
    yield from added


def _without_node_ports(service: ResolvedService) -> tuple[ResolvedService, tuple[SVC, ...]]:
    """Return what `update_service` is called for."""
    return service.without_node_ports(), tuple(svc for svc in service.svcs if svc.type not in _ON_NODE)


def _node_ports(
    before: Mapping[str, ResolvedService],
    after: Mapping[str, ResolvedService],
    ips: IPAddresses,
    ips_before: IPAddresses,
) -> Iterator[Call]:
    """Yield the call about NodePorts, where they or the node's addresses changed and no other call has it."""
    if ips != ips_before or any(
        service is not old and _has_other_node_ports(old, service)
        for name, service in after.items()
        if (old := before.get(name)) is not None
    ):
        yield UpdateNodePortServices(ips, tuple(service for service in after.values() if service.has_node_port()))


def _has_other_node_ports(old: ResolvedService, new: ResolvedService) -> bool:
    """Return whether two Services differ in what is on the node's addresses, and in nothing else."""
    return _without_node_ports(old) == _without_node_ports(new) and (old.ports, old.svcs) != (new.ports, new.svcs)
