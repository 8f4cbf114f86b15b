"""The environment of a packet test: services, backends, paths, next hops and filter bits, written as bytes.

Written by `maps/layout.py` alone and not by the planner, so that a wrong planner and a wrong program cannot agree. `World`
holds maps and programs; each test gets it empty (`reset`).
"""

from __future__ import annotations

import struct
import time
from collections import Counter
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from lbagent.bpf.run.sweep import trust_ages
from lbagent.kernel import bpf_map
from lbagent.kernel.cpus import possible_cpus
from lbagent.maps import layout, mmap_window, prefilter
from lbagent.maps.layout import PATH_L4_SHIFT, DeviceFlag, PathFlag, PathL4
from lbagent.maps.reasons import Reason
from lbagent.maps.specs import MapType, counter_stripe_bytes
from lbagent.testing.bpf_test_run import Result, Tc, Xdp, run_tc, run_xdp
from tests.packet import craft
from tests.packet.craft import FAMILIES, Family

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from lbagent.maps.lbmaps import LBMaps
    from lbagent.maps.specs import Sizes
    from tests.packet.net import Net

TCP, UDP, SCTP = 6, 17, 132
_L4 = {TCP: PathL4.TCP, UDP: PathL4.UDP, SCTP: PathL4.SCTP}
FOR_EVER = 1 << 62  # ticks: ages are right, as after a sweep
RANDOM, MAGLEV = 1, 2
TYPE_CLUSTER_IP, TYPE_NODE_PORT, TYPE_LOAD_BALANCER = 0, 2, 0x20
ROUTABLE, AFFINITY, SOURCE_RANGE, EXT_LOCAL = 0x40, 0x10, 0x80, 0x04
INT_LOCAL, TWO_SCOPES, RANGE_DENY, L7 = 0x1000, 0x2000, 0x4000, 0x0400
STATE_ACTIVE, STATE_TERMINATING, STATE_QUARANTINED, STATE_MAINTENANCE = 0, 1, 2, 3
_REASONS = [reason for reason in Reason if reason]
XDP, TC_INGRESS, TC_EGRESS, TC_AFTER_XDP = "xdp", "tc_ingress", "tc_egress", "tc_after_xdp"
TC_HOOKS = (TC_INGRESS, TC_EGRESS, TC_AFTER_XDP)
_FORWARD = {XDP: (Xdp.TX, Xdp.REDIRECT), **dict.fromkeys(TC_HOOKS, (Tc.REDIRECT,))}
_PASS = {XDP: (Xdp.PASS,), **dict.fromkeys(TC_HOOKS, (Tc.OK, Tc.UNSPEC))}
_DROP = {XDP: (Xdp.DROP,), **dict.fromkeys(TC_HOOKS, (Tc.SHOT,))}


@dataclass(frozen=True)
class BackendRow:
    """A backend in the maps."""

    id: int
    family: Family
    address: str
    port: int
    proto: int
    local: bool

    @property
    def endpoint(self) -> tuple[str, int]:
        """Address and port."""
        return self.address, self.port


@dataclass(frozen=True)
class ServiceRow:
    """A frontend in the maps."""

    id: int
    family: Family
    address: str
    port: int
    proto: int
    scope: int
    flags: int
    backends: tuple[BackendRow, ...]
    target: int = 0
    last_port: int = 0  # of a range of ports


@dataclass(frozen=True)
class Outcome:
    """The outcome of a frame."""

    hook: str
    verdict: int
    packet: bytes
    counted: Counter[Reason] = field(default_factory=Counter)
    metadata: bytes = b""  # what XDP put before the frame
    mark: int = 0  # by which the stack routes it

    @property
    def forwarded(self) -> bool:
        """Sent out by the program (XDP_TX or redirect)."""
        return self.verdict in _FORWARD[self.hook]

    @property
    def passed(self) -> bool:
        """Handed to the stack."""
        return self.verdict in _PASS[self.hook]

    @property
    def dropped(self) -> bool:
        """Thrown away on purpose."""
        return self.verdict in _DROP[self.hook]


class World:
    """Maps, programs and a namespace; builder of everything a plan would write."""

    def __init__(self, maps: LBMaps, programs: Mapping[str, int], net: Net, sizes: Sizes) -> None:
        """Take opened maps, program descriptors by name and the namespace the runs happen in."""
        self.maps, self.programs, self.net, self.sizes = maps, programs, net, sizes
        self._written: set[tuple[str, bytes]] = set()
        self._counter_window = ExitStack()
        self._counted: tuple[LBMaps, memoryview] | None = None  # maps whose counters are mapped
        self.reset()

    def close(self) -> None:
        """Release the mappings."""
        self._counted = None
        self._counter_window.close()

    def reset(self) -> None:
        """Empty every map and start counting from 1 again."""
        by_map: dict[str, list[bytes]] = {}
        for name, key in self._written:
            by_map.setdefault(name, []).append(key)
        for name, keys in by_map.items():
            self.maps.delete_many(name, keys)
        for name in ("lb4_affinity", "lb6_affinity", "lb4_frag", "lb6_frag", "lb4_spill", "lb6_spill"):
            self.maps.delete_many(name, [key for key, _ in self.maps.items(name)])
        self._written.clear()
        for name in ("lb4_path", "lb6_path", "lb_nexthop", "lb_filter", "lb_device", "lb_direct"):
            self.clear(name)
        bpf_map.map_update(self.maps.fd("lb_ratelimit"), bytes(4), bytes(16 * possible_cpus()))  # full buckets
        self.forget_flows()
        self._filter_users: Counter[tuple[str, bytes]] = Counter()
        self._service_id = self._backend_id = 0
        self.services: list[ServiceRow] = []
        self.nexthops: dict[tuple[int, str], int] = {}
        self.device(self.net.lb0, DeviceFlag.XDP_SEND, craft.NODE_MAC)
        self.device(self.net.lb1, DeviceFlag.XDP_SEND, craft.NODE2_MAC)
        self.device(self.net.pod0, DeviceFlag.POD, craft.POD_MAC)
        for fam in FAMILIES.values():
            for address in (fam.node, fam.node2):
                self.filter("snat", fam.packed(address))
        trust_ages(self.maps, FOR_EVER)
        self._counters = self._read_counters()

    def forget_flows(self) -> None:
        """Empty the flow tables and the SNAT slots, as a fresh boot would find them."""
        for name in ("lb4_flow", "lb6_flow", "lb4_snat", "lb6_snat"):
            self.clear(name)

    def clear(self, name: str) -> None:
        """Fill a one-value array map with zeros."""
        size = self.maps.specs[name].value_size
        with self.maps.window(name, 0, size) as view:
            view[:] = bytes(size)

    # --- rows ---

    def put(self, name: str, rows: Sequence[tuple[bytes, bytes]]) -> None:
        """Write rows of a hash or array map and remember them for `reset`."""
        self.maps.put_many(name, rows)
        if self.maps.specs[name].type != MapType.ARRAY:
            self._written.update((name, key) for key, _ in rows)

    def device(self, ifindex: int, flags: int, mac: str, mtu: int = 1500) -> None:
        """Write the record of a device: its MAC address and flags."""
        row = layout.LB_DEVICE.pack(ifindex, _mac(mac), flags, mtu, bytes(2))
        for probe in range(layout.DEVICE_PROBES):
            at = layout.device_position(ifindex, probe) * len(row)
            with self.maps.window("lb_device", at, len(row)) as view:
                held = int.from_bytes(view[:4], "little")
                if held in (0, ifindex):
                    view[:] = row
                    return
        raise AssertionError("lb_device has no room")

    def vip(self, name: str, family: Family, address: str, mac: str, seconds: float = 30.0, device: int = 0) -> None:
        """Announce an address for a while in lb_vip with a MAC address, or set the previous leader in lb_former_leader."""
        packed = family.packed(address)
        key = layout.LB_VIP_KEY.pack(
            device or self.net.lb0, packed if family.version == 6 else bytes(10) + b"\xff\xff" + packed
        )
        until = time.monotonic_ns() + int(seconds * 1e9)
        self.put(name, [(key, layout.LB_VIP.pack(until, _mac(mac), b""))])

    def nexthop(self, ifindex: int, dmac: str, smac: str, *, xdp: bool = True) -> int:
        """Enter a next hop; the same one gets the same index. `xdp`: its device takes frames that XDP sends."""
        key = (ifindex, dmac)
        if key not in self.nexthops:
            index = self.nexthops[key] = len(self.nexthops) + 1
            row = layout.LB_NEXTHOP.pack(_mac(dmac), _mac(smac), ifindex | (0 if xdp else layout.NEXTHOP_NO_XDP))
            with self.maps.window("lb_nexthop", index * len(row), len(row)) as view:
                view[:] = row
            self.put(
                "lb_nexthop_id", [(layout.LB_NEXTHOP_KEY.pack(ifindex, _mac(dmac), b"\0\0"), struct.pack("=I", index))]
            )
        return self.nexthops[key]

    def filter(self, plane: str, address: bytes, *, on: bool = True) -> None:
        """Set or clear a bit of the prefilter: plane "vip", "direct", "source" or "datagram"; with "snat" the first two."""
        if plane == "snat":
            self.filter("vip", address, on=on)
            plane = "direct"
        self._filter_users[plane, address] += 1 if on else -1
        position = prefilter.filter_position(address)
        if plane == "datagram":
            position ^= 1
        if plane in ("source", "datagram"):
            offset, shift = layout.FILTER_DST_BYTES + (position >> 6) * 8, position & 63
        else:
            offset, shift = (position >> 5) * 8, (position & 31) * 2 + (plane == "direct")
        with self.maps.window("lb_filter", offset, 8) as view:
            words = view.cast("Q")
            words[0] = words[0] | (1 << shift) if on else words[0] & ~(1 << shift)
            words.release()

    def backend(
        self, family: Family, address: str, port: int, proto: int = TCP, *, local: bool = False, host: bool = False,
        keeps_pod: bool = False, state: int = STATE_ACTIVE, selectable: bool | None = None, mtu: int = 1500, nexthop: int | None = None, gen: int = 1,
    ) -> BackendRow:  # fmt: skip
        """Enter a backend: its row, its path (remote ones leave by lb1), the filter bits of a local one and of one that pods keep their address to."""
        self._backend_id += 1
        row = BackendRow(self._backend_id, family, address, port, proto, local)
        value = (family.packed(address), port.to_bytes(2, "big"), proto, state, 0, 0, b"\0")
        codec = layout.LB4_BACKEND if family.version == 4 else layout.LB6_BACKEND
        self.put(f"lb{family.version}_backend", [(struct.pack("=I", row.id), codec.pack(*value))])
        if nexthop is None:
            hop = (
                (self.net.pod0, craft.LOCAL_MAC, craft.POD_MAC)
                if local
                else (self.net.lb1, craft.BACKEND_MAC, craft.NODE2_MAC)
            )
            nexthop = self.nexthop(*hop)
        flags = PathFlag.LIVE | (PathFlag.LOCAL if local else 0) | (PathFlag.HOST if host else 0)
        flags |= PathFlag.KEEPS_POD if keeps_pod else 0
        flags |= _L4[proto] << PATH_L4_SHIFT
        flags |= PathFlag.SELECTABLE if (state == STATE_ACTIVE if selectable is None else selectable) else 0
        if not port:  # of a range of ports: packets keep theirs
            flags &= ~PathFlag.LIVE
            nexthop |= 1 << layout.PATH_KEEPS_PORT_SHIFT
        self.path(row, flags=flags, nexthop=nexthop, mtu=mtu, gen=gen)
        if local or keeps_pod:
            self.filter("source", family.packed(address))
            if not host and proto != SCTP:
                self.filter("direct", family.packed(address))
            if proto == UDP and not host:
                self.filter("datagram", family.packed(address))
        return row

    def extra_snat(self, row: BackendRow, number: int, snat: str, *, gen: int = 1, selectable: bool = True) -> int:
        """Let the flows of a remote backend be sent from an extra SNAT address as well; return the id that they have then."""
        flags = PathFlag.LIVE | (PathFlag.SELECTABLE if selectable else 0)
        flags |= _L4[row.proto] << PATH_L4_SHIFT
        hop = self.nexthop(self.net.lb1, craft.BACKEND_MAC, craft.NODE2_MAC) | number << 12
        ident = row.id + number * (self.sizes.backends // 5)
        self.path(replace(row, id=ident), flags=flags, nexthop=hop, gen=gen, snat=snat)
        self.filter("snat", row.family.packed(snat))
        return ident

    def path(
        self, row: BackendRow, *, flags: int, nexthop: int = 0, mtu: int = 1500, gen: int = 1, snat: str = ""
    ) -> None:
        """Write a backend's path record."""
        fam = row.family
        source = fam.packed(snat or (fam.node if flags & PathFlag.LOCAL else fam.node2))
        values: list[bytes | int] = [
            fam.packed(row.address),
            source,
            row.port.to_bytes(2, "big"),
            gen,
            flags,
            nexthop,
            mtu,
        ]
        record = layout.LB4_PATH.pack(*values) if fam.version == 4 else layout.LB6_PATH.pack(*values, bytes(24))
        with self.maps.window(f"lb{fam.version}_path", row.id * len(record), len(record)) as view:
            view[:] = record

    def path_flags(self, row: BackendRow, *, set_: int = 0, clear: int = 0, bump: bool = False) -> None:
        """Change flags of a path as the planner does: one store of the meta word, generation raised if `bump`."""
        codec = layout.LB4_PATH if row.family.version == 4 else layout.LB6_PATH
        at = row.id * codec.size + codec.offsets()["gen"]
        base = at & ~7
        with self.maps.window(f"lb{row.family.version}_path", base, 8) as view:
            raw = view.cast("B")
            raw[at - base + 1] = (raw[at - base + 1] | set_) & ~clear
            raw[at - base] = (raw[at - base] + bump) & 0xFF
            raw.release()

    def remove_backend(self, row: BackendRow) -> None:
        """Remove a backend like the planner's last step: row out, path dead, next generation."""
        self.maps.delete_many(f"lb{row.family.version}_backend", [struct.pack("=I", row.id)])
        self.path_flags(row, clear=PathFlag.LIVE | PathFlag.SELECTABLE, bump=True)

    def remove_service(self, row: ServiceRow) -> None:
        """Remove a frontend like the planner: its slots, its reverse NAT row. The bits of the prefilter stay for a while."""
        fam = row.family
        codec = layout.LB4_KEY if fam.version == 4 else layout.LB6_KEY
        place = fam.packed(row.address), row.port.to_bytes(2, "big")
        last = row.last_port.to_bytes(2, "big")
        keys = [codec.pack(*place, n, row.proto, row.scope, last) for n in range(len(row.backends) + 1)]
        self.maps.delete_many(f"lb{fam.version}_service", keys)
        name = f"lb{fam.version}_reverse_nat"
        self.put(name, [(struct.pack("=I", row.id), bytes(self.maps.specs[name].value_size))])

    def service(
        self, family: Family, address: str, port: int, proto: int = TCP, backends: Sequence[BackendRow] = (), *,
        others: Sequence[BackendRow] = (), flags: int = TYPE_LOAD_BALANCER | ROUTABLE, algorithm: int = RANDOM,
        affinity_s: int = 0, scope: int = 0, ranges: Iterable[str] = (), deny: bool = False, ident: int | None = None,
        elsewhere: bool = False, last_port: int = 0, prefixes: Iterable[tuple[int, int]] = (), proxy_port: int = 0,
    ) -> ServiceRow:  # fmt: skip
        """Enter a frontend with everything that a new flow reads; slot 0 last."""
        if ident is None:
            self._service_id += 1
            ident = self._service_id
        flags |= (AFFINITY if affinity_s else 0) | (RANGE_DENY if deny else 0) | (L7 if proxy_port else 0)
        target = algorithm << 24 | affinity_s | proxy_port
        row = ServiceRow(ident, family, address, port, proto, scope, flags, tuple(backends), target, last_port)
        self.services.append(row)
        slots = [*backends, *others]
        if affinity_s:
            match = [(layout.LB_AFFINITY_MATCH.pack(b.id, ident.to_bytes(2, "big"), b"\0\0"), b"\0") for b in backends]
            self.put("lb_affinity_match", match)
        self.ranges(row, ranges)
        rev_scope = scope | (layout.REVNAT_NO_LOCAL_BACKEND if elsewhere else 0)
        rev_port = 0 if last_port else port
        rev: list[bytes | int] = [family.packed(address), rev_port.to_bytes(2, "big"), proto, rev_scope]
        if family.version == 6:
            rev.append(bytes(4))
        codec = layout.LB4_REVERSE_NAT if family.version == 4 else layout.LB6_REVERSE_NAT
        self.put(f"lb{family.version}_reverse_nat", [(struct.pack("=I", ident), codec.pack(*rev))])
        self.filter("vip", family.packed(address))
        for n, backend in enumerate(slots, 1):
            self.slot(row, n, target=backend.id)
        self.slot(row, 0, target=row.target, count=len(backends), qcount=len(others))
        if last_port:
            self.port_range(row, prefixes or ((each, 16) for each in range(port, last_port + 1)))
        return row

    def port_range(self, row: ServiceRow, prefixes: Iterable[tuple[int, int]]) -> None:
        """Enter (port, bits) of a range."""
        codec = layout.LB4_PORT_RANGE_KEY if row.family.version == 4 else layout.LB6_PORT_RANGE_KEY
        address = row.family.packed(row.address)
        static = layout.PORT_RANGE_STATIC_BITS + 8 * len(address)
        value = layout.LB_PORT_RANGE.pack(row.port.to_bytes(2, "big"), row.last_port.to_bytes(2, "big"))
        keys = [
            codec.pack(static + bits, row.proto, b"", address, port.to_bytes(2, "big"), b"") for port, bits in prefixes
        ]
        self.put(f"lb{row.family.version}_port_range", [(key, value) for key in keys])

    def slot(self, row: ServiceRow, n: int, *, target: int, count: int = 0, qcount: int = 0) -> None:
        """Write one slot of a frontend."""
        fam = row.family
        codec = layout.LB4_KEY if fam.version == 4 else layout.LB6_KEY
        last = row.last_port.to_bytes(2, "big")
        key = codec.pack(fam.packed(row.address), row.port.to_bytes(2, "big"), n, row.proto, row.scope, last)
        flags = (row.flags & 0xFF, row.flags >> 8)
        value = layout.LB_SERVICE.pack(target, count, row.id.to_bytes(2, "big"), *flags, qcount)
        self.put(f"lb{fam.version}_service", [(key, value)])

    def wildcard(self, family: Family, address: str) -> ServiceRow:
        """Enter the `ID=0 ADDR=IP:0/ANY` row by which an undefined port of a ClusterIP is rejected."""
        return self.service(family, address, 0, 0, flags=TYPE_CLUSTER_IP, ident=0)

    def echo(self, address: str, outside: ServiceRow, inside: ServiceRow | None = None) -> None:
        """Let these frontends decide about the pings of an address, for clients of outside and of inside."""
        value = b""
        for row in (outside, inside or outside):
            flags = (row.flags & 0xFF, row.flags >> 8)
            value += layout.LB_SERVICE.pack(0, int(bool(row.backends)), row.id.to_bytes(2, "big"), *flags, 0)
        packed = outside.family.packed(address)
        key = packed if outside.family.version == 6 else bytes(10) + b"\xff\xff" + packed
        self.put("lb_echo", [(layout.LB_ECHO_KEY.pack(key), value)])

    def ranges(self, row: ServiceRow, cidrs: Iterable[str], value: int = 0) -> None:
        """Enter source ranges (`ADDRESS/BITS`) of a frontend with this flag."""
        rows = []
        for cidr in cidrs:
            text, bits = cidr.split("/")
            codec = layout.LB4_SOURCE_RANGE_KEY if row.family.version == 4 else layout.LB6_SOURCE_RANGE_KEY
            prefix = layout.SOURCE_RANGE_STATIC_BITS + int(bits)
            rows.append(
                (codec.pack(prefix, row.id.to_bytes(2, "big"), b"\0\0", row.family.packed(text)), bytes((value,)))
            )
        if rows:
            self.put(f"lb{row.family.version}_source_range", rows)

    def maglev(self, row: ServiceRow, table: Sequence[int]) -> None:
        """Give a frontend its table of backend ids."""
        if len(table) != self.sizes.maglev_size:
            raise ValueError(f"table of {len(table)}, the programs expect {self.sizes.maglev_size}")
        data = struct.pack(f"={len(table)}I", *table)
        self.maps.set_maglev(f"lb{row.family.version}_maglev", {row.id: data})
        self._written.add((f"lb{row.family.version}_maglev", struct.pack("=I", row.id)))

    # --- runs ---

    def run(self, hook: str, frame: bytes, device: int = 0, *, came_by: int = 0, gso_size: int = 0) -> Outcome:
        """Run one frame through a hook and count what was counted for it.

        One that leaves came in by `came_by` (0: the node sends it); `gso_size`: it stands for segments of so many bytes.
        Frames the kernel refuses to make an skb of for a test run (`runnable`) would have passed.
        """
        if not runnable(hook, frame):
            return Outcome(hook, Tc.OK, frame)
        with self.net.inside():
            result = self.raw(hook, frame, device, came_by=came_by, gso_size=gso_size)
        now = self._read_counters()
        counted = Counter(
            {reason: now[reason] - self._counters[reason] for reason in now if now[reason] != self._counters[reason]}
        )
        self._counters = now
        return Outcome(hook, result.verdict, result.packet, counted, result.metadata, result.mark)

    def raw(self, hook: str, frame: bytes, device: int = 0, *, came_by: int = 0, gso_size: int = 0) -> Result:
        """Run one frame; the caller is in the namespace already. Quick: no counters are read."""
        fd = self.programs[hook]
        device = device or self.net.lb0
        if hook == XDP:
            return run_xdp(fd, frame, ifindex=device)
        return run_tc(fd, frame, ifindex=device, came_by=came_by if hook == TC_EGRESS else device, gso_size=gso_size)

    def _read_counters(self) -> dict[Reason, int]:
        """Read what every run reads by a mapping that stays: to map the counters takes 20 times as long as a run."""
        if self._counted is None or self._counted[0] is not self.maps:
            self.close()
            whole = self.maps.window("lb_metrics", 0, self.maps.specs["lb_metrics"].value_size)
            self._counted = self.maps, self._counter_window.enter_context(whole)
        values = mmap_window.counters(self._counted[1], counter_stripe_bytes(self.sizes), _REASONS)
        return {reason: packets for reason, (packets, _) in zip(_REASONS, values, strict=True)}

    def counter(self, index: int) -> tuple[int, int]:
        """Return (packets, bytes) of one lb_metrics index."""
        packets, size = self.maps.counters([index])[0]
        return packets, size

    def service_counter(self, row: ServiceRow) -> tuple[int, int]:
        """Return (packets, bytes) of a service."""
        return self.counter(layout.METRIC_SERVICE + row.id)

    def backend_counter(self, row: BackendRow) -> tuple[int, int]:
        """Return (packets, bytes) of a backend."""
        return self.counter(layout.METRIC_BACKEND + row.id)


def runnable(hook: str, frame: bytes) -> bool:
    """Return whether BPF_PROG_TEST_RUN takes this frame: tc wants a whole IP header behind the Ethernet type of one."""
    if hook == XDP:
        return len(frame) >= 14
    return len(frame) >= {b"\x08\x00": 34, b"\x86\xdd": 54}.get(frame[12:14], 14)


def _mac(text: str) -> bytes:
    return bytes.fromhex(text.replace(":", ""))
