"""`lbagent backend`: list them, say which may take new flows, drain one."""

from __future__ import annotations

import time

import click

from lbagent.api.client import DEFAULT_TIMEOUT_S, AgentClient
from lbagent.cli import output
from lbagent.cli.options import Duration, form_option, list_options, socket_option
from lbagent.cli.output import Column, Listing, Row, Style
from lbagent.errors import LbError, TimedOut

STATES = ("active", "maintenance", "quarantined", "terminating")  # the last only to be refused by name
POLL_S = 0.5
ANSWER_S = 2.0  # an agent has this long for an answer, however short the wait

BACKENDS = Listing(
    (
        Column("ID", lambda row: row["id"]),
        Column("ADDRESS", lambda row: row["address"]),
        Column("STATE", lambda row: row["state"]),
        Column("WEIGHT", lambda row: row["weight"]),
        Column("FLOWS", lambda row: row["flows"] if row["flows"] >= 0 else ""),
        Column("NODE", lambda row: row["node"]),
        Column("LOCAL", lambda row: row["local"]),
        Column("SERVICES", lambda row: row["services"]),
        Column("ZONE", lambda row: row["zone"], wide=True),
    ),
    name=lambda row: str(row["address"]),
    key=lambda row: row["address"],
)


@click.group()
def backend() -> None:
    """List backends, set their state, drain them."""


@backend.command("list")
@socket_option
@list_options
def list_(socket: str, style: Style) -> None:
    """List all backends, each once."""
    client = AgentClient(socket)
    if style.watch:
        output.watch(client, client.backends, BACKENDS, style)
    else:
        output.show(BACKENDS, client.backends(), style)


def _complete(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """Offer states and the agent's backends."""
    del param
    try:
        known = [row["address"] for row in AgentClient(ctx.params.get("socket") or "", timeout_s=2.0).backends()]
    except LbError:
        known = []
    return [word for word in (*STATES[:3], *known) if word.startswith(incomplete)]


@backend.command("set-state", short_help="Set the state of backends.")
@click.argument("words", nargs=-1, required=True, metavar="BACKEND STATE | STATE BACKEND...", shell_complete=_complete)
@socket_option
@form_option("table", "wide", "json", "yaml", "name")
def set_state(words: tuple[str, ...], socket: str, form: str) -> None:
    """Set the state of backends: active, maintenance or quarantined. The agent keeps it over restarts.

    BACKEND is ADDRESS:PORT[/PROTOCOL], or pod/NAMESPACE/NAME for every backend of that Pod, now and later.

    \b
    lbagent backend set-state 10.0.0.1:8080/TCP maintenance
    lbagent backend set-state maintenance 10.0.0.1:8080 10.0.0.2:8080
    lbagent backend set-state maintenance pod/shop/web-0
    """  # noqa: D301 - click looks for the character, not for a backslash and a b
    state, addresses = split_words(words)
    rows = AgentClient(socket).set_state(addresses, state)
    output.show(BACKENDS, rows, Style(form))


def split_words(words: tuple[str, ...]) -> tuple[str, list[str]]:
    """Return state and backends of either order. Raises UsageError: a backend has a colon or a slash, a state has none."""
    states = [word for word in words if not _is_backend(word)]
    addresses = [word for word in words if _is_backend(word)]
    if len(states) != 1 or words.index(states[0]) not in (0, len(words) - 1) or not addresses:
        raise click.UsageError("give addresses like 10.0.0.1:8080/TCP, or pod/NAMESPACE/NAME, and one state")
    state = states[0].lower()
    if state not in STATES:
        raise click.UsageError(f"unknown state {states[0]!r}; use one of {', '.join(STATES[:3])}")
    return state, addresses


def _is_backend(word: str) -> bool:
    return ":" in word or "/" in word


@backend.command(short_help="Set backends to maintenance and wait for their last flow.")
@click.argument("addresses", nargs=-1, required=True, metavar="BACKEND...", shell_complete=_complete)
@socket_option
@click.option(
    "--timeout",
    "timeout_s",
    type=Duration(),
    default=300.0,
    show_default="5m",
    help="How long to wait, like 30s or 5m.",
)
def drain(addresses: tuple[str, ...], socket: str, timeout_s: float) -> None:
    """Set backends to maintenance and wait until their last flow has ended.

    BACKEND is ADDRESS:PORT[/PROTOCOL], or pod/NAMESPACE/NAME for every backend of that Pod.

    Exit code 6: some flows are left; the backends stay in maintenance.
    """
    client = AgentClient(socket, timeout_s=min(max(timeout_s, ANSWER_S), DEFAULT_TIMEOUT_S))
    deadline = time.monotonic() + timeout_s
    names = [row["address"] for row in client.set_state(list(addresses), "maintenance")]
    begin = int(client.status()["sweeps"])
    left: dict[str, int] = {}
    while True:
        # the sweep that was running counted flows from before; the one after it is ours
        swept = int(client.status()["sweeps"]) >= begin + 2
        left = _flows(client.backends(), names)
        if swept and not any(left.values()):
            break
        if time.monotonic() >= deadline:
            raise TimedOut(f"after {timeout_s:g} s {_left(left)}; the backends stay in maintenance")
        time.sleep(min(POLL_S, max(0.0, deadline - time.monotonic())))
    for name in names:
        click.echo(f"{name} drained")


def _left(left: dict[str, int]) -> str:
    """Return what a drain still waits for: flows, or the sweep that counts them."""
    counts = ", ".join(f"{name} {count}" for name, count in left.items() if count > 0)
    return f"flows are left: {counts}" if counts else "no sweep has counted the flows yet (--sweep-interval)"


def _flows(rows: list[Row], names: list[str]) -> dict[str, int]:
    """Return the live flows of the named backends; one that is gone has none."""
    return {row["address"]: row["flows"] for row in rows if row["address"] in names}
