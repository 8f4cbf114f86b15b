"""Common parts of the tests of this folder: a private bpf file system, the tiny programs, counters."""

from __future__ import annotations

import contextlib
import ctypes
import os
import struct
import sys
import traceback
from collections.abc import Callable
from pathlib import Path

from lbagent.bpf.compiler import builder
from lbagent.bpf.compiler.c_source import Unit
from lbagent.bpf.load import program_settings
from lbagent.bpf.load.verifier_report import SMALL_SIZES
from lbagent.kernel import bpf_map, jiffies
from lbagent.kernel.cpus import possible_cpus

PROGRAMS = Path(__file__).parent / "programs"
ENTRY, TAIL, FELL_THROUGH, MIXED = 1, 2, 3, 4  # tiny.h
SEEDS = program_settings.Seeds(0x1122334455667788, 0x99AABBCCDDEEFF00)
_libc = ctypes.CDLL(None, use_errno=True)


def tiny_units(generation: int = 1) -> tuple[Unit, ...]:
    flags = (f"-DGENERATION={generation}", f"-I{PROGRAMS}")
    return tuple(
        Unit(f"tiny_{hook}", PROGRAMS / "tiny.c", hook, (f"-DLB_HOOK_{hook.upper()}", *flags)) for hook in ("xdp", "tc")
    )


def tiny(folder: Path, generation: int = 1):
    """Build the tiny programs into an artifact in `folder`."""
    return builder.build(folder / f"tiny{generation}.json", units=tiny_units(generation))


def config_record(**options) -> bytes:
    return program_settings.pack_config(program_settings.ProgramSettings(**options), SMALL_SIZES, SEEDS, jiffies.hz())


@contextlib.contextmanager
def mounted_bpffs(folder: Path):
    """A private bpf file system for this test, so that it changes nothing of the machine."""
    if _libc.mount(b"bpf", os.fsencode(folder), b"bpf", 0, None):
        raise OSError(ctypes.get_errno(), f"mount bpf on {folder}")
    try:
        yield folder
    finally:
        _libc.umount2(os.fsencode(folder), 2)


def counter(fds, index: int) -> int:
    """Packets of one lb_metrics entry over all CPUs."""
    size = bpf_map.map_info(fds["lb_metrics"]).value_size
    raw = bpf_map.map_lookup(fds["lb_metrics"], bytes(4), size)
    return sum(struct.unpack_from("<Q", raw, at)[0] for at in range(16 * index, size, size // possible_cpus()))


def in_child(work: Callable[[], object]) -> int:
    """Run `work` in a forked child; return its exit code: 1 after an exception, which never reaches the child's copy of pytest."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            work()
            code = 0
        except BaseException:
            traceback.print_exc()
            sys.stderr.flush()
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
