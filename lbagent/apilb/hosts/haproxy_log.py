"""Parses HAProxy's log lines, each with its time in front, as container runtimes store them (pure).

HAProxy writes a line when a server goes up or down. A worker starts with every server up; a reload starts a new worker, and only
its lines count.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import datetime
from typing import Any

Row = dict[str, Any]
_FORKED = re.compile(r"^(\S+) \[NOTICE\] +\(1\) : New worker \((\d+)\) forked", re.MULTILINE)
_CHANGED = re.compile(
    r"^(\S+) \[WARNING\] +\((\d+)\) : Server kube-apiserver/(\d+) is (UP|DOWN)(?:, reason: (.*?), check duration|)",
    re.MULTILINE,
)


def last_worker(log_text: str) -> str:
    """Return the process id of the last started worker; '' without such a line."""
    workers = _FORKED.findall(log_text)
    return str(workers[-1][1]) if workers else ""


def first_alert(log_text: str) -> str:
    """Return the text of HAProxy's first alert; without an alert, its last line."""
    lines = [line.strip() for line in log_text.splitlines() if line.strip()]
    alerts = [line.partition("[ALERT]")[2].partition(":")[2].strip() for line in lines if "[ALERT]" in line]
    return (alerts or lines[-1:] or ["it printed nothing"])[0][:300]


def new_lines(before: str, now: str) -> str:
    """Return the lines of `now` that are not in `before`."""
    known = set(before.splitlines())
    return "\n".join(line for line in now.splitlines() if line not in known)


def refused_reload(log_text: str) -> bool:
    """Return whether the master rejected the file; its worker keeps running."""
    return "(1) : Loading failure!" in log_text


def misses_file(log_text: str, path: str) -> bool:
    """Return whether HAProxy ended because its configuration file is missing."""
    return bool(re.search(rf"open configuration file\S*\s+{re.escape(path)}\s*: No such file", log_text))


def parse_health(log_text: str, servers: Sequence[str]) -> list[Row]:
    """Return the servers by the log, each line with its time in front; nothing if the beginning of the log is lost."""
    workers = _FORKED.findall(log_text)
    if not workers:
        return []
    begun, worker = workers[-1]
    rows: list[Row] = [{"address": each, "up": True, "since": _seconds(begun), "last": ""} for each in servers]
    for time, process, number, state, reason in _CHANGED.findall(log_text):
        if process == worker and int(number) < len(rows):
            rows[int(number)].update(up=state == "UP", since=_seconds(time), last=reason)
    return rows


def _seconds(time: str) -> float:
    return datetime.fromisoformat(time).timestamp()
