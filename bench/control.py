"""The control plane: from a folder of manifests to the maps, by the real agent in its own process.

A change is measured from outside: from the moment a changed file is in place (rename) until another process sees the new
value in the map. That includes inotify, reading, parsing, resolving, planning and writing.
"""

from __future__ import annotations

import json
import os
import resource
import statistics
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.harness import pinned
from lbagent.maps.kernel_maps import KernelMaps
from lbagent.maps.layout import LB4_KEY, LB_SERVICE
from tests.lab.agent import Agent, program
from tests.lab.netns import wait_for
from tests.lab.topology import Lab

SERVICES, BACKENDS = 10_000, 10
SINGLE = 100  # services with their own file, so that a change is one small file
CHANGES = 1000
SETTLE_S = 2.0


def vip(number: int) -> str:
    """Return the frontend of service `number`."""
    return f"10.96.{number >> 8}.{number & 255}"


ROUTE = "route add 10.128.0.0/9 via 10.77.1.2"  # to the backends of objects(): without a route `status` ends with 1


def objects(number: int, backends: int) -> list[dict[str, Any]]:
    """Return Service and EndpointSlice of service `number`."""
    port = {"name": "http", "protocol": "TCP", "port": 80, "targetPort": 8080}
    base = number * BACKENDS
    addresses = [f"10.{128 + (base + n >> 16)}.{base + n >> 8 & 255}.{base + n & 255}" for n in range(backends)]
    return [
        {
            "apiVersion": "v1", "kind": "Service", "metadata": {"name": f"s{number}", "namespace": "bench"},
            "spec": {"type": "ClusterIP", "clusterIP": vip(number), "clusterIPs": [vip(number)], "ports": [port]},
        },
        {
            "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4",
            "metadata": {"name": f"s{number}-a", "namespace": "bench", "labels": {"kubernetes.io/service-name": f"s{number}"}},
            "ports": [{"name": "http", "protocol": "TCP", "port": 8080}],
            "endpoints": [{"addresses": [address], "nodeName": "other", "conditions": {"ready": True}} for address in addresses],
        },
    ]  # fmt: skip


def put(folder: Path, name: str, items: list[dict[str, Any]]) -> None:
    """Write a List into place by rename."""
    hidden = folder / f".{name}.new"
    hidden.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": items}))
    os.replace(hidden, folder / name)


def fill(folder: Path, services: int) -> None:
    """Write the folder: one large file, and small ones for the services that will change."""
    folder.mkdir(exist_ok=True)
    single = min(SINGLE, services // 2)
    put(folder, "all.json", [item for number in range(single, services) for item in objects(number, BACKENDS)])
    for number in range(single):
        put(folder, f"s{number}.json", objects(number, BACKENDS))


@dataclass
class Process:
    """An agent over a folder, and its memory."""

    agent: Agent

    def start(self) -> float:
        """Start it; return seconds until it reports that everything is in the kernel."""
        began = time.monotonic()
        self.agent.start(wait=False)
        os.setpriority(os.PRIO_PROCESS, self.agent.pid, -20)  # priority over other processes, as in the other parts
        wait_for(lambda: self.agent.ended_or_ready() is None, "the agent", 60)
        return time.monotonic() - began

    def resident_mib(self) -> float:
        """Return VmRSS when it no longer changes."""
        time.sleep(SETTLE_S)
        lines = Path(f"/proc/{self.agent.pid}/status").read_text().splitlines()
        return int(next(line.split()[1] for line in lines if line.startswith("VmRSS"))) / 1024

    def cpu_s(self) -> float:
        """Return its CPU time: the cost of a start, independent of the load of the machine."""
        fields = Path(f"/proc/{self.agent.pid}/stat").read_text().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def writes(self) -> int:
        """Return map entries written since its start."""
        line = next(
            line for line in self.agent.api.metrics().splitlines() if line.startswith("lbagent_map_writes_total")
        )
        return int(float(line.split()[1]))


def changes(folder: Path, maps: KernelMaps, count: int) -> list[float]:
    """Make single changes, one after the other; return milliseconds from file to map."""
    out = []
    for number in range(count):
        which, backends = number % SINGLE, BACKENDS - 1 - number // SINGLE % 2
        items = objects(which, backends)
        key = LB4_KEY.pack(
            bytes(int(part) for part in vip(which).split(".")), (80).to_bytes(2, "big"), 0, 6, 0, b"\0\0"
        )
        hidden = folder / f".s{which}.json.new"
        hidden.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": items}))
        began = time.perf_counter()
        os.replace(hidden, folder / f"s{which}.json")
        while True:
            value = maps.get("lb4_service", key)
            if value and LB_SERVICE.unpack(value)[1] == backends:
                break
            if time.perf_counter() - began > 5:
                raise RuntimeError(f"change {number} did not arrive within 5 s")
        out.append((time.perf_counter() - began) * 1e3)
        time.sleep(0.005)  # single changes, not a storm
    return out


def command_ms(agent: Agent, rounds: int) -> list[float]:
    """Return wall milliseconds of `lbagent status`, whole process."""
    env = {**os.environ, "LBAGENT_SOCKET": str(agent.lab.socket)}
    out = []
    for _ in range(rounds):
        began = time.perf_counter()
        subprocess.run([*program(), "status"], env=env, check=True, capture_output=True)
        out.append((time.perf_counter() - began) * 1e3)
    return out


def command_cpu_ms(agent: Agent, rounds: int) -> float:
    """Return CPU milliseconds of `lbagent status`."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    command_ms(agent, rounds)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return 1e3 * (after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime) / rounds


def large(*, quick: bool) -> dict[str, Any]:
    """Measure 10,000 services with 10 backends each."""
    result: dict[str, Any] = {}
    with Lab(pod=False, tag="c-") as lab:
        lab.node.ip(ROUTE)
        folder = lab.folder / "manifests"
        fill(folder, SERVICES)
        agent = Agent(lab, folder, attach="tc", arguments=["--max-backends", str(1 << 17)])
        process = Process(agent)
        starts = []
        for _ in range(1 if quick else 3):
            starts.append(process.start())
            result["start_cpu_s"] = process.cpu_s()
            result["resident_mib"] = process.resident_mib()
            agent.stop()
            restart = process.start()
            result["restart_s"], result["restart_writes"] = restart, process.writes()
            result["resident_restarted_mib"] = process.resident_mib()
            if len(starts) < (1 if quick else 3):
                agent.stop()
                agent.cli("cleanup")
        result["start_s"] = statistics.median(starts)
        with KernelMaps.open(lab.bpffs, create=False) as maps, pinned():
            times = changes(folder, maps, CHANGES // 5 if quick else CHANGES)
        result["change_ms"] = {
            "p50": percentile(times, 50),
            "p99": percentile(times, 99),
            "max": max(times),
            "n": len(times),
        }
        result["resident_after_changes_mib"] = process.resident_mib()
    return result


def small(*, quick: bool) -> dict[str, Any]:
    """Measure ten services: memory, and how long a command takes."""
    with Lab(pod=False, tag="d-") as lab:
        lab.node.ip(ROUTE)
        folder = lab.folder / "manifests"
        fill(folder, 10)
        agent = Agent(lab, folder, attach="tc")
        process = Process(agent)
        start = process.start()
        memory = process.resident_mib()
        times = command_ms(agent, 10 if quick else 30)
        return {
            "start_s": start,
            "resident_mib": memory,
            "command_ms": statistics.median(times),
            "command_best_ms": min(times),
            "command_cpu_ms": command_cpu_ms(agent, 10),
        }


def percentile(values: Sequence[float], rank: int) -> float:
    """Return the nearest-rank percentile."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, -(-len(ordered) * rank // 100) - 1)]


def measure(*, quick: bool) -> dict[str, Any]:
    """Measure both sizes."""
    return {"services_10": small(quick=quick), "services_10000": large(quick=quick)}
