"""The rules of kube-proxy compared with a State. Read-only."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from lbagent.model.service import SVCType
from lbagent.model.state import State
from lbagent.render.renderer_types import Difference
from lbagent.targets.kube_proxy.proxy_differences import proxy_differences
from lbagent.targets.kube_proxy.proxy_table import read_tables

NAME = "kube-proxy"
SETTLE_S = 1.5  # kube-proxy writes once a second at most: what it has not written yet is no difference


async def compared_with(current: Callable[[], State]) -> Sequence[Difference]:
    """Return what differs from the State of `current`, now and after SETTLE_S. Raises NoProxyTable, OSError."""
    found = await asyncio.to_thread(compared_once, current())
    if found:
        await asyncio.sleep(SETTLE_S)
        again = await asyncio.to_thread(compared_once, current())
        found = [each for each in found if each in again]
    return found


def compared_once(state: State) -> list[Difference]:
    """Return what differs from a State. Raises NoProxyTable, OSError."""
    local = {
        key.address for key, row in state.by_frontend.items() if row.type is SVCType.NODE_PORT and any(key.address)
    }
    return list(proxy_differences(read_tables(local), state))
