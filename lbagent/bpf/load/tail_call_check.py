"""Are the tail call arrays in force as they were loaded? Each slot is compared with its program. Changes nothing."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from lbagent.bpf.load.loader import call_slots
from lbagent.bpf.tail_calls import AGENT_RUN_PROGRAMS
from lbagent.errors import LbError
from lbagent.kernel import bpf_map, bpf_prog, bpffs
from lbagent.kernel.bpfsys import BPF_OBJ_NAME_LEN
from lbagent.kernel.kernel_error import kernel_errors
from lbagent.maps.layout import CALL_MAPS

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from lbagent.bpf.compiler.artifact import Program
    from lbagent.bpf.load.loader import Generation


def tail_call_faults(root: Path, programs: Mapping[str, Program], made: Generation) -> list[str]:
    """Return in what the tail calls under `root` differ from those of a generation, a sentence each; `programs`: of its artifact.

    A program that this process loaded must be the very one; of those of an earlier agent the name is compared. Blocks for less
    than a millisecond. Raises KernelError.
    """
    return [*_pin_faults(root, made), *_slot_faults(programs, made)]


def has_empty_slots(programs: Mapping[str, Program], made: Generation) -> bool:
    """Return whether a tail call of the programs in force is missing: packets that need it are dropped. Raises KernelError."""
    return any(value is None for _, _, value in _slots(programs, made))


def _pin_faults(root: Path, made: Generation) -> list[str]:
    """Compare the pinned arrays with those of the programs."""
    found = []
    for name in CALL_MAPS:
        try:
            pinned = bpffs.open_pin(root / name)
        except LbError as error:
            found.append(f"the pin of {name} is gone: {error}")
            continue
        try:
            with kernel_errors("read information", name):
                if bpf_map.map_info(pinned).id != bpf_map.map_info(made.maps[name]).id:
                    found.append(f"the pin of {name} is another map")
        finally:
            os.close(pinned)
    return found


def _slots(programs: Mapping[str, Program], made: Generation) -> Iterator[tuple[str, str, int | None]]:
    """Yield (place, program, id of what is there) of each slot of the contexts whose entry programs are in force."""
    entries = (name for name in made.programs.keys() & programs.keys() if name not in AGENT_RUN_PROGRAMS)
    contexts = {programs[name].context for name in entries}
    for (calls, slot), name in sorted(call_slots(programs).items()):
        if programs[name].context in contexts:
            with kernel_errors("read", calls):
                value = bpf_map.map_lookup(made.maps[calls], slot.to_bytes(4, "little"), 4)
            yield f"slot {slot} of {calls}", name, int.from_bytes(value, "little") if value else None


def _slot_faults(programs: Mapping[str, Program], made: Generation) -> list[str]:
    """Compare each slot of the contexts in force with its program."""
    found = []
    for place, name, ident in _slots(programs, made):
        what = f"{place} ({name.split('_', 3)[-1]})"
        if ident is None:
            found.append(f"{what} is empty")
        elif not _is_program(ident, name, made.programs.get(name)):
            found.append(f"{what} has another program")
    return found


def _is_program(ident: int, name: str, loaded: int | None) -> bool:
    """Return whether an id is that of the loaded program; where another process loaded it, of one with this name."""
    with kernel_errors("read information", f"program {name}"):
        if loaded is not None:
            return bpf_prog.prog_info(loaded).id == ident
        fd = bpf_prog.prog_fd_by_id(ident)
        try:
            return bpf_prog.prog_info(fd).name == name[: BPF_OBJ_NAME_LEN - 1]
        finally:
            os.close(fd)
