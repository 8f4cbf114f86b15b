"""resolve: all objects + who this node is -> State + messages. Pure; any order of events gives the same State.

`Resolver` keeps the rows of each Service and builds again only what a change touches: the Service itself, those that contest
a frontend with it, those that share a backend with it. `resolve` is the same from nothing.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from msgspec import Struct

from lbagent.model.address import L3n4Addr
from lbagent.model.backend import BackendState as State_
from lbagent.model.service import SVC
from lbagent.model.state import State
from lbagent.sync.objects import (
    BackendState,
    Change,
    Endpoints,
    EndpointSlice,
    Message,
    Node,
    Objects,
    Pod,
    Service,
)
from lbagent.sync.resolve_claims import Claims
from lbagent.sync.resolve_frontends import NodeView, Wanted, wanted_frontends
from lbagent.sync.resolve_hostports import host_port_rows, is_relevant
from lbagent.sync.resolve_order import OrderedRows
from lbagent.sync.resolve_rows import Rows, Surroundings
from lbagent.sync.resolve_shared import SharedStates


class Options(Struct, frozen=True, gc=False):
    """Who this node is. `node_ips` given beats the Node object's InternalIPs.

    `keep_existing`: the agent's rule that the backend row of an endpoint that still exists in a slice stays. Then what was
    there before counts: a State may hold resting backends that a fresh one does not.
    """

    node_name: str = ""
    node_ips: tuple[bytes, ...] = ()
    keep_existing: bool = False


class Resolution(Struct, frozen=True):
    """What the objects mean, and what is wrong with them together (what is wrong with one alone, its source says)."""

    state: State
    messages: tuple[Message, ...] = ()


def resolve(objects: Objects, options: Options) -> Resolution:
    """Return the State of all objects, from nothing."""
    resolver = Resolver(options)
    resolver.replace(objects)
    return resolver.resolve()


class Resolver:
    """Objects in, State out; remembers what it need not build again."""

    def __init__(self, options: Options) -> None:
        """Know nothing yet."""
        self._options = options
        self._services: dict[str, Service] = {}
        self._slices: dict[str, dict[str, EndpointSlice]] = {}  # by service key, then by slice key
        self._endpoints: dict[str, Endpoints] = {}
        self._pods: dict[str, Pod] = {}  # those that have a weight, or hostPorts on this node
        self._weight_by_ip: dict[bytes, int] = {}
        self._states: dict[str, BackendState] = {}
        self._node: Node | None = None
        self._claims = Claims()
        self._shared = SharedStates()
        self._restored: frozenset[L3n4Addr] = frozenset()
        self._around = Surroundings(self._view())
        self._wanted: dict[str, list[Wanted]] = {}  # of this run
        self._rows = OrderedRows()  # by owner: a service key, or 'pod:' and a pod key
        self._messages: dict[str, tuple[Message, ...]] = {}
        self._pod_owners: set[str] = set()
        self._latent: dict[str, set[L3n4Addr]] = {}  # of this run
        self._with_node_ports: set[str] = set()
        self._dirty: set[str] = set()
        self._all_dirty = False
        self._pods_dirty = False
        self._stale_addresses: set[bytes] = set()  # a BackendState or a Pod's weight of theirs has changed
        self._stale_pods: set[str] = set()
        self._last = Resolution(State())

    # --- changes ---

    def replace(self, objects: Objects) -> None:
        """Take a whole snapshot in place of everything known."""
        last, restored = self._last, self._restored
        self.__init__(self._options)  # type: ignore[misc]
        self._last, self._restored = last, restored
        self._all_dirty = True
        self.update(
            Change(kind, key, None, obj)
            for kind in ("Node", "BackendState", "Pod", "Service", "EndpointSlice", "Endpoints")
            for key, obj in objects.of_kind(kind).items()
        )

    def remember(self, addresses: Iterable[L3n4Addr]) -> None:
        """Say which backends have rows in the maps from before; it counts until the next `resolve`."""
        self._restored = frozenset(addresses)

    def update(self, changes: Iterable[Change]) -> None:
        """Take changes of single objects; `resolve` then says what they mean."""
        for change in changes:
            match change.new or change.old:
                case Service():
                    self._service(change.key, change.new)
                case EndpointSlice():
                    self._slice(change.key, change.old, change.new)
                case Endpoints():
                    self._set(self._endpoints, change.key, change.new)
                    self._dirty.add(change.key)
                case Pod():
                    self._pod(change.key, change.new)
                case Node():
                    self._this_node(change.key, change.new)
                case BackendState():
                    self._state(change.key, change.new)

    def _service(self, key: str, new: object) -> None:
        service = new if isinstance(new, Service) else None
        self._set(self._services, key, service)
        self._rows.place(key, service.origin if service else None)
        self._dirty.add(key)
        if service and not service.ignored and any(port.node_port for port in service.ports):
            self._with_node_ports.add(key)
        else:
            self._with_node_ports.discard(key)

    def _slice(self, key: str, old: object, new: object) -> None:
        for piece in (old, new):
            if isinstance(piece, EndpointSlice):
                self._dirty.add(piece.service_key)
                of_service = self._slices.setdefault(piece.service_key, {})
                if piece is new:
                    of_service[key] = piece
                else:
                    of_service.pop(key, None)
                if not of_service:
                    del self._slices[piece.service_key]

    def _pod(self, key: str, new: object) -> None:
        old = self._pods.get(key)
        pod = new if isinstance(new, Pod) else None
        here = self._options.node_name
        if pod is not None and pod.weight is None and not is_relevant(pod, here):
            pod = None
        self._set(self._pods, key, pod)
        if (old and is_relevant(old, here)) or (pod and is_relevant(pod, here)):
            self._pods_dirty = True
        weights = [(p.weight, p.ips) if p and p.weight is not None else None for p in (old, pod)]
        if weights[0] != weights[1]:
            self._stale_pods.add(key)
            self._stale_addresses.update(ip for p in (old, pod) if p for ip in p.ips)

    def _this_node(self, key: str, new: object) -> None:
        if key != self._options.node_name:
            return
        self._node = new if isinstance(new, Node) else None
        self._all_dirty = True

    def _state(self, key: str, new: object) -> None:
        old = self._states.get(key)
        state = new if isinstance(new, BackendState) else None
        self._set(self._states, key, state)
        self._stale_addresses.update(each.address.address for each in (old, state) if each)
        self._pods_dirty = True

    def _each_slice(self) -> Iterable[tuple[str, EndpointSlice]]:
        for service, slices in self._slices.items():
            for piece in slices.values():
                yield service, piece
        for service, endpoints in self._endpoints.items():
            for piece in endpoints.slices:
                yield service, piece

    @staticmethod
    def _set(where: dict[str, Any], key: str, value: object) -> None:
        if value is None:
            where.pop(key, None)
        else:
            where[key] = value

    # --- from what is known to a State ---

    def resolve(self) -> Resolution:
        """Return what all objects mean now; the same object as before when nothing changed."""
        if not (self._dirty or self._all_dirty or self._pods_dirty or self._stale_addresses or self._stale_pods):
            return self._last
        self._look_around()
        dirty = self._dirty | self._services.keys() if self._all_dirty else self._dirty
        built: dict[str, tuple[SVC, ...]] = {}
        touched: set[str] = set()
        pending = self._contest(dirty)
        pods = self._build_pods() if self._pods_dirty or self._all_dirty or (dirty and self._pod_owners) else {}
        while pending or pods:
            batch = pods | self._build_services(pending)
            built |= batch
            pending, pods = set(), {}
            for owner, rows in batch.items():
                others, woken = self._shared.update(owner, rows, self._latent.pop(owner, ()))
                touched |= others
                pending |= woken
        touched -= built.keys()
        built |= self._build_services(touched - self._pod_owners)
        if not touched.isdisjoint(self._pod_owners):
            built |= self._build_pods()
        for owner, rows in built.items():
            self._rows.keep(owner, self._shared.settle(owner, rows))
        self._dirty, self._all_dirty, self._pods_dirty = set(), False, False
        self._restored = frozenset()
        self._latent.clear()
        self._last = Resolution(State(self._last.state.generation + 1, self._rows.all()), self._all_messages())
        return self._last

    def _look_around(self) -> None:
        """Bring the surroundings up to date, and find the Services that a stale address or Pod concerns."""
        here = self._options.node_name
        overrides: dict[L3n4Addr, State_] = {}
        for state in sorted(self._states.values(), key=lambda state: (state.origin, state.name), reverse=True):
            if not state.node or state.node == here:
                overrides[state.address] = state.state  # the first in order holds
        self._weight_by_ip = {
            ip: pod.weight
            for _, pod in sorted(self._pods.items(), reverse=True)
            if pod.weight is not None and not pod.host_network and not pod.finished
            for ip in pod.ips
        }
        self._around = Surroundings(
            self._view(), self._has_row if self._options.keep_existing else None, overrides, self._weight_of_pod
        )
        addresses, pods = self._stale_addresses, self._stale_pods
        if addresses or pods:
            for service, piece in self._each_slice():
                if any(endpoint.address in addresses or endpoint.pod in pods for endpoint in piece.endpoints):
                    self._dirty.add(service)
        self._stale_addresses, self._stale_pods = set(), set()

    def _has_row(self, address: L3n4Addr) -> bool:
        return self._shared.has(address) or address in self._restored

    def _view(self) -> NodeView:
        node, options = self._node, self._options
        addresses = options.node_ips or (node.internal_ips if node else ())
        return NodeView(options.node_name, addresses, node.zone if node else "")

    def _weight_of_pod(self, pod_key: str, address: bytes) -> int | None:
        if not self._pods:
            return None
        if pod_key:
            pod = self._pods.get(pod_key)
            return pod.weight if pod else None
        return self._weight_by_ip.get(address)

    def _contest(self, dirty: Iterable[str]) -> set[str]:
        """Bring the claims up to date; return the dirty Services and those that won or lost a frontend by them."""
        concerned = set(dirty)
        self._wanted = {}
        for key in dirty:
            service = self._services.get(key)
            wanted = self._wanted[key] = wanted_frontends(service, self._around.node) if service else []
            concerned |= self._claims.update(key, service, [want.frontend for want in wanted])
        return concerned

    def _build_services(self, keys: Iterable[str]) -> dict[str, tuple[SVC, ...]]:
        return {key: self._build_service(key) for key in keys}

    def _build_service(self, key: str) -> tuple[SVC, ...]:
        service = self._services.get(key)
        if service is None:
            self._messages.pop(key, None)
            return ()
        wanted = self._wanted.get(key)
        if wanted is None:
            wanted = wanted_frontends(service, self._around.node)
        slices: Iterable[EndpointSlice] = self._slices.get(key, {}).values()
        if not slices and key in self._endpoints:
            slices = self._endpoints[key].slices
        rows = Rows(service, slices, self._around)
        owner = self._claims.owner

        def lost_to(frontend: L3n4Addr) -> Service | None:
            winner = owner(frontend)
            return None if winner is None or winner == key else self._services[winner]

        built = rows.build(wanted, lost_to)
        self._say(key, rows.messages)
        if rows.latent:
            self._latent[key] = rows.latent
        return built

    def _build_pods(self) -> dict[str, tuple[SVC, ...]]:
        """Build all HostPort rows again: there are few, and each may depend on each."""
        built: dict[str, tuple[SVC, ...]] = {}
        here = self._options.node_name
        pods = [pod for pod in self._pods.values() if is_relevant(pod, here)]
        result = host_port_rows(pods, self._around, self._claims.owner)
        origins = {f"pod:{pod.key}": pod.origin for pod in pods}
        for owner in self._pod_owners - origins.keys():
            self._rows.place(owner, None)
            self._messages.pop(owner, None)
            built[owner] = ()
        self._pod_owners = set(origins)
        for owner, origin in origins.items():
            self._rows.place(owner, origin)
            built[owner] = result.rows.get(owner[4:], ())
            self._say(owner, [message for key, message in result.messages if key == owner[4:]])
        return built

    def _say(self, owner: str, messages: list[Message]) -> None:
        if messages:
            self._messages[owner] = tuple(messages)
        else:
            self._messages.pop(owner, None)

    def _all_messages(self) -> tuple[Message, ...]:
        lonely = bool(self._with_node_ports) and not self._around.node.addresses
        if not self._messages and not lonely:
            return ()
        found = [message for owner in self._rows.owners() for message in self._messages.get(owner, ())]
        if lonely:
            problem = "no address of this node is known: neither --node-ip nor an InternalIP of its Node object"
            subject = f"Node {self._options.node_name}"
            found.append(
                Message(problem, "NodePort frontends have no row for a node address", "", subject, warning=True)
            )
        return tuple(found)
