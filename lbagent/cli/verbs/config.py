"""`lbagent config`: the configuration with which the agent would run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from lbagent.cli.options import form_option
from lbagent.cli.output import document
from lbagent.cli.setting_options import from_flags, setting_options
from lbagent.config.schema import Config
from lbagent.errors import ConfigError


@click.group()
def config() -> None:
    """Check or show the configuration: flags override the environment, the environment overrides the file."""


@config.command(short_help="Check file, environment, flags, pools and manifests.")
@setting_options()
def check(**flags: Any) -> int:
    """Check file, environment and flags, the pools file that --announce names, and the objects in the folder of --manifests.

    Exit code 2: a value is wrong; the messages name its place. 1: an object is wrong; the agent would serve the others.
    """
    settings, refused, faults = None, False, []
    try:
        settings = from_flags(flags)
    except ConfigError as error:
        faults.append(str(error))
    if announce := flags.get("announce"):  # other files that settings name may be created later
        from lbagent.pools.read_pools import read_pools

        try:
            read_pools(announce)
        except ConfigError as error:
            faults.append(str(error))
        else:
            click.echo(f"{announce}: ok")
    if settings is None or faults:
        raise ConfigError("\n".join(faults))
    from lbagent.targets.renderers import chosen

    chosen(settings)
    if settings.manifests and Path(settings.manifests).is_dir():
        refused = not _manifests_are_good(settings)
    click.echo(f"{flags['file'] or 'configuration'}: ok")
    return int(refused)


def _manifests_are_good(settings: Config) -> bool:
    from lbagent.targets.bpf.dry_run import dry_run

    done = dry_run(settings.manifests, node_name=settings.node_name, node_ips=tuple(settings.node_ip))
    for message in done.messages:
        click.echo(str(message), err=True)
    if not done.exit_code:
        click.echo(f"{settings.manifests}: ok")
    return not done.exit_code


@config.command(short_help="Print every key with its value.")
@form_option("yaml", "json")
@setting_options()
def show(form: str, **flags: Any) -> None:
    """Print every key with the value in force. The YAML output can be used as a --config file."""
    import msgspec

    document(msgspec.to_builtins(from_flags(flags)), form)
