"""Links that flap, neighbours that the kernel removes, devices that accept no frames from XDP: packets that the stack would have
delivered are delivered. With the agent and, as programs must not depend on it, without."""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import signal
import socket
import struct
import time
from collections.abc import Callable, Iterator

import pytest

from tests.e2e.cluster import WEB, Cluster
from tests.lab import traffic
from tests.lab.manifests import Manifest
from tests.lab.netns import SIOCETHTOOL, LabError, Namespace, Stopwatch, run, wait_for
from tests.lab.topology import Backend

pytestmark = pytest.mark.quiet  # an outage of up to a second looks like a busy machine
AGENT = pytest.mark.parametrize("agent", ["running", "stopped"])


@contextlib.contextmanager
def agent_is(cluster: Cluster, how: str) -> Iterator[None]:
    """Run with the agent, or stop it for a while."""
    process = cluster.agent.process
    assert process is not None
    if how == "stopped":
        process.send_signal(signal.SIGSTOP)
    try:
        yield
    finally:
        process.send_signal(signal.SIGCONT)


def forget(node: Namespace, *devices: str) -> None:
    """Flush the neighbours of these devices.

    Not incomplete ones: the kernel answers packets that wait for such an entry with host unreachable when it is deleted, also those
    that it forwards itself (one of 20,000 connections through a router without a balancer), and `ip neigh flush` repeats until none is left.
    """
    known = [word for state in ("reachable", "stale", "delay", "probe") for word in ("nud", state)]
    for device in devices:
        for family in ("-4", "-6"):
            run("ip", family, "-n", node.name, "neigh", "flush", "dev", device, *known)


def first_answer_s(client: Namespace, vip: str, give_up_s: float = 5.0) -> float:
    """Return after how many seconds (Stopwatch.s) a new connection was answered, with repeated attempts."""
    start = Stopwatch()
    with client.entered():
        while start.s < give_up_s:
            with contextlib.suppress(OSError), traffic.connect(vip, 80, timeout_s=0.2) as sock:
                traffic.request(sock)
                break
    return start.s


@AGENT
def test_a_backend_is_back_within_a_second_of_its_link(served: Cluster, agent: str) -> None:
    b1 = served.lab.namespaces["b1"]
    b1.sysctl("ipv6/conf/e0/keep_addr_on_down", 1)
    served.serve(served.web("b1"))
    assert served.http(4) == {"b1": 4}
    try:
        with agent_is(served, agent):
            b1.ip("link set e0 down")
            time.sleep(1.5)
            b1.ip("link set e0 up")
            wait_for(lambda: "state UP" in run("ip", "-n", served.lab.node.name, "link", "show", "lan1"), "lan1")
            took = {vip: first_answer_s(served.client, vip) for vip in WEB}
            assert max(took.values()) < 1.0, took
            before = traffic.syns_again(served.client)
            assert served.http(20) == {"b1": 20}
            assert traffic.syns_again(served.client) == before, "a packet was lost"
    finally:
        b1.ip("route replace default via 10.77.1.1", "route replace default via fd77:1::1")


@AGENT
@pytest.mark.parametrize("devices", [("lan1", "lan2", "pod3"), ("wan",)], ids=["backends", "clients"])
def test_no_packet_is_lost_when_neighbours_are_forgotten(served: Cluster, agent: str, devices: tuple[str, ...]) -> None:
    talkers = served.talkers(12)
    with agent_is(served, agent), served.load() as load:
        for _ in range(5):
            load.wait_more(40)
            with load.held():  # the kernel loses a packet that is being sent to a deleted entry
                forget(served.lab.node, *devices)
            time.sleep(0.3)  # of the agent: it has received the event
        load.wait_more(40)
    assert load.tally.failures == []
    assert load.tally.syns_again == 0, (
        "a packet was lost"
    )  # times are not compared: on a busy machine they are not meaningful
    assert talkers.ask() == talkers.first
    talkers.close()


def test_a_deleted_neighbour_is_asked_for_again(served: Cluster) -> None:
    """`ip neigh del` of one entry, a pause, then a first packet in each direction."""
    served.serve(served.web("b1"))
    for _ in range(2):
        served.lab.node.ip("neigh del 10.77.1.2 dev lan1", "neigh del 10.77.0.2 dev wan")
        time.sleep(0.5)
        before = traffic.syns_again(served.client)
        assert served.http(4, WEB[:1]) == {"b1": 4}
        assert traffic.syns_again(served.client) == before


# --- devices that accept no frames from XDP ---

ETHTOOL_GFLAGS, ETHTOOL_SFLAGS, VLAN_OFFLOAD = 0x25, 0x26, 1 << 7  # ETH_FLAG_TXVLAN
OVERLAYS = {  # commands for over0 on the node, and for the backend
    "vlan": (
        ["link add link lan1 name over0 type vlan id 7"], "o0", ["link add link e0 name o0 type vlan id 7"],
    ),
    "vxlan": (
        ["link add over0 type vxlan id 7 local 10.77.1.1 remote 10.77.1.2 dstport 4789 dev lan1"], "o0",
        ["link add o0 type vxlan id 7 local 10.77.1.2 remote 10.77.1.1 dstport 4789 dev e0"],
    ),
    "bridge": (["link add over0 type bridge", "link set lan1 master over0"], "e0", []),
    "macvlan": (["link add link lan1 name over0 type macvlan mode bridge"], "e0", []),
}  # fmt: skip


def tags_in_frames(space: Namespace, device: str) -> None:
    """Make a veth write VLAN tags into its frames, as on a cable; by default it passes them as metadata."""
    with space.entered(), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:

        def ask(command: int, value: int) -> int:
            buffer = ctypes.create_string_buffer(struct.pack("II", command, value))
            fcntl.ioctl(sock, SIOCETHTOOL, struct.pack("16sQ", device.encode(), ctypes.addressof(buffer)))
            return int(struct.unpack_from("II", buffer)[1])

        ask(ETHTOOL_SFLAGS, ask(ETHTOOL_GFLAGS, 0) & ~VLAN_OFFLOAD)


@pytest.mark.parametrize("kind", list(OVERLAYS))
def test_a_backend_behind_a_device_that_takes_no_frames_from_xdp(fresh: Callable[..., Cluster], kind: str) -> None:
    """NICs have XDP, the device above one of them has tc, as `--attach auto` does it: every connection of both families is answered."""
    cluster = fresh("auto")
    lab, (here, device, there) = cluster.lab, OVERLAYS[kind]
    b1 = lab.namespaces["over"] = lab.namespaces["b1"]
    if kind == "vlan":
        tags_in_frames(b1, "e0")
    try:
        lab.node.ip(*here)
    except LabError as error:
        if "Unknown device type" not in str(error):
            raise
        pytest.skip(f"this kernel has no {kind} devices")
    lab.node.ip("link set over0 up", "addr add 10.78.0.1/24 dev over0", "addr add fd78::1/64 dev over0 nodad")
    b1.ip(
        *there,
        f"link set {device} up",
        f"addr add 10.78.0.2/24 dev {device}",
        f"addr add fd78::2/64 dev {device} nodad",
    )
    b1.checksum_offload_off(device)
    lab.backends["over"] = Backend("over", "over", "10.78.0.2", "fd78::2")
    lab.serve("over")
    Manifest("web", WEB, cluster.endpoints("over")).write(cluster.folder)
    cluster.agent.devices.append("over0")
    cluster.agent.start(module="tests.e2e.nic_agent")
    before = traffic.syns_again(cluster.client)
    assert cluster.http(40) == {"over": 40}
    assert traffic.syns_again(cluster.client) == before
    counted = cluster.packets()
    assert counted["pass_neighbor"] >= 40
    assert counted["drop_no_neighbor"] == 0
    hooks = {item["name"]: item["hooks"] for item in cluster.agent.api.status()["devices"]}
    assert sorted(hooks["wan"]) == ["tc_after_xdp", "tc_egress", "xdp"]
    assert sorted(hooks["over0"]) == ["tc_egress", "tc_ingress"]
