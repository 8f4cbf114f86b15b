"""`lbagent shadow`: what an agent with --shadow found beside another proxy."""

from __future__ import annotations

import time
from typing import Any

import click

from lbagent.api.client import AgentClient
from lbagent.cli import output
from lbagent.cli.options import form_option, socket_option


@click.group()
def shadow() -> None:
    """What lbagent would do otherwise than the proxy of this node (agent --shadow)."""


@shadow.command(short_help="Show where lbagent would have decided otherwise.")
@socket_option
@click.option("--reset", is_flag=True, help="Begin the counts again after this report.")
@form_option("text", "json", "yaml")
def report(socket: str, reset: bool, form: str) -> int:
    """Show the new connections of this node to Services, and those that lbagent would have sent to another backend.

    unknown: the Service changed within 5 seconds, or the kernel lost the message.

    Exit code 0: nothing differs. 1: something does. 5: no agent answers.
    """
    client = AgentClient(socket)
    found: dict[str, Any] = client.reset_shadow() if reset else client.shadow()
    if form != "text":
        output.document(found, form)
        return int(found["differs"] > 0)
    show_report(found)
    return int(found["differs"] > 0)


def show_report(found: dict[str, Any]) -> None:
    """Print the counts, and examples of what differs."""
    since = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(found["since"]))
    counts = ", ".join(f"{found[word]} {word}" for word in ("same", "differs", "unknown"))
    click.echo(f"{found['flows']} connections since {since}: {counts}")
    for row in found["services"]:
        if row["differs"]:
            click.echo(
                output.printable(f"{row['service']} {row['frontend']}: {row['differs']} of {row['flows']} differ")
            )
            for each in row["examples"]:
                wanted = ", ".join(each["expected"]) or "none"
                got = each["got"] or "none"
                click.echo(output.printable(f"  {each['client']}: got {got}, expected {wanted}: {each['why']}"))
