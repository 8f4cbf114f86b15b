"""Loads the dry programs over maps that serve: they give the verdict of the live ones, change nothing, and record their steps.

They have a scratch record, rate limits, a datagram, a trace, settings and tail call arrays of their own, because packets
interrupt a test run. All other maps are the caller's. The programs are the shipped sources, compiled with LB_DRY
(bpf/include/base/trace.h).
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

from lbagent.bpf.hooks import TC_CONTEXT, XDP_CONTEXT
from lbagent.bpf.load.loader import load_generation
from lbagent.bpf.run.packet_run import Result, run_tc, run_xdp
from lbagent.kernel import bpf_map
from lbagent.kernel.cpus import possible_cpus
from lbagent.kernel.kernel_error import kernel_errors
from lbagent.maps.pins import close_all, create_map
from lbagent.maps.specs import TRACE_MAP, map_specs, trace_map
from lbagent.maps.trace_layout import TRACE_BYTES, TraceRecord, records

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from lbagent.bpf.compiler.artifact import Artifact
    from lbagent.bpf.load.loader import Generation

OWN_MAPS = ("lb_scratch", "lb_ratelimit", "lb_datagram")  # and the trace, and those of a generation
_FIRST = bytes(4)  # key of the only entry


@dataclass(frozen=True)
class DryResult:
    """The outcome of a frame, and the steps that led to it."""

    result: Result
    trace: list[TraceRecord]


class DryPrograms:
    """Loaded dry programs. One run at a time; `close` unloads them."""

    def __init__(self, generation: Generation, own: dict[str, int]) -> None:
        self._generation, self._own = generation, own
        self._one_at_a_time = threading.Lock()
        self._full_buckets = bytes((map_specs()["lb_ratelimit"].value_size + 7) // 8 * 8 * possible_cpus())

    @classmethod
    def load(
        cls, artifact: Artifact, shared_maps: Mapping[str, int], config: bytes, *, log_dir: Path | None = None
    ) -> Self:
        """Load the programs of the artifact over these maps, by name, with the settings of the live programs.

        Takes about a second. Raises VerifierError, KernelError.
        """
        own: dict[str, int] = {}
        specs = map_specs()
        try:
            for name in OWN_MAPS:
                own[name] = create_map(specs[name])
            own[TRACE_MAP] = create_map(trace_map())
            contexts = (XDP_CONTEXT.name, TC_CONTEXT.name)
            generation = load_generation(artifact, {**shared_maps, **own}, config, contexts=contexts, log_dir=log_dir)
        except BaseException:
            close_all(own)
            raise
        return cls(generation, own)

    def close(self) -> None:
        """Unload the programs, and close their own maps."""
        self._generation.close()
        close_all(self._own)

    def run(self, hook: str, frame: bytes, ifindex: int, *, came_by: int = 0, gso_size: int = 0) -> DryResult:
        """Run one frame at a device through the entry program of a hook (bpf/hooks.py).

        `came_by`: the device by which a frame of tc_egress came in; 0: the node itself sends it. The device is one of the calling
        thread's network namespace. Every answer is within the rate limits. Raises KernelError.
        """
        program = self._generation.programs[hook]
        with self._one_at_a_time, kernel_errors("read", TRACE_MAP):
            bpf_map.map_update(self._own[TRACE_MAP], _FIRST, bytes(TRACE_BYTES))
            bpf_map.map_update(self._own["lb_ratelimit"], _FIRST, self._full_buckets)
            if hook == "xdp":
                result = run_xdp(program, frame, ifindex=ifindex)
            else:
                by = came_by if hook == "tc_egress" else ifindex
                result = run_tc(program, frame, ifindex=ifindex, came_by=by, gso_size=gso_size)
            trace = bpf_map.map_lookup(self._own[TRACE_MAP], _FIRST, TRACE_BYTES)
        assert trace is not None
        return DryResult(result, records(trace))
