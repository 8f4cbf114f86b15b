"""Loads the programs for a test: unpinned maps, one generation, a private namespace; all removed at the end."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING

from lbagent.bpf.compiler import builder
from lbagent.bpf.load import program_settings
from lbagent.bpf.load.loader import load_generation
from lbagent.bpf.load.program_settings import ProgramSettings, Seeds
from lbagent.kernel import jiffies
from lbagent.maps import pins
from lbagent.maps.event_layout import EVENT_MAP
from lbagent.maps.event_map import event_map
from lbagent.maps.kernel_maps import KernelMaps
from lbagent.maps.lbmaps import GENERATION_MAPS
from lbagent.maps.specs import MapType, Sizes
from tests.packet.net import Net
from tests.packet.world import World

if TYPE_CHECKING:
    from lbagent.bpf.compiler.artifact import Artifact

Splice = Callable[["Artifact", Mapping[str, int]], "Artifact"]
SMALL = Sizes(
    flow4=1 << 12, flow6=1 << 12, snat4=1 << 15, snat6=1 << 15, services=1 << 10, backends=1 << 10,
    source_ranges=1 << 8, affinity=1 << 8, spill=1 << 10, fragments=1 << 8, maglev_size=251,
)  # fmt: skip
DEFAULTS = ProgramSettings(events=65536)
SEEDS = Seeds(0x243F6A8885A308D3, 0x13198A2E03707344)  # fixed: the same flows meet the same buckets in each run


@contextmanager
def one_cpu() -> Iterator[None]:
    """Stay on one CPU: each counts answers separately, so a flood that moves to another CPU gets new answers."""
    cpus = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(cpus)})
    try:
        yield
    finally:
        os.sched_setaffinity(0, cpus)


@contextmanager
def open_world(
    options: ProgramSettings = DEFAULTS,
    sizes: Sizes = SMALL,
    seeds: Seeds = SEEDS,
    artifact: Artifact | None = None,
    net: Net | None = None,
    splice: Splice | None = None,
) -> Iterator[World]:
    """Load every program with these settings and sizes and yield an empty world; `net`: in a namespace that is there.

    `splice` may change the built programs before they are loaded (splice.py); it is given the maps' descriptors too.
    """
    programs = artifact or builder.ensure_artifact()
    if options.sample:
        programs = builder.sampling_artifact(programs)
    fds: dict[str, int] = {}
    own = net is None
    net = net or Net()
    try:
        for name, spec in pins.all_specs(sizes).items():
            if name not in GENERATION_MAPS:
                nested = spec.type is MapType.HASH_OF_MAPS
                fds[name] = pins.create_map(spec, fds["lb_maglev_inner"] if nested else 0)
        if options.events:
            fds[EVENT_MAP] = pins.create_map(event_map(options.events))
        config = program_settings.pack_config(options, sizes, seeds, jiffies.hz())
        generation = load_generation(splice(programs, fds) if splice else programs, fds, config)
        try:
            with closing(World(KernelMaps("", sizes, fds), generation.programs, net, sizes)) as world:
                yield world
        finally:
            generation.close()
    finally:
        pins.close_all(fds)
        if own:
            net.close()
