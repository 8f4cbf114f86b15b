"""Which external addresses the programs of this node serve for outside clients: by the rows of the State in the maps. Pure.

A row has the backends that model/select.py selected for this node; addresses without room in a map or of another Service have
none. An address is served while any of its ports has a backend that takes new flows, or an L7 proxy, which needs none.
"""

from __future__ import annotations

from collections import Counter

from lbagent.model.address import Scope
from lbagent.model.service import SVC, SVCType
from lbagent.model.state import State, common_prefix_and_suffix

EXTERNAL_TYPES = frozenset((SVCType.LOAD_BALANCER, SVCType.EXTERNAL_IPS))


class ServedAddresses:
    """These addresses, updated from State to State: an update costs little more than what changed."""

    def __init__(self) -> None:
        self._state = State()
        self._rows: Counter[bytes] = Counter()  # rows with a backend, by address

    def __contains__(self, address: bytes) -> bool:
        """Return whether the programs send new flows to an address on."""
        return self._rows[address] > 0

    def update(self, state: State) -> set[bytes]:
        """Take the State that the maps have now; return the addresses that are newly served, or no longer."""
        if state is self._state:
            return set()
        old, new = self._state.services, state.services
        prefix, suffix = common_prefix_and_suffix(old, new, state.delta)
        self._state = state
        gone = [svc.frontend.address for svc in old[prefix : len(old) - suffix] if _serves(svc)]
        here = [svc.frontend.address for svc in new[prefix : len(new) - suffix] if _serves(svc)]
        concerned = {*gone, *here}
        before = {address for address in concerned if address in self}
        self._rows.subtract(gone)
        self._rows.update(here)
        for address in concerned:
            if not self._rows[address]:
                del self._rows[address]
        return before ^ {address for address in concerned if address in self}


def _serves(svc: SVC) -> bool:
    is_outside = svc.type in EXTERNAL_TYPES and svc.frontend.scope is Scope.EXTERNAL
    return is_outside and bool(svc.selectable or svc.l7_lb_proxy_port)
