"""Which Service had each frontend, over a restart of the agent: a JSON file in the state folder.

It lists the frontends of Services without a creationTimestamp alone: who has any other frontend follows from the objects
(resolve/ownership.py). It is replaced whole soon after a pass that changed it, and at the end of the agent.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import os
import threading
import time
from collections.abc import Mapping
from hashlib import blake2b

import msgspec

from lbagent.defaults import FRONTEND_OWNERS_FILE
from lbagent.kernel.private_folder import make_private, replace_private
from lbagent.model.address import L3n4Addr
from lbagent.resolve.ownership import OwnedFrontends, OwnerOf
from lbagent.sync.loop import SyncLoop

FILE = FRONTEND_OWNERS_FILE
MAX_BYTES = 256 << 20
OWNERS_RETRY_DELAY_S = 10.0
MAX_SHARE = 0.05  # of the time at most is spent on writing
MIN_PAUSE_S = 0.5

log = logging.getLogger(__name__)


class _File(msgspec.Struct):
    owners: dict[str, list[str]]  # key of a Service -> ADDRESS:PORT/PROTOCOL


class FrontendOwners:
    """Reads the file at the start and writes it when it changes. `failure` says why it cannot be written, '' when it can."""

    def __init__(self, state_dir: str) -> None:
        self.path = os.path.join(state_dir, FILE)
        self.failure = ""
        self._changed = asyncio.Event()
        self._written = b""  # digest of what the file holds
        self._writing = threading.Lock()  # at the end of the agent a thread may still be at it
        self._numbers = itertools.count(1)
        self._last_number = 0  # of the newest owners that were written, or are being written

    def read(self) -> OwnerOf:
        """Return the owners that an earlier agent left; a file that cannot be read counts as absent, with a warning."""
        owners: dict[str, str] = {}
        try:
            with open(self.path, "rb") as file:
                data = file.read(MAX_BYTES)
            for service, frontends in msgspec.json.decode(data, type=_File).owners.items():
                owners.update(dict.fromkeys(frontends, service))
            self._written = _digest(data)
        except FileNotFoundError:
            self._written = _digest(_encode({}))
        except (OSError, msgspec.DecodeError) as error:
            kept = "of contested frontends without a creationTimestamp namespace/name decides"
            log.warning(
                "the owners of frontends are unknown", extra={"file": self.path, "error": str(error), "kept": kept}
            )

        def owner_of(frontend: L3n4Addr) -> str | None:
            return owners.get(frontend.with_protocol())

        return owner_of

    def changed(self) -> None:
        """Take note that frontends have changed hands."""
        self._changed.set()

    async def run(self, loop: SyncLoop) -> None:
        """Write each change, and a last time when this is cancelled."""
        try:
            while True:
                await self._changed.wait()
                self._changed.clear()
                owned, began = loop.owned_frontends(), time.monotonic()
                await asyncio.to_thread(self._write, owned, next(self._numbers))
                if self.failure:
                    self._changed.set()
                await asyncio.sleep(OWNERS_RETRY_DELAY_S if self.failure else self._pause_s(time.monotonic() - began))
        finally:
            if self._changed.is_set():
                self._write(loop.owned_frontends(), next(self._numbers))

    @staticmethod
    def _pause_s(duration_s: float) -> float:
        return max(MIN_PAUSE_S, duration_s / MAX_SHARE)

    def _write(self, owned: OwnedFrontends, number: int) -> None:
        with self._writing:
            if number < self._last_number:
                return
            self._last_number = number
            data = _encode(owned.by_service())
            if (digest := _digest(data)) == self._written:
                self.failure = ""
                return
            try:
                make_private(os.path.dirname(self.path))
                replace_private(self.path, data)
            except OSError as error:
                if not self.failure:
                    facts = {"file": self.path, "error": error.strerror}
                    log.warning("the owners of frontends were not written", extra=facts)
                self.failure = f"{self.path} cannot be written: {error.strerror}"
                return
            self._written, self.failure = digest, ""


def _encode(owners: Mapping[str, list[str]]) -> bytes:
    return msgspec.json.encode(_File(dict(owners)), order="sorted")


def _digest(data: bytes) -> bytes:
    return blake2b(data, digest_size=16).digest()
