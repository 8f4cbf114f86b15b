"""`lbagent ui`: the status page of this node's agent, by its Unix socket."""

from __future__ import annotations

import click

from lbagent.cli.options import socket_option

LISTEN = "127.0.0.1:9191"


@click.command()
@click.option(
    "--listen",
    default=LISTEN,
    show_default=True,
    metavar="ADDRESS:PORT",
    help="Address for browsers; port 0: a free one.",
)
@click.option(
    "--ui-host",
    "hosts",
    multiple=True,
    metavar="NAME",
    help="A further name by which browsers reach it (repeatable); the address and localhost are allowed.",
)
@socket_option
def ui(listen: str, hosts: tuple[str, ...], socket: str) -> None:
    """Serve the agent's page for browsers until it is interrupted; print its URL.

    The page is read only and has no log-in: every client that reaches the address may read it. The agent needs no --ui. While the
    agent is away, the page shows one sentence and the last values, and continues when it is back.
    """
    import asyncio

    from lbagent.api.page_proxy import PageProxy

    asyncio.run(PageProxy(socket, hosts).run(listen, click.echo))
