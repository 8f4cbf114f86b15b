"""A target of the sync loop for tests: it writes each State as a whole."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping

from lbagent.model.address import L3n4Addr
from lbagent.model.state import State
from lbagent.sync.backoff import Failure
from lbagent.sync.target_protocol import Desired


class SnapshotTarget(ABC):
    """A target that writes each State as a whole: what its `write` raises is all that can fail. Subclasses give `write`."""

    needs_facts = False

    def __init__(self, name: str) -> None:
        self.name = name
        self.ready = asyncio.Event()
        self.wake = asyncio.Event()
        self.generation = 0
        self.waiting, self.error, self.retains = "", "", False
        self.failing: Mapping[L3n4Addr, Failure] = {}

    @abstractmethod
    async def write(self, state: State) -> None:
        """Put a State in force, in place of the one before. Raises LbError, OSError: it is called again."""

    async def reconcile(self, desired: Desired) -> None:
        """Write the State."""
        await self.write(desired.state)
        self.generation = desired.state.generation
        self.ready.set()

    async def watch(self) -> None:  # noqa: B027 - most targets need none
        """Nothing changes it from outside."""

    def retry_at(self) -> float | None:
        """Leave retries to the runner."""
        return None

    def restored_backends(self) -> Collection[L3n4Addr]:
        """Hold nothing from before."""
        return ()

    def restored_inside_rows(self) -> Collection[L3n4Addr]:
        """Hold nothing from before."""
        return ()
