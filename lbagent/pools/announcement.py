"""How addresses are announced: the checked sections `l2` and `bgp` of the pools file. Times are seconds."""

from __future__ import annotations

from msgspec import Struct

from lbagent.pools.label_selector import LabelSelector

L2, BGP = "l2", "bgp"  # the words of a pool's `announce`
DEFEND, YIELD = "defend", "yield"  # the words of `l2.conflict`


class L2Settings(Struct, frozen=True):
    """Section `l2`. Without devices every device with an address of the VIP's network is one.

    `defends`: an announced address that another host claims stays announced (RFC 5227 §2.4 c).
    """

    lease_duration_s: float = 2.0
    restart_grace_s: float = 30.0
    devices: tuple[str, ...] = ()
    probe: bool = True
    node_selector: LabelSelector = LabelSelector()
    defends: bool = True


class Bfd(Struct, frozen=True):
    """Bidirectional Forwarding Detection with a peer (RFC 5880)."""

    interval_s: float = 0.3
    multiplier: int = 3


class BgpPeer(Struct, frozen=True):
    """A BGP peer. `hold_time_s` 0 disables keepalives (RFC 4271 4.2)."""

    address: bytes
    asn: int
    port: int = 179
    bfd: Bfd | None = None
    password_file: str = ""
    hold_time_s: float = 90.0
    multihop: int = 1
    node_selector: LabelSelector = LabelSelector()


class BgpSettings(Struct, frozen=True):
    """Section `bgp`. A community is two (RFC 1997) or three numbers (RFC 8092)."""

    local_asn: int
    port: int = 179
    graceful_restart: bool = True
    communities: tuple[tuple[int, ...], ...] = ()
    peers: tuple[BgpPeer, ...] = ()
