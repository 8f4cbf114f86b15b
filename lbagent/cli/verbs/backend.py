"""`lbagent backend`: list backends, set which may take new flows, drain them."""

from __future__ import annotations

import functools
import sys
import time
from collections.abc import Callable
from socket import AF_INET, AF_INET6, inet_pton
from typing import Any, TypeVar

import click

from lbagent.api.capabilities.node_backends import BACKENDS
from lbagent.api.client import DEFAULT_TIMEOUT_S, AgentClient
from lbagent.cli import output
from lbagent.cli.options import FITTING, Duration, form_option, list_options, socket_option
from lbagent.cli.output import FORMATS, Listing, Row, Style, columns_of
from lbagent.errors import AgentUnreachable, LastBackend, LbError, Refused, TimedOut

F = TypeVar("F", bound=Callable[..., Any])
STATES = ("active", "maintenance", "quarantined", "terminating")  # the last one is rejected with its own message
POLL_S = 0.5
PROGRESS_S = 5.0  # minimum seconds between two lines of progress
ANSWER_S = 2.0  # minimum time for an answer of the agent, also when the wait is shorter
RECONNECT_S = 60.0  # a drain is followed further when the agent restarts within this time
STALE_AFTER_S = 1.0  # older counts are printed with their age


def listing(rows: list[Row], *, always: bool = False) -> Listing:
    """Return how backends are shown.

    A table has these columns only where rows need them, or `always`: the way of packets (XDP programs run, and leave some to tc),
    the drain of a backend, and who set a state and since when.
    """
    columns = columns_of(BACKENDS, rows, always=always)
    return Listing(columns, name=lambda row: str(row["address"]), key=lambda row: row["address"])


def show(rows: list[Row], style: Style) -> None:
    """Print backends; print the age of the flow counts on stderr when they are old."""
    output.show(listing(rows), rows, style)
    age_s = max((row.get("flows_age_s", 0.0) for row in rows), default=0.0)
    if age_s > STALE_AFTER_S and style.form in ("table", "wide"):
        click.echo(f"flows were counted {age_s:.0f} s ago", err=True)


@click.group()
def backend() -> None:
    """List backends, set and clear their state, drain them."""


@backend.command("list")
@socket_option
@click.option("-n", "--namespace", default="", help="List only backends of Services in this namespace.")
@click.option("--service", default="", metavar="[NAMESPACE/]NAME", help="List only backends of this Service.")
@click.option("--node", default="", metavar="NAME", help="List only backends on this node.")
@click.option("--state", type=click.Choice(STATES), help="List only backends in this state.")
@list_options
def list_(socket: str, namespace: str, service: str, node: str, state: str | None, style: Style) -> None:
    """List backends, each once. The command counts their flows.

    WAY: how packets get to a backend: passed up to the stack of this node, sent by xdp, or sent by tc. It is shown with -o
    wide, and when XDP programs leave the packets of a backend to tc. DRAIN: how many flows are left of those at the start of
    the drain.
    """
    client = AgentClient(socket)
    wanted = service if "/" in service or not service else f"{namespace or 'default'}/{service}"

    def is_wanted(row: Row) -> bool:
        spaces = {name.rpartition("/")[0] for name in row["services"]}
        return (
            (not namespace or namespace in spaces)
            and (not wanted or wanted in row["services"])
            and (not node or row["node"] == node)
            and (not state or row["state"] == state)
        )

    def fetch() -> list[Row]:
        return [row for row in client.backends() if is_wanted(row)]

    if style.watch:
        output.watch(client, fetch, listing([], always=True), style)
        return
    rows = fetch()
    show(rows, style)
    asked = {"namespace": namespace, "service": wanted, "node": node, "state": state or ""}
    output.say_nothing_found("backend", rows, asked, style)


def _complete(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """Offer states and the agent's backends."""
    del param
    try:
        known = [row["address"] for row in AgentClient(ctx.params.get("socket") or "", timeout_s=2.0).backends()]
    except LbError:
        known = []
    return [word for word in (*STATES[:3], *known) if word.startswith(incomplete)]


def named_options(command: F) -> F:
    """Add --node and --service; the command gets them as `named`: fields of NamedBackends."""

    @click.option("--node", default="", metavar="NAME", help="All backends that are on this node now.")
    @click.option(
        "--service",
        default="",
        metavar="NAMESPACE/NAME",
        help="All backends that this Service has now (with --node: on that node).",
    )
    @functools.wraps(command)
    def wrapped(*args: Any, node: str, service: str, **kwargs: Any) -> Any:
        return command(*args, named={"node": node, "service": service}, **kwargs)

    return wrapped  # type: ignore[return-value]


def yes_option(command: F) -> F:
    """Add --yes."""
    return click.option("--yes", is_flag=True, help="Skip the confirmation for the last backend of a Service.")(command)


@backend.command("set-state", short_help="Set the state of backends.")
@click.argument("words", nargs=-1, required=True, metavar="BACKEND STATE | STATE BACKEND...", shell_complete=_complete)
@named_options
@yes_option
@socket_option
@form_option(*FORMATS, text=FITTING)
def set_state(words: tuple[str, ...], named: dict[str, Any], yes: bool, socket: str, form: str) -> None:
    """Set the state of backends: active, maintenance or quarantined. The agent keeps it over restarts.

    BACKEND is ADDRESS:PORT[/PROTOCOL] (without PROTOCOL: all protocols), ADDRESS for every port, or pod/NAMESPACE/NAME
    for every backend of that Pod, now and later. The state overrides every BackendState until clear-state.

    The last backend of a Service is taken out only after a confirmation, or with --yes. Exit code 4: refused; nothing was
    changed.

    \b
    lbagent backend set-state 10.0.0.1:8080/TCP maintenance
    lbagent backend set-state maintenance 10.0.0.1:8080 10.0.0.2:8080
    lbagent backend set-state maintenance pod/shop/web-0
    lbagent backend set-state maintenance --node worker-3
    """  # noqa: D301 - click looks for the character, not for a backslash and a b
    state, backends = split_words(words, named)
    client = AgentClient(socket)
    rows = _set(client, state, backends | named, yes=yes)
    show(rows, Style(form))
    checked = _natively_served(client, rows)
    for row in rows:
        if row["state"] != state:
            click.echo(f"{row['address']} stays {row['state']}", err=True)
        if instances := sorted(checked & set(row["services"])):
            lets = f"`lbagent backend clear-state {row['address']}` lets them"
            text = f"{row['address']} stays {row['state']} whatever the health checks of {', '.join(instances)} find; {lets}"
            click.echo(f"{text} set its state again", err=True)


def _natively_served(client: AgentClient, rows: list[Row]) -> set[str]:
    """Return the Services of these backends that are instances of `--apilb`, whose health checks set states."""
    found = {name for row in rows for name in row["services"] if name.startswith("apilb/")}
    if not found:
        return found
    try:
        return found & {f"apilb/{row['name']}" for row in client.apilb()}
    except LbError:  # a namespace with this name, without --apilb
        return set()


def _set(client: AgentClient, state: str, named: dict[str, Any], *, yes: bool) -> list[Row]:
    """Set a state; ask before a Service loses its last backend. Raises LastBackend when there is no terminal."""
    return _sparing_last(functools.partial(client.set_state, state=state, **named), yes=yes)


def _sparing_last(change: Callable[..., list[Row]], *, yes: bool) -> list[Row]:
    """Call a function that sets states; ask before a Service loses its last backend. Raises as `_set`."""
    try:
        return change(spare_last=not yes)
    except LastBackend as error:
        if not sys.stdin.isatty():
            raise LastBackend(f"{error}; nothing was changed; give --yes to do it nevertheless") from None
        if not click.confirm(f"{error}. Continue?", err=True):
            raise Refused("nothing was changed") from None
    return change()


@backend.command("clear-state", short_help="Clear a state that was set.")
@click.argument("words", nargs=-1, metavar="BACKEND...", shell_complete=_complete)
@named_options
@socket_option
@form_option(*FORMATS, text=FITTING)
def clear_state(words: tuple[str, ...], named: dict[str, Any], socket: str, form: str) -> None:
    """Clear what set-state and drain set: the manifests decide again.

    BACKEND is as in set-state; it may also be an address that no service has any more. When no state was set, nothing
    is changed and the exit code is 0.
    """
    answer = AgentClient(socket).clear_state(**split_backends(words, named), **named)
    show(answer["backends"], Style(form))
    if not answer["cleared"]:
        click.echo("no state was set for these backends by set-state or drain; nothing was changed", err=True)
    served = {row["address"] for row in answer["backends"]}
    for name in answer["cleared"]:
        if name not in served and not name.startswith("pod/"):
            click.echo(f"{name} cleared; no service has it now", err=True)


def split_words(words: tuple[str, ...], named: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """Return state and backends of either order. Raises UsageError. Only a backend has a colon, a slash or dots."""
    states = [word for word in words if not _is_backend(word)]
    backends = tuple(word for word in words if _is_backend(word))
    if len(states) != 1 or words.index(states[0]) not in (0, len(words) - 1):
        raise click.UsageError("give addresses like 10.0.0.1:8080/TCP, or pod/NAMESPACE/NAME, and one state")
    state = states[0].lower()
    if state not in STATES:
        raise click.UsageError(f"unknown state {states[0]!r}; use one of {', '.join(STATES[:3])}")
    return state, split_backends(backends, named)


def split_backends(words: tuple[str, ...], named: dict[str, Any]) -> dict[str, Any]:
    """Return the words as fields of NamedBackends. Raises UsageError when no backend is named, or one is named twice."""
    if bool(words) == any(named.values()):
        raise click.UsageError("give addresses like 10.0.0.1:8080/TCP, or pod/NAMESPACE/NAME, or --node or --service")
    hosts = [word for word in words if _is_host(word)]
    for word in words:
        if word not in hosts and not word.startswith("pod/") and ":" not in word.rpartition("]")[2]:
            raise click.UsageError(f"{word!r} is not an IP address, ADDRESS:PORT[/PROTOCOL] or pod/NAMESPACE/NAME")
    return {"addresses": [word for word in words if word not in hosts], "hosts": hosts}


def _is_backend(word: str) -> bool:
    return any(each in word for each in ":/.")


def _is_host(word: str) -> bool:
    """Return whether a word is an IP address without a port."""
    text = word.removeprefix("[").removesuffix("]")
    try:
        inet_pton(AF_INET6 if ":" in text else AF_INET, text)
    except (OSError, ValueError):
        return False
    return True


@backend.command(short_help="Set backends to maintenance and wait for their last flow.")
@click.argument("words", nargs=-1, metavar="BACKEND...", shell_complete=_complete)
@named_options
@yes_option
@socket_option
@click.option(
    "--timeout",
    "timeout_s",
    type=Duration(),
    default=300.0,
    show_default="5m",
    help="How long to wait, like 30s or 5m.",
)
def drain(words: tuple[str, ...], named: dict[str, Any], yes: bool, socket: str, timeout_s: float) -> None:
    """Set backends to maintenance and wait until their last flow has ended.

    BACKEND is as in set-state. The last backend of a Service is drained only after a confirmation, or with --yes.

    The agent drains, this command follows it: when the command ends early, the drain continues, also over a restart of the agent.
    `status` and `backend list` show it. A backend that is drained already keeps the later of both deadlines; `set-state active`
    and clear-state cancel the drain.

    Exit code 1: cancelled. 4: refused; nothing was changed. 6: some flows are left; the backends stay in maintenance.
    """
    client = AgentClient(socket, timeout_s=min(max(timeout_s, ANSWER_S), DEFAULT_TIMEOUT_S))
    backends = split_backends(words, named) | named
    rows = _sparing_last(functools.partial(client.start_drain, timeout_s=timeout_s, **backends), yes=yes)
    names = [row["address"] for row in rows]
    deadline = time.monotonic() + timeout_s
    click.echo(f"{', '.join(names)} in maintenance; waiting for the next count of flows", err=True)
    progress, going = _Progress(), names
    while True:
        drains = _drains(client, going, deadline)
        going = [name for name in going if drains[name]["state"] != "drained"]
        left = {name: drains[name]["flows"] for name in going}
        if not going:
            break
        if all(drains[name]["counted"] for name in going):
            progress.show(left)
        is_over = all(drains[name]["state"] != "draining" for name in going)
        if is_over or time.monotonic() >= deadline:
            raise TimedOut(f"after {timeout_s:g} s {_left(left)}; the backends stay in maintenance")
        time.sleep(min(POLL_S, max(0.0, deadline - time.monotonic())))
    for name in names:
        click.echo(f"{name} drained")


def _drains(client: AgentClient, names: list[str], deadline: float) -> dict[str, Row]:
    """Return the drains of backends; waits while the agent restarts. Raises LbError when one was cancelled."""
    gone_since = None
    while True:
        try:
            rows = client.drains()
            break
        except AgentUnreachable as error:
            if gone_since is None:
                gone_since = time.monotonic()
                click.echo(f"{error}; waiting for it", err=True)
            if time.monotonic() >= min(gone_since + RECONNECT_S, deadline):
                raise AgentUnreachable(f"{error}; the drain continues when an agent runs") from None
            time.sleep(POLL_S)
    found = {row["address"]: row for row in rows}
    if missing := [name for name in names if name not in found]:
        raise LbError(f"the drain of {', '.join(missing)} was cancelled by set-state or clear-state")
    return found


class _Progress:
    """Prints on stderr what a drain waits for: when it changes, at most every PROGRESS_S."""

    def __init__(self) -> None:
        self._shown = ""
        self._next = 0.0

    def show(self, left: dict[str, int]) -> None:
        text, now = _left(left), time.monotonic()
        if text != self._shown and now >= self._next:
            self._shown, self._next = text, now + PROGRESS_S
            click.echo(text, err=True)


def _left(left: dict[str, int]) -> str:
    """Return what a drain waits for: flows, or the sweep that counts them."""
    counts = ", ".join(f"{name} {count}" for name, count in left.items() if count > 0)
    return f"flows are left: {counts}" if counts else "no sweep has counted the flows yet (--sweep-interval)"
