"""Model -> wire: the items of the API's lists, one at a time so that 10,000 services do not stop the agent.

listed_fields.py makes their rows.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import msgspec
from msgspec import Struct

from lbagent.api.agent_api import SetBy
from lbagent.api.listed_fields import MEMBERS, Row
from lbagent.api.types import DrainProgress, DrainRow
from lbagent.model.address import L3n4Addr, L4Type, parse_ip
from lbagent.model.backend import Backend, BackendState
from lbagent.model.cooperative import Cooperative
from lbagent.model.service import SVC, SVCType
from lbagent.model.state import State
from lbagent.targets.data_plane import EgressOf, EgressPath, FlowCounts

_PIECE_BYTES = 64 * 1024


NON_ROUTABLE = "non-routable"  # the flag's word (model/flags.py)


class ListedMember(Struct, frozen=True, gc=False):
    """A backend of a frontend. `selectable`: new flows may take it."""

    backend: Backend
    selectable: bool


class ListedService(Struct, frozen=True):
    """A frontend. `reached`: sources outside the node reach it, though it is a ClusterIP."""

    svc: SVC
    reached: bool = False

    @property
    def flags(self) -> list[str]:
        """The flags that have an effect: with `reached` the programs pass over `non-routable`."""
        return [word for word in self.svc.flags.words() if not (self.reached and word == NON_ROUTABLE)]

    @property
    def members(self) -> list[Row]:
        """The rows of the backends, in the order of their slots."""
        selectable = {id(backend) for backend in self.svc.selectable}
        return [MEMBERS.row(ListedMember(each, id(each) in selectable)) for each in self.svc.backends]


class ListedBackend(Struct, frozen=True):
    """A backend of the node: what is known of it at one moment."""

    backend: Backend
    services: Sequence[str]
    flows: FlowCounts
    set_by: SetBy | None
    egress: EgressPath
    drain: DrainProgress | None

    @property
    def flow_count(self) -> int:
        """Live flows; -1 before the first count."""
        return -1 if self.flows.live is None else self.flows.live.get(self.backend.id, 0)


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


def listed_services(
    state: State, namespace: str = "", name: str = "", vip: VIP | None = None, *, external_clusterip: bool = False
) -> Iterator[ListedService]:
    """Yield the frontends in dump order, wildcard rows left out; '' and None = any."""
    for svc in state.services:
        if svc.wildcard or (namespace and svc.name.namespace != namespace) or (name and svc.name.name != name):
            continue
        if vip is None or vip.is_of(svc.frontend):
            yield ListedService(svc, external_clusterip and svc.type is SVCType.CLUSTER_IP)


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


def listed_backends(
    used: Iterable[Used],
    flows: FlowCounts = NOT_COUNTED,
    states_set: Mapping[L3n4Addr, SetBy] = _NONE_SET,
    egress_of: EgressOf = lambda _backend: EgressPath(),
    drains: Iterable[DrainRow] = (),
) -> Iterator[ListedBackend]:
    """Yield each with what is known of it. A state that another one has replaced was set by nobody."""
    drain_of = {drain.address: drain for drain in drains}
    for backend, services in used:
        by = states_set.get(backend.address)
        drain = drain_of.get(backend.address.with_protocol()) if drain_of else None
        is_drained = drain is not None and not (drain.ended and backend.state is BackendState.ACTIVE)
        yield ListedBackend(
            backend,
            services,
            flows,
            by if by is not None and by.state is backend.state else None,
            egress_of(backend),
            _progress(drain) if drain is not None and is_drained else None,
        )


def _progress(drain: DrainRow) -> DrainProgress:
    """Return a drain without the address, which the backend's row has."""
    return DrainProgress(**{name: getattr(drain, name) for name in DrainProgress.__struct_fields__})


def json_list(rows: Iterable[object]) -> Iterator[bytes]:
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
