"""In what pinned maps differ from a State, without an agent: what a plan from these maps to the State would write."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from msgspec.structs import replace

from lbagent.maps.lbmaps import LBMaps
from lbagent.model.address import L3n4Addr, Scope
from lbagent.model.flags import ServiceFlags
from lbagent.model.path_info import PathInfo
from lbagent.model.service import SVC, SVCTrafficPolicy
from lbagent.model.state import State
from lbagent.render.renderer_types import Difference
from lbagent.targets.bpf.plan import plan
from lbagent.targets.bpf.restore import Restored, id_assigner, restore
from lbagent.targets.bpf.shadow import map_entries
from lbagent.targets.bpf.steps import FrontendChange, Phase, Plan

# Not of the objects: how backends are reached, the prefilter, counters.
_PASSED_OVER = frozenset(
    {Phase.FILTER_IN, Phase.COUNTER_ZERO, Phase.PATH_RESET, Phase.PATH_BODY, Phase.PATH_IN, Phase.PATH_OUT}
)
_NAMED = 3  # backends of a frontend that a difference names


def maps_compared(maps: LBMaps, state: State) -> list[Difference]:
    """Return a difference for each frontend of the State or of the maps that is not the same in both. Raises KernelError.

    Paths to backends are the agent's knowledge, and are not compared.
    """
    found = restore(maps)
    state = _with_inside_rows(state, found.inside_rows())
    ids = id_assigner(found, maps.sizes.backends)
    assigned = ids.assign(state)
    names = {row.frontend: str(row.name) for row in state.services}
    out = [
        Difference("missing", str(error), names.get(frontend), frontend.with_protocol())
        for frontend, error in ids.errors
    ]
    planned = plan(assigned, found.shadow, lambda _: PathInfo())
    changed = _changed(planned)
    addresses = {ident: address for address, ident in found.backend_ids}
    addresses |= {backend.id: address for address, backend in assigned.backends.items()}
    for number, change in enumerate(planned.changes):
        if error := planned.refused.get(number):
            subject = names.get(change.frontend), change.frontend.with_protocol()
            out.append(Difference("missing", str(error), *subject))
        elif number in changed and change.frontend.port:  # the wildcard row comes and goes with the others
            out.append(_difference(change, names.get(change.frontend), addresses))
    return [*out, *_rest(planned, found)]


def _with_inside_rows(state: State, held: Collection[L3n4Addr]) -> State:
    """Return the State with the rows of scope INTERNAL that an agent keeps although both scopes have the same backends."""
    rows: list[SVC] = []
    for row in state.services:
        inside = row.frontend.with_scope(Scope.INTERNAL)
        is_local = row.ext_traffic_policy is SVCTrafficPolicy.LOCAL
        if inside not in held or row.frontend == inside or inside in state.by_frontend or not is_local:
            rows.append(row)
        else:
            outside = replace(row, flags=ServiceFlags(row.flags | ServiceFlags.TWO_SCOPES))
            rows += (outside, replace(outside, frontend=inside, health_check_addresses=()))
    return State(state.generation, tuple(rows))


def maps_dumped(maps: LBMaps) -> list[str]:
    """Return each frontend with its backends, `FRONTEND: BACKENDS`, sorted; without ids. Raises KernelError."""
    found = restore(maps)
    addresses = {ident: address.with_protocol() for address, ident in found.backend_ids}
    lines = []
    for frontend, entry in found.shadow.frontends.items():
        backends = sorted(
            addresses.get(ident, "a backend without an entry") for ident in map_entries(entry).backend_ids()
        )
        lines.append(f"{frontend.map_text()}: {', '.join(backends)}")
    return sorted(lines)


def _changed(planned: Plan) -> set[int]:
    """Return the changes with entries of their own to write or delete."""
    found: set[int] = set()
    for step in planned.steps:
        if step.phase not in _PASSED_OVER:
            for owner in step.owners:
                found.update((owner,) if isinstance(owner, int) else owner)
    return found


def _difference(change: FrontendChange, name: str | None, addresses: dict[int, L3n4Addr]) -> Difference:
    frontend = change.frontend.with_protocol()
    if change.old is None:
        return Difference("missing", "the maps have no entry of it", name, frontend)
    if change.svc is None:
        return Difference("stale", "no object has it", name, frontend)
    before, after = map_entries(change.old).backend_ids(), {each.id for each in change.svc.backends}
    parts = [
        f"{word} {_names(idents, addresses)}"
        for word, idents in (("no backend", after - before), ("no object has backend", before - after))
        if idents
    ]
    return Difference("differs", "; ".join(parts) or "its flags, states or weights are others", name, frontend)


def _names(idents: set[int], addresses: dict[int, L3n4Addr]) -> str:
    names = sorted(addresses[ident].with_protocol() if ident in addresses else f"with id {ident}" for ident in idents)
    return ", ".join(names[:_NAMED]) + (f" and {len(names) - _NAMED} more" if len(names) > _NAMED else "")


def _rest(planned: Plan, found: Restored) -> Iterator[Difference]:
    """Yield what the maps have that belongs to no frontend."""
    entries = sum(owner == () for step in planned.steps if step.phase not in _PASSED_OVER for owner in step.owners)
    if entries and found.shadow.prune:
        yield Difference("stale", f"{entries} entries belong to no frontend")
