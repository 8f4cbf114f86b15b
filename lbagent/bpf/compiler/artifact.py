"""The artifact: compiled programs as data. Written by builder.py, read by loader.py on machines without BCC.

JSON, so that a person can read it: programs (instructions in base64, places of the maps), the map specs and record layouts they
were compiled for, and hashes of the sources.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import platform
import struct
import tempfile
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import msgspec

from lbagent.bpf.compiler.c_source import constants, flow_constants
from lbagent.errors import CompileError, LayoutMismatch
from lbagent.kernel.opcodes import CALL, INSN_BYTES, LD_IMM64, PSEUDO_CALL, PSEUDO_MAP_FD, PSEUDO_MAP_VALUE, decode
from lbagent.maps import layout
from lbagent.maps.specs import MAP_BASE, MAP_NAMES, map_specs

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

FORMAT = 4  # also the version of builder.py's steps after the compiler: a new number makes it compile again


class Relocation(msgspec.Struct, frozen=True, array_like=True):
    """Instruction `index` loads map `map_name`: its pointer, or (`value`) the address of its only value."""

    index: int
    map_name: str
    value: bool


@dataclass(frozen=True)
class Program:
    """One program, not yet tied to any map. In the file its instructions are in base64."""

    name: str
    unit: str
    context: str  # bpf/hooks.py
    insns: bytes
    relocations: tuple[Relocation, ...]

    @property
    def count(self) -> int:
        """Number of instructions."""
        return len(self.insns) // INSN_BYTES

    def relocated(self, map_fds: Mapping[str, int]) -> bytes:
        """Return the instructions with the descriptors of these maps."""
        code = bytearray(self.insns)
        for item in self.relocations:
            struct.pack_into("<i", code, item.index * INSN_BYTES + 4, map_fds[item.map_name])
        return bytes(code)


@dataclass(frozen=True)
class Artifact:
    """All programs of one build."""

    programs: dict[str, Program]
    source_hash: str  # of every unit's text and flags
    bcc: str
    arch: str
    unit_hashes: dict[str, str] = field(default_factory=dict)
    layouts: dict[str, Any] = field(default_factory=dict)

    def save(self, path: Path) -> None:
        """Write by rename, so that no reader sees half a file."""
        data = _File(
            FORMAT, self.source_hash, self.bcc, self.arch, self.unit_hashes, self.layouts, list(self.programs.values())
        )
        fd, temporary = tempfile.mkstemp(dir=path.parent, prefix=path.name)
        with os.fdopen(fd, "wb") as file:
            file.write(msgspec.json.format(msgspec.json.encode(data), indent=1))
            os.fchmod(fd, 0o644)
        os.replace(temporary, path)


class _Head(msgspec.Struct):
    format: int


class _File(_Head):
    """The artifact's file. Every start of an agent waits until its 2 MB are read."""

    source_hash: str
    bcc: str
    arch: str
    unit_hashes: dict[str, str]
    layouts: dict[str, Any]
    programs: list[Program]


def load(path: Path) -> Artifact:
    """Read an artifact. Raises CompileError if it is no artifact, or one of another format."""
    data = path.read_bytes()
    try:
        found = msgspec.json.decode(data, type=_File)
    except (ValueError, RecursionError) as error:
        with contextlib.suppress(ValueError, RecursionError):
            _require_format(path, msgspec.json.decode(data, type=_Head).format)
        raise CompileError(f"{path} is not an lbagent artifact ({error}); run `lbagent bpf build`") from error
    _require_format(path, found.format)
    programs = {item.name: item for item in found.programs}
    return Artifact(programs, found.source_hash, found.bcc, found.arch, found.unit_hashes, found.layouts)


def _require_format(path: Path, number: int) -> None:
    if number != FORMAT:
        raise CompileError(f"{path}: format {number}, this lbagent reads {FORMAT}; run `lbagent bpf build`")


def check(artifact: Artifact, path: Path | str) -> None:
    """Reject an artifact for other record layouts, other maps or another processor than this lbagent's."""
    expected = current_layouts()
    for kind, ours in expected.items():
        theirs = artifact.layouts.get(kind, {})
        for name in {**ours, **theirs}:
            if ours.get(name) != theirs.get(name):
                raise LayoutMismatch(
                    f"{path}: {kind} {name} was compiled as {theirs.get(name)}, this lbagent has {ours.get(name)}; "
                    "nothing was loaded; run `lbagent bpf build`"
                )
    if artifact.arch != platform.machine():
        raise LayoutMismatch(
            f"{path}: built for {artifact.arch}, this machine is {platform.machine()}; run `lbagent bpf build`"
        )


def current_layouts() -> dict[str, Any]:
    """Return what a program depends on: records, numbers, each map's type and key size (the operator sets the other sizes)."""
    return {
        "record": {item.name: [list(pair) for pair in item.fields] for item in layout.LAYOUTS},
        "map": {name: [int(spec.type), spec.key_size] for name, spec in map_specs().items()},
        "constant": constants(),
        "bits of flows": flow_constants(),
    }


def text_hash(text: str, flags: Sequence[str]) -> str:
    """Hash one unit's input: same hash, same instructions (given the same BCC)."""
    return hashlib.sha256("\0".join([str(FORMAT), text, *flags]).encode()).hexdigest()[:32]


def find_relocations(name: str, insns: bytes) -> tuple[Relocation, ...]:
    """Find the loads of symbolic map descriptors the compiler left in the instructions."""
    out, index = [], 0
    while index < len(insns) // INSN_BYTES:
        opcode, _, source, _, imm = decode(insns, index)
        if opcode == LD_IMM64:
            if source in (PSEUDO_MAP_FD, PSEUDO_MAP_VALUE):
                position = imm - MAP_BASE
                if not 0 <= position < len(MAP_NAMES):
                    raise CompileError(f"program {name}: instruction {index} loads map number {imm}, which no map has")
                out.append(Relocation(index, MAP_NAMES[position], source == PSEUDO_MAP_VALUE))
            index += 1  # two slots wide
        elif opcode == CALL and source == PSEUDO_CALL:
            raise CompileError(
                f"program {name}: instruction {index} calls a C function; BCC needs all of them static and inlined"
            )
        index += 1
    return tuple(out)
