"""By which devices of this node XDP programs can send: the rule of bpf/load/xdp_send.py, for each device. Pure."""

from __future__ import annotations

from collections.abc import Collection

from lbagent.bpf.load.xdp_send import refusal
from lbagent.net.paths import ETHERNET_ADDRESS
from lbagent.net.snapshot import NodeNetwork


def refusing_devices(network: NodeNetwork, native: Collection[int]) -> dict[int, str]:
    """Return the devices that frames of XDP programs cannot be sent by, with why. `native`: the devices whose drivers run them.

    None where no driver runs them: generic XDP sends by any device, and tc does.
    """
    if not native:
        return {}
    out = {}
    for index, link in network.links.items():
        runs = index in native
        why = refusal(link.kind, network.features.get(index), runs=runs, alone=runs and len(native) == 1)
        if len(link.mac) != ETHERNET_ADDRESS:
            why = "its frames have no Ethernet header"
        if why:
            out[index] = why
    return out
