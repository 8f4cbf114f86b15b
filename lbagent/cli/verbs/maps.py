"""`lbagent map`: what is in the kernel's maps, read from the pins; works without an agent."""

from __future__ import annotations

import click

from lbagent.cli.options import pins_option


@click.group()
def maps() -> None:
    """Show the kernel's maps."""


@maps.command()
@pins_option
def dump(bpffs: str) -> None:
    """Print one line for each entry, sorted: SVC, BE, REV, AFF, MAGLEV, SRCRANGE."""
    from lbagent.maps.dump import dump as lines
    from lbagent.maps.kernel_maps import KernelMaps

    with KernelMaps.open(bpffs, create=False) as kernel:
        text = "\n".join(lines(kernel))
    if text:
        click.echo(text)
