"""`lbagent verify`: whether what is in the kernel's maps holds together; works without an agent."""

from __future__ import annotations

import click

from lbagent.cli.options import pins_option


@click.command()
@pins_option
def verify(bpffs: str) -> int:
    """Read the maps and name each inconsistency: slots, backends, path records, tables, the prefilter.

    Exit code 0: the maps are consistent, as they are also in the middle of a change. 1: at least one inconsistency is named.
    """
    from lbagent.maps.consistency import check
    from lbagent.maps.kernel_maps import KernelMaps

    with KernelMaps.open(bpffs, create=False) as kernel:
        found = check(kernel)
    for line in found:
        click.echo(line)
    return int(bool(found))
