"""How the backends of a Service are checked: what its annotation `lbagent.io/health-check` sets."""

from __future__ import annotations

from msgspec import Struct
from msgspec.structs import replace

from lbagent.model.address import L3n4Addr, L4Type
from lbagent.probes.probe_spec import ProbeKind, ProbeSpec

PROTOCOL = {kind: L4Type.UDP if kind is ProbeKind.UDP else L4Type.TCP for kind in ProbeKind}


class BackendCheck(Struct, frozen=True, gc=False):
    """The check of each backend. `port` 0: the backend's own. `local_only`: each agent checks the backends of its node alone.

    `via_vip`: probes go through a frontend of the Service, so that they prove its forwarding, too.
    """

    probe: ProbeSpec
    port: int = 0
    local_only: bool = False
    via_vip: bool = False
    passive: bool = False  # no probes: what the flows tell (probes/passive_checks.py)

    def probe_of(self, frontend: L3n4Addr | None) -> ProbeSpec:
        """Return how a backend of this frontend is probed."""
        return replace(self.probe, via=frontend) if self.via_vip and frontend is not None else self.probe

    def server_of(self, backend: L3n4Addr) -> L3n4Addr:
        """Return the address to which probes of a backend go."""
        port, protocol = self.port or backend.port, PROTOCOL[self.probe.kind]
        if (port, protocol) == (backend.port, backend.protocol):
            return backend
        return L3n4Addr(backend.address, port, protocol)


class CheckedService(Struct, frozen=True, gc=False):
    """A Service whose backends are checked, and these backends, each with a frontend that has it."""

    check: BackendCheck
    backends: tuple[tuple[L3n4Addr, L3n4Addr | None], ...]
