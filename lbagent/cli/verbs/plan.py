"""`lbagent plan`: manifests to the lines of `map dump`, with no kernel, no root and no agent."""

from __future__ import annotations

import json

import click

from lbagent.cli.options import form_option
from lbagent.cli.output import document


@click.command()
@click.option(
    "-f",
    "--manifests",
    "folder",
    required=True,
    metavar="DIR|FILE|-",
    help="Folder or file of manifests; - reads stdin.",
)
@click.option(
    "--node",
    default="",
    envvar="LBAGENT_NODE_NAME",
    metavar="NAME",
    help="Plan for this node (default: the host's name).",
)
@click.option(
    "--node-ip",
    multiple=True,
    metavar="IP",
    help="Address for NodePorts (repeatable; default: those of the Node object).",
)
@click.option(
    "--maglev-table-size",
    type=int,
    default=16381,
    show_default=True,
    metavar="PRIME",
    help="Entries of a Maglev table.",
)
@form_option("dump", "json", "yaml")
def plan(folder: str, node: str, node_ip: tuple[str, ...], maglev_table_size: int, form: str) -> int:
    """Print the map entries that these manifests stand for, in the form of `map dump`.

    Exit code 0: all input was good. 1: something was refused (stderr names it) and the rest is printed. 2: wrong usage, or
    no such folder.
    """
    from lbagent.sync.dry_run import dry_run

    done = dry_run(folder, node_name=node, node_ips=node_ip, maglev_table_size=maglev_table_size)
    for message in done.messages:
        click.echo(str(message), err=True)
    if form == "dump":
        if done.lines:
            click.echo("\n".join(done.lines))
    else:
        from lbagent.api.convert import json_list, service_views

        document(json.loads(b"".join(json_list(service_views(done.state)))), form)
    return done.exit_code
