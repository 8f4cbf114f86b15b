"""`lbagent bgp`: the sessions by which addresses are announced to routers."""

from __future__ import annotations

import click

from lbagent.api.client import AgentClient
from lbagent.cli.options import form_option, socket_option
from lbagent.cli.output import Column, Listing, Style, show

PEERS = Listing(
    (
        Column("ADDRESS", lambda row: row["address"]),
        Column("ASN", lambda row: row["asn"]),
        Column("STATE", lambda row: row["state"]),
        Column("BFD", lambda row: row["bfd"]),
        Column("ADVERTISED", lambda row: row["advertised"]),
        Column("REASON", lambda row: row.get("reason")),
    ),
    lambda row: str(row["address"]),
    lambda row: row["address"],
)


@click.group()
def bgp() -> None:
    """Announcement of addresses by BGP."""


@bgp.command()
@socket_option
@form_option("table", "json", "yaml", "name")
def peers(socket: str, form: str) -> None:
    """List the routers that this node has BGP sessions with, as they are now; REASON says why one is not established."""
    rows = AgentClient(socket).bgp_peers()
    if not rows and form == "table":
        click.echo("no BGP peer: the pools file has no section bgp, or none of its peers is for this node", err=True)
    else:
        show(PEERS, rows, Style(form))
