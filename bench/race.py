"""Two CPUs on one small table: requests, replies and evictions at once, on real veth devices with two queues.

Each CPU injects frames of two kinds: ACKs of kept flows, which were opened before and must never change their backend, and SYNs of a
range far larger than the table, which evict each other. The backend's end compares each frame with the first one of its flow and
answers; the client's end checks that the answer comes from the VIP, to the right client, with a correct checksum. Afterwards the
tables are read: no duplicate flow, no SNAT port with two flows, no lock left.
"""

from __future__ import annotations

import contextlib
import json
import os
import struct
import threading
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from bench.harness import pinned
from bench.programs import ARRAY, MMAPABLE, PERCPU_ARRAY, Map, Maps, load
from bench.wire import BATCH, LIVE_FRAMES
from bench.world import TABLE
from bench.wrapper import DATA, SYN, Plan, Tuple, Wrapper, ip
from lbagent.kernel import bpf_prog
from lbagent.maps.flow_layout import FLOW, OWNER_HELD_SHIFT, SPILL_KEY_WORDS
from lbagent.maps.layout import FLOW_WAYS, DeviceFlag
from lbagent.maps.specs import Sizes
from lbagent.model.address import format_ip
from lbagent.model.family import Family
from lbagent.model.maglev import lookup_table
from tests.lab import xdp
from tests.lab.netns import run
from tests.lab.topology import Lab
from tests.packet.craft import FAMILIES
from tests.packet.harness import open_world
from tests.packet.world import MAGLEV, World

KEPT, CHURN = 512, 1 << 16  # flows; the table has 4,096 entries
ENTRIES, SLOTS = 4096, 8192
BACKENDS = 16
FIELDS = (
    "sent_kept", "sent_churn", "seen_kept", "seen_churn", "wrong_backend", "moved", "renewed", "reply_kept", "reply_churn",
    "wrong_reply", "late_reply", "bad_source", "forgotten", "bad_checksum", "foreign", "kept",
    "churn_mask",
)  # fmt: skip
MUST_BE_ZERO = ("wrong_backend", "moved", "wrong_reply", "bad_source", "bad_checksum")
SMALL = Sizes(
    flow4=ENTRIES, flow6=ENTRIES, snat4=SLOTS, snat6=SLOTS, services=1 << 8, backends=1 << 8, source_ranges=1 << 6,
    affinity=1 << 6, spill=1 << 12, fragments=1 << 6, maglev_size=TABLE,
)  # fmt: skip


@dataclass(frozen=True)
class Addresses:
    """The addresses of a family."""

    client: bytes
    vip: bytes
    node: bytes
    backend_net: str
    route: str
    gateway: str


ADDRESSES = {
    4: Addresses(ip("172.16.0.0"), ip("10.96.0.10"), ip("10.77.1.1"), "10.77.1.{}", "172.16.0.0/12", "10.77.0.2"),
    6: Addresses(ip("fd00:172::"), ip("fd00:96::10"), ip("fd77:1::1"), "fd77:1::{:x}", "fd00:172::/64", "fd77::2"),
}


@dataclass(frozen=True)
class LabNet:
    """A laboratory's node in the form that tests.packet.world needs: device indexes and a function that enters it."""

    lab: Lab
    lb0: int
    lb1: int
    pod0: int = 999

    def inside(self) -> contextlib.AbstractContextManager[None]:
        """Enter the node's namespace."""
        return self.lab.node.entered()


@dataclass
class Result:
    """The counters of the run, and the errors in the tables afterwards."""

    family: int
    seconds: float
    counts: dict[str, int]
    local: bool = False
    device_drops: int = 0  # frames for which a veth had no room
    structure: dict[str, int] = field(default_factory=dict)

    @property
    def packets(self) -> int:
        """Frames that passed lbagent's programs, requests and replies."""
        names = ("seen_kept", "seen_churn", "reply_kept", "reply_churn", "late_reply")
        return sum(self.counts[name] for name in names)

    @property
    def faults(self) -> dict[str, int]:
        """Everything that must be zero and is not."""
        wrong = {name: self.counts[name] for name in MUST_BE_ZERO} | self.structure
        if (
            not self.local
        ):  # a local backend's reply to an evicted flow is not translated; a SNAT slot outlives its flow
            wrong["forgotten"] = self.counts["forgotten"]
        lost = self.counts["sent_kept"] - self.counts["reply_kept"] - self.counts["wrong_reply"]
        wrong["kept_lost"] = max(0, lost - self.device_drops)  # a full ring of a veth is not a fault of the programs
        return {name: value for name, value in wrong.items() if value}

    def record(self) -> dict[str, Any]:
        """Return the record for results.json."""
        return {
            "family": self.family,
            "seconds": self.seconds,
            "packets": self.packets,
            "device_drops": self.device_drops,
            "faults": self.faults,
            **self.counts,
        }


class Race:
    """The laboratory, the programs of both ends and one generator for each CPU."""

    def __init__(self, lab: Lab, kernel: World, family: int, *, local: bool = False) -> None:
        """Fill the maps, attach everything. Local: backends get their clients' addresses, and the stack forwards requests."""
        self.lab, self.kernel, self.family, self.local = lab, kernel, family, local
        self.at = ADDRESSES[family]
        self.cpus = sorted(os.sched_getaffinity(0))[:2]
        self.shared = {
            "race_tally": Map(ARRAY, 4, 8 * len(FIELDS), 1, MMAPABLE),
            "race_record": Map(ARRAY, 4, 8 * 2 * CHURN, 1, MMAPABLE),
            "frame_hop": Map(ARRAY, 4, 16, 1),
            "frame_count": Map(PERCPU_ARRAY, 4, 8, 1),
            "undo_list": Map(ARRAY, 4, 4096, 1, MMAPABLE),
        }
        self.flags = ("-DLIST_MASK=0ull", f"-DRECORD_MASK={2 * CHURN - 1}ull")
        control = Map(ARRAY, 4, Wrapper.control_size(family), 1, MMAPABLE)
        self.maps = Maps({"undo_control": control, **self.shared})
        self.generators = [self._generator(control) for _ in self.cpus]
        self._fill()
        self._attach()

    def _generator(self, control: Map) -> Maps:
        """Give each CPU its own control record in addition to the shared tallies."""
        own = Maps({"undo_control": control})
        for name in self.shared:
            own.fds[name] = os.dup(self.maps.fds[name])
        return own

    def _fill(self) -> None:
        """Write one service with 16 backends, all behind lan1."""
        lab, kernel, family = self.lab, self.kernel, FAMILIES[self.family]
        wan, lan = kernel.net.lb0, kernel.net.lb1
        far, near = lab.namespaces["b1"].mac("e0"), lab.client.mac("c0")
        lab.freeze_neighbours()
        lab.node.ip(f"route add {self.at.route} via {self.at.gateway} dev wan")
        for index, device in ((wan, "wan"), (lan, "lan1")):
            kernel.device(index, DeviceFlag.XDP_SEND, lab.node.mac(device).hex(":"))
        to_backends = kernel.nexthop(lan, far.hex(":"), lab.node.mac("lan1").hex(":"))
        kernel.nexthop(wan, near.hex(":"), lab.node.mac("wan").hex(":"))
        kernel.filter("snat", self.at.node)
        rows = []
        for n in range(BACKENDS):
            row = kernel.backend(
                family, self.at.backend_net.format(16 + n), 8080, nexthop=to_backends, local=self.local
            )
            if self.local:
                lab.node.ip(f"neigh add {row.address} lladdr {far.hex(':')} dev lan1 nud permanent")
            else:
                kernel.path(row, flags=3, nexthop=to_backends, snat=format_ip(self.at.node))
            rows.append(row)
        service = kernel.service(family, format_ip(self.at.vip), 80, 6, rows, algorithm=MAGLEV)
        kernel.maglev(service, lookup_table([(row.id, 100, row.address.encode()) for row in rows], TABLE))

    def _attach(self) -> None:
        lab = self.lab
        self.client_fd, self.backend_fd, *self.generate = (
            load("frames", self.family, maps, self.flags, name)
            for maps, name in (
                (self.maps, "client_end"),
                (self.maps, "backend_end"),
                *((g, "churn") for g in self.generators),
            )
        )
        self.open_fds = [load("frames", self.family, maps, self.flags, "opening") for maps in self.generators]
        xdp.attach(lab.client, "c0", self.client_fd)
        xdp.attach(lab.namespaces["b1"], "e0", self.backend_fd)
        for device in ("wan", "lan1"):
            xdp.attach(lab.node, device, self.kernel.programs["xdp"])

    def _plan(self, flags: int, flows: int) -> Plan:
        return Plan(
            Tuple(self.at.client, self.at.vip, 0, 80), flows, flags, in_order=True,
            dmac=self.lab.node.mac("wan"), smac=self.lab.client.mac("c0"),
        )  # fmt: skip

    def _inject(self, number: int, fd: int, plan: Plan, frames: int, start: int) -> None:
        """Run one generator on its CPU (a thread)."""
        data, frame = Wrapper.encode(plan, start, 0)
        with Wrapper.view(self.generators[number].fds["undo_control"]) as control:
            control[: len(data)] = data
        with self.lab.client.entered(), pinned(self.cpus[number]):
            ctx = struct.pack("<6I", 0, len(frame), 0, self.lab.client.ifindex("c0"), 0, 0)
            bpf_prog.prog_test_run(fd, frame, ctx=ctx, repeat=frames, flags=LIVE_FRAMES)

    def tally(self) -> dict[str, int]:
        """Read the counters."""
        with Wrapper.view(self.maps.fds["race_tally"]) as view:
            return dict(zip(FIELDS, struct.unpack_from(f"<{len(FIELDS)}Q", view), strict=True))

    def _reset(self) -> None:
        values = [0] * (len(FIELDS) - 2) + [KEPT, CHURN - 1]
        with Wrapper.view(self.maps.fds["race_tally"]) as view:
            view[: 8 * len(FIELDS)] = struct.pack(f"<{len(FIELDS)}Q", *values)

    def run(self, seconds: float, chunk: int = 200_000) -> Result:
        """Open the kept flows, then run both CPUs for a while."""
        self._reset()
        with (
            Wrapper.view(self.generators[0].fds["undo_control"]) as control,
            Wrapper.view(self.maps.fds["undo_control"]) as ends,
        ):
            data, _ = Wrapper.encode(self._plan(DATA, KEPT), 0, 0)
            control[: len(data)] = data
            ends[: len(data)] = data
        for flags in (SYN, DATA):  # the backend's answer establishes the flow
            self._inject(0, self.open_fds[0], self._plan(flags, KEPT), KEPT, 0)
        self._reset()
        drops, end = self.device_drops(), time.monotonic() + seconds

        def work(number: int) -> None:
            position = number << 40
            while time.monotonic() < end:
                self._inject(number, self.generate[number], self._plan(DATA, KEPT), chunk, position)
                position += chunk

        threads = [threading.Thread(target=work, args=(number,)) for number in range(len(self.cpus))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        drops = self.device_drops() - drops
        return Result(self.family, seconds, self.tally(), self.local, drops, structure(self.kernel, self.family))

    def device_drops(self) -> int:
        """Return the frames the veth devices had no room for."""
        spaces = (self.lab.client, self.lab.node, self.lab.namespaces["b1"])
        links = [link for space in spaces for link in json.loads(run("ip", "-n", space.name, "-j", "-s", "link"))]
        return sum(link["stats64"][way]["dropped"] for link in links for way in ("rx", "tx"))

    def close(self) -> None:
        """Unload."""
        for fd in (self.client_fd, self.backend_fd, *self.generate, *self.open_fds):
            os.close(fd)
        for maps in (self.maps, *self.generators):
            maps.close()


def structure(kernel: World, family: int) -> dict[str, int]:
    """Read the flow table by maps/flow_layout.py; count entries that must not exist."""
    record, key_words = FLOW[Family(family)], SPILL_KEY_WORDS[Family(family)]
    key = [field for name, field in record.fields.items() if field.word < key_words and not name.endswith("generation")]
    l4, backend, forward, version = (record.fields[name] for name in ("l4", "backend", "forward", "bucket"))
    name = f"lb{family}_flow"
    with kernel.maps.window(name, 0, kernel.maps.specs[name].value_size) as view, view.cast("Q") as cells:
        table = cells.tolist()
    flows: Counter[tuple[int, ...]] = Counter()
    held: Counter[tuple[int, int, int]] = Counter()  # backend, SNAT port, protocol
    for at in range(0, len(table), record.words):
        words = table[at : at + record.words]
        if not words[0] >> OWNER_HELD_SHIFT:
            continue
        flows[tuple(field.of(words[field.word]) for field in key)] += 1
        port = forward.of(words[forward.word])
        if port:
            held[backend.of(words[backend.word]), port, l4.of(words[l4.word])] += 1
    first_ways = table[version.word :: record.words * FLOW_WAYS]
    return {
        "duplicate_entries": sum(1 for n in flows.values() if n > 1),
        "ports_held_twice": sum(1 for n in held.values() if n > 1),
        "locks_left": sum(version.of(word) & 1 for word in first_ways),
    }


@contextlib.contextmanager
def race(family: int, *, local: bool = False) -> Iterator[Race]:
    """Build the laboratory of one family, with small tables."""
    with Lab(pod=False, queues=2, tag=f"r{family}") as lab:
        net = LabNet(lab, lab.node.ifindex("wan"), lab.node.ifindex("lan1"))
        with open_world(sizes=SMALL, net=net) as kernel:  # type: ignore[arg-type]
            made = Race(lab, kernel, family, local=local)
            try:
                yield made
            finally:
                made.close()


__all__ = ["BATCH", "Race", "Result", "race", "replace"]
