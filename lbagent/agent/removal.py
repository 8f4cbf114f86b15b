"""`lbagent cleanup`: removes what an agent left in the kernel, of each data plane, and ends its BIRD. It needs no agent."""

from __future__ import annotations

import asyncio
from contextlib import suppress

from lbagent.announce.bgp.left_bird import end_left_bird
from lbagent.config import Config
from lbagent.errors import KernelError
from lbagent.targets.offline_planes import removers


def cleanup(config: Config) -> list[str]:
    """Remove everything, and return it, one line each; nothing there is fine.

    BIRD ends before the data plane goes that serves the addresses it announces. Raises Conflict while an agent runs, ConfigError,
    KernelError.
    """
    gone: list[str] = []

    def before() -> None:
        gone.extend(_give_back())
        if asyncio.run(end_left_bird(config.state_dir)):
            gone.append("ended bird")

    for remove in removers():
        gone += remove(config, before)
    return gone + _end_migration(config.state_dir)


def _give_back() -> list[str]:
    """Put the rules of kube-proxy in force again, which `lbagent migrate` made dormant: it cannot start with dormant ones."""
    from lbagent.targets.kube_proxy.proxy_table import set_dormant, table_name
    from lbagent.targets.nftables.nat_keeper import is_kept

    with suppress(KernelError, OSError):  # without the rights nothing was made dormant
        if is_kept():
            return [f"put table {table_name(family)} in force" for family in set_dormant(dormant=False)]
    return []


def _end_migration(state_dir: str) -> list[str]:
    """Remove what `lbagent migrate` left."""
    from lbagent.agent.migration import MigrationRecord
    from lbagent.targets.nftables.nat_keeper import KEEPER, stop_translating

    gone = _give_back()
    with suppress(OSError):
        MigrationRecord(state_dir).remove()
    with suppress(KernelError, OSError):
        if stop_translating():
            gone.append(f"removed table inet {KEEPER}")
    return gone
