"""The configuration of provider `edge`: empty, or YAML to checked records, or one message with line and field."""

from __future__ import annotations

from enum import StrEnum
from ipaddress import IPv4Address, IPv4Network
from typing import TypeVar

from msgspec import Struct
from msgspec.structs import fields

from lbagent.cloud.edge.protocols.port_mapping import is_special
from lbagent.http.http_client import Url, parse_url
from lbagent.pools.field_checks import FieldChecks, only_document
from lbagent.value_errors import shown

CONFIG = "--config"  # placeholder for the file's name
MIN_POLL_S, MAX_POLL_S = 1.0, 3600.0
MIN_LEASE_S, MAX_LEASE_S = 30.0, 604800.0  # the maximum of WANIPConnection:2
LOOKS_PER_LEASE = 3  # a lease is renewed when half of it is left, and checked at each poll


class NodeChoice(StrEnum):
    """The node to which the router sends packets."""

    EXACT_ONE = "exact-one"
    SELF = "self"
    FIRST_READY = "first-ready"


class Protocol(StrEnum):
    """The protocols of routers."""

    UPNP = "upnp"
    NAT_PMP = "nat-pmp"


class EdgeConfig(Struct, frozen=True):
    """A checked configuration; `node` None is `self` if --node-name is given, else `exact-one`."""

    gateway: Url | None = None
    node: NodeChoice | None = None
    lease_s: int = 3600
    poll_s: float = 30.0
    external_ip: str = ""
    protocols: tuple[Protocol, ...] = (Protocol.UPNP, Protocol.NAT_PMP)
    accept_labels: bool = False
    external_addresses: tuple[IPv4Network, ...] = ()
    hairpin: bool = False

    def allows(self, address: str) -> bool:
        """Return whether the operator allows an external address, or the gateway that reports it."""
        if address == self.external_ip:
            return True
        if self.external_addresses:
            return any(IPv4Address(address) in network for network in self.external_addresses)
        return self.gateway is not None

    def is_diverted(self, address: str) -> bool:
        """Return whether nodes divert packets for an external address, in place of the router."""
        return self.allows(address) or (self.hairpin and not self.external_addresses)


_NAMES = {"external_ip": "externalIP", "accept_labels": "acceptLabels", "external_addresses": "externalAddresses"}


class _Entry(Struct, forbid_unknown_fields=True, rename=_NAMES):
    gateway: str = ""
    node: str = ""
    lease: str | int = "3600s"
    poll: str | int = "30s"
    external_ip: str = ""
    protocols: list[str] | None = None
    accept_labels: bool = False
    external_addresses: list[str] = []
    hairpin: bool = False


T = TypeVar("T", bound=StrEnum)
_KEYS = [each.encode_name for each in fields(_Entry)]


def read_edge_config(text: str) -> EdgeConfig:
    """Read the text of a configuration. Raises ConfigError."""
    checks = FieldChecks(text, CONFIG)
    entry = checks.converted(only_document(text, CONFIG), _Entry, _KEYS)
    poll_s = checks.seconds(entry.poll, ("poll",), MIN_POLL_S, MAX_POLL_S)
    lease_s = checks.seconds(entry.lease, ("lease",), 0, MAX_LEASE_S)
    if lease_s and lease_s < max(MIN_LEASE_S, LOOKS_PER_LEASE * poll_s):
        least = f"{max(MIN_LEASE_S, LOOKS_PER_LEASE * poll_s):g}s"
        checks.refuse(("lease",), f"{entry.lease!r} is less than {least} (three times `poll`); 0 is without an end")
    return EdgeConfig(
        checks.value(parse_url, entry.gateway, ("gateway",)) if entry.gateway else None,
        _word(checks, "node", entry.node, NodeChoice) if entry.node else None,
        int(lease_s),
        poll_s,
        checks.value(_ipv4, entry.external_ip, ("externalIP",)) if entry.external_ip else "",
        _protocols(checks, entry.protocols),
        entry.accept_labels,
        tuple(
            checks.value(_network, text, ("externalAddresses", index))
            for index, text in enumerate(entry.external_addresses)
        ),
        entry.hairpin,
    )


def _protocols(checks: FieldChecks, words: list[str] | None) -> tuple[Protocol, ...]:
    if words is None:
        return tuple(Protocol)
    if not words:
        checks.refuse(("protocols",), "at least one of upnp, nat-pmp is needed")
    found = []
    for index, word in enumerate(words):
        found.append(_word(checks, "protocols", word, Protocol, index))
    checks.unique(words, lambda index: ("protocols", index))
    return tuple(found)


def _word(checks: FieldChecks, field: str, word: str, kind: type[T], *at: int) -> T:
    try:
        return kind(word)
    except ValueError:
        checks.refuse((field, *at), f"unknown value {shown(word)}; one of {', '.join(kind)} is possible")


def _ipv4(text: str) -> str:
    try:
        found = str(IPv4Address(text))
    except ValueError:
        raise ValueError(f"{text!r} is not an IPv4 address") from None
    if is_special(found):
        raise ValueError(f"{text!r} is a special address, which cannot be a router's external address")
    return found


def _network(text: str) -> IPv4Network:
    try:
        return IPv4Network(text)
    except ValueError:
        raise ValueError(f"{text!r} is not an IPv4 network like 203.0.113.0/29 (without host bits)") from None
