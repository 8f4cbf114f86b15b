"""HAProxy as in a container of `lbagent apilb`: a master with workers, which reloads its file on SIGUSR2."""

from __future__ import annotations

import re
import signal
import time
from collections.abc import Callable

from bench.apilb.bench_host import BenchHost, Haproxy
from tests.lab.netns import LabError, wait_for

REFUSED = "Loading failure!"
FORKED = re.compile(r"New worker \((\d+)\) forked")
STOPPED = re.compile(r"\((\d+)\) : Proxy kube-apiserver stopped")
PROXIES = 2  # the frontend and the backend
PATIENCE_S = 60.0
SIGNAL_AGAIN_S = 2.0  # a master that has just started may lose a signal; apply repeats it too


class ReloadedHaproxy(Haproxy):
    """A HAProxy whose file changes."""

    words = ("-W",)

    def __init__(self, host: BenchHost, config: str) -> None:
        self.workers: list[str] = []
        self.stopped: list[str] = []  # once for each proxy
        self.refusals = 0
        super().__init__(host, config)
        wait_for(lambda: self.workers, "HAProxy's worker", PATIENCE_S)

    def listen(self, line: str) -> None:
        super().listen(line)
        if found := FORKED.search(line):
            self.workers.append(found[1])
        if found := STOPPED.search(line):
            self.stopped.append(found[1])
        self.refusals += REFUSED in line

    def write(self, config: str) -> None:
        """Replace the file as apply does: whole, by rename."""
        draft = self.path.with_suffix(".new")
        draft.write_text(config)
        draft.rename(self.path)

    def reload(self) -> None:
        """Make it reload its file; return when a new worker has it, and no former one accepts connections."""
        known = len(self.workers)
        self._signal(lambda: len(self.workers) > known)
        former = self.workers[:-1]
        wait_for(
            lambda: all(self.stopped.count(each) >= PROXIES for each in former), "former workers without a bind", PATIENCE_S
        )  # fmt: skip

    def refuse(self) -> None:
        """Make it reload an invalid file; return when it has reported it."""
        known, workers = self.refusals, len(self.workers)
        self._signal(lambda: self.refusals > known)
        if len(self.workers) != workers:
            raise LabError("HAProxy takes a file that is none")

    def _signal(self, heard: Callable[[], bool]) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline:
            self.process.send_signal(signal.SIGUSR2)
            again = time.monotonic() + SIGNAL_AGAIN_S
            while time.monotonic() < again:
                if heard():
                    return
                time.sleep(0.01)
        raise LabError("HAProxy did not reload")
