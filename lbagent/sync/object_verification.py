"""Compares the State with the objects of a new list: it finds a watch that stopped silently, and what a change left behind.

Every source that can be is listed a second time. What it missed is applied to a copy of the objects, these are resolved from
nothing, and the result is compared with the State that the data planes have. Whether a data plane has its State in the kernel is a
comparison of its own (`verify` of a data plane).
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from itertools import islice

from msgspec import Struct
from msgspec.structs import replace

from lbagent.errors import LbError, TimedOut
from lbagent.model.address import L3n4Addr
from lbagent.model.backend import Backend
from lbagent.model.cooperative import BETWEEN_YIELDS, Cooperative, run_in_background
from lbagent.model.family import Family
from lbagent.model.service import SVC
from lbagent.model.state import State
from lbagent.objects.records import FIELD_OF_KIND, ObjectSnapshot
from lbagent.objects.source import Missed, RereadSource, Source
from lbagent.process_memory import trim
from lbagent.sync.loop import SyncLoop

log = logging.getLogger(__name__)
OFF_S = 5.0  # while --verify-every is 0: until the setting is read again
SETTLE_S = 10.0  # for what the sources reported to be in force
SHOWN_S = 10.0  # what is repaired is shown so long
AT_REST = "at rest"  # the group of backends without a slot
JITTER = 0.1  # of the interval: the agents of all nodes do not list at once


class ObjectDifference(Struct, frozen=True):
    """In what the State differs at one frontend from the objects: `kind` is missing, stale or differs."""

    frontend: L3n4Addr
    service: str
    kind: str
    detail: str

    def __str__(self) -> str:
        """Return `NAMESPACE/NAME FRONTEND: KIND: DETAIL`."""
        return f"{self.service} {self.frontend.with_protocol()}: {self.kind}: {self.detail}"


class Verified(Struct, frozen=True):
    """The result of a comparison: differences of the State, and the places of each source that missed something."""

    differences: tuple[ObjectDifference, ...] = ()
    missed: Mapping[str, Sequence[str]] = {}

    @property
    def is_clean(self) -> bool:
        """Whether nothing differs."""
        return not (self.differences or self.missed)


class ObjectVerification:
    """Makes comparisons, one at a time: for commands, and by itself."""

    def __init__(
        self,
        loop: SyncLoop,
        sources: Sequence[Source],
        every_s: Callable[[], float],
        families_of: Mapping[str, frozenset[Family]],
    ) -> None:
        """`every_s` returns the seconds between two comparisons by itself; 0: none.

        `families_of` has the families of each data plane by its name; one that is missing serves both.
        """
        self.last_success = 0.0  # when a comparison last ended, seconds since the epoch
        self.last = Verified()  # its result
        self._repaired, self._repaired_at = Verified(), 0.0  # what was found and repaired last, monotonic seconds
        self._loop, self._every_s, self._families_of = loop, every_s, families_of
        self._sources = [source for source in sources if isinstance(source, RereadSource)]
        self._busy = asyncio.Lock()

    async def run(self) -> None:
        """Compare without end, have listed again what was missed, and compare again."""
        while True:
            every_s = self._every_s()
            await asyncio.sleep(every_s * random.uniform(1 - JITTER, 1 + JITTER) if every_s else OFF_S)
            if not every_s:
                continue
            try:
                if not (await self.look()).is_clean:
                    await self.repair()
            except (LbError, OSError) as error:
                log.info("the objects could not be compared", extra={"error": str(error)})

    async def repair(self) -> Verified:
        """Have listed again what the last comparison found missed; compare again. Raises TimedOut."""
        before = self.last
        for source in self._sources:
            if places := before.missed.get(source.name):
                source.list_again(places)
        if before.missed or before.differences:
            log.warning("objects were missed and are listed again", extra=_fields(before))
        after = await self.look()
        if after.is_clean and not before.is_clean:
            self._repaired, self._repaired_at = before, time.monotonic()
        return after

    async def look(self) -> Verified:
        """Compare once. Raises TimedOut where a source cannot be listed, or what it reported is not in force in time."""
        async with self._busy:
            missed = {source.name: await source.find_missed() for source in self._sources}
            found = await self._compare(missed)
            self.last = Verified(tuple(found), {name: each.places for name, each in missed.items() if each.places})
            self.last_success = time.time()
            self._count(self.last)
            await asyncio.to_thread(trim)
            return self.last

    @property
    def success_shown(self) -> float | None:
        """`last_success`; None while nothing is to be compared, by itself or by a command."""
        return self.last_success if self.last_success or (self._sources and self._every_s()) else None

    @property
    def repaired(self) -> Verified:
        """What was found and repaired a moment ago: what looks at it every few seconds sees it."""
        return self._repaired if time.monotonic() - self._repaired_at < SHOWN_S else Verified()

    def at_frontends_of(self, plane: str, found: Verified) -> list[ObjectDifference]:
        """Return the differences at frontends of the families that a data plane serves."""
        families = self._families_of.get(plane, frozenset(Family))
        return [each for each in found.differences if each.frontend.family in families]

    def _count(self, found: Verified) -> None:
        for runner in self._loop.runners:
            runner.object_differences = len(self.at_frontends_of(runner.target.name, found)) or len(found.missed)

    async def _compare(self, missed: Mapping[str, Missed]) -> list[ObjectDifference]:
        try:
            async with asyncio.timeout(SETTLE_S):
                objects, state = await self._loop.captured()
        except TimeoutError:
            raise TimedOut("the objects are not resolved in time, so nothing can be compared with them") from None
        wanted = await self._loop.resolve_from_start(with_missed(objects, missed), state)
        return await run_in_background(_comparing(wanted, state), time.monotonic, asyncio.sleep)


def _fields(found: Verified) -> dict[str, object]:
    fields: dict[str, object] = {name: ", ".join(places) for name, places in found.missed.items()}
    fields["differences"] = len(found.differences)
    return fields | ({"first": str(found.differences[0])} if found.differences else {})


def with_missed(objects: ObjectSnapshot, missed: Mapping[str, Missed]) -> ObjectSnapshot:
    """Return a snapshot of all objects with what the sources missed.

    An object that has changed since then stays, and one that another source has, too: that one may have precedence.
    """
    if not any(each.changes for each in missed.values()):
        return objects
    kinds = {field: dict(getattr(objects, field)) for field in FIELD_OF_KIND.values()}
    for each in missed.values():
        for change in each.changes:
            kind = kinds[FIELD_OF_KIND[change.kind]]
            if kind.get(change.key) != change.old:
                continue
            if change.new is None:
                kind.pop(change.key, None)
            else:
                kind[change.key] = change.new
    return ObjectSnapshot(**kinds)


def _comparing(wanted: State, found: State) -> Cooperative[list[ObjectDifference]]:
    frontends = iter(dict.fromkeys((*wanted.by_frontend, *found.by_frontend)))
    differences: list[ObjectDifference] = []
    while batch := list(islice(frontends, BETWEEN_YIELDS)):
        differences += state_differences(wanted, found, batch)
        yield
    return differences


def state_differences(wanted: State, found: State, frontends: Iterable[L3n4Addr]) -> Iterator[ObjectDifference]:
    """Yield in what a State differs from the wanted one at these frontends. Ids, order and wildcard rows do not count."""
    for frontend in frontends:
        must, has = wanted.by_frontend.get(frontend), found.by_frontend.get(frontend)
        if must is not None and not must.wildcard and has is None:
            yield _difference(must, "missing", "no frontend for this port of the Service")
        elif has is not None and not has.wildcard and must is None:
            yield _difference(has, "stale", "a frontend that no Service has any more")
        elif must is not None and has is not None and must != has:
            yield from _of_one(must, has, found.backends)


def _of_one(wanted: SVC, found: SVC, served: Collection[L3n4Addr]) -> Iterator[ObjectDifference]:
    """Yield the differences of one frontend. A backend at rest only keeps its record: one that is `served` elsewhere has it."""
    old, new = _backends(found), _backends(wanted)
    for address in new.keys() - old.keys():
        if new[address][1] == AT_REST and address in served:
            continue  # whether it has an entry here, too, depends on when this frontend was resolved last
        yield _difference(wanted, "missing", f"backend {address.with_protocol()}")
    for address in old.keys() - new.keys():
        yield _difference(wanted, "stale", f"backend {address.with_protocol()}")
    for address in new.keys() & old.keys():
        if old[address] != new[address]:
            was, must = _text(old[address]), _text(new[address])
            yield _difference(wanted, "differs", f"backend {address.with_protocol()} is {was}, not {must}")
    if _settings(wanted) != _settings(found):
        yield _difference(wanted, "differs", "its settings are not those of the Service")


def _backends(svc: SVC) -> dict[L3n4Addr, tuple[Backend, str]]:
    """Return the backends by address, without ids, each with its group."""
    groups = (("selectable", svc.selectable), ("not selectable", svc.unselectable), (AT_REST, svc.slotless))
    return {each.address: (replace(each, id=0), group) for group, backends in groups for each in backends}


def _text(backend: tuple[Backend, str]) -> str:
    record, group = backend
    return f"{record.state.text}, weight {record.weight}, {group}"


def _settings(svc: SVC) -> SVC:
    return replace(svc, id=0, selectable=(), unselectable=(), slotless=())


def _difference(svc: SVC, kind: str, detail: str) -> ObjectDifference:
    return ObjectDifference(svc.frontend, str(svc.name), kind, detail)
