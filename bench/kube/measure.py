"""All rows of Kubernetes: the agent and kube-proxy with one API server, in turns; and the inside of a node."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from bench.harness import Spread, pinned, ratio
from bench.kube import bulk_load, bulk_objects, change_storm, inside_node, kube_proxy, nft_commits, slice_changes
from bench.kube.kube_node import POD, AgentOnNode, KubeNode, open_to_nodes
from bench.kube.pod_client import answers, connect_us, gbit_per_s, in_turns, requests_per_s
from bench.kube.pod_server import ANSWER_PORT, SINK_PORT
from lbagent.maps.kernel_maps import KernelMaps
from tests.kube_api.cluster import NODE, Cluster
from tests.kube_api.control_plane import ControlPlane
from tests.kube_api.programs import BuildFailed, Missing, build_programs
from tests.lab import netns
from tests.lab.netns import wait_for
from tests.lab.topology import Lab

WEB = "10.97.250.10"  # the Service that traffic goes to; its backend is the pod of the node
BACKENDS = 1 << 18  # 10,000 Services with 10 endpoints of two ports are more than the default
WARM_S = 60.0
Say = Callable[[str], object]


@dataclass(frozen=True)
class Amount:
    """How much of everything."""

    services: tuple[int, ...] = (100, 10_000)
    starts: int = 5
    changes: int = 200
    proxy_changes: int = 20
    rounds: int = 21
    rate: int = 2000  # changes a second
    storm_s: float = 8.0
    storm_slices: int = 2000


QUICK = Amount(services=(100, 1000), starts=2, changes=50, proxy_changes=5, rounds=7, storm_s=3.0, storm_slices=400)


def measure(*, quick: bool, say: Say = print, amount: Amount | None = None) -> dict[str, Any]:
    """Measure; rows that cannot be measured here are listed under `missing`."""
    amount = amount or (QUICK if quick else Amount())
    out: dict[str, Any] = {"inside": inside_node.measure(amount.rounds), "sizes": [], "missing": []}
    say("  the inside of a node is measured")
    binary = kube_proxy.find()
    if binary is None:
        out["missing"].append("kube-proxy: no rows of it (KUBE_PROXY=FILE, or on PATH)")
    if shutil.which("nft") is None:
        out["missing"].append("an API server that nodes reach: nft")
        return out
    try:
        with control_plane(say) as plane:
            _sizes(plane, binary, amount, out["sizes"], say)
    except (Missing, BuildFailed) as error:
        out["missing"].append(f"an API server: {error}")
    return out


@contextlib.contextmanager
def control_plane(say: Say) -> Iterator[ControlPlane]:
    """Run an API server that nodes can reach; no controllers."""
    netns.sweep()
    programs = build_programs(say)
    with tempfile.TemporaryDirectory(prefix=f"{netns.FOLDER}{os.getpid()}-") as folder:
        plane = ControlPlane(programs, Path(folder), "bench")
        try:
            plane.start()
            Cluster(plane).prepare()
            open_to_nodes(plane)
            yield plane
        finally:
            plane.close()


def _sizes(plane: ControlPlane, binary: str | None, amount: Amount, out: list[dict[str, Any]], say: Say) -> None:
    web = bulk_objects.endpoint_slice("web", bulk_objects.endpoints("web", [POD], NODE))
    bulk_objects.written(plane, [(bulk_objects.service("web", WEB), web)])
    changes = slice_changes.SliceChanges(plane, min(slice_changes.SINGLE, min(amount.services) // 2))
    written = 0
    for count in amount.services:
        began = time.monotonic()
        bulk_load.fill(plane, range(written, count))
        say(f"  {count - written:,} Services and slices written in {time.monotonic() - began:.0f} s")
        written = count
        out.append(_size(plane, binary, count, changes, amount, is_largest=count == max(amount.services)))
        say(f"  {count:,} Services: {out[-1]}")


def _size(
    plane: ControlPlane, binary: str | None, count: int, changes: slice_changes.SliceChanges, amount: Amount, *, is_largest: bool
) -> dict[str, Any]:  # fmt: skip
    """Measure the agent, then kube-proxy, then traffic through both in turns."""
    out: dict[str, Any] = {"services": count}
    starts = [_start(plane) for _ in range(amount.starts - 1)]
    with Lab(tag="l-") as first, Lab(tag="k-") as second:
        nodes = {"lbagent": KubeNode(first, plane, 1), "kube-proxy": KubeNode(second, plane, 2)}
        agent = AgentOnNode(nodes["lbagent"], ["--max-backends", str(BACKENDS)])
        agent.start_timed()
        out["lbagent"] = _all_starts([*starts, (agent.started_s, agent.start_cpu_s)])
        out["lbagent"] |= _agent(agent, plane, count, changes, amount, is_largest=is_largest)
        agent.stop()  # its datapath stays; kube-proxy's start must not share the CPUs with it
        if binary:
            proxy = kube_proxy.TimedKubeProxy(nodes["kube-proxy"], binary)
            out["kube-proxy"] = _proxy(proxy, changes, amount)
        else:
            del nodes["kube-proxy"]
        agent.start_timed()
        out["restart_s"] = agent.started_s
        out["traffic"] = _traffic(nodes, amount.rounds)
    return out


def _start(plane: ControlPlane) -> tuple[float, float]:
    """Start the agent on a new node; return the seconds and the CPU seconds."""
    with Lab(tag="s-") as lab:
        agent = AgentOnNode(KubeNode(lab, plane, 3), ["--max-backends", str(BACKENDS)])
        agent.start_timed()
        found = agent.started_s, agent.start_cpu_s
        agent.stop()
    return found


def _all_starts(starts: list[tuple[float, float]]) -> dict[str, Any]:
    """Return the medians of several starts."""
    seconds, cpu = (Spread.of(list(each)) for each in zip(*starts, strict=True))
    return {
        "start_s": seconds.median,
        "cpu_s": cpu.median,
        "starts": {"s": asdict(seconds), "cpu_s": asdict(cpu), "n": len(starts)},
    }


def _agent(
    agent: AgentOnNode, plane: ControlPlane, count: int, changes: slice_changes.SliceChanges, amount: Amount, *, is_largest: bool
) -> dict[str, Any]:  # fmt: skip
    out: dict[str, Any] = {"resident_mib": agent.settled_mib()}
    with KernelMaps.open(agent.lab.bpffs, create=False) as maps:
        kernel = slice_changes.ServiceMap(maps)
        out["change"] = slice_changes.summary(changes.make(kernel, amount.changes))
        out["resident_after_changes_mib"] = agent.settled_mib()
        if is_largest:
            marker = count - 1
            slices = range(max(count // 2, marker - amount.storm_slices), marker)
            what = change_storm.plan(plane, slices, marker, amount.rate, amount.storm_s)
            out["storms"] = [asdict(change_storm.storm(plane, agent, kernel, what, marker)) for _ in range(2)]
    return out


def _proxy(proxy: kube_proxy.TimedKubeProxy, changes: slice_changes.SliceChanges, amount: Amount) -> dict[str, Any]:
    proxy.start_timed()
    out: dict[str, Any] = {"start_s": proxy.started_s, "cpu_s": proxy.start_cpu_s, "resident_mib": proxy.settled_mib()}
    commits = nft_commits.Commits(proxy.node)
    made = changes.make(commits, amount.proxy_changes, kube_proxy.MIN_SYNC_S + 0.2)
    commits.close()
    return {**out, "change": slice_changes.summary(made), "resident_after_changes_mib": proxy.settled_mib()}


def _traffic(nodes: dict[str, KubeNode], rounds: int) -> dict[str, Any]:
    """Measure from each node's pod to its other pod, directly and by the ClusterIP."""
    for node in nodes.values():
        wait_for(lambda node=node: answers(node.client, (WEB, 80)), "an answer by the ClusterIP", WARM_S)
    return {name: _compared(values) for name, values in measured_traffic(nodes, rounds).items()}


def measured_traffic(nodes: dict[str, KubeNode], rounds: int) -> dict[str, dict[str, list[float]]]:
    """Return by figure and path, `NAME direct` and `NAME vip`, the values of all rounds; paths take turns."""
    out = {}
    with pinned():
        for name, burst, ports in (
            ("connect_us", connect_us, (ANSWER_PORT, 80)),
            ("requests_per_s", requests_per_s, (ANSWER_PORT, 80)),
            ("gbit_per_s", gbit_per_s, (SINK_PORT, 9090)),
        ):
            ways = (("direct", (POD, ports[0])), ("vip", (WEB, ports[1])))
            paths = {key: path for who, node in nodes.items() for key, path in node.paths(who, *ways).items()}
            out[name] = in_turns(burst, paths, rounds)
    return out


def _compared(values: dict[str, list[float]]) -> dict[str, Any]:
    """Return the figures with their ratios: to the direct path, and to kube-proxy's."""
    out: dict[str, Any] = {name: asdict(Spread.of(each)) for name, each in values.items()}
    for who in ("lbagent", "kube-proxy"):
        if f"{who} vip" in values:
            out[f"{who} over direct"] = asdict(ratio(values[f"{who} vip"], values[f"{who} direct"]))
    if "kube-proxy vip" in values:
        out["lbagent over kube-proxy"] = asdict(ratio(values["lbagent vip"], values["kube-proxy vip"]))
    return out
