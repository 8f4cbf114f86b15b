"""Which devices take the frames that XDP programs send. Pure.

From Linux 6.3 on each driver reports this (NDO_XMIT of its XDP features), and the kernel rejects what a driver does not offer.
Before, the kind of the device decides. Frames for the others go by tc (docs/datapath.md, "Next hops"). Source: `__xdp_enqueue` of
kernel/bpf/devmap.c, `veth_set_xdp_features` (behaviour).
"""

from __future__ import annotations

from typing import NamedTuple

from lbagent.kernel.features import XdpFeature

# Kinds whose drivers have no ndo_xdp_xmit, whatever the kernel.
REFUSING_KINDS = frozenset(
    {
        "bareudp", "batadv", "bridge", "dummy", "geneve", "gretap", "hsr", "ifb", "ip6gretap", "ipvlan", "ipvtap",
        "macsec", "macvlan", "macvtap", "netkit", "openvswitch", "team", "vlan", "vrf", "vxlan",
    }
)  # fmt: skip
GRO_ADVICE = "`ethtool -K PEER gro on` at its other end"


class Refusal(NamedTuple):
    """Why a device takes no frames from XDP, and the remedy ('': none)."""

    reason: str
    remedy: str = ""


def refusal(kind: str, features: XdpFeature | None, *, runs: bool = False, alone: bool = False) -> Refusal | None:
    """Return why a device of a kind ('' = NIC) does not take frames from XDP; None if it does. `features` None: not known.

    `runs`: our XDP program runs on it. The other end of a veth that an operator chose for that polls; a pod's seldom does.
    `alone`: and on no other device, so that it only sends frames back where they came from; every NIC that runs programs can do
    that (XDP_TX).
    """
    if features is None:
        is_refused = kind in REFUSING_KINDS or (kind == "veth" and not runs)
        return Refusal(f"a {kind} takes no frames from XDP") if is_refused else None
    if features & XdpFeature.NDO_XMIT or (alone and not kind and features & XdpFeature.BASIC):
        return None
    if kind == "veth" and features & XdpFeature.BASIC:
        return Refusal(f"its other end does not poll; {GRO_ADVICE} changes that", GRO_ADVICE)
    return Refusal(f"a {kind} takes no frames from XDP" if kind else "its driver takes no frames from XDP")
