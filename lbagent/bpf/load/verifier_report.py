"""Loads every program of an artifact once, with small temporary maps, and reports the verifier's figures."""

from __future__ import annotations

import contextlib
import os
import re
import time
from typing import TYPE_CHECKING

from lbagent.bpf.hooks import CONTEXTS, load_attach_type
from lbagent.bpf.load import program_settings
from lbagent.bpf.load.loader import (
    generation_maps,
    load_program,
    require_kernel,
    with_old_maps,
)
from lbagent.errors import VerifierError
from lbagent.kernel import bpf_prog, jiffies
from lbagent.maps.event_layout import EVENT_MAP
from lbagent.maps.event_map import event_map
from lbagent.maps.lbmaps import GENERATION_MAPS
from lbagent.maps.pins import create_map
from lbagent.maps.specs import TRACE_MAP, MapType, Sizes, maglev_inner, map_specs, trace_map

if TYPE_CHECKING:
    from collections.abc import Iterator

    from lbagent.bpf.compiler.artifact import Artifact, Program

SMALL_SIZES = Sizes(
    flow4=1 << 12, flow6=1 << 12, snat4=1 << 12, snat6=1 << 12, services=1 << 10, backends=1 << 10,
    source_ranges=1 << 8, affinity=1 << 8, spill=1 << 8, fragments=1 << 8, maglev_size=251,
)  # fmt: skip

EVENTS = 1024

_PROCESSED = re.compile(r"processed (\d+) insns.*?peak_states (\d+)", re.DOTALL)
_STACK = re.compile(r"stack depth (\S+)")


@contextlib.contextmanager
def temporary_maps(sizes: Sizes = SMALL_SIZES) -> Iterator[dict[str, int]]:
    """Create every shared map unpinned; yield descriptors by name, close them at the end."""
    fds: dict[str, int] = {}
    try:
        inner = fds["inner"] = create_map(maglev_inner(sizes))
        for name, spec in map_specs(sizes).items():
            if name not in GENERATION_MAPS:
                nested = spec.type == MapType.HASH_OF_MAPS
                fds[name] = create_map(spec, inner if nested else 0)
        fds[TRACE_MAP] = create_map(trace_map())
        fds[EVENT_MAP] = create_map(event_map(EVENTS))
        yield fds
    finally:
        for fd in fds.values():
            os.close(fd)


def check_programs(artifact: Artifact, sizes: Sizes = SMALL_SIZES) -> int:
    """Load all programs and print a line for each: instructions, those the verifier walked, stack, milliseconds.

    Continues after a rejected one; returns 1 if there was any. Raises Unsupported on a kernel before 5.15.
    """
    require_kernel()
    config = program_settings.pack_config(
        program_settings.ProgramSettings(netns_cookie=1, events=EVENTS, sample=2, frames_after=True),
        sizes,
        program_settings.Seeds.fresh(),
        jiffies.hz(),
    )
    refused = 0
    with temporary_maps(sizes) as shared, generation_maps(config) as own:
        fds = with_old_maps({**shared, **own})
        print(
            f"{'PROGRAM':<28}{'UNIT':<10}{'INSNS':>7}{'VERIFIED':>10}{'STATES':>8}{'STACK':>10}{'JIT BYTES':>11}{'LOAD MS':>9}"
        )
        for name, program in artifact.programs.items():
            start = time.perf_counter()
            try:
                fd = load_program(program, fds)
            except VerifierError as error:
                print(f"{name:<28}{program.unit:<10} REFUSED: {error}")
                refused = 1
                continue
            taken_ms = (time.perf_counter() - start) * 1e3
            verified, states, stack = _statistics(program, fds)
            print(
                f"{name:<28}{program.unit:<10}{program.count:>7}{verified:>10}{states:>8}{stack:>10}"
                f"{bpf_prog.prog_info(fd).jited_bytes:>11}{taken_ms:>9.1f}",
                flush=True,
            )
            os.close(fd)
    return refused


def _statistics(program: Program, fds: dict[str, int]) -> tuple[str, str, str]:
    """Return instructions walked, peak states and stack depth, as the verifier reports them."""
    loaded = bpf_prog.prog_load(
        CONTEXTS[program.context].prog_type,
        program.relocated(fds),
        program.name,
        expected_attach_type=load_attach_type(program.context, program.name),
        log_level=bpf_prog.LOG_STATS,
        log_bytes=1 << 16,
    )
    if loaded.fd >= 0:
        os.close(loaded.fd)
    processed, stack = _PROCESSED.search(loaded.log), _STACK.search(loaded.log)
    verified, states = processed.groups() if processed else ("?", "?")
    return verified, states, stack[1] if stack else "?"
