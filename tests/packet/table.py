"""Reads the flow table and the SNAT slots as docs/datapath.md describes them, for tests that look inside or turn the clock."""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass

from tests.packet.craft import FAMILIES, Family
from tests.packet.world import World

NEW, EST, CLOSING, MID = range(4)
_WORDS = {4: 4, 6: 8}  # u64 an entry
_VALUE = {4: 2, 6: 5}
_SEEN = {4: 3, 6: 6}
_SLOT_WORDS = {4: 2, 6: 4}  # u64 a slot; the last one has the stamp
SLOT_UNIT = 8  # ticks of a SNAT slot's stamp


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


def flows(world: World, family: Family) -> list[Flow]:
    """Return every entry that is in use."""
    version = family.version
    words, size = _WORDS[version], world.maps.specs[f"lb{version}_flow"].value_size
    with world.maps.window(f"lb{version}_flow", 0, size) as view:
        data = bytes(view)
    out = []
    for position in range(size // (8 * words)):
        entry = struct.unpack_from(f"={words}Q", data, position * 8 * words)
        owner = entry[0]
        if not owner >> 16:
            continue
        value = entry[_VALUE[version]]
        if version == 4:
            client, port = struct.pack("=I", owner >> 32), owner >> 16 & 0xFFFF
        else:
            client, port = struct.pack("=2Q", entry[1], entry[2]), owner >> 48
        snat = value >> 20 & 0xFFFF
        out.append(
            Flow(
                position,
                FAMILIES[version].text(client),
                _swap(port),
                bool(owner >> 14 & 1),
                value >> 16 & 3,
                value >> 44,
                _swap(snat),
                entry[_SEEN[version]] & 0xFFFF,
                value >> 18 & 3,
            )
        )
    return out


def only(world: World, family: Family) -> Flow:
    """Return the only flow there is."""
    found = flows(world, family)
    assert len(found) == 1, found
    return found[0]


def age(world: World, family: Family, ticks: int, which: Callable[[Flow], bool] = lambda flow: True) -> int:
    """Let flows look as if their last packet had come `ticks` earlier; return how many."""
    version = family.version
    chosen = [flow for flow in flows(world, family) if which(flow)]
    size = world.maps.specs[f"lb{version}_flow"].value_size
    with world.maps.window(f"lb{version}_flow", 0, size) as view:
        for flow in chosen:
            at = (flow.position * _WORDS[version] + _SEEN[version]) * 8
            struct.pack_into("=H", view, at, (flow.seen - ticks) & 0xFFFF)
    return len(chosen)


def earlier_reply(world: World, family: Family, ticks: int) -> None:
    """Let the first reply of every UDP flow that has not lasted yet look as if it had come earlier."""
    version = family.version
    size = world.maps.specs[f"lb{version}_flow"].value_size
    with world.maps.window(f"lb{version}_flow", 0, size) as view:
        for flow in flows(world, family):
            at = (flow.position * _WORDS[version] + _SEEN[version]) * 8 + 6
            (word,) = struct.unpack_from("=H", view, at)
            if flow.udp and word >> 15:
                struct.pack_into("=H", view, at, 0x8000 | (word - ticks) & 0x3FFF)


def older_slots(world: World, family: Family, ticks: int) -> None:
    """Let the stamp of every held SNAT slot look as if it were older."""
    version = family.version
    words, size = _SLOT_WORDS[version], world.maps.specs[f"lb{version}_snat"].value_size
    with world.maps.window(f"lb{version}_snat", 0, size) as view, view.cast("Q") as slots:
        for index in range(0, len(slots), words):
            if slots[index] >> 16:
                meta = slots[index + words - 1]
                slots[index + words - 1] = meta & ~0xFFF0 | ((meta >> 4) - ticks // SLOT_UNIT & 0xFFF) << 4


def later(world: World, family: Family, ticks: int) -> None:
    """Let everything that the programs know of the flows look as if it had happened `ticks` (a multiple of SLOT_UNIT) earlier."""
    earlier_reply(world, family, ticks)
    older_slots(world, family, ticks)
    age(world, family, ticks)


def held_slots(world: World, family: Family) -> int:
    """Return how many SNAT slots have a holder."""
    version = family.version
    words, size = _SLOT_WORDS[version], world.maps.specs[f"lb{version}_snat"].value_size
    with world.maps.window(f"lb{version}_snat", 0, size) as view:
        data = struct.unpack(f"={size // 8}Q", view)
    return sum(1 for owner in data[::words] if owner >> 16)


def slot_holder(world: World, family: Family, index: int) -> tuple[str, int] | None:
    """Return the client, address and port, that holds a SNAT slot; None where nobody does."""
    version = family.version
    name, size = f"lb{version}_snat", 8 * _SLOT_WORDS[version]
    with world.maps.window(name, index * size % world.maps.specs[name].value_size, size) as view:
        words = struct.unpack(f"={_SLOT_WORDS[version]}Q", view)
    if not words[0] >> 16:
        return None
    if version == 4:
        return family.text(struct.pack("=I", words[0] >> 32)), _swap(words[0] >> 16 & 0xFFFF)
    return family.text(struct.pack("=2Q", *words[1:3])), _swap(words[0] >> 48)


def slot_stamp(world: World, family: Family) -> int:
    """Return when the lease of the only held SNAT slot began, in units of SLOT_UNIT ticks; what was put back is taken off."""
    (index,) = held_slot_indexes(world, family)
    words = _SLOT_WORDS[family.version]
    with world.maps.window(f"lb{family.version}_snat", (index + 1) * 8 * words - 8, 8) as view:
        return int.from_bytes(view, "little") >> 4 & 0xFFF


def held_slot_indexes(world: World, family: Family) -> list[int]:
    """Return which SNAT slots have a holder."""
    slots = world.maps.specs[f"lb{family.version}_snat"].value_size // (8 * _SLOT_WORDS[family.version])
    return [index for index in range(slots) if slot_holder(world, family, index)]


def _swap(port: int) -> int:
    return (port & 0xFF) << 8 | port >> 8
