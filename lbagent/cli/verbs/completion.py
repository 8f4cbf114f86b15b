"""`lbagent completion`: the script that a shell sources."""

from __future__ import annotations

import click


@click.command()
@click.argument("shell", type=click.Choice(("bash", "zsh", "fish")))
def completion(shell: str) -> None:
    """Print the completion script of a shell. Use: `source <(lbagent completion bash)`."""
    from click.shell_completion import get_completion_class

    from lbagent.cli.main import cli

    kind = get_completion_class(shell)
    assert kind is not None
    click.echo(kind(cli, {}, "lbagent", "_LBAGENT_COMPLETE").source())
