"""`lbagent backend`: list backends, set which may take new flows, drain them."""

from __future__ import annotations

import functools
import sys
import time
from collections.abc import Callable
from socket import AF_INET, AF_INET6, inet_pton
from typing import Any, NamedTuple, TypeVar

import click

from lbagent.api.capabilities.node_backends import BACKENDS
from lbagent.api.client import DEFAULT_TIMEOUT_S, AgentClient
from lbagent.cli import output
from lbagent.cli.options import FITTING, Duration, form_option, list_options, pins_option, socket_option
from lbagent.cli.output import FORMATS, Listing, Row, Style, columns_of
from lbagent.errors import AgentUnreachable, LastBackend, LbError, Refused, TimedOut

F = TypeVar("F", bound=Callable[..., Any])
STATES = ("active", "maintenance", "quarantined", "terminating")  # the last one is rejected with its own message
POLL_S = 0.5
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


def _complete_address(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """Offer the agent's backends."""
    return [word for word in _complete(ctx, param, incomplete) if word not in STATES]


@backend.command("get", short_help="Show everything about one backend.")
@click.argument("address", metavar="ADDRESS[:PORT[/PROTOCOL]]", shell_complete=_complete_address)
@socket_option
@form_option("text", "json", "yaml", "name")
def get(address: str, socket: str, form: str) -> None:
    """Show everything that is known of one backend.

    This is its state and its Pod, the frontends that have it, flows, traffic, the way of its packets, and the health checks of
    native pools. With bpf also its TCP handshakes, one of --handshake-sample, as the flows show them: how long from SYN to SYN-ACK,
    and how many it refused or did not answer.

    Exit code 3: it is not served here. 2: the address names several.
    """
    from lbagent.cli.backend_text import backend_lines

    found = AgentClient(socket).backend(address)
    row = {**found.pop("backend"), **found}
    if form in ("json", "yaml"):
        output.document(row, form)
    elif form == "name":
        click.echo(row["address"])
    else:
        click.echo("\n".join(backend_lines(row)))


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


def drain_options(command: F) -> F:
    """Add the options of `backend drain` and `node drain`; the command gets them as `options`: DrainOptions."""

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
    @click.option(
        "--then",
        type=click.Choice(("reset",)),
        help="After --timeout: reset the flows that are left (RST at their next packet; UDP moves), exit code 0.",
    )
    @form_option("text", "json")
    @functools.wraps(command)
    def wrapped(
        *args: Any, yes: bool, socket: str, timeout_s: float, then: str | None, form: str, **kwargs: Any
    ) -> Any:
        options = DrainOptions(yes=yes, socket=socket, timeout_s=timeout_s, resets=then == "reset", form=form)
        return command(*args, options=options, **kwargs)

    return wrapped  # type: ignore[return-value]


class DrainOptions(NamedTuple):
    """The options of a drain."""

    yes: bool
    socket: str
    timeout_s: float
    resets: bool
    form: str


@backend.command(short_help="Set backends to maintenance and wait for their last flow.")
@click.argument("words", nargs=-1, metavar="BACKEND...", shell_complete=_complete)
@named_options
@drain_options
def drain(words: tuple[str, ...], named: dict[str, Any], options: DrainOptions) -> None:
    """Set backends to maintenance and wait until their last flow has ended.

    BACKEND is as in set-state. The last backend of a Service is drained only after a confirmation, or with --yes.

    On a terminal a bar shows the flows that are left, and the time that they take if they end as fast as in the last minute;
    else each change is a line. With -o json a line is an object: address, flows, eta_s, state (draining, drained, reset).

    The agent drains, this command follows it: when the command ends early, the drain continues, also over a restart of the agent.
    `status` and `backend list` show it. A backend that is drained already keeps the later of both deadlines; `set-state active`
    and clear-state cancel the drain.

    Exit code 1: cancelled. 4: refused; nothing was changed. 6: some flows are left; the backends stay in maintenance.
    """
    drain_backends(split_backends(words, named) | named, options)


def drain_backends(backends: dict[str, Any], options: DrainOptions) -> None:
    """Drain backends (fields of NamedBackends) and show how far it is. Raises LbError."""
    from lbagent.cli.drain_progress import DrainReport

    timeout_s = options.timeout_s
    client = AgentClient(options.socket, timeout_s=min(max(timeout_s, ANSWER_S), DEFAULT_TIMEOUT_S))
    rows = _sparing_last(functools.partial(client.start_drain, timeout_s=timeout_s, **backends), yes=options.yes)
    names = [row["address"] for row in rows]
    deadline = time.monotonic() + timeout_s
    report = DrainReport(options.form)
    report.begin(names)
    going = names
    try:
        while True:
            drains = _drains(client, going, deadline)
            ended = [name for name in going if drains[name]["state"] == "drained"]
            going = [name for name in going if name not in ended]
            report.show([drains[name] for name in (*ended, *going)], time.monotonic())
            if not going:
                break
            is_over = all(drains[name]["state"] != "draining" for name in going)
            if is_over or time.monotonic() >= deadline:
                break
            time.sleep(min(POLL_S, max(0.0, deadline - time.monotonic())))
        if going and options.resets:
            client.end_flows(going)
    finally:
        report.end_bar()
    left = report.left(going)
    if going and not options.resets:
        raise TimedOut(f"after {timeout_s:g} s {left}; the backends stay in maintenance")
    report.finish(names, going)


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


class Percent(click.ParamType[float]):
    """`10%`."""

    name = "percent"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Return a part: 0.1."""
        if isinstance(value, float):
            return value
        text = str(value).removesuffix("%")
        if not (text.isascii() and text.isdecimal() and len(text) < 5):
            self.fail(f"{value!r} is not a share like 10%", param, ctx)
        return int(text) / 100


@backend.command(short_help="Reset flows of over-full backends, so that clients connect evenly.")
@click.argument("service", metavar="[NAMESPACE/]NAME")
@click.option(
    "--to-within",
    "within",
    type=Percent(),
    default=0.1,
    show_default="10%",
    help="How much more than its share is right.",
)
@click.option(
    "--rate",
    type=click.FloatRange(min=0.01),
    default=10.0,
    show_default=True,
    help="Flows that are reset in a second, at most.",
)
@click.option("--dry-run", is_flag=True, help="Reset nothing; print what would be reset.")
@socket_option
@pins_option
@form_option("text", "json")
def rebalance(service: str, within: float, rate: float, dry_run: bool, socket: str, bpffs: str, form: str) -> int:
    """Reset long-lived flows of backends that have more than their share, so that clients connect again, and evenly.

    For after a scale-up, or a restart of a backend. Needs root.

    A share is the mean of established TCP flows at the start, of each port and family by itself; weights count where the
    algorithm has them. Flows are chosen at random among those that were there at the start, at most --rate a second, until
    no backend has more than --to-within above its share. A client gets RST for its next packet. Flows of UDP, and those of
    the socket programs, are neither counted nor reset.

    On a terminal a bar shows how many flows are too many; else each change is a line. With -o json a line is an object:
    address, flows, share, reset, state (over, within); with --dry-run a list: address, flows, share, limit, to_reset.

    Exit code 1: backends have more than their share, and no flow from the start is left. 3: no such Service. 4: it has no
    TCP, or sessionAffinity.
    """
    from lbagent.cli.rebalance import RebalanceReport, Rebalancing, opened_flows, ports_of, read_flows, table_of

    wanted = service if "/" in service else f"default/{service}"
    namespace, _, name = wanted.partition("/")
    ports = ports_of(AgentClient(socket).services(namespace, name), wanted, within)
    with opened_flows(bpffs, dry_run=dry_run) as (maps, deleter):
        read_flows(maps, ports)
        rows = table_of(ports)
        if dry_run or not any(row["to_reset"] for row in rows):
            _show_shares(rows, form)
            return 0
        assert deleter is not None
        work, report = Rebalancing(maps, deleter, ports), RebalanceReport(form, sum(row["to_reset"] for row in rows))
        try:
            for rows in work.run(rate):
                report.show(rows, work.reset)
        finally:
            report.end_bar()
    left = sum(row["to_reset"] for row in table_of(ports))
    if form == "text":
        click.echo(
            f"{sum(work.reset.values())} flows reset; {f'{left} are still too many' if left else 'all backends are within'}"
        )
    return 1 if left else 0


def _show_shares(rows: list[Row], form: str) -> None:
    if form == "json":
        output.document(rows, form)
        return
    for row in rows:
        click.echo(f"{row['address']}: {row['flows']} flows, share {row['share']:g}, {row['to_reset']} to reset")
