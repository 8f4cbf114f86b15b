"""resolve: all objects + this node's identity -> State + messages. Pure; any order of events gives the same State.

One result depends on the past: the owner of a contested frontend where no creationTimestamp decides (ownership.py). The previous
owner is an input.

`Resolver` keeps the SVCs of each Service and builds again only those that a change concerns: the Service itself, those that
contest a frontend with it, those that share a backend with it. `resolve` does the same from nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping

from msgspec import Struct
from msgspec.structs import replace

from lbagent.model.address import L3n4Addr, Scope
from lbagent.model.backend import BackendState
from lbagent.model.cooperative import Cooperative, run_whole
from lbagent.model.exclusion import Exclusion
from lbagent.model.family import Family
from lbagent.model.message import Message
from lbagent.model.service import CIDR, SVC
from lbagent.model.state import State
from lbagent.objects.records import ObjectChange, ObjectSnapshot
from lbagent.probes.backend_check import CheckedService
from lbagent.resolve.backend_states import SharedStates
from lbagent.resolve.build_context import BuildContext
from lbagent.resolve.frontend_list import FrontendList
from lbagent.resolve.frontends import (
    MAX_FRONTENDS_PER_SERVICE,
    LocalNode,
    WantedFrontend,
    excluded_frontends,
    wanted_frontends,
)
from lbagent.resolve.host_ports import host_port_frontends
from lbagent.resolve.local_redirect_rows import rows_of_address
from lbagent.resolve.local_redirects import LocalRedirects, Surroundings, local_redirects, owner_name
from lbagent.resolve.object_index import ObjectIndex
from lbagent.resolve.overrides import Overrides
from lbagent.resolve.ownership import Contest, OwnedFrontends, OwnerOf, Ownership
from lbagent.resolve.service_builder import ServiceBuilder

FrontendsByOwner = dict[str, tuple[SVC, ...]]  # by owner: a service key, 'pod:' and a pod key, a local redirect
KIND_ORDER = (
    *("Node", "BackendState", "FailedChecks", "Pod", "Service", "EndpointSlice", "Endpoints"),
    *("LocalRedirectPolicy", "CiliumLocalRedirectPolicy"),
)


class Options(Struct, frozen=True, gc=False):
    """The identity of this node. A given `node_ips` takes precedence over the Node object's InternalIPs.

    `keep_existing`: the agent's rule that an endpoint in a slice keeps its backend entry, and a frontend of policy Local its row
    of scope INTERNAL. Then the past counts: a State may hold resting backends and such rows that a fresh one does not.
    `node_port_addresses`: those that NodePorts have, None = all of the node's; with `node_port_primary` its first of each family.
    `external_ips`: whether externalIPs are served (CVE-2020-8554: a user who may write a Service can claim any address by them),
    `external_ip_ranges` their ranges; () = all. `host_addresses`: every address of the host, for Services that are bound to all
    of them. `max_frontends`: of one Service, addresses with port and protocol; the rest is left out. `local_endpoint_weight`: how
    many times the share of another one an endpoint of this node has. `contiv_policies`: externalTrafficPolicy Local holds for
    ClusterIPs, too. `exclusions`: frontends that are left alone. `resets_dead_nodes`: flows to endpoints of dead nodes end.
    `no_vip_checks`, `no_passive_checks`: why these health checks are not possible here, '' = they are.
    `sources`: names of sources in the order of precedence of their
    BackendStates; the operator's come first. Without `services` only Nodes are read.
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
    no_vip_checks: str = ""
    no_passive_checks: str = ""
    exclusions: tuple[Exclusion, ...] = ()
    resets_dead_nodes: bool = False
    services: bool = True


class Resolution(Struct, frozen=True):
    """The result for all objects, and the problems between them (each source reports those of single objects)."""

    state: State
    messages: tuple[Message, ...] = ()
    contests: tuple[Contest, ...] = ()  # claims without effect because another Service has the frontend


class InForce(Struct, frozen=True):
    """What has entries from before: backends, and frontends of scope INTERNAL. An endpoint and a frontend keep theirs."""

    backends: frozenset[L3n4Addr] = frozenset()
    inside_rows: frozenset[L3n4Addr] = frozenset()


NOTHING = InForce()


def resolve(
    objects: ObjectSnapshot, options: Options, previous_owner: OwnerOf | None = None, in_force: InForce = NOTHING
) -> Resolution:
    """Return the State of all objects, from nothing; `previous_owner` returns the previous Service of a frontend."""
    resolver = Resolver(options)
    resolver.replace(objects)
    resolver.set_restored(in_force)
    if previous_owner is not None:
        resolver.set_previous_owner(previous_owner)
    return resolver.resolve()


class Resolver:
    """Objects in, State out; keeps results that a change does not concern."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self._last = Resolution(State())
        self._restored = InForce()
        self._alike: Mapping[L3n4Addr, SVC] = {}
        self._dead_nodes: frozenset[str] = frozenset()
        self._clear()

    def _clear(self) -> None:
        self._index = ObjectIndex(self._options.node_name, self._options.sources)
        self._ownership = Ownership()
        self._shared_states = SharedStates()
        self._frontends = FrontendList()
        self._messages: dict[str, tuple[Message, ...]] = {}  # by owner
        self._contests: dict[str, tuple[Contest, ...]] = {}  # by the Service without the frontend
        self._pod_owners: set[str] = set()
        self._redirects = LocalRedirects()
        # of one run:
        self._context: BuildContext
        self._wanted: dict[str, list[WantedFrontend]] = {}
        self._filtered_out: dict[str, set[L3n4Addr]] = {}
        self._excluded: set[str] = set()  # Services of which frontends may be left alone
        self._checked: dict[str, CheckedService] = {}
        self._shown_checked: Mapping[str, CheckedService] | None = None  # None: to be copied again
        self._panics: set[str] = set()  # Services of which too many checks fail

    def replace(self, objects: ObjectSnapshot) -> None:
        """Replace all objects by a snapshot. Owners of frontends keep their precedence."""
        owner_of = self._ownership.owner
        self._clear()
        self._ownership.set_previous_owner(owner_of)
        self._index.all_dirty = True
        self.update(
            ObjectChange(kind, key, None, obj) for kind in KIND_ORDER for key, obj in objects.of_kind(kind).items()
        )

    def set_restored(self, in_force: InForce) -> None:
        """Set what has entries in the maps from before; it counts until the next `resolve`."""
        self._restored = in_force

    def set_dead_nodes(self, nodes: frozenset[str]) -> None:
        """Set the nodes whose endpoints take no new flows while another endpoint of their Service can."""
        self._index.nodes_changed(nodes ^ self._dead_nodes)
        self._dead_nodes = nodes

    def set_previous_owner(self, previous_owner: OwnerOf) -> None:
        """Set the previous owner of each frontend before the first `resolve`: it may keep contested ones (ownership.py)."""
        self._ownership.set_previous_owner(previous_owner)

    def owner_of(self, frontend: L3n4Addr) -> str | None:
        """Return the key of the Service that has a frontend; before the first `resolve`, of the previous owner."""
        return self._ownership.owner(frontend)

    def without_objects(self, alike: Mapping[L3n4Addr, SVC]) -> Resolver:
        """Return another resolver with the same options and previous owners, for objects to come.

        Its result has the rows of `alike` where they are equal: a second State of 10,000 Services took 10 MiB.
        """
        other = Resolver(self._options)
        other.set_previous_owner(self.owner_of)
        other._alike, other._dead_nodes = alike, self._dead_nodes
        return other

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
            no_vip_checks=options.no_vip_checks,
            no_passive_checks=options.no_passive_checks,
            exclusions=options.exclusions,
        )

    def excluded(self) -> Iterator[str]:
        """Yield the frontends that are left alone, and by what, a line each."""
        node = self.local_node()
        for key in sorted(self._excluded):
            for frontend, by in excluded_frontends(self._index.services[key], node):
                yield f"{key} {frontend.with_protocol()}: {by}"

    @property
    def checked(self) -> Mapping[str, CheckedService]:
        """The Services whose backends are checked, by key: the same object until one changes."""
        if self._shown_checked is None:
            self._shown_checked = dict(self._checked)
        return self._shown_checked

    @property
    def panics(self) -> Collection[str]:
        """The keys of Services of which so many checks fail that they change nothing."""
        return self._panics

    def excluded_frontends(self) -> frozenset[L3n4Addr]:
        """Return the frontends of Services that are left alone."""
        if not self._excluded:
            return frozenset()
        node, services = self.local_node(), self._index.services
        return frozenset(frontend for key in self._excluded for frontend, _ in excluded_frontends(services[key], node))

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
            if not (self._options.services or change.kind == "Node"):
                continue
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
        self._context = BuildContext(
            node,
            is_served,
            index.overrides(),
            index.weight_of_pod,
            index.failed_checks,
            index.nodes,
            self._dead_nodes,
            self._options.resets_dead_nodes,
            self._redirects.by_frontend,
        )
        built = yield from self._build(index.dirty)
        for owner, frontends in built.items():
            self._frontends.set_frontends(owner, self._shared_states.with_shared_states(owner, frontends))
            yield
        index.forget_changes()
        self._wanted = {}
        self._restored = InForce()
        self._filtered_out.clear()
        state = self._frontends.state(self._last.state.generation + 1)
        self._last = Resolution(state, self._all_messages(), self._all_contests())
        del (
            self._context
        )  # it has a method of this resolver: an unused resolver would stay in memory until a collection
        return self._last

    def _inside_rows(self, owner: str) -> Collection[L3n4Addr]:
        """Return the frontends of scope INTERNAL of an owner that are in force, with all that are restored."""
        if not self._options.keep_existing:
            return ()
        mine = [svc.frontend for svc in self._frontends.of(owner) if svc.frontend.scope is Scope.INTERNAL]
        return self._restored.inside_rows.union(mine) if mine else self._restored.inside_rows

    def _is_served(self, address: L3n4Addr) -> bool:
        return self._shared_states.has(address) or address in self._restored.backends

    # --- Services to build again ---

    def _build(self, dirty: set[str]) -> Cooperative[FrontendsByOwner]:
        """Build the dirty Services and those whose SVCs depend on them."""
        built: FrontendsByOwner = {}
        touched: set[str] = set()
        pending = yield from self._contest(dirty)
        index = self._index
        others_built = self._build_pods() if index.pods_dirty or index.all_dirty or (dirty and self._pod_owners) else {}
        has_redirects = bool(index.redirects or self._redirects.messages)
        while pending or others_built or has_redirects:
            if not (pending or others_built):  # they depend on all others, and these on them: last, and once
                has_redirects = False
                others_built, pending = self._build_redirects(built)
            batch = others_built | (yield from self._build_services(pending))
            built |= batch
            pending, others_built = set(), {}
            for owner, frontends in batch.items():
                others, served_now = self._shared_states.update(owner, frontends, self._filtered_out.pop(owner, ()))
                touched |= others
                pending |= served_now
                yield
            again = pending & self._redirects.messages.keys()
            has_redirects |= bool(again)
            pending -= again
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
        if service is not None and (service.excluded or self._options.exclusions):
            self._excluded.add(key)
        else:
            self._excluded.discard(key)
        if service is None:
            self._messages.pop(key, None)
            self._contests.pop(key, None)
            self._note_checked(key, None, has_panic=False)
            return ()
        wanted = self._wanted.get(key)
        if wanted is None:
            wanted = wanted_frontends(service, self._context.node)

        builder = ServiceBuilder(service, self._index.slices_of(key), self._context, self._inside_rows(key))
        built = builder.build(wanted, self._ownership.winning_claim)
        self._set_messages(key, builder.messages)
        check = CheckedService(service.health_check, tuple(builder.checked.items())) if service.health_check else None
        self._note_checked(key, check, has_panic=builder.has_panic)
        if builder.contests:
            self._contests[key] = tuple(builder.contests)
        else:
            self._contests.pop(key, None)
        self._filtered_out[key] = builder.filtered_out
        alike = tuple([self._alike.get(svc.frontend, svc) for svc in built]) if self._alike else built
        return alike if alike == built else built

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

    def _build_redirects(self, built: FrontendsByOwner) -> tuple[FrontendsByOwner, set[str]]:
        """Decide on all local redirects again; return their own frontends, and the Services to build again."""
        rows = (row for owner in self._pod_owners for row in built.get(owner, self._frontends.of(owner)))
        around = Surroundings(
            self._context.node,
            self._index.pods_here(),
            self._index.services,
            self._context.overrides,
            self._ownership.owner,
            self._shared_states.users_of,
            {row.frontend for row in rows},
        )
        policies = self._index.redirects.values()
        before, self._redirects = self._redirects, local_redirects(policies, around)
        self._context = replace(self._context, redirects=self._redirects.by_frontend)
        found: FrontendsByOwner = {}
        for owner in before.messages.keys() - self._redirects.messages.keys():
            self._frontends.place(owner, None)
            self._messages.pop(owner, None)
            found[owner] = ()
        for policy in policies:
            owner = owner_name(policy)
            self._frontends.place(owner, policy.origin)
            self._set_messages(owner, self._redirects.messages[owner])
            rows_of_policy: list[SVC] = []
            waiting: set[L3n4Addr] = set()
            for frontend in self._redirects.of_addresses.get(owner, ()):
                more, waits = rows_of_address(self._redirects.by_frontend[frontend], frontend, self._context)
                rows_of_policy += more
                waiting.update(waits)
            found[owner], self._filtered_out[owner] = tuple(rows_of_policy), waiting
        old, new = before.by_frontend, self._redirects.by_frontend
        changed = {frontend for frontend in old.keys() | new.keys() if old.get(frontend) != new.get(frontend)}
        services = {self._ownership.owner(frontend) for frontend in changed}
        return found, {key for key in services if key is not None}

    def _note_checked(self, key: str, checked: CheckedService | None, *, has_panic: bool) -> None:
        if self._checked.get(key) != checked:
            self._shown_checked = None
            if checked is None:
                del self._checked[key]
            else:
                self._checked[key] = checked
        if has_panic:
            self._panics.add(key)
        else:
            self._panics.discard(key)

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
