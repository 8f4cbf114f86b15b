"""C sources -> one text a compile unit: local includes flattened with `#line`, constants generated from maps/*layout.py.

BCC does not rewrite code in included headers, and clang errors must name the real file, so the includes are flattened.
Pure: reads files, nothing else. Source: docs/datapath.md (units and names).
"""

from __future__ import annotations

import os
import re
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import IntEnum
from pathlib import Path
from typing import NamedTuple

from lbagent.bpf.compiler.rewrite import CAS_CALL, ENTRY6_CALL, MAP_WORDS
from lbagent.bpf.hooks import CONTEXTS
from lbagent.bpf.tail_calls import TAIL_CALLS, call_slot, program_functions
from lbagent.errors import CompileError
from lbagent.maps import event_layout, flow_layout, layout, trace_layout
from lbagent.maps.reasons import REASON_SLOTS, Event, Reason
from lbagent.maps.specs import MAP_BASE, MAP_NAMES
from lbagent.model.family import Family

BPF_DIR = Path(__file__).resolve().parents[1]
STUB_DIR = BPF_DIR / "stub"
_CHECKOUT = f"{BPF_DIR.parents[1]}{os.sep}"
INCLUDE_DIR = BPF_DIR / "include"
# headers are included without their folder: each name exists once
INCLUDE_DIRS = tuple(
    INCLUDE_DIR / folder for folder in ("base", "hook", "parse", "service", "flow", "forward", "program")
)
ARTIFACT_PATH = BPF_DIR / "lbagent.bpf.json"
DRY_ARTIFACT_PATH = BPF_DIR / "lbagent.dry.bpf.json"
SAMPLING_ARTIFACT_PATH = BPF_DIR / "lbagent.sampling.bpf.json"

# -nostdinc: no header of the build machine may be included; stub/ has the needed ones
BASE_FLAGS = (
    "-nostdinc",
    "-Werror=implicit-function-declaration",
    "-Wall",
    "-Wno-unused-function",
    "-Wno-unused-variable",
)

_INCLUDE = re.compile(r'^\s*#\s*include\s+"([^"]+)"')
_PRAGMA_ONCE = re.compile(r"^\s*#\s*pragma\s+once\b")


@dataclass(frozen=True)
class Unit:
    """One compilation: a C file for a context (bpf/hooks.py), and its flags."""

    name: str
    path: Path
    context: str
    flags: tuple[str, ...]

    @property
    def is_dry(self) -> bool:
        """Whether its programs store nothing and record their steps (bpf/include/base/trace.h)."""
        return DRY_FLAG in self.flags

    @property
    def has_runs(self) -> bool:
        """Whether it has the programs that run by BPF_PROG_TEST_RUN, too: they exist once."""
        return not {DRY_FLAG, SAMPLING_FLAG} & {*self.flags}


DRY_FLAG = "-DLB_DRY"
SAMPLING_FLAG = "-DLB_SAMPLING"
UNITS: tuple[Unit, ...] = tuple(
    Unit(f"{Path(source).stem}_{context.name}", BPF_DIR / source, context.name, (context.flag,))
    for context in CONTEXTS.values()
    for source in context.sources
)


def _packet_units(flag: str) -> tuple[Unit, ...]:
    return tuple(replace(unit, flags=(*unit.flags, flag)) for unit in UNITS if CONTEXTS[unit.context].calls)


# The programs of packets twice more, each time an artifact of its own: dry ones, and those that record packets of the quick path.
DRY_UNITS, SAMPLING_UNITS = _packet_units(DRY_FLAG), _packet_units(SAMPLING_FLAG)
ARTIFACTS = {ARTIFACT_PATH: UNITS, DRY_ARTIFACT_PATH: DRY_UNITS, SAMPLING_ARTIFACT_PATH: SAMPLING_UNITS}


class UnitTexts:
    """Makes the texts of units: of those of one build each file is read once, because they include the same headers."""

    def __init__(self, include_dirs: tuple[Path, ...] = INCLUDE_DIRS) -> None:
        self._include_dirs = include_dirs
        self._files: dict[str, _SourceFile] = {}
        self._prelude = ""

    def of(self, unit: Unit) -> str:
        """Return the input of BCC for a unit: the prelude, the flattened file, the programs of bpf/tail_calls.py.

        Raises as `flatten`.
        """
        family = _FAMILIES.get(unit.path.name)
        self._prelude = self._prelude or prelude()
        first = self._prelude + (dry_prelude() if unit.is_dry else "")
        programs = programs_text(unit.context, family, runs=unit.has_runs) if family else ""
        return first + self.flat(unit.path) + programs

    def flat(self, path: Path) -> str:
        """Return a file with its local includes in place, as `flatten`."""
        out: list[str] = []
        self._flatten(str(path.resolve()), set(), out)
        return "\n".join(out) + "\n"

    def _flatten(self, path: str, seen: set[str], out: list[str]) -> None:
        seen.add(path)
        file = self._files.get(path) or _SourceFile.read(path, self._include_dirs)
        self._files[path] = file
        out.append(f'#line 1 "{file.shown}"')
        for lines, include, number in file.parts:
            out += lines
            if include in seen:
                out.append("")
            elif include:
                self._flatten(include, seen, out)
                out.append(f'#line {number + 1} "{file.shown}"')


class _SourceFile(NamedTuple):
    """A file, divided at its includes."""

    shown: str
    parts: list[
        tuple[list[str], str, int]
    ]  # lines (joined), the file included behind them ('': none) and on which line

    @classmethod
    def read(cls, path: str, include_dirs: tuple[Path, ...]) -> _SourceFile:
        """Read it and find what it includes. Raises CompileError."""
        shown, parts, begin = _display_name(path), [], 0
        with open(path, encoding="utf-8") as file:
            lines = file.read().splitlines()
        for at, line in enumerate(lines):
            if "#" not in line:
                continue
            if match := _INCLUDE.match(line):
                target = _find(match.group(1), path, include_dirs, f"{shown}:{at + 1}")
                parts.append((_joined(lines[begin:at]), target, at + 1))
                begin = at + 1
            elif _PRAGMA_ONCE.match(line):
                lines[at] = ""
        return cls(shown, [*parts, (_joined(lines[begin:]), "", 0)])


def _joined(lines: list[str]) -> list[str]:
    return ["\n".join(lines)] if lines else []


def unit_text(unit: Unit, include_dirs: tuple[Path, ...] = INCLUDE_DIRS) -> str:
    """Return the input of BCC for one unit. Raises as `flatten`."""
    return UnitTexts(include_dirs).of(unit)


_FAMILIES = {f"lb{family}.c": family for family in Family}  # the sources that have the programs of bpf/tail_calls.py


def programs_text(hook: str, family: Family, *, runs: bool = True) -> str:
    """Return the programs behind the entry points, one call of a C function each; `runs`: as program_functions().

    They are text, not a macro's expansion: BCC does not find functions that a macro defines.
    """
    lines = ['#line 1 "generated from bpf/tail_calls.py"']
    for name, function in program_functions(hook, family, runs=runs).items():
        lines += [f"int {name}(lb_ctx *ctx)", "{", f"\treturn {function}(ctx);", "}"]
    return "\n".join(lines) + "\n"


def flatten(path: Path, include_dirs: tuple[Path, ...] = INCLUDE_DIRS) -> str:
    """Return the file with its local includes in place, each only once (`#pragma once` is implied).

    `#include "x.h"` is searched beside the including file, then in `include_dirs`; `<...>` includes stay. Raises CompileError
    with file and line of a missing include.
    """
    return UnitTexts(include_dirs).flat(path)


# An agent's start waits for these two: pathlib takes ten times as long.
def _find(name: str, includer: str, include_dirs: tuple[Path, ...], where: str) -> str:
    for folder in (os.path.dirname(includer), *map(str, include_dirs)):
        found = os.path.normpath(os.path.join(folder, name))
        if os.path.isfile(found):
            return found
    raise CompileError(f'{where}: #include "{name}": no such file beside it or in {", ".join(map(str, include_dirs))}')


def _display_name(path: str) -> str:
    """Return the name that clang prints: relative to the checkout if the file is inside it."""
    return path.removeprefix(_CHECKOUT)


# --- the prelude: C never repeats a number that Python has ---

_C_TYPES = {"u8": "u8", "u16": "u16", "u32": "u32", "u64": "u64", "be16": "__be16", "be32": "__be32"}


def prelude() -> str:
    """Return the generated C text: constants, map numbers, structs with their size and offset checks."""
    parts = ['#line 1 "generated from maps/layout.py and maps/flow_layout.py"']
    parts += [f"#define {name} {value}" for name, value in constants().items()]
    parts += [f"#define {name} {value}" for name, value in flow_constants().items()]
    parts += _maps()
    for record in layout.LAYOUTS:
        parts += _struct(record)
    return "\n".join(parts) + "\n"


def dry_prelude() -> str:
    """Return the generated C text that dry programs have beside the prelude: the layout of their trace."""
    values = {
        name: value for name, value in vars(trace_layout).items() if name.startswith("TRACE_") and type(value) is int
    }
    values.update((f"TRACE_{step.name}", int(step)) for step in trace_layout.TraceStep)
    lines = [
        '#line 1 "generated from maps/trace_layout.py"',
        *(f"#define {name} {value}" for name, value in values.items()),
    ]
    return "\n".join(lines) + "\n"


_ENUMS: tuple[tuple[str, type[IntEnum]], ...] = (
    ("PATH", layout.PathFlag),
    ("PATH_L4", layout.PathL4),
    ("DEVICE", layout.DeviceFlag),
    ("CONFIG", layout.ConfigFlag),
    ("MIGRATE", layout.MigrateWhat),
    ("CT", flow_layout.FlowState),
    ("FIN", flow_layout.Fin),
    ("FORWARD", flow_layout.ForwardMode),
    ("REASON", Reason),
    ("EVENT", Event),
    ("EVENT_HOOK", event_layout.EventHook),
)


def constants() -> dict[str, int]:
    """Return the upper-case ints of layout.py, flow_layout.py and event_layout.py and their enums, by their names in C."""
    found = {
        name: value
        for module in (layout, flow_layout, event_layout)
        for name, value in vars(module).items()
        if name.isupper() and type(value) is int and not name.startswith("_")
    }
    found["REASON_SLOTS"] = REASON_SLOTS
    found.update((f"CALL_{call.name.upper()}", call_slot(call.name, Family.IPV4)) for call in TAIL_CALLS)
    found.update(CAS_CALL=CAS_CALL, ENTRY6_CALL=ENTRY6_CALL)
    found.update(MAP_WORDS)
    found.update((f"{prefix}_{item.name}", int(item)) for prefix, enum in _ENUMS for item in enum)
    return found


class _CWords(NamedTuple):
    """The C names of the words of a record of flow_layout.py, and of their fields."""

    records: Mapping[Family, flow_layout.WordRecord]
    numbers: str  # NUMBERS_WORD is a word's number in the record
    fields: Mapping[str, str]  # by word: PREFIX_FIELD_SHIFT, _BITS and _MASK are a field's place in it


_C_WORDS = (
    _CWords(
        flow_layout.FLOW, "E", {"owner": "OWNER", "vip": "VIP", "value": "V", "seen": "SEEN", "checksum": "CHECKSUM"}
    ),
    _CWords(flow_layout.SNAT, "SNAT_SLOT", {"holder": "SNAT_SLOT", "meta": "SNAT_META"}),
)


def flow_constants() -> dict[str, str]:
    """Return the C constants of the words of flow entries and SNAT slots: name -> expression, which may depend on LB_FAMILY.

    A word's own name is left out of its fields' (`vip_port` of the word `vip` is VIP_PORT), and a field that fills its word has
    no shift and no mask.
    """
    by_family: dict[str, dict[Family, str]] = defaultdict(dict)
    for words in _C_WORDS:
        for family, record in words.records.items():
            for number, word in enumerate(record.word_names):
                by_family[f"{words.numbers}_{word.upper()}"][family] = str(number)
            for name, field in record.fields.items():
                if field.width < 64:
                    word = record.word_names[field.word]
                    parts = [words.fields[word], *name.removeprefix(word).strip("_").upper().split("_")]
                    prefix = "_".join(part for part in parts if part)
                    by_family[f"{prefix}_SHIFT"][family] = str(field.shift)
                    by_family[f"{prefix}_BITS"][family] = str(field.width)
                    by_family[f"{prefix}_MASK"][family] = f"{field.mask:#x}ULL"
    return {name: _of_family(values) for name, values in by_family.items()}


def _of_family(values: Mapping[Family, str]) -> str:
    four, six = (values.get(family) for family in Family)
    if four and six and four != six:
        return f"(LB_FAMILY == 4 ? {four} : {six})"
    return four or six or ""


# A constant that bpf/compiler/rewrite.py replaces by a descriptor, an address or a setting. Behind `asm` the compiler can neither
# compute with it nor keep it over calls; LLVM's own intrinsic for descriptors counts as a write to memory, after which
# everything is read again.
_MAP_WORDS = """\
static inline __attribute__((always_inline)) u64 map_word(u64 kind, u64 number)
{
	u64 word = kind << 32 | number;

	asm volatile("" : "+r"(word));
	return word;
}
#define MAPFD(name) ((void *)map_word(MAP_WORD_FD, MAP_##name))
#define MAPVAL(name) ((void *)map_word(MAP_WORD_VALUE, MAP_##name))
#define CFG(field) map_word(MAP_WORD_CONFIG, __builtin_offsetof(struct lb_config, field))
"""


def _maps() -> list[str]:
    """Return the symbolic descriptors; the loader replaces them by the real ones (`artifact.Relocation`)."""
    lines = [f"#define MAP_{name} {MAP_BASE + index}" for index, name in enumerate(MAP_NAMES)]
    lines += _MAP_WORDS.splitlines()
    return lines


def _struct(record: layout.Layout) -> list[str]:
    offsets = record.offsets()
    wide = record.size % 8 == 0  # u64 halves would otherwise make the compiler pad the end
    lines = [f"struct {record.name} {{"]
    lines += [f"\t{_member(kind, name, wide and offsets[name] % 8 == 0)};" for name, kind in record.fields]
    lines.append("};")
    lines.append(f'_Static_assert(sizeof(struct {record.name}) == {record.size}, "size of {record.name}");')
    lines += [
        f'_Static_assert(__builtin_offsetof(struct {record.name}, {name}) == {at}, "offset of {record.name}.{name}");'
        for name, at in offsets.items()
    ]
    return lines


def _member(kind: str, name: str, wide: bool) -> str:
    if kind.startswith("pad"):
        return f"u8 {name}[{kind[3:]}]"
    if kind == "mac":
        return f"u8 {name}[6]"
    if kind == "be128":
        return f"u64 {name}[2]" if wide else f"u32 {name}[4]"
    return f"{_C_TYPES[kind]} {name}"
