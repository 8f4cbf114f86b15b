"""The operator as a source: `backend set-state` writes a BackendState that survives restarts of the agent.

One JSON file in the state directory, replaced whole: written, synced, renamed. A change that cannot be written does not happen.
The file has the drains of backends beside their states, so that a drain and the state that it sets begin and end together.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import UTC, datetime

import msgspec
from msgspec import Struct

from lbagent.decoding_errors import DECODING_ERRORS, decoding_problem
from lbagent.errors import LbError, Refused
from lbagent.kernel.private_folder import make_private, replace_private
from lbagent.model.address import L3n4Addr
from lbagent.model.backend import BackendState
from lbagent.model.message import Message
from lbagent.objects.message_log import MessageLog
from lbagent.objects.pod_reference import pod_reference
from lbagent.objects.records import OPERATOR, ObjectChange, ObjectSnapshot, Origin, StateOverride
from lbagent.objects.source import OnChange, initial_changes
from lbagent.sources.manifest import documents
from lbagent.textfile.read_text import UnreadableManifest, read_text

FILE = "backend-states.json"
MAX_STATES = 100_000
_ORIGIN = Origin(source=OPERATOR)


class KeptDrain(Struct, frozen=True, kw_only=True, gc=False, rename="camel"):
    """The drain of a backend as stored in the file. Times are seconds since the epoch."""

    address: str  # ADDRESS:PORT/PROTOCOL
    since: float
    deadline: float
    flows_at_start: int = -1  # -1: not counted yet
    result: str = ""  # drained, timed-out; '' while it continues
    flows_at_end: int = 0
    ended: float = 0.0


class OperatorSource:
    """The states that the operator set: of single backends by address, and of Pods by reference. And the drains of backends."""

    name = OPERATOR
    trusted = listed = True
    remembered = False
    remedy, held, distrust = "", 0, None

    def __init__(self, state_dir: str) -> None:
        """Read the stored states; `problems` reports a file that cannot be read, which the next write renames."""
        self.synced = asyncio.Event()
        self._path = os.path.join(state_dir, FILE)
        self._overrides: dict[str, StateOverride] = {}  # by their subject, which is also their name
        self._drains: dict[str, KeptDrain] = {}  # by address
        self._problems: list[Message] = []
        self._on_change: OnChange | None = None
        self._lock = asyncio.Lock()
        self._broken = False
        self._read()

    def snapshot(self) -> ObjectSnapshot:
        """Return every BackendState."""
        return ObjectSnapshot(backend_states=dict(self._overrides))

    def problems(self) -> Sequence[Message]:
        """Return the problem of the file."""
        return self._problems

    def resume(self) -> None:
        """Do nothing: the file has been read."""

    async def run(self, on_change: OnChange) -> None:
        """Report the stored states; `set_states` reports later changes."""
        self._on_change = on_change
        MessageLog(logging.getLogger(__name__), "saved backend states refused").update(self._problems)
        on_change(initial_changes(self.snapshot()))
        self.synced.set()
        await asyncio.Event().wait()

    @property
    def addresses(self) -> Collection[L3n4Addr]:
        """The single backends for which a state is set."""
        return [each.address for each in self._overrides.values() if each.address is not None]

    @property
    def drains(self) -> Mapping[str, KeptDrain]:
        """The drains of backends by address, also those that have ended."""
        return self._drains

    def has_state(self, subject: str) -> bool:
        """Return whether a state is set for `ADDRESS:PORT/PROTOCOL` or `pod/NAMESPACE/NAME`."""
        return subject in self._overrides

    def state_of(self, address: L3n4Addr) -> BackendState | None:
        """Return the state that the operator set for a single backend."""
        known = self._overrides.get(address.with_protocol())
        return known.state if known else None

    async def set_states(
        self,
        addresses: Iterable[L3n4Addr],
        state: BackendState,
        *,
        pods: Iterable[str] = (),
        backends_of_pods: Iterable[L3n4Addr] = (),
        drains: Iterable[KeptDrain] = (),
    ) -> None:
        """Set and store the state of backends, and begin `drains`: all or none. Raises LbError if it cannot be written.

        ACTIVE is stored, too: it takes precedence over a manifest. `pods` are keys of Pods, with their current and later
        backends; earlier states of single `backends_of_pods` are removed, so that the newer one of the Pod applies. A state that
        is set again keeps its time. Any state except maintenance ends the drains of the backends.
        """
        now = float(int(time.time()))  # whole seconds, as in the file
        addresses, backends_of_pods = list(addresses), list(backends_of_pods)
        given = [StateOverride(each.with_protocol(), each, state, _ORIGIN, created=now) for each in addresses]
        given += [StateOverride(pod_reference(pod), None, state, _ORIGIN, pod=pod, created=now) for pod in pods]
        async with self._lock:
            forgotten = {address.with_protocol() for address in backends_of_pods}
            left = {name: override for name, override in self._overrides.items() if name not in forgotten}
            ended = set() if state is BackendState.MAINTENANCE else {each.name for each in given} | forgotten
            going = {name: drain for name, drain in self._drains.items() if name not in ended}
            await self._store(
                left | {each.name: self._unless_same(each) for each in given},
                going | {drain.address: drain for drain in drains},
            )

    async def update_drains(self, drains: Iterable[KeptDrain], forgotten: Collection[str] = ()) -> None:
        """Store the results of drains, except of those that were cancelled, restarted or prolonged meanwhile. Raises LbError."""
        async with self._lock:
            known = self._drains
            new = {each.address: each for each in drains if _is_same(known.get(each.address), each)}
            left = {name: drain for name, drain in known.items() if name not in forgotten}
            if left | new != known:
                await self._store(self._overrides, left | new)

    def _unless_same(self, new: StateOverride) -> StateOverride:
        old = self._overrides.get(new.name)
        return old if old is not None and old.state is new.state else new

    async def forget(self, addresses: Iterable[L3n4Addr], pods: Iterable[str] = ()) -> list[str]:
        """Remove the states of single backends and of Pods, and their drains; return which were set or drained.

        Raises LbError if it cannot be written.
        """
        asked = {each.with_protocol() for each in addresses} | {pod_reference(pod) for pod in pods}
        async with self._lock:
            gone = [name for name in self._overrides if name in asked]
            drains = [name for name in self._drains if name in asked]
            if gone or drains:
                await self._store(
                    {name: each for name, each in self._overrides.items() if name not in asked},
                    {name: each for name, each in self._drains.items() if name not in asked},
                )
        return [*gone, *(name for name in drains if name not in gone)]

    async def _store(self, overrides: Mapping[str, StateOverride], drains: Mapping[str, KeptDrain]) -> None:
        if max(len(overrides), len(drains)) > MAX_STATES:
            raise Refused(f"more than {MAX_STATES} backend states; nothing was changed")
        try:
            await asyncio.to_thread(self._write, _encode(overrides, drains))
        except OSError as error:
            raise LbError(f"{self._path} cannot be written: {error.strerror}; nothing was changed") from None
        old, self._overrides, self._drains = self._overrides, dict(overrides), dict(drains)
        changes = [
            ObjectChange("BackendState", name, old.get(name), overrides.get(name))
            for name in old.keys() | overrides.keys()
            if old.get(name) != overrides.get(name)
        ]
        if changes and self._on_change:
            self._on_change(changes)

    def _write(self, data: bytes) -> None:
        make_private(os.path.dirname(self._path))
        if self._broken:
            os.replace(self._path, self._path + ".broken")
            self._broken = False
        replace_private(self._path, data)

    def _read(self) -> None:
        if not os.path.lexists(self._path):
            return
        try:
            text = read_text(self._path)
            parsed = documents.parse(text, self._path, self.name)
        except UnreadableManifest as error:
            self._broken = True
            kept = "the states that were set before are unknown; the next set-state puts the file aside"
            self._problems.append(msgspec.structs.replace(error.message, kept=kept))
            return
        self._problems += (*parsed.messages, *parsed.unidentified)
        for _, obj in parsed.objects:
            if isinstance(obj, StateOverride):
                override = StateOverride(obj.subject, obj.address, obj.state, _ORIGIN, pod=obj.pod, created=obj.created)
                self._overrides[override.name] = override
        self._read_drains(text)

    def _read_drains(self, text: str) -> None:
        if text.lstrip()[:1] != "{":
            return  # YAML, written by hand: it has only states
        try:
            found = msgspec.json.decode(text, type=_DrainsOfList).drains
            self._drains = {L3n4Addr.parse(each.address).with_protocol(): each for each in found}
        except DECODING_ERRORS as error:
            problem, kept = f"drains: {decoding_problem(error)}", "no drain continues; the states that drains set stay"
            self._problems.append(Message(problem, kept, file=self._path))


class _DrainsOfList(Struct, gc=False):
    drains: list[KeptDrain] = []


def _is_same(known: KeptDrain | None, drain: KeptDrain) -> bool:
    return known is not None and (known.since, known.deadline) == (drain.since, drain.deadline)


def _encode(overrides: Mapping[str, StateOverride], drains: Mapping[str, KeptDrain]) -> bytes:
    items = [
        {
            "apiVersion": "lbagent.io/v1alpha1",
            "kind": "BackendState",
            "metadata": {"name": name} | ({"creationTimestamp": _text(override.created)} if override.created else {}),
            "spec": {"address" if override.address else "ref": name, "state": override.state.text},
        }
        for name, override in sorted(overrides.items())
    ]
    document: dict[str, object] = {"apiVersion": "v1", "kind": "List", "items": items}
    if drains:
        document["drains"] = [drain for _, drain in sorted(drains.items())]
    return msgspec.json.format(msgspec.json.encode(document)) + b"\n"


def _text(created: float) -> str:
    """Return a time as Kubernetes writes it, `2026-11-21T20:48:46Z`."""
    return datetime.fromtimestamp(created, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
