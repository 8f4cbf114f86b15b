"""The tables of load balancers of API servers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from bench.apilb.outages import FAILURES
from bench.apilb.ways import AGAIN, DIRECT, HAPROXY, NATIVE, SEEN
from bench.control import percentile
from bench.report import measured_on, spread, table, verdict

HANDSHAKE, BULK, OUT_S = 1.03, 0.97, 1.2
CORE, MIB, SSH = 0.05, 80.0, 2.0
Trials = Sequence[dict[str, Any]]


def text(result: dict[str, Any]) -> str:
    """Return headings and tables."""
    rows = result["rows"]
    parts = [f"{measured_on(result)} HAProxy {result['haproxy']}."]
    for heading, made in (
        ("### A connection from the host", traffic(rows)),
        ("### Connections while the load balancer changes", changes(rows)),
        ("### A server fails, and is back", outages(rows)),
        ("### Many of everything", many(rows, result["watches_s"])),
    ):
        if made:
            parts += [heading, made]
    if result["missing"]:
        parts.append("Not measured: " + "; ".join(result["missing"]) + ".")
    return "\n\n".join(parts)


def at_least(value: float, target: float) -> str:
    """Return whether a figure reaches its target."""
    return f">= {target:g} met" if value >= target else f">= {target:g} MISSED by {100 * (1 - value / target):.0f} %"


def traffic(rows: dict[str, Any]) -> str:
    """Return the cost of handshakes and of one large answer."""
    out = []
    if found := rows.get("handshake"):
        over = found["over direct"]
        out.append(_ways("connect + TLS handshake, us", found, 0, verdict(over[NATIVE]["median"], HANDSHAKE)))
    if found := rows.get("bulk"):
        over, cpu = found["over direct"], found["cpu_s"]
        out.append(_ways("one large answer, Gbit/s", found, 2, at_least(over[NATIVE]["median"], BULK)))
        ends = [f"{cpu[way]['ends']:.2f}" for way in (DIRECT, SEEN, NATIVE, HAPROXY)]
        out.append(("CPU of client and server, s a GB", *ends, "", "", "", ""))
        between = f"{cpu[NATIVE]['agent']:.2f}", f"{cpu[HAPROXY]['haproxy']:.2f}"
        target = "0 " + ("MISSED" if cpu[NATIVE]["agent"] else "met")
        out.append(("CPU of a process between them, s a GB", "", "", *between, "", "", target, ""))
    ways = DIRECT, SEEN, NATIVE, HAPROXY
    head = ("what", *ways, f"{AGAIN} / {DIRECT}", f"{NATIVE} / {DIRECT}", "target", f"{HAPROXY} / {DIRECT}")
    return table(head, out) if out else ""


def _ways(what: str, found: dict[str, Any], digits: int, target: str) -> tuple[str, ...]:
    figures = [f"{found[way]['median']:.{digits}f}" for way in (DIRECT, SEEN, NATIVE, HAPROXY)]
    over = found["over direct"]
    return (what, *figures, spread(over[AGAIN], 3), spread(over[NATIVE], 3), target, spread(over[HAPROXY], 2))


def changes(rows: dict[str, Any]) -> str:
    """Return the results of connections during changes of servers."""
    out = []
    for name, found in rows.get("changes", {}).items():
        made = f"{sum(found['changes'].values())} ({found['slowest_change_s']:.1f} s)"
        counts = len(found["failures"]), found["to_removed"]
        target = "0, 0 " + ("MISSED" if any(counts) else "met")
        out.append((name, str(found["connections"]), made, *map(str, counts), target, f"{found['slowest_s']:.2f} s"))
    head = ("by", "connections", "changes (the slowest)", "failed", "to a removed server", "target", "slowest answer")
    return table(head, out) if out else ""


def outages(rows: dict[str, Any]) -> str:
    """Return how long servers stay in use after a failure, and out of use after its end."""
    out = []
    for row in ("outages", "fast-outages"):
        if found := rows.get(row):
            for key in ("out", "back"):
                out += [_outage(row, found, failure, key) for failure in FAILURES]
    head = (
        "interval, fall, rise",
        "what",
        "times",
        "HAProxy, s: p50 / longest",
        "native, s: the same",
        "latest after HAProxy, s",
        "target",
    )
    return table(head, out) if out else ""


def _outage(row: str, found: dict[str, Any], failure: str, key: str) -> tuple[str, ...]:
    trials = [each for each in found["trials"] if each["failure"] == failure]
    native, theirs = ([each[f"{who} {key}"] for each in trials] for who in ("native", "HAProxy"))
    later = max(mine - other for mine, other in zip(native, theirs, strict=True))
    target = ""
    if row == "outages":
        target = verdict(later, found["interval_s"])
    elif key == "out":
        target = "native " + verdict(max(native), OUT_S)
    check = f"{found['interval_s']:g} s, {found['fall']}, {found['rise']}"
    return (check, f"{failure}: {key}", str(len(trials)), _summary(theirs), _summary(native), f"{later:+.2f}", target)


def _summary(values: Sequence[float]) -> str:
    return f"{percentile(values, 50):.2f} / {max(values):.2f}"


def many(rows: dict[str, Any], watches_s: float) -> str:
    """Return idle pools, watches and hosts."""
    out = []
    if found := rows.get("pools"):
        what = f"{found['pools']} pools of 3 servers"
        out.append(
            (f"{what}: the agent's share of a core", f"{100 * found['core']:.1f} %", verdict(found["core"], CORE))
        )
        out.append(
            (
                "the same: servers that are taken for down, and are not",
                str(len(found["down"])),
                "0 " + ("MISSED" if found["down"] else "met"),
            )
        )
        out.append(("the same: checks a second", f"{found['checks_per_s']:.0f}", ""))
        out.append(
            (
                "the same: resident memory of the agent",
                f"{found['resident_mib']:.0f} MiB",
                verdict(found["resident_mib"], MIB),
            )
        )
    if found := rows.get("watches"):
        for name, trials in found.items():
            what = f"{trials[0]['watches']} watches whose server dies silently: all on a living one, {name}, longest of {len(trials)}"
            longest = max(trial["all_s"] for trial in trials)
            out.append((what, f"{longest:.1f} s", verdict(longest, watches_s) if name == NATIVE else ""))
    if found := rows.get("ssh"):
        one, every = found["one"], found["many"]
        for what, each in (("`apilb plan` of one host by ssh", one), (f"of {found['hosts']} hosts", every)):
            cpu = f"CPU: {each['cpu_s']:.2f} s the command, {each['hosts_cpu_s']:.2f} s sshd and podman"
            out.append((what, f"{each['seconds']:.2f} s ({cpu})", ""))
        ratio = every["seconds"] / one["seconds"]
        out.append((f"{found['hosts']} hosts / one", f"{ratio:.2f}", verdict(ratio, SSH)))
    return table(("what", "measured", "target"), out) if out else ""
