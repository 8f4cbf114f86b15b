"""The machines of the demo: API servers and two hosts at one switch; the agent on one host, HAProxy on the other, a kubelet on both."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from types import TracebackType
from typing import Self

from figures import Record

from lbagent.kernel.mounts import first_cgroup
from tests.lab import cgroup, netns
from tests.lab.agent import program
from tests.lab.api_hosts import NativeAgent
from tests.lab.debian_packages import HAPROXY, unpacked
from tests.lab.https_server import make_certificate
from tests.lab.netns import LabError, Namespace, run, veth, wait_for
from tests.lab.scratch import scratch_folder
from tests.lab.topology import ROOT, end, uninterrupted

SERVERS = {"a": "10.9.0.11", "b": "10.9.0.12", "c": "10.9.0.13", "d": "10.9.0.14"}
HOSTS = {"native": "10.9.0.1", "haproxy": "10.9.0.2"}
PORT, BIND = 6443, ("127.0.0.1", 7443)
WATCHES = 20
CONFIG = """\
servers: [{servers}]
bindAddress: 127.0.0.1:7443
healthCheck: {{interval: 500ms, timeout: 2s, fall: 2, rise: 2}}
onMarkedDown: reset
mode: native
hostConfigPath: {path}
apiLoadBalancers:
- name: kube-api
"""
MAP = """host 10.9.0.1: kubelet -> 127.0.0.1:7443, the agent, no proxy ──┐         ┌─ a 10.9.0.11:6443
                                                                ├ switch ─┼─ b 10.9.0.12:6443
host 10.9.0.2: kubelet -> 127.0.0.1:7443, HAProxy ──────────────┘         └─ c 10.9.0.13:6443"""


class KubeletProcess:
    """A kubelet (kubelet.py) on a host, and what it has written so far."""

    def __init__(self, host: Namespace, log: Path, group: Path | None = None) -> None:
        argv = [sys.executable, str(Path(__file__).with_name("kubelet.py")), "--log", str(log)]
        argv += ["--address", BIND[0], "--port", str(BIND[1]), "--watches", str(WATCHES)]
        log.touch()
        self._file, self._rest = log.open(), ""
        self._records: list[Record] = []
        self.process = host.popen([*argv, *(["--cgroup", str(group)] if group else [])])

    @property
    def records(self) -> list[Record]:
        """All records, in the order of their times."""
        lines = (self._rest + self._file.read()).split("\n")
        self._rest = lines.pop()
        self._records += [json.loads(line) for line in lines]
        return self._records

    def answered(self) -> int:
        """Return how many requests have been answered."""
        return sum(each["what"] == "answer" for each in self.records)

    def close(self) -> None:
        end(self.process)
        self._file.close()


class HAProxy:
    """Debian's HAProxy on a host, as `haproxy -W`, with the file that lbagent renders."""

    def __init__(self, host: Namespace, config: Path) -> None:
        """Raise LabError if HAProxy is missing and its package cannot be downloaded."""
        self.host, self.config = host, config
        installed = shutil.which("haproxy")
        packages = None if installed else unpacked("haproxy", HAPROXY)
        self._program = installed or str(packages and packages.program("haproxy"))
        self._environment = packages.environment() if packages else None
        self._process: subprocess.Popen[str] | None = None

    def start(self) -> None:
        """Start it; return when it listens."""
        argv = [self._program, "-W", "-db", "-f", str(self.config)]
        with self.config.with_suffix(".log").open("a") as log:
            self._process = self.host.popen(argv, stdout=log, stderr=log, env=self._environment)
        wait_for(lambda: run("nsenter", f"--net={self.host.path}", "ss", "-Hltn", "sport", f"= :{BIND[1]}"), "HAProxy")

    def reload(self) -> None:
        """Make it reload its file, as `lbagent apilb apply` does."""
        assert self._process is not None
        self._process.send_signal(signal.SIGUSR2)

    def kill(self) -> None:
        """Kill master and workers."""
        assert self._process is not None
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def close(self) -> None:
        """End it and all workers, also those that wait for the end of their connections."""
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()


class Machines:
    """All machines; a context manager that removes them. Without HAProxy `haproxy` is None, and `missing` has the reason."""

    def __enter__(self) -> Self:
        netns.sweep()
        if not first_cgroup():
            raise LabError(
                "no cgroup2 is mounted, which socket programs need: mount -t cgroup2 cgroup2 /sys/fs/cgroup/unified"
            )
        if shutil.which("openssl") is None:
            raise LabError("openssl, which makes the servers' certificate, is missing: apt install openssl")
        cgroup.sweep()
        self.closing = contextlib.ExitStack()
        try:
            with uninterrupted():
                self._make()
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, where: TracebackType | None
    ) -> None:
        with uninterrupted():
            self.closing.close()

    def _make(self) -> None:
        self.folder, root = scratch_folder(self.closing, "lab")
        self.bpffs, self.socket = root / "lbagent", self.folder / "agent.sock"
        self.pools, self.config = self.folder / "apilb.d", self.folder / "config.yaml"
        self.pools.mkdir()
        self.cgroup = self.closing.enter_context(cgroup.made())
        self._switch = self._space("switch")
        self._switch.ip("link add br0 type bridge", "link set br0 up")
        self.spaces = {name: self._join(name, address) for name, address in (HOSTS | SERVERS).items()}
        self.node = self.spaces["native"]
        self._servers: dict[str, subprocess.Popen[str]] = {}
        self.agent = NativeAgent(self, self.pools)  # type: ignore[arg-type]
        self.haproxy, self.missing = None, ""
        try:
            self.haproxy = HAProxy(self.spaces["haproxy"], self.folder / "haproxy.cfg")
            self.closing.callback(self.haproxy.close)
        except LabError as error:
            self.missing = str(error)

    def _space(self, role: str) -> Namespace:
        space = Namespace(role)
        self.closing.callback(space.delete)
        return space

    def _join(self, name: str, address: str) -> Namespace:
        space = self._space(name)
        veth(space, "eth0", self._switch, f"{name}0")
        space.ip(f"addr add {address}/24 dev eth0")
        self._switch.ip(f"link set {name}0 master br0")
        return space

    # --- servers ---

    def serve(self, *names: str) -> None:
        """Start servers; return when they listen."""
        make_certificate(self.folder)
        for name in names:
            argv = [sys.executable, "-m", "tests.lab.https_server", name, "--folder", str(self.folder)]
            argv += ["--listen", f"{SERVERS[name]}:{PORT}"]
            with (self.folder / f"{name}.log").open("a") as log:
                self._servers[name] = self.spaces[name].popen(argv, stdout=subprocess.PIPE, stderr=log, cwd=ROOT)
            self.closing.callback(end, self._servers[name])
        for name in names:
            out = self._servers[name].stdout
            if out is None or out.readline() != "ready\n":
                raise LabError(f"server {name} did not start")

    def kill(self, name: str) -> None:
        """Kill a server with SIGKILL: its kernel ends its connections."""
        self._servers[name].kill()
        self._servers[name].wait()

    def power(self, name: str, on: bool) -> None:
        """Disconnect a server's machine, or connect it again."""
        self._switch.ip(f"link set {name}0 {'master br0' if on else 'nomaster'}")

    # --- actions of an operator ---

    def write_config(self, *names: str) -> None:
        """Write config.yaml with these servers."""
        servers = ", ".join(f"{SERVERS[name]}:{PORT}" for name in names)
        self.config.write_text(CONFIG.format(servers=servers, path=self.pools / "kube-api.yaml"))

    def lbagent(self, *words: str) -> str:
        """Run `lbagent apilb VERB -f config.yaml ...` on the first host and return its output; LabError if it fails."""
        argv = self.node.command([*program(), "apilb", words[0], "-f", self.config.name, *words[1:]])
        env = {**os.environ, "LBAGENT_SOCKET": str(self.socket)}
        done = subprocess.run(argv, capture_output=True, text=True, env=env, cwd=self.folder, check=False)
        if done.returncode:
            raise LabError(f"lbagent apilb {' '.join(words)}: exit {done.returncode}: {done.stderr or done.stdout}")
        return done.stdout

    def server_row(self, name: str) -> dict[str, object]:
        """Return the agent's row of a server; nothing if the pool does not have it."""
        wanted = f"{SERVERS[name]}:{PORT}"
        servers = [each for row in self.agent.api.apilb() for each in row["servers"]]
        return next((each for each in servers if each["address"] == wanted), {})

    def kubelet(self, host: str) -> KubeletProcess:
        """Start a kubelet on a host."""
        group = self.cgroup if host == "native" else None
        kubelet = KubeletProcess(self.spaces[host], self.folder / f"{host}.kubelet", group)
        self.closing.callback(kubelet.close)
        return kubelet
