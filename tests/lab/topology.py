"""The laboratory: client, node, three backends, and the agent's private bpffs.

```
  client ──c0═wan── node ──lan1═e0── b1   remote backend 10.77.1.2  fd77:1::2
                         ──lan2═e0── b2   remote backend 10.77.2.2  fd77:2::2
                         ──pod3═e0── b3   pod of this node 10.244.0.2  fd44::2
```
The veth devices wan, lan1 and lan2 represent NICs; pod3 is a device as from a CNI. A device receives frames that an XDP program sends
(XDP_TX, redirect) only if it has an XDP program itself, so the peers of NIC-like devices have one that passes everything.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.lab import netns
from tests.lab.netns import LabError, Namespace, run, veth, wait_for
from tests.lab.xdp import attach_pass

ROOT = Path(__file__).resolve().parents[2]
VIP4, VIP6 = "10.96.0.0/16", "fd00:96::/64"
HTTP_PORT, DNS_PORT = 8080, 5353
ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@dataclass
class Backend:
    """One server process and its address."""

    role: str
    name: str
    ipv4: str
    ipv6: str
    process: subprocess.Popen[str] | None = None


@dataclass
class Lab:
    """All namespaces of one laboratory; a context manager that removes them."""

    pod: bool = True  # make b3, the backend on the node
    queues: int = 1  # receive queues per veth: frames of two CPUs are then handled by two CPUs
    tag: str = ""  # distinguishes several laboratories of one process
    client: Namespace = field(init=False)
    node: Namespace = field(init=False)
    namespaces: dict[str, Namespace] = field(default_factory=dict)
    backends: dict[str, Backend] = field(default_factory=dict)
    folder: Path = field(init=False)
    _links: list[tuple[str, str, str, str, str]] = field(default_factory=list)
    closing: contextlib.ExitStack = field(default_factory=contextlib.ExitStack)

    def __enter__(self) -> Self:
        """Build it; after a failure, remove the built parts."""
        netns.sweep()
        try:
            with uninterrupted():
                self.folder = Path(tempfile.mkdtemp(prefix=f"{netns.FOLDER}{os.getpid()}-"))
                self.closing.callback(shutil.rmtree, self.folder, ignore_errors=True)
                self._mount()
                self._build()
        except BaseException:
            with uninterrupted():
                self.closing.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, where: TracebackType | None
    ) -> None:
        """Remove everything, newest first; a second Ctrl-C does not interrupt it."""
        with uninterrupted():
            self.closing.close()

    # --- building ---

    def _mount(self) -> None:
        """Mount a private bpffs: pins of another agent on this machine are not affected."""
        self.bpffs_root = self.folder / "bpf"
        self.bpffs_root.mkdir()
        run("mount", "-t", "bpf", "bpf", str(self.bpffs_root))
        self.closing.callback(run, "umount", "-l", str(self.bpffs_root))

    @property
    def bpffs(self) -> Path:
        """The agent's --bpffs."""
        return self.bpffs_root / "lbagent"

    @property
    def socket(self) -> Path:
        """The agent's --socket."""
        return self.folder / "agent.sock"

    def namespace(self, role: str) -> Namespace:
        """Create a further namespace of this laboratory."""
        with uninterrupted():
            space = Namespace(role, self.tag)
            self.namespaces[role] = space
            self.closing.callback(space.delete)
        return space

    def _build(self) -> None:
        self.client, self.node = self.namespace("client"), self.namespace("node")
        self.node.sysctl("ipv4/ip_forward", 1)
        self.node.sysctl("ipv6/conf/all/forwarding", 1)
        self.join(self.client, "c0", "wan", "10.77.0", "fd77", 24)
        self.client.ip(f"route add {VIP4} via 10.77.0.1", f"route add {VIP6} via fd77::1")
        for number in (1, 2):
            space = self.namespace(f"b{number}")
            self.join(space, "e0", f"lan{number}", f"10.77.{number}", f"fd77:{number}", 24)
            self.backends[space.role] = Backend(space.role, space.role, f"10.77.{number}.2", f"fd77:{number}::2")
        if self.pod:
            self.add_pod("b3", "pod3", "10.244.0", "fd44")

    def add_pod(self, role: str, node_device: str, net4: str, net6: str) -> Backend:
        """Create a pod of the node, a new namespace: .2 and ::2 of these networks."""
        self.join(self.namespace(role), "e0", node_device, net4, net6, 24, nic=False)
        self.backends[role] = Backend(role, role, f"{net4}.2", f"{net6}::2")
        return self.backends[role]

    def join(
        self, space: Namespace, device: str, node_device: str, net4: str, net6: str, bits: int, *, nic: bool = True
    ) -> None:
        """Connect a namespace to the node: .1 is the node, .2 the other; default routes through the node."""
        veth(space, device, self.node, node_device, self.queues)
        space.ip(f"addr add {net4}.2/{bits} dev {device}", f"addr add {net6}::2/64 dev {device} nodad")
        self.node.ip(f"addr add {net4}.1/{bits} dev {node_device}", f"addr add {net6}::1/64 dev {node_device} nodad")
        space.ip(f"route add default via {net4}.1", f"route add default via {net6}::1")
        self._links.append((space.role, device, node_device, net4, net6))
        if nic:
            space.checksum_offload_off(device)
            self.node.checksum_offload_off(node_device)
            attach_pass(space, device)

    def freeze_neighbours(self) -> None:
        """Make every neighbour permanent: an ARP request must not disturb measurements."""
        for role, device, node_device, net4, net6 in self._links:
            space = self.namespaces[role]
            there, here = space.mac(device).hex(":"), self.node.mac(node_device).hex(":")
            for net in (f"{net4}.", f"{net6}::"):
                space.ip(f"neigh replace {net}1 lladdr {here} dev {device} nud permanent")
                self.node.ip(f"neigh replace {net}2 lladdr {there} dev {node_device} nud permanent")

    def freeze_clients(self, sources: Mapping[int, Sequence[str]]) -> None:
        """Make further addresses of the client permanent neighbours of the node."""
        mac = self.client.mac("c0").hex(":")
        self.node.ip(
            *(
                f"neigh replace {each} lladdr {mac} dev wan nud permanent"
                for group in sources.values()
                for each in group
            )
        )

    # --- servers ---

    def serve(
        self, role: str, name: str | None = None, *, http: int = HTTP_PORT, dns: int = DNS_PORT, host: int = 2
    ) -> Backend:
        """Start a server in a backend's namespace with a name, only on the address that ends in `host`."""
        home, space = self.backends[role], self.namespaces[role]
        backend = Backend(role, name or role, f"{home.ipv4[:-1]}{host}", f"{home.ipv6[:-1]}{host}")
        if host != 2:
            space.ip(f"addr add {backend.ipv4}/24 dev e0", f"addr add {backend.ipv6}/64 dev e0 nodad")
        argv = [sys.executable, "-m", "tests.lab.server", backend.name, "--http", str(http), "--dns", str(dns)]
        argv += ["--ipv4", backend.ipv4, "--ipv6", backend.ipv6]
        process = space.popen(argv, stdout=subprocess.PIPE, cwd=ROOT)
        self.closing.callback(end, process)
        assert process.stdout is not None
        if process.stdout.readline() != "ready\n":
            raise LabError(f"server {backend.name} did not start")
        backend.process = process
        self.backends[backend.name] = backend
        return backend

    def serve_all(self) -> None:
        """Start the server of each backend namespace without one."""
        for name, backend in list(self.backends.items()):
            if name == backend.role and backend.process is None:
                self.serve(name)

    def restart(self, role: str) -> None:
        """End a backend's server with its connections, as Kubernetes ends a removed pod, and restart it.

        Connections that clients reset in the meantime get no answer to their FIN: they end after one retransmission.
        """
        backend, space = self.backends[role], self.namespaces[role]
        assert backend.process is not None
        space.sysctl("ipv4/tcp_orphan_retries", 1)
        end(backend.process)
        wait_for(lambda: not space.call(_tcp_orphans), f"the end of all connections of {role}", 30)
        self.serve(role)


def _tcp_orphans() -> bool:
    """Return whether the calling thread's namespace has a TCP socket with a possible peer (any except TIME_WAIT, LISTEN)."""
    tables = [Path("/proc/thread-self/net", name).read_text().splitlines()[1:] for name in ("tcp", "tcp6")]
    return any(line.split()[3] not in ("06", "0A") for table in tables for line in table)


def end(process: subprocess.Popen[str]) -> None:
    """Stop a child process: SIGTERM, and SIGKILL after a time-out."""
    if process.poll() is None:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(3)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
    for stream in (process.stdout, process.stderr, process.stdin):
        if stream:
            stream.close()


@contextlib.contextmanager
def uninterrupted() -> Iterator[None]:
    """Block signals that end a program, in this process (by handlers: it may have threads) and in its children (by the mask)."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    came: list[int] = []
    handlers = {number: signal.signal(number, lambda number, _: came.append(number)) for number in ENDING}
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, ENDING)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        for number, handler in handlers.items():
            signal.signal(number, handler)
        for number in came[:1]:
            signal.raise_signal(number)


__all__ = ["Backend", "Lab", "LabError", "end", "wait_for"]
