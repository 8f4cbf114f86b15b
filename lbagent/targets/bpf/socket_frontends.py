"""What the socket programs noted of TCP sockets: the frontend that a socket connected to when it got its backend."""

from __future__ import annotations

from lbagent.maps.layout import STREAM, STREAMS
from lbagent.maps.lbmaps import LBMaps
from lbagent.model.address import L3n4Addr
from lbagent.model.family import Family
from lbagent.targets.data_plane import FrontendOf, SocketFrontend


def socket_frontends(maps: LBMaps, family: Family) -> FrontendOf:
    """Return a look-up in all records of a family: the array is read as a whole. Raises KernelError."""
    records, layout = maps.get(f"lb{family}_stream", bytes(4)) or b"", STREAM[family]

    def frontend_of(cookie: int, backend: L3n4Addr) -> SocketFrontend | None:
        at = (cookie & (STREAMS - 1)) * layout.size
        noted, peer, address, peer_port, port, _ = layout.unpack(records[at : at + layout.size])
        if (noted, peer, peer_port) != (cookie, backend.address, backend.port.to_bytes(2, "big")):
            return None
        return bytes(address), int.from_bytes(bytes(port), "big")

    return frontend_of
