"""The backends that are listed, one at a time: capabilities/node_backends.py makes their rows."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from msgspec import Struct

from lbagent.api.checked_backends import CheckRow
from lbagent.api.drains import NOT_COUNTED, DrainProgress, DrainRow
from lbagent.api.operator_states import SetBy
from lbagent.api.used_backends import Used
from lbagent.model.address import L3n4Addr
from lbagent.model.backend import Backend, BackendState
from lbagent.model.handshakes import Handshakes
from lbagent.targets.data_plane import EgressOf, EgressPath, FlowCounts


class ListedBackend(Struct, frozen=True, gc=False):
    """A backend of the node at one moment."""

    backend: Backend
    services: Sequence[str]
    flow_count: int  # live flows; -1 before the first count
    flows_age_s: float  # how long ago they were counted; 0: for this answer
    set_by: SetBy | None
    egress: EgressPath
    drain: DrainProgress | None
    handshakes: Handshakes | None  # None: none was timed
    check: CheckRow | None = None  # None: it is not checked


_NO_HANDSHAKES: Mapping[int, Handshakes] = {}
_NOT_CHECKED: Mapping[L3n4Addr, CheckRow] = {}
_NONE_SET: Mapping[L3n4Addr, SetBy] = {}


def listed_backends(
    used: Iterable[Used],
    flows: FlowCounts = NOT_COUNTED,
    states_set: Mapping[L3n4Addr, SetBy] = _NONE_SET,
    egress_of: EgressOf = lambda _backend: EgressPath(),
    drains: Iterable[DrainRow] = (),
    handshakes: Mapping[int, Handshakes] = _NO_HANDSHAKES,
    checks: Mapping[L3n4Addr, CheckRow] = _NOT_CHECKED,
) -> Iterator[ListedBackend]:
    """Yield each with what is known of it. A state that another one has replaced has no origin."""
    drain_of = {drain.address: drain for drain in drains}
    live, age_s = flows.live, round(flows.age_s, 1) if flows.live is not None else 0.0
    for backend, services in used:
        by = states_set.get(backend.address) if states_set else None
        drain = drain_of.get(backend.address.with_protocol()) if drain_of else None
        is_drained = drain is not None and not (drain.ended and backend.state is BackendState.ACTIVE)
        yield ListedBackend(
            backend,
            services,
            -1 if live is None else live.get(backend.id, 0),
            age_s,
            by if by is not None and by.state is backend.state else None,
            egress_of(backend),
            _progress(drain) if drain is not None and is_drained else None,
            handshakes.get(backend.id),
            checks.get(backend.address) if checks else None,
        )


def _progress(drain: DrainRow) -> DrainProgress:
    """Return a drain without the address, which the backend's row has."""
    return DrainProgress(**{name: getattr(drain, name) for name in DrainProgress.__struct_fields__})
