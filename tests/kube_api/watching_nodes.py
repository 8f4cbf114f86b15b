"""Nodes with agents that find out which of them are dead (--node-liveness udp)."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType

from tests.kube_api.announcing_nodes import Host, Link
from tests.lab import traffic
from tests.lab.netns import wait_for

KEY = "0f0e0d0c0b0a09080706050403020100"
ANSWER_S = 1.0  # a connection without an answer for so long went to a dead node
PATIENT_S = 5.0  # where all nodes live: a busy machine may answer late, or after a second SYN


class NewFlows:
    """Opens connections from a node's pod, ten a second, each with a time-out of its own."""

    def __init__(self, host: Host, address: str) -> None:
        self._host, self._address = host, address
        self._results: list[tuple[float, str]] = []
        self._ends = threading.Event()
        self._threads = [threading.Thread(target=self._run, args=(number * 0.1,)) for number in range(15)]
        for each in self._threads:
            each.start()

    def _run(self, delay_s: float) -> None:
        with self._host.pod.entered():
            self._ends.wait(delay_s)
            while not self._ends.is_set():
                began = time.monotonic()
                self._results.append((began, ask(self._address)))
                self._ends.wait(max(0.0, began + 1.5 - time.monotonic()))

    def end(self) -> None:
        self._ends.set()
        for each in self._threads:
            each.join()

    def unanswered(self) -> list[float]:
        """Return when connections without an answer began (CLOCK_MONOTONIC)."""
        return sorted(began for began, name in self._results if not name)


def ask(address: str, timeout_s: float = ANSWER_S) -> str:
    """Return the name that answers one new connection from the calling thread's namespace, '' for none."""
    with contextlib.suppress(OSError):
        return traffic.http_get(address, 80, timeout_s=timeout_s).backend
    return ""


class ClusterOfNodes:
    """So many nodes of a link, each with an agent and a pod."""

    def __init__(
        self,
        link: Link,
        count: int,
        *arguments: str,
        announces: bool = True,
        renderers: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        """`renderers`: of nodes by name, in place of bpf."""
        self.link = link
        self._is_cut: set[str] = set()  # names of nodes
        self.hosts = [link.add_host(number) for number in range(1, count + 1)]
        for host in self.hosts:
            key = host.folder / "liveness.key"
            key.write_text(KEY + "\n")
            if not announces:
                host.agent.arguments.clear()
            host.agent.arguments += ["--node-liveness", "udp", "--liveness-key-file", str(key), *arguments]
            if host.name in renderers:
                host.agent.arguments += ["--renderer", renderers[host.name]]
            host.agent.start(wait=False)
        for host in self.hosts:
            host.agent.wait_ready()
        self.until_all_live()

    def until_all_live(self) -> None:
        """Wait until each node observes all others, misses none and has none as dead."""
        for host in self.hosts:
            others = {each.name for each in self.hosts if each is not host}
            wait_for(lambda host=host, others=others: self.dead(host) == dict.fromkeys(others, 0), "observation", 30)
            wait_for(lambda host=host: "lbagent_node_missed 0" in host.agent.api.metrics(), "an answer of each", 30)

    def restore(self) -> None:
        """Bring everything back that a test has taken away."""
        for host in self.hosts:
            if host.name in self._is_cut or host.proxy.is_refusing:
                self.heal(host)  # no other one: a watch that breaks again and again pauses longer and longer
            host.plug_in()
        for host in self.hosts:
            wait_for(lambda host=host: not self._misses_the_api(host), "the API server", 60)
        self.until_all_live()

    def _misses_the_api(self, host: Host) -> list[str]:
        return [text for text in host.agent.api.status()["problems"] if "Lease" in text or "API" in text]

    def serve(self, name: str, address: str) -> None:
        """Create a Service with an endpoint on each node; return when each node has it."""
        self.link.serve(name, address, hosts=self.hosts)
        for host in self.hosts:
            wait_for(
                lambda host=host: self.asked(host, address), f"the Service at {host.name}", 60
            )  # its watch may be in a pause

    def asked(self, host: Host, address: str) -> str:
        """Return the name that answers one new connection from a node's pod, '' for none."""
        return host.pod.call(ask, address, PATIENT_S)

    def backends_of(self, host: Host, address: str, connections: int) -> set[str]:
        """Return the names that answer so many new connections from a node's pod; '' for those without an answer."""
        return {self.asked(host, address) for _ in range(connections)}

    @contextlib.contextmanager
    def loads(self, hosts: Sequence[Host], address: str) -> Iterator[list[NewFlows]]:
        """Open connections from the pods of these nodes during the block."""
        loads = [NewFlows(host, address) for host in hosts]
        try:
            yield loads
        finally:
            for each in loads:
                each.end()

    def cut(self, host: Host) -> float:
        """Cut a node off, from the API server, too; return when (CLOCK_MONOTONIC)."""
        self._is_cut.add(host.name)
        host.proxy.stall()
        host.proxy.half_open()
        host.pull_cable()
        return time.monotonic()

    def heal(self, host: Host) -> None:
        self._is_cut.discard(host.name)
        host.plug_in()
        host.proxy.is_refusing = False
        host.proxy.flow()
        host.proxy.cut()  # connections that were cut end at some time: here at once

    def dead(self, host: Host) -> dict[str, int]:
        """Return lbagent_node_dead of a node's agent."""
        found = {}
        for line in host.agent.api.metrics().splitlines():
            if line.startswith("lbagent_node_dead{"):
                name, value = line.removeprefix('lbagent_node_dead{node="').split('"} ')
                found[name] = int(float(value))
        return found

    def until_dead(self, host: Host, dead: Host, until: float) -> None:
        """Return when a node's agent reports another one as dead; at a time of CLOCK_MONOTONIC at the latest."""
        wait_for(
            lambda: self.dead(host).get(dead.name),
            f"{dead.name} to be dead",
            max(0.1, until - time.monotonic()),
            exact=True,
        )
