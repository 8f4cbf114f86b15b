"""Decides which deletions wait for a confirmation: a server restored from an old backup lists few objects, like after a deletion.

Only objects that are missing in a list wait; a deletion in a watch counts at once.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Collection

import msgspec

from lbagent.decoding_errors import DECODING_ERRORS
from lbagent.kernel.private_folder import make_private
from lbagent.kernel.regular_file import read_regular

MIN_OBJECTS = 20  # with fewer, a list without most of them is normal
FILE = "kube-services.json"
DELAY_S = 5.0  # delay between a change of the names and the write


def needs_confirmation(known: int, gone: int, max_percent: int) -> bool:
    """Return whether so many deletions at once wait for the operator.

    An empty list is none in any cluster (each has default/kubernetes), so it waits whatever the number; 100 % never waits.
    """
    if not gone or max_percent >= 100:
        return False
    return gone == known or (known >= MIN_OBJECTS and gone * 100 > known * max_percent)


class ServiceNames:
    """The keys of the last Services, in a file: so the first list after a restart is compared, too."""

    def __init__(self, state_dir: str, keys: Callable[[], Collection[str]]) -> None:
        """`state_dir` '': nothing is stored; `keys` returns the current keys."""
        self._path = os.path.join(state_dir, FILE) if state_dir else ""
        self._keys = keys
        self._changed = asyncio.Event()

    def recall(self) -> frozenset[str]:
        """Return the keys of an earlier agent; none if they cannot be read."""
        try:
            return frozenset(msgspec.json.decode(read_regular(self._path), type=list[str]))
        except (OSError, *DECODING_ERRORS):
            return frozenset()

    def note(self) -> None:
        """Record that the keys changed: they are written a moment later."""
        if self._path:
            self._changed.set()

    async def run(self) -> None:
        """Write the keys after each change, until cancelled."""
        while True:
            await self._changed.wait()
            await asyncio.sleep(DELAY_S)
            self._changed.clear()
            await asyncio.to_thread(self._write, msgspec.json.encode(sorted(self._keys())))

    def _write(self, data: bytes) -> None:
        """Replace the whole file. A failed write is ignored: `status` reports a folder that is not writable."""
        try:
            make_private(os.path.dirname(self._path))
            draft = self._path + ".new"
            with open(draft, "wb") as file:
                file.write(data)
            os.replace(draft, self._path)
        except OSError:
            return
