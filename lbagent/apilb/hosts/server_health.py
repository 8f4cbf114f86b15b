"""Which servers a container's HAProxy counts as up: read from its log, as the rendered file has no stats socket.

See haproxy_log.py for the lines.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Sequence

from lbagent.apilb.hosts.haproxy_log import Row, parse_health
from lbagent.apilb.hosts.host import Host, opened
from lbagent.apilb.instance import Instance, InstanceKey, Mode, SshAccess
from lbagent.apilb.instance_plan import wanted_text
from lbagent.apilb.plan_records import RUNNING
from lbagent.errors import LbError

LINES = 1000


async def server_health(instances: Sequence[Instance]) -> dict[InstanceKey, list[Row]]:
    """Return {"address", "up", "since", "last"} of each server, in the instance's order, for reachable containers that run.

    `since` is the time of the last change (seconds since 1970), `last` HAProxy's reason for it.
    """
    hosts: dict[SshAccess | None, list[Instance]] = defaultdict(list)
    for instance in instances:
        if instance.mode is Mode.HAPROXY:
            hosts[instance.ssh].append(instance)
    found: dict[InstanceKey, list[Row]] = {}

    async def ask(ssh: SshAccess | None, there: list[Instance]) -> None:
        try:
            async with opened(ssh) as host:
                for instance in there:
                    if rows := await _ask_host(host, instance):
                        found[instance.key] = rows
        except LbError:
            pass  # `observe` reports it

    async with asyncio.TaskGroup() as group:
        for ssh, there in hosts.items():
            group.create_task(ask(ssh, there))
    return found


async def _ask_host(host: Host, instance: Instance) -> list[Row]:
    runtime = await host.runtime(instance.docker_host)
    there = await runtime.inspect(name=instance.name)
    if there is None or there["State"]["Status"] != RUNNING:
        return []
    files = await host.files(instance)
    if await files.read(instance.host_config_path) != wanted_text(instance):
        return []  # HAProxy's servers are those of another file
    return parse_health(await runtime.logs(there["Id"], instance.name, LINES), instance.servers)
