"""Flow entries and SNAT slots by the fields of maps/flow_layout.py, for tests that read the tables or change ages."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from lbagent.maps.flow_layout import (
    FLOW,
    HANDSHAKE_ANSWERED,
    HANDSHAKE_NUMBER,
    OWNER_HELD_SHIFT,
    SNAT,
    SNAT_STAMP_TICKS,
    FlowState,
    WordRecord,
)
from lbagent.maps.layout import PathL4
from lbagent.model import family as model
from tests.packet.craft import FAMILIES, Family

if TYPE_CHECKING:
    from tests.packet.world import World

NEW, EST, CLOSING, MID = FlowState
SLOT_UNIT = SNAT_STAMP_TICKS
Fields = dict[str, int]  # of a record, by name


@dataclass(frozen=True)
class Flow:
    """One entry of the flow table."""

    position: int
    client: str
    port: int
    udp: bool
    state: int
    backend: int
    snat_port: int  # 0: the client's address is kept
    seen: int  # ticks
    fin: int = 0  # 1: the client has sent its FIN, 2: the backend


# --- records ---


def flow_record(family: Family) -> WordRecord:
    """Return the layout of a family's flow entries."""
    return FLOW[model.Family(family.version)]


def slot_record(family: Family) -> WordRecord:
    """Return the layout of a family's SNAT slots."""
    return SNAT[model.Family(family.version)]


def fields(record: WordRecord, words: Sequence[int]) -> Fields:
    """Return the fields of a record by name."""
    return {name: field.of(words[field.word]) for name, field in record.fields.items()}


def held_entries(world: World, family: Family) -> dict[int, Fields]:
    """Return the fields of every entry that is in use, by its position."""
    return _held(world, f"lb{family.version}_flow", flow_record(family))


def held_slot_fields(world: World, family: Family) -> dict[int, Fields]:
    """Return the fields of every SNAT slot that has a holder, by its position."""
    return _held(world, f"lb{family.version}_snat", slot_record(family))


def _held(world: World, map_name: str, record: WordRecord) -> dict[int, Fields]:
    with _words(world, map_name) as words:
        return {
            position: fields(record, words[position * record.words : (position + 1) * record.words])
            for position in _held_positions(words, record)
        }


def _held_positions(words: memoryview, record: WordRecord) -> list[int]:
    owners = words[:: record.words].tolist()
    return [position for position, owner in enumerate(owners) if owner >> OWNER_HELD_SHIFT]


@contextmanager
def _words(world: World, map_name: str) -> Iterator[memoryview]:
    """Show a table as words of 64 bits; what is stored is in the map."""
    size = world.maps.specs[map_name].value_size
    with world.maps.window(map_name, 0, size) as view, view.cast("Q") as words:
        yield words


def _change(words: memoryview, record: WordRecord, position: int, changes: Mapping[str, int]) -> None:
    """Store fields of the record at this position, each cut to its width."""
    for name, value in changes.items():
        field = record.fields[name]
        at = position * record.words + field.word
        words[at] = words[at] & ~field.mask | value << field.shift & field.mask


def _client(family: Family, found: Fields) -> tuple[str, int]:
    """Return the client of an entry or a slot."""
    if family.version == 4:
        address = struct.pack("=I", found["client"])
    else:
        address = struct.pack("=2Q", found["client"], found["client_end"])
    return family.text(address), host_order(found["client_port"])


def host_order(port: int) -> int:
    """Return a port as stored in a word as a number, or the reverse."""
    return (port & 0xFF) << 8 | port >> 8


# --- flows ---


def flows(world: World, family: Family) -> list[Flow]:
    """Return every entry that is in use."""
    family = FAMILIES[family.version]
    return [
        Flow(
            position,
            *_client(family, found),
            udp=found["l4"] == PathL4.UDP,
            state=found["state"],
            backend=found["backend"],
            snat_port=host_order(found["forward"]),
            seen=found["last_seen"],
            fin=found["fin"],
        )
        for position, found in held_entries(world, family).items()
    ]


def only(world: World, family: Family) -> Flow:
    """Return the only flow there is."""
    found = flows(world, family)
    assert len(found) == 1, found
    return found[0]


def age(world: World, family: Family, ticks: int, which: Callable[[Flow], bool] = lambda flow: True) -> int:
    """Let flows look as if their last packet had come `ticks` earlier; return how many."""
    chosen = [flow for flow in flows(world, family) if which(flow)]
    with _words(world, f"lb{family.version}_flow") as words:
        for flow in chosen:
            _change(words, flow_record(family), flow.position, {"last_seen": flow.seen - ticks})
    return len(chosen)


def earlier_reply(world: World, family: Family, ticks: int) -> None:
    """Let the first reply of every UDP flow that has not lasted yet look as if it had come earlier."""
    found = held_entries(world, family)
    with _words(world, f"lb{family.version}_flow") as words:
        for position, entry in found.items():
            handshake = entry["client_hop"]
            if entry["l4"] == PathL4.UDP and handshake & HANDSHAKE_ANSWERED:
                earlier = HANDSHAKE_ANSWERED | handshake - ticks & HANDSHAKE_NUMBER
                _change(words, flow_record(family), position, {"client_hop": earlier})


def later(world: World, family: Family, ticks: int) -> None:
    """Make all times of flows in the maps `ticks` (a multiple of SLOT_UNIT) older."""
    earlier_reply(world, family, ticks)
    older_slots(world, family, ticks)
    age(world, family, ticks)


# --- SNAT slots ---


def older_slots(world: World, family: Family, ticks: int) -> None:
    """Let the stamp of every held SNAT slot look as if it were older."""
    found = held_slot_fields(world, family)
    with _words(world, f"lb{family.version}_snat") as words:
        for position, slot in found.items():
            _change(words, slot_record(family), position, {"stamp": slot["stamp"] - ticks // SLOT_UNIT})


def held_slots(world: World, family: Family) -> int:
    """Return how many SNAT slots have a holder."""
    return len(held_slot_indexes(world, family))


def slot_holder(world: World, family: Family, index: int) -> tuple[str, int] | None:
    """Return the client, address and port, that holds a SNAT slot; None if it is free."""
    name, record = f"lb{family.version}_snat", slot_record(family)
    with world.maps.window(name, index * record.size % world.maps.specs[name].value_size, record.size) as view:
        words = struct.unpack(f"={record.words}Q", view)
    return _client(family, fields(record, words)) if words[0] >> OWNER_HELD_SHIFT else None


def slot_stamp(world: World, family: Family) -> int:
    """Return when the lease of the only held SNAT slot began, in units of SLOT_UNIT ticks; what was put back is taken off."""
    (slot,) = held_slot_fields(world, family).values()
    return slot["stamp"]


def held_slot_indexes(world: World, family: Family) -> list[int]:
    """Return which SNAT slots have a holder."""
    with _words(world, f"lb{family.version}_snat") as words:
        return _held_positions(words, slot_record(family))
