"""`lbagent node`: all backends of a node."""

from __future__ import annotations

import click

from lbagent.cli.verbs.backend import DrainOptions, drain_backends, drain_options


@click.group()
def node() -> None:
    """All backends of a node."""


@node.command(short_help="Set the backends of a node to maintenance and wait for their last flow.")
@click.argument("name", metavar="NODE")
@drain_options
def drain(name: str, options: DrainOptions) -> None:
    """Set all backends that are on a node now to maintenance, and wait until their last flow has ended.

    This is `lbagent backend drain --node NODE`, with its options, output and exit codes. `lbagent backend set-state active --node
    NODE` takes the node into service again.

    Exit code 1: cancelled. 3: no Service has a backend on this node. 4: refused; nothing was changed. 6: some flows are left; the
    backends stay in maintenance.
    """
    drain_backends({"addresses": [], "hosts": [], "node": name, "service": ""}, options)
