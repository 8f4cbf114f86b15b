"""A host with the agent in native mode, and Debian's HAProxy with the file of `lbagent apilb render` for the same pool."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from lbagent.probes.probe_spec import ProbeSpec
from tests.lab.agent import program
from tests.lab.api_hosts import ApiHosts, ipv4
from tests.lab.debian_packages import HAPROXY, Unpacked, unpacked
from tests.lab.netns import LabError, run, wait_for
from tests.lab.topology import ROOT, end

ADDRESS = ipv4("a")  # of the servers, unless a row sets another one; each has its own port
NATIVE_PORT, HAPROXY_PORT = 7443, 8443
MEBIBYTE = 1 << 20
_CHANGED = re.compile(r"Server kube-apiserver/(\d+) is (UP|DOWN)")


def health_check(check: ProbeSpec) -> dict[str, Any]:
    """Return a ProbeSpec in the form of pool files."""
    times = {key: f"{round(1000 * getattr(check, key))}ms" for key in ("interval", "timeout")}
    return {**times, "fall": check.fall, "rise": check.rise}


class Haproxy:
    """Debian's HAProxy in the host's namespace; reads its log lines about servers."""

    words: tuple[str, ...] = ()  # beyond -db: in the foreground, one process

    def __init__(self, host: BenchHost, config: str) -> None:
        """Start it with the text of haproxy.cfg."""
        packages = haproxy_packages()
        self.path = host.folder / "haproxy.cfg"
        self.path.write_text(config)
        argv = [str(packages.program("haproxy")), "-db", *self.words, "-f", str(self.path)]
        self.process = host.host.popen(
            argv, env=packages.environment(), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
        )
        host.closing.callback(end, self.process)
        self.heard: list[tuple[float, int, bool]] = []  # time.monotonic, number of the server, whether it is up
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.listen(line)

    def listen(self, line: str) -> None:
        """Parse a log line."""
        if found := _CHANGED.search(line):
            self.heard.append((time.monotonic(), int(found[1]), found[2] == "UP"))

    def changed(self, server: int, *, up: bool, since: float) -> float | None:
        """Return when it reported that state of a server, after a time; None: not yet."""
        return next((at for at, which, is_up in self.heard if which == server and is_up is up and at >= since), None)


def haproxy_packages() -> Unpacked:
    """Return Debian's packages of HAProxy."""
    return unpacked("haproxy", HAPROXY)


def haproxy_version() -> str:
    """Return its version."""
    packages = haproxy_packages()
    said = subprocess.run(
        [str(packages.program("haproxy")), "-v"], env=packages.environment(), capture_output=True, text=True, check=True
    )
    return said.stdout.split()[2]


class BenchHost(ApiHosts):
    """The lab of native mode (tests/lab/api_hosts.py) with HAProxy, and the benchmark's own servers."""

    def servers_process(self, module: str, places: Sequence[str]) -> subprocess.Popen[str]:
        """Start a program that serves addresses of the servers' machine; return when it is ready."""
        argv = [sys.executable, "-m", f"bench.apilb.{module}", str(self.folder), *places]
        process = self.servers.popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=ROOT)
        self.closing.callback(end, process)
        assert process.stdout is not None
        if process.stdout.readline() != "ready\n":
            raise LabError(f"bench.apilb.{module} did not start")
        return process

    def rendered(self, servers: Sequence[str], **fields: Any) -> str:
        """Return the haproxy.cfg that is rendered for these servers and port HAPROXY_PORT of the loopback."""
        check = fields.pop("check", {})
        instance = {
            "name": "beside",
            "bindAddress": f"127.0.0.1:{HAPROXY_PORT}",
            "servers": list(servers),
            "healthCheck": check,
        }
        pool = instance | {"hostConfigPath": "/etc/haproxy/haproxy.cfg", "apiLoadBalancers": [{}]} | fields
        path = self.folder / "beside.yaml"
        path.write_text(json.dumps({"apiLoadBalancerPools": {"pool": pool}}))
        return run(*program(), "apilb", "render", "-f", str(path))

    def haproxy(self, servers: Sequence[str], **fields: Any) -> Haproxy:
        """Start HAProxy for these servers, by the file that is rendered."""
        beside = Haproxy(self, self.rendered(servers, **fields))
        with self.host.entered():
            wait_for(lambda: is_listening(HAPROXY_PORT), "HAProxy's port")
        return beside

    def wait_connected(self, names: Sequence[str]) -> None:
        """Wait until the agent serves these instances and has checked all of their servers."""

        def checked() -> bool:
            rows = {row["name"]: row for row in self.rows()}
            return all(name in rows and all(each["since"] for each in rows[name]["servers"]) for name in names)

        wait_for(checked, "the first checks", 60)


def is_listening(port: int) -> bool:
    """Whether a process of this namespace listens on an IPv4 port."""
    lines = Path("/proc/thread-self/net/tcp").read_text().splitlines()[1:]
    return any(line.split()[1].endswith(f":{port:04X}") and line.split()[3] == "0A" for line in lines)


def cpu_s(pid: int) -> float:
    """Return the CPU time of a process, including ended threads, by its own clock (clock_getcpuclockid(3))."""
    return time.clock_gettime((~pid << 3) | 2)


def resident_mib(pid: int) -> float:
    """Return the resident memory of a process."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / MEBIBYTE
