"""`explain` after a crash: the command itself loads the programs over what the agent has left, and changes nothing."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from scapy.layers.inet import IP, TCP
from scapy.layers.l2 import Ether
from scapy.utils import wrpcap

from tests.e2e.cluster import DNS, VIP4, VIP6, Cluster
from tests.e2e.test_explain import contents
from tests.lab import traffic
from tests.lab.netns import Stopwatch

CLIENT = "10.77.0.2:40000"
ALONE = "no agent answers"
QUESTIONS = (
    (CLIENT, f"{VIP4}:80"),
    ("[fd77::2]:40000", f"[{VIP6}]:80"),
    (CLIENT, f"{VIP4}:81"),
    (CLIENT, f"{DNS[0]}:53/udp"),
    ("10.77.1.2:8080", "10.77.0.2:40000"),
    (CLIENT, "192.0.2.1:80"),
)


def answers(cluster: Cluster, *words: str) -> list[dict[str, Any]]:
    """Return the answers to the questions, without the generation."""
    found = []
    for source, destination in QUESTIONS:
        text = cluster.agent.cli("explain", source, destination, *words, "-o", "json").stdout
        found.append({**json.loads(text), "generation": 0})
    return found


def test_a_killed_agent_leaves_the_same_answers(fresh: Callable[..., Cluster], tmp_path: Path) -> None:
    cluster = fresh("xdp", "--sweep-interval", "1h")
    cluster.web(algorithm="maglev").write(cluster.folder)
    cluster.dns(algorithm="maglev").write(cluster.folder)
    cluster.agent.start()
    alive = answers(cluster)
    assert {each["verdict"] for each in alive} >= {"answer", "pass"}
    assert alive[0]["service"] == "e2e/web"
    cluster.agent.kill()
    for alone, asked in zip(answers(cluster), alive, strict=True):
        for one, other in zip(alone.pop("steps"), asked.pop("steps"), strict=True):
            assert one == other
        assert alone == asked
    link = Ether(src="02:00:00:00:00:01", dst="02:00:00:00:00:02")
    packets = [link / IP(src="10.77.0.2", dst=VIP4) / TCP(sport=n, dport=80) for n in range(300)]
    wrpcap(str(tmp_path / "x.pcap"), packets)
    before = contents(cluster.lab.bpffs)
    done = cluster.agent.cli("explain", "--pcap", str(tmp_path / "x.pcap"))
    assert done.stdout.count("\n") == 300
    assert done.stderr.count(ALONE) == 1
    assert contents(cluster.lab.bpffs) == before
    answer = cluster.client.call(traffic.http_get, VIP4, 80)
    assert answer.backend in {"b1", "b2", "b3"}


def test_exit_codes_without_an_agent(fresh: Callable[..., Cluster]) -> None:
    cluster = fresh("tc")
    done = cluster.agent.cli("explain", CLIENT, f"{VIP4}:80", check=False)
    assert (done.returncode, done.stderr.count("\n")) == (5, 1)
    cluster.web().write(cluster.folder)
    cluster.agent.start()
    cluster.agent.stop()
    for words, code in (
        (("--expect", "reject_undefined_port"), 1),
        (("--expect", "forward", "--device", "none"), 3),
        (("--flags", "Z"), 2),
        (("-f", str(cluster.folder)), 5),
    ):
        done = cluster.agent.cli("explain", CLIENT, f"{VIP4}:80", *words, check=False)
        assert done.returncode == code, (words, done.stderr)
    done = cluster.agent.cli("explain", CLIENT, f"{VIP4}:81", "--expect", "reject_undefined_port")
    assert done.stderr.count(ALONE) == 1


@pytest.mark.parametrize("attach", ["xdp", "tc"])
def test_it_takes_seconds(fresh: Callable[..., Cluster], attach: str) -> None:
    """The answer after a crash needs no patience."""
    cluster = fresh(attach)
    cluster.web().write(cluster.folder)
    cluster.agent.start()
    cluster.agent.kill()
    began = Stopwatch()
    cluster.agent.cli("explain", CLIENT, f"{VIP4}:80")
    assert began.s < 15
