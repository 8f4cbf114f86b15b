"""`make charts`: docs/comparison.svg, the measured comparison, from bench/results.json. Plain SVG, no library."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple
from xml.sax.saxutils import escape

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "bench" / "results.json"
CHART = ROOT / "docs" / "comparison.svg"
OURS = "lbagent"
WIDTH, NAMES, ROW, BAR, HEAD, GAP = 780, 190, 22, 14, 24, 14  # pixels
END = 110  # right of the longest bar: the figure
COLOURS = {"ours": "#1f6f8b", "other": "#b8b8b8", "text": "#222222", "note": "#666666"}


class Panel(NamedTuple):
    """One measurement: bars with a common scale, less is better."""

    title: str
    unit: str
    bars: tuple[tuple[str, float], ...]


def panels(results: Mapping[str, Any]) -> list[Panel]:
    """Return the comparisons of a results file."""
    wire = next(row["ns"] for row in results["wire"] if row["flows"] == 64)
    size = max(results["kube"]["sizes"], key=lambda row: row["services"])
    proxy, agent, count = size["kube-proxy"], size["lbagent"], f"{size['services']:,} Services"
    dead = results["cloud"]["rows"]["l2-node"]
    apilb = results["apilb"]["rows"]["handshake"]
    return [
        Panel(
            "One packet of an established flow, 64 flows, two veth devices",
            "ns",
            (
                ("nftables, DNAT", wire["nft DNAT"]["median"]),
                (OURS, wire["ours"]["median"]),
                ("XDP redirect alone", wire["bare redirect"]["median"]),
            ),
        ),
        Panel(
            f"An endpoint changes, {count}: until it is in the kernel (median)",
            "ms",
            (("kube-proxy, nftables", proxy["change"]["p50"]), (OURS, agent["change"]["p50"])),
        ),
        Panel(
            f"First start on a node, {count}",
            "s",
            (("kube-proxy, nftables", proxy["start_s"]), (OURS, agent["start_s"])),
        ),
        Panel(
            f"Resident memory after changes, {count}",
            "MiB",
            (
                ("kube-proxy, nftables", proxy["resident_after_changes_mib"]),
                (OURS, agent["resident_after_changes_mib"]),
            ),
        ),
        Panel(
            "The node that announces an address by ARP loses its power: longest gap of a client (median)",
            "s",
            (("MetalLB 0.13.5", _gap(dead["MetalLB"])), (OURS, _gap(dead["lbagent"]))),
        ),
        Panel(
            "Connect and TLS handshake through a load balancer of API servers",
            "µs",
            (
                ("HAProxy", apilb["HAProxy"]["median"]),
                (f"{OURS}, native mode", apilb["native"]["median"]),
                ("no load balancer", apilb["direct"]["median"]),
            ),
        ),
    ]


def _gap(trials: Iterable[Mapping[str, Any]]) -> float:
    return median(trial["gap_s"] for trial in trials)


def figure(value: float, unit: str) -> str:
    """Return a figure with three digits and its unit."""
    digits = max(0, 2 - max(0, len(str(int(value))) - 1))
    return f"{value:,.{digits}f} {unit}"


def svg(shown: Iterable[Panel], note: str) -> str:
    """Return the chart: panels below one another, each with bars from 0 on."""
    y, parts = 0, []
    for panel in shown:
        y += HEAD
        parts.append(_text(0, y - 7, panel.title, "bold"))
        longest = max(value for _, value in panel.bars)
        for name, value in panel.bars:
            length = max(1.0, (WIDTH - NAMES - END) * value / longest)
            middle = y + ROW - 7
            colour = COLOURS["ours" if name.startswith(OURS) else "other"]
            parts.append(_text(NAMES - 8, middle, name, anchor="end"))
            parts.append(
                f'<rect x="{NAMES}" y="{y + (ROW - BAR) / 2:g}" width="{length:.1f}" height="{BAR}" fill="{colour}"/>'
            )
            parts.append(_text(NAMES + length + 6, middle, figure(value, panel.unit)))
            y += ROW
        y += GAP
    parts.append(_text(0, y + 8, note, fill=COLOURS["note"]))
    height = y + 18
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH + 24}" height="{height + 24}" viewBox="-12 -12 {WIDTH + 24} {height + 24}"'
        ' font-family="system-ui, sans-serif" font-size="13" role="img">\n'
        "<title>Measured comparison: less is better</title>\n"
        f'<rect x="-12" y="-12" width="{WIDTH + 24}" height="{height + 24}" fill="#ffffff"/>\n'
        + "".join(f"{part}\n" for part in parts)
        + "</svg>\n"
    )


def _text(
    x: float, y: float, text: str, weight: str = "normal", *, anchor: str = "start", fill: str = COLOURS["text"]
) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" font-weight="{weight}" text-anchor="{anchor}" fill="{fill}">{escape(text)}</text>'


def chart(results: Mapping[str, Any]) -> str:
    """Return the chart of a results file."""
    machine = results["machine"]
    note = f"Shorter is better. {machine['cpus']} CPUs ({machine['cpu']}), Linux {machine['kernel'].partition('-')[0]}; how it is measured: docs/benchmarks.md"
    return svg(panels(results), note)


if __name__ == "__main__":
    CHART.write_text(chart(json.loads(RESULTS.read_text(encoding="utf-8"))), encoding="utf-8")
    print(f"written: {CHART.relative_to(ROOT)}")
