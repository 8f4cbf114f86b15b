"""Executes the steps of a plan: hosts in parallel, the steps of one host in their order."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Sequence
from functools import partial

from lbagent.apilb.hosts.container_spec import is_ours
from lbagent.apilb.hosts.container_step import SHORT_ID, ContainerStep
from lbagent.apilb.hosts.host import Host, opened
from lbagent.apilb.instance import Instance, Mode, SshAccess
from lbagent.apilb.instance_plan import is_ours_file, wanted_text
from lbagent.apilb.plan_records import RUNNING, Action, RecordedInstance, Step
from lbagent.errors import LbError

Report = Callable[[str], None]
AGENT_USER = 0  # owner of the file of native mode


async def carry_out(step: Step, report: Report, *, pull: bool = False) -> RecordedInstance | None:
    """Execute one step; `report` gets one line when it is done. Returns the record for the state: None if it is removed.

    `pull`: pull a missing image. Raises LbError: Refused (name in use, host key, a folder in place of a file), HostUnreachable,
    NotFound (image), PartlyDone, whose `recorded` is for the state.
    """
    async with opened(_way(step)) as host:
        return await _carry_out_on(host, step, report, pull=pull)


async def carry_out_all(
    steps: Sequence[Step],
    report: Callable[[Step, str], None],
    done: Callable[[Step, RecordedInstance | LbError | None], None],
    *,
    pull: bool = False,
) -> None:
    """Execute steps; `done` gets what carry_out returns or raises, after each. A failure does not stop other steps."""
    hosts: dict[SshAccess | None, list[Step]] = defaultdict(list)
    for step in steps:
        hosts[_way(step)].append(step)

    async def work(ssh: SshAccess | None, there: list[Step]) -> None:
        left = list(there)
        try:
            async with opened(ssh) as host:
                while left:
                    step = left.pop(0)
                    try:
                        result: RecordedInstance | LbError | None
                        result = await _carry_out_on(host, step, partial(report, step), pull=pull)
                    except LbError as error:
                        result = error
                    done(step, result)
        except LbError as error:
            for step in left:
                done(step, error)

    async with asyncio.TaskGroup() as group:
        for ssh, there in hosts.items():
            group.create_task(work(ssh, there))


def _way(step: Step) -> SshAccess | None:
    item = step.instance or step.recorded
    return item.ssh if item else None


async def _carry_out_on(host: Host, step: Step, report: Report, *, pull: bool) -> RecordedInstance | None:
    done_lines: list[str] = []
    result = step.recorded
    if step.action is Action.REMOVE:
        assert step.recorded is not None
        await _remove(host, step.recorded, done_lines)
        result = None
    elif step.action is not Action.NONE:
        assert step.instance is not None
        result = await _have(host, step, step.instance, done_lines, pull=pull)
    report("; ".join(done_lines) or "nothing to do")
    return result


async def _have(host: Host, step: Step, instance: Instance, done_lines: list[str], *, pull: bool) -> RecordedInstance:
    recorded = step.recorded
    work = None
    if instance.mode is Mode.HAPROXY:
        work = ContainerStep(host, instance, recorded, again=step.action is Action.RECREATE, pull=pull)
        await work.prepare()
    if recorded and step.action is Action.RECREATE and _is_elsewhere(recorded, instance):
        await _remove(
            host, recorded, done_lines, keep="" if recorded.mode is not instance.mode else instance.host_config_path
        )
    if work is None:
        return await _write_native(host, instance, done_lines)
    try:
        return await work.carry_out()
    finally:
        done_lines += work.done


def _is_elsewhere(recorded: RecordedInstance, instance: Instance) -> bool:
    """Return whether the new instance does not replace the old one in place: another mode, runtime or file."""
    places = [(each.mode, each.docker_host, each.host_config_path) for each in (recorded, instance)]
    return places[0] != places[1]


async def _write_native(host: Host, instance: Instance, done_lines: list[str]) -> RecordedInstance:
    files, path, text = await host.files(instance), instance.host_config_path, wanted_text(instance)
    if await files.read(path) != text:
        await files.rename(await files.write_draft(path, text, AGENT_USER), path)
        done_lines.append(f"{path} written")
    if instance.post_start:
        await host.run(instance.post_start)
    return RecordedInstance(
        pool=instance.pool,
        name=instance.name,
        status=RUNNING,
        mode=instance.mode,
        host_config_path=path,
        config_text=text,
        ssh=instance.ssh,
        docker_host=instance.docker_host,
    )


async def _remove(host: Host, recorded: RecordedInstance, done_lines: list[str], keep: str = "") -> None:
    """Remove a container and its file (except the file `keep`), if they are lbagent's."""
    if recorded.mode is Mode.HAPROXY:
        runtime = await host.runtime(recorded.docker_host)
        found = await runtime.inspect(container_id=recorded.container_id) if recorded.container_id else None
        if found is None:
            found = await runtime.inspect(name=recorded.name)
            found = found if found and is_ours(found, recorded.pool) else None
        if found is not None:
            await runtime.remove(found["Id"], recorded.name)
            done_lines.append(f"container {found['Id'][:SHORT_ID]} removed")
    path = recorded.host_config_path
    if not path or path == keep:
        return
    files = await host.files(recorded)
    text = await files.read(path)
    if text is None:
        return
    if text != recorded.config_text and not is_ours_file(recorded.mode, text):
        done_lines.append(f"{path} stays: lbagent did not write it")
        return
    gone = await files.remove(path)
    done_lines.append(
        f"{path} removed"
        if gone
        else f"{path} stays: the image has no rm, and this user has no permission to remove it"
    )
