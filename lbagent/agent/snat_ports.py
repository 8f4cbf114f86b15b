"""Which backends are nearly out of SNAT ports, by the live flows of the last sweep. Pure.

Each backend has the whole range of `--snat-ports`: what runs short, runs short for one backend.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from lbagent.model.state import State

NEARLY = (
    0.9  # of a backend's ports held: new flows look at some dozens of ports, and hardly find a free one from here on
)
MAX_NAMED = 10


def short_of_ports(state: State, flows: Mapping[int, int], ports: int) -> list[str]:
    """Return one line for each remote backend whose ports are nearly all held; `flows` are live flows by backend id."""
    many = {number: count for number, count in flows.items() if count >= NEARLY * ports}
    if not many:
        return []
    short = [item for item in state.backends.values() if item.id in many and not item.local]
    short.sort(key=lambda backend: -many[backend.id])
    lines = [
        f"{backend.address.with_protocol()} ({', '.join(_services(state, backend.id))}): {many[backend.id]} flows hold SNAT"
        f" ports, of {ports} in --snat-ports for each backend; a wider range or more backends give more"
        for backend in short[:MAX_NAMED]
    ]
    more = len(short) - MAX_NAMED
    return [*lines, f"{more} more backends are short of SNAT ports"] if more > 0 else lines


def _services(state: State, backend_id: int) -> Iterator[str]:
    """Yield the Services of a backend, each once, sorted."""
    yield from sorted({str(svc.name) for svc in state.services for item in svc.backends if item.id == backend_id})
