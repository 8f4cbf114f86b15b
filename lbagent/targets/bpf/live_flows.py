"""What the pinned maps serve, and their live flows by frontend and backend. Nothing is written."""

from __future__ import annotations

from collections import Counter

from lbagent.maps.flow_reader import totals
from lbagent.maps.kernel_maps import KernelMaps
from lbagent.maps.socket_flows import LEFT_OUT
from lbagent.model.address import L3n4Addr
from lbagent.model.extra_snat_sources import extra_snat_stride
from lbagent.model.family import Family
from lbagent.targets.bpf.live_sockets import live_sockets
from lbagent.targets.bpf.restore import restore
from lbagent.targets.bpf.retention import restored_state
from lbagent.targets.data_plane import LiveFlows


def live_flows(bpffs: str, node_name: str) -> LiveFlows:
    """Read the maps. Raises NotFound where none are pinned, KernelError."""
    with KernelMaps.open(bpffs, create=False) as maps:
        found = restore(maps)
        services = {(frontend.family, ident): frontend for frontend, ident in found.service_ids}
        backends = {(address.family, ident): address for address, ident in found.backend_ids}
        stride = extra_snat_stride(maps.sizes.backends)
        flows: Counter[tuple[L3n4Addr, L3n4Addr | None]] = Counter()
        for family in Family:
            for (service, ident, _), count in totals(maps, family).items():
                if frontend := services.get((family, service)):
                    # an extra SNAT address has an id of its own, a multiple of the stride above its backend's
                    backend = backends.get((family, ident)) or backends.get((family, ident % stride))
                    flows[frontend, backend] += count
        state = restored_state(found.shadow, node_name)
    sockets = live_sockets(bpffs)
    known = set(services.values())
    for pair, count in (sockets or {}).items():
        if pair[0] in known:
            flows[pair] += count
    return LiveFlows(flows, state.services, LEFT_OUT if sockets is None else "")
