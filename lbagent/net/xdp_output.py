"""By which devices of this node XDP programs can send (the rule of bpf/load/xdp_send.py), and so which way packets take. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from enum import StrEnum

from lbagent.bpf.load.xdp_send import refusal
from lbagent.net.paths import ETHERNET_ADDRESS
from lbagent.net.snapshot import NodeNetwork


class Way(StrEnum):
    """How packets get to a backend."""

    STACK = "stack"  # the backend is on this node: translated, and passed up to the kernel's stack
    XDP = "xdp"  # XDP programs send them themselves
    TC = "tc"  # tc programs send them, also those that XDP programs leave to tc_after_xdp


def way_by(index: int, refusing: Mapping[int, str], *, xdp: bool) -> tuple[Way, str]:
    """Return the way of packets that leave by a device, and why it is tc's where XDP programs run.

    `refusing`: from `refusing_devices`; `xdp`: whether XDP programs are attached to any device.
    """
    why = refusing.get(index, "") if xdp else ""
    return (Way.XDP if xdp and not why else Way.TC), why


def refusing_devices(network: NodeNetwork, native: Collection[int]) -> dict[int, str]:
    """Return the devices that frames of XDP programs cannot be sent by, with why. `native`: the devices whose drivers run them.

    None where no driver runs them: generic XDP sends by any device, and tc does.
    """
    if not native:
        return {}
    out = {}
    for index, link in network.links.items():
        runs = index in native
        refused = refusal(link.kind, network.features.get(index), runs=runs, alone=runs and len(native) == 1)
        if len(link.mac) != ETHERNET_ADDRESS:
            out[index] = "its frames have no Ethernet header"
        elif refused:
            out[index] = refused.reason
    return out
