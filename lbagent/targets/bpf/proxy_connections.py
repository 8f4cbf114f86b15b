"""Counts the connections to L7 proxies for max-flows: no flow of the flow table stands for them, the kernel's sockets do.

The programs count the SYNs that a proxy got (`admitted` of lb_rules). The agent writes how many connections there were, less what
`admitted` was before it looked: the sum of both is what there is now, and each SYN since then.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence

from lbagent.bpf.run.rule_counts import TickOf, tick_now
from lbagent.errors import LbError
from lbagent.kernel.sock_diag import ConnectedSocket, tcp_connections_at
from lbagent.maps.layout import LB_RULES
from lbagent.maps.lbmaps import LBMaps
from lbagent.model.address import L3n4Addr, L4Type

log = logging.getLogger(__name__)
COUNT_INTERVAL_S = 1.0
MAX_PORTS = 8  # further ones are found among all connections of the node
_AT = LB_RULES.offsets()
_WORD, _U32 = 8, 0xFFFFFFFF
Frontends = Mapping[int, Sequence[L3n4Addr]]  # by the number of their record in lb_rules


class ProxyConnections:
    """Writes the counts of the Services that `limited` returns."""

    def __init__(
        self,
        maps: LBMaps,
        limited: Callable[[], Frontends],
        list_at: Callable[[int], Sequence[ConnectedSocket]] = tcp_connections_at,
        tick: TickOf = tick_now,
    ) -> None:
        self._maps, self._limited, self._list_at, self._tick = maps, limited, list_at, tick

    async def run(self) -> None:
        """Count without end. What fails limits nothing a while later, and is tried again."""
        failed = ""
        while True:
            try:
                await self.count()
                failed = ""
            except (LbError, OSError) as error:
                if str(error) != failed:
                    failed = str(error)
                    log.error("connections to L7 proxies could not be counted", extra={"error": failed})
            await asyncio.sleep(COUNT_INTERVAL_S)

    async def count(self) -> None:
        """Count once. Raises OSError, KernelError."""
        limited = self._limited()
        if not limited:
            return
        admitted = {number: self._admitted(number) for number in limited}
        found = await asyncio.to_thread(self._connections, limited)
        now = self._tick()
        for number, count in found.items():
            self._store(number, "proxied", count - admitted[number])
            self._store(number, "slow_start", now)

    def _connections(self, limited: Frontends) -> dict[int, int]:
        """Return how many connections the frontends of each record have."""
        frontends = [each for group in limited.values() for each in group if each.protocol is L4Type.TCP]
        ports = {0 if each.last_port else each.port for each in frontends}
        if 0 in ports or len(ports) > MAX_PORTS:
            ports = {0}
        own = [sock.local for port in ports for sock in self._list_at(port)]
        return {number: sum(_is_of(each, group) for each in own) for number, group in limited.items()}

    # --- words, each of which the programs or the agent write alone ---

    def _admitted(self, number: int) -> int:
        with (
            self._maps.window("lb_rules", number * LB_RULES.size + _AT["proxied"], _WORD) as view,
            view.cast("I") as cells,
        ):
            return int(cells[1])

    def _store(self, number: int, field: str, value: int) -> None:
        with self._maps.window("lb_rules", number * LB_RULES.size + _AT[field], _WORD) as view, view.cast("I") as cells:
            cells[0] = value & _U32


def _is_of(own: tuple[bytes, int], frontends: Sequence[L3n4Addr]) -> bool:
    """Return whether a socket with this own address and port has a connection to one of them."""
    address, port = own
    return any(
        each.address == address and each.protocol is L4Type.TCP and each.port <= port <= (each.last_port or each.port)
        for each in frontends
    )
