"""The real kube-proxy in nftables mode, on its own node, timed. The program is KUBE_PROXY=FILE, else `kube-proxy` on PATH."""

from __future__ import annotations

import os
import shutil
import time
from pathlib import Path

from bench.kube.kube_node import SETTLE_S, KubeNode, cpu_s, resident_mib
from tests.kube_api.kube_proxy import KubeProxy

FIRST_SYNC_S = 900
MIN_SYNC_S = 1.0  # the default of --nftables-min-sync-period: the minimum time between two syncs


def find() -> str | None:
    """Return the program, or None."""
    named = os.environ.get("KUBE_PROXY")
    if named:
        return named if os.access(named, os.X_OK) else None
    return shutil.which("kube-proxy")


class TimedKubeProxy:
    """A kube-proxy and the time of its start, in seconds by the clock and of processor time."""

    def __init__(self, node: KubeNode, binary: str) -> None:
        """Prepare it."""
        self.node = node
        self._program = KubeProxy(node.lab, Path(binary), node.kubeconfig, arguments=["--cluster-cidr=10.244.0.0/16"])
        self.started_s = self.start_cpu_s = 0.0

    @property
    def pid(self) -> int:
        """Process id."""
        return self._program.pid

    def start_timed(self) -> None:
        """Start it and wait for the first sync, whose end kube-proxy logs."""
        began, at = time.monotonic(), time.time()
        synced = self._program.start(FIRST_SYNC_S)
        self.start_cpu_s = cpu_s(self.pid)
        self.started_s = synced - at if synced > at else time.monotonic() - began

    def settled_mib(self) -> float:
        """Return its memory when the work is done, without nftables' memory in the kernel."""
        time.sleep(SETTLE_S)
        return resident_mib(self.pid)

    def stop(self) -> None:
        """End it; its rules go with the namespace."""
        self._program.stop()
