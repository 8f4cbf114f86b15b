"""Model -> wire: rows of the API, made one service at a time so that 10,000 of them do not stop the agent."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import NamedTuple

import msgspec

from lbagent.api.agent_api import SetBy
from lbagent.api.types import BackendRow, DrainProgress, DrainRow, FrontendBackendRow, FrontendRow
from lbagent.model.address import L3n4Addr, L4Type, Scope, parse_ip
from lbagent.model.backend import Backend, BackendState
from lbagent.model.cooperative import Cooperative
from lbagent.model.service import SVC, SVCType
from lbagent.model.state import State
from lbagent.targets.data_plane import BackendWay, FlowCounts, WayOf

_PIECE_BYTES = 64 * 1024
NON_ROUTABLE = "non-routable"  # the flag's word (model/flags.py)


def frontend_row(svc: SVC, *, external_clusterip: bool = False) -> FrontendRow:
    """Return one frontend as it is listed. The scope has a field of its own, so the frontend's text goes without `/i`.

    `non-routable` is in the maps of every ClusterIP; with `external_clusterip` the programs pass over it, and it is not shown.
    """
    selectable = {id(backend) for backend in svc.selectable}
    is_reached = external_clusterip and svc.type is SVCType.CLUSTER_IP
    return FrontendRow(
        id=svc.id,
        namespace=svc.name.namespace,
        name=svc.name.name,
        port_name=svc.port_name,
        frontend=svc.frontend.with_scope(Scope.EXTERNAL).with_protocol(),
        scope=svc.frontend.scope.name.lower(),
        type=svc.type.value,
        flags=[word for word in svc.flags.words() if not (is_reached and word == NON_ROUTABLE)],
        algorithm=svc.algorithm.value,
        affinity_timeout_s=svc.affinity_timeout_s,
        ext_traffic_policy=svc.ext_traffic_policy.value,
        int_traffic_policy=svc.int_traffic_policy.value,
        backends=[_frontend_backend_row(backend, id(backend) in selectable) for backend in svc.backends],
        source_ranges_policy=("deny" if svc.source_ranges_deny else "allow") if svc.check_source_range else "",
        source_ranges=list(map(str, svc.source_ranges)),
        restored=svc.is_restored,
    )


def _frontend_backend_row(backend: Backend, selectable: bool) -> FrontendBackendRow:
    return FrontendBackendRow(
        id=backend.id,
        address=backend.address.with_protocol(),
        state=backend.state.text,
        weight=backend.weight,
        node=backend.node_name,
        zone=backend.zone,
        local=backend.local,
        selectable=selectable,
    )


class VIP(NamedTuple):
    """A VIP as an operator writes it: an address, perhaps with a port, perhaps with a protocol."""

    address: bytes
    port: int | None = None
    protocol: L4Type | None = None

    @classmethod
    def parse(cls, text: str) -> VIP:
        """Read `10.96.0.1`, `10.96.0.1:80`, `[fd00::1]:80/TCP`. Raises ValueError."""
        try:
            return cls(parse_ip(text.removeprefix("[").removesuffix("]")))
        except ValueError:
            address = L3n4Addr.parse(text)
        return cls(address.address, address.port, address.protocol if "/" in text else None)

    def is_of(self, frontend: L3n4Addr) -> bool:
        """Return whether a frontend has this VIP."""
        return (
            frontend.address == self.address
            and self.port in (None, frontend.port)
            and self.protocol in (None, frontend.protocol)
        )


def frontend_rows(
    state: State, namespace: str = "", name: str = "", vip: VIP | None = None, *, external_clusterip: bool = False
) -> Iterator[FrontendRow]:
    """Yield the frontends in dump order, wildcard rows left out; '' and None = any."""
    for svc in state.services:
        if svc.wildcard or (namespace and svc.name.namespace != namespace) or (name and svc.name.name != name):
            continue
        if vip is None or vip.is_of(svc.frontend):
            yield frontend_row(svc, external_clusterip=external_clusterip)


Used = tuple[Backend, tuple[str, ...]]  # a backend in its most alive state, and the Services that have it


def backends_used(state: State, only: Collection[L3n4Addr] | None = None) -> Cooperative[list[Used]]:
    """Return each backend once, by id; `only` these when given. Without the index that `State.backends` would keep."""
    found: dict[L3n4Addr, Used] = {}
    for svc in state.services:
        here = (str(svc.name),)
        for backend in svc.backends:
            if only is not None and backend.address not in only:
                continue
            best, names = found.get(backend.address, (backend, here))
            if backend.state < best.state:
                best = backend
            found[backend.address] = (best, names if here[0] in names else names + here)
        yield
    return sorted(found.values(), key=lambda used: used[0].id)


NOT_COUNTED = FlowCounts(None)
_NONE_SET: Mapping[L3n4Addr, SetBy] = {}


def backend_rows(
    used: Iterable[Used],
    flows: FlowCounts = NOT_COUNTED,
    states_set: Mapping[L3n4Addr, SetBy] = _NONE_SET,
    way_of: WayOf = lambda _backend: BackendWay(),
    drains: Iterable[DrainRow] = (),
) -> Iterator[BackendRow]:
    """Yield the row of each. What it does not say is left as it is by default, and so out of the JSON."""
    drain_of = {drain.address: drain for drain in drains}
    for backend, services in used:
        row = BackendRow(
            id=backend.id,
            address=backend.address.with_protocol(),
            state=backend.state.text,
            weight=backend.weight,
            node=backend.node_name,
            zone=backend.zone,
            local=backend.local,
            flows=-1 if flows.live is None else flows.live.get(backend.id, 0),
            services=sorted(services),
        )
        if flows.live is not None and flows.age_s:
            row.flows_age_s = round(flows.age_s, 1)
        by = states_set.get(backend.address)
        if by is not None and by.state is backend.state:
            row.set_by = by.what
            if by.at:
                row.set_at = by.at
        row.way, row.device, row.way_reason = way_of(backend)
        drain = drain_of.get(row.address)
        if drain is not None and not (drain.ended and backend.state is BackendState.ACTIVE):
            row.drain = _progress(drain)
        yield row


def _progress(drain: DrainRow) -> DrainProgress:
    """Return a drain without the address, which the backend's row has."""
    return DrainProgress(**{name: getattr(drain, name) for name in DrainProgress.__struct_fields__})


def json_list(rows: Iterable[msgspec.Struct]) -> Iterator[bytes]:
    """Yield a JSON list in pieces."""
    encoder = msgspec.json.Encoder()
    piece = bytearray(b"[")
    separator = b""
    for row in rows:
        piece += separator
        piece += encoder.encode(row)
        separator = b","
        if len(piece) > _PIECE_BYTES:
            yield bytes(piece)
            piece.clear()
    yield bytes(piece + b"]\n")
