"""`lbagent renderers`: the data planes that `lbagent agent --renderer` accepts."""

from __future__ import annotations

import click

from lbagent.cli import output
from lbagent.cli.options import form_option
from lbagent.cli.output import Column, Listing, Style

RENDERERS = Listing(
    (
        Column("NAME", lambda row: row["name"]),
        Column("FROM", lambda row: row["from"], wide=True),
        Column("AVAILABLE", lambda row: "yes" if row["available"] else "no"),
        Column("CAPABILITIES", lambda row: ", ".join(row["capabilities"]), wide=True),
        Column("REASON", lambda row: row["reason"]),
    ),
    lambda row: str(row["name"]),
    lambda row: row["name"],
)


@click.command()
@form_option("table", "wide", "json", "yaml", "name")
def renderers(form: str) -> None:
    """List the data planes of `lbagent agent --renderer`: whether this user can use each one here, and why not.

    For bpf the command loads a program of two instructions, which is unloaded at once. It needs no agent and no root.
    """
    import msgspec

    from lbagent.render.renderer_names import renderer_rows

    output.show(RENDERERS, [msgspec.to_builtins(row) for row in renderer_rows()], Style(form))
