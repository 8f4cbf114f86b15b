"""The node changes from one data plane to the other under load: clients outside, in pods and on the node notice nothing.

A pod that is a backend is its own client at times. Requests are for ClusterIPs and NodePorts; a port that no Service has is closed.
"""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from functools import partial

import pytest

from tests.e2e.cluster import DNS, WEB, Cluster, routed_lab
from tests.lab import traffic
from tests.lab.agent import START_TIMEOUT_S, Agent
from tests.lab.manifests import Manifest
from tests.lab.netns import Namespace, wait_for
from tests.lab.topology import Lab

pytestmark = [pytest.mark.root, pytest.mark.bpf, pytest.mark.slow, pytest.mark.quiet]
NODE_IP = ("--node-ip", "10.77.0.1", "--node-ip", "fd77::1")
UDP_S = "10"  # longer than an agent takes to start
TIMES = ("--timeout-udp", UDP_S, "--timeout-new", "5", "--timeout-closing", "2", "--sweep-interval", "1")
NODE_PORTS = ("10.96.0.11", "fd00:96::11")  # ClusterIPs of the Service with a NodePort
NODE_PORT = 30080
CLOSED = 81
OPEN = 3  # connections of each place and address


@pytest.fixture
def lab() -> Iterator[Lab]:
    with routed_lab("switch-") as lab:
        yield lab


class Switching:
    """A node whose agents are of the one data plane and of the other, and its clients."""

    def __init__(self, lab: Lab, attach: str) -> None:
        self.lab, self.made = lab, Cluster(lab, attach)
        lab.add_pod("p1", "pod4", "10.244.1", "fd45")
        spaces = lab.namespaces
        self.places = {"outside": lab.client, "pod": spaces["p1"], "backend": spaces["b3"], "node": lab.node}
        for name in ("udp_timeout", "udp_timeout_stream"):  # both forget a UDP conversation as early
            path = f"/proc/sys/net/netfilter/nf_conntrack_{name}"
            subprocess.run(lab.node.command(["sh", "-c", f"echo {UDP_S} > {path}"]), check=True)
        self.made.web().write(self.made.folder)
        self.made.dns().write(self.made.folder)
        self.exposed().write(self.made.folder)

    def exposed(self, *names: str) -> Manifest:
        """Return the Service with a NodePort, of the same backends."""
        ports = [{"name": "p", "port": 80, "targetPort": "p", "nodePort": NODE_PORT}]
        web = self.made.web(*names, spec={"type": "NodePort", "ports": ports})
        return replace(web, name="exposed", vips=NODE_PORTS)

    def start(self, renderer: str) -> None:
        self.made.agent.arguments = ["--renderer", renderer, *NODE_IP, *TIMES]
        self.made.agent.start()

    @contextlib.contextmanager
    def load(self) -> Iterator[dict[str, traffic.Load]]:
        """Open connections and ask UDP from every place, all the time; none of it may fail, nor a SYN be lost."""
        asks = [partial(traffic.http_get, vip, 80) for vip in WEB] + [partial(traffic.dns_ask, vip, 53) for vip in DNS]
        asks += [partial(refused, vip, CLOSED) for vip in WEB]
        ports = [partial(traffic.http_get, address, NODE_PORT) for address in ("10.77.0.1", "fd77::1")]
        loads = {  # the node's processes reach no NodePort by bpf (docs/operations.md)
            name: traffic.Load(space, asks if name == "node" else asks + ports, 2, 0.005)
            for name, space in self.places.items()
        }
        with contextlib.ExitStack() as stack:
            for load in loads.values():
                stack.enter_context(load)
            yield loads
            for load in loads.values():
                load.wait_more(60)
        failures = {name: load.tally.failures for name, load in loads.items() if load.tally.failures}
        assert not failures
        assert {name: load.tally.syns_again for name, load in loads.items()} == dict.fromkeys(loads, 0)

    def talkers(self, *places: str) -> Talkers:
        return Talkers({name: space for name, space in self.places.items() if not places or name in places})

    def translated_ports(self) -> set[int]:
        """Return the source ports of connections that have an address of the node instead of their client's."""
        text = subprocess.run(self.lab.node.command(["cat", "/proc/net/nf_conntrack"]), capture_output=True, text=True)
        found = set()
        for line in text.stdout.splitlines():
            words = [word.split("=") for word in line.split() if "=" in word]
            source, *_, back, _, port = (value for name, value in words if name in {"src", "dst", "sport", "dport"})
            if back != source:
                found.add(int(port))
        return found

    def ruleset(self) -> str:
        return subprocess.run(self.lab.node.command(["nft", "list", "ruleset"]), capture_output=True, text=True).stdout


def refused(address: str, port: int) -> traffic.Answer:
    """Connect to a closed port. Raises ValueError where that is not refused."""
    try:
        traffic.connect(address, port).close()
    except ConnectionRefusedError:
        return traffic.Answer("refused", "")
    raise ValueError(f"{address} port {port} is open")


class Talkers:
    """Open connections from every place, to every address."""

    def __init__(self, places: dict[str, Namespace]) -> None:
        self._talkers = {(n, vip): traffic.Talkers(s, vip, 80, OPEN) for n, s in places.items() for vip in WEB}

    def go_on(self) -> bool:
        """Send a request on each; each must have the answer of its backend."""
        assert all(first == now for first, now in self._ask().values())
        return True

    def end_with(self, backend: str) -> bool:
        """Send requests until those of the backend have ended by a RST; all others continue."""

        def have_ended() -> bool:
            asked = self._ask()
            for key, (first, now) in asked.items():
                for at, (name, text) in enumerate(zip(first, now, strict=True)):
                    if name != backend:
                        assert text == name, {key: pair for key, pair in asked.items() if pair[0] != pair[1]}
                    elif text != name:
                        ends.setdefault((key, at), text.split(":")[0])
            return len(ends) == sum(first.count(backend) for first, _ in asked.values())

        ends: dict[tuple[tuple[str, str], int], str] = {}
        wait_for(have_ended, f"the end of {backend}'s connections", START_TIMEOUT_S)
        assert set(ends.values()) <= {"ConnectionResetError"}, ends
        return True

    def _ask(self) -> dict[tuple[str, str], tuple[list[str], list[str]]]:
        return {key: (talkers.first, talkers.ask()) for key, talkers in self._talkers.items()}

    def close(self) -> None:
        for talkers in self._talkers.values():
            talkers.close()


OTHER = {"bpf": "nftables", "nftables": "bpf"}
LEFT = {"bpf": "flows of the data plane bpf are left", "nftables": "connections of the data plane nftables are left"}


@pytest.mark.parametrize(("first", "attach"), [("bpf", "xdp"), ("nftables", "tc")])
def test_the_other_data_plane_takes_over(lab: Lab, first: str, attach: str) -> None:
    node, second = Switching(lab, attach), OTHER[first]
    agent = node.made.agent
    node.start(first)
    talkers, datagrams = node.talkers(), traffic.Datagrams(node.lab.client, DNS, 53, OPEN)

    def still_there() -> bool:
        return datagrams.ask() == datagrams.first

    with node.load() as loads:
        assert agent.stop() == 0
        node.start(second)
        assert still_there()
        agent.kill()  # while both have connections
        node.start(second)
        assert still_there()
        for load in loads.values():
            load.wait_more(60)
        assert talkers.go_on()
        assert still_there()
        wait_for(lambda: any(f" {LEFT[first]}" in text for text in problems(agent)), "what is left", START_TIMEOUT_S)
        wait_for(lambda: not any(f"some {LEFT[first]}" in text for text in problems(agent)), "a count", START_TIMEOUT_S)
        assert still_there()
        new = node.talkers("outside", "pod")  # one of the node to nftables has no answer (docs/renderers.md)
        if first == "bpf":
            assert min(node.translated_ports()) >= 30000, "bpf has 1024-29999"
        with contextlib.ExitStack() as paused:  # a request on its way to a backend that goes ends with it
            for load in loads.values():
                paused.enter_context(load.held())
            node.made.serve(node.made.web("b2", "b3"), node.exposed("b2", "b3"))
        assert talkers.end_with("b1")
        assert new.end_with("b1")
        talkers.close()
        new.close()
        new = node.talkers()
        wait_for(lambda: not problems(agent), f"the end of {first}", START_TIMEOUT_S, 0.2)
        assert new.go_on()
        for load in loads.values():
            load.wait_more(60)
    new.close()
    datagrams.close()
    assert not (lab.bpffs / "v1").exists() if first == "bpf" else "lbagent" not in node.ruleset()
    assert agent.stop() == 0
    agent.cli("cleanup")
    assert not (lab.bpffs / "v1").exists()
    assert "lbagent" not in node.ruleset()


def problems(agent: Agent) -> list[str]:
    return list(agent.api.status()["problems"])
