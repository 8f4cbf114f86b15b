"""`lbagent verify`: whether the kernel's maps are consistent, and match the agent's state; works without an agent."""

from __future__ import annotations

import os
import time

import click

from lbagent.api.client import AgentClient
from lbagent.cli.options import form_option, pins_option, socket_option
from lbagent.cli.output import document
from lbagent.errors import LbError

SETTLE_S = 1.0  # an entry that changes while the maps are read one after another looks inconsistent: read again


@click.command()
@socket_option
@pins_option
@form_option("text", "json", "yaml")
def verify(socket: str, bpffs: str, form: str) -> int:
    """Read the maps and name each inconsistency: slots, backends, path records, tables, the prefilter.

    When the agent answers whose maps they are, it compares them with what it wrote, and the paths with its state. An agent with
    another data plane than BPF compares that one.

    Exit code 0: the maps are consistent; they are also during a change. 1: at least one inconsistency is named.
    """
    client = AgentClient(socket)
    pins = _pins_of(client)
    try:
        found = _inconsistencies(bpffs)
    except LbError:
        if pins != "":
            raise
        found = client.verify()  # the agent's data plane has no maps
    else:
        found += _differences(client) if pins and os.path.realpath(pins) == os.path.realpath(bpffs) else []
    if form != "text":
        document([{"difference": line} for line in found], form)
    elif found:
        click.echo("\n".join(found))
    return int(bool(found))


def _inconsistencies(bpffs: str) -> list[str]:
    """Return what does not fit together in the maps, read twice. Raises NotFound, KernelError."""
    from lbagent.maps.consistency import check, without_master
    from lbagent.maps.kernel_maps import KernelMaps

    with KernelMaps.open(bpffs, create=False) as kernel:
        found = [*check(kernel), *without_master(kernel)]
        if found:
            time.sleep(SETTLE_S)
            again = {*check(kernel), *without_master(kernel)}
            found = [line for line in found if line in again]
    return found


def _pins_of(client: AgentClient) -> str | None:
    """Return the --bpffs of the agent that answers; '' where its data plane has none, None without an agent."""
    try:
        return str(client.status()["bpffs"])
    except LbError:
        return None


def _differences(client: AgentClient) -> list[str]:
    """Return what the agent finds; nothing when it does not answer."""
    try:
        return client.verify()
    except LbError:
        return []
