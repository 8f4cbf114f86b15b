"""Port mappings, and the interface of a router. Ports host order, addresses IPv4 texts, leases seconds (0: no end)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from ipaddress import IPv4Address, IPv4Network

from msgspec import Struct

from lbagent.errors import LbError

# RFC 1918, RFC 6598 (the carriers' own), RFC 3927, RFC 1122: no host of the Internet reaches a router there
NOT_PUBLIC = tuple(
    map(
        IPv4Network, ("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "100.64.0.0/10", "169.254.0.0/16", "127.0.0.0/8")
    )
)


# RFC 1122, RFC 3927, RFC 5771, RFC 1112: no interface of a router has one of these as its address in another network
SPECIAL = tuple(map(IPv4Network, ("0.0.0.0/8", "127.0.0.0/8", "169.254.0.0/16", "224.0.0.0/4", "240.0.0.0/4")))


class GatewayUnreachable(LbError):
    """No answer of a router, or none that can be read."""


class GatewayFailure(LbError):
    """The router answers that it failed; later it may not."""


class GatewayRefusal(LbError):
    """The router answers that it will not; asking again changes nothing."""


class MappingConflict(LbError):
    """Another owner has the router's port; `owner` is its description, '' where the router does not name it."""

    def __init__(self, message: str, owner: str = "") -> None:
        super().__init__(message)
        self.owner = owner


class PortMapping(Struct, frozen=True):
    """A port of the router and where its packets go; `protocol` is TCP or UDP."""

    protocol: str
    external_port: int
    client: str
    internal_port: int
    description: str

    @property
    def outside(self) -> tuple[str, int]:
        """Protocol and port: what a router has once."""
        return self.protocol, self.external_port

    def __str__(self) -> str:
        return f"{self.external_port}/{self.protocol} -> {self.client}:{self.internal_port}"


class HeldMapping(Struct, frozen=True):
    """A mapping as the router has it; `lease_s` is what is left of it, 0 where it has no end."""

    mapping: PortMapping
    lease_s: int = 0
    enabled: bool = True


class Gateway(ABC):
    """A router. Each call raises GatewayUnreachable and GatewayFailure, and what its docstring names."""

    name: str  # in messages
    local_address: str  # of this host, as the router sees it
    protocol: str  # upnp, nat-pmp
    says_owners: bool  # it lists mappings with their descriptions, also those made before this process

    @abstractmethod
    async def external_address(self) -> str:
        """Return the WAN address, '' while there is none."""

    @abstractmethod
    async def find(self, protocol: str, external_port: int) -> HeldMapping | None:
        """Return what the router has at a port."""

    @abstractmethod
    async def add(self, mapping: PortMapping, lease_s: int) -> None:
        """Make, change or renew a mapping. Raises MappingConflict, GatewayRefusal."""

    @abstractmethod
    async def remove(self, mapping: PortMapping) -> None:
        """Remove a mapping; one that is not there is no error. Raises GatewayRefusal."""

    @abstractmethod
    async def mappings(self) -> Sequence[HeldMapping]:
        """Return every mapping that the router lists."""


def is_public(address: str) -> bool:
    """Return whether hosts of the Internet may reach an address."""
    return not any(IPv4Address(address) in network for network in NOT_PUBLIC)


def is_special(address: str) -> bool:
    """Return whether an address is a loopback, link-local, multicast, unspecified, broadcast or reserved one."""
    return any(IPv4Address(address) in network for network in SPECIAL)
