"""The real kube-proxy on a node that is a namespace: started, stopped, and its rules removed by its own `--cleanup`."""

from __future__ import annotations

import contextlib
import re
import subprocess
import urllib.request
from collections.abc import Sequence
from pathlib import Path

from tests.kube_api.cluster import NODE
from tests.lab.netns import wait_for
from tests.lab.topology import Lab, LabError, end

METRICS = "127.0.0.1:10349"  # not its usual port, which lbagent may have already
SYNCED = re.compile(r"^kubeproxy_sync_proxy_rules_last_timestamp_seconds(?:\{[^}]*\})? (\S+)", re.MULTILINE)
FAMILIES = 2
FIRST_SYNC_S = 120  # a second on an idle machine


class KubeProxy:
    """One kube-proxy of a laboratory's node."""

    def __init__(
        self, lab: Lab, binary: Path, kubeconfig: Path, mode: str = "nftables", arguments: Sequence[str] = ()
    ) -> None:
        """Prepare it without changes of the machine (conntrack's size)."""
        self.lab = lab
        self.log = lab.folder / "kube-proxy.log"
        self.argv = [
            str(binary), f"--proxy-mode={mode}", f"--kubeconfig={kubeconfig}", f"--hostname-override={NODE}",
            f"--metrics-bind-address={METRICS}",
            "--conntrack-max-per-core=0", "--conntrack-min=0", "--conntrack-tcp-timeout-established=0",
            "--conntrack-tcp-timeout-close-wait=0", *arguments,
        ]  # fmt: skip
        self.process: subprocess.Popen[str] | None = None
        lab.closing.callback(self.stop)

    @property
    def pid(self) -> int:
        """Process id."""
        assert self.process is not None
        return self.process.pid

    def start(self, patience_s: float = FIRST_SYNC_S) -> float:
        """Start it and wait so long for the first sync of every family; return its time by kube-proxy's log, in seconds since the epoch."""
        with self.log.open("a") as log:
            self.process = self.lab.node.popen(self.argv, stdout=log, stderr=log)
        with self.lab.node.entered():
            return wait_for(self._synced_at, "kube-proxy's first sync", patience_s, 0.1)

    def _synced_at(self) -> float:
        """Return when the last family synced; 0: one has not synced yet."""
        if self.process is None or self.process.poll() is not None:
            raise LabError(f"kube-proxy ended\n{self.tail()}")
        with contextlib.suppress(OSError):
            text = urllib.request.urlopen(f"http://{METRICS}/metrics", timeout=10).read().decode()
            found = [float(each) for each in SYNCED.findall(text)]
            return max(found) if len(found) == FAMILIES else 0.0
        return 0.0

    def tail(self) -> str:
        """Return the end of its log."""
        return self.log.read_text()[-2000:]

    def stop(self) -> None:
        """End it as the kubelet does; its rules stay."""
        if self.process is not None:
            end(self.process)
            self.process = None

    def cleanup(self) -> None:
        """Remove its rules as in kubernetes.md: `kube-proxy --cleanup`."""
        done = subprocess.run(self.lab.node.command([*self.argv, "--cleanup"]), capture_output=True, text=True)
        if done.returncode:
            raise LabError(f"kube-proxy --cleanup: exit {done.returncode}\n{done.stderr[-2000:]}")
