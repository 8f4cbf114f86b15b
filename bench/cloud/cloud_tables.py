"""The tables of addresses: gaps, and 1,000 Services at once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from bench.control import percentile
from bench.report import measured_on, table, verdict

GAP_S, OF_METALLB, BGP_GAP_S = 2.5, 0.45, 1.2
ALL_S, ALL_OF_METALLB, WRITES, PEACE_A_S, CONTROLLER_MIB = 20.0, 0.5, 4.0, 1.0, 100.0
NAMES = {
    "l2-cable": "ARP: the leader's cable is pulled",
    "l2-node": "ARP: the leader's machine loses its power",
    "bgp-cable": "BGP with BFD (300 ms x 3): a node's cable is pulled",
    "cordon": "ARP: the leader is cordoned and uncordoned",
    "stop": "ARP: the leader's agent is stopped until another node leads",
    "kill": "ARP: the leader's agent is killed and started again",
}
Trials = Sequence[dict[str, float]]


def text(result: dict[str, Any]) -> str:
    """Return headings and tables."""
    rows = result["rows"]
    parts = [measured_on(result)]
    for heading, made in (
        ("### A node dies: the longest gap of a client that connects every 10 ms", deaths(rows)),
        ("### Nothing dies: asks that failed", peace(rows)),
        ("### Many Services at once", many(rows.get("many", {}))),
    ):
        if made:
            parts += [heading, made]
    if result["missing"]:
        parts.append("Not measured: " + "; ".join(result["missing"]) + ".")
    return "\n\n".join(parts)


def _seconds(trials: Trials) -> list[float]:
    return [trial["gap_s"] for trial in trials]


def _summary(trials: Trials) -> str:
    values = _seconds(trials)
    return f"{percentile(values, 50):.2f} / {percentile(values, 95):.2f} / {max(values):.2f}" if values else ""


def deaths(rows: dict[str, Any]) -> str:
    """Return the gaps where a node dies."""
    out = []
    for key, target in (("l2-cable", GAP_S), ("l2-node", GAP_S), ("bgp-cable", BGP_GAP_S)):
        ours, theirs = rows.get(key, {}).get("lbagent", []), rows.get(key, {}).get("MetalLB", [])
        if not ours:
            continue
        p95 = percentile(_seconds(ours), 95)
        ratio = p95 / percentile(_seconds(theirs), 95) if theirs else None
        out.append(
            (
                NAMES[key], str(len(ours)), _summary(theirs), _summary(ours), verdict(p95, target),
                f"{ratio:.2f}" if ratio else "", verdict(ratio, OF_METALLB) if ratio else "",
            )
        )  # fmt: skip
    head = (
        "what",
        "times",
        "MetalLB 0.13.5, s: p50 / p95 / longest",
        "lbagent, s: the same",
        "target of p95",
        "lbagent / MetalLB, p95",
        "target",
    )
    return table(head, out) if out else ""


def peace(rows: dict[str, Any]) -> str:
    """Return the results of requests in trials in which no answering node dies."""
    out = []
    for key in ("cordon", "stop", "kill"):
        trials = rows.get(key, {}).get("lbagent", [])
        if trials:
            failed = int(sum(trial["failures"] for trial in trials))
            again = int(sum(trial["syns_again"] for trial in trials))
            kept = "0 and 0 " + ("MISSED" if failed + again else "met")
            longest = f"{1e3 * max(_seconds(trials)):.0f} ms"
            out.append((NAMES[key], str(len(trials)), str(failed), str(again), longest, kept))
    head = ("what", "times", "asks that failed", "SYNs sent twice", "longest gap", "target")
    return table(head, out) if out else ""


def many(sides: dict[str, Any]) -> str:
    """Return the figures of many Services."""
    ours, theirs = sides.get("lbagent"), sides.get("MetalLB")
    if not ours:
        return ""
    count = f"{ours['services']:,}"
    ratio = ours["all_s"] / theirs["all_s"] if theirs else None
    rows = [
        (f"{count} Services made through the API, s", _of(theirs, "made_s"), f"{ours['made_s']:.1f}", ""),
        (f"{count} Services: all addressed and answering, s", _of(theirs, "all_s"), f"{ours['all_s']:.1f}", verdict(ours["all_s"], ALL_S)),
        ("the same, lbagent / MetalLB", "", f"{ratio:.2f}" if ratio else "", verdict(ratio, ALL_OF_METALLB) if ratio else ""),
        ("API writes a Service, by the controller", _of(theirs, "controller_writes"), f"{ours['controller_writes']:.2f}", verdict(ours["controller_writes"], WRITES)),
        ("API writes a Service, by agents (the Lease that names its leader)", "", f"{ours['node_writes']:.2f}", ""),
        (f"in peace, {count} addresses: API writes a second of the busiest node", "", f"{ours['node_writes_a_s']:.2f}", verdict(round(ours["node_writes_a_s"], 2), PEACE_A_S)),
        (f"in peace, {count} addresses: API writes a second of the controller", _of(theirs, "controller_writes_a_s"), f"{ours['controller_writes_a_s']:.2f}", ""),
        ("controller killed and started again: API writes", "", str(ours.get("restart_writes", "")), f"0 {'MISSED' if ours.get('restart_writes') else 'met'}"),
        ("controller, resident memory, MiB", _of(theirs, "controller_mib"), f"{ours['controller_mib']:.0f}", verdict(ours["controller_mib"], CONTROLLER_MIB)),
    ]  # fmt: skip
    return table(("what", "MetalLB 0.13.5", "lbagent", "target"), rows)


def _of(side: dict[str, float] | None, key: str) -> str:
    return f"{side[key]:.1f}" if side else ""
