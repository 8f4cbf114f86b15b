"""The programs' writes, field by field of maps/flow_layout.py: flow entries, SNAT slots, spill rows.

A field without an expected value fails the test, and so does a set bit of no field. One bucket of four entries, one SNAT
port, and time stands still.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

import pytest

from lbagent.maps import flow_reader
from lbagent.maps.flow_layout import (
    REPLY_MARK,
    SNAT_STAMP_TICKS,
    SPILL_KEY_WORDS,
    SPILL_VALUE,
    Fin,
    FlowState,
    ForwardMode,
    WordRecord,
)
from lbagent.maps.layout import PathL4
from lbagent.maps.reasons import Reason
from lbagent.model import family as model
from tests.packet import craft, table
from tests.packet.caller import Caller
from tests.packet.clock import TimedWorld
from tests.packet.craft import Family
from tests.packet.table import Fields, host_order
from tests.packet.test_leases import full_table
from tests.packet.world import TCP, UDP, XDP, World

SERVICE, BACKEND_GENERATION = 0x9A53, 0xA5
SNAT_PORT = 2000  # the only one of still_world
OLDER_BACKENDS = 4
LASTED_TICKS = 2  # after the first reply: a datagram shows that a UDP conversation lasts
_C1, _C2 = 0x9E3779B97F4A7C15, 0x9FB21C651E98DF25  # of fast_path_csum()


def conversation(timed: TimedWorld, fam: Family, proto: int, *, local: bool) -> Caller:
    """Let a flow be established, its next hop to the client be learned, and its client send a packet two ticks later."""
    world = timed.world
    for n in range(2, OLDER_BACKENDS + 2):
        world.backend(fam, fam.remote(n), 8080, proto)
    world.nexthop(world.net.lb0, craft.ROUTER_MAC, craft.NODE_MAC)
    address = fam.local(1) if local else fam.remote(1)
    backend = world.backend(fam, address, 8080, proto, local=local, gen=BACKEND_GENERATION)
    talk = Caller(world, world.service(fam, fam.vip, 80, proto, [backend], ident=SERVICE), hook=XDP)
    talk.establish()
    timed.clock.pass_ticks(LASTED_TICKS)
    assert talk.stays()
    assert talk.is_answered()
    return talk


def router(world: World) -> int:
    """Return the index of the next hop towards the clients."""
    return world.nexthops[world.net.lb0, craft.ROUTER_MAC]


def address_fields(fam: Family, name: str, address: str) -> Fields:
    """Return the fields of an address, which lies in its words as in a packet."""
    packed = fam.packed(address)
    if fam.version == 4:
        return {name: int.from_bytes(packed, "little")}
    first, second = struct.unpack("<2Q", packed)
    return {name: first, f"{name}_end": second}


def key_fields(talk: Caller, generation: int) -> Fields:
    """Return the fields of the words by which an entry is found."""
    fam = talk.fam
    found = {
        "generation": generation,
        "l4": {TCP: PathL4.TCP, UDP: PathL4.UDP}[talk.service.proto],
        "client_port": host_order(talk.port),
        "vip_port": host_order(talk.service.port),
        **address_fields(fam, "client", talk.client),
        **address_fields(fam, "vip", talk.service.address),
    }
    if fam.version == 4:
        return found | {"vip_generation": generation}
    return found | {"vip_tail": int.from_bytes(fam.packed(talk.service.address)[14:], "little")}


def value_fields(talk: Caller, generation: int, state: FlowState, fin: int) -> Fields:
    """Return the fields of the value word."""
    assert talk.backend
    local = talk.backend.local
    return {
        "value_generation": generation,
        "snat_generation": 0 if local else 1,
        "state": state,
        "fin": fin,
        "forward": ForwardMode.LOCAL << 8 if local else host_order(SNAT_PORT),
        "backend_generation": BACKEND_GENERATION,
        "backend": talk.backend.id,
    }


def seen_fields(timed: TimedWorld, talk: Caller, bucket: int) -> Fields:
    """Return the fields of the seen word; a SNAT flow has its next hop towards the client in the slot."""
    assert talk.backend
    return {
        "last_seen": timed.clock.tick,
        "bucket": bucket,
        "service": SERVICE,
        "client_hop": router(timed.world) if talk.backend.local else 0,
    }


def checksum_fields(talk: Caller, found: Fields, words: Sequence[int]) -> Fields:
    """Return the fields of an IPv6 entry's last word: what the translation adds to the checksum, and what that depends on.

    The fast path writes them, for which an empty datagram is too short.
    """
    if talk.service.proto == UDP:
        return {"checksum": 0, "checksum_mark": 0}
    assert talk.backend
    fam = talk.fam
    before = [talk.client, talk.port, talk.service.address, talk.service.port]
    after = [*talk.source, talk.backend.address, talk.backend.port]
    added = sum(_part(fam, part) for part in after) - sum(_part(fam, part) for part in before)
    assert (found["checksum"] - added) % 0xFFFF == 0
    first, second = struct.unpack("<2Q", fam.packed(talk.source[0]))
    state, fin = (table.flow_record(fam).fields[name] for name in ("state", "fin"))
    identity = words[state.word] & ~(state.mask | fin.mask)
    mark = ((first * _C1 + second) ^ identity) * _C2
    return {"checksum": found["checksum"], "checksum_mark": (mark & (1 << 64) - 1) >> 16}


def _part(fam: Family, part: str | int) -> int:
    """Return what an address or a port adds to a checksum, in the order of the bytes in memory."""
    packed = part.to_bytes(2, "big") if isinstance(part, int) else fam.packed(part)
    return sum(struct.unpack(f"<{len(packed) // 2}H", packed))


def entry_words(timed: TimedWorld, fam: Family) -> list[int]:
    """Return the words of the first entry."""
    record = table.flow_record(fam)
    with timed.world.maps.window(f"lb{fam.version}_flow", 0, record.size) as view, view.cast("Q") as words:
        return words.tolist()


def nothing_else(record: WordRecord, words: Sequence[int]) -> bool:
    """Whether all bits of no field are 0."""
    bits = [0] * record.words
    for field in record.fields.values():
        bits[field.word] |= field.mask
    return not any(word & ~mask for word, mask in zip(words, bits, strict=True))


@pytest.mark.parametrize("local", [False, True], ids=["remote", "local"])
@pytest.mark.parametrize("proto", [TCP, UDP], ids=["tcp", "udp"])
def test_flow_entry(still_world: TimedWorld, fam: Family, proto: int, *, local: bool) -> None:
    """An established flow. The bucket's first insertion was its own."""
    talk = conversation(still_world, fam, proto, local=local)
    record, words = table.flow_record(fam), entry_words(still_world, fam)
    lasted = Fin.CLIENT if proto == UDP and not local else 0
    expected = (
        key_fields(talk, 1) | value_fields(talk, 1, FlowState.ESTABLISHED, lasted) | seen_fields(still_world, talk, 2)
    )
    found = table.fields(record, words)
    if fam.version == 6:
        expected |= checksum_fields(talk, found, words)
    assert found == expected
    assert nothing_else(record, words)


def test_ends_of_a_connection(still_world: TimedWorld, fam: Family) -> None:
    """FIN of the client, FIN of both."""
    talk = conversation(still_world, fam, TCP, local=False)
    talk.send("FA")
    (entry,) = table.held_entries(still_world.world, fam).values()
    assert (entry["state"], entry["fin"]) == (FlowState.ESTABLISHED, Fin.CLIENT)
    talk.answer("FA")
    (entry,) = table.held_entries(still_world.world, fam).values()
    assert (entry["state"], entry["fin"]) == (FlowState.CLOSING, Fin.CLIENT | Fin.BACKEND)


@pytest.mark.parametrize("proto", [TCP, UDP], ids=["tcp", "udp"])
def test_snat_slot(still_world: TimedWorld, fam: Family, proto: int) -> None:
    """The slot of an established flow; its lease began with the last change of the flow's state."""
    talk = conversation(still_world, fam, proto, local=False)
    assert talk.backend
    (position,) = table.held_slot_indexes(still_world.world, fam)
    record = table.slot_record(fam)
    with still_world.world.maps.window(f"lb{fam.version}_snat", position * record.size, record.size) as view:
        words = struct.unpack(f"={record.words}Q", view)
    expected = {
        "generation": 1,
        "client_port": host_order(talk.port),
        **address_fields(fam, "client", talk.client),
        "meta_generation": 1,
        "stamp": still_world.clock.tick // SNAT_STAMP_TICKS & 0xFFF,
        "client_hop": router(still_world.world),
        "service": SERVICE,
        "backend": talk.backend.id,
    } | ({"held": 1} if fam.version == 6 else {})
    assert table.fields(record, words) == expected
    assert nothing_else(record, words)


def test_spill_rows(still_world: TimedWorld, fam: Family) -> None:
    """A flow without room in the table: a row by its own key, and one by which its backend's replies find it."""
    full_table(still_world, fam, XDP)
    world = still_world.world
    backend = world.backend(fam, fam.local(2), 8080, local=True, gen=BACKEND_GENERATION)
    talk = Caller(world, world.service(fam, fam.vip, 80, TCP, [backend], ident=SERVICE), hook=XDP)
    assert talk.send("S").counted == {Reason.FWD_SPILL: 1}
    record = table.flow_record(fam)
    count = SPILL_KEY_WORDS[model.Family(fam.version)]
    by_fields = {name: field for name, field in record.fields.items() if field.word < count}
    rows = {}
    for key, value in world.maps.items(f"lb{fam.version}_spill"):
        words = struct.unpack(f"={count}Q", key)
        found = {name: field.of(words[field.word]) for name, field in by_fields.items()}
        rows[found["generation"] | found.get("vip_generation", 0)] = found
        assert table.fields(SPILL_VALUE, struct.unpack("=2Q", value)) == (
            value_fields(talk, 0, FlowState.NEW, 0)
            | {"last_seen": still_world.clock.tick, "bucket": 0, "service": SERVICE, "client_hop": 0}
        )
    reply = {"vip_port": host_order(8080), **address_fields(fam, "vip", backend.address)}
    if fam.version == 4:
        reply["vip_generation"] = REPLY_MARK
    else:
        reply |= {"generation": REPLY_MARK, "vip_tail": int.from_bytes(fam.packed(backend.address)[14:], "little")}
    assert rows == {0: key_fields(talk, 0), REPLY_MARK: key_fields(talk, 0) | reply}
    (flow,) = flow_reader.spilled_flows(world.maps, model.Family(fam.version))
    assert (flow.spilled, fam.text(flow.client), flow.client_port) == (True, *talk.endpoint)
    assert (fam.text(flow.vip), flow.vip_port) == (talk.service.address, talk.service.port)
    assert (flow.service, flow.backend, flow.backend_generation) == (SERVICE, backend.id, BACKEND_GENERATION)
    assert (flow.l4, flow.state, flow.mode) == (PathL4.TCP, FlowState.NEW, ForwardMode.LOCAL)
