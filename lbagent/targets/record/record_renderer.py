"""The data plane `record` as `--renderer record=FILE` and `lbagent renderers` name it.

The file is appended to: each start begins with a resync. The lines of one change are written together and end with a flush.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from typing import Any

import msgspec

from lbagent.config import Config
from lbagent.errors import ConfigError
from lbagent.sync.target_protocol import Desired, ObjectFacts
from lbagent.targets.data_plane import DataPlane, Feature
from lbagent.targets.plain_plane import PlainPlane
from lbagent.targets.service_calls import FLUSH, Call, ServiceCalls

NAME = "record"
FEATURES: frozenset[Feature] = frozenset()
FILE_MODE = 0o640


class RecordPlane(PlainPlane):
    """Writes the calls that bring a renderer from one State to the next."""

    name = NAME
    features = FEATURES
    needs_facts = True

    def __init__(self, config: Config, path: str) -> None:
        super().__init__(config)
        self._path = path
        self._fd = -1
        self._calls = ServiceCalls()

    async def open(self, require: Callable[[], None]) -> Mapping[str, str]:
        """Open the file. Raises ConfigError."""
        require()
        try:  # a pipe without a reader is an error: the agent would wait for one
            flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NONBLOCK
            self._fd = os.open(self._path, flags, FILE_MODE)
        except OSError as error:
            raise ConfigError(f"--renderer record={self._path}: {error.strerror}") from None
        return {}

    async def write(self, desired: Desired) -> None:
        """Write the calls of a State. After a failure the next calls are a resync. Raises OSError."""
        calls = self._calls.to(desired.state, desired.facts or ObjectFacts())
        try:
            self._append([*calls, FLUSH] if calls else [])
        except OSError:
            self._calls.forget()
            raise
        self.counts.writes += len(calls)

    def close(self) -> None:
        """End the record."""
        if self._fd >= 0:
            with suppress(OSError):
                self._append([{"call": "close", "keep": True}])
            os.close(self._fd)
            self._fd = -1

    def _append(self, calls: Iterable[Call]) -> None:
        """Write whole lines, or nothing. Raises OSError."""
        text = b"".join(_line(call) for call in calls)
        found = os.fstat(self._fd)
        try:
            while text:
                text = text[os.write(self._fd, text) :]
        except OSError:
            if stat.S_ISREG(found.st_mode):
                with suppress(OSError):
                    os.ftruncate(self._fd, found.st_size)
            raise


def _line(call: Mapping[str, Any]) -> bytes:
    return msgspec.json.encode(call) + b"\n"


def make(config: Config, settings: str) -> DataPlane:
    """Return the data plane; `settings` is the path of the file. Raises ConfigError."""
    if not settings:
        raise ConfigError("--renderer record: name the file of the calls, as in record=FILE")
    return RecordPlane(config, settings)


def unavailable() -> str:
    """It needs nothing."""
    return ""
