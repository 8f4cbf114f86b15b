"""LocalRedirectPolicy: what a new flow and an established packet of a pod cost that is redirected to a pod of its node.

    sudo python -m bench.local_redirect [--rounds N]

Packets of both families by BPF_PROG_TEST_RUN, in one world: to remote backends with SNAT, to local backends, and to a frontend with a local
redirect, in turns; ratios of medians. Target: <= 1.05 of SNAT.
"""

from __future__ import annotations

import argparse
import statistics
from dataclasses import replace

from bench.datapath import NEW_BURST, PASS, TX, Bench, bench
from bench.harness import net, pinned
from bench.world import Service
from bench.wrapper import ACK, DATA, NODE_MAC, SYN, SYN_ACK, Plan, Tuple, ip
from lbagent.maps.layout import DeviceFlag
from tests.packet.world import ROUTABLE, TCP, TWO_SCOPES

LOCAL_REDIRECT = 0x0100
VIPS = {4: "10.96.255.1", 6: "fd00:96::ffff:1"}
VARIANTS = ("SNAT", "local backend", "local redirect")
FLOWS = 4096
TURNS = 3
TARGET = 1.05


def redirected(made: Bench) -> Service:
    """Serve one more address: for clients of outside by the remote backends, for pods by the local ones."""
    shape, kernel, fam = made.shape, made.ours.kernel, made.ours.family
    vip = VIPS[shape.family]
    rows = {
        service: [made.ours.backend(address, port, service) for address, port in service.backends]
        for service in (shape.remote, shape.local)
    }
    kernel.service(fam, vip, 80, TCP, rows[shape.remote], flags=ROUTABLE | TWO_SCOPES)
    kernel.service(fam, vip, 80, TCP, rows[shape.local], flags=LOCAL_REDIRECT | ROUTABLE | TWO_SCOPES, scope=1)
    return replace(shape.local, vip=ip(vip), port=80)


def costs(family: int, *, is_new: bool) -> dict[str, float]:
    """Return the nanoseconds of a packet by variant."""
    found: dict[str, list[float]] = {name: [] for name in VARIANTS}
    with pinned(), bench(family, 5) as made:
        shape, kernel = made.shape, made.ours.kernel
        services = dict(zip(VARIANTS, (shape.remote, shape.local, redirected(made)), strict=True))
        for turn in range(TURNS):
            for name in sorted(VARIANTS, reverse=turn % 2 == 1):
                service = services[name]
                flags = DeviceFlag.XDP_SEND | (DeviceFlag.POD if name == VARIANTS[2] else 0)
                kernel.device(made.ours.ifindex, flags, NODE_MAC.hex(":"))
                first = Tuple(shape.flooder if is_new else shape.client, service.vip, 0, service.port)
                if is_new:
                    made.set(Plan(first, 1 << 30, SYN, in_order=True))
                    values = made.measure(NEW_BURST)
                else:
                    # clients of its own: one client port with two frontends of one backend would need SNAT
                    base = VARIANTS.index(name) * FLOWS
                    flows = Plan(first, FLOWS, SYN, base=base, in_order=True, answer=SYN_ACK)
                    made.send(flows, 2 * FLOWS)
                    made.send(replace(flows, flags=ACK, answer=DATA), 2 * FLOWS)
                    made.set(replace(flows, flags=ACK, answer=0, in_order=False))
                    values = made.measure()
                if made.verdicts["ours"] != (TX if service is shape.remote else PASS):
                    raise RuntimeError(f"{name}: verdict {made.verdicts['ours']}")
                found[name] += net(values, "ours")
    return {name: statistics.median(values) for name, values in found.items()}


def main() -> None:
    """Print both kinds of packets."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=5)
    rounds = parser.parse_args().rounds
    for family in (4, 6):
        for is_new, title in ((True, "new flow"), (False, "established packet")):
            found = [costs(family, is_new=is_new) for _ in range(rounds)]
            for name in VARIANTS:
                ns = statistics.median(each[name] for each in found)
                ratio = statistics.median(each[name] / each["SNAT"] for each in found)
                print(
                    f"IPv{family} {title}, {name}: {ns:.0f} ns, {ratio:.2f} of SNAT, target <= {TARGET:.2f}", flush=True
                )


if __name__ == "__main__":
    main()
