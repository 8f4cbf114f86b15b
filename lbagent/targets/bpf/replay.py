"""Entries of a plan taken out again: as words to store, and as the rows a change has got when it broke off. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from lbagent.maps import frontend_codec
from lbagent.maps.frontend_codec import NO_ENTRIES, FrontendEntries
from lbagent.maps.layout import U32
from lbagent.maps.specs import MapRole, roles
from lbagent.targets.bpf.shadow import map_entries, strays_of
from lbagent.targets.bpf.steps import FrontendChange, Kind, Phase, Plan, Step

Stray = tuple[str, bytes]  # map, key

# --- parts of records ---


def parts_of(records: bytes, size: int, at: int, width: int) -> bytes:
    """Return the `width` bytes from `at` on of each of the records of `size` bytes that lie side by side."""
    if width == 8:
        with memoryview(records) as raw, raw.cast("Q") as words:
            return words[at // 8 :: size // 8].tobytes()
    return b"".join([records[start : start + width] for start in range(at, len(records), size)])


# --- what a failed change has got ---


def entries_by_owner(plan: Plan, stopped_at: dict[int, tuple[int, int]]) -> dict[int, list[tuple[Step, int]]]:
    """Return for each failed change the entries of its own that were done, in order."""
    out: dict[int, list[tuple[Step, int]]] = {}
    if not stopped_at:
        return out
    for index, step in enumerate(plan.steps):
        for entry, owner in enumerate(step.owners):
            if isinstance(owner, int) and (where := stopped_at.get(owner)) and (index, entry) < where:
                out.setdefault(owner, []).append((step, entry))
    return out


def replay(change: FrontendChange, done: Sequence[tuple[Step, int]]) -> tuple[FrontendEntries, frozenset[Stray]]:
    """Return the rows of a change after the entries that were done, and what it has under another id than these."""
    new = frontend_codec.encode(change.svc) if change.svc is not None else NO_ENTRIES
    rows = FrontendEntries(new.id, {})
    if change.old is not None:
        old = map_entries(change.old)
        rows = replace(old, slots=dict(old.slots))
    strays = set(strays_of(change.old))
    for step, entry in done:
        key = step.key(entry)
        if _id_of(step.map, key) in (None, rows.id):
            _replay_one(rows, new, step, entry)
        elif step.kind is Kind.TABLE or step.phase in (Phase.REVERSE_IN, Phase.AFFINITY_IN):
            strays.add((step.map, key))
        else:
            strays.discard((step.map, key))
    return rows, frozenset(strays)


def _id_of(map_name: str, key: bytes) -> int | None:
    """Return the id of the service that a key names, where the rows of a frontend have one id for all keys of the map."""
    match roles().get(map_name):
        case MapRole.AFFINITY_MATCH:
            return frontend_codec.affinity_match_ids(key)[0]
        case MapRole.REVERSE_NAT | MapRole.MAGLEV:
            return int(U32.unpack(key)[0])
        case _:
            return None


def _replay_one(rows: FrontendEntries, new: FrontendEntries, step: Step, entry: int) -> None:
    key, is_put = step.key(entry), step.kind is Kind.PUT
    match roles().get(step.map):
        case MapRole.SERVICE:
            slot = frontend_codec.split_service_key(key)[1]
            if is_put:
                rows.slots[slot] = step.value(entry)
            else:
                rows.slots.pop(slot, None)
        case MapRole.SOURCE_RANGE:
            rows.ranges = rows.ranges | {key} if is_put else rows.ranges - {key}
            value = step.value(entry) if is_put else frontend_codec.PRESENT
            verdict = ((key, value),) if value != frontend_codec.PRESENT else ()
            rows.verdicts = tuple(each for each in rows.verdicts if each[0] != key) + verdict
        case MapRole.PORT_RANGE:
            rows.ports = rows.ports | {key} if is_put else rows.ports - {key}
        case MapRole.AFFINITY_MATCH:
            ident = frontend_codec.affinity_match_ids(key)[1]
            rows.affinity = rows.affinity | {ident} if is_put else rows.affinity - {ident}
        case MapRole.REVERSE_NAT:
            rows.reverse = step.value(entry) if step.phase is Phase.REVERSE_IN else b""
        case MapRole.MAGLEV:
            rows.members, rows.table = (new.members if step.kind is Kind.TABLE else ()), None
