"""`lbagent vip`: the addresses that nodes announce. `lbagent bgp`: the BGP sessions that announce them."""

from __future__ import annotations

import click

from lbagent.api.capabilities.bgp import PEERS
from lbagent.api.capabilities.vips import VIPS
from lbagent.api.client import AgentClient
from lbagent.cli import output
from lbagent.cli.options import form_option, socket_option
from lbagent.cli.output import Listing, Style, columns_of

VIP_LISTING = Listing(
    columns_of(VIPS), name=lambda row: str(row["address"]), key=lambda row: (row["address"], row["mode"])
)
PEER_LISTING = Listing(columns_of(PEERS), name=lambda row: str(row["address"]), key=lambda row: row["address"])


@click.group()
def vip() -> None:
    """Addresses of Services that this node, or another one, announces (--announce FILE)."""


@vip.command("list", short_help="List each address and the node that announces it.")
@socket_option
@form_option("table", "wide", "json", "yaml", "name")
def list_(socket: str, form: str) -> None:
    """List the addresses to announce.

    announced: by this node. standby: by another node, or soon. conflict: a host outside the cluster uses the address. withdrawn:
    no node announces it, as far as this node can see.
    """
    output.show(VIP_LISTING, AgentClient(socket).vips(), Style(form))


@vip.command(short_help="Show why an address is announced, or not.")
@click.argument("name", metavar="ADDRESS|NAMESPACE/NAME")
@socket_option
def why(name: str, socket: str) -> int:
    """Show which node announces an address, or why none does, and what to do.

    Exit code 0: it is announced somewhere. 1: it is not. 3: no such address or Service.
    """
    answer = AgentClient(socket).why_vip(name)
    for line in answer["lines"]:
        click.echo(output.printable(line))
    return 0 if answer["announced"] else 1


@click.group()
def bgp() -> None:
    """Announcement of addresses by BGP."""


@bgp.command()
@socket_option
@form_option("table", "json", "yaml", "name")
def peers(socket: str, form: str) -> None:
    """List the routers with which this node has BGP sessions, in their present state; REASON: why one is not established."""
    rows = AgentClient(socket).bgp_peers()
    if not rows and form == "table":
        click.echo("no BGP peer: the pools file has no section bgp, or none of its peers is for this node", err=True)
    else:
        output.show(PEER_LISTING, rows, Style(form))
