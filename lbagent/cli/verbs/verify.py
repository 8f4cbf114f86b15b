"""`lbagent verify`: whether what is in the kernel's maps holds together; works without an agent."""

from __future__ import annotations

import click

from lbagent.cli.options import pins_option


@click.command()
@pins_option
def verify(bpffs: str) -> int:
    """Walk the maps and name what does not hold together: slots, backends, paths, tables, the prefilter.

    Exit code 0: all is well, also in the middle of a change. 1: something is named.
    """
    from lbagent.maps.consistency import check
    from lbagent.maps.kernel_maps import KernelMaps

    with KernelMaps.open(bpffs, create=False) as kernel:
        found = check(kernel)
    for line in found:
        click.echo(line)
    return int(bool(found))
