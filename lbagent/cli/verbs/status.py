"""`lbagent status` and `lbagent metrics`."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import click

from lbagent.api.client import AgentClient
from lbagent.cli.options import Duration, bpffs_option, form_option, socket_option
from lbagent.cli.output import GAP, document
from lbagent.errors import AgentUnreachable, TimedOut

POLL_S = 0.1
ATTEMPT_S = 2.0  # timeout of one request while waiting
FAULT = "fault"
MAX_DRAINS = 20  # lines
MAX_EXCLUDED = 20  # lines
FULL = 0.8  # maps fuller than this are shown without -o wide


@click.command()
@socket_option
@bpffs_option
@click.option(
    "--wait", "wait_s", type=Duration(), metavar="TIME", help="Wait this long for the first full sync, like 30s."
)
@click.option("--strict", is_flag=True, help="Exit code 1 also for degraded parts.")
@form_option("table", "wide", "json", "yaml")
def status(socket: str, bpffs: str, wait_s: float | None, strict: bool, form: str) -> int:
    """Show the state of the agent; when none answers, show what the kernel still serves.

    Exit code 0: ready, and no fault is shown (lines `degraded` are about single Services: an unreachable endpoint, a refused
    field). 1: not ready, a service could not be written, or a line `fault` or `mended` is shown; with --strict also for
    `degraded`. With --wait the conditions count only with --strict. 5: no agent answers. 6: not ready in time.
    """
    try:
        found = _wait(AgentClient(socket, ATTEMPT_S), wait_s) if wait_s is not None else AgentClient(socket).status()
    except AgentUnreachable:
        if form not in ("json", "yaml"):
            _without_agent(bpffs)
        raise
    if form in ("json", "yaml"):
        document(found, form)
    else:
        click.echo("\n".join(lines(found, wide=form == "wide", now=time.time())))
    return 0 if found["ready"] and not found["failing"] and not _counts(found, wait_s is not None, strict) else 1


def _counts(found: dict[str, Any], waited: bool, strict: bool) -> bool:
    """Return whether a condition holds that sets the exit code to 1."""
    severities = {_severity(item) for item in found.get("conditions", ())}
    return bool(severities) if strict else FAULT in severities and not waited


def _severity(item: dict[str, Any]) -> str:
    return str(item.get("severity", FAULT))  # an agent of an earlier version has none


def _wait(client: AgentClient, wait_s: float) -> dict[str, Any]:
    """Return the status once the agent is ready. Raises AgentUnreachable or TimedOut when `wait_s` is over."""
    deadline = time.monotonic() + wait_s
    found = False
    while True:
        try:
            answer: dict[str, Any] = client.status()
            found = True
            if answer["ready"]:
                return answer
        except TimedOut:
            found = True
        except AgentUnreachable:
            if time.monotonic() >= deadline and not found:
                raise
        if time.monotonic() >= deadline:
            raise TimedOut(f"the agent is not ready after {wait_s:g} s; `lbagent status` shows what it waits for")
        time.sleep(POLL_S)


def lines(found: dict[str, Any], *, wide: bool, now: float) -> list[str]:
    """Return the text for a person: one fact per line, what needs attention at the end."""
    word = "ready" if found["ready"] else "starting"
    age = _age(now - found["started_at"])
    out = [
        _fact("agent", f"{word}, pid {found['pid']}, version {found['version']}, node {found['node']}, up {age}"),
        _fact(
            "state",
            f"generation {found['generation']}: {found['services']} services, {found['frontends']} frontends, "
            f"{found['backends']} backends",
        ),
    ]
    if found["attach"] or found["artifact"]:
        out.append(
            _fact(
                "programs",
                f"attach {found['attach']}, built {found['artifact'][:12] or 'unknown'}, pins {found['bpffs']}",
            )
        )
    for device in found["devices"]:
        hooks = ", ".join(device["hooks"]) or "not attached"
        out.append(
            _fact("device", f"{device['name']}: {hooks}" + (f" ({device['problem']})" if device["problem"] else ""))
        )
    out += [
        _fact("cgroup", f"{item['path']}: {', '.join(item['hooks']) or 'not attached'}")
        for item in found.get("cgroups", ())
    ]
    for item in found.get("outputs", ()):
        why = f" ({item['reason']})" if item["reason"] else ""
        out.append(_fact("output", f"{item['name']}: remote backends, by {item['way']}{why}"))
    for source in found["sources"]:
        seen = f"{source['objects']} objects" if source["synced"] else "not read yet"
        if source["generation"]:
            seen += f", generation {source['generation']}"
        out.append(_fact("source", f"{source['name']}: {seen}"))
        out += [f"  {message}" for message in source["messages"]]
    for usage in found["maps"]:
        share = usage["used"] / usage["size"] if usage["size"] else 0.0
        if wide or share >= FULL or usage.get("namespaces"):
            most = ", ".join(f"{name} {number}" for name, number in usage.get("namespaces", {}).items())
            by = f", most of them by namespace: {most}" if most else ""
            out.append(_fact("map", f"{usage['name']}: {usage['used']} of {usage['size']} ({share:.0%}){by}"))
    out += _drains(found.get("drains", ()), now)
    for item in found["failing"]:
        out.append(
            _fact(
                "failing",
                f"{item['frontend']} {item['service']}: {item['error']}; next try in {item['retry_in_s']:.0f} s",
            )
        )
    out += _excluded(found.get("excluded", ()), wide)
    conditions = found.get("conditions", ())
    for item in sorted(conditions, key=lambda item: _severity(item) != FAULT):
        out.append(_condition(item, now))
    shown = {item["text"] for item in conditions}
    return out + [_fact("problem", text) for text in found["problems"] if text not in shown]


def _excluded(lines: Sequence[str], wide: bool) -> list[str]:
    """Return a line for each frontend that is left alone; without -o wide at most some of many."""
    shown = lines if wide else lines[:MAX_EXCLUDED]
    out = [_fact("excluded", text) for text in shown]
    more = len(lines) - len(shown)
    return [*out, _fact("excluded", f"{more} more, with -o wide")] if more else out


def _drains(drains: Sequence[dict[str, Any]], now: float) -> list[str]:
    """Return a line for each drain of a backend, active ones first; at most some of many."""
    out = [_fact("drain", f"{item['address']}: {_drain(item, now)}") for item in drains[:MAX_DRAINS]]
    more = len(drains) - len(out)
    return [*out, _fact("drain", f"{more} more; `lbagent backend list` shows them")] if more > 0 else out


def _drain(item: dict[str, Any], now: float) -> str:
    if item["state"] == "drained":
        return f"drained {_age(now - item['ended'])} ago"
    counted = (
        f"{item['flows']} of {item['flows_at_start']} flows left" if item["flows"] >= 0 else "flows not counted yet"
    )
    if item["state"] == "draining":
        return f"{counted} after {_age(now - item['since'])}; it times out in {_age(item['remaining_s'])}"
    return f"timed out after {_age(item['timeout_s'])}, {counted}; it stays in maintenance"


def _condition(item: dict[str, Any], now: float) -> str:
    if item["mended"]:
        return _fact("mended", f"{item['text']} ({_age(now - item['since'])} ago)")
    return _fact(_severity(item), f"{item['text']}; {item['remedy']}" if item["remedy"] else item["text"])


def _fact(name: str, text: str) -> str:
    return name.ljust(8) + GAP + text


def _age(seconds: float) -> str:
    for unit, size in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{max(0.0, seconds):.0f} s"


def _without_agent(bpffs: str) -> None:
    """Show what an agent that is gone has left serving; whatever cannot be read is left out."""
    from lbagent.config import Config
    from lbagent.targets.offline_planes import left_serving

    for word, text in left_serving(Config(bpffs=bpffs)):
        click.echo(_fact(word, text))


@click.command()
@socket_option
def metrics(socket: str) -> None:
    """Print the agent's metrics as Prometheus text."""
    click.echo(AgentClient(socket).metrics(), nl=False)
