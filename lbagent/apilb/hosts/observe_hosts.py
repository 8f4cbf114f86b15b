"""Reads the instances' containers and files on hosts. Hosts are read in parallel; a failed host does not stop the others."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Sequence

from lbagent.apilb.hosts.container_spec import ContainerSpec, image_name, is_ours, spec_matches
from lbagent.apilb.hosts.host import Host, opened
from lbagent.apilb.instance import Instance, InstanceKey, Mode, SshAccess
from lbagent.apilb.plan_records import GONE, RUNNING, Observed, RecordedInstance
from lbagent.errors import LbError

Item = Instance | RecordedInstance


async def observe(items: Sequence[Item]) -> dict[InstanceKey, Observed | LbError]:
    """Return what exists under name and path of each item, or why that is unknown."""
    hosts: dict[SshAccess | None, list[Item]] = defaultdict(list)
    for item in items:
        hosts[item.ssh].append(item)
    found: dict[InstanceKey, Observed | LbError] = {}
    async with asyncio.TaskGroup() as group:
        for ssh, there in hosts.items():
            group.create_task(_observe_host(ssh, there, found))
    return found


async def _observe_host(ssh: SshAccess | None, items: list[Item], found: dict[InstanceKey, Observed | LbError]) -> None:
    try:
        async with opened(ssh) as host:
            for item in items:
                try:
                    found[item.key] = await observe_on(host, item)
                except LbError as error:
                    found[item.key] = error
    except LbError as error:
        found.update({item.key: error for item in items})


async def observe_on(host: Host, item: Item) -> Observed:
    """Return what an opened host has of an item."""
    if item.mode is Mode.NATIVE:
        text = await (await host.files(item)).read(item.host_config_path)
        return Observed(status=GONE if text is None else RUNNING, ours=text is not None, file_text=text)
    runtime = await host.runtime(item.docker_host)
    known = item.container_id if isinstance(item, RecordedInstance) else ""
    there = await runtime.inspect(container_id=known) if known else None
    if there is None:
        there = await runtime.inspect(name=item.name)
    files = await host.files(item)
    text = await files.read(item.host_config_path)
    if there is None:
        return Observed(file_text=text)
    spec = ContainerSpec(pool=item.pool, name=item.name, image=item.image, host_config_path=item.host_config_path)
    return Observed(
        container_id=there["Id"],
        status=str(there["State"]["Status"]),
        image=image_name(str(there["Config"].get("Image", "")), item.image),
        ours=is_ours(there, item.pool),
        spec_matches=spec_matches(there, spec),
        file_text=text,
    )
