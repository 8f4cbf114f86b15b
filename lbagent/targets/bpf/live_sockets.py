"""Live flows of the socket programs by frontend and backend, read from the pins and from the kernel's list of sockets."""

from __future__ import annotations

from collections import Counter

from lbagent.maps.flow_lines import L4_WORDS
from lbagent.maps.flow_settings import flow_settings
from lbagent.maps.pinned_maps import PinnedMaps
from lbagent.maps.socket_flows import socket_flows_here
from lbagent.model.address import L3n4Addr, L4Type


def live_sockets(bpffs: str) -> Counter[tuple[L3n4Addr, L3n4Addr]] | None:
    """Return how many sockets use each frontend and backend; None in another network namespace. Raises NotFound, KernelError."""
    with PinnedMaps(bpffs) as maps:
        found = socket_flows_here(maps, flow_settings(maps.settings_record()).netns_cookie)
    if found is None:
        return None
    out: Counter[tuple[L3n4Addr, L3n4Addr]] = Counter()
    for flow in found:
        if flow.is_live:
            protocol = L4Type.parse(L4_WORDS[flow.l4])
            out[L3n4Addr(*flow.frontend, protocol), L3n4Addr(*flow.backend, protocol)] += 1
    return out
