"""Local redirects: what is inside reaches pods of this node, what is outside reaches the Service, or passes untouched."""

from __future__ import annotations

import contextlib
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
import yaml

from tests.e2e.cluster import NODE, Cluster, routed_lab
from tests.lab import cgroup, traffic
from tests.lab.manifests import put
from tests.lab.name_server import ask
from tests.lab.netns import Namespace, wait_for
from tests.lab.topology import DNS_PORT, HTTP_PORT, ROOT, Lab, end

KUBE_DNS = ("10.96.0.2", "fd00:96::2")
METADATA = ("169.254.169.254", "fd00:ec2::254")
NAMESPACE = "kube-system"
RESTARTS = 3
WAYS = [(vip, tcp) for vip in KUBE_DNS for tcp in (False, True)]
PATIENT_S = 10.0  # a busy machine may answer late


def service(
    name: str = "kube-dns", vips: tuple[str, ...] = KUBE_DNS, namespace: str = NAMESPACE, **spec: Any
) -> dict[str, Any]:
    ports = [{"name": "dns", "port": 53, "protocol": "UDP"}, {"name": "dns-tcp", "port": 53, "protocol": "TCP"}]
    return {
        "apiVersion": "v1", "kind": "Service", "metadata": {"name": name, "namespace": namespace},
        "spec": {"clusterIPs": list(vips), "clusterIP": vips[0], "ports": ports, **spec},
    }  # fmt: skip


def endpoint_slice(address: str, name: str = "kube-dns", namespace: str = NAMESPACE) -> dict[str, Any]:
    family = "IPv6" if ":" in address else "IPv4"
    ports = [{"name": "dns", "port": 53, "protocol": "UDP"}, {"name": "dns-tcp", "port": 53, "protocol": "TCP"}]
    return {
        "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice",
        "metadata": {
            "name": f"{name}-{family.lower()}", "namespace": namespace, "labels": {"kubernetes.io/service-name": name},
        },
        "addressType": family, "ports": ports, "endpoints": [{"addresses": [address], "nodeName": "node-b1"}],
    }  # fmt: skip


def pod(lab: Lab, role: str, app: str, *, ready: bool = True, namespace: str = NAMESPACE) -> dict[str, Any]:
    backend = lab.backends[role]
    return {
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": f"{app}-{role}", "namespace": namespace, "labels": {"app": app}},
        "spec": {"nodeName": NODE},
        "status": {
            "phase": "Running", "podIP": backend.ipv4, "podIPs": [{"ip": backend.ipv4}, {"ip": backend.ipv6}],
            "conditions": [{"type": "Ready", "status": str(ready)}],
        },
    }  # fmt: skip


def policy(
    frontend: dict[str, Any], app: str, ports: list[dict[str, Any]], name: str = "local", *, kind: str = "LocalRedirectPolicy",
    namespace: str = NAMESPACE, annotations: dict[str, str] | None = None, created: str = "2026-01-01T00:00:00Z", **spec: Any,
) -> dict[str, Any]:  # fmt: skip
    return {
        "apiVersion": "cilium.io/v2" if kind.startswith("Cilium") else "lbagent.io/v1alpha1", "kind": kind,
        "metadata": {
            "name": name, "namespace": namespace, "annotations": annotations or {}, "creationTimestamp": created,
        },
        "spec": {
            "redirectFrontend": frontend,
            "redirectBackend": {"localEndpointSelector": {"matchLabels": {"app": app}}, "toPorts": ports},
            **spec,
        },
    }  # fmt: skip


DNS_PORTS = [{"port": "53", "name": "dns", "protocol": "UDP"}, {"port": "53", "name": "dns-tcp", "protocol": "TCP"}]
OF_KUBE_DNS = {"serviceMatcher": {"serviceName": "kube-dns", "namespace": NAMESPACE}}


def address(ip: str) -> dict[str, Any]:
    ports = [{"port": 80, "name": "web", "protocol": "TCP"}, {"port": 53, "name": "dns", "protocol": "UDP"}]
    return {"addressMatcher": {"ip": ip, "toPorts": ports}}


ADDRESS_PORTS = [
    {"port": HTTP_PORT, "name": "web", "protocol": "TCP"},
    {"port": DNS_PORT, "name": "dns", "protocol": "UDP"},
]


class NameServers:
    """A name server on b1 as kube-dns, and the cache in the pod b3, which queries kube-dns at its ClusterIP."""

    def __init__(self, lab: Lab) -> None:
        self.lab = lab
        self._start("b1", "serve", "--name", "kube-dns")
        self.cache = self._start_cache()

    def _start(self, role: str, *words: str) -> subprocess.Popen[str]:
        backend = self.lab.backends[role]
        addresses = ("--ipv4", backend.ipv4, "--ipv6", backend.ipv6)
        argv = [sys.executable, "-m", "tests.lab.name_server", *words, *addresses]
        process = self.lab.namespaces[role].popen(argv, stdout=subprocess.PIPE, cwd=ROOT)
        self.lab.closing.callback(end, process)
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        return process

    def _start_cache(self) -> subprocess.Popen[str]:
        return self._start("b3", "cache", "--upstream", KUBE_DNS[0])

    def stop_cache(self) -> None:
        end(self.cache)

    def start_cache(self) -> None:
        self.cache = self._start_cache()


class Queries:
    """Queries from a namespace until the end of the block, over both protocols and families; each is sent once."""

    def __init__(self, space: Namespace, pause_s: float = 0.002) -> None:
        self.space, self.pause_s = space, pause_s
        self.failures: list[str] = []
        self.answers: Counter[bool] = Counter()  # by whether the server itself answered
        self._ended: Counter[tuple[str, bool]] = Counter()  # by protocol and family
        self._end = threading.Event()
        self._lock = threading.Lock()
        self._threads = [threading.Thread(target=self._work, args=way, daemon=True) for way in WAYS]

    def _work(self, vip: str, tcp: bool) -> None:
        with self.space.entered():
            number = 0
            while not self._end.is_set():
                number += 1
                try:
                    answer = ask(vip, f"host{number % 20}.cluster.local", tcp=tcp, timeout_s=PATIENT_S)
                    with self._lock:
                        self.answers[answer.authoritative] += 1
                except (OSError, ValueError) as error:
                    self.failures.append(f"{vip} {'TCP' if tcp else 'UDP'}: {type(error).__name__} {error}")
                self._ended[vip, tcp] += 1
                time.sleep(self.pause_s)

    def wait_ended(self) -> None:
        """Wait for the end of the queries that are under way: a server that ends loses those that it has taken."""
        before = Counter(self._ended)
        wait_for(lambda: all(self._ended[way] > before[way] for way in WAYS), "the queries that are under way", 30)

    def wait_more(self, authoritative: bool, count: int = 100) -> None:
        """Wait for further answers of the server itself, or of the cache."""
        goal = self.answers[authoritative] + count
        wait_for(lambda: self.answers[authoritative] >= goal or self.failures, f"{count} answers")

    def __enter__(self) -> Queries:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()
        for thread in self._threads:
            thread.join()


@contextlib.contextmanager
def made(attach: str = "tc", *arguments: str) -> Iterator[Cluster]:
    with routed_lab(f"redirect-{attach}-") as lab:
        lab.add_pod("caller", "pod4", "10.244.1", "fd45")
        lab.serve("caller")
        for each in METADATA:  # an address outside of the cluster: a host of b2's network has it
            bits = 128 if ":" in each else 32
            lab.namespaces["b2"].ip(f"addr add {each}/{bits} dev lo{' nodad' if ':' in each else ''}")
            lab.node.ip(
                f"route add {each}/{bits} via {lab.backends['b2'].ipv6 if ':' in each else lab.backends['b2'].ipv4}"
            )
            lab.client.ip(f"route add {each}/{bits} via {'fd77::1' if ':' in each else '10.77.0.1'}")
        words = ["--renderer", "nftables", *arguments] if attach == "nftables" else arguments
        yield Cluster(lab, "tc" if attach == "nftables" else attach, words)


def write(made: Cluster, *objects: dict[str, Any], name: str = "objects") -> None:
    put(made.folder, f"{name}.yaml", yaml.safe_dump_all(objects))


def rows(made: Cluster) -> dict[str, str]:
    """Return the type of each frontend in `svc list`."""
    return {row["frontend"]: row["type"] for row in made.agent.api.services()}


def wait_for_redirect(made: Cluster, *, there: bool = True) -> None:
    """Wait until the redirect is in the maps, or out of them."""

    def is_so() -> bool:
        rows = (row for row in made.agent.api.services() if row["type"] == "LocalRedirect")
        return any(backend["selectable"] for row in rows for backend in row["backends"]) is there

    wait_for(is_so, f"a redirect that is {'in' if there else 'out of'} the maps")
    made.agent.cli("status", "--wait", "10s")


@pytest.fixture(params=["xdp", "tc", "nftables"])
def attach(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def test_a_node_local_cache_serves_while_it_restarts(attach: str) -> None:
    """0 failed queries: while the cache restarts, kube-dns answers. The cache itself reaches kube-dns at the same address."""
    with made(attach) as cluster:
        lab = cluster.lab
        servers = NameServers(lab)

        def apply(ready: bool) -> None:
            write(
                cluster,
                service(),
                *(endpoint_slice(each) for each in (lab.backends["b1"].ipv4, lab.backends["b1"].ipv6)),
                pod(lab, "b3", "cache", ready=ready),
                policy(OF_KUBE_DNS, "cache", DNS_PORTS, kind="CiliumLocalRedirectPolicy", skipRedirectFromBackend=True),
            )

        apply(True)
        cluster.agent.start()
        wait_for_redirect(cluster)
        with Queries(lab.namespaces["caller"]) as queries:
            queries.wait_more(False)
            assert not queries.answers[True]  # the cache alone
            for _ in range(RESTARTS):
                apply(False)
                wait_for_redirect(cluster, there=False)
                queries.wait_ended()
                servers.stop_cache()
                queries.wait_more(True)
                servers.start_cache()
                apply(True)
                wait_for_redirect(cluster)
                queries.wait_more(False)
        assert queries.failures == []
        with lab.client.entered():
            for vip in KUBE_DNS:
                for tcp in (False, True):
                    assert ask(vip, "host1.cluster.local", tcp=tcp).authoritative


@contextlib.contextmanager
def serving_metadata(lab: Lab) -> Iterator[None]:
    """A host outside of the cluster, which has the addresses METADATA itself."""
    words = ("metadata", "--http", "80", "--dns", "53", "--ipv4", METADATA[0], "--ipv6", METADATA[1])
    argv = [sys.executable, "-m", "tests.lab.server", *words]
    process = lab.namespaces["b2"].popen(argv, stdout=subprocess.PIPE, cwd=ROOT)
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        yield
    finally:
        end(process)


def of_metadata(lab: Lab, *, ready: bool = True, **fields: Any) -> list[dict[str, Any]]:
    """Return a policy for each of METADATA, with the pod b3."""
    policies = [policy(address(each), "meta", ADDRESS_PORTS, f"m{at}", **fields) for at, each in enumerate(METADATA)]
    return [pod(lab, "b3", "meta", ready=ready), *policies]


def reached(space: Namespace, vips: tuple[str, ...] = METADATA) -> set[str]:
    """Return which servers answer at all addresses, by HTTP and by DNS, from a namespace."""
    asks: list[Callable[[], traffic.Answer]] = [partial(traffic.http_get, each, 80, timeout_s=3) for each in vips]
    asks += [partial(traffic.dns_ask, each, 53, timeout_s=3) for each in vips]
    with space.entered():
        return {each().backend for each in asks for _ in range(4)}


def is_dropped() -> bool:
    """Return whether no request to METADATA of the calling thread's namespace gets any answer."""
    for each in METADATA:
        for ask_one, port in ((traffic.http_get, 80), (traffic.dns_ask, 53)):
            try:
                ask_one(each, port, timeout_s=0.5)
            except TimeoutError:
                continue
            return False
    return True


def test_an_address_is_redirected_for_what_is_inside_alone(attach: str) -> None:
    with made(attach) as cluster:
        lab = cluster.lab
        caller = lab.namespaces["caller"]
        with serving_metadata(lab):
            write(cluster, *of_metadata(lab))
            cluster.agent.start()
            wait_for_redirect(cluster)
            assert rows(cluster)[f"{METADATA[0]}:80/TCP"] == "LocalRedirect"
            assert reached(caller) == {"b3"}
            assert reached(lab.node) == {"b3"}
            assert reached(lab.client) == {"metadata"}
            with caller.entered(), socket.socket(socket.AF_INET, socket.SOCK_STREAM) as other_port:
                other_port.settimeout(3)
                with pytest.raises(ConnectionRefusedError):  # by the host itself
                    other_port.connect((METADATA[0], 81))
            with contextlib.closing(traffic.Talkers(caller, METADATA[0], 80, 2)) as streams:
                write(cluster, *of_metadata(lab, ready=False))
                wait_for_redirect(cluster, there=False)
                assert reached(caller) == reached(lab.node) == reached(lab.client) == {"metadata"}
                assert set(streams.first) == set(streams.ask()) == {"b3"}
            write(cluster, *of_metadata(lab, ready=False, annotations={"lbagent.io/when-empty": "drop"}))
            with caller.entered():
                wait_for(is_dropped, "dropped requests", 20)
            if attach != "nftables":
                assert cluster.packets()["drop_no_local_backend"] > 0
            assert reached(lab.client) == {"metadata"}


@pytest.mark.parametrize("skips", [True, False])
def test_the_pod_itself_reaches_the_original_service_if_it_is_to(attach: str, *, skips: bool) -> None:
    with made(attach) as cluster:
        lab = cluster.lab
        NameServers(lab)
        write(
            cluster,
            service(),
            *(endpoint_slice(each) for each in (lab.backends["b1"].ipv4, lab.backends["b1"].ipv6)),
            pod(lab, "b3", "cache"),
            policy(OF_KUBE_DNS, "cache", DNS_PORTS, skipRedirectFromBackend=skips),
        )
        cluster.agent.start()
        wait_for_redirect(cluster)
        for space, server in ((lab.namespaces["b3"], skips), (lab.client, True)):
            with space.entered():
                for vip in KUBE_DNS if skips or space is lab.client else ():
                    for tcp in (False, True):
                        assert ask(vip, "host1", tcp=tcp).authoritative is server
        if skips:
            with lab.namespaces["caller"].entered():
                assert not ask(KUBE_DNS[1], "host1").authoritative


def test_what_is_under_way_when_the_pod_is_not_ready(attach: str) -> None:
    """Connections to it go on; datagrams of one socket go to the Service, and come back when it is ready."""
    with made(attach) as cluster:
        lab = cluster.lab
        web = {"ports": [{"name": "web", "port": 80}, {"name": "dns", "port": 53, "protocol": "UDP"}]}
        slices = [endpoint_slice(each) for each in (lab.backends["b1"].ipv4, lab.backends["b1"].ipv6)]
        for each in slices:
            each["ports"] = [
                {"name": "web", "port": HTTP_PORT, "protocol": "TCP"}, {"name": "dns", "port": DNS_PORT, "protocol": "UDP"},
            ]  # fmt: skip

        def apply(ready: bool) -> None:
            write(
                cluster,
                service(**web),
                *slices,
                pod(lab, "b3", "cache", ready=ready),
                policy(OF_KUBE_DNS, "cache", ADDRESS_PORTS),
            )
            wait_for_redirect(cluster, there=ready)

        put(cluster.folder, "none.yaml", "")
        cluster.agent.start()
        apply(True)
        caller = lab.namespaces["caller"]
        with (
            contextlib.closing(traffic.Talkers(caller, KUBE_DNS[0], 80, 4)) as streams,
            contextlib.closing(traffic.Datagrams(caller, KUBE_DNS, 53, 4)) as datagrams,
        ):
            assert set(streams.first) == set(datagrams.first) == {"b3"}
            apply(False)
            wait_for(lambda: set(datagrams.ask()) == {"b1"}, "datagrams at the Service")
            assert set(streams.ask()) == {"b3"}
            cluster.agent.kill()
            cluster.agent.start()
            assert set(streams.ask()) == {"b3"}
            apply(True)
            if attach != "nftables":  # there they stay while the Service has this backend
                wait_for(lambda: set(datagrams.ask()) == {"b3"}, "datagrams at the pod")
            assert set(streams.ask()) == {"b3"}
            assert cluster.agent.cli("verify").stdout == ""


@pytest.mark.parametrize("skips", [True, False])
def test_processes_of_the_node_with_socket_programs(*, skips: bool) -> None:
    """Those of a policy with skipRedirectFromBackend are left to the packet programs, with the same result."""
    with cgroup.made() as group, made("tc", "--socket-lb", "--cgroup", str(group)) as cluster:
        lab = cluster.lab
        with serving_metadata(lab):
            write(cluster, *of_metadata(lab, skipRedirectFromBackend=skips))
            cluster.agent.start()
            wait_for_redirect(cluster)
            with cgroup.joined(group):
                assert reached(lab.node) == {"b3"}
                assert bool(cluster.packets()["fwd_socket"]) is not skips
                write(cluster, *of_metadata(lab, ready=False, skipRedirectFromBackend=skips))
                wait_for_redirect(cluster, there=False)
                assert reached(lab.node) == {"metadata"}


MASQUERADE = """
table inet cni { chain postrouting { type nat hook postrouting priority 100;
    iifname "pod*" oifname "lan2" masquerade; }; }
"""


@pytest.mark.skipif(shutil.which("nft") is None, reason="nft is not installed")
def test_a_pod_that_skips_and_is_masqueraded(attach: str) -> None:
    """Its packets leave with the node's address, which does not skip: they are not redirected there."""
    with made(attach) as cluster:
        lab = cluster.lab
        with serving_metadata(lab):
            write(cluster, *of_metadata(lab, skipRedirectFromBackend=True))
            cluster.agent.start()
            wait_for_redirect(cluster)
            subprocess.run(lab.node.command(["nft", "-f", "-"]), input=MASQUERADE, text=True, check=True)
            assert reached(lab.namespaces["b3"]) == {"metadata"}
            assert reached(lab.namespaces["caller"]) == reached(lab.node) == {"b3"}
            with lab.namespaces["b3"].entered():
                assert traffic.http_get(METADATA[0], 80).client == "10.77.2.1"
