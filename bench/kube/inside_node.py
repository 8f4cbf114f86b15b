"""A process of the node through the socket programs, and a pod through tc, against the same backend directly. Needs no API server."""

from __future__ import annotations

import contextlib
import socket
import statistics
import time
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from bench.harness import Spread, pinned, ratio
from bench.kube.kube_node import POD, KubeNode
from bench.kube.pod_client import Address, gbit_per_s, in_turns, opened
from bench.kube.pod_server import ANSWER_PORT, SINK_PORT
from tests.kube_api.cluster import NODE
from tests.lab import cgroup
from tests.lab.agent import Agent
from tests.lab.topology import Lab

VIP = "10.96.0.10"
CONNECTS = 200
# sockets outside the cgroup, for which no program runs; sockets in it; by the VIP
WAYS: tuple[Address, ...] = ((POD, ANSWER_PORT), (POD, ANSWER_PORT), (VIP, 80))
MANIFEST = f"""apiVersion: v1
kind: Service
metadata: {{name: web, namespace: bench}}
spec:
  type: ClusterIP
  clusterIP: {VIP}
  ports: [{{name: http, port: 80, targetPort: {ANSWER_PORT}}}, {{name: sink, port: 81, targetPort: {SINK_PORT}}}]
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {{name: web-a, namespace: bench, labels: {{kubernetes.io/service-name: web}}}}
addressType: IPv4
ports: [{{name: http, port: {ANSWER_PORT}}}, {{name: sink, port: {SINK_PORT}}}]
endpoints: [{{addresses: [{POD}], nodeName: {NODE}, conditions: {{ready: true}}}}]
"""


@contextlib.contextmanager
def served(group: Path) -> Iterator[KubeNode]:
    """Run an agent with socket programs for a cgroup, over one Service whose backend is a pod of the node."""
    with Lab(tag="i-") as lab:
        node = KubeNode(lab)
        folder = lab.folder / "manifests"
        folder.mkdir()
        (folder / "web.yaml").write_text(MANIFEST)
        agent = Agent(
            lab, folder, attach="tc", arguments=["--socket-lb", "--cgroup", str(group), "--node-ip", "10.77.1.1"]
        )
        agent.start()
        yield node


def round_of_connects(node: KubeNode, group: Path) -> tuple[float, ...]:
    """Return the medians of a connect in microseconds, by path: WAYS."""
    with node.lab.node.entered(), contextlib.ExitStack() as stack:
        sockets = [[stack.enter_context(opened()) for _ in range(CONNECTS)]]
        with cgroup.joined(group):
            sockets += [[stack.enter_context(opened()) for _ in range(CONNECTS)] for _ in WAYS[1:]]
        took: list[list[int]] = [[] for _ in WAYS]
        for number in range(CONNECTS):
            for turn in range(len(WAYS)):
                way = (number + turn) % len(WAYS)
                took[way].append(_connect_ns(sockets[way][number], WAYS[way]))
        return tuple(statistics.median(each) / 1e3 for each in took)


def _connect_ns(sock: socket.socket, to: Address) -> int:
    began = time.perf_counter_ns()
    sock.connect(to)
    return time.perf_counter_ns() - began


def measure(rounds: int) -> dict[str, Any]:
    """Measure both; each figure with its ratio to the direct path."""
    with cgroup.made() as group, served(group) as node, pinned():
        connects = [round_of_connects(node, group) for _ in range(rounds + 1)][1:]
        bare, direct, balanced = ([took[way] for took in connects] for way in range(len(WAYS)))
        paths = node.paths("pod", ("direct", (POD, SINK_PORT)), ("vip", (VIP, 81)))
        rates = in_turns(gbit_per_s, paths, rounds)
    return {
        "connect_us": {
            "bare": asdict(Spread.of(bare)), "direct": asdict(Spread.of(direct)), "socket": asdict(Spread.of(balanced)),
            "over_bare": asdict(ratio(balanced, bare)), "over_direct": asdict(ratio(balanced, direct)),
        },
        "gbit_per_s": {
            **{name.removeprefix("pod "): asdict(Spread.of(values)) for name, values in rates.items()},
            "ratio": asdict(ratio(rates["pod vip"], rates["pod direct"])),
        },
    }  # fmt: skip
