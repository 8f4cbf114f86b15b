"""`bgp peers`: the BGP sessions by which this node announces addresses (--announce)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lbagent.api.capabilities.vips import OFF
from lbagent.api.capability import NUMBER, TEXT, Capability, Field, ListedFields, Route
from lbagent.observe.metric import Metric, by_word

if TYPE_CHECKING:
    from lbagent.announce.bgp.speaker import BgpPeerRow, BgpSpeaker

PEERS: ListedFields[BgpPeerRow] = ListedFields(
    "BgpPeerRow",
    (
        Field("address", TEXT, "of the router", lambda x: x.address, "ADDRESS"),
        Field("asn", NUMBER, "its AS number", lambda x: x.asn, "ASN"),
        Field(
            "state",
            TEXT,
            "`established`; `idle`, `connect`, `active`, `opensent`, `openconfirm` (RFC 4271 8.2.2); "
            "`down`: no BIRD, or no session",
            lambda x: x.state,
            "STATE",
        ),
        Field("bfd", TEXT, "`up`, `down`, `init`, `admindown`; `off`: not configured", lambda x: x.bfd, "BFD"),
        Field("advertised", NUMBER, "routes that the router receives", lambda x: x.advertised, "ADVERTISED"),
        Field(
            "reason",
            TEXT,
            "why the session is not established, and what to do; left out when it is",
            lambda x: x.reason,
            "REASON",
            optional=True,
        ),
    ),
)
CAPABILITY: Capability[BgpSpeaker] = Capability(
    routes=(
        Route(
            "bgp_peers",
            "GET",
            "/v1/bgp/peers",
            PEERS,
            "the BGP sessions of the node, asked of BIRD for this answer; 404 without `--announce`",
            lambda speaker: speaker.peers(),
        ),
    ),
    metrics=(
        Metric(
            "lbagent_bgp_session_up",
            "gauge",
            "Whether the BGP session with the router is established.",
            lambda speaker: by_word(speaker.sessions_up),
            ("peer",),
        ),
    ),
    off=OFF,
)
