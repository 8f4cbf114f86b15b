"""The operator as a source: `backend set-state` writes a BackendState that survives restarts of the agent.

One JSON file in the state directory, replaced whole: written, synced, renamed. What cannot be written is not done.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Iterable, Sequence

import msgspec

from lbagent.errors import LbError, Refused
from lbagent.model.address import L3n4Addr
from lbagent.model.backend import BackendState
from lbagent.objects.message_log import MessageLog
from lbagent.objects.records import Message, ObjectChange, ObjectSnapshot, StateOverride
from lbagent.objects.source import OnChange, initial_changes
from lbagent.sources.manifest import documents
from lbagent.sources.manifest.documents import UnreadableManifest

FILE = "backend-states.json"
MAX_STATES = 100_000


class OperatorSource:
    """What the operator said of single backends."""

    name = "operator"
    trusted = True

    def __init__(self, state_dir: str) -> None:
        """Read what was said before; a file that cannot be read is said in `problems` and put aside by the next write."""
        self.synced = asyncio.Event()
        self._path = os.path.join(state_dir, FILE)
        self._states: dict[str, StateOverride] = {}
        self._problems: list[Message] = []
        self._changed: OnChange | None = None
        self._lock = asyncio.Lock()
        self._broken = False
        self._read()

    def snapshot(self) -> ObjectSnapshot:
        """Return every BackendState."""
        return ObjectSnapshot(backend_states=dict(self._states))

    def problems(self) -> Sequence[Message]:
        """Return what is wrong with the file."""
        return self._problems

    async def run(self, changed: OnChange) -> None:
        """Tell what was said before; later changes are told by `set_states`."""
        self._changed = changed
        MessageLog(logging.getLogger(__name__), "remembered states refused").tell(self._problems)
        changed(initial_changes(self.snapshot()))
        self.synced.set()
        await asyncio.Event().wait()

    def state_of(self, address: L3n4Addr) -> BackendState | None:
        """Return what the operator said of a backend."""
        known = self._states.get(address.with_protocol())
        return known.state if known else None

    async def set_states(self, addresses: Iterable[L3n4Addr], state: BackendState) -> None:
        """Say and remember the state of backends: all or none. Raises LbError when it cannot be written.

        ACTIVE is remembered too: it beats what a manifest says.
        """
        async with self._lock:
            told = {
                address.with_protocol(): StateOverride(address.with_protocol(), address, state) for address in addresses
            }
            await self._keep(self._states | told)

    async def forget(self, addresses: Iterable[L3n4Addr]) -> None:
        """Have no opinion on backends any more. Raises LbError when it cannot be written."""
        async with self._lock:
            gone = {address.with_protocol() for address in addresses}
            await self._keep({name: state for name, state in self._states.items() if name not in gone})

    async def _keep(self, states: dict[str, StateOverride]) -> None:
        if len(states) > MAX_STATES:
            raise Refused(f"more than {MAX_STATES} backend states; nothing was changed")
        try:
            await asyncio.to_thread(self._write, _encode(states))
        except OSError as error:
            raise LbError(f"{self._path} cannot be written: {error.strerror}; nothing was changed") from None
        old, self._states = self._states, states
        changes = [
            ObjectChange("BackendState", name, old.get(name), states.get(name))
            for name in old.keys() | states.keys()
            if old.get(name) != states.get(name)
        ]
        if changes and self._changed:
            self._changed(changes)

    def _write(self, data: bytes) -> None:
        folder = os.path.dirname(self._path)
        os.makedirs(folder, mode=0o700, exist_ok=True)
        if self._broken:
            os.replace(self._path, self._path + ".broken")
            self._broken = False
        draft = self._path + ".new"
        handle = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        with open(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(handle)
        os.replace(draft, self._path)
        handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(handle)  # the rename itself
        finally:
            os.close(handle)

    def _read(self) -> None:
        if not os.path.lexists(self._path):
            return
        try:
            parsed = documents.parse(documents.read_text(self._path), self._path)
        except UnreadableManifest as error:
            self._broken = True
            kept = "what the operator said before is not known; the file is put aside by the next set-state"
            self._problems.append(msgspec.structs.replace(error.message, kept=kept))
            return
        self._problems += (*parsed.messages, *parsed.unknown)
        for _, obj in parsed.objects:
            if isinstance(obj, StateOverride):
                name = obj.address.with_protocol()
                self._states[name] = StateOverride(name, obj.address, obj.state)


def _encode(states: dict[str, StateOverride]) -> bytes:
    items = [
        {
            "apiVersion": "lbagent.io/v1alpha1",
            "kind": "BackendState",
            "metadata": {"name": name},
            "spec": {"address": name, "state": state.state.text},
        }
        for name, state in sorted(states.items())
    ]
    return msgspec.json.format(msgspec.json.encode({"apiVersion": "v1", "kind": "List", "items": items})) + b"\n"
