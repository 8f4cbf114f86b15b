"""Twin laboratories with the same addresses: one agent serves with BPF, the other with nftables, and both get the same folders."""

from __future__ import annotations

import contextlib
import itertools
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
_number = itertools.count()


@dataclass
class Side:
    """One laboratory of the two."""

    name: str
    cluster: Cluster
    asker: Asker

    def place(self, client: str) -> Namespace:
        """Return where a client runs."""
        spaces = self.cluster.lab.namespaces
        return {
            "outside": self.cluster.client,
            "pod": spaces[GUEST],
            "backend": spaces["b3"],
            "node": self.cluster.lab.node,
        }[client]

    def in_force(self) -> int:
        """Return the mark of the folder that is in force."""
        marks = (
            int(service["frontend"].rsplit(":", 1)[1].split("/")[0])
            for service in self.cluster.agent.api.services()
            if service["name"] == "mark"
        )
        return next(marks, 0)


class Twins:
    """Both sides."""

    def __init__(self, sides: Sequence[Side]) -> None:
        self.sides = sides
        self._mark = 1000

    def serve(self, folder: Folder) -> None:
        """Give both agents a folder, and return when both have it in force."""
        self._mark = self._mark + 1 if self._mark < 60000 else 1001
        for side in self.sides:
            put(side.cluster.folder, "all.yaml", folder.text(self._mark))
        for side in self.sides:
            wait_for(partial(self._has, side), f"the folder in force with {side.name}", 30, 0.004)

    def _has(self, side: Side) -> bool:
        return side.in_force() == self._mark


def _lab(tag: str, closing: contextlib.ExitStack) -> Cluster:
    lab = closing.enter_context(Lab(tag=tag))
    lab.node.ip("route add default via 10.77.0.2", "route add default via fd77::2")
    for name, value in UNLIMITED.items():
        lab.node.sysctl(name, value)
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
    return Cluster(lab, "tc")


def _side(name: str, arguments: Sequence[str], closing: contextlib.ExitStack) -> Side:
    made = _lab(f"{name}{next(_number)}-", closing)
    made.agent.arguments += [
        *arguments,
        "--reject-rate",
        "1000000",
        *(word for ip in NODE_IPS for word in ("--node-ip", ip)),
    ]
    asker = Asker({**made.lab.namespaces, HOST: made.lab.node})
    closing.callback(asker.close)
    put(made.folder, "all.yaml", Folder(()).text(1))
    made.agent.start()
    return Side(name, made, asker)


@contextlib.contextmanager
def made(attach: str) -> Iterator[Twins]:
    """Make both; this process is in the cgroup of the socket programs, so that clients on the node are served with BPF, too."""
    with contextlib.ExitStack() as closing:
        group: Path = closing.enter_context(cgroup.made())
        bpf = ("--renderer", "bpf", "--socket-lb", "--cgroup", str(group), "--attach", attach)
        sides = [_side("bpf", bpf, closing), _side("nftables", ("--renderer", "nftables"), closing)]
        closing.enter_context(cgroup.joined(group))
        yield Twins(sides)
