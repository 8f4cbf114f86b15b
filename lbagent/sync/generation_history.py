"""What each generation changed, and what caused it: the last 1,000, kept over restarts of the agent.

One file of JSON lines in the state folder. A generation is appended, so its cost does not grow with the file; a thread writes,
without fsync, so no disk delays the loop. A file with twice the wanted lines is replaced whole by its newest ones. A power loss may
take the last lines; a line that is damaged is left out. A file that cannot be written is one sentence in the log: the history
continues in memory, and is written as soon as that is possible.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import UTC, datetime
from operator import is_not
from typing import Protocol

import msgspec
from msgspec import Struct

from lbagent.kernel.private_folder import make_private, replace_private
from lbagent.kernel.regular_file import open_regular
from lbagent.model.service import SVC
from lbagent.model.state import State, common_prefix_and_suffix
from lbagent.sync.change_causes import ChangeCauses

FILE = "history.jsonl"
MAX_GENERATIONS = 1000
MAX_FRONTENDS = 16  # that a line names; `added`, `changed` and `removed` count all
MAX_BYTES = 16 << 20  # of a file that is read; the newest lines of a larger one
MIN_PAUSE_S = 0.2  # between two writes
RETRY_DELAY_S = 10.0  # after a failed one
NO_CHANGE = "no object changed: a retry, or settings of the data plane"

log = logging.getLogger(__name__)


class PastGeneration(Struct, frozen=True, kw_only=True, gc=False):
    """One State that was put in force. The fields are those of `lbagent history`."""

    generation: int
    time: str  # when it was in force, as 2026-11-21T20:48:46.123Z
    cause: str
    added: int  # frontends; wildcard rows are not counted
    changed: int
    removed: int
    writes: int  # entries written or removed (bpf), transactions (nftables)
    duration_ms: float  # of the pass that put it in force
    frontends: list[str]  # ADDRESS:PORT/PROTOCOL of the first MAX_FRONTENDS of them


class _Counts(Protocol):
    @property
    def writes(self) -> int:
        """Entries written or removed since the start."""


class ServedStates(Protocol):
    """What is in force: of one data plane, or of all that translate packets."""

    @property
    def generation(self) -> int:
        """Counter of the States that were put in force."""

    @property
    def state(self) -> State:
        """The State in force."""

    @property
    def counts(self) -> _Counts:
        """What was written."""


class GenerationHistory:
    """The newest generations, in memory and in the file."""

    def __init__(self, state_dir: str, causes: ChangeCauses) -> None:
        """Read what earlier agents left."""
        self.path = os.path.join(state_dir, FILE)
        self._causes = causes
        self._kept: deque[PastGeneration] = deque(maxlen=MAX_GENERATIONS)
        self._unwritten: list[PastGeneration] = []
        self._lines = 0  # of the file
        self._replaces = False  # the file is written whole next: it is damaged, or too long
        self._failure = ""
        self._writing = threading.Lock()
        self._wake = asyncio.Event()
        self._number, self._state, self._writes = 0, State(), 0  # of the last pass
        self._read()

    def newest(self, count: int = 0) -> list[PastGeneration]:
        """Return so many generations, the newest first; 0: all."""
        return list(itertools.islice(reversed(self._kept), count or None))

    def follow(self, served: ServedStates) -> Callable[[int, float], None]:
        """Return what a runner calls after each pass: with the loop's generation and the seconds of the pass."""
        last = 0  # generation of the loop that this runner had in force

        def in_force(generation: int, duration_s: float) -> None:
            nonlocal last
            cause, last = self._causes.between(last, generation), generation
            self._in_force(served, cause or NO_CHANGE, duration_s)

        return in_force

    def _in_force(self, served: ServedStates, cause: str, duration_s: float) -> None:
        """Add a generation where a pass made one."""
        before, writes = self._state, served.counts.writes - self._writes
        self._writes += writes
        if served.generation == self._number:
            return
        self._number, self._state = served.generation, served.state
        added, changed, removed = compared(before, self._state)
        generation = PastGeneration(
            generation=self._number,
            time=_text(time.time()),
            cause=cause,
            added=len(added),
            changed=len(changed),
            removed=len(removed),
            writes=writes,
            duration_ms=round(1000 * duration_s, 3),
            frontends=_first_frontends(itertools.chain(added, changed, removed)),
        )
        self._kept.append(generation)
        if not self._failure:  # else the next write replaces the file by what is kept
            self._unwritten.append(generation)
        self._wake.set()

    # --- the file ---

    async def run(self) -> None:
        """Write each generation, and the last ones when this is cancelled."""
        try:
            while True:
                await self._wake.wait()
                self._wake.clear()
                await asyncio.to_thread(self._write, *self._take())
                if self._failure:
                    self._wake.set()
                await asyncio.sleep(RETRY_DELAY_S if self._failure else MIN_PAUSE_S)
        finally:
            if self._unwritten or self._failure:
                self._write(*self._take())

    def _take(self) -> tuple[list[PastGeneration], list[PastGeneration]]:
        """Return what is not in the file yet, and all."""
        new = list(self._unwritten)
        self._unwritten.clear()
        return new, list(self._kept)

    def _write(self, new: Sequence[PastGeneration], kept: Sequence[PastGeneration]) -> None:
        """Append `new`, or replace the file by `kept`. What fails is logged once; the next call replaces the file."""
        with self._writing:  # at the end of the agent a thread may still write
            replaces, self._replaces = self._replaces or self._lines + len(new) > 2 * MAX_GENERATIONS, True
            try:
                make_private(os.path.dirname(self.path))
                if replaces:
                    replace_private(self.path, _encode(kept))
                else:
                    _append(self.path, _encode(new))
            except OSError as error:
                if not self._failure:
                    facts = {"file": self.path, "error": error.strerror, "kept": "the history continues in memory"}
                    log.warning("the history was not written", extra=facts)
                self._failure = error.strerror or str(error)
                return
            self._lines, self._replaces = len(kept) if replaces else self._lines + len(new), False
            if self._failure:
                log.info("the history is written again", extra={"file": self.path})
                self._failure = ""

    def _read(self) -> None:
        """Take over what earlier agents left; a line that is no generation is left out."""
        try:
            with open_regular(self.path) as file:
                size = os.fstat(file.fileno()).st_size
                file.seek(max(0, size - MAX_BYTES))
                data = file.read(MAX_BYTES)
        except FileNotFoundError:
            return
        except OSError as error:
            log.warning("the history of earlier agents is unknown", extra={"file": self.path, "error": error.strerror})
            self._replaces = not isinstance(error, PermissionError)
            return
        lines = data.split(b"\n")
        damaged = 0
        for line in lines:
            if line:
                try:
                    self._kept.append(_DECODER.decode(line))
                    self._lines += 1
                except (msgspec.DecodeError, RecursionError):
                    damaged += 1
        if damaged or lines[-1]:
            self._replaces = True
        if damaged:
            log.warning("lines of the history are damaged", extra={"file": self.path, "lines": damaged})


_DECODER = msgspec.json.Decoder(PastGeneration)


def _encode(generations: Sequence[PastGeneration]) -> bytes:
    return b"".join(msgspec.json.encode(each) + b"\n" for each in generations)


def _append(path: str, data: bytes) -> None:
    """Append to a file of mode 0600, and to no link. Raises OSError."""
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    handle = os.open(path, flags, 0o600)
    with open(handle, "wb", buffering=0) as file:
        if file.write(data) != len(data):
            raise OSError(28, os.strerror(28), path)


def _text(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def compared(old: State, new: State) -> tuple[list[SVC], list[SVC], list[SVC]]:
    """Return the frontends that were added, changed and removed; wildcard rows are left out.

    Without a step of Python for each frontend that is the same object in both.
    """
    prefix, suffix = common_prefix_and_suffix(old.services, new.services, new.delta)
    was, now = (state.services[prefix : len(state.services) - suffix] for state in (old, new))
    if len(was) == len(now):
        differ = list(map(is_not, was, now))
        was, now = tuple(itertools.compress(was, differ)), tuple(itertools.compress(now, differ))
    else:
        same = set(map(id, was)).intersection(map(id, now))
        was, now = tuple(_without(was, same)), tuple(_without(now, same))
    before = {svc.frontend: svc for svc in was if not svc.wildcard}
    after = {svc.frontend: svc for svc in now if not svc.wildcard}
    added = [svc for frontend, svc in after.items() if frontend not in before]
    changed = [svc for frontend, svc in after.items() if frontend in before and before[frontend] != svc]
    removed = [svc for frontend, svc in before.items() if frontend not in after]
    return added, changed, removed


def _first_frontends(services: Iterable[SVC]) -> list[str]:
    """Return the first MAX_FRONTENDS frontends as text; of the thousands of a start no other becomes text."""
    found: dict[str, None] = {}
    for svc in services:
        found.setdefault(svc.frontend.with_protocol())
        if len(found) == MAX_FRONTENDS:
            break
    return list(found)


def _without(services: Sequence[SVC], same: set[int]) -> Iterator[SVC]:
    return (svc for svc in services if id(svc) not in same)
