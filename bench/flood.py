"""A SYN flood beside 65,536 established flows: what it costs, and which established packets it harms.

The flood's flows are never seen again but each SYN comes twice, which is enough for an LRU list to take a flood entry for one
in use. Tables hold twice the established flows. Every checked established packet is run by itself and compared, byte by
byte of its addresses and ports, with how the flow was translated before the flood.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from bench.datapath import Bench, Row, bench
from bench.harness import QUICK_ROUNDS, ROUNDS, pinned
from bench.wrapper import Plan, Tuple, tuple_of

ESTABLISHED = 65536
CHUNKS = 8  # flood and checks take turns
TX = 3


def flood_plan(made: Bench, *, keep: Plan | None = None) -> Plan:
    """Return established packets and flood SYNs, one to one."""
    return replace(keep or made.request_plan(ESTABLISHED), flood_from=made.shape.flooder, flood_copies=2)


def _translations(made: Bench, name: str, first: int, count: int) -> list[Tuple | None]:
    """Run one packet of each of these flows; None where it was not forwarded."""
    made.wrappers[name].set(replace(made.request_plan(1 << 16), base=first, in_order=True))
    subject = made.subject(name)
    out: list[Tuple | None] = []
    for _ in range(count):
        verdict, frame = subject.once()
        out.append(tuple_of(frame) if verdict == TX else None)
    return out


def harm(made: Bench, *, floods: int) -> dict[str, Any]:
    """Flood both programs (that many SYNs for each chunk of checks); count the established packets that went wrong."""
    made.establish(ESTABLISHED)
    result: dict[str, Any] = {}
    for name in ("ours", "textbook"):
        before = _translations(made, name, 0, ESTABLISHED)
        wrong = dropped = 0
        flood_at = 0
        for chunk in range(CHUNKS):
            wrapper = made.wrappers[name]
            wrapper.set(replace(flood_plan(made), base=0), place=(0, flood_at))
            made.subject(name).run(2 * floods)
            flood_at = wrapper.position[1]
            size = ESTABLISHED // CHUNKS
            now = _translations(made, name, chunk * size, size)
            pairs = list(zip(before[chunk * size :], now, strict=False))
            dropped += sum(1 for _, b in pairs if b is None)
            wrong += sum(1 for a, b in pairs if b is not None and a != b)
        result[name] = {"checked": ESTABLISHED, "misrouted": wrong, "dropped": dropped, "flood_syns": flood_at}
    return result


def measure(family: int, *, quick: bool) -> Iterator[Row]:
    """Yield the flood's row: cost of a packet of the mix, and the harm done in `extra`."""
    with pinned():
        with bench(family, 3, flows=2 * ESTABLISHED) as made:
            damage = harm(made, floods=131072 if quick else 524288)
        with bench(family, QUICK_ROUNDS if quick else ROUNDS, flows=2 * ESTABLISHED) as made:
            made.establish(ESTABLISHED)
            made.set(flood_plan(made))
            row = made.row("SYN flood 1:1 beside established", ESTABLISHED, TX, 0.60, harm=damage)
    yield row
