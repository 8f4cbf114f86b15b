"""The event rings (lb_events; bpf/include/base/event.h writes them): one array of one value, which readers map into memory.

The value has a ring for each possible CPU: a head of EVENT_BYTES, then a power of two of records of EVENT_BYTES. Record number n
of a ring, counted from 0, is in its slot n modulo the number of slots. The ring that a CPU writes belongs to it alone.

Head and record begin with words of 64 bits in host order. The words of a record: 0: number of the record (its lowest 32 bits) and
generation of the State; 1: jiffies of the kernel; 2: index of the device, bytes of the frame, Reason; 3: ids, SNAT port, kept bytes
of the frame, EventHook, whether the packet is one of a flow that there was (only while packets are sampled), and in the last bit
whether the frame is the one that leaves. Such a record is the next one of its ring
behind that of the frame as it arrived. Its device is the one by which it leaves, 0 where the stack has it.

The first bytes of the frame follow, as it arrived, up to the end of the L4 header. What is behind them is zero or from the headers
of an earlier frame; the programs never copy payload, and `frame_of` cuts at the kept bytes.
"""

from __future__ import annotations

from enum import IntEnum

EVENT_MAP = "lb_events"
EVENT_BYTES = 128  # of a record, and of the head of a ring
EVENT_FRAME_AT = 32  # offset of the frame in a record
EVENT_FRAME_BYTES = EVENT_BYTES - EVENT_FRAME_AT

# place of the fields in words 0, 2 and 3 of a record, each up to the next one; the first field of a word is at bit 0
EVENT_GENERATION_SHIFT = 32
EVENT_LENGTH_SHIFT, EVENT_REASON_SHIFT = 32, 56
EVENT_SERVICE_SHIFT, EVENT_SNAT_PORT_SHIFT, EVENT_KEPT_SHIFT, EVENT_HOOK_SHIFT = 20, 36, 52, 59
EVENT_KNOWN_SHIFT, EVENT_AFTER_SHIFT = 62, 63

# words of the head of a ring
EVENT_HEAD_WRITTEN = 0  # records that were written since the map was made; stored after the record
EVENT_HEAD_LIMITED = 1  # events that --event-rate left out
EVENT_HEAD_BUCKET = 2  # of the rate limit, as those of lb_ratelimit
EVENT_HEAD_GENERATION = 3  # of the State in force; the agent writes it


class EventHook(IntEnum):
    """The hook whose program wrote a record."""

    XDP = 0
    TC_INGRESS = 1
    TC_EGRESS = 2
    TC_AFTER_XDP = 3


def ring_slots(events: int, rings: int) -> int:
    """Return the slots of each ring: the largest power of two of which all rings have at most `events`, but 2 at least; 0 for 0."""
    return 1 << max((events // rings).bit_length() - 1, 1) if events else 0


def events_bytes(slots: int, rings: int) -> int:
    """Return the bytes of the value of lb_events."""
    return rings * (1 + slots) * EVENT_BYTES


def slots_of(value_size: int, rings: int) -> int | None:
    """Return the slots of each ring in a value of so many bytes; None if a value of so many rings never has this size."""
    slots = value_size // (rings * EVENT_BYTES) - 1
    is_power = slots >= 2 and not slots & (slots - 1)
    return slots if is_power and events_bytes(slots, rings) == value_size else None
