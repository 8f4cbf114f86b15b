"""lb_echo: the addresses whose pings the programs answer or drop, with what decides about each.

For clients of each scope an address has what slot 0 says of one of its frontends: one with backends for new flows if there is
one, and of these one without source ranges. The entries follow what is written of frontends, after each pass. The node's own
addresses (of NodePorts, HostPorts, or to which it translates) have none, so their pings are the stack's.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING

from lbagent.errors import LbError
from lbagent.mapped_address import mapped, unmapped
from lbagent.maps.layout import LB_SERVICE
from lbagent.model.address import Scope, format_ip
from lbagent.model.flags import ServiceFlags
from lbagent.model.service import SVC, SVCType
from lbagent.render.renderer_types import Difference

if TYPE_CHECKING:
    from lbagent.maps.lbmaps import LBMaps
    from lbagent.targets.bpf.shadow import Shadow
    from lbagent.targets.bpf.steps import Plan

MAP = "lb_echo"
_ANSWERED = (SVCType.CLUSTER_IP, SVCType.EXTERNAL_IPS, SVCType.LOAD_BALANCER)
_OF_NODE = (SVCType.NODE_PORT, SVCType.HOST_PORT)
_LOOPBACK6 = bytes(15) + b"\1"


class EchoMap:
    """Owner of lb_echo."""

    def __init__(self, maps: LBMaps) -> None:
        self._maps = maps
        self._is_known = False  # the map is what it was written to be
        self._own: frozenset[bytes] = frozenset()

    def follow(self, planned: Plan, shadow: Shadow, own: Iterable[bytes]) -> list[LbError]:
        """Write what an applied plan means for pings; return what failed, which the next pass writes.

        `own` are the addresses to which this node translates.
        """
        before, self._own = self._own, frozenset(own)
        addresses = None if planned.full_sync or not self._is_known or before != self._own else touched(planned)
        if addresses is not None and not addresses:
            return []
        self._is_known = False
        try:
            self._write(wanted(written(shadow), self._own, addresses), addresses)
        except LbError as error:
            return [error]
        self._is_known = True
        return []

    def _write(self, rows: Mapping[bytes, bytes], addresses: Iterable[bytes] | None) -> None:
        have = self._read() if addresses is None else dict.fromkeys(addresses, b"")
        self._maps.delete_many(MAP, [mapped(address) for address in have if address not in rows])
        new = [(mapped(address), value) for address, value in rows.items() if have.get(address) != value]
        self._maps.put_many(MAP, new)

    def _read(self) -> dict[bytes, bytes]:
        return {unmapped(key): value for key, value in self._maps.items(MAP)}

    def differences(self, shadow: Shadow) -> list[Difference]:
        """Return in what the map differs from what was written; no pass may run meanwhile. Raises KernelError."""
        if not self._is_known:
            return []
        have, want = self._read(), wanted(written(shadow), self._own)
        wrong = sorted(address for address in have.keys() | want.keys() if have.get(address) != want.get(address))
        return [
            Difference("differs", f"{MAP} is not what was written for {format_ip(address)}", None, None)
            for address in wrong
        ]

    def forget(self) -> None:
        """Compare the whole map in the next pass."""
        self._is_known = False


def written(shadow: Shadow) -> Iterator[SVC]:
    """Yield the frontends that are whole in the maps."""
    return (svc for svc in shadow.frontends.values() if isinstance(svc, SVC))


def wanted(
    services: Iterable[SVC], own: frozenset[bytes], addresses: frozenset[bytes] | None = None
) -> dict[bytes, bytes]:
    """Return the value of each address, or of those of `addresses` that have one."""
    best: dict[bytes, list[SVC | None]] = {}
    of_node = set(own)
    for svc in services:
        address = svc.frontend.address
        if addresses is not None and address not in addresses:
            continue
        if svc.type in _OF_NODE:
            of_node.add(address)
        elif decides(svc):
            outside, inside = best.setdefault(address, [None, None])
            if svc.frontend.scope is Scope.EXTERNAL:
                outside = _better(outside, svc)
            if svc.frontend.scope is Scope.INTERNAL or not svc.flags & ServiceFlags.TWO_SCOPES:
                inside = _better(inside, svc)
            best[address] = [outside, inside]
    return {
        address: _value(outside or inside) + _value(inside or outside)
        for address, (outside, inside) in best.items()
        if address not in of_node
    }


def touched(planned: Plan) -> frozenset[bytes]:
    """Return the addresses for which changes decide again: one from two to three backends changes nothing."""
    return frozenset(change.frontend.address for change in planned.changes if _part(change.old) != _part(change.svc))


def decides(svc: SVC) -> bool:
    """Return whether a frontend may decide about the pings of its address."""
    address = svc.frontend.address
    return bool(svc.id) and svc.type in _ANSWERED and address[0] != 127 and address != _LOOPBACK6


def _part(svc: object) -> object:
    """Return what of a frontend's entry matters for pings."""
    if not isinstance(svc, SVC):
        return svc
    return (svc.id, int(svc.flags), bool(svc.selectable), svc.type) if svc.id else None


def _better(one: SVC | None, other: SVC) -> SVC:
    return other if one is None or _rank(other) > _rank(one) else one


def _rank(svc: SVC) -> tuple[bool, bool, int]:
    """Return what makes a frontend decide; the older id among equal ones, so that the same State gives the same entries."""
    return bool(svc.selectable), not svc.check_source_range, -svc.id


def _value(svc: SVC | None) -> bytes:
    assert svc is not None
    flags = int(svc.flags)
    return LB_SERVICE.pack(0, int(bool(svc.selectable)), svc.id.to_bytes(2, "big"), flags & 0xFF, flags >> 8, 0)
