"""Devices of this node by which XDP programs can send (the rule of bpf/load/xdp_send.py), and the resulting paths. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from enum import StrEnum

from lbagent.bpf.load.xdp_send import refusal
from lbagent.net.paths import ETHERNET_ADDRESS
from lbagent.net.snapshot import NodeNetwork


class Egress(StrEnum):
    """How packets reach a backend."""

    STACK = "stack"  # the backend is on this node: translated, and passed to the kernel's stack
    XDP = "xdp"  # XDP programs send them themselves
    TC = "tc"  # tc programs send them, also those that XDP hands over to tc_after_xdp


def egress_by(index: int, refusing: Mapping[int, str], *, xdp: bool) -> tuple[Egress, str]:
    """Return how packets leave by a device, and why tc sends them although XDP programs run.

    `refusing`: from `refusing_devices`; `xdp`: whether XDP programs are attached to any device.
    """
    why = refusing.get(index, "") if xdp else ""
    return (Egress.XDP if xdp and not why else Egress.TC), why


def refusing_devices(network: NodeNetwork, native: Collection[int]) -> dict[int, str]:
    """Return the devices that cannot send frames of XDP programs, with the reason. `native`: the devices whose drivers run them.

    None where no driver runs them: generic XDP sends by any device, like tc.
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
