"""What `lbagent plan` does: manifests to the lines of `map dump`, with no kernel, no root and no agent."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from dataclasses import replace

from msgspec import Struct

from lbagent.errors import ConfigError
from lbagent.maps import frontend_codec
from lbagent.maps.dump import dump
from lbagent.maps.kernel_maps import KernelMaps
from lbagent.maps.memory_maps import MemoryMaps
from lbagent.maps.specs import Sizes
from lbagent.model.address import L3n4Addr, parse_ip
from lbagent.model.exclusion import Exclusion
from lbagent.model.ids import BACKEND_ID_LIMIT, SERVICE_ID_LIMIT, IdAllocator, IdAssigner
from lbagent.model.maglev import DEFAULT_TABLE_SIZE, TABLE_SIZES
from lbagent.model.message import Message
from lbagent.model.path_info import PathInfo
from lbagent.model.service import CIDR
from lbagent.model.state import State
from lbagent.resolve import Options
from lbagent.resolve.frontends import MAX_FRONTENDS_PER_SERVICE
from lbagent.sources.folder.resolve_path import resolve_path
from lbagent.targets.bpf.apply import apply
from lbagent.targets.bpf.plan import plan
from lbagent.targets.bpf.restore import restore
from lbagent.targets.bpf.shadow import Shadow


class DryRun(Struct, frozen=True):
    """What a plan prints: lines for stdout, messages for stderr, the exit code."""

    lines: list[str]
    messages: list[Message]
    exit_code: int  # 0 input good, 1 something was refused (the rest is in `lines`)
    state: State


class KnownIds(Struct, frozen=True):
    """Ids that frontends and backends have already; the others get new ones."""

    services: Sequence[tuple[L3n4Addr, int]] = ()
    backends: Sequence[tuple[L3n4Addr, int]] = ()

    @classmethod
    def of_maps(cls, bpffs: str) -> KnownIds:
        """Return the ids in the pinned maps. Raises KernelError, NotFound."""
        with KernelMaps.open(bpffs, create=False) as maps:
            found = restore(maps)
        return cls(found.service_ids, found.backend_ids)


def dry_run(
    path: str,
    *,
    node_name: str = "",
    node_ips: tuple[str, ...] = (),
    maglev_table_size: int = DEFAULT_TABLE_SIZE,
    max_frontends: int = MAX_FRONTENDS_PER_SERVICE,
    known_ids: KnownIds = KnownIds(),  # noqa: B008 - immutable
    external_ips: bool = True,
    external_ip_cidrs: tuple[str, ...] = (),
    exclude: tuple[str, ...] = (),
) -> DryRun:
    """Resolve a folder, a file or stdin ('-') from nothing: fresh ids from 1 beside `known_ids`, objects in the order of the files.

    `node_name` '' is the host's name; `max_frontends` is the limit of one Service. Raises ConfigError when there is no such
    folder, or an address or size is wrong.
    """
    if maglev_table_size not in TABLE_SIZES:
        sizes = ", ".join(map(str, TABLE_SIZES))
        raise ConfigError(f"--maglev-table-size: {maglev_table_size} is not a table size; one of {sizes} is possible")
    options = options_of(
        node_name,
        node_ips,
        max_frontends,
        external_ips=external_ips,
        external_ip_cidrs=external_ip_cidrs,
        exclude=exclude,
    )
    found = resolve_path(path, options)
    state, failed = _with_ids(found.state, known_ids)
    maps, unwritten = _written(state, maglev_table_size)
    messages = [*found.messages, *failed, *unwritten]
    refused = any(not message.warning for message in messages)
    return DryRun(dump(maps), messages, int(refused), state)


def options_of(
    node_name: str,
    node_ips: tuple[str, ...],
    max_frontends: int,
    *,
    external_ips: bool,
    external_ip_cidrs: tuple[str, ...],
    exclude: tuple[str, ...],
) -> Options:
    """Return the options of resolve; '' is the host's name. Raises ConfigError for an address that is none."""
    return Options(
        node_name or socket.gethostname(),
        _addresses(node_ips),
        external_ips=external_ips,
        external_ip_ranges=_ranges(external_ip_cidrs),
        exclusions=_exclusions(exclude),
        max_frontends=max_frontends,
    )


def _addresses(texts: tuple[str, ...]) -> tuple[bytes, ...]:
    try:
        return tuple(dict.fromkeys(map(parse_ip, texts)))
    except ValueError as error:
        raise ConfigError(f"--node-ip: {error}") from None


def _ranges(texts: tuple[str, ...]) -> tuple[CIDR, ...]:
    try:
        return tuple(map(CIDR.parse, texts))
    except ValueError as error:
        raise ConfigError(f"--external-ip-cidr: {error}") from None


def _exclusions(texts: tuple[str, ...]) -> tuple[Exclusion, ...]:
    try:
        return tuple(map(Exclusion.parse, texts))
    except ValueError as error:
        raise ConfigError(f"--exclude: {error}") from None


def with_fresh_ids(state: State) -> State:
    """Return a State without ids with ids from 1. Raises ConfigError where they run out."""
    assigned, failed = _with_ids(state, KnownIds())
    if failed:
        raise ConfigError(str(failed[0]))
    return assigned


def _with_ids(state: State, known: KnownIds) -> tuple[State, list[Message]]:
    service_ids: IdAllocator[L3n4Addr] = IdAllocator(limit=SERVICE_ID_LIMIT)
    backend_ids: IdAllocator[L3n4Addr] = IdAllocator()
    service_ids.restore(known.services)
    backend_ids.restore(known.backends)
    ids = IdAssigner(service_ids, backend_ids)
    assigned = ids.assign(state)
    return assigned, [Message(str(error), key=frontend.with_protocol()) for frontend, error in ids.errors]


def _written(state: State, maglev_table_size: int) -> tuple[MemoryMaps, list[Message]]:
    """Return maps in memory that hold the State, and what could not be written."""
    maps = MemoryMaps(_ample_sizes(state, maglev_table_size))
    shadow = Shadow(maps.sizes)
    result = apply(plan(state, shadow, lambda _: PathInfo()), maps, shadow)
    failed = [Message(str(error), key=frontend.with_protocol()) for frontend, error in result.failed.items()]
    return maps, failed


def _ample_sizes(state: State, maglev_table_size: int) -> Sizes:
    """Return sizes in which everything has room: a plan shows what objects mean, not what fits."""
    base = Sizes()
    backends = max(base.backends, 1 << max((each.id for each in state.backends.values()), default=0).bit_length())
    return replace(
        base,
        services=max(base.services, sum(map(frontend_codec.entry_count, state.services))),
        backends=min(backends, BACKEND_ID_LIMIT),
        source_ranges=max(base.source_ranges, sum(len(svc.source_ranges) for svc in state.services)),
        maglev_size=maglev_table_size,
    )
