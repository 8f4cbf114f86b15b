"""Frontends that lbagent leaves alone: `--exclude CIDR[:PORT[/PROTO]]`, IPv6 with a port `[CIDR]:PORT[/PROTO]`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Self

from msgspec import Struct

from lbagent.model.address import L3n4Addr, L4Type
from lbagent.model.service import CIDR

_PROTOCOLS = {word.name: word for word in (L4Type.TCP, L4Type.UDP, L4Type.SCTP)}


class Exclusion(Struct, frozen=True, gc=False):
    """Addresses, with `port` 0 all ports of them, without `protocol` every protocol."""

    cidr: CIDR
    port: int = 0
    protocol: L4Type | None = None

    def __str__(self) -> str:
        """Return what `parse` reads."""
        if not self.port:
            return str(self.cidr)
        cidr = f"[{self.cidr}]" if self.cidr.is_ipv6 else str(self.cidr)
        return f"{cidr}:{self.port}" + (f"/{self.protocol.name}" if self.protocol else "")

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read a range of addresses, and a port and protocol behind it. Raises ValueError."""
        cidr, separator, rest = text.strip(), "", ""
        if cidr.startswith("["):
            cidr, bracket, rest = cidr[1:].partition("]")
            separator, rest = rest[:1], rest[1:]
            if not bracket or separator not in ("", ":"):
                raise ValueError(f"{text!r} is not [CIDR]:PORT")
        elif cidr.count(":") == 1:
            cidr, separator, rest = cidr.partition(":")
        if not separator:
            return cls(CIDR.parse(cidr))
        number, slash, word = rest.partition("/")
        if not (number.isascii() and number.isdecimal() and len(number) < 6 and 0 < int(number) < 65536):
            raise ValueError(f"{number!r} in {text!r} is not a port of 1-65535")
        if slash and word.upper() not in _PROTOCOLS:
            raise ValueError(f"{word!r} in {text!r} is not one of {', '.join(_PROTOCOLS)}")
        return cls(CIDR.parse(cidr), int(number), _PROTOCOLS[word.upper()] if slash else None)

    def has(self, frontend: L3n4Addr) -> bool:
        """Return whether packets to a frontend pass. One without a port stands for all other ports: any port excludes it."""
        if not self.cidr.contains(frontend.address):
            return False
        if not self.port or not frontend.port:
            return True
        return frontend.has_port(self.port) and self.protocol in (None, frontend.protocol)


def exclusion_of(frontend: L3n4Addr, exclusions: Iterable[Exclusion]) -> Exclusion | None:
    """Return the first exclusion that has a frontend; None: it is served."""
    return next((each for each in exclusions if each.has(frontend)), None)
