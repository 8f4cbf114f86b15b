"""Everything that is known of one backend: `backend get`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from msgspec import Struct

from lbagent.apilb.native.server_check import ServerCheck
from lbagent.errors import ConfigError
from lbagent.model.address import L3n4Addr, parse_ip
from lbagent.model.handshakes import BOUNDS_US, Handshakes
from lbagent.model.state import State


class UsingFrontend(Struct):
    """A frontend that has the backend."""

    frontend: str  # 10.96.0.1:80/TCP
    scope: str  # external, internal
    service: str  # NAMESPACE/NAME
    selectable: bool  # new flows of this frontend may take the backend


class TimesBucket(Struct):
    """How many handshakes took up to `le_us` and longer than the bound before; null: longer than every bound."""

    le_us: int | None
    count: int


class TcpDetails(Struct):
    """The timed TCP handshakes of a backend. A time that is null: none was done."""

    handshake_p50_us: int | None
    handshake_p99_us: int | None
    refused: int
    timeout: int
    done: int
    syn_retransmits: int
    failing: int  # how many of the last ones in a row were not done
    handshakes: list[TimesBucket]


class BackendDetails(Struct):
    """One backend: its row, the frontends that have it, what was counted."""

    backend: dict[str, object]  # BackendRow (capabilities/node_backends.py)
    pod: str  # NAMESPACE/NAME; '': no object names one
    frontends: list[UsingFrontend]
    packets: int  # to and from it
    bytes: int
    tcp: TcpDetails
    checks: list[ServerCheck]  # by native pools; without --apilb none


def tcp_details(found: Handshakes) -> TcpDetails:
    """Return handshakes as they are shown."""
    counts = zip((*BOUNDS_US, None), found.buckets, strict=True)
    return TcpDetails(
        found.quantile_us(0.5),
        found.quantile_us(0.99),
        found.refused,
        found.lost,
        found.done,
        found.again,
        found.failing,
        [TimesBucket(bound, count) for bound, count in counts],
    )


class KnownBackend(NamedTuple):
    """What the parts of the agent have about a backend beside its row."""

    pod: str
    frontends: list[UsingFrontend]
    traffic: tuple[int, int]  # packets and bytes
    handshakes: Handshakes | None
    checks: list[ServerCheck]


def details_of(row: dict[str, object], known: KnownBackend) -> BackendDetails:
    """Return the details of a backend."""
    tcp = tcp_details(known.handshakes or Handshakes())
    return BackendDetails(row, known.pod, known.frontends, *known.traffic, tcp, known.checks)


def backends_with(text: str, known: Iterable[L3n4Addr]) -> list[L3n4Addr]:
    """Return the backends that ADDRESS[:PORT[/PROTOCOL]] names. Raises ConfigError."""
    try:
        host = parse_ip(text.removeprefix("[").removesuffix("]"))
    except ValueError:
        try:
            wanted = L3n4Addr.parse(text)
        except ValueError as error:
            raise ConfigError(f"{text!r} is no ADDRESS:PORT[/PROTOCOL] of a backend: {error}") from None
        any_protocol = "/" not in text
        return [
            each
            for each in known
            if (each.address, each.port) == (wanted.address, wanted.port)
            and (any_protocol or each.protocol is wanted.protocol)
        ]
    return [each for each in known if each.address == host]


def using_frontends(state: State, backend: L3n4Addr) -> Iterator[UsingFrontend]:
    """Yield the frontends that have a backend."""
    for svc in state.services:
        if not svc.wildcard and any(each.address == backend for each in svc.backends):
            is_selectable = any(each.address == backend for each in svc.selectable)
            scope = "internal" if svc.frontend.scope else "external"
            name = svc.frontend.with_protocol().removesuffix("/i")
            yield UsingFrontend(name, scope, str(svc.name), is_selectable)
