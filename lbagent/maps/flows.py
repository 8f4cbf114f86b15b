"""The flow table as user space knows it, for one purpose: moving live flows to a table of another size.

Entry words, hash and buckets are those of bpf/include/entry.h and ct.h; tests hold both against one another. A mover writes
only into maps that no program uses yet. What finds no room in its buckets goes to the spill map, as in the programs.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator

from lbagent.maps.base import Item, LBMaps
from lbagent.maps.layout import FLOW_WAYS, LB4_PATH, LB6_PATH, SNAT4_SIZE, SNAT6_SIZE, PathFlag

_U64 = (1 << 64) - 1
_GEN = 0x3FFF
_BUSY = 0x8000
_CHUNK = 1 << 20  # bytes of the old table looked at in one go
_BUCKET_WORD = 0xFFFF0000  # of a seen word: belongs to the bucket, not to the entry
_UDP, _TCP = 17, 6
_PROTO_SHIFT = 14
_SLOT_MARK = 0x8000
_CLOSING = 2  # CT_CLOSING
_SWAP = struct.Struct(">H")


class Hash:
    """The seeded hash of the programs."""

    def __init__(self, seed0: int, seed1: int) -> None:
        """Take the seeds of lb_config."""
        self._seed0, self._seed1 = seed0, seed1 | 1

    def mix(self, k: int) -> int:
        """`mix` of entry.h."""
        k = ((k ^ self._seed0) * self._seed1) & _U64
        k ^= k >> 32
        k = k * 0x9FB21C651E98DF25 & _U64
        return k ^ k >> 29

    def mix6(self, high: int, low: int, k: int) -> int:
        """`mix6` of entry.h, over the two words of an address."""
        x = ((high ^ self._seed0) * self._seed1) & _U64
        x ^= x >> 32
        x = ((x + low) & _U64) * 0x9FB21C651E98DF25 & _U64
        x ^= x >> 32
        return self.mix(x ^ k)


class Mover:
    """Copies one family's flows, and the SNAT slots they hold, from `old` maps to `new` ones.

    `copy` takes everything; `follow`, once the programs on the old maps make no new flows, takes what changed since.
    """

    def __init__(self, family: str, old: LBMaps, new: LBMaps, hash_: Hash, now: int) -> None:
        """`now` is the programs' clock in ticks."""
        self.moved = self.spilled = self.lost = 0  # lost: not closing, and its SNAT slot collides in a smaller table
        self._family, self._old, self._new, self._hash = family, old, new, hash_
        self._words, self._value, self._seen = (4, 2, 3) if family == "4" else (8, 5, 6)
        self._slot_words = (SNAT4_SIZE if family == "4" else SNAT6_SIZE) // 8
        self._stamp = (now >> 8 & 0xFF) or 1
        entries = new.sizes.flow4 if family == "4" else new.sizes.flow6
        self._mask = (entries - 1) & ~(FLOW_WAYS - 1)
        self._taken: dict[int, bytes] = {}  # chunks of the old table as they were copied, by offset
        self._places: dict[int, int] = {}  # entry in the old table -> in the new one
        self._rows: list[Item] = []  # for the spill map
        self._backends: dict[int, tuple[int, bytes]] = {}
        self._moves_flows = old.specs[f"lb{family}_flow"] != new.specs[f"lb{family}_flow"]
        self._moves_slots = old.specs[f"lb{family}_snat"] != new.specs[f"lb{family}_snat"]

    # --- the two passes ---

    def copy(self) -> None:
        """Take every flow of the old table."""
        self._taken = dict(self._chunks())
        self._pass(lambda: self._all(closing=False))
        self._pass(lambda: self._all(closing=True))  # these take what room is left

    def follow(self) -> None:
        """Take flows that came, went or changed since `copy`, and those in the spill map."""
        self._pass(self._changed)
        self._stamp_spilled()
        self._new.put_many(f"lb{self._family}_spill", self._rows)
        self.spilled = len(self._rows)

    def _pass(self, entries: Callable[[], Iterator[tuple[int, tuple[int, ...]]]]) -> None:
        name, snat = f"lb{self._family}_flow", f"lb{self._family}_snat"
        with (
            self._new.window(name, 0, self._new.specs[name].value_size) as table,
            self._old.window(snat, 0, self._old.specs[snat].value_size) as old_slots,
            self._new.window(snat, 0, self._new.specs[snat].value_size) as new_slots,
            table.cast("Q") as words,
            old_slots.cast("Q") as slots_from,
            new_slots.cast("Q") as slots_to,
        ):
            for index, entry in entries():
                if self._moves_slots and not self._take_slot(slots_from, slots_to, entry[self._value]):
                    self.lost += not self._is_closing(entry)
                    continue
                if self._moves_flows:
                    self._place(table, words, index, entry)

    def _all(self, *, closing: bool) -> Iterator[tuple[int, tuple[int, ...]]]:
        for offset, chunk in self._taken.items():
            for index, entry in self._live(offset, chunk):
                if self._is_closing(entry) is closing:
                    yield index, entry

    def _is_closing(self, entry: tuple[int, ...]) -> bool:
        return entry[self._value] >> 16 & 3 == _CLOSING

    def _changed(self) -> Iterator[tuple[int, tuple[int, ...]]]:
        size = self._words * 8
        empty = bytes(size)
        for offset, chunk in self._chunks():
            before = self._taken.pop(offset, b"")
            if chunk == before:
                continue
            for at in range(0, len(chunk), size):
                old, new = before[at : at + size] or empty, chunk[at : at + size]
                if old[: self._seen * 8] == new[: self._seen * 8]:
                    continue  # only seen once more
                index = (offset + at) // size
                self._forget(index)
                yield from self._live(offset + at, new)
        for offset, chunk in self._taken.items():  # nothing is left there
            for at in range(0, len(chunk), size):
                self._forget((offset + at) // size)

    def _chunks(self) -> Iterator[tuple[int, bytes]]:
        """Yield (offset, bytes) of the parts of the old table that hold anything."""
        name = f"lb{self._family}_flow"
        size = self._old.specs[name].value_size
        for offset in range(0, size, _CHUNK):
            with self._old.window(name, offset, min(_CHUNK, size - offset)) as view:
                chunk = bytes(view)
            if chunk.strip(b"\0"):
                yield offset, chunk

    def _live(self, offset: int, chunk: bytes) -> Iterator[tuple[int, tuple[int, ...]]]:
        words, count = memoryview(chunk).cast("Q"), self._words
        first = offset // (count * 8)
        for index, owner in enumerate(words.tolist()[::count]):
            if owner >> 16 and not owner & _BUSY:
                yield first + index, tuple(words[index * count : (index + 1) * count])

    # --- one flow ---

    def _key_hash(self, entry: tuple[int, ...]) -> int:
        owner = entry[0]
        if self._family == "4":
            return self._hash.mix(owner & ~_GEN & _U64)
        protocol = _UDP if owner >> _PROTO_SHIFT & 1 else _TCP
        return self._hash.mix6(entry[1], entry[2], owner >> 48 << 16 | protocol)

    def _place(self, table: memoryview, words: memoryview, index: int, entry: tuple[int, ...]) -> None:
        hashed, count, seen = self._key_hash(entry), self._words, self._seen
        primary = hashed & self._mask
        for second, base in enumerate((primary, hashed >> 32 & self._mask)):
            for way in range(base, base + FLOW_WAYS):
                at = way * count
                if words[at] >> 16:
                    continue
                for number, word in enumerate(entry):
                    words[at + number] = word
                words[at + seen] = entry[seen] & ~_BUCKET_WORD & _U64 | words[at + seen] & _BUCKET_WORD
                if second:
                    table[self._stamp_at(primary)] = self._stamp
                self._places[index] = way
                self.moved += 1
                return
        if self._is_closing(entry):
            return  # it has said everything
        self._rows += self._spill_rows(entry)
        table[self._stamp_at(primary) + 1] = self._stamp

    def _stamp_at(self, bucket: int) -> int:
        """Return the offset of a bucket's two stamps: in way 1, behind its last-seen."""
        return ((bucket + 1) * self._words + self._seen) * 8 + 2

    def _forget(self, index: int) -> None:
        """Free the copy of an entry that is no more what it was."""
        place = self._places.pop(index, None)
        if place is None:
            return
        name, size = f"lb{self._family}_flow", self._words * 8
        with self._new.window(name, place * size, size) as view, view.cast("Q") as words:
            bucket = words[self._seen] & _BUCKET_WORD
            for number in range(self._words):
                words[number] = 0
            words[self._seen] = bucket
        self.moved -= 1

    # --- what has no room, and what lay in the spill map before ---

    def _spill_rows(self, entry: tuple[int, ...]) -> Iterator[Item]:
        """Yield the row of a flow, and of a flow without SNAT the row its replies are found by (create.h)."""
        value, seen, owner = entry[self._value], entry[self._seen], entry[0] & ~_GEN & _U64
        packed = struct.pack("=QQ", value & ~_GEN & _U64, seen & 0xFFFF | (seen >> 32 & 0xFFFF) << 32)
        if self._family == "4":
            yield struct.pack("=QQ", owner, entry[1] & ~_GEN & _U64), packed
        else:
            yield struct.pack("=5Q", owner, *entry[1:5]), packed
        if value >> 20 & 0xFFFF:
            return
        _, record = self._backend(value >> 44)
        if self._family == "4":
            address, port = struct.unpack_from("<I4xH", record)
            yield struct.pack("=QQ", owner, address << 32 | port << 16 | 1), packed
        else:
            high, low = struct.unpack_from("<QQ", record)
            port = struct.unpack_from("<H", record, 32)[0]
            reply = owner >> 48 << 48 | port << 32 | low >> 48 << 16 | owner & 3 << _PROTO_SHIFT | 1
            yield struct.pack("=5Q", reply, entry[1], entry[2], high, low), packed

    def _stamp_spilled(self) -> None:
        """Say in the new table's buckets which flows lie in the spill map; take their slots along."""
        name, snat = f"lb{self._family}_flow", f"lb{self._family}_snat"
        for key, value in self._old.items(f"lb{self._family}_spill"):
            entry = struct.unpack(f"={len(key) // 8}Q", key)
            bucket = self._key_hash(entry) & self._mask
            with self._new.window(name, self._stamp_at(bucket) + 1, 1) as view:
                view[0] = self._stamp
            if self._moves_slots:
                with (
                    self._old.window(snat, 0, self._old.specs[snat].value_size) as old,
                    self._new.window(snat, 0, self._new.specs[snat].value_size) as new,
                    old.cast("Q") as slots_from,
                    new.cast("Q") as slots_to,
                ):
                    self._take_slot(slots_from, slots_to, struct.unpack_from("=Q", value)[0])

    # --- SNAT slots ---

    def _backend(self, ident: int) -> tuple[int, bytes]:
        """Return (hash, path record) of a backend: where its slots begin."""
        known = self._backends.get(ident)
        if known is None:
            name = f"lb{self._family}_path"
            size = LB4_PATH.size if self._family == "4" else LB6_PATH.size
            count = self._old.specs[name].value_size // size
            with self._old.window(name, ident % count * size, size) as view:
                record = bytes(view)
            known = self._backends[ident] = (self._backend_hash(record), record)
        return known

    def _backend_hash(self, record: bytes) -> int:
        at = 8 if self._family == "4" else 32  # port, gen, flags
        port, flags = struct.unpack_from("<HxB", record, at)
        tail = port << 16 | (_UDP if flags & PathFlag.UDP else _TCP) | _SLOT_MARK
        if self._family == "4":
            return self._hash.mix(struct.unpack_from("<I", record)[0] << 32 | tail)
        high, low = struct.unpack_from("<QQ", record)
        return self._hash.mix6(high, low, tail)

    def _take_slot(self, slots_from: memoryview, slots_to: memoryview, value: int) -> bool:
        """Copy the slot of a flow's value; return False when another flow has its place in the new table."""
        raw_port = value >> 20 & 0xFFFF
        if not raw_port:
            return True
        port = _SWAP.unpack(raw_port.to_bytes(2, "little"))[0]
        start, count = self._backend(value >> 44)[0], self._slot_words
        source = (start + port) % (len(slots_from) // count) * count
        target = (start + port) % (len(slots_to) // count) * count
        if slots_from[source + count - 1] >> 44 != value >> 44:
            return True  # it lost its slot long ago
        mine = slots_from[source] >> 16
        if slots_to[target] >> 16 not in (0, mine):
            return False
        for number in range(count - 1, -1, -1):
            slots_to[target + number] = slots_from[source + number]
        return True
