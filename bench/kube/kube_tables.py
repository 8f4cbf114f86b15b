"""The tables of Kubernetes."""

from __future__ import annotations

from typing import Any

from bench.report import measured_on, spread, table, verdict

GROWTH_MIB = 10  # more after a second storm than after the first is growth
LAG_MS = 1000  # behind the server's events at the end of a storm


def at_least(value: float, target: float) -> str:
    """Return whether a figure reaches its target."""
    if value >= target:
        return f">= {target:g} met"
    return f">= {target:g} MISSED by {100 * (1 - value / target):.0f} %"


def text(result: dict[str, Any]) -> str:
    """Return headings and tables."""
    parts = [measured_on(result), "### Inside the node: one Service, one pod", inside(result["inside"])]
    if result["sizes"]:
        parts += ["### Kubernetes: the agent before a real API server", agent(result["sizes"][-1])]
        if "kube-proxy" in result["sizes"][0]:
            parts += ["### Kubernetes: beside kube-proxy in nftables mode", beside(result["sizes"])]
    if result["missing"]:
        parts += ["Not measured: " + "; ".join(result["missing"]) + "."]
    return "\n\n".join(parts)


def inside(result: dict[str, Any]) -> str:
    """Return the socket programs and the throughput of tc, against direct ways."""
    connect, rate = result["connect_us"], result["gbit_per_s"]
    head = ("what", "direct", "by the ClusterIP", "ratio", "target")
    rows = [
        (
            "connect of a process of the node, socket programs, µs", spread(connect["bare"], 1), spread(connect["socket"], 1),
            spread(connect["over_bare"], 3), verdict(connect["over_bare"]["median"], 1.03),
        ),
        (
            "the same; the direct one of a socket of the cgroup, too", spread(connect["direct"], 1), spread(connect["socket"], 1),
            spread(connect["over_direct"], 3), "",
        ),
        (
            "TCP from a pod to a pod of the node, tc programs, Gbit/s", spread(rate["direct"], 1), spread(rate["vip"], 1),
            spread(rate["ratio"]), at_least(rate["ratio"]["median"], 0.9),
        ),
    ]  # fmt: skip
    return table(head, rows)


def agent(size: dict[str, Any]) -> str:
    """Return the figures that have targets; the targets are those of 10,000 Services."""
    ours, change = size["lbagent"], size["lbagent"]["change"]
    starts = ours["starts"]
    rows = [
        (f"start to in the kernel, {size['services']:,} Services x 2 ports x 10 endpoints, s", spread(starts["s"]), verdict(ours["start_s"], 6)),
        (f"CPU time of that start, s; both: {starts['n']} starts", spread(starts["cpu_s"]), verdict(ours["cpu_s"], 4)),
        ("start again over what is in the kernel", f"{size['restart_s']:.2f} s", ""),
        ("resident memory", f"{ours['resident_mib']:.0f} MiB", verdict(ours["resident_mib"], 250)),
        ("one slice patched: the server's answer to the map, p50", f"{change['p50']:.1f} ms", verdict(change["p50"], 20)),
        (f"the same, p99 of {change['n']}", f"{change['p99']:.1f} ms", verdict(change["p99"], 60)),
        ("the request sent to the map, p50", f"{change['sent_p50']:.1f} ms", ""),
        ("the agent's own share (event on another watch to the map), p50", f"{change['own_p50']:.1f} ms", ""),
        ("the same, p99", f"{change['own_p99']:.1f} ms", verdict(change["own_p99"], 5)),
        ("resident memory after these changes", f"{ours['resident_after_changes_mib']:.0f} MiB", verdict(ours["resident_after_changes_mib"], 250)),
    ]  # fmt: skip
    for number, storm in enumerate(ours.get("storms", ()), 1):
        rows += storm_rows(number, storm)
    if len(ours.get("storms", ())) > 1:
        more = ours["storms"][-1]["after_mib"] - ours["storms"][0]["after_mib"]
        rows.append(
            (
                "memory after the last storm more than after the first",
                f"{more:.0f} MiB",
                verdict(max(0.0, more), GROWTH_MIB),
            )
        )
    return table(("what", "measured", "target"), rows)


def storm_rows(number: int, storm: dict[str, Any]) -> list[tuple[str, str, str]]:
    """Return the rows of one storm."""
    rate = storm["changes"] / storm["seconds"]
    name = f"storm {number}, {rate:,.0f} slice changes a second for {storm['seconds']:.0f} s"
    end = storm["own_last_ms"] if storm["is_complete"] else float("inf")
    return [
        (f"{name}: event to map, p50", f"{storm['own_p50_ms']:.0f} ms", ""),
        (f"storm {number}: the same, the longest; at the end", f"{storm['own_max_ms']:.0f} ms; {end:.0f} ms", verdict(end, LAG_MS)),
        (f"storm {number}: write into etcd to map, p50; the longest", f"{storm['lag_p50_ms']:.0f} ms; {storm['lag_max_ms']:.0f} ms", ""),
        (f"storm {number}: CPU time of the agent", f"{storm['agent_cpu_s']:.2f} s, {1e3 * storm['agent_cpu_s'] / storm['changes']:.2f} ms a change", ""),
        (f"storm {number}: resident memory before; after", f"{storm['before_mib']:.0f} MiB; {storm['after_mib']:.0f} MiB", verdict(storm["after_mib"], 250)),
    ]  # fmt: skip


def beside(sizes: list[dict[str, Any]]) -> str:
    """Return both, size by size."""
    head = ("Services", "what", "kube-proxy", "lbagent", "lbagent / kube-proxy", "")
    rows: list[tuple[str, ...]] = []
    for size in sizes:
        ours, theirs = size["lbagent"], size["kube-proxy"]
        count = f"{size['services']:,}"
        for what, unit, mine, its in (
            ("start to first sync", "s", ours["start_s"], theirs["start_s"]),
            ("CPU time of it", "s", ours["cpu_s"], theirs["cpu_s"]),
            ("one change, p50", "ms", ours["change"]["p50"], theirs["change"]["p50"]),
            ("one change, p99 (kube-proxy: the longest)", "ms", ours["change"]["p99"], theirs["change"]["p99"]),
            ("resident memory", "MiB", ours["resident_after_changes_mib"], theirs["resident_after_changes_mib"]),
        ):
            shown = f"{mine / its:.2f}" if its else ""
            rows.append((count, f"{what}, {unit}", f"{its:.2f}", f"{mine:.2f}", shown, ahead(mine <= its)))
        for what, key, is_more_better in (
            ("connect by the ClusterIP, µs", "connect_us", False),
            ("requests on new connections by the ClusterIP, 1/s", "requests_per_s", True),
            ("TCP by the ClusterIP, Gbit/s", "gbit_per_s", True),
        ):
            seen = size["traffic"][key]
            over = seen["lbagent over kube-proxy"]
            digits = 0 if key == "requests_per_s" else 1
            is_ahead = over["median"] >= 1 if is_more_better else over["median"] <= 1
            rows.append(
                (
                    count,
                    what,
                    spread(seen["kube-proxy vip"], digits),
                    spread(seen["lbagent vip"], digits),
                    spread(over),
                    ahead(is_ahead),
                )
            )
        for who in ("kube-proxy", "lbagent"):
            connect = size["traffic"]["connect_us"][f"{who} over direct"]
            rows.append(
                (
                    count,
                    f"connect by the ClusterIP over direct, {who}",
                    *(spread(connect) if name == who else "" for name in ("kube-proxy", "lbagent")),
                    "",
                    "",
                )
            )
    return table(head, rows)


def ahead(value: bool) -> str:
    """Return a mark for rows in which kube-proxy is better."""
    return "" if value else "behind"
