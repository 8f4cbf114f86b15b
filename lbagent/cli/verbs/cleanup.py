"""`lbagent cleanup`: take everything an agent left in the kernel away."""

from __future__ import annotations

import click

from lbagent.cli.options import bpffs_option


@click.command()
@bpffs_option
def cleanup(bpffs: str) -> None:
    """Remove programs, links, maps and pins from the kernel. Connections through them end.

    Exit code 4: an agent is running, and nothing was removed.
    """
    from lbagent.agent.removal import cleanup as remove_all

    gone = remove_all(bpffs)
    for line in gone:
        click.echo(line)
    if not gone:
        click.echo(f"nothing to clean up at {bpffs}", err=True)
