"""Show every program of an artifact to this kernel's verifier, with fresh small maps that vanish afterwards."""

from __future__ import annotations

import contextlib
import os
import re
import sys
from typing import TYPE_CHECKING

from lbagent.bpf import bpfsys, clock, settings
from lbagent.bpf.loader import OWN_MAPS, PROG_TYPES, create_map, load_generation
from lbagent.maps import layout
from lbagent.maps.layout import Sizes

if TYPE_CHECKING:
    from collections.abc import Iterator

    from lbagent.bpf.artifact import Artifact, Program

SMALL = Sizes(
    flow4=1 << 12, flow6=1 << 12, snat4=1 << 12, snat6=1 << 12, services=1 << 10, backends=1 << 10,
    source_ranges=1 << 8, affinity=1 << 8, spill=1 << 8, fragments=1 << 8, maglev_size=251,
)  # fmt: skip

_PROCESSED = re.compile(r"processed (\d+) insns.*?peak_states (\d+)", re.DOTALL)
_STACK = re.compile(r"stack depth (\S+)")


@contextlib.contextmanager
def scratch_maps(sizes: Sizes = SMALL) -> Iterator[dict[str, int]]:
    """Create every shared map unpinned; yield descriptors by name, close them at the end."""
    fds: dict[str, int] = {}
    try:
        inner = fds["inner"] = create_map(layout.maglev_inner(sizes))
        for name, spec in layout.map_specs(sizes).items():
            if name not in OWN_MAPS:
                nested = spec.type == layout.MapType.HASH_OF_MAPS
                fds[name] = create_map(spec, inner if nested else 0)
        yield fds
    finally:
        for fd in fds.values():
            os.close(fd)


def check_programs(artifact: Artifact, sizes: Sizes = SMALL) -> int:
    """Load all programs and print a line for each: instructions, those the verifier walked, stack, milliseconds.

    Returns 0; raises VerifierError for the first program that is refused.
    """
    config = settings.pack(settings.Settings(), sizes, settings.Seeds.fresh(), clock.hz())
    with scratch_maps(sizes) as fds:
        made = load_generation(artifact, fds, config)
        try:
            print(
                f"{'PROGRAM':<28}{'UNIT':<10}{'INSNS':>7}{'VERIFIED':>10}{'STATES':>8}{'STACK':>10}{'JIT BYTES':>11}{'LOAD MS':>9}"
            )
            for name, program in artifact.programs.items():
                verified, states, stack = _statistics(program, {**fds, **made.maps})
                jited = bpfsys.prog_info(made.programs[name]).jited_bytes
                print(
                    f"{name:<28}{program.unit:<10}{program.count:>7}{verified:>10}{states:>8}{stack:>10}{jited:>11}"
                    f"{made.load_ms[name]:>9.1f}"
                )
        finally:
            made.close()
    sys.stdout.flush()
    return 0


def _statistics(program: Program, fds: dict[str, int]) -> tuple[str, str, str]:
    """Return instructions walked, peak states and stack depth, as the verifier reports them."""
    loaded = bpfsys.prog_load(
        PROG_TYPES[program.hook], program.relocated(fds), program.name, log_level=bpfsys.LOG_STATS, log_bytes=1 << 16
    )
    if loaded.fd >= 0:
        os.close(loaded.fd)
    processed, stack = _PROCESSED.search(loaded.log), _STACK.search(loaded.log)
    verified, states = processed.groups() if processed else ("?", "?")
    return verified, states, stack[1] if stack else "?"
