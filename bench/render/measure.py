"""Both with the same objects of one API server, in turns: the start with many Services, a change, connections, verify, shadow."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import time
from collections.abc import Callable, Collection, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from bench.control import percentile
from bench.harness import Spread, ratio
from bench.kube import bulk_load, bulk_objects, kube_proxy, nft_commits, slice_changes
from bench.kube.kube_node import POD, AgentOnNode, KubeNode, cpu_s
from bench.kube.measure import WARM_S, WEB, control_plane, measured_traffic
from bench.kube.pod_client import answers, opened
from bench.kube.slice_changes import SliceChanges
from tests.kube_api.cluster import NODE
from tests.kube_api.control_plane import ControlPlane
from tests.kube_api.programs import BuildFailed, Missing, find_kube_proxy
from tests.lab.netns import Namespace, wait_for
from tests.lab.topology import Lab

ROWS = ("start", "change", "traffic", "verify", "shadow")
ENDPOINTS, PORTS = 3, 1
NFTABLES = ("--renderer", "nftables")
PAUSE_S = 0.002  # between two connects of the client that watches a start
IDLE_S = 3.0
SHADOW_RATE, SHADOW_S = 1000, 10.0
Say = Callable[[str], object]


@dataclass(frozen=True)
class Amount:
    """How much of everything."""

    services: int = 10_000
    starts: int = 3
    changes: int = 50
    proxy_changes: int = 20
    rounds: int = 21

    @property
    def changing(self) -> int:
        """Services that change, in turns: so few that each of the two meets them again, and sees endpoints go and come back."""
        return max(1, min(self.changes, self.proxy_changes) // 2)


QUICK = Amount(services=1000, starts=2, changes=10, proxy_changes=5, rounds=5)


def measure(amount: Amount, rows: Collection[str], say: Say = print) -> dict[str, Any]:
    """Measure these rows; what cannot be measured here is listed under `missing`."""
    out: dict[str, Any] = {"services": amount.services, "missing": []}
    found = find_kube_proxy() or kube_proxy.find()
    if found is None:
        return out | {"missing": ["kube-proxy: KUBE_PROXY=FILE, on PATH, or built by `make fetch`"]}
    try:
        with control_plane(say) as plane:
            _Run(plane, str(found), amount, say).rows(rows, out)
    except (Missing, BuildFailed) as error:
        out["missing"].append(f"an API server: {error}")
    return out


class _Run:
    """One API server, and nodes with one of the two."""

    def __init__(self, plane: ControlPlane, binary: str, amount: Amount, say: Say) -> None:
        self.plane, self.binary, self.amount, self.say = plane, binary, amount, say
        self.changes = SliceChanges(plane, amount.changing, ENDPOINTS)

    def rows(self, rows: Collection[str], out: dict[str, Any]) -> None:
        """Measure. The Service that traffic goes to is there first, alone."""
        web = bulk_objects.endpoint_slice("web", bulk_objects.endpoints("web", [POD], NODE))
        bulk_objects.written(self.plane, [(bulk_objects.service("web", WEB), web)])
        with Lab(tag="l-") as first, Lab(tag="k-") as second:
            ours, theirs = KubeNode(first, self.plane, 1), KubeNode(second, self.plane, 2)
            agent, proxy = AgentOnNode(ours, NFTABLES), kube_proxy.TimedKubeProxy(theirs, self.binary)
            agent.start_timed()
            proxy.start_timed()
            for node in (ours, theirs):
                wait_for(lambda node=node: answers(node.client, (WEB, 80)), "an answer by the ClusterIP", WARM_S)
            agent.stop()
            proxy.stop()
            began = time.monotonic()
            bulk_load.fill(self.plane, range(self.amount.services), ENDPOINTS, PORTS)
            self.say(f"  {self.amount.services:,} Services written in {time.monotonic() - began:.0f} s")
            out["lbagent"] = self._started(ours, agent.start_timed, lambda: agent.started_s, agent.settled_mib)
            if "change" in rows:
                commits = nft_commits.Commits(ours, "default/{} http")
                made = self.changes.make(commits, self.amount.changes)
                out["lbagent"]["change"] = slice_changes.summary(made)
                commits.close()
            if "verify" in rows:
                out["verify"] = {"nftables": self._verified(agent)}
            agent.stop()
            out["kube-proxy"] = self._started(theirs, proxy.start_timed, lambda: proxy.started_s, proxy.settled_mib)
            if "change" in rows:
                commits = nft_commits.Commits(theirs)
                made = self.changes.make(commits, self.amount.proxy_changes, kube_proxy.MIN_SYNC_S + 0.2)
                out["kube-proxy"]["change"] = slice_changes.summary(made)
                commits.close()
            self.say(f"  one of each: {out}")
            if "traffic" in rows:
                out["traffic"] = _traffic({"lbagent": ours, "kube-proxy": theirs}, self.amount.rounds)
            if "shadow" in rows:
                out["shadow"] = self._shadow(theirs)
            proxy.stop()
        if "start" in rows:
            self._starts(out)
        if "verify" in rows:
            out["verify"]["bpf"] = self._bpf_verified()

    def _started(
        self, node: KubeNode, start: Callable[[], object], took: Callable[[], float], memory: Callable[[], float]
    ) -> dict[str, Any]:
        """Start over what is there, which has one Service, while a client connects to it."""
        with _connecting(node.lab, node.client) as path:
            time.sleep(IDLE_S)
            at = time.monotonic()
            start()
            ended = time.monotonic()
        found = [tuple(map(float, line.split())) for line in path.read_text().splitlines() if line.count(" ") == 1]
        before = [ms for when, ms in found if when < at]
        during = [ms for when, ms in found if at <= when < ended]
        p99 = [percentile(each, 99) for each in (before, during)]
        return {"started_s": took(), "resident_mib": memory(), "connect_p99_ms": p99, "failed": during.count(FAILED_MS)}

    def _starts(self, out: dict[str, Any]) -> None:
        """Start each on new nodes, in turns."""
        seconds: dict[str, list[float]] = {"lbagent": [], "kube-proxy": []}
        for _ in range(max(2, self.amount.starts)):
            with Lab(tag="l-") as lab:
                agent = AgentOnNode(KubeNode(lab, self.plane, 3), NFTABLES)
                agent.start_timed()
                seconds["lbagent"].append(agent.started_s)
                agent.stop()
            with Lab(tag="k-") as lab:
                proxy = kube_proxy.TimedKubeProxy(KubeNode(lab, self.plane, 3), self.binary)
                proxy.start_timed()
                seconds["kube-proxy"].append(proxy.started_s)
                proxy.stop()
            self.say(f"  starts: {seconds}")
        out["starts"] = {name: asdict(Spread.of(each)) for name, each in seconds.items()}
        out["starts"]["ratio"] = asdict(ratio(seconds["lbagent"], seconds["kube-proxy"]))

    def _verified(self, agent: AgentOnNode) -> float:
        """Return the seconds of `lbagent verify`, the whole process; nothing differs."""
        took = []
        for _ in range(3):
            began = time.monotonic()
            agent.cli("verify")
            took.append(time.monotonic() - began)
        return Spread.of(took).median

    def _bpf_verified(self) -> float:
        with Lab(tag="b-") as lab:
            agent = AgentOnNode(KubeNode(lab, self.plane, 3))
            agent.start_timed()
            took = self._verified(agent)
            agent.stop()
        return took

    def _shadow(self, node: KubeNode) -> dict[str, Any]:
        """Compare kube-proxy's connections; return the share of a CPU that the agent takes, and what it counted."""
        agent = AgentOnNode(node, ("--shadow",))
        agent.start_timed()
        time.sleep(IDLE_S)
        idle, began = cpu_s(agent.pid), time.monotonic()
        time.sleep(IDLE_S)
        idle = (cpu_s(agent.pid) - idle) / (time.monotonic() - began)
        before, began = cpu_s(agent.pid), time.monotonic()
        with node.client.entered():
            made = _connects(SHADOW_RATE, SHADOW_S)
        seconds = time.monotonic() - began
        busy = (cpu_s(agent.pid) - before) / seconds
        report = agent.json("shadow", "report")
        agent.stop()
        return {
            "rate": made / seconds,
            "idle_share": idle,
            "share": busy,
            "flows": report["flows"],
            "same": report["same"],
        }


# --- clients ---

FAILED_MS = 10_000.0


@contextlib.contextmanager
def _connecting(lab: Lab, space: Namespace) -> Iterator[Path]:
    """Connect all the time in a process of its own, which writes lines of when each began and its milliseconds."""
    path = lab.folder / "connects"
    process = multiprocessing.Process(target=_connect_all_the_time, args=(space, path), daemon=True)
    process.start()
    try:
        yield path
    finally:
        process.terminate()
        process.join()


def _connect_all_the_time(space: Namespace, path: Path) -> None:
    os.setpriority(os.PRIO_PROCESS, 0, -20)
    with path.open("w", buffering=1) as found, space.entered():
        while True:
            at, ms = time.monotonic(), FAILED_MS
            with contextlib.suppress(OSError), opened() as sock:
                sock.connect((WEB, 80))
                ms = (time.monotonic() - at) * 1e3
            print(at, ms, file=found)
            time.sleep(PAUSE_S)


def _connects(rate: int, seconds: float) -> int:
    """Connect at a rate; return how many were made."""
    began, made = time.monotonic(), 0
    while (now := time.monotonic()) - began < seconds:
        while made < (now - began) * rate:
            with opened() as sock:
                sock.connect((WEB, 80))
            made += 1
        time.sleep(0.001)
    return made


def _traffic(nodes: dict[str, KubeNode], rounds: int) -> dict[str, Any]:
    """Measure from each node's pod to its other pod; the rules of an agent that has ended serve on."""
    return {
        name: {key: asdict(Spread.of(each)) for key, each in values.items()}
        | {"ratio": asdict(ratio(values["lbagent vip"], values["kube-proxy vip"]))}
        for name, values in measured_traffic(nodes, rounds).items()
    }
