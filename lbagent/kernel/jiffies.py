"""The rate of this kernel's jiffies. The programs' clock is bpf_jiffies64 (inlined, no call), in units of the kernel's own."""

from __future__ import annotations

import os
import time
from functools import cache

from lbagent.kernel import bpf_prog
from lbagent.kernel.kernel_error import kernel_error, kernel_errors
from lbagent.kernel.opcodes import CALL, EXIT, insn

_FUNC_JIFFIES64 = 118
_READ_JIFFIES = insn(CALL, imm=_FUNC_JIFFIES64) + insn(EXIT)
_KNOWN_HZ = (100, 250, 300, 1000)
_CLOCK_MONOTONIC_COARSE = 6  # linux/time.h


@cache
def hz() -> int:
    """Return CONFIG_HZ: the coarse clocks advance once per tick, and the kernel reports the length of a tick (clock_getres(2)).

    Counting jiffies for a while would give another number on a busy machine, and so other programs.
    """
    rate = 1 / time.clock_getres(_CLOCK_MONOTONIC_COARSE)
    return min(_KNOWN_HZ, key=lambda known: abs(known - rate) / known)


def jiffies() -> int:
    """Return the low 32 bits of the kernel's jiffies, as the programs read them."""
    fd = _load()
    try:
        return _jiffies(fd)
    finally:
        os.close(fd)


def _load() -> int:
    loaded = bpf_prog.prog_load(bpf_prog.ProgType.SCHED_CLS, _READ_JIFFIES, "lb_hz")
    if loaded.fd < 0:
        raise kernel_error("load a program", loaded.errno, "the kernel's clock", "run as root on a kernel with BPF")
    return loaded.fd


def _jiffies(fd: int) -> int:
    with kernel_errors("test run", "the kernel's clock"):
        return bpf_prog.prog_test_run(fd, bytes(64)).retval
