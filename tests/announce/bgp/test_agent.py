"""The real agent with `--announce` and a section `bgp`: clients behind a router with a real BIRD reach a Service at its VIP."""

from __future__ import annotations

import contextlib
import itertools
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.cluster import Cluster
from tests.lab.bird_router import BirdRouter
from tests.lab.manifests import put
from tests.lab.netns import LabError, wait_for
from tests.lab.topology import Lab
from tests.lab.traffic import http_get

pytestmark = [pytest.mark.root, pytest.mark.bpf, pytest.mark.early]
_number = itertools.count()
VIP4, VIP6 = "172.31.78.1", "fd00:77::1"
POOLS = """
pools:
- {{name: office, addresses: [172.31.78.0/28, "fd00:77::/124"], announce: [bgp], avoidBuggyIPs: false}}
bgp: {{localASN: 64512, communities: ["64512:7"], peers: [{{address: 10.77.0.2, asn: 64513, passwordFile: secret, {peer}}}]}}
"""
NEIGHBOUR = """
protocol bgp node {
  local as 64513;
  neighbor 10.77.0.1 as 64512;
  connect delay time 1; connect retry time 2; error wait time 1, 2;
  password "from a file"; bfd on;
  ipv4 { import all; export none; };
  ipv6 { import all; export none; };
}
"""


class BgpCluster(Cluster):
    """A laboratory whose client is also the router."""

    def write_pools(self, peer: str = "bfd: {interval: 300ms, multiplier: 3}") -> Path:
        path = self.lab.folder / "pools.yaml"
        new = path.with_suffix(".new")
        new.write_text(POOLS.format(peer=peer))
        os.replace(new, path)
        return path

    def balanced(self, *names: str, **fields: Any) -> None:
        """Write the Service with its ingress addresses."""
        manifest = self.web(*(names or ("b1", "b3")), **fields)
        manifest.spec |= {"type": "LoadBalancer"}
        objects = manifest.objects()
        objects[0]["status"] = {"loadBalancer": {"ingress": [{"ip": VIP4}, {"ip": VIP6}]}}
        manifest.objects = lambda: objects  # type: ignore[method-assign]
        self.serve(manifest)

    def start_router(self) -> None:
        self.router = BirdRouter(self.client, self.lab.folder)
        self.lab.closing.callback(self.router.close)
        self.router.start("10.77.0.2", NEIGHBOUR)

    def routes(self) -> set[str]:
        return set(self.router.routes())

    def wait_routes(self, *addresses: str) -> None:
        wait_for(lambda: self.routes() == set(addresses), f"routes to {addresses}", 60)

    def since(self) -> float | None:
        """Return since when the router has the session, seconds of the day; None: it has none. BIRD's milliseconds vary by one."""
        text = self.router.ask("show", "protocols", "node")
        match = re.search(r" up +(\S+) +Established", text)
        if match is None:
            return None
        hours, minutes, seconds = match[1].split(":")
        return int(hours) * 3600 + int(minutes) * 60 + float(seconds)

    def vip(self, address: str) -> dict[str, Any]:
        (row,) = (row for row in self.agent.json("vip", "list") if row["address"] == address)
        found: dict[str, Any] = row
        return found


@pytest.fixture
def cluster(bird: str) -> Iterator[BgpCluster]:
    with Lab(tag=f"vip{next(_number)}-") as lab:
        lab.serve_all()
        cluster = BgpCluster(lab, "tc", ["--announce", str(lab.folder / "pools.yaml")])
        (lab.folder / "secret").write_text("from a file\n")
        cluster.write_pools()
        yield cluster
        with contextlib.suppress(LabError):
            cluster.agent.cli("cleanup", check=False)


def test_a_service_is_reached_by_the_routes_of_bgp(cluster: BgpCluster) -> None:
    agent = cluster.agent
    agent.start()
    cluster.balanced()
    cluster.start_router()
    cluster.wait_routes(VIP4, VIP6)
    for vip in (VIP4, VIP6):
        assert cluster.client.call(http_get, vip, 80).backend in ("b1", "b3")
    wait_for(lambda: agent.json("bgp", "peers")[0]["bfd"] == "up", "BFD", 30)
    assert agent.json("bgp", "peers") == [
        {"address": "10.77.0.2", "asn": 64513, "state": "established", "bfd": "up", "advertised": 2}
    ]
    wait_for(lambda: cluster.vip(VIP4)["state"] == "announced", "the row", 20)
    assert cluster.vip(VIP4) | {"reason": ""} == {
        "address": VIP4, "pool": "office", "mode": "bgp", "state": "announced", "node": "demo-node",
        "services": ["e2e/web"], "reason": "",
    }  # fmt: skip
    assert 'lbagent_bgp_session_up{peer="10.77.0.2"} 1' in agent.cli("metrics").stdout

    since = cluster.since()
    agent.kill()
    assert cluster.client.call(http_get, VIP4, 80).backend in ("b1", "b3")
    agent.start()
    cluster.balanced("b1")
    assert cluster.client.call(http_get, VIP4, 80).backend == "b1"
    assert (cluster.routes(), cluster.since()) == ({VIP4, VIP6}, pytest.approx(since, abs=0.1))

    assert agent.stop() == 0
    assert cluster.since() == pytest.approx(since, abs=0.1)
    assert "ended bird" in agent.cli("cleanup").stdout
    cluster.wait_routes()


def test_no_endpoint_withdraws_and_policy_local_announces_from_its_nodes(cluster: BgpCluster) -> None:
    agent = cluster.agent
    agent.start()
    cluster.start_router()
    cluster.balanced()
    cluster.wait_routes(VIP4, VIP6)
    (cluster.folder / "web.yaml").write_text(
        (cluster.folder / "web.yaml").read_text().replace("ready: true", "ready: false")
    )
    cluster.wait_routes()
    assert "no endpoint" in cluster.vip(VIP4)["reason"]
    assert agent.cli("vip", "why", VIP4, check=False).returncode == 1
    cluster.balanced()
    cluster.wait_routes(VIP4, VIP6)
    backends = [each["address"] for each in agent.json("backend", "list")]
    agent.cli("backend", "set-state", "maintenance", *backends, "--yes")
    cluster.wait_routes()
    assert "send no new connections" in cluster.vip(VIP4)["reason"]
    agent.cli("backend", "clear-state", *backends)
    cluster.wait_routes(VIP4, VIP6)
    cluster.balanced("b1", spec={"externalTrafficPolicy": "Local"})
    cluster.wait_routes()
    assert "policy Local" in cluster.vip(VIP4)["reason"]
    cluster.balanced("b3", spec={"externalTrafficPolicy": "Local"})
    cluster.wait_routes(VIP4, VIP6)
    cluster.serve(cluster.dns("b1"))  # an empty folder would not be trusted
    (cluster.folder / "web.yaml").unlink()
    cluster.wait_routes()


def test_terminating_endpoints_that_serve_keep_the_routes_until_they_end(cluster: BgpCluster) -> None:
    """KEP-1669, with policy Cluster: the programs serve them while no endpoint is ready."""
    agent = cluster.agent
    agent.start()
    cluster.start_router()
    cluster.balanced()
    cluster.wait_routes(VIP4, VIP6)
    wait_for(lambda: cluster.vip(VIP4)["state"] == "announced", "the row", 20)
    since, path = cluster.since(), cluster.folder / "web.yaml"
    ends = re.sub(r"( *)ready: true", r"\1ready: false\n\1serving: true\n\1terminating: true", path.read_text())
    put(cluster.folder, "web.yaml", ends)
    wait_for(lambda: {each["state"] for each in agent.json("backend", "list")} == {"terminating"}, "the end", 30)
    for vip in (VIP4, VIP6):
        assert cluster.client.call(http_get, vip, 80).backend in ("b1", "b3")
    assert cluster.vip(VIP4)["state"] == "announced"
    assert (cluster.routes(), cluster.since()) == ({VIP4, VIP6}, pytest.approx(since, abs=0.1))
    put(cluster.folder, "web.yaml", ends.replace("serving: true", "serving: false"))
    cluster.wait_routes()


def test_the_file_is_read_again_and_faults_are_said(cluster: BgpCluster) -> None:
    agent = cluster.agent
    agent.start()
    cluster.balanced()
    (peer,) = wait_for(lambda: agent.json("bgp", "peers"), "the peer", 30)
    assert peer["state"] != "established"
    wait_for(lambda: "no BGP session is established" in cluster.vip(VIP4)["reason"], "the reason", 30)
    wait_for(lambda: any("BGP peer 10.77.0.2" in text for text in agent.api.status()["problems"]), "a problem", 60)
    cluster.start_router()
    cluster.wait_routes(VIP4, VIP6)
    (cluster.lab.folder / "pools.yaml").write_text("bgp: {localASN: wrong}\n")
    wait_for(lambda: "stays" in agent.tail() and "pools.yaml:1: bgp.localASN" in agent.tail(), "the message", 30)
    assert cluster.routes() == {VIP4, VIP6}
    cluster.write_pools("nodeSelector: {rack: b}")
    cluster.wait_routes()
    assert agent.json("bgp", "peers") == []
    cluster.write_pools()
    cluster.wait_routes(VIP4, VIP6)
    agent.stop()
    agent.arguments = []
    agent.start()  # without --announce
    cluster.wait_routes()
    done = agent.cli("bgp", "peers", check=False)
    assert done.returncode == 3
    assert "announces no addresses" in done.stderr
