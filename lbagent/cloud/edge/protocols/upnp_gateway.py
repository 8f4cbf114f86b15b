"""A router with UPnP IGD: the actions of WANIPConnection:1, :2 and WANPPPConnection:1, and the meaning of their errors.

AddAnyPortMapping, which maps another port if the requested one is in use, is not used: clients use the Service's own port.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from ipaddress import IPv4Address

from lbagent.cloud.edge.protocols import soap_action
from lbagent.cloud.edge.protocols.default_route import source_address
from lbagent.cloud.edge.protocols.device_description import WanConnection, read_description
from lbagent.cloud.edge.protocols.port_mapping import (
    Gateway,
    GatewayFailure,
    GatewayRefusal,
    GatewayUnreachable,
    HeldMapping,
    MappingConflict,
    PortMapping,
)
from lbagent.cloud.edge.protocols.soap_action import UpnpError
from lbagent.http.http_client import HttpAnswer, NoAnswer, Url, exchange

log = logging.getLogger(__name__)
LIST_S = 20.0  # for the whole list: about 2,000 mappings of a router that needs 10 ms for each
MAX_MAPPINGS = 2048  # most mappings that are read of one router
INVALID_ARGS, NOT_AUTHORIZED = 402, 606
NO_SUCH_ENTRY, PAST_THE_END = 714, 713
ONLY_PERMANENT_LEASES = 725
CONFLICTS = (718, 729)  # ConflictInMappingEntry, ConflictWithOtherMechanisms
# errors that a retry does not change -> the reason
REFUSALS = {
    402: "it rejects these arguments",
    606: "its rules do not allow this port, or mappings to a host other than the requesting one",
    715: "it does not support mappings for every remote host",
    716: "it does not support a mapping of this port",
    724: "it maps a port only to the same port, and the node port differs",
    726: "it supports only mappings for single remote hosts",
    727: "it does not support a mapping of a single port",
}


class UpnpGateway(Gateway):
    """One WAN connection of a device."""

    protocol, says_owners = "upnp", True

    def __init__(self, name: str, connection: WanConnection, local_address: str) -> None:
        self.name, self.local_address = name, local_address
        self._connection = connection
        self._takes_leases = True

    async def external_address(self) -> str:
        """Return the WAN address, '' while there is none. Raises GatewayUnreachable."""
        try:
            answer = await self._ask("GetExternalIPAddress", {})
            address = IPv4Address(answer.get("NewExternalIPAddress", ""))
        except (UpnpError, ValueError):
            return ""
        return "" if address.is_unspecified else str(address)

    async def find(self, protocol: str, external_port: int) -> HeldMapping | None:
        """Return the mapping at a port. Raises GatewayUnreachable."""
        key = {"NewRemoteHost": "", "NewExternalPort": str(external_port), "NewProtocol": protocol}
        try:
            return _held(await self._ask("GetSpecificPortMappingEntry", key), protocol, external_port)
        except UpnpError as error:
            if error.code == NO_SUCH_ENTRY:
                return None
            if error.code == NOT_AUTHORIZED:  # it shows each host only its own mappings: `add` reports a conflict
                return None
            raise GatewayFailure(f"{self.name}: GetSpecificPortMappingEntry: {error}") from None

    async def add(self, mapping: PortMapping, lease_s: int) -> None:
        """Create, change or renew a mapping. Raises MappingConflict, GatewayRefusal, GatewayUnreachable."""
        try:
            await self._add(mapping, lease_s if self._takes_leases else 0)
        except UpnpError as error:
            if not (lease_s and self._takes_leases and error.code in (ONLY_PERMANENT_LEASES, INVALID_ARGS)):
                raise self._why_not(mapping, error) from None
            try:
                await self._add(mapping, 0)
            except UpnpError as other:
                raise self._why_not(mapping, other) from None
            self._takes_leases = False

    async def remove(self, mapping: PortMapping) -> None:
        """Remove a mapping. Raises GatewayRefusal, GatewayUnreachable."""
        key = {"NewRemoteHost": "", "NewExternalPort": str(mapping.external_port), "NewProtocol": mapping.protocol}
        try:
            await self._ask("DeletePortMapping", key)
        except UpnpError as error:
            if error.code == NO_SUCH_ENTRY:
                return
            if error.code == NOT_AUTHORIZED:
                text = f"{self.name} does not let this host remove {mapping}"
                raise GatewayRefusal(text) from None
            raise GatewayFailure(f"{self.name}: DeletePortMapping: {error}") from None

    async def mappings(self) -> list[HeldMapping]:
        """Return every mapping; of an endless list, those that were read in time. Raises GatewayUnreachable."""
        found: list[HeldMapping] = []
        try:
            async with asyncio.timeout(LIST_S):
                await self._read_list(found)
        except TimeoutError:
            fields = {"gateway": self.name, "read": len(found), "limit_s": LIST_S}
            log.warning("the gateway's list of mappings did not end in time; the rest is not read", extra=fields)
        return found

    async def _read_list(self, found: list[HeldMapping]) -> None:
        seen: set[tuple[str, str, str]] = set()
        for index in range(MAX_MAPPINGS):
            try:
                answer = await self._ask("GetGenericPortMappingEntry", {"NewPortMappingIndex": str(index)})
            except UpnpError as error:
                if error.code in (PAST_THE_END, NO_SUCH_ENTRY, INVALID_ARGS):
                    break
                raise GatewayFailure(f"{self.name}: GetGenericPortMappingEntry: {error}") from None
            port = answer.get("NewExternalPort", "")
            key = answer.get("NewRemoteHost", ""), port, answer.get("NewProtocol", "")
            if key in seen:
                log.warning("the gateway lists a mapping twice; the rest is not read", extra={"gateway": self.name})
                break
            seen.add(key)
            if not answer.get("NewRemoteHost") and port.isascii() and port.isdecimal():
                held = _held(answer, answer.get("NewProtocol", ""), int(port))
                found += [held] if held else []

    # --- one action ---

    async def _add(self, mapping: PortMapping, lease_s: int) -> None:
        arguments = {
            "NewRemoteHost": "",
            "NewExternalPort": str(mapping.external_port),
            "NewProtocol": mapping.protocol,
            "NewInternalPort": str(mapping.internal_port),
            "NewInternalClient": mapping.client,
            "NewEnabled": "1",
            "NewPortMappingDescription": mapping.description,
            "NewLeaseDuration": str(lease_s),
        }
        await self._ask("AddPortMapping", arguments)

    def _why_not(self, mapping: PortMapping, error: UpnpError) -> Exception:
        if error.code in CONFLICTS:
            return MappingConflict(
                f"{self.name} has {mapping.external_port}/{mapping.protocol} for another host: {error}"
            )
        if error.code in REFUSALS:
            return GatewayRefusal(f"{self.name} refuses {mapping}: {REFUSALS[error.code]}: {error}")
        return GatewayFailure(f"{self.name}: AddPortMapping {mapping}: {error}")

    async def _ask(self, action: str, arguments: Mapping[str, str]) -> dict[str, str]:
        """Send one request. Raises UpnpError, GatewayUnreachable."""
        headers, body = soap_action.encode_action(self._connection.service_type, action, arguments)
        answer = await _request("POST", self._connection.control, headers, body)
        try:
            return soap_action.decode_answer(action, answer)
        except ValueError as error:
            raise GatewayUnreachable(f"{self.name}: {error}") from None


_NO_FIELDS: Mapping[str, str] = {}


async def _request(method: str, url: Url, fields: Mapping[str, str] = _NO_FIELDS, body: bytes = b"") -> HttpAnswer:
    try:
        return await exchange(method, url, fields, body)
    except NoAnswer as error:
        raise GatewayUnreachable(str(error)) from None


async def open_gateway(url: Url) -> UpnpGateway:
    """Read a description and return the connection to use: the first one that has a WAN address. Raises GatewayUnreachable."""
    answer = await _request("GET", url)
    if answer.status != 200:
        raise GatewayUnreachable(f"{url}: status {answer.status}")
    try:
        device = read_description(answer.body, url)
        local = source_address(await _address_of(url.host))
    except ValueError as error:
        raise GatewayUnreachable(f"{url}: {error}") from None
    except OSError as error:
        raise GatewayUnreachable(f"{url}: {error.strerror or error}") from None
    name = f"gateway {url.host}" + (f" ({device.name})" if device.name else "")
    found = [UpnpGateway(name, each, local) for each in device.connections]
    for each in found[: len(found) if len(found) > 1 else 0]:
        if await each.external_address():
            return each
    return found[0]


async def _address_of(host: str) -> str:
    try:
        return str(IPv4Address(host))
    except ValueError:
        import socket

        infos = await asyncio.get_running_loop().getaddrinfo(host, None, family=socket.AF_INET)
        return str(infos[0][4][0])


def _held(answer: Mapping[str, str], protocol: str, external_port: int) -> HeldMapping | None:
    """Return the mapping of an answer; unreadable numbers are 0."""
    port, lease = answer.get("NewInternalPort", ""), answer.get("NewLeaseDuration", "")
    mapping = PortMapping(
        protocol.upper(),
        external_port,
        answer.get("NewInternalClient", ""),
        int(port) if port.isascii() and port.isdecimal() else 0,
        answer.get("NewPortMappingDescription", ""),
    )
    lease_s = int(lease) if lease.isascii() and lease.isdecimal() and len(lease) < 11 else 0
    enabled = answer.get("NewEnabled", "1").lower() not in ("0", "false", "no")
    return HeldMapping(mapping, lease_s, enabled)
