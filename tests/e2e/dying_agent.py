"""The real agent, killed after its n-th write to a map: `LAB_DIE_AFTER=n python -m tests.e2e.dying_agent agent ...`.

Every entry counts as one write, also those that the agent passes to the kernel in one batch: the batch is split so that the agent
dies between two of them. With n beyond the last write it is an ordinary agent.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterable, Mapping, Sequence

from lbagent.cli.main import main
from lbagent.maps.kernel_maps import KernelMaps

left = int(os.environ["LAB_DIE_AFTER"])


def spend(count: int) -> int:
    """Return how many of these writes may still be done."""
    global left
    allowed = min(count, left)
    left -= allowed
    return allowed


def die() -> None:
    """End as by the out-of-memory killer."""
    sys.stderr.write("dying\n")
    sys.stderr.flush()
    os.kill(os.getpid(), signal.SIGKILL)


class DyingMaps:
    """KernelMaps' writing methods, counted."""

    put_batch = KernelMaps.put_batch
    delete_many = KernelMaps.delete_many
    set_maglev = KernelMaps.set_maglev
    delete_maglev = KernelMaps.delete_maglev
    store = KernelMaps.store


def put_batch(self: KernelMaps, map_name: str, keys: bytes, values: bytes, start: int, stop: int) -> None:
    allowed = spend(stop - start)
    if allowed:
        DyingMaps.put_batch(self, map_name, keys, values, start, start + allowed)
    if allowed < stop - start:
        die()


def delete_many(self: KernelMaps, map_name: str, keys: Sequence[bytes]) -> None:
    allowed = spend(len(keys))
    DyingMaps.delete_many(self, map_name, keys[:allowed])
    if allowed < len(keys):
        die()


def set_maglev(self: KernelMaps, map_name: str, tables: Mapping[int, bytes]) -> None:
    for service_id, table in tables.items():
        if not spend(1):
            die()
        DyingMaps.set_maglev(self, map_name, {service_id: table})


def delete_maglev(self: KernelMaps, map_name: str, service_ids: Sequence[int]) -> None:
    for service_id in service_ids:
        if not spend(1):
            die()
        DyingMaps.delete_maglev(self, map_name, [service_id])


def store(self: KernelMaps, map_name: str, words: Iterable[tuple[int, bytes]]) -> None:
    for word in words:
        if not spend(1):
            die()
        DyingMaps.store(self, map_name, [word])


def store_parts(self: KernelMaps, map_name: str, offset: int, stride: int, parts: bytes, width: int) -> None:
    for part in range(len(parts) // width):
        for at in range(0, width, 8):
            word = parts[part * width + at :][:8]
            store(self, map_name, [(offset + part * stride + at, word)])


for method in (put_batch, delete_many, set_maglev, delete_maglev, store, store_parts):
    setattr(KernelMaps, method.__name__, method)

if __name__ == "__main__":
    main()
