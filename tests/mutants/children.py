"""Work in forked children: what a mutant breaks, hangs or eats up stays there. The result comes back through a file."""

from __future__ import annotations

import contextlib
import os
import pickle
import resource
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

_RUNNING: set[int] = set()  # children of this process
MEMORY_MAX = 4 << 30  # bytes of address space: an endless list ends here
WAIT_S = 0.01
_TIMERS = (signal.SIGALRM, signal.SIGPROF)


@dataclass(frozen=True)
class Ended:
    """How a child ended: with a result, by an exception (its text), or by a signal or the deadline (`timed_out`)."""

    result: Any = None
    error: str = ""
    timed_out: bool = False


@dataclass
class Child:
    """A forked process, leader of a process group of its own."""

    pid: int
    deadline: float
    path: str

    @classmethod
    def start(cls, work: Callable[[], object], seconds: float, *, memory: bool = False) -> Child:
        """Fork and run `work`; the child is killed after these seconds."""
        fd, path = tempfile.mkstemp(prefix="lbagent-mutants-")
        sys.stdout.flush()
        sys.stderr.flush()
        pid = os.fork()
        if pid == 0:
            _work(work, fd, memory=memory)
        os.close(fd)
        _RUNNING.add(pid)
        return cls(pid, time.monotonic() + seconds, path)

    def poll(self) -> Ended | None:
        """Return how the child ended; None while it runs."""
        pid, status = os.waitpid(self.pid, os.WNOHANG)
        late = not pid and time.monotonic() > self.deadline
        if late:
            self.kill()
            _, status = os.waitpid(self.pid, 0)
        if not pid and not late:
            return None
        self.kill()  # what the child left behind
        _RUNNING.discard(self.pid)
        with open(self.path, "rb") as file:
            data = file.read()
        os.unlink(self.path)
        if late or os.WIFSIGNALED(status) or not data:
            return Ended(error=f"status {status}", timed_out=late or -os.waitstatus_to_exitcode(status) in _TIMERS)
        result, error = pickle.loads(data)
        return Ended(result, error)

    def wait(self) -> Ended:
        """Return how the child ended."""
        while (ended := self.poll()) is None:
            time.sleep(WAIT_S)
        return ended

    def kill(self) -> None:
        """End the child and everything it started."""
        _kill(self.pid)


def kill_all() -> None:
    """End every child of this process."""
    for pid in _RUNNING:
        _kill(pid)


def _kill(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)


def _work(work: Callable[[], object], fd: int, *, memory: bool) -> None:
    code = 1
    try:
        os.setsid()
        _RUNNING.clear()
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        if memory:
            resource.setrlimit(resource.RLIMIT_AS, (MEMORY_MAX, MEMORY_MAX))
        silence = os.open(os.devnull, os.O_RDWR)
        for number in (0, 1, 2):
            os.dup2(silence, number)
        try:
            outcome = (work(), "")
        except BaseException:
            outcome = (None, traceback.format_exc())
        with os.fdopen(fd, "wb") as file:
            pickle.dump(outcome, file)
        code = 0
    finally:
        os._exit(code)


class Pool:
    """Runs jobs side by side. Each job gets the number of its slot, which no other one has meanwhile."""

    def __init__(self, slots: int) -> None:
        self._free = list(range(slots))
        self._running: list[tuple[Child, int, Callable[[Ended, int], None]]] = []

    def add(self, start: Callable[[int], Child], done: Callable[[Ended, int], None]) -> None:
        """Start a job as soon as a slot is free; `done` gets how it ended."""
        while not self._free:
            self._reap()
        slot = self._free.pop()
        self._running.append((start(slot), slot, done))

    def finish(self) -> None:
        """Wait for all of them."""
        while self._running:
            self._reap()

    def _reap(self) -> None:
        for running in list(self._running):
            child, slot, done = running
            ended = child.poll()
            if ended is not None:
                self._running.remove(running)
                self._free.append(slot)
                done(ended, slot)
        time.sleep(WAIT_S)
