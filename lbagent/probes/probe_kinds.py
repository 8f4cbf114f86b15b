"""The probe of each kind. A new kind is a word of ProbeKind, its probe, and a function here, which imports it at its first use."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import TYPE_CHECKING

from lbagent.model.address import L3n4Addr
from lbagent.probes.check_time import LoopClock
from lbagent.probes.destination import Destination, MarkOf, Through, unmarked
from lbagent.probes.pending_connects import PendingConnects
from lbagent.probes.probe_protocol import Probe
from lbagent.probes.probe_spec import ProbeKind, ProbeSpec

if TYPE_CHECKING:
    from lbagent.probes.https_probe import Contexts


class SharedParts:
    """What the probes of one event loop share: a clock for time-outs, TLS settings, connections in progress."""

    def __init__(self, mark_of: MarkOf = unmarked, *, keeps_connections: bool = True) -> None:
        """Make it inside the loop.

        `mark_of` returns the mark of sockets by which the data plane sends their flows to a backend; 0: it cannot.
        `keeps_connections`: those of HTTP stay open from check to check.
        """
        self._mark_of, self.keeps_connections = mark_of, keeps_connections
        self.clock = LoopClock()
        self.connects = PendingConnects(self.clock)

    @cached_property
    def contexts(self) -> Contexts:
        """The TLS settings."""
        from lbagent.probes.https_probe import Contexts

        return Contexts()

    def destination(self, server: L3n4Addr, spec: ProbeSpec) -> Destination:
        """Return where the probes of a server go."""
        return server if spec.via is None else Through(spec.via, server, self._mark_of)

    def close(self) -> None:
        """End what is in progress."""
        self.connects.close()
        self.clock.close()


def _tcp(server: Destination, spec: ProbeSpec, shared: SharedParts) -> Probe:
    from lbagent.probes.tcp_probe import TcpProbe

    return TcpProbe(server, spec, shared.connects)


def _http(server: Destination, spec: ProbeSpec, shared: SharedParts) -> Probe:
    from lbagent.probes.http_probe import HttpProbe

    return HttpProbe(server, spec, shared.clock, keeps=shared.keeps_connections)


def _https(server: Destination, spec: ProbeSpec, shared: SharedParts) -> Probe:
    from lbagent.probes.https_probe import HttpsProbe

    return HttpsProbe(server, spec, shared.contexts, shared.clock, keeps=shared.keeps_connections)


def _udp(server: Destination, spec: ProbeSpec, shared: SharedParts) -> Probe:
    from lbagent.probes.udp_probe import UdpProbe

    return UdpProbe(server, spec, shared.clock)


def _grpc(server: Destination, spec: ProbeSpec, shared: SharedParts) -> Probe:
    from lbagent.probes.grpc_probe import GrpcProbe

    return GrpcProbe(server, spec, shared.clock)


PROBES: dict[ProbeKind, Callable[[Destination, ProbeSpec, SharedParts], Probe]] = {
    ProbeKind.TCP: _tcp, ProbeKind.HTTP: _http, ProbeKind.HTTPS: _https, ProbeKind.UDP: _udp, ProbeKind.GRPC: _grpc,
}  # fmt: skip


def make_probe(server: L3n4Addr, spec: ProbeSpec, shared: SharedParts) -> Probe:
    """Return the probe of a server."""
    return PROBES[spec.kind](shared.destination(server, spec), spec, shared)
