"""Packets through the rules: real sockets in namespaces, both families, TCP and UDP, every kind of client and of frontend."""

from __future__ import annotations

import contextlib
import socket
import struct
import time
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import yaml

from tests.e2e.cluster import DNS, NODE, WEB, Cluster
from tests.lab import traffic
from tests.lab.manifests import Manifest, put
from tests.lab.netns import Namespace, wait_for
from tests.lab.topology import DNS_PORT, HTTP_PORT
from tests.lab.traffic import Answer
from tests.targets.nftables.conftest import NODE_IPS

ALL = {"b1", "b2", "b3"}
EXTERNAL = ("10.96.7.1", "fd00:96::701")
CLIENTS = ("node", "pod", "outside")


def place_of(cluster: Cluster, who: str) -> Namespace:
    """Return where a client runs: the node, the pod (b3), or outside."""
    return {"node": cluster.lab.node, "pod": cluster.lab.namespaces["b3"], "outside": cluster.client}[who]


def seen(cluster: Cluster, who: str, ask: Callable[[], Answer], count: int = 60) -> Counter[Answer]:
    """Return who answers, and which client each sees."""
    with place_of(cluster, who).entered():
        return Counter(ask() for _ in range(count))


def backends(found: Counter[Answer]) -> set[str]:
    """Return who answered."""
    return {answer.backend for answer in found}


def asks(web: str, dns: str) -> list[Callable[[], Answer]]:
    """Return a request to each."""
    return [partial(traffic.http_get, web, 80), partial(traffic.dns_ask, dns, 53)]


@pytest.mark.parametrize("who", CLIENTS)
@pytest.mark.parametrize(("web", "dns"), list(zip(WEB, DNS, strict=True)), ids=["ipv4", "ipv6"])
def test_every_client_reaches_every_backend_of_a_cluster_ip(served: Cluster, who: str, web: str, dns: str) -> None:
    for ask in asks(web, dns):
        assert backends(seen(served, who, ask)) == ALL


@pytest.mark.parametrize(("web", "dns"), list(zip(WEB, DNS, strict=True)), ids=["ipv4", "ipv6"])
def test_the_address_that_a_backend_sees(served: Cluster, web: str, dns: str) -> None:
    """Local backends see the client, remote ones the node; a pod that reaches itself comes from the node."""
    six = ":" in web
    client, pod = ("fd77::2", "fd44::2") if six else ("10.77.0.2", "10.244.0.2")
    node = {name: f"fd77:{n}::1" if six else f"10.77.{n}.1" for name, n in (("b1", 1), ("b2", 2))}
    gateway = "fd44::1" if six else "10.244.0.1"
    for ask in asks(web, dns):
        outside = {answer.backend: answer.client for answer in seen(served, "outside", ask)}
        assert outside == {**node, "b3": client}
        of_pod = {answer.backend: answer.client for answer in seen(served, "pod", ask)}
        assert of_pod == {"b1": pod, "b2": pod, "b3": gateway}
        own = {answer.backend: answer.client for answer in seen(served, "node", ask)}
        assert {name: own[name] for name in node} == node


@pytest.mark.parametrize("vip", WEB)
def test_backends_have_equal_shares(served: Cluster, vip: str) -> None:
    counts = traffic.spread(served.client, 600, partial(traffic.http_get, vip, 80))
    assert all(120 < counts[name] < 280 for name in ALL), counts  # 200 +- 7 standard deviations


def manifest(cluster: Cluster, name: str, *names: str, **spec: Any) -> Manifest:
    """Return a Service with these backends, else all, and with fields of its spec changed."""
    number = sum(name.encode()) % 200
    vips = (f"10.96.9.{number}", f"fd00:96::9:{number}")
    return Manifest(name, vips, cluster.endpoints(*(names or tuple(sorted(ALL)))), spec=spec)


def service(cluster: Cluster, name: str, *names: str, **spec: Any) -> Manifest:
    """Serve such a Service."""
    found = manifest(cluster, name, *names, **spec)
    cluster.serve(found)
    return found


def port_of(node_port: int) -> list[dict[str, Any]]:
    """Return the ports of a Service with a NodePort."""
    return [{"name": "p", "protocol": "TCP", "port": 80, "targetPort": "p", "nodePort": node_port}]


@pytest.mark.parametrize("who", CLIENTS)
@pytest.mark.parametrize("ip", NODE_IPS)
def test_node_port(served: Cluster, who: str, ip: str) -> None:
    service(served, "nodeport", type="NodePort", ports=port_of(30080))
    assert backends(seen(served, who, partial(traffic.http_get, ip, 30080))) == ALL


@pytest.mark.parametrize("who", CLIENTS)
def test_external_ips_and_ingress(served: Cluster, who: str) -> None:
    service(served, "external", type="LoadBalancer", externalIPs=list(EXTERNAL), ports=port_of(30081))
    for vip in EXTERNAL:
        assert backends(seen(served, who, partial(traffic.http_get, vip, 80))) == ALL


def test_a_local_policy_outside_and_inside(served: Cluster) -> None:
    """Clients outside reach the backends of this node and are seen by them; pods and the node reach all."""
    fields = {
        "type": "LoadBalancer",
        "externalIPs": list(EXTERNAL),
        "externalTrafficPolicy": "Local",
        "ports": port_of(30082),
    }
    service(served, "local", **fields)
    for vip in EXTERNAL:
        ask = partial(traffic.http_get, vip, 80)
        client = "fd77::2" if ":" in vip else "10.77.0.2"
        assert set(seen(served, "outside", ask)) == {Answer("b3", client)}
        assert backends(seen(served, "pod", ask)) == backends(seen(served, "node", ask)) == ALL
    service(served, "local", "b1", "b2", **fields)
    for vip in EXTERNAL:  # none here: left to other nodes
        with served.client.entered(), pytest.raises(TimeoutError):
            traffic.connect(vip, 80, timeout_s=1)
        assert backends(seen(served, "pod", partial(traffic.http_get, vip, 80))) == {"b1", "b2"}


def test_an_internal_local_policy(served: Cluster) -> None:
    found = manifest(served, "internal", internalTrafficPolicy="Local")
    found.write(served.folder)
    local = {f"10.244.0.2:{HTTP_PORT}/TCP", f"[fd44::2]:{HTTP_PORT}/TCP"}
    wait_for(lambda: served.selectable("internal") == local, "the backends of this node")
    for vip in found.vips:
        assert backends(seen(served, "outside", partial(traffic.http_get, vip, 80))) == {"b3"}


@pytest.mark.parametrize("who", CLIENTS)
def test_without_a_backend_a_client_is_refused(served: Cluster, who: str) -> None:
    tcp, udp = ("10.96.4.4", "fd00:96::404"), ("10.96.4.5", "fd00:96::405")
    served.serve(Manifest("none", tcp, []), Manifest("none-udp", udp, [], port=53, protocol="UDP"))
    with place_of(served, who).entered():
        for vip in tcp:
            with pytest.raises(ConnectionRefusedError):
                traffic.connect(vip, 80, timeout_s=2)
        for vip in udp:
            with socket.socket(socket.AF_INET6 if ":" in vip else socket.AF_INET, socket.SOCK_DGRAM) as sock:
                sock.settimeout(2)
                sock.connect((vip, 53))
                with contextlib.suppress(
                    PermissionError
                ):  # the kernel's word for a packet of this node that a rule rejects
                    sock.send(b"anybody there")
                with pytest.raises(ConnectionRefusedError):
                    sock.recv(100)


@pytest.mark.parametrize("who", CLIENTS)
@pytest.mark.parametrize("vip", WEB)
def test_a_port_of_a_cluster_ip_without_a_service_is_refused(served: Cluster, who: str, vip: str) -> None:
    with place_of(served, who).entered(), pytest.raises(ConnectionRefusedError):
        traffic.connect(vip, 81, timeout_s=2)


@pytest.mark.parametrize("ip_family", ["ipv4", "ipv6"])
def test_affinity_ends_with_its_time(served: Cluster, ip_family: str) -> None:
    found = service(
        served, "sticky", sessionAffinity="ClientIP", sessionAffinityConfig={"clientIP": {"timeoutSeconds": 2}}
    )
    vip = found.vips[ip_family == "ipv6"]
    ask = partial(traffic.http_get, vip, 80)
    assert len(backends(seen(served, "outside", ask))) == 1
    first: set[str] = set()

    def another() -> bool:
        served.client.call(socket.create_connection, (vip, 80), 2).close()
        time.sleep(2.2)
        first.add(served.client.call(ask).backend)
        return len(first) > 1

    wait_for(another, "another backend after the time-out", 80)


def test_a_backend_that_leaves_frees_its_clients(served: Cluster) -> None:
    fields = {"sessionAffinity": "ClientIP"}
    found = service(served, "leaving", **fields)
    for vip in found.vips:
        ask = partial(traffic.http_get, vip, 80)
        (now,) = backends(seen(served, "outside", ask, 5))
        rest = ALL - {now}
        service(served, "leaving", *sorted(rest), **fields)
        (then,) = backends(seen(served, "outside", ask, 5))
        assert then in rest
        service(served, "leaving", **fields)
        assert backends(seen(served, "outside", ask, 5)) == {then}  # it stays where it went


def test_a_backend_that_leaves_while_no_agent_runs_frees_its_clients(served: Cluster) -> None:
    fields = {"sessionAffinity": "ClientIP"}
    found = service(served, "unseen", **fields)
    asks = [partial(traffic.http_get, vip, 80) for vip in found.vips]
    now = {name for ask in asks for name in backends(seen(served, "outside", ask, 5))}
    served.agent.kill()
    (served.folder / "unseen.yaml").unlink()
    rest = sorted(ALL - now)
    manifest(served, "unseen", *rest, **fields).write(served.folder)
    served.agent.start()
    for ask in asks:
        wait_for(lambda ask=ask: backends(seen(served, "outside", ask, 5)) <= set(rest), "another backend", 5)  # type: ignore[misc]


def test_a_policy_that_becomes_local_frees_clients_outside(served: Cluster) -> None:
    """Those that affinity leads to a backend of another node, which pods still reach."""
    fields = {"type": "LoadBalancer", "externalIPs": list(EXTERNAL), "sessionAffinity": "ClientIP"}
    ask = partial(traffic.http_get, EXTERNAL[0], 80)

    def is_remote() -> bool:
        served.serve(manifest(served, "sticky-local", "b3", **fields, ports=port_of(30083)))
        service(served, "sticky-local", "b1", "b2", **fields, ports=port_of(30083))
        return "b3" not in backends(seen(served, "outside", ask, 2))

    wait_for(is_remote, "a client of a remote backend", 5)
    service(served, "sticky-local", **fields, ports=port_of(30083), externalTrafficPolicy="Local")
    assert backends(seen(served, "outside", ask, 5)) == {"b3"}


@pytest.mark.parametrize("policy", ["allow", "deny"])
def test_source_ranges(served: Cluster, policy: str) -> None:
    listed = ["10.77.0.0/24", "10.77.0.2/32", "fd77::/64"]
    fields = {"type": "LoadBalancer", "ports": port_of(30083), "loadBalancerSourceRanges": listed}
    made = Manifest("ranges", ("10.96.9.9", "fd00:96::909"), served.endpoints("b3"), spec=fields)
    objects = made.objects()
    objects[0]["metadata"]["annotations"]["lbagent.io/source-ranges-policy"] = policy
    objects[0]["status"] = {"loadBalancer": {"ingress": [{"ip": vip} for vip in EXTERNAL]}}
    put(served.folder, "ranges.yaml", yaml.safe_dump_all(objects))
    served.wait_backends(made)
    for vip in EXTERNAL:
        for who in ("outside", "pod"):
            with place_of(served, who).entered():
                if (who == "outside") == (policy == "allow"):
                    assert traffic.http_get(vip, 80).backend == "b3"
                else:
                    with pytest.raises(TimeoutError):
                        traffic.connect(vip, 80, timeout_s=1)
    with served.lab.namespaces["b3"].entered():  # the ClusterIP has no ranges
        assert traffic.http_get("10.96.9.9", 80).backend == "b3"
    put(served.folder, "ranges.yaml", yaml.safe_dump_all(objects[:1]))
    served.wait_backends(Manifest("ranges", ("10.96.9.9", "fd00:96::909"), []))
    for vip in EXTERNAL:  # nor do those that are not admitted learn that there is no backend
        for who in ("outside", "pod"):
            refused = (who == "outside") == (policy == "allow")
            with place_of(served, who).entered(), pytest.raises(ConnectionRefusedError if refused else TimeoutError):
                traffic.connect(vip, 80, timeout_s=1)


def bound(vip: str, port: int = 0) -> socket.socket:
    """Return a socket with a source port: one that ends without TIME_WAIT, so that the port can be used again."""
    sock = socket.socket(socket.AF_INET6 if ":" in vip else socket.AF_INET, socket.SOCK_STREAM)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    sock.settimeout(2)
    sock.bind(("::" if ":" in vip else "0.0.0.0", port))
    return sock


def free_port(vip: str) -> int:
    """Return a source port that no socket has."""
    with bound(vip) as sock:
        return int(sock.getsockname()[1])


def same_port(vip: str, port: int) -> str:
    """Return who answers a new connection from this port."""
    with bound(vip, port) as sock:
        sock.connect((vip, 80))
        return traffic.request(sock).decode().split()[0]


@pytest.mark.parametrize("who", CLIENTS)
def test_maglev_sends_a_client_port_to_one_backend(served: Cluster, who: str) -> None:
    found = Manifest("maglev", ("10.96.9.7", "fd00:96::907"), served.endpoints(*sorted(ALL)), algorithm="maglev")
    served.serve(found)
    for vip in found.vips:
        assert backends(seen(served, who, partial(traffic.http_get, vip, 80), 60)) == ALL
        for _ in range(5):
            with place_of(served, who).entered():
                port = free_port(vip)
                assert len({same_port(vip, port) for _ in range(4)}) == 1


def test_host_port(served: Cluster) -> None:
    pod = {
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "b3", "namespace": "e2e"},
        "spec": {"nodeName": NODE, "containers": [{"name": "c", "ports": [
            {"containerPort": HTTP_PORT, "hostPort": 8088, "protocol": "TCP"},
            {"containerPort": DNS_PORT, "hostPort": 5388, "protocol": "UDP"}]}]},
        "status": {"phase": "Running", "podIPs": [{"ip": "10.244.0.2"}, {"ip": "fd44::2"}], "podIP": "10.244.0.2",
                   "conditions": [{"type": "Ready", "status": "True"}]},
    }  # fmt: skip
    put(served.folder, "pod.yaml", yaml.safe_dump(pod))
    wait_for(lambda: served.selectable("b3"), "the HostPort")
    for ip in NODE_IPS:
        client = "fd77::2" if ":" in ip else "10.77.0.2"
        assert set(seen(served, "outside", partial(traffic.http_get, ip, 8088), 5)) == {Answer("b3", client)}
        assert set(seen(served, "outside", partial(traffic.dns_ask, ip, 5388), 5)) == {Answer("b3", client)}
