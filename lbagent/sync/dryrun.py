"""What `lbagent plan` does: manifests to the lines of `map dump`, with no kernel, no root and no agent."""

from __future__ import annotations

import socket
import sys
from dataclasses import replace

from msgspec import Struct

from lbagent.errors import ConfigError
from lbagent.maps import codec
from lbagent.maps.dump import dump
from lbagent.maps.layout import Sizes
from lbagent.maps.memory import MemoryMaps
from lbagent.model.address import L3n4Addr, parse_ip
from lbagent.model.ids import SERVICE_ID_LIMIT, IdAllocator, IdBook
from lbagent.model.maglev import DEFAULT_TABLE_SIZE, TABLE_SIZES
from lbagent.model.state import State
from lbagent.sync import files, manifests
from lbagent.sync.files import Files
from lbagent.sync.manifests import Unparsable
from lbagent.sync.objects import Message
from lbagent.sync.resolve import Options, resolve

STDIN = "-"


class DryRun(Struct, frozen=True):
    """What a plan prints: lines for stdout, messages for stderr, the exit code."""

    lines: list[str]
    messages: list[Message]
    exit_code: int  # 0 input good, 1 something was refused (the rest is in `lines`)
    state: State


def dry_run(
    path: str, *, node_name: str = "", node_ips: tuple[str, ...] = (), maglev_table_size: int = DEFAULT_TABLE_SIZE
) -> DryRun:
    """Resolve a folder, a file or stdin ('-') from nothing: fresh ids from 1, objects in the order of the files.

    `node_name` '' is the host's name. Raises ConfigError when there is no such folder, or an address or size is wrong.
    """
    if maglev_table_size not in TABLE_SIZES:
        sizes = ", ".join(map(str, TABLE_SIZES))
        raise ConfigError(f"--maglev-table-size: {maglev_table_size} is not a table size; one of {sizes} is possible")
    options = Options(node_name or socket.gethostname(), _addresses(node_ips))
    loaded = _load(path)
    resolution = resolve(loaded.snapshot(), options)
    state, failed = _with_ids(resolution.state)
    messages = [*loaded.problems(), *resolution.messages, *failed]
    refused = any(not message.warning for message in messages)
    return DryRun(dump(_written(state, maglev_table_size)), messages, int(refused), state)


def _addresses(texts: tuple[str, ...]) -> tuple[bytes, ...]:
    try:
        return tuple(dict.fromkeys(map(parse_ip, texts)))
    except ValueError as error:
        raise ConfigError(f"--node-ip: {error}") from None


def _load(path: str) -> Files:
    if path != STDIN:
        try:
            return files.load(path)
        except OSError as error:
            raise ConfigError(f"{path}: {error.strerror}; name a folder of manifests, a file, or - for stdin") from None
    loaded = Files(say_generation=False)
    try:
        loaded.take("stdin", manifests.decode(sys.stdin.buffer.read(manifests.MAX_BYTES + 1), "stdin"))
    except Unparsable as error:
        loaded.fail("stdin", error.message)
    return loaded


def _with_ids(state: State) -> tuple[State, list[Message]]:
    service_ids: IdAllocator[L3n4Addr] = IdAllocator(limit=SERVICE_ID_LIMIT)
    backend_ids: IdAllocator[L3n4Addr] = IdAllocator()
    book = IdBook(service_ids, backend_ids)
    assigned = book.assign(state)
    return assigned, [Message(str(error), "", "", frontend.with_protocol()) for frontend, error in book.errors]


def _written(state: State, maglev_table_size: int) -> MemoryMaps:
    """Return maps in memory that hold the State."""
    maps = MemoryMaps(_room(state, maglev_table_size))
    for svc in state.services:
        rows, digit = codec.encode(svc), codec.family(svc.frontend.address)
        items = [(codec.service_key(svc.frontend, slot), value) for slot, value in rows.slots.items()]
        maps.put_many(f"lb{digit}_service", items)
        if rows.reverse:
            maps.put_many(f"lb{digit}_reverse_nat", [(codec.U32.pack(svc.id), rows.reverse)])
        maps.put_many("lb_affinity_match", [(codec.affinity_key(svc.id, b), codec.PRESENT) for b in rows.affinity])
        maps.put_many(f"lb{digit}_source_range", [(key, codec.PRESENT) for key in rows.ranges])
        if rows.members:
            maps.set_maglev(f"lb{digit}_maglev", {svc.id: codec.table_bytes(rows.members, maglev_table_size)})
    for backend in state.backends.values():
        digit = codec.family(backend.address.address)
        row = codec.backend_value(backend.address, backend.state)
        maps.put_many(f"lb{digit}_backend", [(codec.U32.pack(backend.id), row)])
    return maps


def _room(state: State, maglev_table_size: int) -> Sizes:
    """Return sizes in which everything has room: a plan says what objects mean, not what fits."""
    slots = sum(codec.entry_count(svc) for svc in state.services)
    ranges = sum(len(svc.source_ranges) for svc in state.services)
    base = Sizes()
    return replace(
        base,
        services=max(base.services, slots),
        source_ranges=max(base.source_ranges, ranges),
        maglev_size=maglev_table_size,
    )
