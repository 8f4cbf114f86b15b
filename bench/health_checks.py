"""`python -m bench.health_checks [--backends N] [--interval S] [--seconds S]`: the cost of health checks of backends.

A laboratory with one agent and N backends behind a device with a delay of 1 ms: CPU and memory of the agent without a check, then
with `tcp interval=...` on every Service, and how evenly the checks are spread. It prints one row; nothing is written.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from bench.apilb.bench_host import cpu_s, resident_mib
from bench.benchmark_program import is_root
from tests.e2e.cluster import Cluster
from tests.lab.manifests import Endpoint, Manifest
from tests.lab.netns import LabError, run, wait_for
from tests.lab.topology import Lab

PER_SERVICE = 100
SETTLE_S = 15.0
DELAY = "1ms"  # so that no handshake is complete when connect() returns
STEP_S = 0.1


def main() -> int:
    """Measure, and print the row."""
    parser = argparse.ArgumentParser(prog="python -m bench.health_checks", description=__doc__)
    parser.add_argument("--backends", type=int, default=10_000)
    parser.add_argument("--interval", type=float, default=10.0)
    parser.add_argument("--seconds", type=float, default=60.0)
    options = parser.parse_args()
    if not is_root("bench"):
        return 1
    with Lab(tag="checks-", pod=False) as lab:
        made = Cluster(lab, "tc")
        serve_any_address(lab)
        write(made, options.backends, "")
        made.agent.start()
        time.sleep(SETTLE_S)
        idle, idle_mib, _ = measure(made, options.seconds)
        write(made, options.backends, f"tcp interval={options.interval:g}s")
        wait_for(
            lambda: checked(made) == options.backends, "the first check of each backend", 60 + 2 * options.interval
        )
        time.sleep(options.interval)
        core, mib, counts = measure(made, options.seconds)
        by_second = [sum(counts[at : at + 10]) for at in range(0, len(counts) - 9, 10)]
        print(f"backends {options.backends}, checks/s {sum(counts) / (len(counts) * STEP_S):.0f}")
        print(f"core without {100 * idle:.1f} %, with {100 * core:.1f} %: checks {100 * (core - idle):.1f} %")
        print(f"memory without {idle_mib:.1f} MiB, with {mib:.1f} MiB: checks {mib - idle_mib:.1f} MiB")
        print(f"checks in a second: mean {sum(by_second) / len(by_second):.0f}, most {max(by_second)}")
        print(f"checks in {STEP_S:g} s: mean {sum(counts) / len(counts):.0f}, most {max(counts)}")
    return 0


def serve_any_address(lab: Lab) -> None:
    """Have one server of b1 answer at every address of 10.100.0.0/16."""
    space = lab.namespaces["b1"]
    space.ip("route add local 10.100.0.0/16 dev lo")
    lab.node.ip("route add 10.100.0.0/16 via 10.77.1.2")
    try:
        run(*space.command(["tc", "qdisc", "add", "dev", "e0", "root", "netem", "delay", DELAY, "limit", "10000"]))
    except LabError as error:
        print(f"without a delay: {error}", file=sys.stderr)
    serve = "import socket,time; s=socket.create_server(('0.0.0.0', 8080), backlog=4096); time.sleep(1e6)"
    process = space.popen([sys.executable, "-c", serve])
    lab.closing.callback(process.kill)


def write(made: Cluster, backends: int, check: str) -> None:
    """Write Services of PER_SERVICE backends each."""
    annotations = {"lbagent.io/health-check": check} if check else {}
    for number in range(backends // PER_SERVICE):
        first = number * PER_SERVICE
        endpoints = [Endpoint(f"10.100.{at >> 8}.{at & 255}") for at in range(first, first + PER_SERVICE)]
        vip = f"10.96.{100 + (number >> 8)}.{number & 255}"
        spec = {"clusterIP": vip, "clusterIPs": [vip]}
        Manifest(f"s{number}", [vip], endpoints, spec=spec, annotations=annotations).write(made.folder)


def checked(made: Cluster) -> int:
    """Return how many backends are up by their check."""
    return sum(row.get("check", {}).get("state") == "up" for row in made.agent.api.backends())


def measure(made: Cluster, seconds: float) -> tuple[float, float, list[int]]:
    """Return the agent's share of a core, its memory, and how many checks began in each step of time."""
    pid = made.agent.pid
    began, before = time.monotonic(), cpu_s(pid)
    counts = list(_opened(pid, began + seconds))
    return (cpu_s(pid) - before) / (time.monotonic() - began), resident_mib(pid), counts


def _opened(pid: int, end: float) -> Iterator[int]:
    last, due = _active_opens(pid), time.monotonic()
    while (due := due + STEP_S) < end:
        time.sleep(max(0.0, due - time.monotonic()))
        now = _active_opens(pid)
        yield now - last
        last = now


def _active_opens(pid: int) -> int:
    """Return the connections that were begun in the namespace of a process."""
    names, values = [
        line.split() for line in Path(f"/proc/{pid}/net/snmp").read_text().splitlines() if line[:4] == "Tcp:"
    ]
    return int(values[names.index("ActiveOpens")])


if __name__ == "__main__":
    sys.exit(main())
