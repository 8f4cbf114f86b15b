"""healthCheckNodePort: reports to a balancer how many ready endpoints of a Service are on this node, by the State in the maps.

A port is open while the maps have the Service, which begins before it has an address of the balancer. A port that cannot be
opened is retried.
Source: kube-proxy's service_health.go (behaviour).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence

import msgspec
from msgspec import Struct

from lbagent.http.http_server import Request, Response
from lbagent.http.listeners import Listeners
from lbagent.model.address import L3n4Addr
from lbagent.model.family import Family
from lbagent.model.service import SVC, ServiceName
from lbagent.model.state import State, common_prefix_and_suffix
from lbagent.objects.object_event import EventSink, ObjectEvent

log = logging.getLogger(__name__)
NOT_OPENED = "FailedToStartServiceHealthcheck"  # kube-proxy's text
WEIGHT = "X-Load-Balancing-Endpoint-Weight"


class ServiceHealthPort(Struct, frozen=True):
    """The health check of a Service: its port, and the ready local endpoints of each of its families."""

    port: int
    addresses: Mapping[Family, frozenset[bytes]]


class HealthCheckedFrontends:
    """The frontends with a healthCheckNodePort, kept from State to State: most changes concern none."""

    def __init__(self) -> None:
        self._services: tuple[SVC, ...] = ()
        self._frontends: dict[L3n4Addr, SVC] = {}

    def update(self, state: State) -> bool:
        """Take a State; return whether it may change health checks."""
        old, new = self._services, state.services
        prefix, suffix = common_prefix_and_suffix(old, new, state.delta)
        gone = [svc for svc in old[prefix : len(old) - suffix] if svc.health_check_node_port]
        here = [svc for svc in new[prefix : len(new) - suffix] if svc.health_check_node_port]
        for svc in gone:
            self._frontends.pop(svc.frontend, None)
        self._frontends.update((svc.frontend, svc) for svc in here)
        self._services = new
        return bool(gone or here)

    def checks(self) -> dict[ServiceName, ServiceHealthPort]:
        """Return the health check of each Service. Endpoints of several ports count once."""
        found: dict[ServiceName, tuple[int, dict[Family, set[bytes]]]] = {}
        for svc in self._frontends.values():
            _, families = found.setdefault(svc.name, (svc.health_check_node_port, {}))
            families.setdefault(svc.frontend.family, set()).update(svc.health_check_addresses)
        return {
            name: ServiceHealthPort(port, {family: frozenset(each) for family, each in families.items()})
            for name, (port, families) in found.items()
        }


class _Server:
    """The port of one Service in one family."""

    def __init__(self, name: ServiceName, is_proxy_healthy: Callable[[], bool]) -> None:
        self.endpoints = 0
        self.listeners = Listeners(self._answer)
        self._name = name
        self._is_proxy_healthy = is_proxy_healthy

    async def _answer(self, _: Request) -> Response:
        healthy = self._is_proxy_healthy()
        body = {
            "service": {"namespace": self._name.namespace, "name": self._name.name},
            "localEndpoints": self.endpoints,
            "serviceProxyHealthy": healthy,
        }
        status = 200 if self.endpoints and healthy else 503
        headers = (("X-Content-Type-Options", "nosniff"), (WEIGHT, str(self.endpoints)))
        return Response(status, msgspec.json.encode(body) + b"\n", headers=headers)


class ServiceHealthServers:
    """Every health check node port of this node."""

    def __init__(
        self,
        is_proxy_healthy: Callable[[], bool],
        addresses: Callable[[], Sequence[bytes]],
        events: Sequence[EventSink] = (),
    ) -> None:
        """`addresses` returns those on which to listen, 0.0.0.0 and [::] for all of the node's.

        `events` gets ports that cannot be opened.
        """
        self._is_proxy_healthy = is_proxy_healthy
        self._addresses, self._events = addresses, events
        self._frontends = HealthCheckedFrontends()
        self._servers: dict[tuple[ServiceName, Family], _Server] = {}
        self._problems: dict[tuple[ServiceName, L3n4Addr], str] = {}
        self._addresses_served: Sequence[bytes] = ()

    def problems(self) -> Iterable[tuple[ServiceName, L3n4Addr, str]]:
        """Return each port that cannot be opened: its Service, its address, and the reason."""
        return [(name, address, why) for (name, address), why in self._problems.items()]

    async def update(self, state: State) -> None:
        """Serve the health checks of a State, and retry ports that could not be opened."""
        addresses = self._addresses()
        changed = self._frontends.update(state)
        if changed or self._problems or addresses != self._addresses_served:
            self._addresses_served = addresses
            await self._serve(self._frontends.checks(), addresses)

    async def close(self) -> None:
        """Close every port."""
        for server in self._servers.values():
            await server.listeners.close()
        self._servers.clear()

    async def _serve(self, checks: Mapping[ServiceName, ServiceHealthPort], addresses: Sequence[bytes]) -> None:
        places = {
            (name, family): [L3n4Addr(each, check.port) for each in addresses if Family.of(each) is family]
            for name, check in checks.items()
            for family in check.addresses
        }
        for key in self._servers.keys() - places.keys():
            await self._servers.pop(key).listeners.close()
        for key, server in self._servers.items():  # a port that moves from one Service to another is closed first
            server.listeners.keep(places[key])
        problems: dict[tuple[ServiceName, L3n4Addr], str] = {}
        for (name, family), wanted in places.items():
            if (name, family) not in self._servers:
                self._servers[name, family] = _Server(name, self._is_proxy_healthy)
            server = self._servers[name, family]
            server.endpoints = len(checks[name].addresses[family])
            await server.listeners.listen(wanted)
            problems |= {(name, place): why for place, why in server.listeners.problems.items()}
        self._log_failure(problems)

    def _log_failure(self, problems: dict[tuple[ServiceName, L3n4Addr], str]) -> None:
        for (name, address), why in problems.items():
            if self._problems.get((name, address)) != why:
                fields = {"service": str(name), "address": str(address), "error": why}
                log.warning("a health check node port could not be opened", extra=fields)
        for name in dict.fromkeys(name for name, _ in problems.keys() - self._problems.keys()):
            self._send_event(name, [f"{address}: {why}" for (each, address), why in problems.items() if each == name])
        self._problems = problems

    def _send_event(self, name: ServiceName, what: Sequence[str]) -> None:
        text = f"the health check node port could not be opened at {'; '.join(what)}"
        for sink in self._events:
            sink(ObjectEvent("Service", str(name), NOT_OPENED, text, warning=True))
