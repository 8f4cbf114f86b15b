"""Ranges of ports: what a new flow and an established packet of a Service with a range cost, beside those of one port.

    sudo python -m bench.port_ranges [--rounds N]

Packets of both families by BPF_PROG_TEST_RUN, to remote backends with SNAT, each variant in programs of its own, in turns; medians of
all rounds. Target: a new flow <= 1.10 of that of one port.
"""

from __future__ import annotations

import argparse
import statistics
from dataclasses import replace

from bench.datapath import NEW_BURST, TX, Bench, bench
from bench.harness import net, pinned
from bench.wrapper import SYN, Plan, Tuple
from lbagent.maps import layout
from lbagent.maps.layout import PATH_L4_SHIFT, PathFlag, PathL4
from lbagent.maps.port_cover import port_prefixes
from lbagent.model.address import format_ip
from tests.packet.world import TCP

FIRST, LAST, PORT = 10_000, 19_999, 15_003
FLOWS = 4096
VARIANTS = ("one port", "range")
TARGET = 1.10


def give_range(made: Bench) -> None:
    """Serve the measured address at a range of ports, too; the packets then go to one of them."""
    ours, shape = made.ours, made.shape
    kernel, fam, rows = ours.kernel, ours.family, []
    for address, _ in shape.remote.backends:
        row = kernel.backend(fam, format_ip(address), 0, TCP, nexthop=ours.hop)
        flags = PathFlag.SELECTABLE | PathL4.TCP << PATH_L4_SHIFT
        hop = ours.hop | 1 << layout.PATH_KEEPS_PORT_SHIFT
        kernel.path(row, flags=flags, nexthop=hop, snat=format_ip(shape.node))
        rows.append(row)
    prefixes = list(port_prefixes(FIRST, LAST))
    kernel.service(fam, format_ip(shape.remote.vip), FIRST, TCP, rows, last_port=LAST, prefixes=prefixes)
    made.shape = replace(shape, remote=replace(shape.remote, port=PORT))


def cost(family: int, variant: str, *, is_new: bool) -> float:
    """Return the nanoseconds of a packet."""
    with pinned(), bench(family, 9) as made:
        if variant == "range":
            give_range(made)
        remote = made.shape.remote
        if is_new:
            made.set(Plan(Tuple(made.shape.flooder, remote.vip, 0, remote.port), 1 << 30, SYN, in_order=True))
            values = made.measure(NEW_BURST)
        else:
            made.establish(FLOWS)
            made.set(made.request_plan(FLOWS))
            values = made.measure()
        if made.verdicts["ours"] != TX:
            raise RuntimeError(f"{variant}: verdict {made.verdicts['ours']}")
        return statistics.median(net(values, "ours"))


def main() -> None:
    """Print both kinds of packets."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=3)
    rounds = parser.parse_args().rounds
    for family in (4, 6):
        for is_new, title in ((True, f"new flow, target <= {TARGET:.2f}"), (False, "established packet")):
            found: dict[str, list[float]] = {name: [] for name in VARIANTS}
            for _ in range(rounds):
                for name, values in found.items():
                    values.append(cost(family, name, is_new=is_new))
            one = statistics.median(found["one port"])
            for name, values in found.items():
                ns = statistics.median(values)
                print(f"IPv{family} {title}, {name}: {ns:.0f} ns, {ns / one:.2f} of one port", flush=True)


if __name__ == "__main__":
    main()
