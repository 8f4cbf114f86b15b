"""The real kube-proxy in nftables mode, on a node of its own; and when a transaction of it is in the kernel.

The program is KUBE_PROXY=FILE, else `kube-proxy` on PATH. A commit is heard of the kernel (NFNLGRP_NFTABLES), so nothing polls.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import socket
import struct
import subprocess
import time
import urllib.request

from bench.kube.kube_node import SETTLE_S, KubeNode, cpu_s, resident_mib
from tests.kube.cluster import NODE
from tests.lab.netns import wait_for
from tests.lab.topology import LabError, end

METRICS = "http://127.0.0.1:10249/metrics"
SYNCED = re.compile(
    r"^kubeproxy_sync_proxy_rules_last_timestamp_seconds(?:\{[^}]*ip_family=\"IPv4\"[^}]*\})? (\S+)", re.MULTILINE
)
FIRST_SYNC_S = 900
MIN_SYNC_S = 1.0  # --nftables-min-sync-period, as it is by default: two syncs are at least so far apart
NETLINK_NETFILTER, NFNLGRP_NFTABLES, NETLINK_ADD_MEMBERSHIP, SOL_NETLINK = 12, 7, 1, 270
NEWGEN = 10 << 8 | 15  # NFNL_SUBSYS_NFTABLES, NFT_MSG_NEWGEN: what was said before is in force
ROOM = 64 << 20


def find() -> str | None:
    """Return the program, or None."""
    named = os.environ.get("KUBE_PROXY")
    if named:
        return named if os.access(named, os.X_OK) else None
    return shutil.which("kube-proxy")


class KubeProxy:
    """One kube-proxy."""

    def __init__(self, node: KubeNode, binary: str) -> None:
        """Prepare it: what it may change of the whole machine (conntrack's size) is left as it is."""
        self.node = node
        self.log = node.lab.folder / "kube-proxy.log"
        self.argv = [
            binary, "--proxy-mode=nftables", f"--kubeconfig={node.kubeconfig}", f"--hostname-override={NODE}",
            "--cluster-cidr=10.244.0.0/16", "--conntrack-max-per-core=0", "--conntrack-min=0",
            "--conntrack-tcp-timeout-established=0", "--conntrack-tcp-timeout-close-wait=0",
        ]  # fmt: skip
        self.process: subprocess.Popen[str] | None = None
        self.started_s = self.start_cpu_s = 0.0
        node.lab.closing.callback(self.stop)

    @property
    def pid(self) -> int:
        """Process id."""
        assert self.process is not None
        return self.process.pid

    def start_timed(self) -> None:
        """Start it and wait for the first sync, whose end kube-proxy itself says."""
        began, at = time.monotonic(), time.time()
        with self.log.open("a") as log:
            self.process = self.node.lab.node.popen(self.argv, stdout=log, stderr=log)
        with self.node.lab.node.entered():
            synced = wait_for(self._synced_at, "kube-proxy's first sync", FIRST_SYNC_S, 0.1)
        self.start_cpu_s = cpu_s(self.pid)
        self.started_s = synced - at if synced > at else time.monotonic() - began

    def _synced_at(self) -> float:
        """Return when it synced last, in seconds since the epoch; 0: not yet."""
        if self.process is None or self.process.poll() is not None:
            raise LabError(f"kube-proxy ended\n{self.log.read_text()[-2000:]}")
        with contextlib.suppress(OSError):
            text = urllib.request.urlopen(METRICS, timeout=10).read().decode()
            return max((float(found) for found in SYNCED.findall(text)), default=0.0)
        return 0.0

    def settled_mib(self) -> float:
        """Return its memory when the work is done; what nftables holds in the kernel is not in it."""
        time.sleep(SETTLE_S)
        return resident_mib(self.pid)

    def stop(self) -> None:
        """End it; its rules go with the namespace."""
        if self.process is not None:
            end(self.process)
            self.process = None


class Commits:
    """Transactions of nftables in a namespace, as the kernel tells of them."""

    def __init__(self, node: KubeNode) -> None:
        """Listen from now on."""
        with node.lab.node.entered():
            self._socket = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_NONBLOCK, NETLINK_NETFILTER)
        self._socket.setsockopt(socket.SOL_SOCKET, 33, ROOM)  # SO_RCVBUFFORCE
        self._socket.bind((0, 0))
        self._socket.setsockopt(SOL_NETLINK, NETLINK_ADD_MEMBERSHIP, NFNLGRP_NFTABLES)
        self._word, self._is_named = b"", False

    def fileno(self) -> int:
        """Return what to wait on."""
        return self._socket.fileno()

    def arm(self, name: str, count: int) -> None:  # noqa: ARG002 - a map is asked for the count
        """Wait for the next transaction that names this Service."""
        with contextlib.suppress(BlockingIOError):
            while self._socket.recv(1 << 20):
                pass
        self._word, self._is_named = f"/{name}/tcp/".encode(), False

    def poll(self) -> bool:
        """Whether that transaction is in force."""
        with contextlib.suppress(BlockingIOError):
            while True:
                data = self._socket.recv(1 << 20)
                self._is_named = self._is_named or self._word in data
                if self._is_named and _has_newgen(data):
                    return True
        return False

    def close(self) -> None:
        """Listen no more."""
        self._socket.close()


def _has_newgen(data: bytes) -> bool:
    at = 0
    while at + 16 <= len(data):
        length, kind = struct.unpack_from("=IH", data, at)
        if kind == NEWGEN:
            return True
        at += max(16, length + 3 & ~3)
    return False
