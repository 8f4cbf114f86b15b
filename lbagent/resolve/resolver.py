"""resolve: all objects + this node's identity -> State + messages. Pure; any order of events gives the same State.

One result depends on the past: the owner of a contested frontend where no creationTimestamp decides (ownership.py). The previous
owner is an input.

`Resolver` keeps the SVCs of each Service and builds again only those that a change concerns: the Service itself, those that
contest a frontend with it, those that share a backend with it. `resolve` does the same from nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from msgspec import Struct
from msgspec.structs import replace

from lbagent.model.address import L3n4Addr
from lbagent.model.backend import BackendState
from lbagent.model.cooperative import Cooperative, run_whole
from lbagent.model.family import Family
from lbagent.model.message import Message
from lbagent.model.service import CIDR, SVC
from lbagent.model.state import State
from lbagent.objects.records import ObjectChange, ObjectSnapshot
from lbagent.resolve.backend_states import SharedStates
from lbagent.resolve.build_context import BuildContext
from lbagent.resolve.frontend_list import FrontendList
from lbagent.resolve.frontends import MAX_FRONTENDS_PER_SERVICE, LocalNode, WantedFrontend, wanted_frontends
from lbagent.resolve.host_ports import host_port_frontends
from lbagent.resolve.object_index import ObjectIndex
from lbagent.resolve.overrides import Overrides
from lbagent.resolve.ownership import Contest, OwnedFrontends, OwnerOf, Ownership
from lbagent.resolve.service_builder import ServiceBuilder

FrontendsByOwner = dict[str, tuple[SVC, ...]]  # SVCs by owner: a service key, or 'pod:' and a pod key
KIND_ORDER = ("Node", "BackendState", "Pod", "Service", "EndpointSlice", "Endpoints")


class Options(Struct, frozen=True, gc=False):
    """The identity of this node. A given `node_ips` takes precedence over the Node object's InternalIPs.

    `keep_existing`: the agent's rule that an endpoint in a slice keeps its backend entry. Then the past counts: a State may hold
    resting backends that a fresh one does not. `node_port_addresses`: those that NodePorts have, None = all of the node's; with
    `node_port_primary` its first of each family. `external_ips`: whether externalIPs are served (CVE-2020-8554: a user who may
    write a Service can claim any address by them), `external_ip_ranges` their ranges; () = all. `host_addresses`: every address
    of the host, for Services that are bound to all of them. `max_frontends`: of one Service, addresses with port and protocol;
    the rest is left out. `local_endpoint_weight`: how many times the share of another one an endpoint of this node has.
    `contiv_policies`: externalTrafficPolicy Local holds for ClusterIPs, too. `sources`: names of sources in the order of
    precedence of their BackendStates; the operator's come first.
    """

    node_name: str = ""
    node_ips: tuple[bytes, ...] = ()
    keep_existing: bool = False
    sources: tuple[str, ...] = ()
    node_port_addresses: tuple[bytes, ...] | None = None
    node_port_primary: bool = False
    external_ips: bool = True
    external_ip_ranges: tuple[CIDR, ...] = ()
    host_addresses: tuple[bytes, ...] = ()
    max_frontends: int = MAX_FRONTENDS_PER_SERVICE
    local_endpoint_weight: int = 1
    contiv_policies: bool = False


class Resolution(Struct, frozen=True):
    """The result for all objects, and the problems between them (each source reports those of single objects)."""

    state: State
    messages: tuple[Message, ...] = ()
    contests: tuple[Contest, ...] = ()  # claims without effect because another Service has the frontend


def resolve(objects: ObjectSnapshot, options: Options, previous_owner: OwnerOf | None = None) -> Resolution:
    """Return the State of all objects, from nothing; `previous_owner` returns the previous Service of a frontend."""
    resolver = Resolver(options)
    resolver.replace(objects)
    if previous_owner is not None:
        resolver.set_previous_owner(previous_owner)
    return resolver.resolve()


class Resolver:
    """Objects in, State out; keeps results that a change does not concern."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self._last = Resolution(State())
        self._restored: frozenset[L3n4Addr] = frozenset()
        self._clear()

    def _clear(self) -> None:
        self._index = ObjectIndex(self._options.node_name, self._options.sources)
        self._ownership = Ownership()
        self._shared_states = SharedStates()
        self._frontends = FrontendList()
        self._messages: dict[str, tuple[Message, ...]] = {}  # by owner
        self._contests: dict[str, tuple[Contest, ...]] = {}  # by the Service without the frontend
        self._pod_owners: set[str] = set()
        # of one run:
        self._context: BuildContext
        self._wanted: dict[str, list[WantedFrontend]] = {}
        self._filtered_out: dict[str, set[L3n4Addr]] = {}

    def replace(self, objects: ObjectSnapshot) -> None:
        """Replace all objects by a snapshot. Owners of frontends keep their precedence."""
        owner_of = self._ownership.owner
        self._clear()
        self._ownership.set_previous_owner(owner_of)
        self._index.all_dirty = True
        self.update(
            ObjectChange(kind, key, None, obj) for kind in KIND_ORDER for key, obj in objects.of_kind(kind).items()
        )

    def set_restored_backends(self, addresses: Iterable[L3n4Addr]) -> None:
        """Set the backends that have entries in the maps from before; it counts until the next `resolve`."""
        self._restored = frozenset(addresses)

    def set_previous_owner(self, previous_owner: OwnerOf) -> None:
        """Set the previous owner of each frontend before the first `resolve`: it may keep contested ones (ownership.py)."""
        self._ownership.set_previous_owner(previous_owner)

    def owner_of(self, frontend: L3n4Addr) -> str | None:
        """Return the key of the Service that has a frontend; before the first `resolve`, of the previous owner."""
        return self._ownership.owner(frontend)

    @property
    def owners_version(self) -> int:
        """A number that changes with what `owned_frontends` returns."""
        return self._ownership.version

    def owned_frontends(self) -> OwnedFrontends:
        """Return the owner of each frontend, for a later `set_previous_owner`."""
        return self._ownership.owned()

    @property
    def node_name(self) -> str:
        """The node of this resolver."""
        return self._options.node_name

    def local_node(self) -> LocalNode:
        """Return this node."""
        options, node = self._options, self._index.local_node(self._options.node_ips)
        chosen = options.node_port_addresses
        if options.node_port_primary:
            chosen = tuple({Family.of(address): address for address in reversed(node.addresses)}.values())
        return replace(
            node,
            node_port_addresses=chosen,
            external_ips=options.external_ips,
            external_ip_ranges=options.external_ip_ranges,
            host_addresses=options.host_addresses,
            max_frontends=options.max_frontends,
            local_endpoint_weight=options.local_endpoint_weight,
            contiv_policies=options.contiv_policies,
        )

    def node_port_addresses(self) -> tuple[bytes, ...]:
        """Return this node's addresses for NodePorts."""
        node = self.local_node()
        return node.addresses if node.node_port_addresses is None else node.node_port_addresses

    def overrides(self) -> Mapping[L3n4Addr, BackendState]:
        """Return the states that the operator and health checks set for single addresses of backends on this node."""
        return self._index.overrides().of_addresses()

    def effective_overrides(self) -> Overrides:
        """Return the effective BackendStates of this node, by address and by Pod."""
        return self._index.overrides()

    def update(self, changes: Iterable[ObjectChange]) -> None:
        """Store changes of single objects; `resolve` then returns the result."""
        for change in changes:
            self._index.update(change)
            if change.kind == "Service":
                self._frontends.place(change.key, change.new.origin if change.new else None)

    def resolve(self) -> Resolution:
        """Return the result for all objects; the same object as before when nothing changed."""
        return run_whole(self.resolving())

    def resolving(self) -> Cooperative[Resolution]:
        """Do the same as `resolve`; no `update` before the end."""
        index = self._index
        if not index.is_changed:
            return self._last
        index.refresh()
        is_served = self._is_served if self._options.keep_existing else None
        node = self.local_node()
        self._context = BuildContext(node, is_served, index.overrides(), index.weight_of_pod, index.nodes)
        built = yield from self._build(index.dirty)
        for owner, frontends in built.items():
            self._frontends.set_frontends(owner, self._shared_states.with_shared_states(owner, frontends))
            yield
        index.forget_changes()
        self._wanted = {}
        self._restored = frozenset()
        self._filtered_out.clear()
        state = self._frontends.state(self._last.state.generation + 1)
        self._last = Resolution(state, self._all_messages(), self._all_contests())
        return self._last

    def _is_served(self, address: L3n4Addr) -> bool:
        return self._shared_states.has(address) or address in self._restored

    # --- Services to build again ---

    def _build(self, dirty: set[str]) -> Cooperative[FrontendsByOwner]:
        """Build the dirty Services and those whose SVCs depend on them."""
        built: FrontendsByOwner = {}
        touched: set[str] = set()
        pending = yield from self._contest(dirty)
        index = self._index
        pods = self._build_pods() if index.pods_dirty or index.all_dirty or (dirty and self._pod_owners) else {}
        while pending or pods:
            batch = pods | (yield from self._build_services(pending))
            built |= batch
            pending, pods = set(), {}
            for owner, frontends in batch.items():
                others, served_now = self._shared_states.update(owner, frontends, self._filtered_out.pop(owner, ()))
                touched |= others
                pending |= served_now
                yield
        touched -= built.keys()  # all Pods are: they are built with any Service
        built |= yield from self._build_services(touched)
        return built

    def _contest(self, dirty: Iterable[str]) -> Cooperative[set[str]]:
        """Update the ownership of frontends; return the dirty Services and those that gained or lost a frontend."""
        concerned = set(dirty)
        for key in dirty:
            service = self._index.services.get(key)
            wanted = self._wanted[key] = wanted_frontends(service, self._context.node) if service else []
            self._ownership.update(key, service, wanted)
            yield
        return concerned | self._ownership.decide()

    # --- SVCs ---

    def _build_services(self, keys: Iterable[str]) -> Cooperative[FrontendsByOwner]:
        built: FrontendsByOwner = {}
        for key in keys:
            built[key] = self._build_service(key)
            yield
        return built

    def _build_service(self, key: str) -> tuple[SVC, ...]:
        service = self._index.services.get(key)
        if service is None:
            self._messages.pop(key, None)
            self._contests.pop(key, None)
            return ()
        wanted = self._wanted.get(key)
        if wanted is None:
            wanted = wanted_frontends(service, self._context.node)

        builder = ServiceBuilder(service, self._index.slices_of(key), self._context)
        built = builder.build(wanted, self._ownership.winning_claim)
        self._set_messages(key, builder.messages)
        if builder.contests:
            self._contests[key] = tuple(builder.contests)
        else:
            self._contests.pop(key, None)
        self._filtered_out[key] = builder.filtered_out
        return built

    def _build_pods(self) -> FrontendsByOwner:
        """Build all HostPort frontends again: there are few, and each may depend on every other."""
        pods = {f"pod:{pod.key}": pod for pod in self._index.relevant_pods()}
        result = host_port_frontends(pods.values(), self._context, self._ownership.owner)
        built: FrontendsByOwner = {}
        for owner in self._pod_owners - pods.keys():
            self._frontends.place(owner, None)
            self._messages.pop(owner, None)
            built[owner] = ()
        self._pod_owners = set(pods)
        for owner, pod in pods.items():
            self._frontends.place(owner, pod.origin)
            built[owner] = result.frontends.get(pod.key, ())
            self._set_messages(owner, [message for key, message in result.messages if key == pod.key])
        return built

    # --- messages ---

    def _set_messages(self, owner: str, messages: list[Message]) -> None:
        if messages:
            self._messages[owner] = tuple(messages)
        else:
            self._messages.pop(owner, None)

    def _all_contests(self) -> tuple[Contest, ...]:
        owners = self._frontends.owners() if self._contests else ()
        return tuple(contest for owner in owners for contest in self._contests.get(owner, ()))

    def _all_messages(self) -> tuple[Message, ...]:
        owners = self._frontends.owners() if self._messages else ()
        found = [message for owner in owners for message in self._messages.get(owner, ())]
        found += [contradiction.message() for contradiction in self._index.contradictions()]
        found += self._index.placement_messages()
        found += self._index.orphan_messages()
        found += self._node_port_messages() if self._index.with_node_ports else ()
        return tuple(found)

    def _node_port_messages(self) -> Iterator[Message]:
        node, name = self._context.node, self._options.node_name
        kept = "NodePort frontends have no row for a node address"
        if not node.addresses:
            problem = "no address is known: neither --node-ip nor an InternalIP of its Node object"
            yield Message(problem, kept, "status.addresses", "Node", name, warning=True)
        elif node.node_port_addresses == ():
            yield Message("none of its addresses is in --nodeport-addresses", kept, "", "Node", name, warning=True)
