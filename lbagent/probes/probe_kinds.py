"""The probe of each kind. A new kind is a word of ProbeKind, its probe, and a line here."""

from __future__ import annotations

from collections.abc import Callable

from lbagent.model.address import L3n4Addr
from lbagent.probes.check_time import LoopClock
from lbagent.probes.destination import Destination, MarkOf, Through, unmarked
from lbagent.probes.grpc_probe import GrpcProbe
from lbagent.probes.http_probe import HttpProbe
from lbagent.probes.https_probe import Contexts, HttpsProbe
from lbagent.probes.pending_connects import PendingConnects
from lbagent.probes.probe_protocol import Probe
from lbagent.probes.probe_spec import ProbeKind, ProbeSpec
from lbagent.probes.tcp_probe import TcpProbe
from lbagent.probes.udp_probe import UdpProbe


class SharedParts:
    """What the probes of one event loop share: a clock for time-outs, TLS settings, connections in progress."""

    def __init__(self, mark_of: MarkOf = unmarked, *, keeps_connections: bool = True) -> None:
        """Make it inside the loop.

        `mark_of` returns the mark of sockets by which the data plane sends their flows to a backend; 0: it cannot.
        `keeps_connections`: those of HTTP stay open from check to check.
        """
        self._mark_of, self.keeps_connections = mark_of, keeps_connections
        self.clock = LoopClock()
        self.contexts = Contexts()
        self.connects = PendingConnects(self.clock)

    def destination(self, server: L3n4Addr, spec: ProbeSpec) -> Destination:
        """Return where the probes of a server go."""
        return server if spec.via is None else Through(spec.via, server, self._mark_of)

    def close(self) -> None:
        """End what is in progress."""
        self.connects.close()
        self.clock.close()


PROBES: dict[ProbeKind, Callable[[Destination, ProbeSpec, SharedParts], Probe]] = {
    ProbeKind.TCP: lambda server, spec, shared: TcpProbe(server, spec, shared.connects),
    ProbeKind.HTTP: lambda server, spec, shared: HttpProbe(server, spec, shared.clock, keeps=shared.keeps_connections),
    ProbeKind.HTTPS: lambda server, spec, shared: HttpsProbe(
        server, spec, shared.contexts, shared.clock, keeps=shared.keeps_connections
    ),
    ProbeKind.UDP: lambda server, spec, shared: UdpProbe(server, spec, shared.clock),
    ProbeKind.GRPC: lambda server, spec, shared: GrpcProbe(server, spec, shared.clock),
}


def make_probe(server: L3n4Addr, spec: ProbeSpec, shared: SharedParts) -> Probe:
    """Return the probe of a server."""
    return PROBES[spec.kind](shared.destination(server, spec), spec, shared)
