"""Reading the flow table in Python (maps/flow_reader.py): a map with a million flows, decoded completely and counted.

The entries are written into the map, not created by packets: their values do not change the cost of reading.
"""

from __future__ import annotations

import contextlib
import random
import time
from array import array
from collections.abc import Callable, Iterator
from dataclasses import asdict
from typing import Any

from bench.harness import Spread, pinned
from lbagent.maps import flow_reader, pins
from lbagent.maps.flow_layout import FLOW, FlowState
from lbagent.maps.kernel_maps import KernelMaps
from lbagent.maps.layout import PathL4
from lbagent.maps.map_names import family_map
from lbagent.maps.specs import MapType, Sizes
from lbagent.model.family import Family

FLOWS, ENTRIES = 1_000_000, 1 << 21
BACKENDS = 1000
ROUNDS, QUICK_ROUNDS = 7, 3
SEED = 1


@contextlib.contextmanager
def opened(family: Family) -> Iterator[KernelMaps]:
    """Create an empty table in the kernel, without a pin."""
    sizes = Sizes(flow4=ENTRIES, flow6=ENTRIES)
    specs, fds = pins.all_specs(sizes), dict[str, int]()
    try:
        for name in (
            "lb_maglev_inner",
            "lb4_maglev",
            "lb6_maglev",
            family_map(family, "flow"),
            family_map(family, "spill"),
        ):
            nested = specs[name].type is MapType.HASH_OF_MAPS
            fds[name] = pins.create_map(specs[name], fds["lb_maglev_inner"] if nested else 0)
        yield KernelMaps("", sizes, fds)
    finally:
        pins.close_all(fds)


def fill(maps: KernelMaps, family: Family) -> None:
    """Write the flows to random places: two thirds TCP, of random clients, three of four with a SNAT port."""
    rng, record = random.Random(SEED), FLOW[family]
    fixed = {"generation": 1, "value_generation": 1, "vip_port": 0x5000, "vip": 0x0A, "service": 7}
    fixed |= {"vip_generation": 1} if family is Family.IPV4 else {"vip_end": 1}
    words = array("Q", bytes(ENTRIES * record.size))
    for number, position in enumerate(rng.sample(range(ENTRIES), FLOWS)):
        values = fixed | {
            "l4": PathL4.TCP if number % 3 else PathL4.UDP,
            "client": rng.getrandbits(record.fields["client"].width),
            "client_port": rng.randrange(1, 1 << 16),
            "state": FlowState.ESTABLISHED,
            "forward": rng.randrange(1 << 16) | 1 if number % 4 else 0,
            "backend": number % BACKENDS + 1,
            "backend_generation": 1,
            "last_seen": rng.randrange(1 << 16),
        }
        for name, value in values.items():
            field = record.fields[name]
            words[position * record.words + field.word] |= value << field.shift
    with maps.window(family_map(family, "flow"), 0, ENTRIES * record.size) as view:
        view[:] = memoryview(words).cast("B")


def decoded(maps: KernelMaps, family: Family) -> int:
    """Read every flow, a piece of the table at a time; return how many there are."""
    return sum(len(piece) for piece in flow_reader.flows(maps, family))


def counted(maps: KernelMaps, family: Family) -> int:
    """Count the flows of each backend; return their sum."""
    return flow_reader.count(maps, family).total()


def seconds(read: Callable[[KernelMaps, Family], int], maps: KernelMaps, family: Family, rounds: int) -> Spread:
    """Time a reader; the first round warms up."""
    out = []
    for _ in range(rounds + 1):
        began = time.perf_counter()
        found = read(maps, family)
        out.append(time.perf_counter() - began)
        if found != FLOWS:
            raise RuntimeError(f"{found} of {FLOWS} flows were read")
    return Spread.of(out[1:])


def measure(*, quick: bool) -> list[dict[str, Any]]:
    """Measure both families, each with its own table."""
    rounds, rows = QUICK_ROUNDS if quick else ROUNDS, []
    for family in Family:
        with opened(family) as maps, pinned():
            fill(maps, family)
            spreads = {f"{read.__name__}_s": asdict(seconds(read, maps, family, rounds)) for read in (decoded, counted)}
        rows.append({"family": int(family), "flows": FLOWS, "entries": ENTRIES, **spreads})
    return rows
