"""The trace of a dry program (bpf/include/base/trace.h): records of three u64, a step and its two words.

A dry program is a program compiled with LB_DRY: it stores nothing, counts nothing, and records each of its steps here. The trace
is an array of one value that no other program uses and that is never pinned.
"""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple

TRACE_WORDS = (
    3  # u64 of a record; the first one of the value is the number of records, the rest of its words are unused
)
TRACE_RECORDS = 64  # a power of two; a packet has some 15
TRACE_BYTES = (1 + TRACE_RECORDS) * TRACE_WORDS * 8


class TraceStep(IntEnum):
    """The steps; `a` and `b` are the words of their records."""

    REASON = 1  # a: Reason or Event that is counted
    PARSE = 2  # the parser of all frames, not that of plain ones alone
    FILTER = 3  # a: bits of the prefilter, TRACE_CONCERN_*
    SNAT_SLOT = 4  # a: 1 held, 0 free; b: backend id | service id << 32
    FLOW = 5  # a: TRACE_HIT or TRACE_MISS | service id << 32; b: value word
    STALE = 6  # the flow needs another backend
    SERVICE = 7  # a: TRACE_HIT, TRACE_MISS or TRACE_WILDCARD; b: service id
    SCOPE = 8  # a: 1 internal, 0 external; b: Reason, 0: continues
    SOURCE_RANGE = 9  # a: Reason, 0: admitted
    AFFINITY = 10  # a: backend id, 0: none
    SELECT = 11  # a: backend id; b: Reason, 0: continues
    SNAT_PORT = 12  # a: port, 0: none is free; b: path record's id
    PATH = 13  # a: path record's id; b: its meta word
    NEXT_HOP = 14  # a: TRACE_OUT_*; b: ifindex
    SEND = 15  # a: ifindex; b: flags of bpf_redirect()
    ANSWER = 16  # a: Reason; b: MTU
    PROXY = 17  # a: TRACE_PROXY_*; b: port of the L7 proxy


TRACE_MISS, TRACE_HIT, TRACE_WILDCARD = 0, 1, 2
# no socket of a proxy; the packet leaves the node; the kernel has its connection; a socket waits for new ones
TRACE_PROXY_NONE, TRACE_PROXY_LEAVES, TRACE_PROXY_CONNECTED, TRACE_PROXY_FOUND = range(4)


class TraceRecord(NamedTuple):
    """One record."""

    step: TraceStep
    a: int
    b: int


def records(value: bytes) -> list[TraceRecord]:
    """Return the records of a trace, the oldest one first. Raises ValueError where more were written than it holds."""
    words = memoryview(value).cast("Q").tolist()
    count, rest = words[0], words[TRACE_WORDS:]
    if count > TRACE_RECORDS:
        raise ValueError(f"a trace of {count} records; {TRACE_RECORDS} have room")
    triples = (rest[at * TRACE_WORDS : (at + 1) * TRACE_WORDS] for at in range(count))
    return [TraceRecord(TraceStep(step), a, b) for step, a, b in triples]
