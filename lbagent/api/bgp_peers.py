"""A row of `bgp peers`, as JSON. The field names are a contract: scripts read them."""

from __future__ import annotations

from msgspec import Struct


class BgpPeerRow(Struct, gc=False, omit_defaults=True):
    """A router that this node has a BGP session with."""

    address: str
    asn: int
    state: (
        str  # established; idle, connect, active, opensent, openconfirm (RFC 4271 8.2.2); down: no BIRD, or no session
    )
    bfd: str  # up, down, init, admindown; off: it is not asked for
    advertised: int  # routes that the router was told
    reason: str = ""  # why the session is not established, and what to do; left out when it is
