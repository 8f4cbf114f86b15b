"""A Service with an L7 proxy: a real HAProxy for TCP and a small server for UDP, both transparent, as processes of the node."""

from __future__ import annotations

import contextlib
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

from lbagent.kernel.features import kernel_version
from tests.e2e.cluster import DNS, WEB, Cluster
from tests.e2e.test_monitor import CLOSED, begin, connect, monitoring
from tests.lab import cgroup, traffic
from tests.lab.debian_packages import HAPROXY, unpacked
from tests.lab.manifests import Manifest
from tests.lab.netns import Namespace, wait_for
from tests.lab.topology import HTTP_PORT, end

PORT = 15001
WORD = {"lbagent.io/l7-proxy-port": str(PORT)}
MARK = "0x4c37"
CLIENTS = {4: "10.77.0.2", 6: "fd77::2"}
IP_TRANSPARENT, IPV6_TRANSPARENT = 19, 75
IP_RECVORIGDSTADDR, IPV6_RECVORIGDSTADDR = 20, 74
POLL_S = 0.2
# What HAProxy answers itself is what it sees: its own address, and its peer's.
CONFIG = """
global
    {reuse}
defaults
    mode http
    timeout connect 5s
    timeout client 300s
    timeout server 300s
frontend services
    bind :{port} transparent
    bind :::{port} v6only transparent
    http-request return status 200 content-type text/plain lf-string "[%[dst]]:%[dst_port] %[src]" if {{ path / }}
    default_backend web
backend web
    server b1 {server}:{server_port}
"""


@contextlib.contextmanager
def haproxy(space: Namespace, folder: Path, server: str) -> Iterator[None]:
    """Run Debian's HAProxy as a process of a namespace."""
    files = unpacked("haproxy", HAPROXY)
    config = folder / "haproxy.cfg"
    reuse = "" if kernel_version() >= (6, 6) else "noreuseport"
    config.write_text(CONFIG.format(port=PORT, server=server, server_port=HTTP_PORT, reuse=reuse))
    argv = [str(files.program("haproxy")), "-db", "-f", str(config)]
    with (folder / "haproxy.log").open("w") as log:
        process = space.popen(argv, env=files.environment(), stdout=log, stderr=subprocess.STDOUT)
    try:
        wait_for(lambda: process.poll() is not None or space.call(_listens), "HAProxy")
        assert process.poll() is None, (folder / "haproxy.log").read_text()
        yield
    finally:
        end(process)


def _listens() -> bool:
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", PORT), 1):
        return True
    return False


class DatagramProxy:
    """A transparent UDP server: it answers each datagram from the address to which it went, with that address and the client's."""

    def __init__(self, space: Namespace) -> None:
        """Open its sockets in a namespace."""
        with space.entered():
            self._sockets = [self._open(family, "", PORT) for family in (socket.AF_INET, socket.AF_INET6)]
        self._ends = threading.Event()
        self._threads = [threading.Thread(target=self._serve, args=(space, sock)) for sock in self._sockets]
        for thread in self._threads:
            thread.start()

    def close(self) -> None:
        """End it."""
        self._ends.set()
        for thread in self._threads:
            thread.join()
        for sock in self._sockets:
            sock.close()

    def _open(self, family: int, address: str, port: int) -> socket.socket:
        sock = socket.socket(family, socket.SOCK_DGRAM)
        sock.settimeout(POLL_S)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET:
            sock.setsockopt(socket.IPPROTO_IP, IP_TRANSPARENT, 1)
            sock.setsockopt(socket.IPPROTO_IP, IP_RECVORIGDSTADDR, 1)
        else:
            sock.setsockopt(socket.IPPROTO_IPV6, IPV6_TRANSPARENT, 1)
            sock.setsockopt(socket.IPPROTO_IPV6, IPV6_RECVORIGDSTADDR, 1)
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        sock.bind((address, port))
        return sock

    def _serve(self, space: Namespace, sock: socket.socket) -> None:
        with space.entered():
            while not self._ends.is_set():
                with contextlib.suppress(TimeoutError):
                    question, [(_, _, to)], _, peer = sock.recvmsg(2048, 256)
                    port = int.from_bytes(to[2:4], "big")
                    address = socket.inet_ntop(sock.family, to[4:8] if sock.family == socket.AF_INET else to[8:24])
                    text = f"[{address}]:{port} {peer[0]}".encode()
                    with self._open(sock.family, address, port) as answering:
                        answering.sendto(question + bytes(12) + bytes([len(text)]) + text, peer)


def get(space: Namespace, vip: str) -> traffic.Answer | str:
    """Return what answers at the VIP, or the name of the error."""
    with space.entered():
        try:
            return traffic.http_get(vip, 80)
        except OSError as error:
            return type(error).__name__


def is_refused(cluster: Cluster, vip: str) -> bool:
    return get(cluster.client, vip) == "ConnectionRefusedError"


def shows_the_first_packet(cluster: Cluster) -> None:
    """Assert that `lbagent monitor` shows a SYN that the proxy gets, and no other packet of its connection."""
    with monitoring(cluster, "--event-sample", "1") as monitor:
        begin(monitor, cluster)
        get(cluster.client, WEB[0])
        row = monitor.next()
        connect(cluster, WEB[0], CLOSED)
        assert monitor.next()["reason"] == "reject_undefined_port"
    facts = {key: row[key] for key in ("reason", "verdict", "flags", "service", "frontend", "backend", "device")}
    assert facts == {
        "reason": "fwd_l7", "verdict": "local", "flags": "S", "service": "e2e/web", "frontend": f"{WEB[0]}:80/TCP",
        "backend": None, "device": "wan",
    }  # fmt: skip


def doctor(cluster: Cluster) -> str:
    """Return what `lbagent doctor` prints about the node."""
    words = ["doctor", "--device", "wan", "--bpffs", str(cluster.lab.bpffs)]
    return cluster.agent.cli(*words, check=False).stdout


def seen(vip: str, port: int, client: str) -> traffic.Answer:
    """Return the answer of a proxy that sees the client as its peer and the VIP as its own address."""
    return traffic.Answer(f"[{vip}]:{port}", client)


def policy(space: Namespace) -> str:
    """Return the rules and the routes for the mark, of both families."""
    out = ""
    for family in "46":
        rules = space.run(["ip", f"-{family}", "rule", "show", "fwmark", MARK]).stdout
        routes = space.run(["ip", f"-{family}", "route", "show", "table", str(int(MARK, 16))]).stdout
        out += rules + routes
    return out


@pytest.mark.parametrize("attach", ["xdp", "tc"])
def test_haproxy(fresh: Callable[..., Cluster], attach: str, tmp_path: Path) -> None:
    """Clients of outside and pods reach it under the VIP, without a backend; the node's own processes, and all without it, are refused."""
    cluster = fresh(attach)
    client, pod, node = cluster.client, cluster.lab.namespaces["b3"], cluster.lab.node
    node.ip("route add default via 10.77.0.2", "route add default via fd77::2")
    Manifest("web", WEB, [], annotations=WORD, spec={"type": "LoadBalancer"}).write(cluster.folder)
    cluster.dns().write(cluster.folder)  # the pod is a backend, too
    cluster.agent.start()
    assert policy(node).count("lookup 19511") == 2
    assert [get(client, vip) for vip in WEB] == ["ConnectionRefusedError"] * 2
    with haproxy(node, tmp_path, cluster.lab.backends["b1"].ipv4):
        for vip, address in zip(WEB, CLIENTS.values(), strict=True):
            assert {get(client, vip) for _ in range(20)} == {seen(vip, 80, address)}
            backend = cluster.lab.backends["b3"]
            assert get(pod, vip) == seen(vip, 80, backend.ipv6 if ":" in vip else backend.ipv4)
            with client.entered(), traffic.connect(vip, 80) as sock:
                assert len(traffic.request(sock, "/bytes?n=300000")) == 300000, "through it to a backend"
                assert len(traffic.request(sock, "/bytes?n=300000")) == 300000
        assert [get(node, vip) for vip in WEB] == ["ConnectionRefusedError"] * 2
        shows_the_first_packet(cluster)
        counted = cluster.packets()
        assert counted["fwd_l7"] > 100
        assert (counted["pass_l7"] > 100) == (attach == "xdp")
        assert cluster.agent.cli("flow", "list", "--frontend", f"{WEB[0]}:80").stdout.count("\n") <= 1
        asked = cluster.agent.cli("explain", "10.77.0.2:4000", f"{WEB[0]}:80").stdout
        assert f"the proxy at port {PORT} gets it" in asked
        listed = {row["frontend"]: row for row in cluster.agent.api.services()}
        assert listed[f"{WEB[0]}:80/TCP"]["l7_proxy_port"] == PORT
        assert f"L7 proxy at port {PORT}" in cluster.agent.cli("svc", "get", "e2e/web").stdout
        (line,) = [each for each in cluster.agent.cli("svc", "list").stdout.splitlines() if f"{WEB[0]}:80/TCP" in each]
        assert "proxy" in line.split()
        assert cluster.agent.cli("verify", check=False).returncode == 0
        assert "a process waits at each port of an L7 proxy" in doctor(cluster)
    assert f"no process waits at {PORT}/TCP" in doctor(cluster)
    assert [get(client, vip) for vip in WEB] == ["ConnectionRefusedError"] * 2
    asked = cluster.agent.cli("explain", "10.77.0.2:4000", f"{WEB[0]}:80", check=False).stdout
    assert f"no proxy on this node waits at port {PORT}" in asked


@pytest.mark.parametrize("attach", ["xdp", "tc"])
def test_a_proxy_of_datagrams(fresh: Callable[..., Cluster], attach: str) -> None:
    cluster = fresh(attach)
    cluster.dns(annotations=WORD).write(cluster.folder)
    cluster.agent.start()
    pod = cluster.lab.backends["b3"]
    proxy = DatagramProxy(cluster.lab.node)
    try:
        for vip, client in zip(DNS, CLIENTS.values(), strict=True):
            with cluster.client.entered():
                assert {traffic.dns_ask(vip, 53) for _ in range(20)} == {seen(vip, 53, client)}
            with cluster.lab.namespaces["b3"].entered():
                assert traffic.dns_ask(vip, 53) == seen(vip, 53, pod.ipv6 if ":" in vip else pod.ipv4)
    finally:
        proxy.close()
    with cluster.client.entered(), pytest.raises(ConnectionRefusedError):
        traffic.dns_ask(DNS[0], 53)


def test_max_flows(fresh: Callable[..., Cluster], tmp_path: Path) -> None:
    """So many connections of both frontends together; one that ends makes room for another."""
    cluster = fresh("xdp")
    words = {**WORD, "lbagent.io/max-flows": "4", "lbagent.io/over-limit": "reject"}
    cluster.web(annotations=words).write(cluster.folder)
    cluster.agent.start()
    with haproxy(cluster.lab.node, tmp_path, cluster.lab.backends["b1"].ipv4), contextlib.ExitStack() as stack:
        with cluster.client.entered():
            opened = [stack.enter_context(traffic.connect(vip, 80)) for vip in WEB for _ in range(2)]
        for vip in WEB:
            wait_for(partial(is_refused, cluster, vip), "the limit, after the agent has counted")
        assert [traffic.request(each) for each in opened], "those that are open go on"
        time.sleep(2)  # it counts again
        wait_for(partial(is_refused, cluster, WEB[0]), "the limit")
        opened[0].close()
        wait_for(lambda: get(cluster.client, WEB[1]) == seen(WEB[1], 80, CLIENTS[6]), "room for another one")
    assert cluster.packets()["drop_flow_limit"] >= 3


def test_rule_and_route_of_the_agent(fresh: Callable[..., Cluster], tmp_path: Path) -> None:
    """They are there while a Service has a proxy, come again when they are removed, outlive the agent, and go with `cleanup`."""
    cluster = fresh("tc")
    node = cluster.lab.node
    cluster.web().write(cluster.folder)
    cluster.agent.start()
    assert policy(node) == ""
    cluster.web(annotations=WORD).write(cluster.folder)
    with haproxy(node, tmp_path, cluster.lab.backends["b1"].ipv4):
        wait_for(lambda: policy(node).count("lookup 19511") == 2, "both rules")
        whole = policy(node)
        assert whole.count("local default dev lo") == 2
        wait_for(lambda: get(cluster.client, WEB[0]) == seen(WEB[0], 80, CLIENTS[4]), "the proxy")
        for family in "46":
            node.run(["ip", f"-{family}", "rule", "del", "fwmark", MARK])
        wait_for(lambda: policy(node) == whole, "the rules again", 60)
        for family in "46":
            node.run(["ip", f"-{family}", "route", "flush", "table", "19511"])
        wait_for(lambda: policy(node) == whole, "the routes again", 60)
        cluster.agent.kill()
        assert get(cluster.client, WEB[1]) == seen(WEB[1], 80, CLIENTS[6])
        cluster.agent.start()
        assert policy(node) == whole
        assert get(cluster.client, WEB[0]) == seen(WEB[0], 80, CLIENTS[4])
        cluster.web().write(cluster.folder)
        wait_for(lambda: policy(node) == "", "the end of rules and routes")
        assert get(cluster.client, WEB[0]) != seen(WEB[0], 80, CLIENTS[4])
        cluster.web(annotations=WORD).write(cluster.folder)
        wait_for(lambda: policy(node) == whole, "rules and routes")
    cluster.agent.stop()
    assert policy(node) == whole
    assert f"mark {MARK}" in cluster.agent.cli("cleanup").stdout
    assert policy(node) == ""


def test_sockets_of_the_node(fresh: Callable[..., Cluster], group: Path, tmp_path: Path) -> None:
    """With --socket-lb, too, a process of the node does not reach the proxy: it is refused at once."""
    cluster = fresh("tc", "--socket-lb", "--cgroup", str(group))
    node = cluster.lab.node
    node.ip("route add default via 10.77.0.2", "route add default via fd77::2")
    cluster.web(annotations=WORD).write(cluster.folder)
    cluster.agent.start()
    with haproxy(node, tmp_path, cluster.lab.backends["b1"].ipv4), cgroup.joined(group):
        assert [get(node, vip) for vip in WEB] == ["ConnectionRefusedError"] * 2
        assert get(cluster.client, WEB[0]) == seen(WEB[0], 80, CLIENTS[4])
