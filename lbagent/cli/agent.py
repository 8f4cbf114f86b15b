"""`lbagent agent`: the daemon, in the foreground."""

from __future__ import annotations

from typing import Any

import click

from lbagent.cli.settings import from_flags, setting_options


@click.command()
@setting_options()
def agent(**flags: Any) -> None:
    """Run the agent in the foreground; logs go to stderr.

    Every flag is also a key of the --config file and an environment variable (--node-ip: node-ip, LBAGENT_NODE_IP). SIGTERM ends
    the agent and leaves the datapath serving; SIGHUP rereads the configuration; `lbagent cleanup` takes the datapath away.
    """
    from_flags(flags)  # refused before anything is loaded
    from lbagent.agent.app import run_agent

    run_agent(lambda: from_flags(flags))
