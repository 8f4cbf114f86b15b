"""`plan` of one host and of many by ssh: one sshd and one container runtime with an address for each host."""

from __future__ import annotations

import json
import os
import resource
import statistics
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

from tests.apilb.hosts.host_lab import HostLab
from tests.lab.agent import program
from tests.lab.netns import LabError

CHANGES = 1  # the exit code of plan
SETTLE_S = 0.5  # until sshd's sessions have ended


class ManySshHosts:
    """A host with podman and sshd, with many addresses on its loopback."""

    def __init__(self) -> None:
        self.lab = HostLab()
        self.folder = Path(tempfile.mkdtemp(dir=self.lab.folder))
        self.key = self.lab.sshd.host_key()  # sshd starts now

    def _config(self, hosts: int) -> Path:
        """Write a pool with an instance on each host."""
        ssh = {"user": "root", "privateKeyFile": str(self.lab.sshd.client_key), "hostKey": self.key}
        instances = [
            {"name": f"h{number}", "host": {"ssh": {"address": f"127.0.1.{1 + number}"}}} for number in range(hosts)
        ]
        pool = {
            "servers": ["10.9.0.11:6443"], "bindAddress": "127.0.0.1:7443", "ssh": ssh, "hostConfigPath": "/etc/haproxy-bench/haproxy.cfg",
            "runtime": {"docker": {"host": self.lab.podman.docker_host}}, "apiLoadBalancers": instances,
        }  # fmt: skip
        path = self.folder / f"{hosts}.yaml"
        path.write_text(json.dumps({"apiLoadBalancerPools": {"pool": pool}}))
        return path

    def plan(self, hosts: int) -> dict[str, float]:
        """Plan once; return seconds, and seconds of CPU: of the command, and of sshd and podman."""
        argv = [
            *program(),
            "apilb",
            "plan",
            "-f",
            str(self._config(hosts)),
            "--state",
            str(self.folder / "state.yaml"),
            "-o",
            "json",
        ]
        before, hosts_before, began = _children_cpu_s(), self._hosts_cpu_s(), time.monotonic()
        done = subprocess.run(self.lab.space.command(argv), capture_output=True, text=True, env=os.environ, check=False)
        took = time.monotonic() - began
        if done.returncode != CHANGES or len(json.loads(done.stdout)) != hosts:
            raise LabError(f"plan of {hosts} hosts ended with {done.returncode}: {done.stderr.strip()[-500:]}")
        used = _children_cpu_s() - before
        time.sleep(SETTLE_S)
        return {"seconds": took, "cpu_s": used, "hosts_cpu_s": self._hosts_cpu_s() - hosts_before}

    def _hosts_cpu_s(self) -> float:
        """Return the CPU time of podman's service and sshd, including their ended processes."""
        processes = self.lab.podman.process, self.lab.sshd.process
        return sum(_with_children_cpu_s(each.pid) for each in processes if each is not None)

    def measure(self, hosts: int, times: int) -> dict[str, Any]:
        """Plan one host and all, in turns."""
        found: dict[int, list[dict[str, float]]] = {1: [], hosts: []}
        self.plan(1)  # warms up the disk cache
        for _ in range(times):
            for number, trials in found.items():
                trials.append(self.plan(number))
        one, many = (
            {key: statistics.median(each[key] for each in trials) for key in trials[0]} for trials in found.values()
        )
        return {"hosts": hosts, "one": one, "many": many}

    def close(self) -> None:
        """Remove everything."""
        self.lab.close()


def _with_children_cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")


def _children_cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime
