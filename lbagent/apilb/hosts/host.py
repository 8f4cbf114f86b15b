"""One host during a session: its files, its container runtime, commands. The interface is the same for this host and for ssh."""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import os
from collections.abc import AsyncIterator, Sequence

from lbagent.apilb.hosts.container_runtime import ContainerRuntime, socket_path
from lbagent.apilb.hosts.host_files import HostFiles, LocalFiles
from lbagent.apilb.hosts.runtime_files import RuntimeFiles
from lbagent.apilb.hosts.ssh_connection import SshHost, connected
from lbagent.apilb.hosts.ssh_files import SshFiles
from lbagent.apilb.instance import Instance, Mode, SshAccess, host_text
from lbagent.apilb.plan_records import RecordedInstance
from lbagent.errors import ConfigError, LbError

HOOK_S = 120.0  # timeout of a hook
ROOT = "root"


class Host:
    """A host during a session."""

    def __init__(self, ssh: SshAccess | None, closing: contextlib.AsyncExitStack, reached: SshHost | None) -> None:
        self.name = host_text(ssh)
        self._ssh, self._closing, self._reached = ssh, closing, reached
        self._runtimes: dict[str, ContainerRuntime] = {}
        self._own_files: HostFiles | None = None

    async def runtime(self, docker_host: str) -> ContainerRuntime:
        """Return a runtime of this host that has answered. Raises HostUnreachable, ConfigError."""
        if docker_host not in self._runtimes:
            need("docker")
            path = socket_path(docker_host, self.name)
            if self._reached is not None:
                path = await self._closing.enter_async_context(self._reached.forwarded(path))
            runtime = ContainerRuntime(self.name, docker_host, path)
            self._closing.push_async_callback(runtime.close)
            await runtime.open()
            self._runtimes[docker_host] = runtime
        return self._runtimes[docker_host]

    async def files(self, item: Instance | RecordedInstance) -> HostFiles:
        """Return the host's files.

        Only root may change a file's owner to the container's user: for other users the container runtime writes the files.
        """
        is_root = self._ssh.user == ROOT if self._ssh else os.geteuid() == 0
        if is_root or item.mode is Mode.NATIVE:
            return await self._files_of_user()
        return RuntimeFiles(await self.runtime(item.docker_host), item.pool, item.name, item.image)

    async def _files_of_user(self) -> HostFiles:
        if self._own_files is None:
            if self._reached is None:
                self._own_files = LocalFiles()
            else:
                self._own_files = SshFiles(self.name, await self._closing.enter_async_context(self._reached.sftp()))
        return self._own_files

    async def run(self, argv: Sequence[str]) -> None:
        """Run a hook on the host, without a shell. Raises LbError with the end of its output if it fails."""
        if self._reached is not None:
            code, output = await self._reached.run(argv, HOOK_S)
        else:
            code, output = await _run_here(argv)
        if code:
            last = output.strip().splitlines()[-1:] or ["it printed nothing"]
            raise LbError(f"{self.name}: postStart: {argv[0]} ended with {code}: {last[0][:300]}")


def need(package: str) -> None:
    """Import a package that only access to hosts needs. Raises ConfigError if it is not installed."""
    try:
        importlib.import_module(package)
    except ModuleNotFoundError:
        raise ConfigError(
            f"the Python package {package} is needed and not installed: pip install 'lbagent[apilb]'"
        ) from None


@contextlib.asynccontextmanager
async def opened(ssh: SshAccess | None) -> AsyncIterator[Host]:
    """Open a session with a host. Raises HostUnreachable, Refused (host key), ConfigError."""
    if ssh:
        need("asyncssh")
    async with contextlib.AsyncExitStack() as closing:
        reached = await closing.enter_async_context(connected(ssh)) if ssh else None
        yield Host(ssh, closing, reached)


async def _run_here(argv: Sequence[str]) -> tuple[int, str]:
    try:
        process = await asyncio.create_subprocess_exec(
            *argv, stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
        )
    except OSError as error:
        raise LbError(f"direct: postStart: {argv[0]}: {error.strerror}") from None
    try:
        async with asyncio.timeout(HOOK_S):
            output, _ = await process.communicate()
    except TimeoutError:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()
        raise LbError(f"direct: postStart: {argv[0]} did not end within {HOOK_S:g} s") from None
    return process.returncode or 0, output.decode(errors="replace")
