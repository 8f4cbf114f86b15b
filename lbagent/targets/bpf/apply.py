"""Plan -> maps. Idempotent; what fails stops one service and nothing else; the Shadow follows what was really written.

Source of the order: steps.Phase. A failed frontend keeps serving what it served, is remembered with the entries it has,
and is part of the next plan.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import ClassVar

from msgspec import Struct, field

from lbagent.errors import KernelError, LbError
from lbagent.maps import backend_codec, frontend_codec
from lbagent.maps.frontend_codec import FrontendEntries
from lbagent.maps.lbmaps import LBMaps
from lbagent.maps.map_names import family_of_map
from lbagent.maps.specs import MapRole
from lbagent.model.address import L3n4Addr
from lbagent.model.cooperative import BETWEEN_YIELDS, Cooperative, run_whole
from lbagent.targets.bpf.backends import reference_counts
from lbagent.targets.bpf.replay import entries_by_owner, parts_of, replay
from lbagent.targets.bpf.shadow import PartialFrontend, Shadow
from lbagent.targets.bpf.steps import GUARDED, FrontendChange, Kind, Owner, Phase, Plan, Step

TABLES_AT_ONCE = 8  # Maglev tables: some 10 ms each to be made, and one grace period of the kernel for all
META_BYTES = 8  # of a path record: one word
ENTRIES_AT_ONCE = 16_384  # some 10 ms in the kernel


class Applied(Struct):
    """What came of a plan. `failed` frontends must be planned again (with back-off); `errors` belong to no frontend.

    A frontend of which a part is written because a map is full is among the `failed`.
    """

    written: Counter[str] = field(default_factory=Counter)  # entries written or deleted, by map
    failed: dict[L3n4Addr, LbError] = field(default_factory=dict)
    errors: list[LbError] = field(default_factory=list)

    @property
    def entries(self) -> int:
        """Return how many entries were written or deleted."""
        return sum(self.written.values())

    @property
    def complete(self) -> bool:
        """Whether the maps now are what the plan wanted; else plan and apply again."""
        return not self.failed and not self.errors


def apply(plan: Plan, maps: LBMaps, shadow: Shadow, now: float = 0.0, linger_s: float = 0.0) -> Applied:
    """Carry out a plan. Raises nothing the maps raise as LbError: that is in the result.

    `now` is any clock, in seconds. A bit of the prefilter stays for `linger_s` after its last user: flows of a frontend that is
    gone shall be seen as long as they may live (program/sweep.h ends them).
    """
    return run_whole(applying(plan, maps, shadow, now, linger_s))


def applying(plan: Plan, maps: LBMaps, shadow: Shadow, now: float = 0.0, linger_s: float = 0.0) -> Cooperative[Applied]:
    """Do what `apply` does. Until the end maps and Shadow may differ: they must not be compared."""
    run = _Run(plan, maps, shadow)
    for index, step in enumerate(plan.steps):
        yield from run.step(index, step)
    yield from run.commit()
    run.clear_stale_bits(now, linger_s)
    for owner, error in (plan.shortages | run.failed).items():
        run.result.failed[plan.changes[owner].frontend] = error
    return run.result


class _Run:
    """One application of one plan."""

    def __init__(self, plan: Plan, maps: LBMaps, shadow: Shadow) -> None:
        self.plan, self.maps, self.shadow = plan, maps, shadow
        self.result = Applied()
        self.failed: dict[int, LbError] = dict(plan.refused)
        self.stopped_at: dict[
            int, tuple[int, int]
        ] = {}  # (step, entry) of the failure; what was refused has no entries
        self._packed: tuple[Step | None, bytes, bytes] = (None, b"", b"")

    # --- steps ---

    def step(self, index: int, step: Step) -> Cooperative[None]:
        """Do every entry whose owners still stand."""
        position, end = 0, len(step.owners)
        while position < end:
            start, stop = self._next_run(step, position, end)
            if start == stop:
                return
            done = stop - start
            try:
                self._DO[step.kind](self, step, start, stop)
            except LbError as error:
                done = min(done, error.done) if isinstance(error, KernelError) else 0
                self._fail(step, index, start + done, error)
                stop = start + done + 1
            self._note(step, start, start + done)
            position = stop
            yield

    def _next_run(self, step: Step, position: int, end: int) -> tuple[int, int]:
        end = min(end, position + (TABLES_AT_ONCE if step.kind is Kind.TABLE else ENTRIES_AT_ONCE))
        if not self.failed:
            return position, end
        owners, guarded = step.owners, step.phase in GUARDED
        while position < end and self._out(owners[position], guarded):
            position += 1
        stop = position
        while stop < end and not self._out(owners[stop], guarded):
            stop += 1
        return position, stop

    def _out(self, owner: Owner, guarded: bool) -> bool:
        """Say whether an entry must not be done any more: every owner failed, or one whose slots may still need it."""
        if isinstance(owner, int):
            return owner in self.failed
        if guarded:
            return any(one in self.failed for one in owner)
        return bool(owner) and all(one in self.failed for one in owner)

    def _fail(self, step: Step, index: int, entry: int, error: LbError) -> None:
        owner = step.owners[entry]
        owners: Iterable[int] = (owner,) if isinstance(owner, int) else owner
        if not isinstance(owner, int) and not owner:
            if step.phase is Phase.FILTER_IN:  # without its bit no packet of a service would be seen
                owners = [number for number, change in enumerate(self.plan.changes) if change.svc is not None]
            self.result.errors.append(error)
        for one in owners:
            if one not in self.failed:
                self.failed[one] = error
                self.stopped_at[one] = (index, entry)

    def _put(self, step: Step, start: int, stop: int) -> None:
        if self._packed[0] is not step:  # once a step, however many runs it falls into
            self._packed = (step, bytes(step.keys), bytes(step.values))
        self.maps.put_batch(step.map, *self._packed[1:], start, stop)

    def _delete(self, step: Step, start: int, stop: int) -> None:
        self.maps.delete_many(step.map, [step.key(i) for i in range(start, stop)])

    def _table(self, step: Step, start: int, stop: int) -> None:
        size = self.maps.sizes.maglev_size
        tables = {step.number(i): frontend_codec.maglev_table(step.members[i], size) for i in range(start, stop)}
        self.maps.set_maglev(step.map, tables)

    def _table_out(self, step: Step, start: int, stop: int) -> None:
        self.maps.delete_maglev(step.map, list(step.numbers(start, stop)))

    def _path_body(self, step: Step, start: int, stop: int) -> None:
        size = len(step.values) // len(step.owners)
        self._store_parts(step, start, stop, 0, backend_codec.META_AT[size])

    def _path_meta(self, step: Step, start: int, stop: int) -> None:
        size = len(step.values) // len(step.owners)
        self._store_parts(step, start, stop, backend_codec.META_AT[size], META_BYTES)

    def _store_parts(self, step: Step, start: int, stop: int, at: int, width: int) -> None:
        """Store `width` bytes of path records from `at` on. A failure leaves in its `done` how many records have all of them."""
        size, done = len(step.values) // len(step.owners), 0
        for first, records in step.runs(start, stop):
            try:
                self.maps.store_parts(step.map, first * size + at, size, parts_of(records, size, at, width), width)
            except KernelError as error:
                error.done = done + error.done * 8 // width
                raise
            done += len(records) // size

    def _filter(self, step: Step, start: int, stop: int) -> None:
        self._store_bits(list(step.numbers(start, stop)), on=True)

    def _counter(self, step: Step, start: int, stop: int) -> None:
        self.maps.zero_counters(list(step.numbers(start, stop)))

    def _store_bits(self, bits: Sequence[int], *, on: bool) -> None:
        """Store the words with these bits, sorted, changed. A failure leaves in its `done` how many bits are changed."""
        shadow = self.shadow
        shadow.change_bits(bits, on=on)
        words = sorted({bit >> 6 for bit in bits})
        try:
            self.maps.store("lb_filter", [(at * 8, shadow.filter[at * 8 : at * 8 + 8]) for at in words])
        except LbError as error:
            stored = frozenset(words[: error.done] if isinstance(error, KernelError) else ())
            undone = [bit for bit in bits if bit >> 6 not in stored]
            shadow.change_bits(undone, on=not on)
            if isinstance(error, KernelError):
                error.done = len(bits) - len(undone)
            raise

    # --- the Shadow follows ---

    def _note(self, step: Step, start: int, stop: int) -> None:
        if start == stop:
            return
        self.result.written[step.map] += stop - start
        family, shadow = family_of_map(step.map), self.shadow
        if family is None:
            return
        if step.kind is Kind.PATH_META:
            for first, records in step.runs(start, stop):
                shadow.set_paths(family, first, records)
        elif step.kind is Kind.PATH_BODY:
            for first, records in step.runs(start, stop):
                shadow.set_path_bodies(family, first, records)
        elif shadow.specs[step.map].role is not MapRole.BACKEND:
            return
        elif step.kind is Kind.PUT:
            for first, rows in step.runs(start, stop):
                shadow.set_rows(family, first, rows)
        else:
            for ident in step.numbers(start, stop):
                shadow.delete_row(family, ident)

    def commit(self) -> Cooperative[None]:
        """Take over what each change has become."""
        plan, shadow = self.plan, self.shadow
        shadow.set_references(plan.refs)
        broken = entries_by_owner(plan, self.stopped_at)
        for owner, change in enumerate(plan.changes):
            if owner in self.failed:
                self._keep_partial(owner, change, broken.get(owner, []))
            else:
                shadow.set_frontend(change.frontend, change.svc)
            if not owner % BETWEEN_YIELDS:
                yield
        if plan.services is not None:
            unwritten = {plan.changes[owner].frontend for owner in (*self.failed, *plan.shortages)}
            shadow.finish_plan(plan.services, unwritten, complete=not self.result.errors)
        self._commit_filter()

    def _commit_filter(self) -> None:
        plan, shadow = self.plan, self.shadow
        if plan.snat_bits is not None:
            shadow.set_snat_bits(plan.snat_bits)
        if plan.full_sync and shadow.found_bits:
            shadow.mark_stale(shadow.set_bits())  # those of the plan are among them
            return
        for step in plan.steps:
            if step.kind is Kind.FILTER:
                shadow.mark_stale(step.numbers(0, len(step.owners)))

    def _keep_partial(self, owner: int, change: FrontendChange, done: list[tuple[Step, int]]) -> None:
        """Remember the entries a failed change has really got, and pin every backend they may name."""
        before, after = reference_counts(change.old), reference_counts(change.svc)
        rows, strays = replay(change, done)
        if owner in self.plan.refused:  # its backends were never counted, nor written
            counted, after = before, {}
        else:
            counted = after
        pins = frozenset(before) | frozenset(after) | frozenset(rows.backend_ids())
        for ident in pins:
            self.shadow.pin(ident, counted.get(ident, _NO_COUNT)[0])
        is_there = pins or strays or rows != FrontendEntries(rows.id, {})
        entry = PartialFrontend(rows, pins, strays=strays) if is_there else None
        self.shadow.set_frontend(change.frontend, entry)

    def clear_stale_bits(self, now: float, linger_s: float) -> None:
        """Clear the filter bits that have no user any more: the last write of all."""
        bits = self.shadow.clearable_bits(now, linger_s)
        if bits:
            try:
                self._store_bits(bits, on=False)
            except LbError as error:
                self.result.errors.append(error)
                return
            self.result.written["lb_filter"] += len(bits)
        self.shadow.stale_bits_cleared(now)

    # Of the class: bound methods would hold the _Run, and so the Plan, until a garbage collection.
    _DO: ClassVar[dict[Kind, Callable[[_Run, Step, int, int], None]]] = {
        Kind.PUT: _put,
        Kind.DELETE: _delete,
        Kind.TABLE: _table,
        Kind.TABLE_OUT: _table_out,
        Kind.PATH_BODY: _path_body,
        Kind.PATH_META: _path_meta,
        Kind.FILTER: _filter,
        Kind.COUNTER: _counter,
    }


_NO_COUNT = (0, None)


__all__ = ["Applied", "apply"]
