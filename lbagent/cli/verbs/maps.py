"""`lbagent map`: entries of the kernel's maps, read from the pins; works without an agent."""

from __future__ import annotations

import click

from lbagent.cli.options import form_option, pins_option
from lbagent.cli.output import document


@click.group()
def maps() -> None:
    """Show the kernel's maps."""


@maps.command()
@pins_option
@form_option("text", "json", "yaml")
def dump(bpffs: str, form: str) -> None:
    """Print one line for each entry, sorted: SVC, BE, REV, AFF, MAGLEV, SRCRANGE.

    SVC: slot 0 is the frontend itself (COUNT backends take new flows, QCOUNT others follow), each further slot one of its
    backends. An address that ends with /i is the row for clients inside the cluster, when a traffic policy gives them other
    backends than clients outside; this row has its own ID. BE: a backend. REV: the source address of replies. AFF: the backend
    of a client with affinity. MAGLEV: how many entries of the table each backend has. SRCRANGE: a source range.
    """
    from lbagent.maps.dump import entries
    from lbagent.maps.kernel_maps import KernelMaps

    with KernelMaps.open(bpffs, create=False) as kernel:
        found = list(entries(kernel))
    if form != "text":
        document([entry.document for entry in found], form)
    elif found:
        click.echo("\n".join(entry.text for entry in found))
