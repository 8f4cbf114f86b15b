"""The last known status of the agent: a file in the state folder, for `lbagent record dump` and `lbagent status` of a dead agent.

It is replaced each minute if it changed, in a thread, and when the agent ends, also by a defect.
"""

from __future__ import annotations

import asyncio
import logging
import os
import threading
from typing import TYPE_CHECKING, Any

import msgspec

from lbagent.kernel.private_folder import make_private, replace_private
from lbagent.kernel.regular_file import open_regular

if TYPE_CHECKING:
    from collections.abc import Callable

    from lbagent.api.agent_status import Status

FILE = "last-status.json"
PERIOD_S = 60.0
START_PERIOD_S = 2.0  # until the agent is ready
MAX_BYTES = 64 << 20

log = logging.getLogger(__name__)


class LastStatus:
    """Writes the file."""

    def __init__(self, state_dir: str, now: Callable[[], Status]) -> None:
        self._path, self._now = os.path.join(state_dir, FILE), now
        self._writing = threading.Lock()  # at the end of the agent a thread may still write
        self._written = b""
        self._is_failing = False

    async def run(self) -> None:
        """Write the status until this is cancelled, and once more then."""
        try:
            while True:
                status = self._now()
                await asyncio.to_thread(self._write, msgspec.json.encode(status))
                await asyncio.sleep(PERIOD_S if status.ready else START_PERIOD_S)
        finally:
            self._write(msgspec.json.encode(self._now()))

    def _write(self, data: bytes) -> None:
        with self._writing:
            if data == self._written:
                return
            try:
                make_private(os.path.dirname(self._path))
                replace_private(self._path, data)
            except OSError as error:
                if not self._is_failing:
                    facts = {"file": self._path, "error": error.strerror}
                    log.warning("the last status was not written", extra=facts)
                self._is_failing = True
                return
            self._written, self._is_failing = data, False


def last_status(state_dir: str) -> tuple[Any, float]:
    """Return the last known status, as `lbagent status -o json`, and when it was; None if there is none that can be read."""
    try:
        with open_regular(os.path.join(state_dir, FILE)) as file:
            at = os.fstat(file.fileno()).st_mtime
            return msgspec.json.decode(file.read(MAX_BYTES), type=dict[str, Any]), at
    except (OSError, msgspec.DecodeError, RecursionError):
        return None, 0.0
