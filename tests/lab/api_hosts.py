"""A host with the agent in native mode, three HTTPS servers on another one, and a pod: with their own namespaces, cgroup and bpffs."""

from __future__ import annotations

import contextlib
import itertools
import json
import signal
import socket
import ssl
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from tests.lab import cgroup
from tests.lab.agent import Agent, program
from tests.lab.https_server import make_certificate
from tests.lab.netns import Namespace, veth, wait_for
from tests.lab.scratch import scratch_folder
from tests.lab.topology import ROOT, end

PORT = 6443  # of every server
NAMES = ("a", "b", "c")
BIND = ("127.0.0.1", 7443)  # of the pool, unless a test sets another one
_number = itertools.count()  # several may exist at once


def ipv4(name: str) -> str:
    """Return a server's IPv4 address."""
    return f"10.9.0.{11 + NAMES.index(name)}"


def ipv6(name: str) -> str:
    """Return a server's IPv6 address."""
    return f"fd09::{11 + NAMES.index(name)}"


class NativeAgent(Agent):
    """An agent with only pool files."""

    def argv(self) -> list[str]:
        lab = self.lab
        return [
            *program(), "agent", "--apilb", str(self.manifests), "--cgroup", str(lab.cgroup), "--bpffs", str(lab.bpffs),
            "--socket", str(lab.socket), "--state-dir", str(lab.folder / "state"), *self.arguments,
        ]  # fmt: skip


class ApiHosts:
    """`host` has the agent (10.9.0.1, fd09::1), `servers` the servers, `pod` is behind the host by a veth of its own (10.8.0.2)."""

    def __init__(self, *arguments: str) -> None:
        self.closing, number = contextlib.ExitStack(), next(_number)
        self.folder, root = scratch_folder(self.closing, "api")
        self.bpffs, self.socket = root / "lbagent", self.folder / "agent.sock"
        self.pools = self.folder / "apilb.d"
        self.pools.mkdir()
        self.cgroup = self.closing.enter_context(cgroup.made())
        self.host, self.servers, self.pod = (Namespace(role, f"api{number}-") for role in ("host", "srv", "pod"))
        self.node = self.host
        for each in (self.host, self.servers, self.pod):
            self.closing.callback(each.delete)
        self._join()
        self._running: dict[str, subprocess.Popen[str]] = {}
        make_certificate(self.folder)
        self.agent = NativeAgent(self, self.pools, arguments=arguments)  # type: ignore[arg-type]

    def _join(self) -> None:
        veth(self.host, "eth0", self.servers, "eth0")
        self.host.ip("addr add 10.9.0.1/24 dev eth0", "addr add fd09::1/64 dev eth0 nodad")
        for name in NAMES:
            self.servers.ip(f"addr add {ipv4(name)}/24 dev eth0", f"addr add {ipv6(name)}/64 dev eth0 nodad")
        veth(self.host, "pod0", self.pod, "eth0")
        self.host.ip("addr add 10.8.0.1/24 dev pod0")
        self.pod.ip("addr add 10.8.0.2/24 dev eth0", "route add default via 10.8.0.1")
        self.servers.ip("route add 10.8.0.0/24 via 10.9.0.1")

    # --- servers ---

    def serve(self, *names: str, port: int = PORT, address: str = "") -> None:
        """Start servers, on both families' addresses of each."""
        started = []
        for name in names or NAMES:
            for at in [address] if address else [ipv4(name), f"[{ipv6(name)}]"]:
                argv = [sys.executable, "-m", "tests.lab.https_server", name, "--folder", str(self.folder)]
                process = self.servers.popen([*argv, "--listen", f"{at}:{port}"], stdout=subprocess.PIPE, cwd=ROOT)
                self.closing.callback(end, process)
                self._running[f"{name} {at}"] = process
                started.append(process)
        for process in started:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"

    def kill(self, name: str) -> None:
        """Kill a server with SIGKILL."""
        for key in [key for key in self._running if key.startswith(f"{name} ")]:
            process = self._running.pop(key)
            process.kill()
            process.wait()

    def signal_servers(self, number: signal.Signals) -> None:
        """Send a signal to all of them: SIGSTOP, SIGCONT."""
        for process in self._running.values():
            process.send_signal(number)

    def behave(self, name: str, how: str) -> None:
        """Change a server's behaviour (https_server.py)."""
        draft = self.folder / f"{name}.behave.new"
        draft.write_text(how)
        draft.rename(self.folder / f"{name}.behave")

    # --- pools ---

    def pool(
        self, file: str = "lb", servers: Sequence[str] = (), bind: str = "{}:{}".format(*BIND), **fields: Any
    ) -> Path:
        """Write a pool file as apply does: atomically, by rename."""
        servers = list(servers or [f"{ipv4(name)}:{PORT}" for name in NAMES])
        check = {"interval": "1s", "timeout": "10s", "fall": 3, "rise": 2} | fields.pop("check", {})
        instance = {"name": file, "bindAddress": bind, "servers": servers, "healthCheck": check, "mode": "native"}
        pool = instance | {"hostConfigPath": str(self.pools / f"{file}.yaml"), "apiLoadBalancers": [{}]} | fields
        path, draft = self.pools / f"{file}.yaml", self.pools / f".{file}.new"
        draft.write_text(json.dumps({"apiLoadBalancerPools": {"pool": pool}}))
        draft.rename(path)
        return path

    def rows(self) -> list[dict[str, Any]]:
        """Return the agent's rows of native instances."""
        return self.agent.api.apilb()

    def servers_up(self, name: str = "lb") -> dict[str, bool]:
        """Return the servers of an instance that are up."""
        (row,) = [row for row in self.rows() if row["name"] == name]
        return {server["address"]: server["up"] for server in row["servers"]}

    def wait_up(self, expected: str, timeout_s: float = 120.0) -> None:
        """Wait until exactly these servers of `lb` are up: `ab`."""

        def matches() -> bool:
            up = "".join(name for name in NAMES if self.servers_up().get(f"{ipv4(name)}:{PORT}"))
            return up == expected

        wait_for(matches, f"servers {expected!r} up", timeout_s)

    # --- clients ---

    @contextlib.contextmanager
    def inside(self) -> Iterator[None]:
        """Make this test a process of the host."""
        with cgroup.joined(self.cgroup), self.host.entered():
            yield

    def close(self) -> None:
        """Remove everything."""
        self.closing.close()


def tls(address: str, port: int, timeout_s: float = 10.0) -> ssl.SSLSocket:
    """Connect by TLS, without verifying."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    sock = socket.create_connection((address, port), timeout_s)
    try:
        return context.wrap_socket(sock)
    except BaseException:
        sock.close()
        raise


def ask(address: str, port: int, timeout_s: float = 10.0) -> str:
    """Send one HTTPS request; return the name of the server that answered."""
    with tls(address, port, timeout_s) as sock:
        sock.sendall(b"GET /name HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        data = b""
        while b"\n" not in data.partition(b"\r\n\r\n")[2]:
            piece = sock.recv(4096)
            if not piece:
                raise ConnectionResetError("the answer ended early")
            data += piece
    return data.partition(b"\r\n\r\n")[2].split()[0].decode()


def reached(address: str = BIND[0], port: int = BIND[1], number: int = 60) -> Counter[str]:
    """Send so many requests; return the servers that answered."""
    return Counter(ask(address, port) for _ in range(number))
