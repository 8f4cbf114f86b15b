"""A data plane that is left follows the State of the one that takes over (bpf/left_bpf.py, nftables/left_nft.py)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from lbagent.model.state import State
from lbagent.sync.runner import TargetRunner
from lbagent.sync.target_protocol import Desired
from lbagent.targets.data_plane import DataPlane


async def follow(
    plane: DataPlane, served: DataPlane, group: asyncio.TaskGroup, rows: Callable[[State], State] = lambda state: state
) -> TargetRunner:
    """Have `plane` put in force what `served` does, by the `rows` of each State; return when the first one is.

    The tasks go into the group. Raises what keeps `plane` from starting.
    """
    runner, state = TargetRunner(plane), served.state

    async def each() -> None:
        nonlocal state
        while True:
            await served.changed_from(state.generation)
            state = served.state
            runner.set_desired(Desired(rows(state)))

    await plane.start(group)
    runner.set_desired(Desired(rows(state)))
    group.create_task(runner.run())
    await plane.ready.wait()
    group.create_task(each())
    group.create_task(plane.watch())
    return runner
