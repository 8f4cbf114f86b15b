"""`backend get` as text: facts, frontends, and the histogram of handshakes. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from lbagent.api.capabilities.node_backends import time_text, utc_text

Row = dict[str, Any]
BAR = 40  # columns of the longest bar


def backend_lines(row: Row) -> Iterator[str]:
    """Yield the lines for one backend: its row with what BackendDetails has beside it."""
    yield f"{row['address']}  {row['state']}" + (f"  set by {row['set_by']}" if row.get("set_by") else "")
    facts = {
        "id": row["id"],
        "pod": row["pod"],
        "weight": row["weight"],
        "node": row["node"] + (" (this one)" if row["local"] else ""),
        "zone": row["zone"],
        "way": " ".join(filter(None, (row.get("way", ""), row.get("device", "")))),
        "why": row.get("way_reason", ""),
        "flows": _flows(row),
        "traffic": f"{row['packets']} packets, {row['bytes']} bytes",
        "check": _check(row),
        "drain": _drain(row),
    }
    yield from (f"  {name:<8} {value}" for name, value in facts.items() if value not in ("", None))
    yield "  frontends" + ("" if row["frontends"] else " none")
    for each in row["frontends"]:
        scope = "/i" if each["scope"] == "internal" else ""
        note = "" if each["selectable"] else "  takes no new flows"
        yield f"    {each['frontend']}{scope}  {each['service']}{note}"
    yield from _handshakes(row["tcp"])
    yield from _checks(row["checks"])


def _check(row: Row) -> str:
    check = row.get("check")
    if not check:
        return ""
    since = f" since {utc_text(check['since'])}" if check["since"] else ""
    return f"{check['type']} {check['state']}{since}" + (f": {check['error']}" if check["error"] else "")


def _flows(row: Row) -> str:
    if row["flows"] < 0:
        return "not counted yet"
    age_s = row.get("flows_age_s", 0.0)
    return f"{row['flows']}" + (f", {age_s:.0f} s ago" if age_s else "")


def _drain(row: Row) -> str:
    drain = row.get("drain")
    return f"{drain['state']}, {drain['flows']} of {drain['flows_at_start']} flows left" if drain else ""


def _checks(checks: list[Row]) -> Iterator[str]:
    if checks:
        yield "  health checks"
    for each in checks:
        state = ("up" if each["up"] else "down") + (f" since {utc_text(each['since'])}" if each["since"] else "")
        counts = ", ".join(f"{count} {result}" for result, count in sorted(each["results"].items()))
        yield f"    {each['pool']}  {each['kind']} every {each['interval_s']:g} s  {state}  {each['last']}"
        yield f"      {counts or 'none has ended'}; state changes: {each['transitions']}"


def _handshakes(tcp: Row) -> Iterator[str]:
    if not (tcp["done"] or tcp["refused"] or tcp["timeout"] or tcp["syn_retransmits"]):
        yield "  TCP handshakes  none was timed"
        return
    times = (
        f", p50 {time_text(tcp['handshake_p50_us'])}, p99 {time_text(tcp['handshake_p99_us'])}" if tcp["done"] else ""
    )
    yield (
        f"  TCP handshakes (timed ones)  {tcp['done']} done{times}, {tcp['refused']} refused, {tcp['timeout']} without an answer, "
        f"{tcp['syn_retransmits']} SYNs repeated"
    )
    if tcp["failing"]:
        yield f"    the last {tcp['failing']} were refused or not answered"
    buckets = tcp["handshakes"]
    used = [number for number, each in enumerate(buckets) if each["count"]]
    most = max((each["count"] for each in buckets), default=0)
    for each in buckets[used[0] : used[-1] + 1] if used else ():
        bound = f"<= {time_text(each['le_us'])}" if each["le_us"] else "longer"
        yield f"    {bound:>10}  {'#' * -(-each['count'] * BAR // most):<{BAR}} {each['count']}".rstrip()
