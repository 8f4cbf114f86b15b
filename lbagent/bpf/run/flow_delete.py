"""Runs flow_delete4 and flow_delete6, which delete flows that a command has read, each only if it still is as it was read.

A flow needs a compare-and-swap that Python does not have, and its SNAT slot and its rows in the spill map go with it
(flow_delete.h). The programs are loaded for one command and not pinned.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from itertools import chain, repeat
from typing import TYPE_CHECKING, Self

from lbagent.bpf.compiler.builder import ensure_artifact
from lbagent.bpf.load.constants import with_constants
from lbagent.bpf.load.loader import load_program, with_old_maps
from lbagent.bpf.run.size_change import STAGE
from lbagent.errors import NotFound, Refused
from lbagent.kernel import bpf_map, bpf_prog
from lbagent.kernel.kernel_error import kernel_errors
from lbagent.maps.flow_layout import SPILL_KEY_WORDS
from lbagent.maps.flow_reader import SPILLED, RawFlow, flow_key
from lbagent.maps.layout import (
    FLOW_DELETE_RECORDS,
    FLOW_DELETE_SPILLED,
    HOST_ORDER,
    LB_CONFIG,
    LB_FLOW_DELETE,
    LB_FLOW_DELETED,
)
from lbagent.maps.pins import create_map, pin_dir
from lbagent.maps.specs import map_specs
from lbagent.model.family import Family

if TYPE_CHECKING:
    from collections.abc import Mapping

    from lbagent.bpf.compiler.artifact import Artifact
    from lbagent.maps.kernel_maps import KernelMaps

_KEY_WORDS = 5  # of a record


class FlowDeleter:
    """The programs, loaded for these maps. `idle_over`: ticks without a packet that a flow must still have had, 0: any."""

    def __init__(
        self, fds: Mapping[str, int], config: bytes, artifact: Artifact, *, reset: bool = False, idle_over: int = 0
    ) -> None:
        """Load them. Raises VerifierError, KernelError."""
        self._reset, self._idle_over = reset, idle_over
        self._programs: dict[Family, int] = {}
        try:
            self._load(fds, config, artifact)
        except BaseException:
            self.close()
            raise

    @classmethod
    def of_pins(cls, maps: KernelMaps, config: bytes, *, reset: bool, idle_over: int) -> Self:
        """Load them for pinned maps, whose programs have the settings `config`.

        Raises NotFound without programs, Refused while the maps change their sizes or under programs of another version, and as
        `__init__`.
        """
        if not config:
            raise NotFound(f"no programs under {pin_dir(maps.bpffs)}: there are no flows")
        if len(config) != LB_CONFIG.size:
            raise Refused(
                "the programs in force are of another version of lbagent; nothing was deleted; use that version"
            )
        if (pin_dir(maps.bpffs) / STAGE).exists():
            raise Refused("the maps are being resized; nothing was deleted; try again when it is done")
        return cls(maps.fds, config, ensure_artifact(), reset=reset, idle_over=idle_over)

    def _load(self, fds: Mapping[str, int], config: bytes, artifact: Artifact) -> None:
        record = create_map(map_specs()["lb_config"])  # the loads that are no constants read it
        try:
            with kernel_errors("write and freeze", "lb_config"):
                bpf_map.map_update(record, bytes(4), config)
                bpf_map.map_freeze(record)
            for family in Family:
                program = with_constants(artifact.programs[f"flow_delete{family}"], config)
                self._programs[family] = load_program(program, with_old_maps({**fds, "lb_config": record}))
        finally:
            os.close(record)

    def __enter__(self) -> Self:
        """Return it."""
        return self

    def __exit__(self, *exc: object) -> None:
        """Close the programs."""
        self.close()

    def close(self) -> None:
        """Close the programs."""
        for fd in self._programs.values():
            os.close(fd)
        self._programs.clear()

    def delete(self, family: Family, flows: Sequence[RawFlow]) -> int:
        """Delete flows of a family; return how many were still as they were read. Raises KernelError."""
        deleted = 0
        for first in range(0, len(flows), FLOW_DELETE_RECORDS):
            deleted += self._run(family, flows[first : first + FLOW_DELETE_RECORDS])
        return deleted

    def _run(self, family: Family, flows: Sequence[RawFlow]) -> int:
        data = LB_FLOW_DELETE.pack(0, len(flows), self._idle_over, self._reset, 0)
        data += b"".join([_record(family, raw) for raw in flows])
        with kernel_errors("test run", f"flow_delete{family}"):
            out = bpf_prog.prog_test_run(self._programs[family], data, repeat=len(flows))
        return int(LB_FLOW_DELETE.unpack(out.data[: LB_FLOW_DELETE.size])[-1])


def _record(family: Family, raw: RawFlow) -> bytes:
    key = flow_key(family, raw)
    words = [int.from_bytes(key[at : at + 8], HOST_ORDER) for at in range(0, len(key), 8)]
    empty = repeat(0, _KEY_WORDS - SPILL_KEY_WORDS[family])
    return LB_FLOW_DELETED.pack(FLOW_DELETE_SPILLED if raw[0] == SPILLED else raw[0], raw[6], *chain(words, empty))
