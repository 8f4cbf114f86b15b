"""In what the table differs from a State, without an agent, and its repair."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import closing

from lbagent.errors import Refused
from lbagent.model.state import State
from lbagent.net.netlink import NetworkWatcher
from lbagent.net.snapshot import NodeNetwork
from lbagent.render.renderer_types import Difference
from lbagent.targets.nftables.chains import EGRESS, TableSettings
from lbagent.targets.nftables.nft_writer import NftWriter
from lbagent.targets.nftables.node_place import NodePlace
from lbagent.targets.nftables.table_lock import TableLock


def table_compared(
    settings: TableSettings, node_name: str, pod_devices: tuple[str, ...], state: State, *, repair: bool
) -> tuple[Sequence[Difference], Sequence[Difference]]:
    """Return in what the table differs from a State, and with `repair` what is left of that.

    A frontend that was removed is refused for 30 seconds, and is stale meanwhile. Raises NotOurs, KernelError, OSError, with
    `repair` also Conflict while an agent serves with this table, and Refused where it has --egress-snat.
    """

    async def run() -> tuple[Sequence[Difference], Sequence[Difference]]:
        place = NodePlace(node_name, pod_devices, await _network())
        with closing(NftWriter(settings, place)) as writer:
            found = await writer.compared_with(state.by_name)
            if found and repair and writer.table.has_chain(EGRESS):
                raise Refused(
                    "only an agent repairs a table that has --egress-snat: it has the addresses of nodes; nothing was changed"
                )
            if found and repair:
                await writer.write(state.by_name)
                return found, await writer.differences()
            return found, found

    lock = TableLock(settings.table)
    if repair:
        lock.take()
    try:
        return asyncio.run(run())
    finally:
        lock.release()


async def _network() -> NodeNetwork:
    with closing(NetworkWatcher()) as watcher:
        return await watcher.start()
