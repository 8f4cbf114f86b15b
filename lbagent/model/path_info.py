"""PathInfo: how packets reach a backend."""

from __future__ import annotations

from msgspec import Struct

from lbagent.model.extra_snat_sources import ExtraSnatAddress


class PathInfo(Struct, frozen=True, gc=False):
    """How packets reach a backend, as net/paths.py finds it: the part of a path record that does not come from the plan."""

    snat: bytes = b""  # source address of translated flows, packed; empty: none of this family
    nexthop: int = 0  # index of the next hop; 0 = unknown, the program looks up the FIB
    mtu: int = 0  # bytes of the egress path; 0 = unknown
    local: bool = False  # on this node: the client's address is kept
    host: bool = False  # the address is one of the node's own
    extra_snat: tuple[ExtraSnatAddress, ...] = ()  # source addresses for flows that find no port of the first one
    kept: frozenset[bytes] = frozenset()  # a path that has one of these source addresses keeps it, instead of `snat`
    keeps_pod: bool = False  # on another node, and a pod of this node keeps its address towards it
