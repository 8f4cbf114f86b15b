"""The method of all measurements: short alternating bursts, paired in rounds, medians with quartiles.

The clock of a shared virtual machine is bimodal (the same program takes 20 or 30 ns, in periods), so absolute figures are unreliable
and ratios of two programs that alternate every 10 ms are reliable. See docs/benchmarks.md.
"""

from __future__ import annotations

import contextlib
import os
import statistics
import struct
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from lbagent.kernel import bpf_prog

BURST_NS = 10_000_000
ROUNDS, QUICK_ROUNDS = 41, 15


@dataclass(frozen=True)
class Spread:
    """A median with its quartiles."""

    median: float
    q1: float
    q3: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        """Summarise at least two values."""
        q1, median, q3 = statistics.quantiles(values, n=4, method="inclusive")
        return cls(median, q1, q3)

    def __str__(self) -> str:
        return f"{self.median:.2f} ({self.q1:.2f}-{self.q3:.2f})"


class Subject:
    """One program to run by BPF_PROG_TEST_RUN, a burst at a time."""

    def __init__(self, name: str, fd: int, frame: bytes, ifindex: int) -> None:
        """Take a loaded program, its input frame and the ingress device (of this namespace)."""
        self.name, self.fd, self.frame = name, fd, frame
        self.ctx = struct.pack("<6I", 0, len(frame), 0, ifindex, 0, 0)
        self.repeat = 2000
        self.limit = 1 << 30  # most packets of a burst
        self.verdict = -1

    def run(self, repeat: int) -> float:
        """Run one burst; return ns per packet of this thread's CPU time (the kernel's own figure is whole ns)."""
        start = time.clock_gettime_ns(time.CLOCK_THREAD_CPUTIME_ID)
        self.verdict = bpf_prog.prog_test_run(self.fd, self.frame, ctx=self.ctx, repeat=repeat).retval
        return (time.clock_gettime_ns(time.CLOCK_THREAD_CPUTIME_ID) - start) / repeat

    def once(self) -> tuple[int, bytes]:
        """Run it on one packet; return the verdict and the output packet."""
        out = bpf_prog.prog_test_run(self.fd, self.frame, ctx=self.ctx, room=0)
        return out.retval, out.data

    def burst(self) -> float:
        """Run one burst of about 10 ms; it determines the size of the next one."""
        cost = self.run(self.repeat)
        self.repeat = max(200, min(self.limit, int(BURST_NS / cost)))
        return cost


def rounds(subjects: Sequence[Subject], count: int) -> dict[str, list[float]]:
    """Run the subjects in turns; return each one's ns per packet by round. The first two rounds warm up."""
    out: dict[str, list[float]] = {subject.name: [] for subject in subjects}
    for number in range(count + 2):
        for subject in subjects:
            cost = subject.burst()
            if number >= 2:
                out[subject.name].append(cost)
    return out


def net(values: Mapping[str, Sequence[float]], name: str) -> list[float]:
    """Subtract the wrapper's cost from a subject, round by round.

    `wrapper` is the wrapper with `loop` behind it, `loop` the bare loop: their difference is the wrapper and its tail call.
    """
    return [v - (w - bare) for v, w, bare in zip(values[name], values["wrapper"], values["loop"], strict=True)]


def ratio(a: Sequence[float], b: Sequence[float]) -> Spread:
    """Summarise the ratios of paired rounds."""
    return Spread.of([x / y for x, y in zip(a, b, strict=True)])


@contextlib.contextmanager
def pinned(cpu: int | None = None) -> Iterator[None]:
    """Keep this thread on one CPU (`cpu`, or the last one) and raise its priority; restore both afterwards."""
    before, nice = os.sched_getaffinity(0), os.getpriority(os.PRIO_PROCESS, 0)
    os.sched_setaffinity(0, {max(before) if cpu is None else cpu})
    with contextlib.suppress(PermissionError):
        os.setpriority(os.PRIO_PROCESS, 0, -20)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)
        with contextlib.suppress(PermissionError):
            os.setpriority(os.PRIO_PROCESS, 0, nice)
