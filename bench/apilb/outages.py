"""How long a failed server still gets connections, and a recovered one none: the same failures for native mode and HAProxy.

For native mode the clock stops when the maps have the change, for HAProxy when it logs it. Each failing server has its own instance
with a second server that does not fail, so that a count in a map identifies it; HAProxy has one file with all of them.
"""

from __future__ import annotations

import random
import signal
import subprocess
import threading
import time
from typing import Any

from bench.apilb.bench_host import ADDRESS, BenchHost, health_check
from lbagent.maps.kernel_maps import KernelMaps
from lbagent.maps.layout import LB4_KEY, LB_SERVICE
from lbagent.probes.probe_spec import ProbeSpec
from tests.lab.netns import LabError

FAILURES = {"killed": "", "refused": "refused", "black hole": "hole", "500": "500"}
STEADY_PORT, FIRST_PORT, FIRST_BIND = 6443, 6500, 7500
STEP_S = 0.005  # between two reads of the maps
LOOPBACK = bytes((127, 0, 0, 1))
TCP = 6
PATIENCE_S = 10.0  # beyond what fall and rise may take


class Victim:
    """One server: its kind of failure, and the results. `number` is that of its port, its bind and its line in haproxy.cfg."""

    def __init__(self, stage: Outages, number: int, failure: str) -> None:
        self.stage, self.number, self.failure = stage, number, failure
        self.port, self.bind = FIRST_PORT + number, FIRST_BIND + number
        self.process: subprocess.Popen[str] | None = None
        if failure == "killed":
            self._start()

    @property
    def place(self) -> str:
        return f"{ADDRESS}:{self.port}"

    def _start(self) -> None:
        self.process = self.stage.host.servers_process("behaving_servers", [self.place])

    def fail(self) -> None:
        """Fail now."""
        if self.process is not None:
            self.process.send_signal(signal.SIGKILL)
            self.process.wait()
        else:
            self.stage.behave(self.place, FAILURES[self.failure])

    def mend(self) -> None:
        """Recover; return when it serves."""
        if self.process is not None:
            self._start()
        else:
            self.stage.behave(self.place, "200")

    def is_out(self) -> bool:
        """Whether new connections avoid it."""
        value = self.stage.maps.get(
            "lb4_service", LB4_KEY.pack(LOOPBACK, self.bind.to_bytes(2, "big"), 0, TCP, 0, b"\0\0")
        )
        if value is None:
            raise LabError(f"127.0.0.1:{self.bind} is not in the maps")
        return LB_SERVICE.unpack(value)[1] == 1


class Outages:
    """A host, a server that does not fail, and some of each kind that do."""

    def __init__(self, check: ProbeSpec, each: int) -> None:
        """`each`: how many servers fail in each way at once."""
        self.check, self.host = check, BenchHost()
        self._lock = threading.Lock()
        try:
            kinds = [failure for failure in FAILURES for _ in range(each)]
            told = [f"{ADDRESS}:{FIRST_PORT + number}" for number, kind in enumerate(kinds) if kind != "killed"]
            self._servers = self.host.servers_process("behaving_servers", [f"{ADDRESS}:{STEADY_PORT}", *told])
            self.victims = [Victim(self, number, kind) for number, kind in enumerate(kinds)]
            self._start()
        except BaseException:
            self.host.close()
            raise

    def _start(self) -> None:
        check, steady = health_check(self.check), f"{ADDRESS}:{STEADY_PORT}"
        for victim in self.victims:
            self.host.pool(
                f"v{victim.number}", servers=[victim.place, steady], bind=f"127.0.0.1:{victim.bind}", check=check
            )
        self.beside = self.host.haproxy([*(victim.place for victim in self.victims), steady], check=check)
        self.host.agent.start()
        self.host.wait_connected([f"v{victim.number}" for victim in self.victims])
        time.sleep(self.check.fall * self.check.interval)  # checks that failed while all of this started are forgotten
        self.maps = self.host.closing.enter_context(KernelMaps.open(self.host.bpffs, create=False))

    def behave(self, place: str, how: str) -> None:
        """Change a server's behaviour; return when it is in effect."""
        with self._lock:
            assert self._servers.stdin is not None
            assert self._servers.stdout is not None
            self._servers.stdin.write(f"{place} {how}\n")
            self._servers.stdin.flush()
            if self._servers.stdout.readline() != "done\n":
                raise LabError("the servers have ended")

    def wave(self) -> list[dict[str, Any]]:
        """Make every victim fail once, each at its own time, and recover; return seconds of each."""
        out = [{"failure": victim.failure} for victim in self.victims]
        for key, act, is_up in (("out", Victim.fail, False), ("back", Victim.mend, True)):
            threads = [
                threading.Thread(target=self._one, args=(*pair, key, act, is_up))
                for pair in zip(self.victims, out, strict=True)
            ]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        if not all(len(each) == 5 for each in out):
            raise LabError(f"a failure was not noticed in both modes: {out}")
        return out

    def _one(self, victim: Victim, out: dict[str, Any], key: str, act: Any, is_up: bool) -> None:
        time.sleep(random.uniform(0, self.check.interval))
        began = before = time.monotonic()
        act(victim)
        if is_up:  # a process needs a while to start
            began = time.monotonic()
        deadline = (
            began + PATIENCE_S + max(self.check.fall, self.check.rise) * (self.check.interval + self.check.timeout)
        )
        native = theirs = None
        while (native is None or theirs is None) and time.monotonic() < deadline:
            if native is None and victim.is_out() is not is_up:
                native = time.monotonic()
            theirs = theirs or self.beside.changed(victim.number, up=is_up, since=before)
            time.sleep(STEP_S)
        if native is not None and theirs is not None:
            out[f"native {key}"], out[f"HAProxy {key}"] = native - began, theirs - began

    def close(self) -> None:
        """Remove everything."""
        self.host.close()


def measure(check: ProbeSpec, times: int, each: int = 5, say: Any = str) -> list[dict[str, Any]]:
    """Make so many servers fail in each way, `each` at once; return the results of each wave."""
    found: list[dict[str, Any]] = []
    stage = Outages(check, min(times, each))
    try:
        while len(found) < times * len(FAILURES):
            found += stage.wave()
            say(f"  {len(found)} failures")
    finally:
        stage.close()
    return found
