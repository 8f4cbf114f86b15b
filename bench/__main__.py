"""`python -m bench [--quick] [--only PART] [--document]`: measure everything, print tables, write bench/results.json.

`--document` also puts the tables into docs/benchmarks.md. Exit code 0 also when targets were missed: they are named at the end.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from typing import Any

from bench import control, datapath, flood, flow_table, mix, race, report, sctp, wire
from bench.benchmark_program import is_root, say, show
from bench.kube import kube_tables
from bench.kube import measure as kube

PARTS = ("datapath", "mix", "race", "wire", "control", "flows", "sctp", "kube")
FAMILIES = (4, 6)


def measure_datapath(*, quick: bool) -> list[dict[str, Any]]:
    """Measure the packet programs of both families."""
    rows = []
    for family in FAMILIES:
        for part in (datapath, flood):
            for row in part.measure(family, quick=quick):
                say(f"  IPv{family} {row.case}, {row.flows:,} flows: ours / textbook {row.ours_over_textbook}")
                rows.append(row.record())
    return rows


def measure_mix(*, quick: bool) -> list[dict[str, Any]]:
    """Run floods of every kind for both families."""
    rows = []
    for family in FAMILIES:
        for row in mix.measure(family, quick=quick):
            say(f"  IPv{family} {row['case']}, {row['program']}: {row['served']} of {row['tried']} clients served")
            rows.append(row)
    return rows


def measure_race(*, quick: bool) -> list[dict[str, Any]]:
    """Run two CPUs on one table."""
    out = []
    for family in FAMILIES:
        with race.race(family) as made:
            result = made.run(4 if quick else 20)
        say(f"  IPv{family}: {result.packets:,} packets, faults {result.faults or 0}")
        out.append(result.record())
    return out


def measure_wire(*, quick: bool) -> list[dict[str, Any]]:
    """Send packets through namespaces."""
    return [wire.measure(flows, quick=quick) for flows in ((64,) if quick else (64, 16384))]


def measure_control(*, quick: bool) -> dict[str, Any]:
    """Start agents."""
    return control.measure(quick=quick)


def measure_flows(*, quick: bool) -> dict[str, Any]:
    """Read flow tables."""
    return {"machine": report.machine(), "quick": quick, "rows": flow_table.measure(quick=quick)}


def measure_sctp(*, quick: bool) -> dict[str, Any]:
    """Measure packets of associations beside those of connections."""
    return {"machine": report.machine(), "quick": quick, "rows": sctp.measure(quick=quick)}


def measure_kube(*, quick: bool) -> dict[str, Any]:
    """Run the agent and kube-proxy before an API server."""
    return {"machine": report.machine(), "quick": quick, **kube.measure(quick=quick, say=say)}


# Parts with their own tables in the document: measuring only these keeps the other parts of it and of results.json.
APART: dict[str, tuple[str, Callable[[dict[str, Any]], str]]] = {
    "flows": (report.FLOWS_BEGIN, report.flows),
    "sctp": (report.SCTP_BEGIN, report.sctp),
    "kube": (report.KUBE_BEGIN, kube_tables.text),
}


def main() -> int:
    """Measure and report."""
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument(
        "--quick", action="store_true", help="fewer rounds and no rows of 524,288 flows: about a minute"
    )
    parser.add_argument("--only", choices=PARTS, action="append", help="measure only this part (repeatable)")
    parser.add_argument("--document", action="store_true", help="put the tables into docs/benchmarks.md")
    options = parser.parse_args()
    if not is_root("bench"):
        return 1
    chosen = options.only or list(PARTS)
    others = [name for name in chosen if name not in APART]
    results = {"machine": report.machine(), "quick": options.quick} if others else report.load()
    parts: dict[str, Callable[..., Any]] = {
        "datapath": measure_datapath, "mix": measure_mix, "race": measure_race, "wire": measure_wire, "control": measure_control,
        "flows": measure_flows, "sctp": measure_sctp, "kube": measure_kube,
    }  # fmt: skip
    began = time.monotonic()
    for name in chosen:
        say(f"{name} ...")
        results[name] = parts[name](quick=options.quick)
        report.save(results)
    bodies = {report.BEGIN: report.text(results)} if others else {}
    for name, (begin, text) in APART.items():
        if name in chosen:
            bodies[begin] = text(results[name])
    show(bodies, began, document=options.document)
    return 0


if __name__ == "__main__":
    sys.exit(main())
