"""Files on a host by its container runtime, for a user who may use the runtime and may not write as root.

A helper container, NAME-config, has the host's file system; it is created for one operation, started only to remove a file,
and then removed. Docker's API has no rename: the draft gets the file's name as a second name (a hard link in a tar archive), so
the replacement is atomic.
Source: flexkube writes its files through such a container, too.
"""

from __future__ import annotations

import base64
import contextlib
import io
import json
import posixpath
import tarfile
import time
from collections.abc import AsyncIterator
from typing import Any

from lbagent.apilb.hosts.container_runtime import ContainerRuntime, taken
from lbagent.apilb.hosts.container_spec import POOL_LABEL
from lbagent.apilb.hosts.host_files import (
    CONTAINER_USER,
    FILE_MODE,
    FOLDER_MODE,
    MAX_BYTES,
    PARENT_MODE,
    draft_of,
    is_a_folder,
    is_no_folder,
    missing_folders,
)
from lbagent.errors import LbError

HOST_ROOT = "/mnt/host"
GO_FOLDER = 1 << 31  # os.ModeDir of Go, as the API shows modes
REMOVE = "rm"
REMOVAL_TIMEOUT_S, REMOVAL_POLL_INTERVAL_S = 20.0, 0.05  # until `rm` has ended
ENDED = ("exited", "stopped")


class RuntimeFiles:
    """See HostFiles."""

    def __init__(self, runtime: ContainerRuntime, pool: str, name: str, image: str) -> None:
        self._runtime, self._pool, self._name, self._image = runtime, pool, f"{name}-config", image

    async def read(self, path: str) -> str | None:
        """See HostFiles."""
        async with self._helper() as helper:
            mode = await self._mode(helper, path)
            if mode is None:
                return None
            if mode & GO_FOLDER:
                raise is_a_folder(self._runtime.host, path)
            return await self._runtime.call(
                path, lambda client: _unpack(client.get_archive(helper, HOST_ROOT + path)[0])
            )

    async def write_draft(self, path: str, text: str, owner: int) -> str:
        """See HostFiles."""
        host, draft = self._runtime.host, draft_of(path)
        async with self._helper() as helper:
            mode = await self._mode(helper, path)
            if mode is not None and mode & GO_FOLDER:
                raise is_a_folder(host, path)
            at, entries = "/", []
            for folder in missing_folders(path):
                mode = await self._mode(helper, folder)
                if mode is not None and not mode & GO_FOLDER:
                    raise is_no_folder(host, folder)
                if mode is not None:
                    at = folder
                    continue
                last = folder == posixpath.dirname(path)
                entries.append(
                    _entry(
                        posixpath.relpath(folder, at),
                        tarfile.DIRTYPE,
                        *((FOLDER_MODE, owner) if last else (PARENT_MODE, 0)),
                    )
                )
            data = text.encode()
            entry = _entry(posixpath.relpath(draft, at), tarfile.REGTYPE, FILE_MODE, owner)
            entry.size = len(data)
            await self._put(helper, at, path, [*entries, entry], data)
        return draft

    async def rename(self, draft: str, path: str) -> None:
        """See HostFiles."""
        folder, name = posixpath.split(path)
        entry = _entry(name, tarfile.LNKTYPE, FILE_MODE, CONTAINER_USER)  # a link's owner is set as well
        entry.linkname = posixpath.basename(draft)
        async with self._helper() as helper:
            await self._put(helper, folder, path, [entry], b"")

    async def remove(self, path: str) -> bool:
        """See HostFiles. An image without `rm` leaves the file."""
        argv = [REMOVE, "-f", HOST_ROOT + path, HOST_ROOT + draft_of(path)]
        async with self._helper(argv) as helper:

            def work(client: Any) -> int:
                client.start(helper)
                return _exit_code(client, helper)

            try:
                return await self._runtime.call(path, work) == 0
            except LbError:
                return False

    async def _mode(self, helper: str, path: str) -> int | None:
        """Return the mode of a file, as Go has it; None where there is none."""

        def ask(client: Any) -> int | None:
            url = client._url("/containers/{0}/archive", helper)  # noqa: SLF001  # the library has no HEAD, and GET sends whole folders
            answer = client.head(url, params={"path": HOST_ROOT + path}, timeout=client.timeout)
            if answer.status_code == 404:
                return None
            answer.raise_for_status()
            return int(json.loads(base64.b64decode(answer.headers["X-Docker-Container-Path-Stat"]))["mode"])

        return await self._runtime.call(path, ask)

    async def _put(self, helper: str, folder: str, path: str, entries: list[tarfile.TarInfo], data: bytes) -> None:
        """Unpack these entries in a folder; the data belongs to the last one."""
        buffer = io.BytesIO()
        with tarfile.open(fileobj=buffer, mode="w") as archive:
            for entry in entries:
                archive.addfile(entry, io.BytesIO(data))
        try:
            await self._runtime.call(
                path, lambda client: client.put_archive(helper, HOST_ROOT + folder, buffer.getvalue())
            )
        except LbError as error:
            error.args = (f"{error}; the file is as it was",)
            raise

    @contextlib.asynccontextmanager
    async def _helper(self, argv: list[str] | None = None) -> AsyncIterator[str]:
        left = await self._runtime.inspect(name=self._name)
        if left is not None:
            if POOL_LABEL not in (left["Config"].get("Labels") or {}):
                raise taken(self._runtime.host, self._name)
            await self._runtime.remove(left["Id"], self._name)  # left by a killed process

        helper = await self._runtime.create_helper(
            self._name, self._pool, self._image, argv or ["haproxy", "-v"], HOST_ROOT
        )
        try:
            yield helper
        finally:
            await self._runtime.call(self._name, lambda client: client.remove_container(helper, force=True))


def _entry(name: str, kind: bytes, mode: int, owner: int) -> tarfile.TarInfo:
    entry = tarfile.TarInfo(name)
    entry.type, entry.mode, entry.uid, entry.gid, entry.mtime = kind, mode, owner, owner, int(time.time())
    return entry


def _unpack(parts: Any) -> str:
    with tarfile.open(fileobj=io.BytesIO(b"".join(parts))) as archive:
        file = archive.extractfile(archive.next() or "")
        return file.read(MAX_BYTES).decode(errors="replace") if file else ""


def _exit_code(client: Any, container: str) -> int:
    """Return a container's exit code; -1 if it does not end. It is polled: podman's `wait` hangs for one that ended before."""
    due = time.monotonic() + REMOVAL_TIMEOUT_S
    while time.monotonic() < due:
        state = client.inspect_container(container)["State"]
        if state["Status"] in ENDED:
            return int(state["ExitCode"])
        time.sleep(REMOVAL_POLL_INTERVAL_S)
    return -1
