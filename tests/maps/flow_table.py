"""Flow tables in memory with entries of given fields."""

from __future__ import annotations

from lbagent.maps.flow_layout import FLOW, WordRecord
from lbagent.maps.flow_reader import PIECE_ENTRIES
from lbagent.maps.map_names import family_map
from lbagent.maps.memory_maps import MemoryMaps
from lbagent.maps.specs import Sizes
from lbagent.model.family import Family

ENTRIES = 2 * PIECE_ENTRIES
PORT = 0x1F90  # 8080; in a word it lies as 0x901F


def words(record: WordRecord, **values: int) -> list[int]:
    """Return the words of a record with these fields; every other one is 0."""
    out = [0] * record.words
    for name, value in values.items():
        field = record.fields[name]
        assert value < 1 << field.width
        out[field.word] |= value << field.shift
    return out


def swapped(port: int) -> int:
    return int.from_bytes(port.to_bytes(2, "big"), "little")


def entry(family: Family, number: int = 1, **values: int) -> list[int]:
    """Return a whole entry of an established flow of client `number` to backend 7."""
    given = {
        "generation": 5,
        "value_generation": 5,
        "client_port": swapped(PORT),
        "vip_port": swapped(80),
        "client": number,
    }
    if family is Family.IPV4:
        given["vip_generation"] = given["generation"]
    given |= {"vip": 9, "state": 1, "backend": 7} | values
    return words(FLOW[family], **given)


def maps_with(family: Family, entries: dict[int, list[int]]) -> MemoryMaps:
    maps = MemoryMaps(Sizes(flow4=ENTRIES, flow6=ENTRIES))
    size = FLOW[family].size
    with maps.window(family_map(family, "flow"), 0, ENTRIES * size) as view, view.cast("Q") as table:
        for at, each in entries.items():
            for number, word in enumerate(each):
                table[at * size // 8 + number] = word
    return maps
