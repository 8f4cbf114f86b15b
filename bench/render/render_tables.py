"""The tables of nftables beside kube-proxy."""

from __future__ import annotations

from typing import Any

from bench.kube.kube_tables import at_least
from bench.report import measured_on, spread, table, verdict

Row = tuple[str, ...]
VERIFY_S, SHADOW_SHARE, MEMORY_MIB, CHANGE_MS, LONGER_MS = 3, 0.03, 150, 60, 10


def text(result: dict[str, Any]) -> str:
    """Return headings and tables."""
    parts = [measured_on(result)]
    if "lbagent" in result:
        parts.append(
            f"### nftables: {result['services']:,} Services with 3 endpoints, beside kube-proxy in nftables mode"
        )
        parts.append(beside(result))
        if rows := [*verify(result), *shadow(result)]:
            parts += ["### nftables: verify and shadow", table(("what", "measured", "target"), rows)]
    if result["missing"]:
        parts.append("Not measured: " + "; ".join(result["missing"]) + ".")
    return "\n\n".join(parts)


def beside(result: dict[str, Any]) -> str:
    """Return the rows that both have."""
    ours, theirs = result["lbagent"], result["kube-proxy"]
    rows: list[Row] = []
    if starts := result.get("starts"):
        rows += [
            ("start on a new node, s", spread(starts["kube-proxy"]), spread(starts["lbagent"]), spread(starts["ratio"]),
             _both(verdict(starts["ratio"]["median"], 0.5), verdict(starts["lbagent"]["median"], 8)))
        ]  # fmt: skip
    rows.append(_pair("start on a node with one Service, s", theirs["started_s"], ours["started_s"], ""))
    longer = ours["connect_p99_ms"][1] - ours["connect_p99_ms"][0]
    for at, when in enumerate(("before", "during")):
        rows.append(
            _pair(
                f"connect to that Service, p99 {when} the start, ms",
                theirs["connect_p99_ms"][at],
                ours["connect_p99_ms"][at],
                verdict(max(0.0, longer), LONGER_MS) if at else "",
            )
        )
    rows.append(_pair("of these failed", theirs["failed"], ours["failed"], verdict(ours["failed"], 0)))
    rows.append(
        _pair(
            "resident memory, MiB",
            theirs["resident_mib"],
            ours["resident_mib"],
            verdict(ours["resident_mib"], MEMORY_MIB),
        )
    )
    if "change" in ours:
        change, its = ours["change"], theirs["change"]
        target = _both(verdict(change["p50"] / its["p50"], 0.5), verdict(change["p50"], CHANGE_MS))
        rows.append(
            _pair("one slice patched: the server's answer to the rules, p50, ms", its["p50"], change["p50"], target)
        )
        rows.append(_pair("the same, p99 (kube-proxy: the longest), ms", its["p99"], change["p99"], ""))
    if "traffic" in result:
        rows += _traffic(result["traffic"])
    return table(("what", "kube-proxy", "lbagent", "lbagent / kube-proxy", "target"), rows)


def _pair(what: str, theirs: float, ours: float, target: str) -> Row:
    return what, f"{theirs:.2f}", f"{ours:.2f}", f"{ours / theirs:.2f}" if theirs else "", target


def _both(*verdicts: str) -> str:
    return "; ".join(verdicts)


def _traffic(seen: dict[str, Any]) -> list[Row]:
    rows = []
    for what, key, digits in (
        ("connect by the ClusterIP, µs", "connect_us", 1),
        ("requests on new connections, 1/s", "requests_per_s", 0),
        ("TCP on one connection, Gbit/s", "gbit_per_s", 1),
    ):
        row = seen[key]
        over = row["ratio"]
        target = {
            "connect_us": verdict(over["median"], 1.05),
            "requests_per_s": at_least(over["median"], 1 / 1.05),
            "gbit_per_s": at_least(over["median"], 1.0),
        }[key]
        rows.append(
            (what, spread(row["kube-proxy vip"], digits), spread(row["lbagent vip"], digits), spread(over), target)
        )
    return rows


def verify(result: dict[str, Any]) -> list[Row]:
    """Return how long `lbagent verify` takes."""
    found = result.get("verify", {})
    return [
        (f"`lbagent verify`, the whole process, {name}, s", f"{seconds:.2f}", verdict(seconds, VERIFY_S))
        for name, seconds in found.items()
    ]


def shadow(result: dict[str, Any]) -> list[Row]:
    """Return what an agent takes that compares."""
    found = result.get("shadow")
    if not found:
        return []
    what = f"`agent --shadow`, {found['rate']:.0f} new connections a second: share of a CPU"
    return [
        (what, f"{found['share']:.3f}", verdict(found["share"], SHADOW_SHARE)),
        ("the same without connections", f"{found['idle_share']:.3f}", ""),
        ("connections that it compared; that do not differ", f"{found['flows']:,}; {found['same']:,}", ""),
    ]
