"""The renderer `record` as `--renderer record=FILE` and `lbagent renderers` name it.

The file is appended to: each start begins with a resync. The lines of one change are written together and end with a flush.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any

import msgspec

from lbagent.errors import ConfigError
from lbagent.render import Difference, Interfaces, IPAddresses, ResolvedService, ResyncEventData
from lbagent.render.service_calls import (
    AddService,
    Call,
    DeleteService,
    Flush,
    Resync,
    UpdateLocalBackendIfs,
    UpdateLocalFrontendIfs,
    UpdateNodePortServices,
    UpdateService,
)
from lbagent.targets.data_plane import Feature

NAME = "record"
FEATURES: frozenset[Feature] = frozenset()
FILE_MODE = 0o640


class RecordRenderer:
    """Writes each call. It balances no packets; what was called last is what it holds."""

    def __init__(self, path: str) -> None:
        """Open the file. Raises ConfigError."""
        try:  # a pipe without a reader is an error: the agent would wait for one
            flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NONBLOCK
            self._fd = os.open(path, flags, FILE_MODE)
        except OSError as error:
            raise ConfigError(f"--renderer record={path}: {error.strerror}") from None
        self._calls: list[Call] = []  # since the last flush

    async def add_service(self, service: ResolvedService) -> None:
        """Record the call."""
        self._calls.append(AddService(service))

    async def update_service(
        self, old: ResolvedService, new: ResolvedService, others: Sequence[ResolvedService]
    ) -> None:
        """Record the call."""
        self._calls.append(UpdateService(old, new, others))

    async def delete_service(self, service: ResolvedService, others: Sequence[ResolvedService]) -> None:
        """Record the call."""
        self._calls.append(DeleteService(service, others))

    async def update_node_port_services(self, node_ips: IPAddresses, services: Sequence[ResolvedService]) -> None:
        """Record the call."""
        self._calls.append(UpdateNodePortServices(node_ips, services))

    async def update_local_frontend_ifs(self, old: Interfaces, new: Interfaces) -> None:
        """Record the call."""
        self._calls.append(UpdateLocalFrontendIfs(old, new))

    async def update_local_backend_ifs(self, old: Interfaces, new: Interfaces) -> None:
        """Record the call."""
        self._calls.append(UpdateLocalBackendIfs(old, new))

    async def resync(self, snapshot: ResyncEventData) -> None:
        """Record the call; calls without a flush before it are dropped."""
        self._calls = [Resync(snapshot)]

    async def flush(self) -> None:
        """Write the calls since the last flush. Raises OSError; then none of them is written."""
        calls, self._calls = self._calls, []
        self._append(call.to_json() for call in (*calls, Flush()))

    async def dump(self) -> list[str]:
        """Hold nothing: what was called is in the file."""
        return []

    async def verify(self, snapshot: ResyncEventData) -> list[Difference]:
        """Nothing can differ."""
        del snapshot
        return []

    def capabilities(self) -> frozenset[str]:
        """It only records."""
        return frozenset(FEATURES)

    async def close(self, keep: bool) -> None:
        """End the record."""
        if self._fd >= 0:
            with suppress(OSError):
                self._append([{"call": "close", "keep": keep}])
            os.close(self._fd)
            self._fd = -1

    def _append(self, calls: Iterable[Mapping[str, Any]]) -> None:
        """Write whole lines, or nothing. Raises OSError."""
        text = b"".join(msgspec.json.encode(call) + b"\n" for call in calls)
        found = os.fstat(self._fd)
        try:
            while text:
                text = text[os.write(self._fd, text) :]
        except OSError:
            if stat.S_ISREG(found.st_mode):
                with suppress(OSError):
                    os.ftruncate(self._fd, found.st_size)
            raise


def factory(settings: Mapping[str, str]) -> RecordRenderer:
    """Return the renderer; `file` is the path of the record. Raises ConfigError."""
    if not settings.get("file"):
        raise ConfigError("--renderer record: name the file of the calls, as in record=FILE")
    return RecordRenderer(settings["file"])


def unavailable() -> str:
    """It needs nothing."""
    return ""
