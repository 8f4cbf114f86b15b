"""A node with kube-proxy and lbagent in turns, and clients of its Services: outside, in a pod, and processes of the node."""

from __future__ import annotations

import contextlib
import itertools
import signal
import subprocess
from collections import Counter
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from tests.kube_api.cluster import HOME, NODE, Cluster, collection
from tests.kube_api.control_plane import MERGE
from tests.kube_api.kube_proxy import KubeProxy
from tests.kube_api.programs import Programs, find_kube_proxy
from tests.kube_api.proxy import Proxy
from tests.lab import cgroup, traffic
from tests.lab.agent import START_TIMEOUT_S, KubeAgent
from tests.lab.manifests import Endpoint, Manifest
from tests.lab.netns import wait_for
from tests.lab.topology import DNS_PORT, HTTP_PORT, Lab

WEB, DNS = ("10.96.0.10", "fd00:10:96::10"), ("10.96.0.53", "fd00:10:96::53")
BALANCER, NODE_IPS = ("10.77.200.1", "fd77:200::1"), ("10.77.0.1", "fd77::1")
WEB_NODE_PORT, DNS_NODE_PORT = 30080, 30053
POD_RANGES = "10.244.0.0/16,fd44::/15"
# netfilter masquerades to ports from 1024 on, so that no port belongs to lbagent and kube-proxy at once
SETTINGS = "snat-ports: 256-1023\nnew-flows: {}\n"
# as from a CNI: while another rule translates addresses, the kernel continues to translate kube-proxy's connections
CNI = "table {} cni {{ chain out {{ type nat hook postrouting priority srcnat; meta mark 0x9999 masquerade; }}; }}"
OPEN = 4  # open connections per place and address
# Below the kernel's ephemeral ports: a client with one port towards two VIPs may get one backend by both proxies, and neither proxy has
# the other's connection (docs/kubernetes.md).
OPEN_FROM = 20000
IN_FLIGHT = 2  # requests of a place that may be lost while programs are attached or detached


class MigratingNode:
    """One node with a control plane, without a service proxy at first."""

    def __init__(self, lab: Lab, cluster: Cluster, binary: Path, mode: str, group: Path, hook: str) -> None:
        """Create the cluster's Services, both proxies (not started) and the client pod."""
        self.lab, self.cgroup = lab, group
        lab.add_pod("p1", "pod4", "10.244.1", "fd45")
        lab.serve_all()
        lab.node.ip("route add default via 10.77.0.2", "route add default via fd77::2")
        for family in ("ip", "ip6"):
            subprocess.run(lab.node.command(["nft", "-f", "-"]), input=CNI.format(family), text=True, check=True)
        way = Proxy(cluster.plane.namespace, 6443, listen=lab.node)
        lab.closing.callback(way.close)
        config = cluster.plane.kubeconfig(cluster.plane.lasting_token, lab.folder / "kubeconfig", way.port)
        self._make_services(cluster)
        self.kube_proxy = KubeProxy(lab, binary, config, mode, [f"--cluster-cidr={POD_RANGES}"])
        self.settings = lab.folder / "agent.yaml"
        words = ["--socket-lb", "--cgroup", str(group), "--config", str(self.settings)]
        self.agent = KubeAgent(lab, lab.folder, attach=hook, arguments=words)
        self.ports = itertools.count(OPEN_FROM)
        self.places = {"outside": lab.client, "pod": lab.namespaces["p1"], "node": lab.node}

    def _make_services(self, cluster: Cluster) -> None:
        plane = cluster.plane
        addresses = [{"type": "InternalIP", "address": address} for address in NODE_IPS]
        plane.ask("PATCH", f"/api/v1/nodes/{NODE}/status", {"status": {"addresses": addresses}}, MERGE)
        for manifest in (
            self._manifest("web", WEB, HTTP_PORT, 80, "TCP", WEB_NODE_PORT, "LoadBalancer"),
            self._manifest("dns", DNS, DNS_PORT, 53, "UDP", DNS_NODE_PORT, "NodePort"),
        ):
            for obj in manifest.objects():
                plane.ask("POST", collection(obj), obj)
        ingress = {"ingress": [{"ip": address} for address in BALANCER]}
        plane.ask("PATCH", f"{HOME}/services/web/status", {"status": {"loadBalancer": ingress}}, MERGE)

    def _manifest(
        self, name: str, vips: tuple[str, str], target: int, port: int, protocol: str, node_port: int, kind: str
    ) -> Manifest:
        places = {each: NODE if each == "b3" else f"node-{each}" for each in ("b1", "b2", "b3")}
        backends = [(self.lab.backends[each], node) for each, node in places.items()]
        endpoints = [Endpoint(address, target, node) for b, node in backends for address in (b.ipv4, b.ipv6)]
        ports = [{"name": "p", "port": port, "protocol": protocol, "targetPort": target, "nodePort": node_port}]
        spec = {"ipFamilyPolicy": "RequireDualStack", "type": kind, "ports": ports}
        return Manifest(name, vips, endpoints, port=port, protocol=protocol, namespace="default", spec=spec)

    def start_kube_proxy(self) -> None:
        """Start it, and wait until the rules of each family have the last backend of both Services."""
        self.kube_proxy.start()
        last = self.lab.backends["b3"]
        wanted = [f"{address} . {port}" for address in (last.ipv4, last.ipv6) for port in (HTTP_PORT, DNS_PORT)]
        wait_for(lambda: all(text in self._rules() for text in wanted), "kube-proxy's rules", START_TIMEOUT_S, 0.2)

    def _rules(self) -> str:
        return subprocess.run(self.lab.node.command(["nft", "list", "ruleset"]), capture_output=True, text=True).stdout

    # --- lbagent ---

    def set_new_flows(self, what: str) -> None:
        """Write the setting; return when a running agent has applied it."""
        self.settings.write_text(SETTINGS.format(what))
        if self.agent.process is not None:
            before = self.agent.api.status()["artifact"]
            self.agent.process.send_signal(signal.SIGHUP)
            wait_for(lambda: self.agent.api.status()["artifact"] != before, "new programs", START_TIMEOUT_S)

    def leftovers(self) -> str:
        """Return the findings of `lbagent doctor --kubernetes`."""
        return self.agent.cli("doctor", "--kubernetes", "--bpffs", str(self.lab.bpffs), check=False).stdout

    # --- clients ---

    @contextlib.contextmanager
    def asked(self) -> Iterator[dict[str, traffic.Load]]:
        """Send requests by new connections and datagrams from every place during the block, at least a hundred each."""
        loads = {name: traffic.Load(space, _asks(name), 1, 0.01) for name, space in self.places.items()}
        with contextlib.ExitStack() as stack:
            for load in loads.values():
                stack.enter_context(load)
            yield loads
            for load in loads.values():
                load.wait_more(100, START_TIMEOUT_S)

    def open(self) -> OpenConnections:
        """Open persistent connections from every place."""
        return OpenConnections(self)


def _asks(place: str) -> list[partial[traffic.Answer]]:
    web = [(vip, 80) for vip in WEB]
    dns = [(vip, 53) for vip in DNS]
    if place != "node":
        web += [(vip, 80) for vip in BALANCER] + [(address, WEB_NODE_PORT) for address in NODE_IPS]
        dns += [(address, DNS_NODE_PORT) for address in NODE_IPS]
    return [partial(traffic.http_get, *to) for to in web] + [partial(traffic.dns_ask, *to) for to in dns]


class OpenConnections:
    """Persistent connections through VIPs."""

    def __init__(self, node: MigratingNode) -> None:
        """Open them, and send one request on each."""
        self._talkers = {
            (place, to): traffic.Talkers(space, *to, OPEN, node.ports)
            for place, space in node.places.items()
            for to in [(vip, 80) for vip in WEB] + ([(NODE_IPS[0], WEB_NODE_PORT)] if place == "outside" else [])
        }
        node.lab.closing.callback(self.close)

    def ask(self) -> dict[str, Counter[str]]:
        """Send a request on each; return by place how many continued with their backend (`same`), or ended, and how."""
        out: dict[str, Counter[str]] = {}
        for (place, _), talkers in self._talkers.items():
            ends = zip(talkers.first, talkers.ask(), strict=True)
            out.setdefault(place, Counter()).update("same" if a == b else b.split(":")[0] for a, b in ends)
        return out

    def go_on(self, *places: str) -> bool:
        """Check that the connections of these places (default: all) continue. Raises AssertionError with the others."""
        said = {place: ends for place, ends in self.ask().items() if not places or place in places}
        assert all(set(ends) == {"same"} for ends in said.values()), said
        return True

    def close(self) -> None:
        """Close all."""
        for talkers in self._talkers.values():
            talkers.close()


@contextlib.contextmanager
def served_by_kube_proxy(cluster: Cluster, programs: Programs, mode: str, hook: str) -> Iterator[MigratingNode]:
    """Make a node that kube-proxy serves, in one of its modes, with the hook that lbagent will use; this process is in its cgroup.

    Without kube-proxy the test is skipped. The addresses of the Node object are those of before at the end.
    """
    binary = find_kube_proxy()
    if binary is None:
        pytest.skip(f"missing: kube-proxy, in KUBE_PROXY or on PATH ({programs.apiserver} is of this machine)")
    before = cluster.plane.ask("GET", f"/api/v1/nodes/{NODE}")["status"]["addresses"]
    with cgroup.made() as group:
        try:
            with Lab(tag="migrate-") as lab:
                node = MigratingNode(lab, cluster, binary, mode, group, hook)
                node.start_kube_proxy()  # not in the cgroup of the clients
                with cgroup.joined(group):
                    yield node
        finally:
            cluster.plane.ask("PATCH", f"/api/v1/nodes/{NODE}/status", {"status": {"addresses": before}}, MERGE)
