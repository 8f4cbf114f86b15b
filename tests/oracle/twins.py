"""Twin laboratories with the same addresses: one agent serves with BPF, the other with nftables, and both get the same folders."""

from __future__ import annotations

import contextlib
import itertools
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from tests.e2e.cluster import Cluster
from tests.lab import cgroup
from tests.lab.manifests import put
from tests.lab.netns import Namespace, wait_for
from tests.lab.topology import Lab
from tests.oracle.asker import Asker
from tests.oracle.folders import BACKENDS, HOST, Folder

NODE_IPS = BACKENDS[HOST]
GUEST = "guest"  # a pod that is no backend
CLIENTS = ("outside", "pod", "backend", "node")
_NUMBERS = [
    number for pair in zip(range(64, 124), range(128, 188), strict=True) for number in pair
]  # of both halves of folders.RANGES
SOURCES = {4: [f"10.77.0.{number}" for number in _NUMBERS], 6: [f"fd77::64:{number:x}" for number in _NUMBERS]}
UNLIMITED = {  # a refusal that the kernel leaves out is silence
    "ipv4/icmp_ratelimit": 0,
    "ipv6/icmp/ratelimit": 0,
    "ipv4/icmp_msgs_per_sec": 1_000_000,
    "ipv4/icmp_msgs_burst": 100_000,
}
NFTABLES = ("--renderer", "nftables")
UDP_S = 600  # on a busy machine a folder may take longer than the 30 s for which the kernel has a UDP flow
_number = itertools.count()


@dataclass
class Side(ABC):
    """One laboratory of the two."""

    name: str
    lab: Lab
    asker: Asker

    def place(self, client: str) -> Namespace:
        """Return where a client runs."""
        spaces = self.lab.namespaces
        return {"outside": self.lab.client, "pod": spaces[GUEST], "backend": spaces["b3"], "node": self.lab.node}[
            client
        ]

    @abstractmethod
    def put(self, folder: Folder, mark: int) -> None:
        """Let a folder be served; its Service `mark` has this port."""

    @abstractmethod
    def has(self, mark: int) -> bool:
        """Return whether the folder with this mark is in force."""


@dataclass
class AgentSide(Side):
    """A laboratory with an agent."""

    cluster: Cluster

    def put(self, folder: Folder, mark: int) -> None:
        """Write the folder."""
        put(self.cluster.folder, "all.yaml", folder.text(mark))

    def has(self, mark: int) -> bool:
        """Look for the mark in `svc list`."""
        return any(
            service["name"] == "mark" and int(service["frontend"].rsplit(":", 1)[1].split("/")[0]) == mark
            for service in self.cluster.agent.api.services()
        )


class Twins:
    """Both sides."""

    def __init__(self, sides: Sequence[Side]) -> None:
        self.sides = sides
        self._mark = 1000

    def serve(self, folder: Folder) -> None:
        """Give both a folder, and return when both have it in force."""
        self._mark = self._mark + 1 if self._mark < 60000 else 1001
        for side in self.sides:
            side.put(folder, self._mark)
        for side in self.sides:
            wait_for(partial(side.has, self._mark), f"the folder in force with {side.name}", 30, 0.004)


def laboratory(tag: str, closing: contextlib.ExitStack) -> tuple[Lab, Asker]:
    """Return a laboratory with servers on all backends; its tag begins so."""
    lab = _lab(f"{tag}{next(_number)}-", closing)
    asker = Asker({**lab.namespaces, HOST: lab.node})
    closing.callback(asker.close)
    return lab, asker


def _lab(tag: str, closing: contextlib.ExitStack) -> Lab:
    lab = closing.enter_context(Lab(tag=tag))
    lab.node.ip("route add default via 10.77.0.2", "route add default via fd77::2")
    for name, value in UNLIMITED.items():
        lab.node.sysctl(name, value)
    for name in ("udp_timeout", "udp_timeout_stream"):
        lab.node.sysctl(f"netfilter/nf_conntrack_{name}", UDP_S)
    lab.add_pod("b4", "pod4", "10.244.1", "fd44:1")
    lab.add_pod(GUEST, "pod5", "10.244.2", "fd44:2")
    lab.client.ip(
        *(
            f"addr add {each}/{24 if version == 4 else 64} dev c0 nodad"
            for version in (4, 6)
            for each in SOURCES[version]
        )
    )
    lab.freeze_neighbours()
    lab.freeze_clients(SOURCES)
    return lab


def agent_side(name: str, arguments: Sequence[str], closing: contextlib.ExitStack) -> AgentSide:
    """Return a laboratory whose agent runs, with an empty folder."""
    lab, asker = laboratory(name, closing)
    made = Cluster(lab, "tc")
    made.agent.arguments += [
        *arguments,
        "--reject-rate",
        "1000000",
        "--timeout-udp",
        f"{UDP_S}s",
        *(word for ip in NODE_IPS for word in ("--node-ip", ip)),
    ]
    put(made.folder, "all.yaml", Folder(()).text(1))
    made.agent.start()
    return AgentSide(name, lab, asker, made)


@contextlib.contextmanager
def made(attach: str) -> Iterator[Twins]:
    """Make both; this process is in the cgroup of the socket programs, so that clients on the node are served with BPF, too."""
    with contextlib.ExitStack() as closing:
        group: Path = closing.enter_context(cgroup.made())
        bpf = ("--renderer", "bpf", "--socket-lb", "--cgroup", str(group), "--attach", attach)
        sides = [agent_side("bpf", bpf, closing), agent_side("nftables", NFTABLES, closing)]
        closing.enter_context(cgroup.joined(group))
        yield Twins(sides)
