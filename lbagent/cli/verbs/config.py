"""`lbagent config`: what the agent would run with."""

from __future__ import annotations

from typing import Any

import click

from lbagent.cli.options import form_option
from lbagent.cli.output import document
from lbagent.cli.setting_options import from_flags, setting_options


@click.group()
def config() -> None:
    """Check or show the configuration: flags beat environment, environment beats file, file beats default."""


@config.command(short_help="Check file, environment and flags.")
@setting_options()
def check(**flags: Any) -> None:
    """Check file, environment and flags, and the pools file that --announce names.

    Exit code 2: a value is wrong, and the message names its place.
    """
    from_flags(flags)
    if announce := flags.get("announce"):  # what other files are named need not be there yet
        from lbagent.pools.read_pools import read_pools

        read_pools(announce)
        click.echo(f"{announce}: ok")
    click.echo(f"{flags['file'] or 'configuration'}: ok")


@config.command(short_help="Print every key with its value.")
@form_option("yaml", "json")
@setting_options()
def show(form: str, **flags: Any) -> None:
    """Print every key with the value in force. The YAML output can be used as a --config file."""
    import msgspec

    document(msgspec.to_builtins(from_flags(flags)), form)
