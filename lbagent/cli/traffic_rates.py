"""Rates of two summaries (api/node_summary.py): what `lbagent top` shows. Pure. The keys are a contract: scripts read them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

Row = dict[str, Any]
DIGITS = 1  # behind the point


def rates(before: Row, now: Row) -> Row:
    """Return the traffic between two summaries, the busiest first; None where there is no counter, or it began at 0 again.

    `pps`: packets, `bps`: bits, `new_flows_ps`: flows that began, each in a second.
    """
    interval_s = now["time"] - before["time"]
    services, backends, reasons = (
        _rated(before[kind], now[kind], key, interval_s)
        for kind, key in (("services", "frontend"), ("backends", "backend"), ("reasons", "reason"))
    )
    return {
        "interval_s": round(interval_s, 3),
        "total": {
            "pps": _sum(reasons, "pps"),
            "bps": _sum(reasons, "bps"),
            "new_flows_ps": _sum(services, "new_flows_ps"),
            "flows": now["flows"],
        },
        "services": [
            {
                "service": row["service"],
                "frontend": row["frontend"],
                **_traffic(row),
                "new_flows_ps": row["new_flows_ps"],
                "flows": row["flows"],
            }
            for row in services
        ],
        "backends": [
            {
                "backend": row["backend"],
                "state": row["state"],
                "node": row["node"],
                **_traffic(row),
                "flows": row["flows"],
            }
            for row in backends
        ],
        "reasons": [{"reason": row["reason"], **_traffic(row)} for row in reasons],
    }


def _rated(before: Sequence[Row], now: Sequence[Row], key: str, interval_s: float) -> list[Row]:
    """Return the rows of `now` with their rates."""
    known = {row[key]: row for row in before}
    found = []
    for row in now:
        then = known.get(row[key])
        if then is None and key == "reason":  # one without packets has no row
            then = {"packets": 0, "bytes": 0}

        def rate(counter: str, then: Row | None = then, row: Row = row) -> float | None:
            was, is_now = (each.get(counter) if each else None for each in (then, row))
            if was is None or is_now is None or is_now < was or interval_s <= 0:
                return None
            return float((is_now - was) / interval_s)

        bytes_ps = rate("bytes")
        found.append(
            {
                **row,
                "pps": _rounded(rate("packets")),
                "bps": _rounded(None if bytes_ps is None else 8 * bytes_ps),
                "new_flows_ps": _rounded(rate("new_flows")),
            }
        )
    return sorted(found, key=lambda row: -(row["pps"] or 0))


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, DIGITS)


def _traffic(row: Row) -> Row:
    return {"pps": row["pps"], "bps": row["bps"]}


def _sum(rows: Sequence[Row], key: str) -> float | None:
    values = [row[key] for row in rows if row[key] is not None]
    return round(sum(values), DIGITS) if values else None
