"""Rules about new flows: what a new flow of a limited or least-conn Service costs, and how evenly least-conn spreads live flows.

    sudo python -m bench.flow_rules [--rounds N]

Cost: SYNs of flows never seen before, the variants of one Service in turns; the ratio is the median of those of all rounds, each with
programs and tables of its own. Spread: 100
backends, flows of uneven lifetimes (a tenth lives long), by the packets that open and end them, until 20,000 are live.
"""

from __future__ import annotations

import argparse
import heapq
import random
import statistics
import struct
from collections import Counter

from bench.datapath import NEW_BURST, TX, bench
from bench.harness import net, pinned
from bench.wrapper import SYN, Plan, Tuple
from lbagent.maps.layout import LB_RULES
from lbagent.maps.specs import Sizes
from lbagent.model.address import format_ip
from tests.packet import expect
from tests.packet.craft import FAMILIES
from tests.packet.harness import open_world
from tests.packet.plain_frames import plain
from tests.packet.world import TCP, XDP, ServiceRow, World

RANDOM, LEAST_CONN, WITH_RULES = 1, 3, 0x80
VARIANTS = {
    "plain": (RANDOM, 0),
    "limited": (RANDOM | WITH_RULES, 1 << 30),
    "least-conn": (LEAST_CONN | WITH_RULES, 0),
}
BACKENDS, LIVE = 100, 20_000
TURNS = 3  # of each variant in a round: all new flows together fill less than a third of the table


def give_rules(kernel: World, row: ServiceRow, algorithm: int, limit: int) -> None:
    """Let a frontend choose by this algorithm, with limits that no flow reaches (0: none)."""
    with kernel.maps.window("lb_rules_of", row.id * 2, 2) as view:
        view[:] = struct.pack("=H", 1)
    with kernel.maps.window("lb_rules", LB_RULES.size, 24) as view:
        view[:] = struct.pack("=IIQII", limit, limit, 1 if limit else 0, 0, 0)
    kernel.slot(row, 0, target=algorithm << 24, count=len(row.backends))


def costs(family: int) -> dict[str, float]:
    """Return the nanoseconds of a new flow by variant, in one world: tables elsewhere in memory change them by a third."""
    found: dict[str, list[float]] = {name: [] for name in VARIANTS}
    with pinned(), bench(family, 1) as made:
        kernel, remote = made.ours.kernel, made.shape.remote
        row = next(
            each for each in kernel.services if (each.address, each.port) == (format_ip(remote.vip), remote.port)
        )
        made.set(Plan(Tuple(made.shape.flooder, remote.vip, 0, remote.port), 1 << 30, SYN, in_order=True))
        for turn in range(TURNS):
            for name in sorted(VARIANTS, reverse=turn % 2 == 1):
                algorithm, limit = VARIANTS[name]
                give_rules(kernel, row, algorithm, limit)
                found[name] += net(made.measure(NEW_BURST), "ours")
                if made.verdicts["ours"] != TX:
                    raise RuntimeError(f"{name}: verdict {made.verdicts['ours']}")
    return {name: statistics.median(values) for name, values in found.items()}


def spread(family: int, algorithm: int) -> tuple[int, float]:
    """Return the most live flows of a backend, and the mean, after flows of uneven lifetimes."""
    fam, rng = FAMILIES[family], random.Random(7)
    size = 1 << 19  # entries of flows that ended stay for a while, and no sweeper runs
    sizes = Sizes(
        flow4=size, flow6=size, snat4=size * 2, snat6=size * 2, services=1 << 10, backends=1 << 10, spill=1 << 10
    )
    with open_world(sizes=sizes) as kernel, kernel.net.inside():
        rows = [kernel.backend(fam, fam.remote(n), 8080) for n in range(1, BACKENDS + 1)]
        row = kernel.service(fam, fam.vip, 80, TCP, rows)
        give_rules(kernel, row, algorithm | WITH_RULES, 0)
        live: Counter[tuple[str, int]] = Counter()
        ends: list[tuple[float, int, tuple[str, int]]] = []
        now = 0.0
        for n in range(10 * LIVE):
            now += 1.0
            while ends and ends[0][0] <= now:
                _, ended, backend = heapq.heappop(ends)
                kernel.raw(XDP, plain(fam, TCP, *_client(family, ended), fam.vip, 80, "R"))
                live[backend] -= 1
            out = kernel.raw(XDP, plain(fam, TCP, *_client(family, n), fam.vip, 80, "A"))
            backend = expect.destination(out.packet)
            kernel.raw(XDP, plain(fam, TCP, *backend, *expect.source(out.packet), "A"))
            live[backend] += 1
            lifetime = 8 * LIVE if rng.random() < 0.1 else rng.expovariate(1 / (LIVE / 3))
            heapq.heappush(ends, (now + lifetime, n, backend))
            if len(ends) >= LIVE:
                break
        return max(live.values()), sum(live.values()) / BACKENDS


def _client(family: int, n: int) -> tuple[str, int]:
    host = 1 + n // 50_000
    return (f"198.51.100.{host}" if family == 4 else f"2001:db8:100::{host:x}"), 10_000 + n % 50_000


def main() -> None:
    """Print both."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=9)
    rounds = parser.parse_args().rounds
    for family in (4, 6):
        found = [costs(family) for _ in range(rounds)]
        for name in VARIANTS:
            ns = statistics.median(each[name] for each in found)
            ratio = statistics.median(each[name] / each["plain"] for each in found)
            print(f"IPv{family} new flow, {name}: {ns:.0f} ns, {ratio:.2f} of plain", flush=True)
    for family in (4, 6):
        for name, algorithm in (("random", RANDOM), ("least-conn", LEAST_CONN)):
            fullest, mean = spread(family, algorithm)
            print(f"IPv{family} {name}: fullest backend {fullest} live flows, mean {mean:.0f}: {fullest / mean:.2f}")


if __name__ == "__main__":
    main()
