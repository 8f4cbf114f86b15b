"""Port mappings, and the interface of a router. Ports host order, addresses IPv4 texts, leases seconds (0: no end)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from ipaddress import IPv4Address, IPv4Network

from msgspec import Struct

from lbagent.errors import LbError

# RFC 1918, RFC 6598 (of carriers), RFC 3927, RFC 1122: hosts of the Internet cannot reach a router there
NOT_PUBLIC = tuple(
    map(
        IPv4Network, ("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "100.64.0.0/10", "169.254.0.0/16", "127.0.0.0/8")
    )
)


# RFC 1122, RFC 3927, RFC 5771, RFC 1112: a router's interface has none of these as its address in another network
SPECIAL = tuple(map(IPv4Network, ("0.0.0.0/8", "127.0.0.0/8", "169.254.0.0/16", "224.0.0.0/4", "240.0.0.0/4")))


class GatewayUnreachable(LbError):
    """No answer of a router, or an unreadable one."""


class GatewayFailure(LbError):
    """The router returned a failure that may be temporary."""


class GatewayRefusal(LbError):
    """The router refused; a retry would fail too."""


class MappingConflict(LbError):
    """Another owner has the router's port; `owner` is its description, '' if the router does not report it."""

    def __init__(self, message: str, owner: str = "") -> None:
        super().__init__(message)
        self.owner = owner


class PortMapping(Struct, frozen=True):
    """A port of the router and the target of its packets; `protocol` is TCP or UDP."""

    protocol: str
    external_port: int
    client: str
    internal_port: int
    description: str

    @property
    def outside(self) -> tuple[str, int]:
        """Protocol and port: unique at a router."""
        return self.protocol, self.external_port

    def __str__(self) -> str:
        return f"{self.external_port}/{self.protocol} -> {self.client}:{self.internal_port}"


class HeldMapping(Struct, frozen=True):
    """A mapping at the router; `lease_s` is the remaining time, 0 for no end."""

    mapping: PortMapping
    lease_s: int = 0
    enabled: bool = True


class Gateway(ABC):
    """A router. Each call raises GatewayUnreachable and GatewayFailure, and the errors in its docstring."""

    name: str  # in messages
    local_address: str  # of this host towards the router
    protocol: str  # upnp, nat-pmp
    says_owners: bool  # it lists mappings with their descriptions, also those of earlier processes

    @abstractmethod
    async def external_address(self) -> str:
        """Return the WAN address, '' while there is none."""

    @abstractmethod
    async def find(self, protocol: str, external_port: int) -> HeldMapping | None:
        """Return the router's mapping at a port."""

    @abstractmethod
    async def add(self, mapping: PortMapping, lease_s: int) -> None:
        """Create, change or renew a mapping. Raises MappingConflict, GatewayRefusal."""

    @abstractmethod
    async def remove(self, mapping: PortMapping) -> None:
        """Remove a mapping; a missing one is not an error. Raises GatewayRefusal."""

    @abstractmethod
    async def mappings(self) -> Sequence[HeldMapping]:
        """Return every mapping that the router lists."""


def is_public(address: str) -> bool:
    """Return whether hosts of the Internet may reach an address."""
    return not any(IPv4Address(address) in network for network in NOT_PUBLIC)


def is_special(address: str) -> bool:
    """Return whether an address is a loopback, link-local, multicast, unspecified, broadcast or reserved one."""
    return any(IPv4Address(address) in network for network in SPECIAL)
