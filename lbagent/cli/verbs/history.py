"""`lbagent history`: what caused each generation."""

from __future__ import annotations

import click

from lbagent.api.capabilities.generations import GENERATIONS
from lbagent.api.client import AgentClient
from lbagent.cli import output
from lbagent.cli.options import form_option, socket_option
from lbagent.cli.output import Listing, Style, columns_of

SHOWN = 20  # generations without -n
LISTING = Listing(columns_of(GENERATIONS), name=lambda row: str(row["generation"]), key=lambda row: row["generation"])


@click.command()
@click.option(
    "-n",
    "count",
    type=click.IntRange(0),
    default=SHOWN,
    show_default=True,
    metavar="N",
    help="Show the last N generations; 0 for all that are kept.",
)
@socket_option
@form_option("table", "json", "yaml")
def history(count: int, socket: str, form: str) -> None:
    """Show what caused each generation of the State in force, the newest first.

    CAUSE: the file and the object, the object of Kubernetes, the operator's command, or the settings. ADDED, CHANGED, REMOVED:
    frontends. WRITES: entries of the maps, or transactions of nftables. MS: the pass that put it in force.

    The agent keeps 1,000 generations over its restarts, in history.jsonl of --state-dir. Each agent begins with generation 1: its
    first one, with the cause `start of the agent`, adds every frontend; its writes are what an earlier agent left to write.
    """
    rows = AgentClient(socket).history(count)
    output.show(LISTING, rows, Style(form))
