"""FaultyMaps: errors and kills at any single write to LBMaps."""

from __future__ import annotations

import errno
import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager

from lbagent.errors import KernelError
from lbagent.maps.lbmaps import Item, LBMaps, TrafficCounter
from lbagent.maps.memory_maps import unpack_items


class Killed(BaseException):
    """The process ended here: what a FaultyMaps raises for SIGKILL, past every `except Exception`."""


Fault = Callable[[int, str], None]  # number of the write from 0, map name


class FaultyMaps:
    """LBMaps over other LBMaps, split into single writes, so that each can fail.

    `before(n, map)` runs before write n: its exception replaces the write, a KernelError as the kernel reports it (entries
    before it stay, `done` counts them). `after(n, map)` runs when the write is done. Reads never fail.
    """

    def __init__(self, maps: LBMaps, before: Fault | None = None, after: Fault | None = None) -> None:
        self.inner = maps
        self.sizes, self.specs = maps.sizes, maps.specs
        self.before, self.after = before, after
        self.writes = 0

    @contextmanager
    def _write(self, map_name: str, done: int = 0) -> Iterator[None]:
        try:
            if self.before:
                self.before(self.writes, map_name)
            yield
        except KernelError as error:
            error.done = done
            raise
        finally:
            self.writes += 1
        if self.after:
            self.after(self.writes - 1, map_name)

    def put_many(self, map_name: str, items: Sequence[Item]) -> None:
        """Write entry by entry."""
        for done, item in enumerate(items):
            with self._write(map_name, done):
                self.inner.put_many(map_name, [item])

    def put_batch(self, map_name: str, keys: bytes, values: bytes, start: int, stop: int) -> None:
        """Write entry by entry."""
        self.put_many(map_name, unpack_items(self.specs[map_name], keys, values, start, stop))

    def delete_many(self, map_name: str, keys: Sequence[bytes]) -> None:
        """Delete entry by entry."""
        for done, key in enumerate(keys):
            with self._write(map_name, done):
                self.inner.delete_many(map_name, [key])

    def get(self, map_name: str, key: bytes) -> bytes | None:
        """Read."""
        return self.inner.get(map_name, key)

    def items(self, map_name: str) -> list[Item]:
        """Read."""
        return self.inner.items(map_name)

    def batches(self, map_name: str) -> Iterator[tuple[bytes, bytes, int]]:
        """Read."""
        return self.inner.batches(map_name)

    def set_maglev(self, map_name: str, tables: Mapping[int, bytes]) -> None:
        """Swap table by table."""
        for done, (ident, table) in enumerate(tables.items()):
            with self._write(map_name, done):
                self.inner.set_maglev(map_name, {ident: table})

    def delete_maglev(self, map_name: str, service_ids: Sequence[int]) -> None:
        """Delete table by table."""
        for done, ident in enumerate(service_ids):
            with self._write(map_name, done):
                self.inner.delete_maglev(map_name, [ident])

    def maglev(self, map_name: str) -> dict[int, bytes]:
        """Read."""
        return self.inner.maglev(map_name)

    def maglev_ids(self, map_name: str) -> set[int]:
        """Read."""
        return self.inner.maglev_ids(map_name)

    def window(self, map_name: str, offset: int, length: int) -> AbstractContextManager[memoryview]:
        """Read, or write past the faults."""
        return self.inner.window(map_name, offset, length)

    def store(self, map_name: str, words: Iterable[tuple[int, bytes]]) -> None:
        """Store word by word."""
        for done, word in enumerate(words):
            with self._write(map_name, done):
                self.inner.store(map_name, [word])

    def store_parts(self, map_name: str, offset: int, stride: int, parts: bytes, width: int) -> None:
        """Store word by word."""
        each = ((part, at) for part in range(len(parts) // width) for at in range(0, width, 8))
        words = ((offset + part * stride + at, parts[part * width + at :][:8]) for part, at in each)
        self.store(map_name, words)

    def counters(self, indexes: Sequence[int]) -> list[TrafficCounter]:
        """Read."""
        return self.inner.counters(indexes)

    def zero_counters(self, indexes: Sequence[int]) -> None:
        """Write counter by counter."""
        for done, index in enumerate(indexes):
            with self._write("lb_metrics", done):
                self.inner.zero_counters([index])


def fail_at(number: int, error: BaseException) -> Fault:
    """Return a `before` hook that raises at one write: a KernelError, a MapFull, Killed()."""

    def before(n: int, _: str) -> None:
        if n == number:
            raise error

    return before


def fail_often(probability: float, seed: int) -> Fault:
    """Return a `before` hook that fails writes at random, the same ones for the same seed."""
    rng = random.Random(seed)

    def before(_: int, map_name: str) -> None:
        if rng.random() < probability:
            raise KernelError("update", errno.ENOMEM, map_name)

    return before
