"""Packets per second on veth devices between namespaces: generator, forwarder and sink together on one CPU.

The generator injects frames with BPF_F_TEST_XDP_LIVE_FRAMES, so a figure is the CPU time of a packet's whole path: created,
sent through the client's veth into the node, forwarded through the second veth into the backend's namespace, counted and dropped.
"""

from __future__ import annotations

import os
import struct
from dataclasses import asdict, replace
from typing import Any

from bench.harness import Spread, pinned, ratio
from bench.programs import ARRAY, MMAPABLE, PERCPU_ARRAY, Map, Maps, load
from bench.wrapper import UDP, Plan, Tuple, Wrapper, ip
from lbagent.kernel import bpf_map, bpf_prog
from tests.lab import xdp
from tests.lab.agent import Agent
from tests.lab.netns import run
from tests.lab.topology import Lab

LIVE_FRAMES = 1 << 1
BATCH = 64
VIP, PORT = "10.96.0.10", 53
BACKENDS = (
    "10.77.1.11",
    "10.77.1.12",
    "10.77.1.13",
)  # addresses behind lan1; the sink drops before any stack
BACKEND_PORT = 5353


class Wire:
    """The programs of one laboratory's ends: generator at the client, sinks at both ends."""

    def __init__(self, lab: Lab, vip: str = VIP) -> None:
        """Load, attach the sinks, make neighbours permanent."""
        self.lab, self.vip = lab, vip
        self.cpus = os.cpu_count() or 1
        self.maps = Maps(
            {
                "undo_control": Map(ARRAY, 4, Wrapper.control_size(4), 1, MMAPABLE),
                "undo_list": Map(ARRAY, 4, 4096, 1, MMAPABLE),
                "frame_hop": Map(ARRAY, 4, 16, 1, MMAPABLE),
                "frame_count": Map(PERCPU_ARRAY, 4, 8, 1),
                "race_tally": Map(ARRAY, 4, 256, 1, MMAPABLE),
                "race_record": Map(ARRAY, 4, 4096, 1, MMAPABLE),
            }
        )
        flags = ("-DLIST_MASK=0ull", "-DRECORD_MASK=0ull")
        self.fds = {
            name: load("frames", 4, self.maps, flags, name) for name in ("generate", "sink", "bounce", "forward")
        }
        lab.freeze_neighbours()
        self.far = lab.namespaces["b1"].mac("e0")
        for address in BACKENDS:
            lab.node.ip(f"neigh replace {address} lladdr {self.far.hex(':')} dev lan1 nud permanent")
        xdp.attach(lab.client, "c0", self.fds["sink"])
        xdp.attach(lab.namespaces["b1"], "e0", self.fds["sink"])
        hop = self.far + lab.node.mac("lan1") + struct.pack("<I", lab.node.ifindex("lan1"))
        self.maps.put("frame_hop", bytes(4), hop)
        self.control = Wrapper.view(self.maps.fds["undo_control"])
        self.plan = Plan(
            Tuple(ip("10.77.0.2"), ip(vip), 0, PORT), 64, proto=UDP, dmac=lab.node.mac("wan"), smac=lab.client.mac("c0")
        )

    def counted(self) -> int:
        """Return the frames both sinks have seen."""
        raw = bpf_map.map_lookup(self.maps.fds["frame_count"], bytes(4), 8 * self.cpus)
        assert raw is not None
        return sum(struct.unpack(f"<{self.cpus}Q", raw))

    def set(self, flows: int) -> None:
        """Send this many flows (a power of two)."""
        self.plan = replace(self.plan, flows=flows)
        data, self.frame = Wrapper.encode(self.plan, 0, 0)
        self.control[: len(data)] = data

    def burst(self, frames: int) -> tuple[float, int]:
        """Send frames; return ns per frame by the kernel's clock, and how many did not arrive."""
        before = self.counted()
        with self.lab.client.entered():
            ctx = struct.pack("<6I", 0, len(self.frame), 0, self.lab.client.ifindex("c0"), 0, 0)
            out = bpf_prog.prog_test_run(self.fds["generate"], self.frame, ctx=ctx, repeat=frames, flags=LIVE_FRAMES)
        return float(out.duration_ns), frames - (self.counted() - before)

    def close(self) -> None:
        """Unload (the sinks go with their devices)."""
        self.control.close()
        while self.fds:
            os.close(self.fds.popitem()[1])
        self.maps.close()


def nft_rules(vip: str) -> str:
    """Return the service in the form of kube-proxy's nftables mode: verdict map, one chain per service and endpoint."""
    chains = "\n".join(
        f"chain ep{n} {{\n meta l4proto udp dnat to {address}:{BACKEND_PORT}\n}}" for n, address in enumerate(BACKENDS)
    )
    jumps = ", ".join(f"{n} : goto ep{n}" for n in range(len(BACKENDS)))
    return f"""table ip lab {{
{chains}
chain svc {{
  numgen random mod {len(BACKENDS)} vmap {{ {jumps} }}
}}
map service-ips {{
  type ipv4_addr . inet_proto . inet_service : verdict
  elements = {{ {vip} . udp . {PORT} : goto svc }}
}}
chain prerouting {{
  type nat hook prerouting priority dstnat
  ip daddr . meta l4proto . th dport vmap @service-ips
}}
chain postrouting {{
  type nat hook postrouting priority srcnat
  ct status dnat masquerade fully-random
}}
}}
"""


def nft_on(lab: Lab, vip: str = VIP) -> None:
    """Load the rules in the node's namespace."""
    run(*lab.node.command(["nft", "-f", "-"]), text=nft_rules(vip))


def nft_off(lab: Lab) -> None:
    """Remove them with their connections."""
    run(*lab.node.command(["nft", "delete", "table", "ip", "lab"]))


def manifest(vip: str = VIP) -> str:
    """Return the measured service as a manifest."""
    endpoints = "".join(f"  - {{addresses: [{address}], conditions: {{ready: true}}}}\n" for address in BACKENDS)
    return f"""apiVersion: v1
kind: Service
metadata: {{name: cost, namespace: bench}}
spec:
  type: ClusterIP
  clusterIP: {vip}
  ports: [{{name: dns, protocol: UDP, port: {PORT}, targetPort: {BACKEND_PORT}}}]
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {{name: cost-v4, namespace: bench, labels: {{kubernetes.io/service-name: cost}}}}
addressType: IPv4
ports: [{{name: dns, protocol: UDP, port: {BACKEND_PORT}}}]
endpoints:
{endpoints}"""


MODES = ("bare XDP_TX", "bare redirect", "ours", "nft DNAT")
FRAMES = {"bare XDP_TX": 100_000, "bare redirect": 100_000, "ours": 80_000, "nft DNAT": 12_000}  # about 10 ms each


def measure(flows: int, *, quick: bool) -> dict[str, Any]:
    """Run all modes in turns, burst by burst, in two equal laboratories; return ns per packet and paired ratios."""
    count = 11 if quick else 41
    costs: dict[str, list[float]] = {mode: [] for mode in MODES}
    lost = dict.fromkeys(MODES, 0)
    with Lab(pod=False, tag="w-") as plain, Lab(pod=False, tag="o-") as served:
        folder = served.folder / "manifests"
        folder.mkdir()
        (folder / "cost.yaml").write_text(manifest())
        wires = {"ours": Wire(served)}
        agent = Agent(served, folder, attach="xdp")
        agent.start()
        shared = Wire(plain)
        wires |= {mode: shared for mode in MODES if mode != "ours"}
        programs = {
            "bare XDP_TX": shared.fds["bounce"],
            "bare redirect": shared.fds["forward"],
            "nft DNAT": xdp.pass_program(),
        }
        nft_on(plain)
        with pinned():
            for mode in MODES:
                wires[mode].set(flows)
            for number in range(count + 2):
                for mode in MODES:
                    if mode in programs:
                        xdp.attach(plain.node, "wan", programs[mode])
                    cost, missing = wires[mode].burst(FRAMES[mode])
                    if number >= 2:
                        costs[mode].append(cost)
                        lost[mode] += max(0, missing)
        agent.stop()
        shared.close()
        wires["ours"].close()
    return {
        "flows": flows,
        "ns": {mode: asdict(Spread.of(values)) for mode, values in costs.items()},
        "ours_over_bare_tx": asdict(ratio(costs["ours"], costs["bare XDP_TX"])),
        "ours_over_bare_redirect": asdict(ratio(costs["ours"], costs["bare redirect"])),
        "ours_over_nft": asdict(ratio(costs["ours"], costs["nft DNAT"])),
        "lost": lost,
    }


__all__ = ["Wire", "manifest", "measure", "nft_off", "nft_on", "pinned"]
