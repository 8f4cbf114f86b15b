"""The renderer `routes`: one route per IPv6 frontend that has a local backend.

No address is translated. A packet for the frontend goes to a Pod of this node that has the frontend's address on its loopback
device, as with the IPv6 renderer of contiv/vpp. Among several local backends the one with the lowest address gets everything; a
frontend without a local backend has no route.

Settings: `table` (254, the main table) and `protocol` (the number that marks the routes as its own, 200). Routes with another number are
neither read nor changed.
"""

from __future__ import annotations

import socket
from collections.abc import Iterable, Mapping, Sequence
from ipaddress import IPv6Address
from typing import Any

from pyroute2 import AsyncIPRoute, NetlinkError

from lbagent.render import Difference, Interfaces, IPAddresses, ResolvedService, ResyncEventData

TABLE, PROTOCOL = 254, 200
Routes = dict[str, str]  # the backend by frontend, both addresses


class RoutesRenderer:
    """Gathers what is wanted; `flush` compares it with the kernel, and writes what differs."""

    def __init__(self, table: int, protocol: int) -> None:
        self._match = {"table": table, "proto": protocol, "family": socket.AF_INET6}
        self._services: dict[str, ResolvedService] = {}

    # --- calls ---

    async def add_service(self, service: ResolvedService) -> None:
        self._services[service.id] = service

    async def update_service(
        self, old: ResolvedService, new: ResolvedService, others: Sequence[ResolvedService]
    ) -> None:
        self._services[new.id] = new

    async def delete_service(self, service: ResolvedService, others: Sequence[ResolvedService]) -> None:
        del self._services[service.id]

    async def update_node_port_services(self, node_ips: IPAddresses, services: Sequence[ResolvedService]) -> None:
        """A NodePort has no address of its own that a route could have."""

    async def update_local_frontend_ifs(self, old: Interfaces, new: Interfaces) -> None:
        """Routes are for packets from everywhere."""

    async def update_local_backend_ifs(self, old: Interfaces, new: Interfaces) -> None:
        """The kernel finds the interface by the route to the Pod."""

    async def resync(self, snapshot: ResyncEventData) -> None:
        self._services = {service.id: service for service in snapshot.services}

    async def flush(self) -> None:
        wanted = routes_of(self._services.values())
        async with AsyncIPRoute() as ipr:
            found = await self._read(ipr)
            for frontend in found.keys() - wanted.keys():
                await self._remove(ipr, frontend)
            for frontend, backend in sorted(wanted.items() - found.items()):
                await ipr.route("replace", dst=f"{frontend}/128", gateway=backend, **self._match)

    async def dump(self) -> list[str]:
        async with AsyncIPRoute() as ipr:
            return [f"{frontend} via {backend}" for frontend, backend in sorted((await self._read(ipr)).items())]

    async def verify(self, snapshot: ResyncEventData) -> list[Difference]:
        async with AsyncIPRoute() as ipr:
            found = await self._read(ipr)
        wanted = routes_of(snapshot.services)
        names = {frontend: service.id for service in snapshot.services for frontend in routes_of([service])}
        differences = [
            Difference("stale", f"via {found[each]}", None, each) for each in sorted(found.keys() - wanted.keys())
        ]
        for frontend, backend in sorted(wanted.items()):
            via = found.get(frontend)
            if via is None:
                differences.append(Difference("missing", f"via {backend}", names[frontend], frontend))
            elif via != backend:
                differences.append(Difference("differs", f"via {via}, not {backend}", names[frontend], frontend))
        return differences

    def capabilities(self) -> frozenset[str]:
        return frozenset({"ipv6", "local_only"})

    async def close(self, keep: bool) -> None:
        if not keep:
            async with AsyncIPRoute() as ipr:
                for frontend in await self._read(ipr):
                    await self._remove(ipr, frontend)

    # --- the kernel ---

    async def _read(self, ipr: AsyncIPRoute) -> Routes:
        """Return the routes that are there. Raises NetlinkError, OSError."""
        found = {}
        async for message in await ipr.get_routes(family=socket.AF_INET6, table=self._match["table"]):
            is_own = message["proto"] == self._match["proto"] and message.get("RTA_TABLE") == self._match["table"]
            if is_own and message["dst_len"] == 128:
                found[_text(message.get("RTA_DST"))] = _text(message.get("RTA_GATEWAY") or "::")
        return found

    async def _remove(self, ipr: AsyncIPRoute, frontend: str) -> None:
        try:
            await ipr.route("del", dst=f"{frontend}/128", **self._match)
        except NetlinkError as error:
            if error.code != 3:  # ESRCH: it went with its device
                raise


def routes_of(services: Iterable[ResolvedService]) -> Routes:
    """Return the wanted routes of Services. Frontends of two Services with one address have one route."""
    wanted: dict[str, set[IPv6Address]] = {}
    for service in services:
        local = {
            IPv6Address(each.ip)
            for backends in service.backends.values()
            for each in backends
            if each.local and not each.host_network and ":" in each.ip
        }
        for frontend in (*service.cluster_ips, *service.external_ips) if local else ():
            if ":" in frontend:
                wanted.setdefault(frontend, set()).update(local)
    return {frontend: str(min(backends)) for frontend, backends in wanted.items()}


def _text(address: Any) -> str:
    return str(IPv6Address(address))


def factory(settings: Mapping[str, str]) -> RoutesRenderer:
    """Return the renderer. Raises ValueError for a setting that it does not have."""
    if unknown := sorted(settings.keys() - {"table", "protocol"}):
        raise ValueError(f"unknown setting {unknown[0]!r}; there are table and protocol")
    numbers = {"table": TABLE, "protocol": PROTOCOL}
    for key, text in settings.items():
        if not text.isdecimal() or not 0 < int(text) < 2**32:
            raise ValueError(f"{key} is {text!r}, no number")
        numbers[key] = int(text)
    if numbers["protocol"] > 255:
        raise ValueError("protocol is at most 255")
    return RoutesRenderer(numbers["table"], numbers["protocol"])
