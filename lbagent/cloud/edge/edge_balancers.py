"""The balancers of provider `edge`: `ensure` and `ensure_deleted` for a router, and the poll that keeps its mappings.

Nothing is stored on disk: the descriptions of the router's mappings identify those of an earlier process. A refusal does not change
the mappings of a Service; a Service that does not request them any more loses them.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Sequence
from contextlib import suppress

from msgspec import Struct

from lbagent.cloud.edge import edge_rules
from lbagent.cloud.edge.edge_config import EdgeConfig
from lbagent.cloud.edge.edge_rules import NoNode
from lbagent.cloud.edge.mapping_keeper import HeldByOtherNode, MappingKeeper
from lbagent.cloud.edge.protocols.port_mapping import (
    Gateway,
    GatewayFailure,
    GatewayRefusal,
    GatewayUnreachable,
    MappingConflict,
    PortMapping,
    is_public,
)
from lbagent.cloud.edge.router_services import RouterServices
from lbagent.cloud.provider import (
    ClientBuilder,
    Ingress,
    LoadBalancer,
    LoadBalancerStatus,
    Node,
    Refusal,
    RetryAfter,
    Service,
)
from lbagent.errors import LbError

log = logging.getLogger(__name__)
UNREACHABLE = "GatewayUnreachable"
REFUSED, CONFLICT, PRIVATE, LABEL = (
    "LoadBalancerRefused",
    "PortConflict",
    "PrivateExternalAddress",
    "LabelInPlaceOfAnnotation",
)
BAD_ADDRESS, NOT_ALLOWED = "ExternalAddressRefused", "ExternalAddressNotAllowed"
PROXY = "Proxy"  # ipMode: nodes send packets for the address to the router (KEP-1860)


class ServiceMappings(Struct):
    """The mappings of a Service, and the address in its status. `trouble`: the failure of the last poll."""

    uid: str
    mappings: tuple[PortMapping, ...]
    address: str = ""
    trouble: str = ""


class EdgeBalancers(LoadBalancer):
    """A balancer is a set of port mappings; its address is the router's."""

    def __init__(self, config: EdgeConfig) -> None:
        self.config = config
        self.mapped_services: dict[str, ServiceMappings] = {}  # by NAMESPACE/NAME
        self.services = RouterServices(config)
        self.keeper = MappingKeeper(config, self.services.is_wanted)
        self._builder: ClientBuilder | None = None
        self._waiting: dict[str, tuple[PortMapping, ...]] = {}  # for ports that another Service has
        self._pending: set[str] = set()  # Services whose `ensure` found no router, or none with an address
        self._is_swept = False  # the mappings that the router had at its discovery are checked
        self._down = "no poll yet"  # why there is no router, '' if there is one

    def begin(self, builder: ClientBuilder) -> None:
        """Read the controller's objects."""
        self._builder = builder
        self.keeper.cluster = builder.cluster_name
        self.services.begin(builder)

    def use(self, config: EdgeConfig) -> None:
        """Replace the configuration, and sync every Service with it."""
        self.config = self.services.config = config
        self.keeper.use(config)
        self._is_swept = False
        self._sync(self.services.asking())

    # --- the part of a provider ---

    def name(self, cluster: str, service: Service) -> str:
        """Return `CLUSTER/NAMESPACE/NAME`."""
        return edge_rules.balancer_name(cluster, service)

    async def get(self, cluster: str, service: Service) -> LoadBalancerStatus | None:
        """Return the status of the created mappings, or the Service's; the poll finds mappings that only the router has."""
        mapped = self.mapped_services.get(service.key)
        if mapped is not None and mapped.uid == service.uid:
            return LoadBalancerStatus(self._ingress(mapped.address, service.status))
        return service.status if service.status.ingress else None

    async def ensure(self, cluster: str, service: Service, nodes: Sequence[Node]) -> LoadBalancerStatus:
        """Map the ports. Raises Refusal; GatewayUnreachable, GatewayFailure and RetryAfter for failures that may be temporary."""
        self._waiting.pop(service.key, None)
        if problem := edge_rules.why_not_asked(self.config, service):
            await self._give_up(cluster, service, problem)
        wanted = self._wanted(cluster, service, nodes)
        if edge_rules.is_asked_by_label(service):
            self._write(
                service,
                LABEL,
                f"{edge_rules.TYPE} is a label, which is accepted; other programs read only the annotation",
            )
        try:
            address = await self._map(service, wanted)
        except GatewayUnreachable as error:
            self._pending.add(service.key)
            self._lose(error)
            raise
        except GatewayFailure:
            self._pending.add(service.key)
            raise
        self._pending.discard(service.key)
        self.mapped_services[service.key] = ServiceMappings(service.uid, wanted, address)
        if not is_public(address):
            text = f"the gateway's WAN address {address} is private: hosts of the Internet do not reach it"
            self._write(service, PRIVATE, text)
        elif not self.config.allows(address):
            text = (
                f"the gateway reports the WAN address {address}, which neither `gateway` nor `externalAddresses` allows"
            )
            instead = (
                "nodes divert its packets (`hairpin: true`)"
                if self.config.is_diverted(address)
                else "nodes do not divert its packets"
            )
            self._write(service, NOT_ALLOWED, f"{text}; {instead}")
        return LoadBalancerStatus(self._ingress(address, service.status))

    async def update(self, cluster: str, service: Service, nodes: Sequence[Node]) -> None:
        """Map the ports to the node selected from these. Raises as `ensure`."""
        if service.key not in self.mapped_services:
            raise LbError(f"cannot update load balancer {self.name(cluster, service)!r}: not found")
        await self.ensure(cluster, service, nodes)

    async def ensure_deleted(self, cluster: str, service: Service) -> None:
        """Remove the mappings of a Service. If no router answers, the Service is released and the poll removes them later."""
        mapped = self.mapped_services.pop(service.key, None)
        self._waiting.pop(service.key, None)
        self._pending.discard(service.key)
        prefix = f"{self.name(cluster, service)}/"
        self.keeper.cluster = self.keeper.cluster or cluster
        try:
            gateway = await self.keeper.connect()
            known = mapped.mappings if mapped else self._possible(gateway, cluster, service)
            nodes = {gateway.local_address, *self.services.addresses()}
            await self.keeper.remove_all(
                known, lambda mapping: mapping.description.startswith(prefix) and mapping.client in nodes
            )
        except (GatewayUnreachable, GatewayFailure, GatewayRefusal) as error:
            self._is_swept = False
            fields = {"service": service.key, "error": str(error)}
            log.warning("mappings are left until the gateway removes them, or their leases end", extra=fields)
        self.mapped_services.pop(service.key, None)  # mappings that a poll took over in the meantime
        self._sync(list(self._waiting))

    # --- one Service ---

    async def _give_up(self, cluster: str, service: Service, problem: str) -> None:
        """Remove the mappings of a Service that does not request them any more; raise the Refusal with the reason."""
        there = {each.ip for each in service.status.ingress if each.ip}
        if there and not self._address():
            with suppress(GatewayUnreachable):
                await self.keeper.connect()
        had = service.key in self.mapped_services or self._address() in there
        if had:
            await self.ensure_deleted(cluster, service)
        raise Refusal(REFUSED, f"{problem}: no port is mapped", status=LoadBalancerStatus() if had else None)

    def _wanted(self, cluster: str, service: Service, nodes: Sequence[Node]) -> tuple[PortMapping, ...]:
        """Return the mappings of a Service. Raises Refusal."""
        if problem := edge_rules.why_refused(service):
            raise Refusal(REFUSED, problem)
        try:
            client = self.services.client(nodes)
        except NoNode as error:
            raise Refusal(REFUSED, str(error)) from None
        return edge_rules.mappings_of(cluster, service, client)

    async def _map(self, service: Service, wanted: tuple[PortMapping, ...]) -> str:
        """Create the mappings at the router; return its WAN address."""
        gateway = await self.keeper.connect()
        if problem := self.services.why_not_local(wanted, gateway.local_address):
            raise Refusal(REFUSED, problem)
        if not self._address():
            raise GatewayFailure(f"{gateway.name} has no WAN address, or does not report a private one")
        self._check_address(gateway, service)
        mapped = self.mapped_services.get(service.key)
        try:
            await self.keeper.replace(mapped.mappings if mapped else (), wanted)
        except MappingConflict as error:
            if error.owner:
                self._waiting[service.key] = wanted
            raise Refusal(CONFLICT, str(error)) from None
        except GatewayRefusal as error:
            raise Refusal(REFUSED, str(error)) from None
        except HeldByOtherNode as error:
            raise RetryAfter(str(error), error.seconds) from None
        return self._address()

    def _check_address(self, gateway: Gateway, service: Service) -> None:
        """Raise Refusal for a WAN address that must not be in a status; remove an existing one."""
        address = self._address()
        if not (problem := self.services.why_address_refused(address)):
            return
        self._pending.add(service.key)  # until the gateway reports another one
        is_there = any(each.ip == address for each in service.status.ingress)
        text = f"{gateway.name} reports the WAN address {address}, which is not used: {problem}"
        raise Refusal(BAD_ADDRESS, text, status=LoadBalancerStatus() if is_there else None)

    def _possible(self, gateway: Gateway, cluster: str, service: Service) -> tuple[PortMapping, ...]:
        """Return the mappings that an earlier process may have created, also for a router that lists none."""
        if not (gateway.says_owners or service.status.ingress):
            return ()
        mappings = edge_rules.mappings_of(cluster, service, gateway.local_address)
        return tuple(each for each in mappings if each.protocol in edge_rules.PROTOCOLS and each.internal_port)

    def _address(self) -> str:
        return self.config.external_ip or self.keeper.external_address

    # --- the poll ---

    async def run(self, stop: asyncio.Event) -> None:
        """Poll the router until `stop`."""
        while not stop.is_set():
            try:
                await self.poll()
            except GatewayUnreachable as error:
                self._lose(error)
            except GatewayFailure as error:
                log.warning("the gateway fails", extra={"error": str(error)})
            except Exception:
                log.exception("a poll of the gateway failed")
            with suppress(TimeoutError):
                async with asyncio.timeout(self.config.poll_s):
                    await stop.wait()

    async def poll(self) -> None:
        """Check everything once. Raises GatewayUnreachable."""
        gateway = self.keeper.gateway
        has_moved = await self.keeper.look_at_address()
        if self.keeper.gateway is not gateway:
            self._is_swept = False
        if self._down or has_moved:
            self._down = ""
            self._sync(list(self._pending))
        if not self._is_swept:
            self._adopt(await self.keeper.sweep())
            self._is_swept = True
        for key, mapped in list(self.mapped_services.items()):
            await self._keep(key, mapped)
        for key, mappings in list(self._waiting.items()):
            if all([await self.keeper.is_free(mapping) for mapping in mappings]):
                self._waiting.pop(key, None)
                self._sync([key])
        address = self._address()
        for key, mapped in list(self.mapped_services.items()):
            if address not in ("", mapped.address):
                mapped.address = address  # one `ensure` for each change, also when it refuses
                self._sync([key])

    def _adopt(self, mappings: Iterable[PortMapping]) -> None:
        """Keep the mappings of Services whose `ensure` was refused or has not been called yet."""
        found: dict[str, list[PortMapping]] = {}
        for mapping in mappings:
            owner = edge_rules.owner_of(mapping.description)
            if owner and owner.service not in self.mapped_services and mapping.client in self.services.addresses():
                found.setdefault(owner.service, []).append(mapping)
        for key, each in found.items():
            service = self.services.service(key)
            if service is not None and not edge_rules.why_not_asked(self.config, service):
                address = next((entry.ip for entry in service.status.ingress), self._address())
                self.mapped_services[key] = ServiceMappings(service.uid, tuple(each), address)

    async def _keep(self, key: str, mapped: ServiceMappings) -> None:
        """Keep a Service's mappings; report a failure once, by its `ensure`."""
        trouble = ""
        for mapping in mapped.mappings:
            try:
                await self.keeper.keep(mapping, lambda: self.mapped_services.get(key) is mapped)
            except (MappingConflict, GatewayRefusal, GatewayFailure, HeldByOtherNode) as error:
                trouble = str(error)
        if trouble and trouble != mapped.trouble:
            self._sync([key])
        mapped.trouble = trouble

    def _lose(self, error: Exception) -> None:
        if str(error) != self._down:
            log.warning("no gateway answers: searching", extra={"error": str(error)})
        for key in () if self._down else self.mapped_services:
            if service := self.services.service(key):
                self._write(service, UNREACHABLE, f"{error}; the mappings stay until their leases end")
        self._down, self._is_swept = str(error), False
        self.keeper.lose()

    # --- metrics and callbacks ---

    @property
    def is_up(self) -> bool:
        """Whether the router answered the last request."""
        return not self._down

    def count(self) -> int:
        """Return how many mappings the router had at the last poll."""
        return sum(len(mapped.mappings) for mapped in self.mapped_services.values() if not mapped.trouble)

    def _sync(self, keys: Iterable[str]) -> None:
        if self._builder is not None:
            for key in keys:
                self._builder.sync(key)

    def _write(self, service: Service, reason: str, text: str) -> None:
        if self._builder is not None:
            self._builder.write_event(service, reason, text, warning=True)

    def _ingress(self, address: str, status: LoadBalancerStatus) -> tuple[Ingress, ...]:
        """Return the entry of an address; an existing one keeps its mode, unless the configuration sets another one."""
        if not self.config.is_diverted(address):
            return (Ingress(ip=address, ip_mode=PROXY),)
        there = next((each for each in status.ingress if each.ip == address), Ingress(ip=address))
        return (Ingress(ip=address) if self.config.hairpin and there.ip_mode == PROXY else there,)
