"""Compile and load the reference programs of `reference/` and create their maps, by file descriptor, without pins."""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from lbagent.bpf.compiler.c_source import BASE_FLAGS, flatten
from lbagent.bpf.compiler.compile import compile_text
from lbagent.errors import VerifierError
from lbagent.kernel import bpf_map, bpf_prog
from lbagent.kernel.bpf_prog import ProgType
from lbagent.kernel.opcodes import INSN_BYTES, LD_IMM64, PSEUDO_MAP_FD, PSEUDO_MAP_VALUE, decode

REFERENCE = Path(__file__).resolve().parent / "reference"
MAP_BASE = 2000  # symbolic descriptors the compiler sees, as in lbagent itself


@dataclass(frozen=True)
class Map:
    """A map to create: type (bpf_map_type), key and value bytes, entries, flags; `inner` is the template of a map of maps."""

    kind: int
    key: int
    value: int
    entries: int
    flags: int = 0
    inner: Map | None = None


HASH, ARRAY, PROG_ARRAY, PERCPU_ARRAY, LRU_HASH, ARRAY_OF_MAPS = 1, 2, 3, 6, 9, 12
MMAPABLE = 1 << 10


class Maps:
    """The maps of one program, by name; closed together."""

    def __init__(self, specs: Mapping[str, Map]) -> None:
        """Create all of them."""
        self.specs = dict(specs)
        self.fds: dict[str, int] = {}
        for name, spec in specs.items():
            self.fds[name] = self._create(name, spec)

    @staticmethod
    def _create(name: str, spec: Map) -> int:
        template = Maps._create(name, spec.inner) if spec.inner else 0
        fd = bpf_map.map_create(spec.kind, spec.key, spec.value, spec.entries, spec.flags, name, template)
        if spec.inner:
            os.close(template)
        return fd

    def put(self, name: str, key: bytes, value: bytes) -> None:
        """Write one entry."""
        bpf_map.map_update(self.fds[name], key, value)

    def put_inner(self, name: str, index: int, values: Sequence[int]) -> None:
        """Write a table of u32 into a map of maps."""
        spec = self.specs[name].inner
        assert spec is not None
        fd = self._create(name, spec)
        for position, value in enumerate(values):
            bpf_map.map_update(fd, struct.pack("<I", position), struct.pack("<I", value))
        bpf_map.map_update(self.fds[name], struct.pack("<I", index), struct.pack("<I", fd))
        os.close(fd)

    def close(self) -> None:
        """Close every map."""
        while self.fds:
            os.close(self.fds.popitem()[1])


@cache
def compiled(stem: str, family: int, names: tuple[str, ...], flags: tuple[str, ...] = ()) -> Mapping[str, bytes]:
    """Compile reference/STEM.c for a family; return the instructions of its programs by name."""
    numbers = "".join(f"#define MAP_{name} {MAP_BASE + index}\n" for index, name in enumerate(names))
    prelude = (
        numbers
        + "#define MAPFD(name) ((void *)bpf_pseudo_fd(1, MAP_##name))\n"
        + "#define MAPVAL(name) ((void *)bpf_pseudo_fd(2, MAP_##name))\n"
    )
    text = prelude + flatten(REFERENCE / f"{stem}.c", (REFERENCE,))
    return compile_text(text, [*BASE_FLAGS, f"-DFAMILY={family}", *flags], stem).functions


def load(stem: str, family: int, maps: Maps | None = None, flags: tuple[str, ...] = (), program: str = "") -> int:
    """Load a program of reference/STEM.c (the one with that name, or `program`) with these maps."""
    names = tuple(maps.fds) if maps else ()
    code = compiled(stem, family, names, flags)[program or stem]
    return load_code(relocated(code, [maps.fds[name] for name in names] if maps else []), program or stem)


def load_code(code: bytes, name: str) -> int:
    """Load XDP instructions. Raises VerifierError with the end of the log."""
    done = bpf_prog.prog_load(ProgType.XDP, code, name)
    if done.fd < 0:
        done = bpf_prog.prog_load(ProgType.XDP, code, name, log_level=1)
        raise VerifierError(f"{name}: errno {done.errno}: {done.log[-3000:]}")
    return done.fd


def relocated(code: bytes, fds: Sequence[int]) -> bytes:
    """Replace the symbolic descriptors by real ones."""
    out = bytearray(code)
    for at in _symbolic(code):
        (number,) = struct.unpack_from("<i", code, at + 4)
        struct.pack_into("<i", out, at + 4, fds[number - MAP_BASE])
    return bytes(out)


def _symbolic(code: bytes) -> Iterator[int]:
    """Yield where 64-bit loads of map descriptors or values start."""
    at = 0
    while at < len(code):
        word = decode(code, at // INSN_BYTES)
        if word.opcode == LD_IMM64:
            if word.src in (PSEUDO_MAP_FD, PSEUDO_MAP_VALUE):
                yield at
            at += INSN_BYTES
        at += INSN_BYTES
