"""Filters of flows: which of them a command is about. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from socket import AF_INET, AF_INET6, inet_pton

from msgspec import Struct

from lbagent.errors import ConfigError
from lbagent.mapped_address import unmapped
from lbagent.maps.flow_layout import FlowState
from lbagent.maps.layout import PathL4
from lbagent.model.family import Family

STATES = {
    "new": FlowState.NEW,
    "established": FlowState.ESTABLISHED,
    "closing": FlowState.CLOSING,
    "mid": FlowState.MID,
}
PROTOCOLS = {"tcp": PathL4.TCP, "udp": PathL4.UDP, "sctp": PathL4.SCTP}


class AddressFilter(Struct, frozen=True, gc=False):
    """Addresses of a network, and a port and protocol if given."""

    address: bytes  # packed
    bits: int  # length of the prefix
    port: int | None = None  # host order
    l4: PathL4 | None = None

    @property
    def family(self) -> Family:
        """The family of the network."""
        return Family.of(self.address)

    def has(self, address: bytes) -> bool:
        """Whether a packed address is in the network."""
        if len(address) != len(self.address):
            return False
        shift = 8 * len(address) - self.bits
        return int.from_bytes(address, "big") >> shift == int.from_bytes(self.address, "big") >> shift

    def matches(self, address: bytes, port: int, l4: int) -> bool:
        """Whether address, port (host order) and protocol are selected."""
        return self.has(address) and self.port in (None, port) and self.l4 in (None, l4)


class FlowFilter(Struct, frozen=True):
    """What a flow must be; a field with its default admits every flow."""

    client: AddressFilter | None = None
    frontend: AddressFilter | None = None
    backend: AddressFilter | None = None
    service: str = ""  # NAMESPACE/NAME
    l4: PathL4 | None = None
    state: FlowState | None = None
    idle_over_s: float | None = None
    families: tuple[Family, ...] = tuple(Family)

    @property
    def is_empty(self) -> bool:
        """Whether every flow of both families is selected."""
        return self == FlowFilter()


def flow_filter(
    *,
    client: str = "",
    frontend: str = "",
    backend: str = "",
    service: str = "",
    proto: str = "",
    state: str = "",
    idle_over_s: float | None = None,
    families: Iterable[Family] = (),
) -> FlowFilter:
    """Return the filter of an operator's words. Raises ConfigError with the flag, also for filters that no flow can match."""
    found = FlowFilter(
        network("--client", client) if client else None,
        endpoint("--frontend", frontend) if frontend else None,
        endpoint("--backend", backend) if backend else None,
        _service(service),
        PROTOCOLS[proto] if proto else None,
        STATES[state] if state else None,
        idle_over_s,
        tuple(families) or tuple(Family),
    )
    named = [("--" + name, each) for name in ("client", "frontend", "backend") if (each := getattr(found, name))]
    wanted, families_of = found.families, f"-{found.families[0]} selects"
    for flag, each in named:
        if each.family not in wanted:
            raise ConfigError(f"{flag} is IPv{each.family} and {families_of} IPv{wanted[0]}: no flow has both")
        wanted, families_of = (each.family,), f"{flag} is"
    l4s = {each.l4 for _, each in named if each.l4 is not None} | ({found.l4} if found.l4 is not None else set())
    if len(l4s) > 1:
        raise ConfigError("--frontend, --backend and --proto name different protocols: no flow has both")
    return FlowFilter(
        found.client, found.frontend, found.backend, found.service, found.l4, found.state, found.idle_over_s, wanted
    )


def network(flag: str, text: str) -> AddressFilter:
    """Read `CIDR`, `ADDRESS` or `ADDRESS:PORT`, IPv6 with a port in brackets. Raises ConfigError."""
    host, slash, bits = text.partition("/")
    if not slash:
        address, port = _host_and_port(flag, text, "a CIDR, ADDRESS or ADDRESS:PORT")
        return AddressFilter(address, 8 * len(address), port)
    packed = _packed(host)
    width = 8 * len(packed)
    if not packed or not bits.isascii() or not bits.isdecimal() or int(bits) > width:
        raise ConfigError(f"{flag} {text}: it is not a CIDR like 192.0.2.0/24 or 2001:db8::/32")
    return AddressFilter(packed, int(bits))


def endpoint(flag: str, text: str, *, needs_port: bool = False) -> AddressFilter:
    """Read `ADDRESS[:PORT][/PROTOCOL]`, IPv6 with a port in brackets. Raises ConfigError."""
    form = "ADDRESS:PORT[/PROTOCOL]" if needs_port else "ADDRESS[:PORT][/PROTOCOL]"
    head, slash, word = text.partition("/")
    address, port = _host_and_port(flag, head, form, whole=text)
    l4 = PROTOCOLS.get(word.lower())
    if slash and l4 is None:
        raise ConfigError(f"{flag} {text}: {word!r} is not a protocol; use TCP, UDP or SCTP")
    if needs_port and port is None:
        raise ConfigError(f"{flag} {text}: the port is missing; expected {form}")
    return AddressFilter(address, 8 * len(address), port, l4)


def _host_and_port(flag: str, text: str, form: str, whole: str = "") -> tuple[bytes, int | None]:
    wrong = ConfigError(f"{flag} {whole or text}: it is not {form}, like 10.96.0.10:80 or [fd00::a]:80")
    host, port = text, ""
    if text.startswith("["):
        host, _, rest = text[1:].partition("]")
        if ":" not in host or (rest and not rest.startswith(":")) or rest == ":":
            raise wrong
        port = rest[1:]
    elif text.count(":") == 1:
        host, _, port = text.partition(":")
        if not port:
            raise wrong
    address = _packed(host)
    if not address:
        raise wrong
    if not port:
        return address, None
    if not port.isascii() or not port.isdecimal() or len(port) > 5 or int(port) > 0xFFFF:
        raise ConfigError(f"{flag} {whole or text}: {port!r} is not a port of 0-65535")
    return address, int(port)


def _packed(text: str) -> bytes:
    """Return a packed address, b"" for another text; an IPv4-mapped address is the IPv4 address."""
    try:
        return unmapped(inet_pton(AF_INET6 if ":" in text else AF_INET, text))
    except (OSError, ValueError):
        return b""


def _service(text: str) -> str:
    namespace, slash, name = text.rpartition("/")
    if text and (not name or "/" in namespace or (slash and not namespace)):
        raise ConfigError(f"--service {text}: it is not NAMESPACE/NAME")
    return f"{namespace or 'default'}/{name}" if text else ""
