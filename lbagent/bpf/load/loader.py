"""Loads programs into the kernel, one *generation* at a time.

A generation is the programs of one artifact and one settings record, of the contexts (bpf/hooks.py) that are in use; those of
another context may come later. It has maps of its own, which no other generation uses: `lb_config` (frozen, folded into the
instructions), `lb_crc32c` (frozen) and the two tail call arrays. An entry program reaches only tail calls of its own generation,
so old and new may run side by side while the links are being updated one by one. Tables with flows and services are shared by all
generations and belong to maps/kernel_maps.py.
"""

from __future__ import annotations

import contextlib
import os
import re
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from lbagent.bpf.compiler.rewrite import take_out_calls
from lbagent.bpf.hooks import CONTEXTS, load_attach_type
from lbagent.bpf.load.constants import with_constants
from lbagent.bpf.tail_calls import AGENT_RUN_PROGRAMS, COMMAND_RUN_PROGRAMS
from lbagent.errors import CompileError, Unsupported, VerifierError
from lbagent.kernel import bpf_map, bpf_prog, features
from lbagent.kernel.kernel_error import kernel_error, kernel_errors
from lbagent.kernel.opcodes import SET_RETVAL
from lbagent.maps import layout
from lbagent.maps.crc32c import shift_tables
from lbagent.maps.event_layout import EVENT_MAP
from lbagent.maps.lbmaps import GENERATION_MAPS
from lbagent.maps.pins import create_map
from lbagent.maps.specs import OLD_MAPS, map_specs

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping

    from lbagent.bpf.compiler.artifact import Artifact, Program

MIN_KERNEL = (5, 15)
PRIORITY_STEP = (
    2  # added to the nice value of the threads that wait for the verifier: small, or a busy node starves them
)
LOG_LINES = 12  # of the verifier's log in the error; the rest is in the file

_CALL_NAME = re.compile(r"call_(\w+?)_(\d+)_\w+")


@dataclass
class Generation:
    """Loaded programs by name, and their own maps; `close` closes all descriptors."""

    programs: dict[str, int] = field(default_factory=dict)
    maps: dict[str, int] = field(default_factory=dict)
    load_ms: dict[str, float] = field(default_factory=dict)

    def close(self) -> None:
        """Close every descriptor; what is pinned or attached stays in the kernel."""
        for fd in (*self.programs.values(), *self.maps.values()):
            os.close(fd)
        self.programs.clear()
        self.maps.clear()


def require_kernel() -> None:
    """Raise Unsupported on a kernel before 5.15. Checked once before anything is created."""
    release = os.uname().release
    match = re.match(r"(\d+)\.(\d+)", release)
    if match and (int(match[1]), int(match[2])) < MIN_KERNEL:
        raise Unsupported("this version of lbagent", "5.15", f"this is Linux {release}; nothing was loaded")


def load_generation(
    artifact: Artifact,
    shared_maps: Mapping[str, int],
    config: bytes,
    *,
    contexts: Collection[str] = CONTEXTS,
    log_dir: Path | None = None,
) -> Generation:
    """Load the programs of these contexts, and those the agent runs, against the shared maps and a new `lb_config` of `config`.

    Raises as `add_programs`.
    """
    made = Generation()
    try:
        _create_generation_maps(made.maps, config)
        add_programs(made, lacking(artifact, contexts, made), shared_maps, config, log_dir=log_dir)
    except BaseException:
        made.close()
        raise
    return made


def lacking(artifact: Artifact, contexts: Collection[str], made: Generation) -> dict[str, Program]:
    """Return the programs of the contexts, and those the agent runs, that a generation lacks.

    A context is complete if its entry programs are there: they are pinned after their tail calls are in the array, which holds
    these. Those that commands load (`COMMAND_RUNS`) are never missing.
    """
    elsewhere = made.programs.keys() | COMMAND_RUN_PROGRAMS
    absent = {name: program for name, program in artifact.programs.items() if name not in elsewhere}
    wanted = {program.context for name, program in absent.items() if not is_tail_called(name)} & set(contexts)
    return {
        name: program for name, program in absent.items() if program.context in wanted or name in AGENT_RUN_PROGRAMS
    }


def add_programs(
    made: Generation, programs: Mapping[str, Program], shared_maps: Mapping[str, int], config: bytes, *, log_dir: Path | None
) -> None:  # fmt: skip
    """Load programs into a generation, whose settings are `config`; an error leaves it unchanged.

    The tail call arrays are filled before this returns, so an entry program can be attached at once.
    Raises VerifierError (last lines, path of the whole log), KernelError, CompileError (two programs in one slot).
    """
    fds = with_old_maps({**shared_maps, **made.maps})
    loaded: dict[str, int] = {}

    def load(program: Program) -> None:
        start = time.perf_counter()
        loaded[program.name] = load_program(with_constants(program, config), fds, log_dir)
        made.load_ms[program.name] = (time.perf_counter() - start) * 1e3

    try:
        largest_first = sorted(programs.values(), key=lambda program: -len(program.insns))
        with ThreadPoolExecutor(os.cpu_count(), "verifier", lower_priority) as pool:  # the kernel verifies in parallel
            list(pool.map(load, largest_first))
        for (calls, slot), name in call_slots(programs).items():
            key, value = slot.to_bytes(4, "little"), loaded[name].to_bytes(4, "little")
            with kernel_errors(f"fill slot {slot}", calls):
                bpf_map.map_update(made.maps[calls], key, value)
    except BaseException:
        for fd in loaded.values():
            os.close(fd)
        raise
    made.programs.update(loaded)


def lower_priority() -> None:
    """Leave the processor to the planning thread: at a first start it plans 100,000 backends meanwhile."""
    with contextlib.suppress(OSError):
        me = threading.get_native_id()
        os.setpriority(os.PRIO_PROCESS, me, os.getpriority(os.PRIO_PROCESS, me) + PRIORITY_STEP)


def with_old_maps(fds: Mapping[str, int]) -> dict[str, int]:
    """Return the descriptors with OLD_MAPS; those missing in `fds` are the maps themselves.

    Without the event rings, which then no program writes, lb_config stands for them: the verifier allows no store into it.
    """
    aliases = OLD_MAPS | {EVENT_MAP: "lb_config"}
    return {**{alias: fds[name] for alias, name in aliases.items() if name in fds}, **fds}


def _create_generation_maps(fds: dict[str, int], config: bytes) -> None:
    """Put new maps of a generation into `fds` one by one, so that the caller can close those made before an error."""
    specs = map_specs()
    for name in GENERATION_MAPS:
        fds[name] = create_map(specs[name])
    for name, record in (("lb_config", config), ("lb_crc32c", shift_tables())):
        with kernel_errors("write and freeze", name):
            bpf_map.map_update(fds[name], bytes(4), record)
            bpf_map.map_freeze(fds[name])


@contextlib.contextmanager
def generation_maps(config: bytes) -> Iterator[dict[str, int]]:
    """Create the maps of one generation for a while: settings frozen, tail call arrays empty."""
    fds: dict[str, int] = {}
    try:
        _create_generation_maps(fds, config)
        yield fds
    finally:
        for fd in fds.values():
            os.close(fd)


def is_tail_called(name: str) -> bool:
    """Return whether a program of this name belongs into a tail call slot, which holds it: it gets no pin."""
    return _CALL_NAME.fullmatch(name) is not None


def call_slots(programs: Mapping[str, Program]) -> dict[tuple[str, int], str]:
    """Return the programs in tail call slots by map and number, from the names `call_CONTEXT_SLOT_NAME`. Raises CompileError."""
    slots: dict[tuple[str, int], str] = {}
    for name, program in programs.items():
        match = _CALL_NAME.fullmatch(name)
        if not match:
            continue
        calls, slot = CONTEXTS[program.context].calls, int(match[2])
        if match[1] != program.context or not calls or slot >= layout.CALLS:
            raise CompileError(f"program {name} of unit {program.unit}: no such slot in {calls or 'its context'}")
        if (calls, slot) in slots:
            raise CompileError(f"programs {slots[calls, slot]} and {name} claim one tail call slot")
        slots[calls, slot] = name
    return slots


def load_program(program: Program, map_fds: Mapping[str, int], log_dir: Path | None = None) -> int:
    """Load one program; return its descriptor. The verifier writes its log only for a rejected one."""
    insns, kind = program.relocated(map_fds), CONTEXTS[program.context].prog_type
    if kind == bpf_prog.ProgType.CGROUP_SOCK_ADDR and not features.has_set_retval():
        insns = take_out_calls(insns, SET_RETVAL)  # before Linux 5.18: a rejected call fails with EPERM
    attach_type = load_attach_type(program.context, program.name)
    result = bpf_prog.prog_load(kind, insns, program.name, expected_attach_type=attach_type)
    if result.fd >= 0:
        return result.fd
    again = bpf_prog.prog_load(kind, insns, program.name, expected_attach_type=attach_type, log_level=bpf_prog.LOG_TEXT)
    if again.fd >= 0:
        return again.fd  # memory or a signal: the second attempt may succeed
    if not again.log:
        raise kernel_error("load", result.errno, f"program {program.name}", "`lbagent doctor` shows more")
    raise VerifierError(_verifier_text(program.name, again.log, log_dir))


def _verifier_text(name: str, log: str, log_dir: Path | None) -> str:
    folder = log_dir or Path(tempfile.gettempdir())
    folder.mkdir(parents=True, exist_ok=True)
    fd, path = tempfile.mkstemp(prefix=f"lbagent-verifier-{name}-", suffix=".log", dir=folder)
    with os.fdopen(fd, "w", encoding="utf-8") as file:
        file.write(log)
    tail = "\n".join("  " + line for line in log.rstrip().splitlines()[-LOG_LINES:])
    return f"the kernel's verifier refused program {name}; nothing was replaced. Last lines of its log:\n{tail}\nwhole log: {path}"
