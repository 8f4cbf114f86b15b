"""What is kept while a source is untrusted and the maps serve what it may have named to an earlier agent. Pure.

Nothing is taken away then that may come from the untrusted source: a frontend that no object names stays as it is in the
maps; one whose Service, or a part of it, comes from a source that has given no whole list yet, or has no slice yet, keeps the
backends it had beside those that are known. What a source has only from an earlier agent gives names to what the maps hold,
and no more: the maps are at least as new. What a list holds whose gaps are in doubt is known whole. All else is as always:
what trusted sources hold whole is written whole, and they alone decide on it from then on.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial

from msgspec import Struct
from msgspec.structs import replace

from lbagent.maps import backend_codec, frontend_codec
from lbagent.maps.frontend_codec import FrontendEntries
from lbagent.maps.layout import PathFlag, u32_values
from lbagent.model.address import L3n4Addr, Scope
from lbagent.model.backend import Backend, BackendState
from lbagent.model.cooperative import Cooperative, run_whole
from lbagent.model.family import Family
from lbagent.model.flags import ServiceFlags
from lbagent.model.flow_rules import RESTORED_RULES
from lbagent.model.service import RESTORED, SVC, Algorithm
from lbagent.model.state import State
from lbagent.sync.target_protocol import Provenance
from lbagent.targets.bpf.shadow import Shadow, map_entries

_ELSEWHERE = "?"  # the node of a restored backend that is not on this one
_LOCAL = int(PathFlag.LOCAL)


class Retention(Struct):
    """What the maps held when the agent started and no trusted source has given whole; `kept` frontends no object names now."""

    found: dict[L3n4Addr, SVC]
    sources: Sequence[str] = ()  # those that are untrusted
    kept: int = 0

    @property
    def reason(self) -> str:
        """Why nothing is removed, in one sentence."""
        text = f"{', '.join(self.sources)} has given no complete list yet: nothing is removed until it has"
        if not self.sources:
            text = "the maps could not be read again: nothing is removed until they can"
        if not self.kept:
            return text
        return f"{text}; {self.kept} frontends that no object names stay as they are in the maps"

    def add_to(self, known: State, provenance: Provenance) -> State:
        """Return what is known with what may not be taken away."""
        overrides = provenance.overrides
        services = [
            self._with_rest(svc, provenance)
            for svc in known.services
            if svc.frontend in self.found or str(svc.name) not in provenance.remembered_services
        ]
        by_frontend = known.by_frontend
        kept = [_overridden(svc, overrides) for frontend, svc in self.found.items() if frontend not in by_frontend]
        self.kept = sum(not svc.wildcard for svc in kept)
        return State(known.generation, (*services, *kept))

    def _with_rest(self, svc: SVC, provenance: Provenance) -> SVC:
        old, name = self.found.get(svc.frontend), str(svc.name)
        if name not in provenance.services_of_unlisted and (svc.backends or name in provenance.services_with_endpoints):
            self.found.pop(svc.frontend, None)
            self.found.pop(svc.frontend.with_scope(Scope.INTERNAL), None)  # a row of its own where it needs one
            return svc
        if old is not None and name in provenance.remembered_services:
            svc = _named(old, svc)
        if old is not None and name in provenance.remembered_endpoints:
            return _with_backends_of(svc, _overridden(old, provenance.overrides))
        if old is None or not old.backends:
            return svc
        mine = {backend.address for backend in svc.backends}
        rest = _overridden(old, provenance.overrides)
        groups = [
            [backend for backend in group if backend.address not in mine]
            for group in (rest.selectable, rest.unselectable, rest.slotless)
        ]
        if not any(groups):
            return svc
        first = [*svc.selectable, *groups[0]]
        alive = [backend for backend in first if backend.state is BackendState.ACTIVE]
        behind = [backend for backend in first if backend.state is not BackendState.ACTIVE] if alive else []
        return replace(
            svc,
            selectable=tuple(
                sorted(alive or first, key=lambda backend: (backend.address.address, backend.address.port))
            ),
            unselectable=(*behind, *svc.unselectable, *groups[1]),
            slotless=(*svc.slotless, *groups[2]),
        )


def _named(old: SVC, svc: SVC) -> SVC:
    """Return a restored frontend with what the maps do not hold, and the backends of `svc`."""
    return replace(
        old,
        name=svc.name,
        port_name=svc.port_name,
        created=svc.created,
        health_check_node_port=svc.health_check_node_port,
        health_check_addresses=svc.health_check_addresses,
        l7_lb_frontend_ports=svc.l7_lb_frontend_ports,
        stale_flows_s=svc.stale_flows_s,
        selectable=svc.selectable,
        unselectable=svc.unselectable,
        slotless=svc.slotless,
    )


def _with_backends_of(svc: SVC, old: SVC) -> SVC:
    """Return a frontend with exactly the backends, and their states, of a restored one; what else is known of each is kept."""
    known = {backend.address: backend for backend in svc.backends}

    def of(group: Sequence[Backend]) -> tuple[Backend, ...]:
        return tuple(
            replace(known[each.address], state=each.state) if each.address in known else each for each in group
        )

    return replace(svc, selectable=of(old.selectable), unselectable=of(old.unselectable), slotless=of(old.slotless))


def _overridden(svc: SVC, overrides: Mapping[L3n4Addr, BackendState]) -> SVC:
    """Return a restored frontend with the states that the operator sets for its backends now."""
    if not any(backend.address in overrides for backend in svc.backends):
        return svc
    groups: dict[BackendState, list[Backend]] = {state: [] for state in BackendState}
    for backend in svc.selectable + svc.unselectable:
        state = overrides.get(backend.address, backend.state)
        groups[state].append(backend if state is backend.state else replace(backend, state=state))
    active, terminating = groups[BackendState.ACTIVE], groups[BackendState.TERMINATING]
    return replace(
        svc,
        selectable=tuple(active or terminating),
        unselectable=(*(terminating if active else ()), *groups[BackendState.QUARANTINED]),
        slotless=tuple(groups[BackendState.MAINTENANCE]),
    )


def as_found(new: FrontendEntries, old: FrontendEntries) -> FrontendEntries:
    """Return the rows of a restored frontend: what only its Service can decide is left as it is in the maps."""
    table = old.table
    if table is not None and set(u32_values(table)) == _drawn_by_table(new):
        new.members, new.table = (), table  # its weights are not known
    new.ranges, new.verdicts = old.ranges, old.verdicts
    return new


def _drawn_by_table(rows: FrontendEntries) -> set[int]:
    """Return the ids of the backends that a table of this restored frontend must have."""
    if rows.members or not rows.id:
        return {member[0] for member in rows.members}
    master = rows.slots[0]
    if _algorithm(frontend_codec.split_target(master)[0]) is not Algorithm.LEAST_CONN:
        return set()
    count = frontend_codec.selectable_count(master)
    return {frontend_codec.backend_id_of(value) for slot, value in rows.slots.items() if 0 < slot <= count}


# --- from bytes back to services ---


def restoring(shadow: Shadow, node_name: str) -> Cooperative[dict[L3n4Addr, SVC]]:
    """Return every whole frontend of a Shadow just read, in a stable order; names, ports' names and weights are not in the maps."""
    backends: dict[tuple[Family, int], Backend | None] = {}

    def backend(family: Family, ident: int) -> Backend | None:
        if (family, ident) not in backends:
            backends[family, ident] = restored_backend(shadow, family, ident, node_name)
        return backends[family, ident]

    out = {}
    for frontend in sorted(shadow.frontends, key=_order):
        rows = map_entries(shadow.frontends[frontend])
        if 0 in rows.slots:
            out[frontend] = _service(frontend, rows, partial(backend, frontend.family))
        yield
    return out


def restored_state(shadow: Shadow, node_name: str) -> State:
    """Return what the maps hold as a State: what the API shows before the first list is there."""
    return State(0, tuple(run_whole(restoring(shadow, node_name)).values()))


def _order(frontend: L3n4Addr) -> tuple[int, bytes, int, int, int, int]:
    return frontend.sort_key


def restored_backend(shadow: Shadow, family: Family, ident: int, node_name: str) -> Backend | None:
    """Return the backend that the maps have under an id; None without a row."""
    row, path = shadow.backend_rows[family].get(ident), shadow.paths[family].get(ident)
    if not any(row):
        return None
    address, state = backend_codec.backend_of(row)
    local = bool(path[backend_codec.FLAGS_AT[len(path)]] & _LOCAL)
    return Backend(ident, address, state, node_name=node_name if local else _ELSEWHERE, local=local)


def _service(frontend: L3n4Addr, rows: FrontendEntries, backend: Callable[[int], Backend | None]) -> SVC:
    master = rows.slots[0]
    number, rest = frontend_codec.split_target(master)
    count, flags = frontend_codec.selectable_count(master), ServiceFlags(frontend_codec.flags_of(master))
    slots = [(slot, backend(frontend_codec.backend_id_of(value))) for slot, value in sorted(rows.slots.items()) if slot]
    affinity = bool(flags & ServiceFlags.SESSION_AFFINITY)
    return SVC(
        frontend,
        rows.id,
        RESTORED,
        type=flags.svc_type(),
        ext_traffic_policy=flags.ext_traffic_policy(),
        int_traffic_policy=flags.int_traffic_policy(),
        nat_policy=flags.nat_policy(frontend),
        selectable=tuple(found for slot, found in slots if found is not None and slot <= count),
        unselectable=tuple(found for slot, found in slots if found is not None and slot > count),
        algorithm=_algorithm(number),
        session_affinity=affinity,
        session_affinity_timeout_s=rest if affinity and not flags.is_l7lb() else 0,
        source_ranges=tuple(frontend_codec.source_range_of(key)[1] for key in sorted(rows.ranges)),
        source_ranges_deny=bool(flags & ServiceFlags.SOURCE_RANGE_DENY),
        check_source_range=bool(flags & ServiceFlags.SOURCE_RANGE),
        flags=flags,
        l7_lb_proxy_port=rest if flags.is_l7lb() else 0,
        loopback_hostport=bool(flags & ServiceFlags.LOOPBACK),
        flow_rules=RESTORED_RULES if frontend_codec.master_has_rules(master) else None,
        forwarding_dsr=bool(flags & ServiceFlags.FORWARDING_DSR),
        no_local_backend=frontend_codec.has_no_local_backend(rows.reverse),
        wildcard=not rows.id,
    )


def _algorithm(number: int) -> Algorithm:
    try:
        return Algorithm.from_number(number)
    except ValueError:
        return Algorithm.RANDOM
