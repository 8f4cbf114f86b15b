"""One container on an opened host: file, container, start, in an order that never leaves HAProxy without a valid file.

A step may be interrupted anywhere: the next one reads the state of file and container and completes it.
"""

from __future__ import annotations

import asyncio
from typing import Any

from lbagent.apilb.hosts.container_runtime import ContainerRuntime, taken
from lbagent.apilb.hosts.container_spec import ContainerSpec, full_name, is_ours, spec_matches
from lbagent.apilb.hosts.haproxy_log import first_alert, last_worker, misses_file, new_lines, refused_reload
from lbagent.apilb.hosts.host import Host
from lbagent.apilb.hosts.host_files import CONTAINER_USER, HostFiles
from lbagent.apilb.instance import Instance
from lbagent.apilb.instance_plan import wanted_text
from lbagent.apilb.plan_records import RUNNING, RecordedInstance
from lbagent.errors import LbError, NotFound

UP_S = 0.6  # time that a container must run until it counts as started
RELOAD_LOOKS, STEP_S = (
    400,
    0.05,
)  # until the worker with the new file runs, or HAProxy refused it (2 s for a bind in use)
LOOKS_A_SIGNAL = 20  # HAProxy drops the signal for a moment after it logged "Loading success"
SHORT_ID = 12  # characters, as in Docker's output


class PartlyDone(LbError):
    """A part was done, and then a step failed; `recorded` is for the state."""

    def __init__(self, text: str, recorded: RecordedInstance) -> None:
        super().__init__(text)
        self.recorded = recorded


class ContainerStep:
    """Brings one container of a host to its desired state; `done` lists the changes for a person."""

    def __init__(
        self, host: Host, instance: Instance, recorded: RecordedInstance | None, *, again: bool, pull: bool
    ) -> None:
        """`again`: an existing container is replaced in any case."""
        self._host, self._instance, self._recorded, self._again, self._pull = host, instance, recorded, again, pull
        self._text = wanted_text(instance)
        self._spec = ContainerSpec(
            pool=instance.pool, name=instance.name, image=instance.image, host_config_path=instance.host_config_path
        )
        self.done: list[str] = []

    async def prepare(self) -> None:
        """Check whether it can be done, before anything is changed. Raises Refused (name in use), NotFound (image), LbError."""
        runtime = await self._host.runtime(self._instance.docker_host)
        found = await self._found(runtime)
        if found is None or not self._is_as_wanted(found):
            await self._have_image(runtime)

    async def carry_out(self) -> RecordedInstance:
        """Execute it, after `prepare`. Raises PartlyDone, LbError."""
        instance = self._instance
        runtime = await self._host.runtime(instance.docker_host)
        files = await self._host.files(instance)
        found = await self._found(runtime)
        if found is not None and not self._is_as_wanted(found):
            await self._write_file(files)
            await runtime.remove(found["Id"], instance.name)
            self.done.append(f"container {found['Id'][:SHORT_ID]} removed")
            found = None
        if found is not None and found["State"]["Status"] == RUNNING:
            if await self._reload(runtime, files, found["Id"]):
                return self._result(found["Id"])
            await self._have_image(runtime)
            await runtime.remove(found["Id"], instance.name)
            self.done.append(f"container {found['Id'][:SHORT_ID]} removed: its mount is of a folder that was deleted")
            found = None
        await self._write_file(files)
        container_id = found["Id"] if found else await runtime.create(self._spec)
        if not found:
            self.done.append(f"container {container_id[:SHORT_ID]} created")
        try:
            await self._start(runtime, container_id, found["State"]["Status"] if found else "")
        except LbError as error:
            raise PartlyDone(str(error), self._result(container_id, status="created")) from None
        try:
            if instance.post_start:
                await self._host.run(instance.post_start)
        except LbError as error:
            raise PartlyDone(str(error), self._result(container_id)) from None
        return self._result(container_id)

    async def _found(self, runtime: ContainerRuntime) -> dict[str, Any] | None:
        """Return the instance's container, if it exists. Raises Refused if another one has its name."""
        instance, known_id = self._instance, self._recorded.container_id if self._recorded else ""
        found = await runtime.inspect(name=instance.name)
        if found is not None and found["Id"] != known_id and not is_ours(found, instance.pool):
            raise taken(self._host.name, instance.name)
        return found

    def _is_as_wanted(self, found: dict[str, Any]) -> bool:
        same_image = full_name(str(found["Config"].get("Image", ""))) == full_name(self._spec.image)
        return not self._again and same_image and spec_matches(found, self._spec)

    async def _have_image(self, runtime: ContainerRuntime) -> None:
        image = self._instance.image
        if await runtime.has_image(image):
            return
        if not self._pull:
            advice = "pull it there, or give --pull"
            raise NotFound(
                f"{self._host.name}: the image {image} is missing, and is pulled only on request: {advice}. Nothing was changed"
            )
        await runtime.pull(image)
        self.done.append(f"image {image} pulled")

    async def _write_file(self, files: HostFiles) -> None:
        path = self._instance.host_config_path
        if await files.read(path) == self._text:
            return
        await files.rename(await files.write_draft(path, self._text, CONTAINER_USER), path)
        self.done.append(f"{path} written")

    async def _reload(self, runtime: ContainerRuntime, files: HostFiles, container_id: str) -> bool:
        """Replace the file of a running HAProxy, after HAProxy has checked it.

        Return False if the container does not have the file: the folder was deleted, and the mount is of the deleted one.
        """
        path, name = self._instance.host_config_path, self._instance.name
        is_new = await files.read(path) != self._text
        checked = await files.write_draft(path, self._text, CONTAINER_USER) if is_new else path
        argv = ["haproxy", "-c", "-f", self._spec.inside(checked)]
        code, output = await runtime.execute(container_id, name, argv)
        is_unseen = bool(code) and misses_file(output, self._spec.inside(checked))
        if is_new:
            draft = checked
            if code and not is_unseen:
                await files.remove(draft)
                reason = first_alert(output)
                raise LbError(
                    f"{self._host.name}: {name}: HAProxy rejects the new {path}: {reason}; the old one stays in force"
                )
            await files.rename(draft, path)
            self.done.append(f"{path} written")
        if is_unseen:
            return False
        await self._have_new_worker(runtime, container_id)
        await self._stays_up(runtime, container_id)
        self.done.append("reloaded")
        return True

    async def _have_new_worker(self, runtime: ContainerRuntime, container_id: str) -> None:
        """Make HAProxy reload its file and wait for a worker that has it. Raises LbError if none starts."""
        path, name = self._instance.host_config_path, self._instance.name
        before = now = await runtime.logs(container_id, name)
        if not last_worker(before):
            return await runtime.reload(container_id, name)  # without stored log lines there is nothing to read
        for look in range(RELOAD_LOOKS):
            if look % LOOKS_A_SIGNAL == 0 and now == before:  # a master that logs anything received it
                await runtime.reload(container_id, name)
            await asyncio.sleep(STEP_S)
            now = await runtime.logs(container_id, name)
            if last_worker(now) != last_worker(before):
                return None
            if refused_reload(new_lines(before, now)):
                break
        reason = first_alert(new_lines(before, now))
        raise LbError(
            f"{self._host.name}: {name}: HAProxy rejects the new {path}: {reason}; its worker serves the old one"
        )

    async def _start(self, runtime: ContainerRuntime, container_id: str, status: str) -> None:
        name = self._instance.name
        if status == "paused":
            await runtime.unpause(container_id, name)
            await self._have_new_worker(runtime, container_id)
        elif status == "restarting":
            await runtime.restart(container_id, name)
        else:
            await runtime.start(container_id, name)
        await self._stays_up(runtime, container_id)
        self.done.append("started")

    async def _stays_up(self, runtime: ContainerRuntime, container_id: str) -> None:
        """Raise LbError if HAProxy ends at once: a bind in use, a server's name without an address."""
        before = await runtime.inspect(container_id=container_id)
        await asyncio.sleep(UP_S)
        after = await runtime.inspect(container_id=container_id)
        if before and after and after["State"]["Status"] == RUNNING and _start_of(before) == _start_of(after):
            return
        name = self._instance.name
        output = first_alert(await runtime.logs(container_id, name)) if after else "it is gone"
        raise LbError(f"{self._host.name}: {name}: HAProxy ends: {output}")

    def _result(self, container_id: str, status: str = RUNNING) -> RecordedInstance:
        instance = self._instance
        return RecordedInstance(
            pool=instance.pool,
            name=instance.name,
            container_id=container_id,
            status=status,
            image=instance.image,
            mode=instance.mode,
            host_config_path=instance.host_config_path,
            config_text=self._text,
            ssh=instance.ssh,
            docker_host=instance.docker_host,
        )


def _start_of(found: dict[str, Any]) -> tuple[object, object]:
    return found["State"].get("StartedAt"), found.get("RestartCount")
