"""`lbagent migrate`: replace kube-proxy on this node, and back. Open connections stay."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import click

from lbagent.api.client import AgentClient
from lbagent.cli import output
from lbagent.cli.options import socket_option
from lbagent.errors import AgentUnreachable, LbError, NotFound, Refused, TimedOut

KUBE_PROXY = "kube-proxy"
SWITCH_TIMEOUT_S = 180.0  # the kernel's verifier takes a minute on a busy machine
CATCH_UP_S = 10.0  # for kube-proxy, whose rules are in force again, to write what changed
SETTLE_S = 1.0  # packets that are on their way through the other proxy's rules
POLL_S = 0.1
DEFAULT_RENDERER = "bpf"
SELECTOR = '{"spec":{"template":{"spec":{"nodeSelector":{"lbagent.io/proxy":"kube-proxy"}}}}}'
PREPARE = (  # once in a cluster
    "kubectl label nodes --all lbagent.io/proxy=kube-proxy",
    f"kubectl -n kube-system patch daemonset kube-proxy --patch '{SELECTOR}'",
)
STOP = "kubectl label node {node} lbagent.io/proxy-"
START = "kubectl label --overwrite node {node} lbagent.io/proxy=kube-proxy"
BACK = "lbagent migrate --from kube-proxy --back"


@click.command()
@socket_option
@click.option(
    "--from", "proxy", type=click.Choice([KUBE_PROXY]), required=True, help="The proxy that serves this node."
)
@click.option("--yes", is_flag=True, help="Switch. Without it nothing is changed.")
@click.option("--back", is_flag=True, help="Put kube-proxy's rules in force, then take lbagent's data plane out.")
@click.option(
    "--renderer",
    "renderers",
    multiple=True,
    metavar="NAME[=SETTINGS]",
    help="Data plane that will serve, as in `agent --renderer` (repeatable).  [default: bpf]",
)
@click.option("--despite-differences", is_flag=True, help="With --yes or --back: also where something differs.")
def migrate(
    *, socket: str, proxy: str, yes: bool, back: bool, renderers: tuple[str, ...], despite_differences: bool
) -> int:
    """Replace kube-proxy (mode nftables) on this node.

    Run it beside `lbagent agent --shadow`, with root's rights in its network namespace. It shows where the agent would have decided
    otherwise, in what kube-proxy's rules differ from the objects, and what it will do. With --yes the agent serves while
    kube-proxy's rules stand; then these become dormant. Connections stay: kube-proxy's are translated by the kernel.

    Exit code 0: it is done, or could be done. 1: something differs, or the agent could not serve; what serves is printed. 3: no
    table of kube-proxy. 5: no agent answers.
    """
    del proxy
    if yes and back:
        raise click.UsageError("give --yes or --back")
    client = AgentClient(socket)
    if back:
        return _back(client, despite=despite_differences)
    status = client.migration()
    words = list(renderers) or list(status["renderers"]) or [DEFAULT_RENDERER]
    dormant = _dormant()
    if status["serves"] and all(dormant.values()):
        click.echo("lbagent serves, and kube-proxy's rules are dormant: there is nothing to do")
        _show_after(client)
        return 0
    differs = _show_differences(client, status)
    _show_plan(status, words)
    if not yes:
        return int(differs)
    if differs and not despite_differences:
        click.echo("Nothing was changed: something differs (--despite-differences switches all the same).", err=True)
        return 1
    return _switch(client, status, words)


# --- what is shown ---


def _show_differences(client: AgentClient, status: dict[str, Any]) -> bool:
    """Print the report of --shadow, and the comparison of kube-proxy's rules; return whether anything differs."""
    differs = False
    if status["shadow"] and not status["serves"]:
        from lbagent.cli.verbs.shadow import show_report

        found = client.shadow()
        click.echo("New connections since the agent began to compare:")
        show_report(found)
        differs = found["differs"] > 0
    rows = client.differences(KUBE_PROXY)
    click.echo(f"kube-proxy's rules and the agent's objects: {len(rows) or 'no'} difference{'s' * (len(rows) != 1)}")
    for row in rows:
        click.echo(output.printable(f"  {row['renderer']}: {row['difference']}"))
    return differs or bool(rows)


def _show_plan(status: dict[str, Any], words: list[str]) -> None:
    steps = []
    if not status["serves"]:
        steps.append(f"the agent serves with --renderer {' '.join(words)}, before kube-proxy's rules, which stand")
        if words[0].partition("=")[0] in ("bpf", "auto"):
            steps.append("open connections stay with kube-proxy (new-flows syn, snat-ports 256-1023);")
            steps[-1] += " a request on its way may get no answer"
    steps.append("what is in force is compared with the objects; a difference ends the migration here")
    steps.append("table inet lbagent-migration keeps the kernel's translation of kube-proxy's connections")
    steps.append("table ip kube-proxy and ip6 kube-proxy become dormant: they keep their rules")
    click.echo("Plan:")
    for number, step in enumerate(steps, 1):
        click.echo(f"  {number}. {step}")


def _show_after(client: AgentClient) -> None:
    node = client.status()["node"]
    click.echo("Stop kube-proxy on this node. It keeps its dormant rules up to date, but cannot start with them:")
    click.echo("  once in a cluster, before the first node:")
    for line in PREPARE:
        click.echo(f"    {line}")
    click.echo("  for this node:")
    click.echo(f"    {STOP.format(node=node)}")
    click.echo("Then start the agent without --shadow, when kube-proxy's connections have ended.")
    click.echo(f"Back: {BACK}")


# --- the switch ---


def _dormant() -> dict[Any, bool]:
    """Return which tables of kube-proxy are dormant. Raises NotFound without any, LbError without the rights."""
    from lbagent.targets.kube_proxy.proxy_table import NoProxyTable

    found: dict[Any, bool] = _in_kernel(_families)
    if not found:
        raise NoProxyTable
    return found


def _families() -> dict[Any, bool]:
    from lbagent.targets.kube_proxy.proxy_table import dormant_families

    return dict(dormant_families())


def _in_kernel(action: Callable[[], Any]) -> Any:
    try:
        return action()
    except OSError as error:
        raise LbError(
            f"nftables: {error.strerror or error}; run this as root in the agent's network namespace"
        ) from error


def _switch(client: AgentClient, status: dict[str, Any], words: list[str]) -> int:
    from lbagent.targets.kube_proxy.proxy_table import set_dormant, table_name
    from lbagent.targets.nftables.nat_keeper import keep_translating

    if not status["serves"]:
        client.request_migration({"serves": True, "renderers": words})
        _wait(client, serves=True)
        click.echo(f"The agent serves with --renderer {' '.join(words)}.")
    if rows := client.differences():
        for row in rows:
            click.echo(output.printable(f"  {row['renderer']}: {row['difference']}"), err=True)
        click.echo(f"lbagent's data plane differs from the objects: kube-proxy's rules stand. Back: {BACK}", err=True)
        return 1
    time.sleep(SETTLE_S)
    _in_kernel(keep_translating)
    changed = _in_kernel(lambda: set_dormant(dormant=True))
    try:
        _require_serving(client)
    except LbError as error:
        _in_kernel(lambda: set_dormant(dormant=False))
        raise Refused(f"{error}; kube-proxy's rules are in force again") from None
    for family in changed:
        click.echo(f"Table {table_name(family)} is dormant.")
    _show_after(client)
    return 0


def _require_serving(client: AgentClient) -> None:
    """Raise LbError where the agent does not serve."""
    if not (client.migration()["serves"] and client.status()["ready"]):
        raise Refused("the agent does not serve")


def _wait(client: AgentClient, *, serves: bool) -> None:
    """Wait until the agent serves, or only compares. Raises LbError with the agent's reason, TimedOut."""
    until = time.monotonic() + SWITCH_TIMEOUT_S
    while time.monotonic() < until:
        time.sleep(POLL_S)
        try:
            status = client.migration()
            is_ready = client.status()["ready"]
        except AgentUnreachable:
            continue  # its parts start again
        if status["error"]:
            raise Refused(f"{status['error']}; kube-proxy's rules stand")
        if status["serves"] == serves and is_ready:
            return
    raise TimedOut(f"the agent is not ready after {SWITCH_TIMEOUT_S:g} s; kube-proxy's rules stand. Back: {BACK}")


# --- and back ---


def _back(client: AgentClient, *, despite: bool) -> int:
    from lbagent.targets.kube_proxy.proxy_table import set_dormant, table_name
    from lbagent.targets.nftables.nat_keeper import stop_translating

    try:
        _dormant()
    except NotFound as error:
        raise NotFound(f"{error}. Start it first: {START.format(node='NODE')}") from None
    for family in _in_kernel(lambda: set_dormant(dormant=False)):
        click.echo(f"Table {table_name(family)} is in force, behind lbagent's data plane.")
    status = client.migration()
    rows = _until_equal(client)
    for row in rows:
        click.echo(output.printable(f"  {row['renderer']}: {row['difference']}"))
    node = client.status()["node"]
    if rows and not despite:
        click.echo(
            f"kube-proxy's rules are not up to date: lbagent continues to serve. Start kube-proxy, then repeat this"
            f" (or --despite-differences): {START.format(node=node)}",
            err=True,
        )
        return 1
    if not status["shadow"]:
        click.echo("The agent was started without --shadow. Stop it, then run `lbagent cleanup`.")
        return 0
    if status["serves"]:
        client.request_migration({"serves": False})
        _wait(client, serves=False)
    _in_kernel(stop_translating)
    if client.migration()["is_left"]:
        click.echo(
            "kube-proxy's rules have the new connections; bpf keeps those that it has until they end (`lbagent status`)."
        )
    else:
        click.echo("kube-proxy's rules serve this node; lbagent's data plane is removed, and the agent only compares.")
    click.echo(f"kube-proxy must run: {START.format(node=node)}")
    return 0


def _until_equal(client: AgentClient) -> list[dict[str, Any]]:
    """Return in what kube-proxy's rules differ, as soon as nothing does, else after CATCH_UP_S."""
    until = time.monotonic() + CATCH_UP_S
    while True:
        rows: list[dict[str, Any]] = client.differences(KUBE_PROXY)
        if not rows or time.monotonic() > until:
            return rows
