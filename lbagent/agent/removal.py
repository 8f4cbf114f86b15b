"""`lbagent cleanup`: removes what an agent left in the kernel, of each data plane, and ends its BIRD. It needs no agent."""

from __future__ import annotations

import asyncio

from lbagent.announce.bgp.speaker import end_left_bird
from lbagent.config import Config
from lbagent.targets.offline_planes import removers


def cleanup(config: Config) -> list[str]:
    """Remove everything, and return it, one line each; nothing there is fine.

    BIRD ends before the data plane goes that serves the addresses it announces. Raises Conflict while an agent runs, ConfigError,
    KernelError.
    """
    gone: list[str] = []

    def end_bird() -> None:
        if asyncio.run(end_left_bird(config.state_dir)):
            gone.append("ended bird")

    for remove in removers():
        gone += remove(config, end_bird)
    return gone
