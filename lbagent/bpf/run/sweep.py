"""Sweeps the flow tables: programs free expired flows and count flows per backend; the agent only runs them.

The programs `sweep4` and `sweep6` run by BPF_PROG_TEST_RUN over some buckets at a time, because freeing needs a compare-and-swap
that Python does not have. Counts go to one half of lb_live and lb_closing while readers use the other. After each whole sweep the
agent writes until when ages are reliable (bpf/include/base/maps.h, now_ticks_in): without sweeps, the programs check each flow
that they use.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence

from lbagent.bpf.run.former_backends import FormerBackends
from lbagent.bpf.run.rule_counts import SweptRules
from lbagent.errors import LbError
from lbagent.kernel import bpf_prog
from lbagent.kernel.kernel_error import kernel_errors
from lbagent.maps.layout import FLOW_WAYS, HOST_ORDER, LB_SWEEP, SWEEP_STEP
from lbagent.maps.lbmaps import LBMaps
from lbagent.maps.map_names import family_map
from lbagent.maps.reasons import Event, Reason, label
from lbagent.maps.specs import Sizes, counter_stripe_bytes, counter_stripes
from lbagent.model.family import Family

log = logging.getLogger(__name__)
BUCKETS_PER_RUN = 1 << 17  # buckets a run: some ten milliseconds of kernel time
# Counters of a table without room, and the setting to raise.
FULL_REASONS: Mapping[Reason | Event, tuple[str, str]] = {
    Reason.FWD_NO_STATE: ("the flow table had no room for new flows", "--flow-table-size"),
    Reason.FWD_SPILL: ("flows spilled into the spill map", "--flow-table-size"),
    Reason.DROP_SNAT_EXHAUSTED: (
        "no SNAT port was free for new flows",
        "--snat-ports or --snat-table-size, or give a further --snat-address",
    ),
    Event.SNAT_RECLAIMED: (
        "new flows take SNAT ports from flows that were not established, as in a flood",
        "--snat-ports if it is none",
    ),
}


BETWEEN_SWEEPS_S, BETWEEN_SWEEPS = 0.1, 4  # minimum pause, and its length as a multiple of the sweep's duration
REPEAT_WARNING_S = 60.0  # a table that stays full is logged again after this
_COUNTS = ("lb_live", "lb_closing")
PAGE_IDS = 4096  # ids read at a time: half a millisecond


def trust_ages(maps: LBMaps, until: int) -> None:
    """Write until which tick 16-bit ages are reliable, into the slot of Reason.NONE of every CPU's stripe. Raises KernelError."""
    row = counter_stripe_bytes(maps.sizes)
    maps.store("lb_metrics", [(n * row, until.to_bytes(8, HOST_ORDER)) for n in range(counter_stripes(maps.sizes))])


async def _nothing(_held: Mapping[int, int], _began_s: float) -> None:
    """The value of `on_swept` until there is one."""


InForce = tuple[Mapping[str, int], Sizes]  # programs, and the sizes of their maps


def tables(in_force: Sequence[InForce]) -> Iterator[tuple[Family, Mapping[str, int], int]]:
    """Yield (family, programs that sweep it, entries) of each flow table, each once.

    While a change of sizes is half done there may be two of a family, and two maps of SNAT slots. If only the slots have two
    maps, the programs that use both sweep the one table: stale slots of the old map block no flow.
    """
    if not in_force:
        return
    (own, sizes), (last, after) = in_force[0], in_force[-1]
    for family in Family:
        (flows, flows_after), (slots, slots_after) = (
            (getattr(sizes, f"{name}{family}"), getattr(after, f"{name}{family}")) for name in ("flow", "snat")
        )
        if flows != flows_after:
            yield family, own, flows
        yield family, last if (flows, slots) != (flows_after, slots_after) else own, flows_after


class Sweeper:
    """Sweeps every `interval_s`, and keeps the counts of the last sweep.

    By backend id, None before the first one: `held` are the flows with an entry, which has a SNAT port, and `live` those of them
    that have not ended: until --timeout-closing the entry of a connection that has closed waits for late segments.
    """

    def __init__(
        self,
        maps: LBMaps,
        in_force: Callable[[], Sequence[InForce]],
        interval_s: float,
        of_backends: Callable[[dict[int, int]], dict[int, int]] = lambda counts: counts,
        former: FormerBackends | None = None,
        rules: SweptRules | None = None,
    ) -> None:
        """`in_force` returns `Datapath.in_force` (it changes with a reload).

        `of_backends` adds up live flows by id to live flows by backend (extra SNAT addresses have ids of their own).
        """
        self._maps = maps
        self._rules = rules or SweptRules()
        self._former = former or FormerBackends(maps)
        self._of_backends = of_backends
        self._in_force = in_force
        self.interval_s = interval_s
        self.live: dict[int, int] | None = None
        self.held: dict[int, int] | None = None
        self.last_duration_s = 0.0
        self.counted_at = 0.0  # when the sweep of `live` began (time.monotonic)
        self.sweeps = 0
        self.busy = asyncio.Lock()  # held during a sweep: a change of programs waits for it
        self._half = 0
        self._flows = dict.fromkeys(Family, 0)
        self._seen: dict[Reason | Event, int] | None = None
        self._full: dict[Reason | Event, float] = {}  # until when it is reported as a problem
        self._logged_until: dict[Reason | Event, float] = {}
        self.failure = ""  # why the last sweep failed
        self.on_swept: Callable[[Mapping[int, int], float], Awaitable[None]] = _nothing  # `held`, `counted_at`

    def usage(self) -> dict[str, tuple[int, int]]:
        """Return (live flows, entries) of the flow tables; of a half-done change of sizes those of both."""
        entries: Counter[Family] = Counter()
        for family, _, count in tables(self._in_force()):
            entries[family] += count
        return {family_map(family, "flow"): (flows, entries[family]) for family, flows in self._flows.items()}

    def full(self) -> list[Reason | Event]:
        """Return the reasons why flows found no room in the last minute (`FULL_REASONS`)."""
        now = time.monotonic()
        return [reason for reason, until in self._full.items() if until > now]

    async def run(self) -> None:
        """Sweep without end, earlier if backends left a frontend."""
        while True:
            began = time.monotonic()
            await self.turn()
            await asyncio.sleep(max(BETWEEN_SWEEPS_S, BETWEEN_SWEEPS * self.last_duration_s))
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(max(0.0, self.interval_s - (time.monotonic() - began))):
                    await self._former.arrived.wait()

    async def turn(self) -> None:
        """Sweep once, and record what is full, or why it failed."""
        try:
            if self._former.unknown:
                await self._former.resolve_unknown()
            async with self.busy:
                await self.sweep()
            if self._rules.wants_sweep:
                self._former.arrived.set()
            await self.on_swept(self.held or {}, self.counted_at)
            self._watch_full()
            self.failure = ""
        except LbError as error:
            if str(error) != self.failure:
                log.error("the flow tables could not be swept", extra={"error": str(error)})
            self.failure = str(error)

    async def count(self, max_age_s: float) -> None:
        """Sweep once more, unless flows were counted at most `max_age_s` ago. The next sweep of `run` reports errors."""
        async with self.busy:
            if self.live is None or time.monotonic() - self.counted_at > max_age_s:
                with contextlib.suppress(LbError):
                    await self.sweep()

    async def sweep(self) -> dict[int, int]:
        """Sweep all tables once and return the live flows by backend id."""
        began, half, sizes = time.monotonic(), self._half, self._maps.sizes
        size = sizes.backends * 4
        for name in _COUNTS:
            with self._maps.window(name, half * size, size) as view:
                view[:] = bytes(size)
        former = int(self._former.begin_sweep()) | int(self._rules.begin_sweep()) << 1
        until = 0
        found = dict.fromkeys(Family, 0)
        for family, programs, entries in tables(self._in_force()):
            flows, until = await self._sweep_table(
                programs[f"sweep{family}"], family, entries // FLOW_WAYS, (half, former, until)
            )
            found[family] += flows
        self._former.end_sweep()
        self._rules.end_sweep()
        self._flows = found
        trust_ages(self._maps, until)
        held, closing = [await self._read(name, half) for name in _COUNTS]
        self.held = self._of_backends(held)
        self.live = self._of_backends(
            {at: left for at, count in held.items() if (left := count - closing.get(at, 0)) > 0}
        )
        self._half = 1 - half
        self.sweeps += 1
        self.counted_at = began
        self.last_duration_s = time.monotonic() - began
        return self.live

    @staticmethod
    async def _sweep_table(program: int, family: Family, buckets: int, run: tuple[int, int, int]) -> tuple[int, int]:
        """Sweep one table; return its live flows, and until when ages are reliable.

        `run`: half of the counts, bits (1: there are former backends, 2: Services with rules), until when ages are reliable if that
        is known.

        In a thread: each run waits some 70 ms for the kernel's XDP dispatcher.
        """
        live, (half, former, until) = 0, run
        for first in range(0, buckets, BUCKETS_PER_RUN):
            count = min(BUCKETS_PER_RUN, buckets - first)
            data = LB_SWEEP.pack(first, count, half, former, 0, until)
            with kernel_errors("test run", f"sweep{family}"):
                output = await asyncio.to_thread(bpf_prog.prog_test_run, program, data, repeat=-(-count // SWEEP_STEP))
            live += output.retval
            until = int(LB_SWEEP.unpack(output.data[: LB_SWEEP.size])[-1])
        return live, until

    async def _read(self, name: str, half: int) -> dict[int, int]:
        """Return the counts of a half of a map, by backend id."""
        out: dict[int, int] = {}
        backends = self._maps.sizes.backends
        for first in range(0, backends, PAGE_IDS):
            count = min(PAGE_IDS, backends - first)
            with self._maps.window(name, (half * backends + first) * 4, count * 4) as view:
                raw = bytes(view)
            if raw.strip(b"\0"):
                numbers = memoryview(raw).cast("I")
                out.update((first + at, number) for at, number in enumerate(numbers) if number)
                await asyncio.sleep(0)
        return out

    def _watch_full(self) -> None:
        """Record which table had no room since the last sweep, and what to raise."""
        reasons = list(FULL_REASONS)
        counts = {reason: packets for reason, (packets, _) in zip(reasons, self._maps.counters(reasons), strict=True)}
        seen, self._seen = self._seen, counts
        now = time.monotonic()
        for reason in reasons if seen is not None else ():
            more = counts[reason] - (seen or {})[reason]
            if more <= 0:
                continue
            self._full[reason] = now + REPEAT_WARNING_S
            if self._logged_until.get(reason, 0.0) <= now:
                self._logged_until[reason] = now + REPEAT_WARNING_S
                what, option = FULL_REASONS[reason]
                log.warning(what, extra={"packets": more, "setting": option, "reason": label(reason)})
