"""`lbagent bpf build`: compile the units into the artifact.

Units whose text, flags and BCC are unchanged are taken from the existing artifact: a build without changes takes some
milliseconds and needs no BCC.
"""

from __future__ import annotations

import os
import platform
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import TYPE_CHECKING

from lbagent.bpf.compiler import artifact as artifacts
from lbagent.bpf.compiler.artifact import Artifact, Program
from lbagent.bpf.compiler.c_source import (
    ARTIFACT_PATH,
    BASE_FLAGS,
    DRY_ARTIFACT_PATH,
    DRY_UNITS,
    SAMPLING_ARTIFACT_PATH,
    SAMPLING_UNITS,
    UNITS,
    Unit,
    UnitTexts,
)
from lbagent.bpf.compiler.compile import BCC_MISSING, bcc_version, compile_text
from lbagent.bpf.compiler.join_entries import join_entries
from lbagent.bpf.compiler.rewrite import rewrite
from lbagent.errors import CompileError, LbError
from lbagent.maps.specs import MAP_BASE, MAP_NAMES

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

_ARCH_FLAGS = {"aarch64": ("-DLB_ARM64",)}  # weak memory order: the code has explicit barriers


def ensure_artifact(path: Path = ARTIFACT_PATH, units: Sequence[Unit] | None = None) -> Artifact:
    """Return an artifact of the current sources: the one at `path`, made by any BCC, rebuilt first if it is stale.

    Without BCC a stale artifact is an error; a current one is used as it is. An installed package may have no sources: then the
    artifact is used unchecked. Raises CompileError, LayoutMismatch.
    """
    units = UNITS if units is None else units
    inputs = _inputs(units)
    if inputs:
        old = _previous(path)
        return old if old and old.unit_hashes == _hashes(inputs) else build(path, units=units)
    if not path.is_file():
        raise CompileError(f"neither C sources nor {path} are there; reinstall lbagent")
    found = artifacts.load(path)
    artifacts.check(found, path)
    return found


def ensure_dry_artifact() -> Artifact:
    """Do the same for the dry programs."""
    return ensure_artifact(DRY_ARTIFACT_PATH, DRY_UNITS)


def sampling_artifact(plain: Artifact) -> Artifact:
    """Return the artifact `plain` with programs that record packets of the quick path in place of its packet programs.

    Raises as `ensure_artifact`.
    """
    found = ensure_artifact(SAMPLING_ARTIFACT_PATH, SAMPLING_UNITS)
    whole = artifacts.text_hash("", [plain.source_hash, found.source_hash])
    return replace(plain, programs={**plain.programs, **found.programs}, source_hash=whole)


def build(path: Path = ARTIFACT_PATH, *, force: bool = False, units: Sequence[Unit] = UNITS) -> Artifact:
    """Compile what changed since the artifact at `path`, write it, return it. Raises CompileError."""
    inputs = _inputs(units)
    hashes = _hashes(inputs)
    old = None if force else _previous(path)
    if old and old.unit_hashes == hashes and old.bcc == (bcc_version() or old.bcc):
        return old
    if not bcc_version():
        state = "is older than the C sources" if path.is_file() and not force else "is to be made"
        raise CompileError(f"{path} {state} and cannot be built: {BCC_MISSING}")
    keep = old if old and old.bcc == bcc_version() else None
    changed = {
        unit.context
        for name, (unit, _, _) in inputs.items()
        if keep is None or keep.unit_hashes.get(name) != hashes[name]
    }  # by context: its units are joined
    stale = [name for name, (unit, _, _) in inputs.items() if unit.context in changed]
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        compiled = dict(zip(stale, pool.map(lambda name: compile_unit(*inputs[name]), stale), strict=True))
    programs: dict[str, Program] = {}
    for name in inputs:
        fresh = compiled.get(name)
        old_ones = [item for item in keep.programs.values() if item.unit == name] if keep else []
        _add(programs, old_ones if fresh is None else fresh)
    whole = artifacts.text_hash("", list(hashes.values()))
    made = Artifact(
        join_entries(programs), whole, bcc_version(), platform.machine(), hashes, artifacts.current_layouts()
    )
    made.save(path)
    return made


_Inputs = dict[str, tuple[Unit, str, tuple[str, ...]]]  # unit, text, flags by the unit's name


def _inputs(units: Sequence[Unit]) -> _Inputs:
    texts = UnitTexts()
    return {unit.name: (unit, texts.of(unit), unit_flags(unit)) for unit in units if unit.path.is_file()}


def _hashes(inputs: _Inputs) -> dict[str, str]:
    return {name: artifacts.text_hash(text, flags) for name, (_, text, flags) in inputs.items()}


def unit_flags(unit: Unit) -> tuple[str, ...]:
    """Return every compiler flag of a unit, the processor's included."""
    return (*BASE_FLAGS, *unit.flags, *_ARCH_FLAGS.get(platform.machine(), ()))


def compile_unit(unit: Unit, text: str, flags: Sequence[str]) -> list[Program]:
    """Compile one unit's text into programs. Raises CompileError."""
    done = compile_text(text, flags, unit.name)
    if done.warnings:
        print(done.warnings, file=sys.stderr)
    config = MAP_BASE + MAP_NAMES.index("lb_config")
    rewritten = {name: rewrite(code, config) for name, code in sorted(done.functions.items())}
    return [
        Program(name, unit.name, unit.context, code, artifacts.find_relocations(name, code))
        for name, code in rewritten.items()
    ]


def _add(programs: dict[str, Program], new: Sequence[Program]) -> None:
    for item in new:
        other = programs.get(item.name)
        if other:
            raise CompileError(f"program {item.name} is defined in both {other.unit} and {item.unit}")
        programs[item.name] = item


def _previous(path: Path) -> Artifact | None:
    try:
        found = artifacts.load(path)
        artifacts.check(found, path)
    except (OSError, LbError):
        return None
    return found
