"""Model -> wire: rows of the API, made one service at a time so that 10,000 of them do not stop the agent."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping

import msgspec

from lbagent.api.types import BackendRow, FrontendBackendRow, FrontendRow
from lbagent.model.address import L3n4Addr, Scope
from lbagent.model.backend import Backend
from lbagent.model.cooperative import Cooperative
from lbagent.model.service import SVC
from lbagent.model.state import State

_PIECE_BYTES = 64 * 1024


def frontend_row(svc: SVC) -> FrontendRow:
    """Return one frontend as it is listed. The scope has a field of its own, so the frontend's text goes without `/i`."""
    selectable = {id(backend) for backend in svc.selectable}
    return FrontendRow(
        id=svc.id,
        namespace=svc.name.namespace,
        name=svc.name.name,
        port_name=svc.port_name,
        frontend=svc.frontend.with_scope(Scope.EXTERNAL).with_protocol(),
        scope=svc.frontend.scope.name.lower(),
        type=svc.type.value,
        flags=svc.flags.words(),
        algorithm=svc.algorithm.value,
        affinity_timeout_s=svc.affinity_timeout_s,
        ext_traffic_policy=svc.ext_traffic_policy.value,
        int_traffic_policy=svc.int_traffic_policy.value,
        backends=[_frontend_backend_row(backend, id(backend) in selectable) for backend in svc.backends],
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


def frontend_rows(state: State, namespace: str = "", name: str = "") -> Iterator[FrontendRow]:
    """Yield the frontends in dump order, wildcard rows left out; '' = any."""
    for svc in state.services:
        if svc.wildcard or (namespace and svc.name.namespace != namespace) or (name and svc.name.name != name):
            continue
        yield frontend_row(svc)


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


def backend_rows(used: Iterable[Used], flows: Mapping[int, int] | None) -> Iterator[BackendRow]:
    """Yield the row of each."""
    for backend, services in used:
        yield BackendRow(
            id=backend.id,
            address=backend.address.with_protocol(),
            state=backend.state.text,
            weight=backend.weight,
            node=backend.node_name,
            zone=backend.zone,
            local=backend.local,
            flows=-1 if flows is None else flows.get(backend.id, 0),
            services=sorted(services),
        )


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
