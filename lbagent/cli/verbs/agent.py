"""`lbagent agent`: the daemon, in the foreground."""

from __future__ import annotations

from typing import Any

import click

from lbagent.cli.setting_options import GroupedCommand, from_flags, setting_options
from lbagent.errors import LbError


@click.command(cls=GroupedCommand)
@setting_options()
def agent(**flags: Any) -> None:
    """Run the agent in the foreground; logs go to stderr.

    Every flag is also a key of the --config file and an environment variable (--node-ip: node-ip, LBAGENT_NODE_IP). SIGTERM ends
    the agent and the datapath keeps serving; SIGHUP rereads the configuration; `lbagent cleanup` removes the datapath.
    """
    settings = from_flags(flags)  # rejected before anything is loaded
    from lbagent.agent.app import run_agent

    try:
        run_agent(lambda: from_flags(flags))
    except Exception as error:
        if settings.log_format != "json":
            raise
        _log_end(error)
        raise click.exceptions.Exit(error.exit_code if isinstance(error, LbError) else 1) from None


def _log_end(error: Exception) -> None:
    """Log why the agent ends: a collector of JSON lines reads nothing else."""
    import logging

    expected = isinstance(error, LbError)
    fields = {"error": str(error)} if expected else {}
    logging.getLogger(__name__).error("the agent ends", extra=fields, exc_info=None if expected else error)
