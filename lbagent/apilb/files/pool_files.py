"""Reads pool files: the instances after inheritance and defaults, the recorded ones of the state, and all errors at once.

Source: flexkube's apiloadbalancer (behaviour and texts of its errors); --strict, --mode and the checks of values are lbagent's.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

from msgspec import Struct
from msgspec.structs import replace

from lbagent.apilb.files.log_in import with_log_in
from lbagent.apilb.files.pool_document import STDIN, PoolDocument, in_file_order, same_file
from lbagent.apilb.files.pool_reader import DEFAULT_POOL, PoolReader
from lbagent.apilb.files.section import Section
from lbagent.apilb.files.state_file import Deployed, read_state
from lbagent.apilb.instance import Instance, Mode
from lbagent.model.message import Message

POOLS, STATE = "apiLoadBalancerPools", "state"


class PoolFiles(Struct, frozen=True, kw_only=True):
    """The contents of pool files."""

    pools: tuple[str, ...] = ()  # names, in the order of the files; those that are only in the state are not here
    instances: tuple[Instance, ...] = ()
    deployed: Deployed = Deployed()
    warnings: tuple[Message, ...] = ()
    one_pool: bool = False  # the top level of the document is the pool, and its state


def read_pool_files(
    paths: Sequence[str],
    *,
    state_path: str = "",
    strict: bool = False,
    mode: Mode | None = None,
    environ: Mapping[str, str] = os.environ,
    any_file: bool = False,
) -> PoolFiles:
    """Read files that form one document, `-` for stdin. Raises PoolFaults, a ConfigError.

    The state is read from `state_path` if that file exists, else from the document. With `strict` unknown keys are errors; `mode`
    overrides the files; without SSH_AUTH_SOCK in `environ` ssh needs a password or a key. Of `paths` only regular files are
    read, unless `any_file`.
    """
    document = PoolDocument()
    for path in paths:
        document.add(path, any_file=any_file)
    state = PoolDocument()
    if state_path and os.path.lexists(state_path) and not any(same_file(each, state_path) for each in paths):
        state.add(state_path)
    return _read(document, state, strict=strict, mode=mode, environ=environ)


def default_state_path(paths: Sequence[str]) -> str:
    """Return the state file's path: state.yaml beside the first file, or in the current folder for stdin."""
    first = next((path for path in paths if path != STDIN), "")
    return os.path.join(os.path.dirname(first), "state.yaml")


def _read(
    document: PoolDocument, state: PoolDocument, *, strict: bool, mode: Mode | None, environ: Mapping[str, str]
) -> PoolFiles:
    if document.faults or state.faults:  # without all values further errors would be guesses
        document.faults += state.faults
        document.raise_faults()
    reader = PoolReader(document, mode=mode, can_ask_agent=bool(environ.get("SSH_AUTH_SOCK")))
    top = Section(document, document.values, ())
    reader.deployed = _deployed(document, top, state)
    reader.state_is_faulty = bool(document.faults or state.faults)
    names = _read_pools(reader, top)
    top.note_unknown_keys()
    reader.note_duplicates()
    document.files += state.files
    document.faults += state.faults
    if strict:
        document.faults += document.warnings
    document.raise_faults()
    return PoolFiles(
        pools=names,
        instances=tuple(reader.instances),
        deployed=replace(
            reader.deployed,
            recorded=tuple(with_log_in(each, reader.instances, reader.ssh) for each in reader.deployed.recorded),
        ),
        warnings=tuple(in_file_order([*document.warnings, *state.warnings], document.files)),
        one_pool=POOLS not in top and DEFAULT_POOL in names,
    )


def _deployed(document: PoolDocument, top: Section, state: PoolDocument) -> Deployed:
    """Return the deployed instances: the state file overrides the other files."""
    separate = Section(state, state.values, ())
    newer, given = separate.section(STATE), top.section(STATE)
    separate.note_unknown_keys()
    if newer and given:
        document.warn((STATE,), f"ignored: {state.files[0]} exists and overrides it")
    found = newer or given
    return read_state(found, DEFAULT_POOL) if found else Deployed()


def _read_pools(reader: PoolReader, top: Section) -> tuple[str, ...]:
    """Read the pools; return their names."""
    pools = top.section(POOLS)
    if pools is not None:
        for name in pools.keys():  # noqa: SIM118 - no mapping
            section = pools.section(name) or Section(reader.document, {}, (*pools.at, name))
            reader.pool(name, section)
        return pools.keys()
    if not set(top.keys()) - {STATE} and (reader.deployed.recorded or reader.state_is_faulty):
        return ()  # the files have no pool any more
    reader.pool(DEFAULT_POOL, top)
    return (DEFAULT_POOL,)
