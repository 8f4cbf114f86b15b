"""What manifests would change of the frontends that are served, and what becomes of the live flows. Pure.

The rows are those of `svc list` (capabilities/services.py). What happens to a flow is what the data planes do (docs/operations.md,
"Backends and Services that go"): a frontend that goes ends its flows; TCP ends with its backend, and stays while any Service has
it; UDP of a backend that left the frontend moves to another one, where there is one.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from msgspec import Struct

from lbagent.api.capabilities.services import frontend_name, service_name

Row = dict[str, Any]  # FrontendRow
FlowTotals = Mapping[
    tuple[str, str], int
]  # live flows by frontend and backend, as their rows name them; '': a backend of no row
_NOT_COMPARED = frozenset({"id", "backends", "flags", "restored"})
# The maps have no more than these.
_IN_MAPS = frozenset({"type", "algorithm", "affinity_timeout_s", "ext_traffic_policy", "int_traffic_policy"})
_UNREACHED = "non-routable"  # --external-clusterip hides it in the rows of an agent
RESETS = "reset"  # `stale_flows` of a row
ADD, UPDATE, REMOVE = "add", "update", "remove"


class FlowFates(Struct, gc=False):
    """What becomes of live flows: `total` is the sum of the others."""

    total: int = 0
    kept: int = 0
    lost: int = 0  # their frontend goes, or their backend
    moved: int = 0  # UDP that goes to another backend

    def add(self, other: FlowFates) -> None:
        """Add counts."""
        self.total += other.total
        self.kept += other.kept
        self.lost += other.lost
        self.moved += other.moved


class PlannedChange(Struct, gc=False):
    """One frontend that changes."""

    change: str  # add, update, remove
    service: str  # NAMESPACE/NAME
    frontend: str
    backends_added: list[str]
    backends_removed: list[str]
    flows: FlowFates


class LivePlan(Struct, gc=False):
    """All that changes. `flows` are those of every frontend, changed or not."""

    changes: list[PlannedChange]
    unchanged: int  # frontends
    flows: FlowFates


class Served(Struct, frozen=True):
    """What is served now. Without an agent the rows are those of the maps, which have no names, nodes and weights."""

    rows: Sequence[Row]
    flows: FlowTotals
    operator_states: Collection[
        str
    ] = ()  # backends whose state the operator or a health check set: manifests do not change it
    of_maps: bool = False
    others_stay: bool = False  # Services that the manifests do not name come from other sources


def live_plan(served: Served, wanted: Iterable[Row]) -> LivePlan:
    """Return what changes when the rows of the manifests are in force."""
    before = {frontend_name(row): row for row in served.rows}
    after = {frontend_name(row): row for row in wanted}
    if served.others_stay:
        named = {service_name(row) for row in after.values()}
        after |= {name: row for name, row in before.items() if name not in after and service_name(row) not in named}
    fates = _fates(before, after, served.flows)
    changes, unchanged, sums = [], 0, FlowFates()
    for name in (*before, *(each for each in after if each not in before)):
        old, new, flows = before.get(name), after.get(name), fates.get(name, FlowFates())
        sums.add(flows)
        if old is not None and new is not None and not (flows.lost or flows.moved) and _equal(old, new, served):
            unchanged += 1
            continue
        changes.append(_change(name, old, new, flows))
    return LivePlan(changes, unchanged, sums)


def _change(name: str, old: Row | None, new: Row | None, flows: FlowFates) -> PlannedChange:
    had, has = _present(old), _backends(new)
    word = ADD if old is None else REMOVE if new is None else UPDATE
    row = new or old or {}
    return PlannedChange(
        word,
        service_name(row),
        name,
        [each for each in has if each not in had],
        [each for each in had if each not in has],
        flows,
    )


def _backends(row: Row | None) -> dict[str, Row]:
    return {each["address"]: each for each in row["backends"]} if row else {}


def _present(row: Row | None) -> dict[str, Row]:
    """Return the backends without those that are gone already, and kept for their flows."""
    return {name: each for name, each in _backends(row).items() if not each.get("gone")}


def _fates(before: Mapping[str, Row], after: Mapping[str, Row], totals: FlowTotals) -> dict[str, FlowFates]:
    """Return what becomes of the flows of each frontend that is served. Flows of others have ended already."""
    had, has = ({each for row in rows.values() for each in _backends(row)} for rows in (before, after))
    found: dict[str, FlowFates] = {}
    for (frontend, backend), count in totals.items():
        if frontend in before:
            fate = found.setdefault(frontend, FlowFates())
            fate.total += count
            word = _fate(before[frontend], after.get(frontend), backend, had, has)
            setattr(fate, word, getattr(fate, word) + count)
    return found


def _fate(old: Row, new: Row | None, backend: str, had: Collection[str], has: Collection[str]) -> str:
    if new is None:
        return "lost"
    if backend in _backends(old) and new.get("stale_flows", RESETS) != RESETS:
        return "kept"  # with drain=SECONDS for that time
    if not backend.endswith("/UDP"):
        return "lost" if backend in had and backend not in has else "kept"
    if backend in _backends(new) or backend not in _backends(old):  # what left before is no effect of this change
        return "kept"
    return "moved" if any(each["selectable"] for each in new["backends"]) else "lost"


def _equal(old: Row, new: Row, served: Served) -> bool:
    if served.of_maps:
        return _of_maps(old) == _of_maps(new)
    return _compared(old, served.operator_states) == _compared(new, served.operator_states)


def _compared(row: Row, operator_states: Collection[str]) -> object:
    """Return what is compared of a row: not ids and the order of slots, nor what the operator decides."""
    backends = set()
    for each in _present(row).values():
        fields = {key: value for key, value in each.items() if key != "id"}
        if each["address"] in operator_states:
            fields |= {"state": "", "weight": 0, "selectable": False}
        backends.add(tuple(fields.items()))
    rest = {key: value for key, value in row.items() if key not in _NOT_COMPARED}
    return rest, backends, _flags(row)


def _of_maps(row: Row) -> object:
    """Return the same of what the maps have: backends without a slot are not in it."""
    selectable = {(each["address"], each["state"]) for each in row["backends"] if each["selectable"]}
    return {key: row[key] for key in _IN_MAPS}, selectable, _flags(row), sorted(row.get("source_ranges", ()))


def _flags(row: Row) -> set[str]:
    return set(row["flags"]) - {_UNREACHED}
