"""SCTP: what a packet of an established association costs, beside one of a TCP connection.

    sudo python -m bench --only sctp

Packets of both families by BPF_PROG_TEST_RUN, to remote backends with SNAT: SCTP of 100 bytes, whose CRC32c is corrected. Medians of all rounds,
both in turns. Target: <= 2.5 of the row of TCP.
"""

from __future__ import annotations

import statistics
from dataclasses import asdict, replace
from typing import Any

from bench.datapath import TX, Bench, bench
from bench.harness import QUICK_ROUNDS, Spread, net, pinned
from bench.wrapper import COOKIE_ACK, COOKIE_ECHO, INIT, INIT_ACK, SACK, SCTP, Plan
from lbagent.maps.layout import PATH_L4_SHIFT, PathFlag, PathL4
from lbagent.model.address import format_ip

FLOWS = (1, 4096)
VARIANTS = ("TCP", "SCTP")
TARGET = 2.5
TURNS = 3


def serve_sctp(made: Bench) -> None:
    """Serve the measured address for SCTP, too, by as many backends."""
    ours, shape = made.ours, made.shape
    rows = []
    for address, port in shape.remote.backends:
        row = ours.kernel.backend(ours.family, format_ip(address), port, SCTP, nexthop=ours.hop)
        flags = PathFlag.LIVE | PathFlag.SELECTABLE | PathL4.SCTP << PATH_L4_SHIFT
        ours.kernel.path(row, flags=flags, nexthop=ours.hop, snat=format_ip(shape.node))
        rows.append(row)
    ours.kernel.service(ours.family, format_ip(shape.remote.vip), shape.remote.port, SCTP, rows)


def plan(made: Bench, flows: int, kind: int, answer: int = 0) -> Plan:
    """Return packets of the client with this chunk."""
    return replace(made.request_plan(flows, kind), proto=SCTP, answer=answer, in_order=bool(answer))


def cost(family: int, variant: str, flows: int) -> list[float]:
    """Return the nanoseconds of a packet, round by round."""
    with pinned(), bench(family, QUICK_ROUNDS) as made:
        if variant == "SCTP":
            serve_sctp(made)
            made.send(plan(made, flows, INIT, INIT_ACK), 2 * flows)
            made.send(plan(made, flows, COOKIE_ECHO, COOKIE_ACK), 2 * flows)
            made.set(plan(made, flows, SACK))
        else:
            made.establish(flows)
            made.set(made.request_plan(flows))
        values = made.measure()
        if made.verdicts["ours"] != TX:
            raise RuntimeError(f"{variant}: verdict {made.verdicts['ours']}")
        return net(values, "ours")


def measure(*, quick: bool) -> list[dict[str, Any]]:
    """Return a row for each family and number of flows: both variants, in turns."""
    rows = []
    for family in (4, 6):
        for flows in FLOWS:
            found: dict[str, list[float]] = {name: [] for name in VARIANTS}
            for _ in range(1 if quick else TURNS):
                for name, values in found.items():
                    values += cost(family, name, flows)
            ratio = statistics.median(found["SCTP"]) / statistics.median(found["TCP"])
            spreads = {f"{name.lower()}_ns": asdict(Spread.of(values)) for name, values in found.items()}
            rows.append({"family": family, "flows": flows, "ratio": ratio, "target": TARGET, **spreads})
    return rows
