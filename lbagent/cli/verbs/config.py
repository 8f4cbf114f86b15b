"""`lbagent config`: what the agent would run with."""

from __future__ import annotations

from typing import Any

import click

from lbagent.cli.options import form_option
from lbagent.cli.output import document
from lbagent.cli.setting_options import from_flags, setting_options


@click.group()
def config() -> None:
    """The configuration: flags over environment over file over defaults."""


@config.command()
@setting_options()
def check(**flags: Any) -> None:
    """Check file, environment and flags; exit code 2 and the place when something is wrong."""
    from_flags(flags)
    click.echo(f"{flags['file'] or 'configuration'}: ok")


@config.command()
@form_option("yaml", "json")
@setting_options()
def show(form: str, **flags: Any) -> None:
    """Print every key with the value that holds; the output can be used as a --config file."""
    import msgspec

    document(msgspec.to_builtins(from_flags(flags)), form)
