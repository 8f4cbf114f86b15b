"""`lbagent plan`: prints manifests as the lines of `map dump`, without kernel, root and agent."""

from __future__ import annotations

import json

import click

from lbagent.cli.options import agent_pins_option, form_option, pins_of_the_agent
from lbagent.cli.output import document


class _CommaSeparated(click.types.StringParamType):
    """A text; an environment variable holds several, separated by commas, as the agent's variables do."""

    envvar_list_splitter = ","


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
@click.option(
    "--max-frontends-per-service",
    "max_frontends",
    type=click.IntRange(1, 65535),
    default=4096,
    show_default=True,
    envvar="LBAGENT_MAX_FRONTENDS_PER_SERVICE",
    metavar="NUMBER",
    help="Most frontends (address, port and protocol) of one Service; the others are left out and named.",
)
@click.option(
    "--external-ips/--no-external-ips",
    default=True,
    show_default=True,
    envvar="LBAGENT_EXTERNAL_IPS",
    help="Whether externalIPs are served.",
)
@click.option(
    "--external-ip-cidr",
    type=_CommaSeparated(),
    multiple=True,
    envvar="LBAGENT_EXTERNAL_IP_CIDR",
    metavar="CIDR",
    help="Range of the externalIPs that are served; others are named (repeatable; default: all).",
)
@click.option(
    "--ids-from-maps",
    is_flag=True,
    help="Use the ids that frontends and backends have in the pinned maps, so that `diff` with `map dump` shows what differs.",
)
@agent_pins_option
@form_option("dump", "json", "yaml")
def plan(
    *,
    folder: str,
    node: str,
    node_ip: tuple[str, ...],
    maglev_table_size: int,
    max_frontends: int,
    external_ips: bool,
    external_ip_cidr: tuple[str, ...],
    ids_from_maps: bool,
    bpffs: str,
    form: str,
) -> int:
    """Print the map entries of these manifests, in the form of `map dump`.

    Exit code 0: all input was valid. 1: something was refused (stderr names it) and the rest is printed. 2: wrong usage, or
    no such folder.
    """
    from lbagent.targets.bpf.dry_run import KnownIds, dry_run

    known_ids = KnownIds.of_maps(bpffs or pins_of_the_agent()) if ids_from_maps else KnownIds()
    done = dry_run(
        folder, node_name=node, node_ips=node_ip, maglev_table_size=maglev_table_size, max_frontends=max_frontends,
        known_ids=known_ids, external_ips=external_ips, external_ip_cidrs=external_ip_cidr,
    )  # fmt: skip
    for message in done.messages:
        click.echo(str(message), err=True)
    if form == "dump":
        if done.lines:
            click.echo("\n".join(done.lines))
    else:
        from lbagent.api.capabilities.services import SERVICES
        from lbagent.api.json_list import json_list
        from lbagent.api.listed_services import listed_services

        document(json.loads(b"".join(json_list(map(SERVICES.row, listed_services(done.state))))), form)
    return done.exit_code
