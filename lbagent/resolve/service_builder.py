"""From one Service and its slices to its frontends (SVC), before the states of shared backends are merged. Pure.

model/select.py selects the endpoints, frontends.py the frontends. This module combines them: flags, scopes, source ranges,
weights.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable

from msgspec import Struct
from msgspec.structs import replace

from lbagent.model.address import L3n4Addr, L4Type, Scope, format_ip
from lbagent.model.backend import DEFAULT_BACKEND_WEIGHT, MAX_WEIGHT, Backend, BackendState
from lbagent.model.family import Family
from lbagent.model.flags import ServiceFlags, SvcFlagParam
from lbagent.model.id_claims import OPERATORS_OWN
from lbagent.model.message import Message
from lbagent.model.select import (
    EndpointInfo,
    EndpointSet,
    Selection,
    deduplicate,
    endpoint_state,
    filtered_state,
    is_checked,
    quarantine_failed,
    select,
)
from lbagent.model.service import (
    CIDR,
    MAX_SLOTS,
    SVC,
    Algorithm,
    ServiceName,
    SVCNatPolicy,
    SVCTrafficPolicy,
    SVCType,
    is_in_any,
)
from lbagent.objects.records import EndpointSlice, Service, ServicePort
from lbagent.resolve.build_context import BuildContext
from lbagent.resolve.frontends import WantedFrontend, beyond_share
from lbagent.resolve.local_redirect_rows import redirect_group, redirect_row
from lbagent.resolve.local_redirects import Redirect
from lbagent.resolve.mismatches import NO_ENDPOINTS, family_problem, port_problem
from lbagent.resolve.ownership import Contest, FrontendClaim
from lbagent.resolve.plain_endpoints import PlainEndpoints, plain_endpoints
from lbagent.textfile.field_path import path_text

MAX_NAMED = 8  # addresses per message
HEALTH_CHECK = path_text(("metadata", "annotations", "lbagent.io/health-check"))
PORT_RANGE = path_text(("metadata", "annotations", "lbagent.io/port-range"))


class _Group(Struct, frozen=True, gc=False):
    """An EndpointSet as backends."""

    selectable: tuple[Backend, ...]
    unselectable: tuple[Backend, ...]
    slotless: tuple[Backend, ...]
    no_local_backend: bool = False
    ending: frozenset[L3n4Addr] = frozenset()

    @property
    def has_backends(self) -> bool:
        """Whether there is a backend, even without new flows."""
        return bool(self.selectable or self.unselectable or self.slotless)

    def is_same(self, other: _Group) -> bool:
        """Whether new and old flows have the same backends in both."""
        return self.selectable == other.selectable and self.unselectable == other.unselectable


class _Choice(Struct, frozen=True, gc=False):
    """The sets of one port and family."""

    cluster_ip: _Group
    outside: _Group
    inside: _Group
    health_check_addresses: tuple[bytes, ...] = ()


class ServiceBuilder:
    """Builds the SVCs of one Service."""

    def __init__(
        self,
        service: Service,
        slices: Iterable[EndpointSlice],
        context: BuildContext,
        inside_rows: Collection[L3n4Addr] = (),
    ) -> None:
        """`slices` are those of its Endpoints where the Service has none of its own.

        `inside_rows`: frontends of scope INTERNAL that are in force. With policy Local they stay as long as their frontend
        does, also when both scopes have the same backends: a connection belongs to the row that it was made by.
        """
        self.messages: list[Message] = []
        # Filtered out for some frontend; kept for its live flows as soon as another Service has an entry for it.
        self.filtered_out: set[L3n4Addr] = set()
        self.contests: list[Contest] = []
        self._service = service
        self._slices = sorted(slices, key=lambda piece: (piece.origin, piece.key))
        self._context = context
        self._inside_rows = inside_rows
        self._choices: dict[tuple[int, int, int], _Choice] = {}  # by port, first port of its range, family
        self._name = ServiceName(service.namespace, service.name)
        self._internal_local = service.internal_local or (context.node.contiv_policies and service.external_local)
        self._ignored_weights: dict[str, None] = {}
        self._plain: dict[Family, PlainEndpoints | None] = {}
        self._check = service.health_check
        failed = context.failed_checks.get(service.key) if self._check else None
        self._failed = failed.backends if failed else frozenset()
        if self._check and (why := self._impossible_check()):
            self._warn(HEALTH_CHECK, why, "the rest holds")
        if failed and failed.why:
            self._warn(HEALTH_CHECK, failed.why, "it takes no new flow until then", event="BackendDoesNotAnswer")
        self.checked: dict[
            L3n4Addr, L3n4Addr | None
        ] = {}  # backends whose health is to be checked -> a frontend that has it
        self._first: dict[tuple[Family, int], L3n4Addr] = {}  # frontend of each port
        self.has_panic = False  # too many checks fail: they change nothing
        self._empty: dict[tuple[Family, int], tuple[WantedFrontend, ServicePort]] = {}  # ports without a backend

    def _impossible_check(self) -> str:
        """Return what of the health check is not possible on this node, and what happens instead."""
        node, check = self._context.node, self._check
        assert check is not None
        if check.via_vip and node.no_vip_checks:
            return f"via=vip is not possible: {node.no_vip_checks}: probes go directly to the backends"
        if check.passive and node.no_passive_checks:
            return f"a passive check is not possible: {node.no_passive_checks}: its backends are not checked"
        return ""

    def build(
        self, wanted: Collection[WantedFrontend], winning_claim: Callable[[L3n4Addr], FrontendClaim | None]
    ) -> tuple[SVC, ...]:
        """Return the SVCs of the frontends that no other Service has; `winning_claim` returns the owner's claim of each."""
        frontends: list[SVC] = []
        reported: set[tuple[str, str, str]] = set()
        for want in wanted:
            winner = winning_claim(want.frontend)
            if winner is not None and winner.key != self._service.key:
                part = (path_text(want.field), str(want.frontend.l4), winner.key)
                if not want.is_wildcard and part not in reported:
                    reported.add(part)
                    self._report_lost(want, winner)
            elif want.port is None:
                frontends.append(_wildcard(want.frontend, self._name))
            else:
                frontends += self._frontends(want, want.port)
        if len(wanted) >= self._context.node.max_frontends:
            self._report_share()
        self._warn_ignored()
        self._report_mismatches()
        if self._context.is_served:
            self._keep_unmatched(frontends, self._context.is_served)
        return tuple(frontends)

    # --- SVCs ---

    def _frontends(self, want: WantedFrontend, port: ServicePort) -> list[SVC]:
        if not port.last_port:
            self._first.setdefault((want.frontend.family, port.index), want.frontend)
        choice = self._choice(port, want.frontend.family)
        if not choice.cluster_ip.has_backends and not port.last_port:  # its own port has the message
            self._empty.setdefault((want.frontend.family, port.index), (want, port))
        redirect = self._context.redirects.get(want.frontend)
        if want.type is SVCType.CLUSTER_IP:
            group, checked = choice.cluster_ip, choice.health_check_addresses
            outside = self._frontend(want, port, want.frontend, group, redirect is not None, checked)
            return [outside, self._redirected(want, port, redirect, group)] if redirect else [outside]
        inside = want.frontend.with_scope(Scope.INTERNAL)
        if redirect is not None:
            outside = self._frontend(want, port, want.frontend, choice.outside, True, choice.health_check_addresses)
            return [outside, self._redirected(want, port, redirect, choice.inside)]
        differs = not choice.outside.is_same(choice.inside)
        two_scopes = differs or (self._service.external_local and inside in self._inside_rows)
        frontends = [
            self._frontend(want, port, want.frontend, choice.outside, two_scopes, choice.health_check_addresses)
        ]
        if two_scopes:
            group = choice.inside if differs else choice.outside
            frontends.append(self._frontend(want, port, inside, group, True))
        return frontends

    def _redirected(self, want: WantedFrontend, port: ServicePort, redirect: Redirect, original: _Group) -> SVC:
        """Return the row of a local redirect; without a Pod the one that the Service has for what is inside."""
        pods = redirect_group(redirect, self._context)
        self.filtered_out.update(pods.waiting)
        if pods.selectable or redirect.policy.drops_when_empty:
            service = self._service
            return redirect_row(redirect, pods, want.frontend, self._name, port_name=port.name, created=service.created)
        row = self._frontend(want, port, want.frontend.with_scope(Scope.INTERNAL), original, True)
        known = {backend.address for backend in row.backends}
        more = tuple(backend for backend in pods.slotless if backend.address not in known)
        return replace(row, slotless=row.slotless + more) if more else row

    def _frontend(
        self,
        want: WantedFrontend,
        port: ServicePort,
        frontend: L3n4Addr,
        group: _Group,
        two_scopes: bool,
        checked: tuple[bytes, ...] = (),
    ) -> SVC:
        service = self._service
        check = service.ranges_given and _is_restricted(service, want.type)
        dsr = service.dsr and want.is_routable
        nat = _nat_policy(service, frontend)
        proxy_port = 0 if frontend.protocol is L4Type.SCTP else service.l7_proxy_port  # sockets of TCP and UDP
        flags = ServiceFlags.from_param(
            SvcFlagParam(
                want.type,
                nat,
                svc_ext_local=service.external_local,
                svc_int_local=self._internal_local,
                session_affinity=service.has_affinity,
                is_routable=want.is_routable,
                check_source_range=check,
                l7_load_balancer=bool(proxy_port),
                loopback_hostport=want.loopback,
                source_range_deny=service.ranges_deny,
                forwarding_dsr=dsr,
                two_scopes=two_scopes,
            )
        )
        return SVC(
            frontend,
            name=self._name,
            port_name=port.name,
            type=want.type,
            ext_traffic_policy=_POLICY[service.external_local],
            int_traffic_policy=_POLICY[self._internal_local],
            nat_policy=nat,
            selectable=group.selectable,
            unselectable=group.unselectable,
            slotless=group.slotless,
            algorithm=self._algorithm(group),
            flow_rules=service.flow_rules,
            session_affinity=service.has_affinity,
            session_affinity_timeout_s=service.affinity_timeout_s,
            source_ranges=_ranges_of(service, frontend) if check else (),
            source_ranges_deny=service.ranges_deny and check,
            check_source_range=check,
            flags=flags,
            l7_lb_proxy_port=proxy_port,
            loopback_hostport=want.loopback,
            health_check_node_port=service.health_check_node_port,
            health_check_addresses=checked,
            forwarding_dsr=dsr,
            no_local_backend=group.no_local_backend,
            stale_flows_s=service.stale_flows_s,
            ending=group.ending,
            created=OPERATORS_OWN if service.binds else service.created,
        )

    def _algorithm(self, group: _Group) -> Algorithm:
        """Return how new flows choose: only Maglev has weights, which --local-endpoint-weight needs."""
        chosen = self._service.algorithm
        if chosen is not Algorithm.RANDOM or self._context.node.local_endpoint_weight == 1:
            return chosen
        return Algorithm.MAGLEV if len({backend.local for backend in group.selectable}) > 1 else chosen

    # --- backends ---

    def _choice(self, port: ServicePort, family: Family) -> _Choice:
        key = port.index, port.last_port and port.port, family
        known = self._choices.get(key)
        if known is None:
            known = self._choices[key] = self._choose(port, family)
        return known

    def _choose(self, port: ServicePort, family: Family) -> _Choice:
        service, node = self._service, self._context.node
        with_local = service.external_local or self._internal_local  # else no frontend uses it
        if (
            not with_local
            and not self._check
            and not port.last_port
            and (plain := self._plain_of(family))
            and (all_of_them := plain.backends(port)) is not None
        ):
            every = _Group(all_of_them, (), ())
            return _Choice(cluster_ip=every, outside=every, inside=every)
        picked = select(
            self._wanted_endpoints(port, family),
            node_name=node.name,
            zone=node.zone,
            with_local=with_local,
            tier_min=service.tier_min,
        )
        cluster = self._group(picked, picked.cluster, port)
        if not with_local:
            return _Choice(cluster_ip=cluster, outside=cluster, inside=cluster)
        local = self._group(picked, picked.local, port)

        def group(chosen: EndpointSet) -> _Group:
            return local if chosen is picked.local else cluster

        return _Choice(
            cluster_ip=group(picked.for_cluster_ip(self._internal_local)),
            outside=group(picked.for_outside(service.external_local)),
            inside=group(picked.for_inside()),
            health_check_addresses=_ready_addresses(picked.local) if service.health_check_node_port else (),
        )

    def _plain_of(self, family: Family) -> PlainEndpoints | None:
        if family not in self._plain:
            self._plain[family] = plain_endpoints(self._slices, family, self._context)
        return self._plain[family]

    def _group(self, picked: Selection, chosen: EndpointSet, port: ServicePort) -> _Group:
        make, context = _backend, self._context
        ending: frozenset[L3n4Addr] = frozenset()
        if context.resets_dead_nodes:
            if self._service.stale_flows_s:
                ending = self._dead_of(chosen)
            chosen = self._without_dead(chosen)
        selectable = tuple([make(info, endpoint_state(info), port, context) for info in chosen.selectable])
        unselectable = tuple([make(info, endpoint_state(info), port, context) for info in chosen.unselectable])
        slotless = tuple([make(info, endpoint_state(info), port, context) for info in chosen.slotless])
        if is_served := context.is_served:
            kept = [info for info in chosen.filtered if is_served(info.address)]
            self.filtered_out.update(info.address for info in chosen.filtered)
            slotless += tuple([make(info, filtered_state(info), port, context) for info in kept])
        if len(selectable) + len(unselectable) > MAX_SLOTS:
            self._error(port, f"more than {MAX_SLOTS} endpoints", "the rest is left out")
            selectable, unselectable = selectable[:MAX_SLOTS], unselectable[: MAX_SLOTS - len(selectable[:MAX_SLOTS])]
        return _Group(selectable, unselectable, slotless, picked.no_local_backend(chosen), ending)

    def _wanted_endpoints(self, port: ServicePort, family: Family) -> list[EndpointInfo]:
        found = self._checked_endpoints(port, family) if self._check else self._endpoints(port, family)
        if not port.last_port:
            return found
        # The backends of a range have port 0: packets keep theirs. States and checks are those of the targetPort, unless the
        # operator has set one for port 0.
        overrides, backends = self._context.overrides or None, []
        for info in found:
            address = replace(info.address, port=0)
            state = overrides.state_of(address, "") if overrides else None
            backends.append(replace(info, address=address, override=info.override if state is None else state))
        return backends

    def _checked_endpoints(self, port: ServicePort, family: Family) -> list[EndpointInfo]:
        """Return the endpoints with the results of the health check of the Service."""
        assert self._check is not None
        found = quarantine_failed(self._endpoints(port, family), self._failed)
        node_of, local_only = self._context.node_of, self._check.local_only
        wanted = (each for each in found.endpoints if is_checked(each) and (not local_only or node_of(each)[1]))
        frontend = self._first.get((family, port.index))
        if frontend is not None and not any(frontend.address):
            frontend = None  # the entry for any address of the node
        self.checked.update(dict.fromkeys((each.address for each in wanted), frontend))
        if found.panic and not port.last_port:  # a range has the checks of its own port
            self.has_panic = True
            where = f"{port.name or port.port}/{port.protocol}, IPv{family}"
            problem = f"the check of {found.failed} of {found.usable} backends of port {where}, fails: more than half"
            self._warn(HEALTH_CHECK, problem, "none of them is quarantined", event="HealthCheckPanic")
        return found.endpoints

    def _without_dead(self, chosen: EndpointSet) -> EndpointSet:
        """Return the set without the endpoints of dead nodes that take no new flows: their backends leave, and their flows end."""
        groups = [
            tuple(info for info in group if not self._context.ends_flows_of(info))
            for group in (chosen.unselectable, chosen.slotless, chosen.filtered)
        ]
        return EndpointSet(chosen.selectable, *groups)

    def _dead_of(self, chosen: EndpointSet) -> frozenset[L3n4Addr]:
        """Return the endpoints that `_without_dead` leaves out."""
        groups = chosen.unselectable, chosen.slotless, chosen.filtered
        return frozenset(info.address for group in groups for info in group if self._context.ends_flows_of(info))

    def _endpoints(self, port: ServicePort, family: Family) -> list[EndpointInfo]:
        context, found = self._context, []
        overrides, here, dead = context.overrides or None, context.node.name, context.dead_nodes
        for piece in self._slices:
            if piece.family != family:
                continue
            for slice_port in piece.ports:
                if slice_port.name != port.name or slice_port.protocol is not port.protocol:
                    continue
                number, protocol = slice_port.port, slice_port.protocol
                for endpoint in piece.endpoints:
                    address = L3n4Addr(endpoint.address, number, protocol)
                    weight = context.weight_of_pod(endpoint.pod, endpoint.address)
                    if weight is None:
                        weight = piece.weight
                    if weight is None:
                        weight = DEFAULT_BACKEND_WEIGHT
                    elif weight not in (0, DEFAULT_BACKEND_WEIGHT):
                        self._ignored_weights[piece.key] = None
                    override = overrides.state_of(address, endpoint.pod) if overrides else None
                    found.append(
                        EndpointInfo(
                            address,
                            ready=endpoint.ready,
                            serving=endpoint.serving,
                            terminating=endpoint.terminating,
                            local=endpoint.node == here and here != "",
                            node_name=endpoint.node,
                            zone=endpoint.zone,
                            zone_hints=endpoint.for_zones,
                            node_hints=endpoint.for_nodes,
                            weight=weight,
                            tier=piece.tier,
                            override=endpoint.state if override is None else override,
                            is_operators=bool(self._failed) and context.overrides.is_operators(address, endpoint.pod),
                            node_is_dead=endpoint.node in dead,
                        )
                    )
        return found

    def _keep_unmatched(self, frontends: list[SVC], is_served: Callable[[L3n4Addr], bool]) -> None:
        """Keep the backends of slices that no frontend uses any more, or not yet: a port is renamed, a family is gone."""
        ports = {port.index: port for port in self._service.ports}
        asked = {(ports[index].name, ports[index].protocol, family) for index, _, family in self._choices}
        unmatched = {(port.name, port.protocol, piece.family) for piece in self._slices for port in piece.ports} - asked
        at = next((number for number, svc in enumerate(frontends) if not svc.wildcard), None)
        if not unmatched or at is None:
            return
        have = {backend.address for svc in frontends for backend in svc.backends}
        kept: dict[L3n4Addr, Backend] = {}
        ending: set[L3n4Addr] = set()
        for name, protocol, family in sorted(unmatched):
            port = ServicePort(name, protocol, 0)
            for info in deduplicate(self._endpoints(port, family)):
                if self._context.ends_flows_of(info):
                    ending.add(info.address)
                    continue
                backend = _backend(info, filtered_state(info), port, self._context)
                if info.address not in have and backend.state < kept.get(info.address, _LEAST_ALIVE).state:
                    kept[info.address] = backend
        self.filtered_out.update(kept)
        slotless = tuple(backend for backend in kept.values() if is_served(backend.address))
        frontends[at] = replace(frontends[at], slotless=frontends[at].slotless + slotless)
        if ending and self._service.stale_flows_s:
            frontends[:] = [each if each.wildcard else replace(each, ending=each.ending | ending) for each in frontends]

    # --- messages ---

    def _error(self, port: ServicePort, problem: str, kept: str) -> None:
        self._report(PORT_RANGE if port.last_port else path_text(("spec", "ports", port.index)), problem, kept)

    def _report_mismatches(self) -> None:
        """Report ports that have no backend because the Service and its slices do not match."""
        families: set[Family] = set()
        for (family, index), (want, port) in self._empty.items():
            if problem := port_problem(port, family, self._slices):
                self._report(path_text(("spec", "ports", index, "name")), problem, NO_ENDPOINTS)
            elif family not in families and (problem := family_problem(self._service, family, self._slices)):
                families.add(family)
                self._report(path_text(want.field), problem, NO_ENDPOINTS)

    def _report(self, field: str, problem: str, kept: str, *, warning: bool = False, event: str = "") -> None:
        key, origin = self._service.key, self._service.origin
        self.messages.append(Message(problem, kept, field, "Service", key, origin.file, origin.line, warning, event))

    def _report_lost(self, want: WantedFrontend, winner: FrontendClaim) -> None:
        service = self._service
        reason = winner.reason_against(FrontendClaim.of(service, want.type))
        problem = f"{want.frontend.with_protocol()} is {reason}"
        is_range = want.port is not None and want.port.last_port
        self._report(PORT_RANGE if is_range else path_text(want.field), problem, "the other frontends stay")
        self.contests.append(Contest(want.frontend, service.key, winner.key, self.messages[-1]))

    def _report_share(self) -> None:
        node, service = self._context.node, self._service
        if (beyond := beyond_share(service, node)) is None:
            return
        first, number = beyond
        more = f" and up to {number - 1} more are" if number > 1 else " is"
        problem = f"more than {node.max_frontends} frontends (address, port and protocol)"
        kept = f"{first.frontend.with_protocol()}{more} left out (--max-frontends-per-service)"
        self._report(path_text(first.field), problem, kept)

    def _warn_ignored(self) -> None:
        service = self._service
        node = self._context.node
        if service.external_ips and not node.external_ips:
            self._warn("spec.externalIPs", "they are switched off (--no-external-ips)", "they have no frontend")
        elif outside := [each for each in service.external_ips if not is_in_any(each, node.external_ip_ranges)]:
            shown = ", ".join(map(format_ip, outside[:MAX_NAMED]))
            more = f" and {len(outside) - MAX_NAMED} more" if len(outside) > MAX_NAMED else ""
            word, kept = ("are", "they have") if len(outside) > 1 else ("is", "it has")
            self._warn("spec.externalIPs", f"{shown}{more} {word} in no --external-ip-cidr", f"{kept} no frontend")
        if service.algorithm is Algorithm.RANDOM:
            for key in self._ignored_weights:
                problem = f"the weights of EndpointSlice {key} or its Pods are ignored with the algorithm random"
                self._warn("lbagent.io/algorithm", problem, "every backend has the same share")

    def _warn(self, field: str, problem: str, kept: str, event: str = "") -> None:
        self._report(field, problem, kept, warning=True, event=event)


def _ready_addresses(local: EndpointSet) -> tuple[bytes, ...]:
    """Return the count for healthCheckNodePort: an endpoint that serves only because none is ready is not ready."""
    return tuple(sorted({info.address.address for info in local.selectable if info.ready}))


_LEAST_ALIVE = Backend(state=BackendState.INVALID)  # the least alive
_POLICY = {False: SVCTrafficPolicy.CLUSTER, True: SVCTrafficPolicy.LOCAL}


def _backend(info: EndpointInfo, state: BackendState | None, port: ServicePort, context: BuildContext) -> Backend:
    node_name, local = context.node_of(info)
    state = BackendState.ACTIVE if state is None else state
    weight = min(info.weight * context.node.local_endpoint_weight, MAX_WEIGHT) if local else info.weight
    return Backend(
        0,
        info.address,
        state,
        weight=weight,
        node_name=node_name,
        zone=info.zone,
        fe_port_name=port.name,
        local=local,
    )


def _wildcard(frontend: L3n4Addr, name: ServiceName) -> SVC:
    flags = ServiceFlags.from_param(SvcFlagParam(SVCType.CLUSTER_IP, two_scopes=False))
    return SVC(frontend, name=name, flags=flags, wildcard=True)


def _is_restricted(service: Service, kind: SVCType) -> bool:
    """Return whether the source ranges apply to frontends of a kind."""
    if service.all_ranges:
        return kind in (SVCType.LOAD_BALANCER, SVCType.NODE_PORT, SVCType.EXTERNAL_IPS)
    return kind is SVCType.LOAD_BALANCER or (kind is SVCType.NODE_PORT and service.node_port_ranges)


def _ranges_of(service: Service, frontend: L3n4Addr) -> tuple[CIDR, ...]:
    """Return the source ranges of the frontend's family, in their order in the map."""
    ranges = [cidr for cidr in service.source_ranges if cidr.is_ipv6 == frontend.is_ipv6]
    return tuple(sorted(ranges, key=lambda cidr: cidr.sort_key))


def _nat_policy(service: Service, frontend: L3n4Addr) -> SVCNatPolicy:
    """One bit for both: nat46 is for IPv4 frontends, nat64 for IPv6 ones."""
    wanted = SVCNatPolicy.NAT64 if frontend.is_ipv6 else SVCNatPolicy.NAT46
    return wanted if service.nat_policy is wanted else SVCNatPolicy.NONE
