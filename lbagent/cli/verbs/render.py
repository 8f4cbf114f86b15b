"""`lbagent render`: manifests to the text of a data plane, with no kernel, no root and no agent."""

from __future__ import annotations

from typing import Any

import click

from lbagent.cli.setting_options import RULE_SETTINGS, from_flags, setting_options


@click.command()
@click.option(
    "-f",
    "--manifests",
    "folder",
    required=True,
    metavar="DIR|FILE|-",
    help="Folder or file of manifests; - reads stdin.",
)
@click.option("--renderer", default="nftables", show_default=True, metavar="NAME[=SETTINGS]", help="Data plane.")
@click.option(
    "--node",
    default="",
    envvar="LBAGENT_NODE_NAME",
    metavar="NAME",
    help="Name of the node (default: the host's name).",
)
@click.option(
    "--node-ip",
    multiple=True,
    metavar="IP",
    help="Address for NodePorts (repeatable; default: those of the Node object).",
)
@click.option("-o", "form", default="", metavar="FORM", help="nft (default): for `nft -f -`; json: of libnftables.")
@setting_options(*RULE_SETTINGS, "services", "egress_snat", "cluster_cidr")
def render(*, folder: str, renderer: str, node: str, node_ip: tuple[str, ...], form: str, **flags: Any) -> int:
    """Print the rules that a data plane makes of these manifests. The same manifests give the same bytes.

    `lbagent render -f DIR | nft -c -f -` checks the rules, and `nft -f -` puts them in force in one transaction, in place of the
    table that is there.

    Exit code 0: all input was good. 1: something was refused (stderr names it) and the rest is printed. 2: wrong usage, or
    no such folder.
    """
    from msgspec.structs import replace

    from lbagent.agent.layer_settings import resolve_options
    from lbagent.sources.folder.resolve_path import resolve_path
    from lbagent.targets.offline_planes import text_of

    given = {"node_name": node, "node_ip": node_ip, "renderer": (renderer,)}
    config = from_flags({**flags, **{key: value for key, value in given.items() if value}})
    found = resolve_path(folder, replace(resolve_options(config), keep_existing=False))
    rendered = text_of(config, found.state, form)
    for message in found.messages:
        click.echo(str(message), err=True)
    for warning in rendered.warnings:
        click.echo(f"warning: {warning}", err=True)
    click.echo(rendered.text, nl=False)
    return int(any(not message.warning for message in found.messages))
