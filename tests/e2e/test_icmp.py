"""Path MTU discovery and ICMP errors pass the balancer, in both directions and both families."""

from __future__ import annotations

import itertools
import socket
from collections import Counter
from collections.abc import Iterator

import pytest

from lbagent.maps.kernel_maps import KernelMaps
from lbagent.maps.layout import LB_DEVICE
from tests.e2e.cluster import VIP4, VIP6, WEB, Cluster
from tests.e2e.conftest import opened
from tests.e2e.test_explain import CLIENTS, end, explained
from tests.lab import traffic
from tests.lab.manifests import Manifest
from tests.lab.netns import run, wait_for

SMALL_MTU = 1400


@pytest.fixture(scope="module", params=["xdp", "tc"])
def both(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    """Web on the two remote backends only."""
    with opened(request.param) as cluster:
        cluster.web("b1", "b2").write(cluster.folder)
        cluster.dns("b1", "b2").write(cluster.folder)
        cluster.agent.start()
        yield cluster


@pytest.fixture
def remote(both: Cluster) -> Iterator[Cluster]:
    """The same with the original MTUs, and without cached path MTUs."""
    yield both
    for device in ("wan", "lan1", "lan2"):
        both.lab.node.ip(f"link set {device} mtu 1500")
    for number in (1, 2):
        both.lab.namespaces[f"b{number}"].ip(f"route change default via 10.77.{number}.1")
    for space in both.lab.namespaces.values():
        for family in ("-4", "-6"):
            run("ip", family, "-n", space.name, "route", "flush", "cache")


def newly(cluster: Cluster, before: Counter[str], reason: str) -> int:
    """Return how many packets were counted under a reason since."""
    return cluster.packets()[reason] - before[reason]


def wait_learned(cluster: Cluster, vip: str) -> None:
    """Wait until the paths to all backends have the small MTU, which the agent receives from netlink."""
    client, port, full = CLIENTS[":" in vip], itertools.count(50000), SMALL_MTU + 50

    def reason() -> str:
        return str(explained(cluster, end(client, next(port)), end(vip, 80), length=full)["reason"])

    wait_for(lambda: {reason() for _ in range(32)} == {"answer_too_big"}, "the MTU of the paths")


def mtu_of(cluster: Cluster, device: str) -> int:
    """Return the MTU that programs have of a device of the node."""
    ifindex, size = cluster.lab.node.ifindex(device), LB_DEVICE.size
    with (
        KernelMaps.open(str(cluster.lab.bpffs), create=False) as maps,
        maps.window("lb_device", 0, maps.specs["lb_device"].value_size) as view,
    ):
        rows = [LB_DEVICE.unpack(bytes(view[at : at + size])) for at in range(0, len(view) - size + 1, size)]
    return next(int(row[3]) for row in rows if row[0] == ifindex)


def upload(vip: str, size: int) -> str:
    """Send a request with a head of that many bytes and return who answered."""
    with traffic.connect(vip, 80) as sock:
        sock.settimeout(4)
        sock.sendall(b"GET / HTTP/1.1\r\nHost: lab\r\nX-Fill: " + b"x" * size + b"\r\n\r\n")
        return sock.recv(4096).split(b"\r\n\r\n", 1)[1].decode().split()[0]


@pytest.mark.parametrize("vip", WEB)
def test_a_smaller_mtu_towards_the_backends_is_learned_by_the_client(remote: Cluster, vip: str) -> None:
    before = remote.packets()
    for device in ("lan1", "lan2"):
        remote.lab.node.ip(f"link set {device} mtu {SMALL_MTU}")
    wait_learned(remote, vip)
    with remote.client.entered():
        assert upload(vip, 30_000) in ("b1", "b2")
    assert newly(remote, before, "answer_too_big") > 0


@pytest.mark.parametrize("vip", WEB)
def test_a_smaller_mtu_towards_the_clients_is_learned_by_the_backend(remote: Cluster, vip: str) -> None:
    # the client's own device keeps 1500, so its MSS does not reveal it: only the node's device is small
    remote.lab.node.ip(f"link set wan mtu {SMALL_MTU}")
    wait_for(lambda: mtu_of(remote, "wan") == SMALL_MTU, "the MTU of wan")
    with remote.client.entered(), traffic.connect(vip, 80) as sock:
        sock.settimeout(4)
        assert len(traffic.request(sock, "/bytes?n=200000")) == 200_000


@pytest.mark.parametrize("vip", WEB)
def test_an_mtu_beyond_the_node_is_learned_through_translated_errors(remote: Cluster, vip: str) -> None:
    # the route at the backend's side is small; its error about the translated packet must reach the client
    for number in (1, 2):
        backend = remote.lab.namespaces[f"b{number}"]
        backend.ip(f"route change default via 10.77.{number}.1 mtu lock {SMALL_MTU}")
    with remote.client.entered():
        assert upload(vip, 30_000) in ("b1", "b2")


@pytest.mark.parametrize("vip", [VIP4, VIP6])
def test_port_unreachable_of_a_backend_reaches_the_client(remote: Cluster, vip: str) -> None:
    before, dead = remote.packets(), [*remote.endpoints("b1", "b2", port=9)]
    Manifest("dead", (VIP4, VIP6), dead, port=9, protocol="UDP").write(remote.folder)
    wait_for(lambda: remote.selectable("dead"), "the dead service")
    family = socket.AF_INET6 if ":" in vip else socket.AF_INET
    with remote.client.entered(), socket.socket(family, socket.SOCK_DGRAM) as sock:
        sock.settimeout(2)
        sock.connect((vip, 9))
        sock.send(b"anybody there?")
        with pytest.raises(ConnectionRefusedError):
            sock.recv(100)
    assert newly(remote, before, "fwd_icmp") > 0


@pytest.mark.parametrize("vip", WEB)
def test_a_last_hop_is_answered_with_time_exceeded(remote: Cluster, vip: str) -> None:
    before = remote.packets()
    option = (socket.IPPROTO_IPV6, socket.IPV6_UNICAST_HOPS) if ":" in vip else (socket.IPPROTO_IP, socket.IP_TTL)
    with remote.client.entered(), socket.socket(socket.AF_INET6 if ":" in vip else socket.AF_INET) as sock:
        sock.setsockopt(*option, 1)
        sock.settimeout(0.5)
        with pytest.raises(OSError):
            sock.connect((vip, 80))
    assert newly(remote, before, "answer_ttl") + newly(remote, before, "pass_ttl") > 0
    assert newly(remote, before, "fwd_new") == 0


@pytest.mark.parametrize(("vip", "size"), [(VIP4, 4000), (VIP6, 4000), (VIP4, 20000), (VIP6, 20000)])
def test_fragmented_datagrams_find_their_backend(remote: Cluster, vip: str, size: int) -> None:
    # the DNS-like server echoes datagrams shorter than a header; longer ones are a query and its answer
    target = "10.96.0.53" if "." in vip else "fd00:96::53"
    family = socket.AF_INET6 if ":" in vip else socket.AF_INET
    with remote.client.entered(), socket.socket(family, socket.SOCK_DGRAM) as sock:
        sock.settimeout(3)
        sock.connect((target, 53))
        sock.send(b"\x12\x34" + bytes(10) + b"q" * size)
        answer = sock.recv(65535)
    assert answer[:2] == b"\x12\x34"
    assert len(answer) > size


@pytest.mark.parametrize("size", [1450, 4000, 20000])
def test_datagrams_without_df_fit_through_a_smaller_mtu(remote: Cluster, size: int) -> None:
    # the client's device and route have 1500: whole datagrams, and fragments of that size, get to a path of 1400
    for number in (1, 2):
        remote.lab.node.ip(f"link set lan{number} mtu {SMALL_MTU}")
        remote.lab.namespaces[f"b{number}"].ip(f"link set e0 mtu {SMALL_MTU}")
    wait_learned(remote, VIP4)
    try:
        with remote.client.entered(), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
            sock.setsockopt(socket.IPPROTO_IP, 10, 0)  # IP_MTU_DISCOVER: IP_PMTUDISC_DONT
            sock.settimeout(3)
            sock.connect(("10.96.0.53", 53))
            sock.send(b"\x12\x34" + bytes(10) + b"q" * size)
            answer = sock.recv(65535)
        assert answer[:2] == b"\x12\x34"
        assert len(answer) > size
    finally:
        for number in (1, 2):
            remote.lab.namespaces[f"b{number}"].ip("link set e0 mtu 1500")
