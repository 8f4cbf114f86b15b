"""The agent's reports about egress devices, and the parts that another agent of the same machine owns."""

from __future__ import annotations

import json
import socket
import subprocess
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from lbagent.kernel.features import xdp_features
from tests.e2e.cluster import WEB, Cluster
from tests.lab import traffic
from tests.lab.agent import program
from tests.lab.manifests import Manifest
from tests.lab.netns import run, wait_for
from tests.lab.topology import Backend
from tests.lab.xdp import detach

pytestmark = pytest.mark.early

EVERY_FRAME = 3  # ETH_P_ALL
EMPTY = ("10.96.4.4", "fd00:96::404")
REFUSING = {
    "bridge": "link add over0 type bridge",
    "vxlan": "link add over0 type vxlan id 7 local 10.77.1.1 remote 10.77.1.2 dstport 4789 dev lan1",
}


@pytest.mark.parametrize("kind", list(REFUSING))
def test_status_and_doctor_say_which_way_a_backend_goes(fresh: Callable[..., Cluster], kind: str) -> None:
    cluster = fresh("xdp", "--pod-device", "over*")
    lab = cluster.lab
    lab.node.ip(REFUSING[kind], "link set over0 up", "addr add 10.78.0.1/24 dev over0")
    lab.backends["over"] = Backend("over", "over", "10.78.0.2", "fd78::2")
    endpoints = [endpoint for endpoint in cluster.endpoints("over", "b1", "b3") if ":" not in endpoint.address]
    Manifest("web", WEB[:1], endpoints).write(cluster.folder)
    cluster.agent.start()
    status = cluster.agent.json("status")
    outputs = {item["name"]: item for item in status["outputs"]}
    assert outputs["lan1"] == {"name": "lan1", "kind": "veth", "way": "xdp", "reason": ""}
    assert (outputs["over0"]["kind"], outputs["over0"]["way"]) == (kind, "tc")
    assert kind in outputs["over0"]["reason"]
    lines = cluster.agent.cli("status", check=False).stdout.splitlines()
    assert "output     lan1: remote backends, by xdp" in lines
    assert f"output     over0: remote backends, by tc ({outputs['over0']['reason']})" in lines
    ways = {row["address"].partition(":")[0]: row for row in cluster.agent.json("backend", "list")}
    assert (ways["10.77.1.2"]["way"], ways["10.77.1.2"]["device"]) == ("xdp", "lan1")
    over = ways["10.78.0.2"]
    assert [over[key] for key in ("way", "device", "way_reason")] == ["tc", "over0", outputs["over0"]["reason"]]
    assert (ways[lab.backends["b3"].ipv4]["way"], ways[lab.backends["b3"].ipv4].get("device")) == ("stack", None)
    doctor = subprocess.run(
        lab.node.command([*program(), "doctor", "--device", "wan", "--attach", "xdp", "-o", "json"]),
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    said = [item["what"] for item in json.loads(doctor.stdout)]
    assert [text for text in said if f"over0 ({kind})" in text and "go by tc" in text]


def test_a_veth_whose_other_end_stops_to_poll_is_sent_to_by_tc(fresh: Callable[..., Cluster]) -> None:
    cluster = fresh("xdp")
    if not cluster.lab.node.call(xdp_features):
        pytest.skip("the kernel does not tell (Linux 6.3)")
    cluster.web("b1").write(cluster.folder)
    cluster.agent.start()
    assert cluster.http(10) == {"b1": 10}
    detach(cluster.lab.namespaces["b1"], "e0")

    def reason() -> str:
        """Return why the only output uses tc; nothing while the paths are being looked up again."""
        outputs = cluster.agent.json("status")["outputs"]
        return next((row["reason"] for row in outputs if row["way"] == "tc"), "")

    assert "gro on" in wait_for(reason, "the way by tc", 20)
    assert cluster.http(20) == {"b1": 20}
    capture = cluster.lab.node.call(
        partial(socket.socket, socket.AF_PACKET, socket.SOCK_RAW, socket.htons(EVERY_FRAME))
    )
    with capture:  # as tcpdump does: it holds every frame that XDP leaves to tc
        assert cluster.http(20) == {"b1": 20}


def test_who_asks_by_such_a_link_is_refused_at_once(fresh: Callable[..., Cluster]) -> None:
    """Answers of the programs themselves use tc too."""
    cluster = fresh("xdp")
    detach(cluster.client, "c0")
    cluster.web().write(cluster.folder)
    Manifest("empty", EMPTY, []).write(cluster.folder)
    cluster.agent.start()
    for vip in EMPTY:
        with pytest.raises(ConnectionRefusedError):
            cluster.client.call(traffic.connect, vip, 80, timeout_s=5)


def test_cleanup_of_one_agent_leaves_the_neighbours_of_another(fresh: Callable[..., Cluster], tmp_path: Path) -> None:
    cluster = fresh("tc")
    cluster.web("b1", "b2").write(cluster.folder)
    cluster.agent.start()
    other = tmp_path / "manifests"
    other.mkdir()
    Manifest("web", ["10.96.1.1"], cluster.endpoints("b2")[:1]).write(other)
    bpffs, socket = cluster.lab.bpffs_root / "other", tmp_path / "socket"
    node = cluster.lab.node
    node.ip("link add x0 type veth peer name x1", "link set x0 up", "link set x1 up")  # a second agent needs its own
    second = node.popen(
        [*program(), "agent", "--manifests", str(other), "--device", "x0", "--attach", "tc", "--bpffs", str(bpffs),
         "--socket", str(socket), "--state-dir", str(tmp_path / "state"), "--flow-table-size", "1024"],
        stderr=subprocess.DEVNULL,
    )  # fmt: skip

    def managed() -> set[str]:
        found = json.loads(run("ip", "-n", node.name, "-d", "-j", "neigh"))
        return {item["dst"] for item in found if "managed" in item}

    try:
        both = {"10.77.1.2", "10.77.2.2", "fd77:1::2", "fd77:2::2"}
        wait_for(lambda: managed() >= both and socket.exists(), "the neighbours of both")
        wait_for(lambda: subprocess.run(
            node.command([*program(), "status", "--wait", "60s", "--socket", str(socket)]), capture_output=True, check=False
        ).returncode in (0, 1), "the second agent", 90)  # fmt: skip
    finally:
        second.terminate()
        second.wait(60)
    done = subprocess.run(
        node.command([*program(), "cleanup", "--bpffs", str(bpffs)]), capture_output=True, text=True, check=False
    )
    assert done.returncode == 0
    assert "released 1 neighbours" in done.stdout
    wait_for(lambda: managed() >= both, "what the first agent keeps", 2)
    assert cluster.http(10, WEB[:1]).total() == 10


@pytest.mark.parametrize("attach", ["xdp", "tc"])
def test_a_strict_reverse_path_filter_is_told_where_it_breaks_the_nodes_own_connections(
    fresh: Callable[..., Cluster], attach: str
) -> None:
    cluster = fresh(attach)
    node = cluster.lab.node
    node.ip("route add default via 10.77.0.2")
    cluster.web("b1", "b3").write(cluster.folder)
    cluster.agent.start()

    def told() -> tuple[str, str]:
        words = ["doctor", "--device", "wan", "--device", "lan1", "--pod-device", "pod*", "-o", "json"]
        done = subprocess.run(node.command([*program(), *words]), capture_output=True, text=True, check=False)
        said = [item["what"] for item in json.loads(done.stdout)] + cluster.agent.json("status")["problems"]
        by_doctor, by_status = (
            [text for text in said if "strict reverse path" in text and "no answer" in text] + ["", ""]
        )[:2]
        return by_doctor, by_status

    assert told() == ("", "")
    for device in ("wan", "lan1", "pod3"):  # the routes to VIPs use wan: packets that arrive there are right
        node.sysctl(f"ipv4/conf/{device}/rp_filter", 1)
    for text in told():
        assert "on lan1, pod3: processes of this node" in text
    with node.entered(), pytest.raises(TimeoutError):
        for _ in range(4):
            traffic.connect(WEB[0], 80, timeout_s=1).close()
    for device in ("lan1", "pod3"):  # the advice
        node.sysctl(f"ipv4/conf/{device}/rp_filter", 2)
    assert told() == ("", "")
    assert set(traffic.spread(node, 40, partial(traffic.http_get, WEB[0], 80))) == {"b1", "b3"}


def test_the_advice_for_a_veth_with_xdp_works(fresh: Callable[..., Cluster]) -> None:
    """`ethtool -K PEER tx off gro on`, and no XDP program at the other ends."""
    cluster = fresh("xdp")
    lab = cluster.lab
    for role, device in (("client", "c0"), ("b1", "e0"), ("b2", "e0")):
        detach(lab.namespaces[role], device)
        lab.namespaces[role].checksum_offload_off(device)  # the laboratory has done that already
    cluster.web("b1", "b2").write(cluster.folder)
    cluster.agent.start()
    ways = {item["name"]: item["way"] for item in cluster.agent.json("status")["outputs"]}
    assert cluster.http(20).total() == 20  # with the first half of the advice nothing is lost, but all packets use tc
    if lab.node.call(xdp_features):
        assert ways == {"lan1": "tc", "lan2": "tc"}
    for role, device in (("client", "c0"), ("b1", "e0"), ("b2", "e0")):
        lab.namespaces[role].receive_offload_on(device)
    wait_for(lambda: {item["way"] for item in cluster.agent.json("status")["outputs"]} == {"xdp"}, "the way by XDP", 5)
    before = cluster.packets()["pass_neighbor"]
    assert cluster.http(20).total() == 20
    assert cluster.packets()["pass_neighbor"] == before
    assert "lbagent_xdp_send_errors_total{" not in cluster.agent.api.metrics()
