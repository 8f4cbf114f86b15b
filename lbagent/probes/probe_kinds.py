"""The probe of each kind. A new kind is a word of ProbeKind, its probe, and a line here."""

from __future__ import annotations

from collections.abc import Callable

from lbagent.model.address import L3n4Addr
from lbagent.probes.http_probe import HttpProbe
from lbagent.probes.https_probe import Contexts, HttpsProbe
from lbagent.probes.probe_protocol import Probe
from lbagent.probes.probe_spec import ProbeKind, ProbeSpec
from lbagent.probes.tcp_probe import TcpProbe
from lbagent.probes.udp_probe import UdpProbe

Clock = Callable[[], float]
PROBES: dict[ProbeKind, Callable[[L3n4Addr, ProbeSpec, Contexts, Clock], Probe]] = {
    ProbeKind.TCP: lambda server, spec, _, clock: TcpProbe(server, spec, clock),
    ProbeKind.HTTP: lambda server, spec, _, clock: HttpProbe(server, spec, clock),
    ProbeKind.HTTPS: HttpsProbe,
    ProbeKind.UDP: lambda server, spec, _, clock: UdpProbe(server, spec, clock),
}


def make_probe(server: L3n4Addr, spec: ProbeSpec, contexts: Contexts, clock: Clock) -> Probe:
    """Return the probe of a server. `contexts` are the TLS settings that probes share; `clock` measures time-outs."""
    return PROBES[spec.kind](server, spec, contexts, clock)
