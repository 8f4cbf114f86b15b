"""`lbagent svc`: the frontends in the maps and the backends behind them."""

from __future__ import annotations

import re
from typing import Any

import click

from lbagent.api.capabilities.services import MEMBERS, SERVICES, frontend_name, service_name
from lbagent.api.client import AgentClient
from lbagent.cli import output
from lbagent.cli.options import form_option, list_options, socket_option
from lbagent.cli.output import GAP, Listing, Row, Style, columns_of
from lbagent.errors import ConfigError, LbError, NotFound

LISTING = Listing(columns_of(SERVICES), name=service_name, key=frontend_name)
MEMBER_COLUMNS = columns_of(MEMBERS)


@click.group()
def svc() -> None:
    """List services, or show one, as the maps have them."""


@svc.command("list")
@socket_option
@click.option("-n", "--namespace", default="", help="List only this namespace.")
@list_options
def list_(socket: str, namespace: str, style: Style) -> None:
    """List all frontends."""
    client = AgentClient(socket)

    def fetch() -> list[Row]:
        rows: list[Row] = client.services(namespace)
        return rows

    if style.watch:
        output.watch(client, fetch, LISTING, style)
    else:
        rows = fetch()
        output.show(LISTING, rows, style)
        output.say_nothing_found("service", rows, {"namespace": namespace}, style)
        if style.form in ("table", "wide"):
            _warn(client, sum(row.get("restored", False) for row in rows))


def _warn(client: AgentClient, restored: int) -> None:
    """Print on stderr why the list differs from the manifests or from the maps."""
    found = client.status()
    if number := len(found["failing"]):
        click.echo(f"{number} frontends are not in the maps as listed; `lbagent status` shows why", err=True)
    if restored:
        click.echo(
            f"{restored} frontends are served as an earlier agent left them, and no object defines them now: "
            "`lbagent status` shows which source is missing",
            err=True,
        )
    elif not found["ready"]:
        click.echo("the agent is not ready: `lbagent status` shows why; the entries in the maps are served", err=True)


def _complete(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """Complete with the agent's services; without an answer, with nothing."""
    del param
    try:
        rows = AgentClient(ctx.params.get("socket") or "", timeout_s=2.0).services()
    except LbError:
        return []
    return [name for name in dict.fromkeys(map(service_name, rows)) if name.startswith(incomplete)]


@svc.command(short_help="Show one service, or the services of a VIP.")
@click.argument("name", metavar="NAMESPACE/NAME[:PORT]|VIP[:PORT[/PROTOCOL]]", shell_complete=_complete)
@socket_option
@form_option("table", "wide", "json", "yaml", "name")
def get(name: str, socket: str, form: str) -> None:
    """Show one service: its frontends, each with its backends in the order of their slots.

    NAMESPACE/NAME:PORT shows the frontends of one port, by its number or name. FRONTEND/i is the row for clients inside the
    cluster, where they have other backends than clients outside.

    With an address (10.96.0.10, 10.96.0.10:80, [fd00::a]:53/UDP), show the frontends that have it.
    """
    rows = _frontends_of(AgentClient(socket), name)
    if form in ("json", "yaml", "name"):
        output.show(LISTING, rows, Style(form))
        return
    for number, row in enumerate(rows):
        click.echo(("\n" if number else "") + "\n".join(_details(row)))


def _frontends_of(client: AgentClient, name: str) -> list[Row]:
    """Return the frontends of a Service, of one of its ports, or those with a VIP. Raises ConfigError, NotFound."""
    if of_port := _SERVICE_PORT.fullmatch(name):
        return _of_port(_frontends_of(client, of_port["service"]), of_port["port"], of_port["protocol"] or "")
    if ":" in name or re.fullmatch(r"\d+(\.\d+){3}", name):  # no Service has such a name
        rows: list[Row] = client.services(vip=name)
        if not rows:
            raise NotFound(f"no frontend {name} is served here; see `lbagent svc list`")
        return rows
    namespace, slash, short = name.rpartition("/")
    if not short or "/" in namespace or (slash and not namespace):
        raise ConfigError(f"{name!r} is not a service name like NAMESPACE/NAME")
    rows = client.services(namespace or "default", short)
    if not rows:
        raise NotFound(f"no service {namespace or 'default'}/{short} is served here; see `lbagent svc list`")
    return rows


# NAMESPACE/NAME:PORT[/PROTOCOL]: a name begins with a letter (unlike IPv4) and has no colon (unlike IPv6)
_SERVICE_PORT = re.compile(r"(?P<service>[^/:\[\]]+/[^/:]+):(?P<port>[^/:]+)(?:/(?P<protocol>\w+))?")


def _of_port(rows: list[Row], port: str, protocol: str) -> list[Row]:
    """Return the frontends of one port, by number or name. Raises NotFound."""
    found = []
    for row in rows:
        address, _, l4 = str(row["frontend"]).rpartition("/")
        if port in (address.rpartition(":")[2], row["port_name"]) and protocol.upper() in ("", l4):
            found.append(row)
    if not found:
        known = ", ".join(dict.fromkeys(str(row["frontend"]).rpartition(":")[2] for row in rows))
        wanted = f"{port}/{protocol.upper()}" if protocol else port
        raise NotFound(f"service {service_name(rows[0])} has no port {wanted} here; its ports are {known}")
    return found


def _details(row: dict[str, Any]) -> list[str]:
    facts = [f"id {row['id']}", row["type"], row["algorithm"]]
    if row["affinity_timeout_s"]:
        facts.append(f"affinity {row['affinity_timeout_s']} s")
    if port := row.get("l7_proxy_port"):
        facts.append(f"L7 proxy at port {port}")
    facts.append(f"external {row['ext_traffic_policy']}, internal {row['int_traffic_policy']}")
    head = f"{frontend_name(row)}{GAP}{service_name(row)}" + (f":{row['port_name']}" if row["port_name"] else "")
    lines = [head, "  " + GAP.join(facts), "  flags: " + ", ".join(row["flags"])]
    if policy := row.get("source_ranges_policy"):
        ranges = ", ".join(row.get("source_ranges", ())) or "none of this IP family"
        lines.append(f"  source ranges: {policy} {ranges}")
    if not row["backends"]:
        return [*lines, "  no backends"]
    return lines + ["  " + line for line in output.table(MEMBER_COLUMNS, row["backends"], wide=True, headers=True)]
