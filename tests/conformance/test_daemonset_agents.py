"""Agents in Pods: which process is killed, which Pod is deleted then, which one gets requests, and the containers' output."""

from __future__ import annotations

import subprocess
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, cast

import pytest

from tests.conformance.daemonset_agents import DaemonSetAgents, PodAgent, container_log
from tests.conformance.node_cluster import NodeCluster
from tests.lab import cgroup
from tests.lab.netns import wait_for

AGENT = ["lbagent", "agent", "--config=c", "--node-name=node"]


def pod(name: str, node: str = "node", restarts: int = 0, **meta: str) -> dict[str, Any]:
    return {
        "metadata": {"name": name, "uid": f"uid-of-{name}", **meta},
        "spec": {"nodeName": node},
        "status": {"containerStatuses": [{"restartCount": restarts}]},
    }


class Cluster:
    """A fake cluster: the Pods in its API, and the requests."""

    def __init__(self, *pods: dict[str, Any], logs: str = "") -> None:
        self.pods, self.logs = list(pods), logs
        self.nodes = ["node", "node2"]
        self.asked: list[tuple[str, ...]] = []

    def json(self, *_words: str) -> Any:
        return {"items": list(self.pods)}

    def kubectl(self, *words: str) -> str:
        self.asked.append(words)
        return ""

    def run_on_node(self, _node: str, _argv: Sequence[str]) -> subprocess.CompletedProcess[str]:
        return subprocess.CompletedProcess([], 0, self.logs, "")


def agents(folder: Path, cluster: Cluster) -> DaemonSetAgents:
    return DaemonSetAgents(cast(NodeCluster, cluster), folder, [])


@pytest.fixture
def group() -> Iterator[Path]:
    """A cgroup like a kubelet's for the container of a Pod."""
    with cgroup.made() as outer:
        inner = outer / "poduid-of-lbagent-1" / "container"
        inner.mkdir(parents=True)
        yield inner
        inner.rmdir()
        inner.parent.rmdir()


def process(argv: list[str], group: Path | None = None) -> subprocess.Popen[bytes]:
    """Start a process that sleeps and whose command line is `argv`, in a cgroup."""
    started = subprocess.Popen(["perl", "-e", "sleep 1000", *argv])
    if group:
        (group / "cgroup.procs").write_text(str(started.pid))
    return started


@pytest.mark.root
def test_the_agent_of_the_pod_is_killed_and_nothing_beside_it(group: Path, tmp_path: Path) -> None:
    one = PodAgent(cast(NodeCluster, Cluster()), "node", tmp_path / "log")
    mine = process(AGENT, group)
    others = [process(["lbagent", "verify"], group), process(AGENT)]  # `kubectl exec`; an agent of another Pod
    try:
        assert one.pid is None, "no Pod is known"
        one.pod = pod("lbagent-1")
        assert wait_for(lambda: one.pid, "the agent") == mine.pid
        threading.Thread(target=mine.wait).start()  # the runtime waits for its children
        one.kill()
        assert mine.wait() == -9
        assert one.pid is None
        assert [other.poll() for other in others] == [None, None]
    finally:
        for each in (mine, *others):
            each.kill()
            each.wait()


def test_a_pod_whose_container_was_started_again_is_deleted(tmp_path: Path) -> None:
    cluster = Cluster(pod("lbagent-1", restarts=1), pod("lbagent-2", node="node2"))
    agents(tmp_path, cluster)._restart()
    assert [words[2:] for words in cluster.asked] == [("delete", "pod", "--wait=false", "lbagent-1")]


def test_the_kubelet_starts_a_container_the_first_time(tmp_path: Path) -> None:
    cluster = Cluster(pod("lbagent-1"), pod("lbagent-2", node="node2"))
    agents(tmp_path, cluster)._restart()
    assert cluster.asked == []


@pytest.mark.parametrize("order", [1, -1])
def test_a_pod_that_ends_counts_while_there_is_no_other(tmp_path: Path, order: int) -> None:
    ends, new = pod("lbagent-1", deletionTimestamp="now"), pod("lbagent-2")
    cluster = Cluster(*[ends, new][::order])
    all_of_them = agents(tmp_path, cluster)
    all_of_them._look()
    assert all_of_them.agents[0].pod is new
    cluster.pods = [ends]
    all_of_them._look()
    assert [agent.pod for agent in all_of_them.agents] == [ends, {}]


def test_starts_and_logs_of_all_pods_count_once(tmp_path: Path) -> None:
    cluster = Cluster()
    one = PodAgent(cast(NodeCluster, cluster), "node", tmp_path / "log")
    one.keep_log()

    def keep(seen: dict[str, Any], *files: str) -> None:
        lines = [f'/var/log/{file}.log:T:1 stderr F {{"level": "error", "message": "{file}"}}\n' for file in files]
        one.pod, cluster.logs = seen, "".join(lines)
        one.keep_log()

    keep(pod("lbagent-1", restarts=1), "1/0", "1/1")
    keep(pod("lbagent-1", restarts=1), "1/1")  # the kubelet removed the first one
    keep(pod("lbagent-2"), "2/0")
    keep(pod("lbagent-2", restarts=1), "2/0", "2/1")
    assert one.starts == 4
    assert one.log_counts() == {"error: 1/0": 1, "error: 1/1": 1, "error: 2/0": 1, "error: 2/1": 1}


def test_a_line_that_the_runtime_split_is_whole() -> None:
    assert container_log("T stderr F one\nT stdout P two, \nT stdout F and  more\nT stderr F \n") == (
        "one\ntwo, and  more\n\n"
    )
