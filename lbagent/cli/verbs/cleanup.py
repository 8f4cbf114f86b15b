"""`lbagent cleanup`: remove everything that an agent left in the kernel."""

from __future__ import annotations

import os

import click

from lbagent.cli.options import bpffs_option
from lbagent.defaults import DEFAULT_STATE_DIR


@click.command()
@bpffs_option
@click.option(
    "--state-dir",
    default=DEFAULT_STATE_DIR,
    show_default=True,
    envvar="LBAGENT_STATE_DIR",
    metavar="DIR",
    help="Folder of the agent's state, which has the files of its BIRD. It stays.",
)
def cleanup(bpffs: str, state_dir: str) -> None:
    """Remove programs, links, maps and pins from the kernel, and end BIRD. Connections through them end.

    Run it in the agent's network namespace: only there it finds the neighbours that the kernel keeps resolved for the agent.
    The state folder (states that were set, copies of manifests) is named and stays.

    Exit code 4: an agent is running, and nothing was removed.
    """
    from lbagent.agent.removal import cleanup as remove_all
    from lbagent.config import Config

    gone = remove_all(Config(bpffs=bpffs, state_dir=state_dir))
    for line in gone:
        click.echo(line)
    if not gone:
        click.echo(f"nothing to clean up at {bpffs}", err=True)
    if os.path.isdir(state_dir):
        what = "the states that were set and the copies of manifests"
        click.echo(f"left {state_dir}, with {what}; `rm -r` removes it", err=not gone)
