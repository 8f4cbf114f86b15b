"""Which endpoints serve a frontend: readiness, terminating fallback, topology hints, Local policies, states set by the operator.

The only place of the rule which endpoints get new flows. Pure. How resolve uses it:

    picked = select(endpoints_of_one_service_port, node_name="n1", zone="a")
    picked.for_cluster_ip(int_local)   ClusterIP frontends: internalTrafficPolicy concerns nothing else
    picked.for_outside(ext_local)      NodePort, LoadBalancer, ExternalIP frontends, sources outside the node
    picked.for_inside()                the same frontends for pods and the node (the `/i` entry): always the whole cluster

Each returns an EndpointSet: `selectable` (COUNT slots), `unselectable` (QCOUNT slots), `slotless` (a backend entry in
maintenance, no slot), `filtered` (no entry in a fresh plan; the agent keeps an existing entry, with `filtered_state`). All four
are in slot order. Of endpoints in tiers those of the lowest usable ones are selectable, and the others `filtered`; so are those of
dead nodes while another endpoint can be selected. A UDP endpoint that does not serve is in none of them while another takes its
flows (`_is_stale`).
`no_local_backend(set)` is SVC.no_local_backend. `endpoint_state` is the state in this service alone: for a backend of several
services, resolve selects the most alive of its states.

Source: Kubernetes pkg/proxy/topology.go CategorizeEndpoints (behaviour), KEP-1669 (terminating), KEP-2433, KEP-3015 (hints).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from operator import attrgetter
from typing import Protocol

from msgspec import Struct
from msgspec.structs import replace

from lbagent.model.address import L3n4Addr, L4Type
from lbagent.model.backend import DEFAULT_BACKEND_WEIGHT, BackendState


class Conditions(Protocol):
    """The three conditions of an endpoint."""

    @property
    def ready(self) -> bool:
        """Kubernetes' condition `ready`."""

    @property
    def serving(self) -> bool:
        """Kubernetes' condition `serving`."""

    @property
    def terminating(self) -> bool:
        """Kubernetes' condition `terminating`."""


def can_serve(endpoint: Conditions) -> bool:
    """Return whether an endpoint's conditions allow new flows: ready, or terminating and still serving (KEP-1669).

    Terminating ones get them only while no endpoint is ready. A weight of 0, maintenance and quarantine are not conditions.
    """
    return endpoint.ready or (endpoint.terminating and endpoint.serving)


class TierMin(Struct, frozen=True, gc=False):
    """How many endpoints of a tier must be usable, or else the next tier gets new flows, too: a number, or percent of the tier."""

    number: int = 1
    is_percent: bool = False

    def of(self, endpoints: int) -> int:
        """Return the number for a tier of so many endpoints; 1 at least."""
        return max(1, -(-endpoints * self.number // 100)) if self.is_percent else self.number


ANY_OF_TIER = TierMin()


class _Addressed(Struct, frozen=True, gc=False):
    """The field of an EndpointInfo that is allowed as a positional argument."""

    address: L3n4Addr


class EndpointInfo(_Addressed, frozen=True, gc=False, kw_only=True):
    """One endpoint of one service port, from the slices.

    `serving` must already be resolved (nil is true). `local`: nodeName is this node; by address or route does not count here.
    `override` is the state set by the operator or a health check: MAINTENANCE, QUARANTINED, or None/ACTIVE for no objection.
    `is_operators`: the operator set it, and no health check changes it.
    `node_is_dead`: the agents agree that its node does not answer (lbagent/liveness); it is selected only when no other one can be.
    """

    ready: bool = True
    serving: bool = True
    terminating: bool = False
    local: bool = False
    node_name: str = ""
    zone: str = ""
    zone_hints: tuple[str, ...] = ()
    node_hints: tuple[str, ...] = ()
    weight: int = DEFAULT_BACKEND_WEIGHT
    tier: int = 0
    override: BackendState | None = None
    is_operators: bool = False
    node_is_dead: bool = False


class EndpointSet(Struct, frozen=True, gc=False):
    """The endpoints for one kind of source, in slot order."""

    selectable: tuple[EndpointInfo, ...] = ()
    unselectable: tuple[EndpointInfo, ...] = ()
    slotless: tuple[EndpointInfo, ...] = ()
    filtered: tuple[EndpointInfo, ...] = ()


class Selection(Struct, frozen=True, gc=False):
    """The two sets from which every policy selects. `has_any`: an endpoint of the cluster could take a new flow."""

    cluster: EndpointSet
    local: EndpointSet
    has_any: bool

    def for_cluster_ip(self, int_local: bool) -> EndpointSet:
        """Return the set of a ClusterIP frontend under internalTrafficPolicy."""
        return self.local if int_local else self.cluster

    def for_outside(self, ext_local: bool) -> EndpointSet:
        """Return the set of an external frontend, for sources outside the node, under externalTrafficPolicy."""
        return self.local if ext_local else self.cluster

    def for_inside(self) -> EndpointSet:
        """Return the set of an external frontend for pods and the node: all endpoints, whatever the policy (short circuit)."""
        return self.cluster

    def no_local_backend(self, chosen: EndpointSet) -> bool:
        """Return whether `chosen` takes no flow while the cluster has an endpoint that would: dropped, not rejected (A5)."""
        return self.has_any and not chosen.selectable


def endpoint_state(endpoint: EndpointInfo) -> BackendState | None:
    """Return the state the endpoint has in this service; None for one neither ready nor terminating: it has no entry.

    Ready comes first, even when terminating (publishNotReadyAddresses). Terminating takes precedence over maintenance and
    quarantine: the pod goes away whatever the operator set.
    """
    if endpoint.ready:
        if endpoint.weight == 0:
            return BackendState.MAINTENANCE
        return endpoint.override or BackendState.ACTIVE
    return BackendState.TERMINATING if endpoint.terminating else None


def filtered_state(endpoint: EndpointInfo) -> BackendState:
    """Return the state of the entry that the agent keeps for a `filtered` endpoint: quarantined when it is not ready.

    So is one on a dead node: a repeated SYN then selects another backend.
    """
    state = endpoint_state(endpoint)
    if state is BackendState.ACTIVE and endpoint.node_is_dead:
        return BackendState.QUARANTINED
    if state is not None:
        return state
    return BackendState.MAINTENANCE if _is_withdrawn(endpoint) else BackendState.QUARANTINED


def deduplicate(endpoints: Iterable[EndpointInfo]) -> list[EndpointInfo]:
    """Keep one endpoint per address: ready wins, then serving, then local, then the lower tier, then the first."""
    best: dict[L3n4Addr, EndpointInfo] = {}
    for endpoint in endpoints:
        known = best.setdefault(endpoint.address, endpoint)
        if known is not endpoint and _rank(endpoint) > _rank(known):
            best[endpoint.address] = endpoint
    return list(best.values())


class CheckedEndpoints(Struct, frozen=True, gc=False):
    """Endpoints with the results of their health check. `failed` counts those of `usable` ones that are out, or would be.

    `panic`: that would be more than half, so none is out.
    """

    endpoints: list[EndpointInfo]
    usable: int = 0
    failed: int = 0

    @property
    def panic(self) -> bool:
        """Whether more than half of the backends fail: the check or this node is the more probable cause."""
        return 2 * self.failed > self.usable


def quarantine_failed(endpoints: Iterable[EndpointInfo], failed: Collection[L3n4Addr]) -> CheckedEndpoints:
    """Return the endpoints of one port, each once; those whose check failed are quarantined, if they are not too many.

    Only those count that would get new flows without the check.
    """
    found = deduplicate(endpoints)
    usable = [each for each in found if endpoint_state(each) is BackendState.ACTIVE] or list(
        filter(_may_fall_back, found)
    )
    out = {
        each.address for each in found if each.address in failed and not each.is_operators and not _is_withdrawn(each)
    }
    result = CheckedEndpoints(found, len(usable), sum(each.address in out for each in usable))
    if result.panic or not out:
        return result
    quarantined = [replace(each, override=BackendState.QUARANTINED) if each.address in out else each for each in found]
    return replace(result, endpoints=quarantined)


def is_checked(endpoint: EndpointInfo) -> bool:
    """Return whether a health check concerns an endpoint: it may get new flows, now or when its check succeeds."""
    return can_serve(endpoint) and not _is_withdrawn(endpoint)


def select(
    endpoints: Iterable[EndpointInfo],
    *,
    node_name: str = "",
    zone: str = "",
    with_local: bool = True,
    tier_min: TierMin = ANY_OF_TIER,
) -> Selection:
    """Return which endpoints serve: the cluster's set and this node's. `zone` '' = unknown: zone hints are unused.

    Deterministic: the order of the endpoints matters only between equal duplicates. Without a Local policy this
    node's set is never used: `with_local` False leaves it empty.
    """
    ordered = _in_slot_order(deduplicate(endpoints))
    active, fallback = _usable([endpoint for endpoint in ordered if not endpoint.node_is_dead])
    if not (active or fallback):
        active, fallback = _usable(ordered)
    near = _topology(active, node_name, zone)
    local = EndpointSet()
    if with_local:
        here = [endpoint for endpoint in active if endpoint.local] or [each for each in fallback if each.local]
        local = _arrange(ordered, _lowest_tiers(here, ordered, _is_local, tier_min), _is_local)
    nearby = active if near is _everywhere else [endpoint for endpoint in active if near(endpoint)]
    cluster = _arrange(ordered, _lowest_tiers(nearby or fallback, ordered, near, tier_min), near)
    return Selection(cluster, local, bool(active or fallback))


def _usable(endpoints: list[EndpointInfo]) -> tuple[list[EndpointInfo], list[EndpointInfo]]:
    """Return the active endpoints, and those that serve when none is."""
    active = [endpoint for endpoint in endpoints if endpoint_state(endpoint) is BackendState.ACTIVE]
    fallback = [endpoint for endpoint in endpoints if _may_fall_back(endpoint)] if len(active) < len(endpoints) else []
    return active, fallback


def _in_slot_order(endpoints: list[EndpointInfo]) -> list[EndpointInfo]:
    """Return the endpoints in the order of `L3n4Addr.sort_key`."""
    ports = {(len(info.address.address), info.address.protocol, info.address.scope) for info in endpoints}
    return sorted(endpoints, key=_ADDRESS_AND_PORT if len(ports) == 1 else _SLOT_ORDER)


_SLOT_ORDER = attrgetter("address.sort_key")
_ADDRESS_AND_PORT = attrgetter("address.address", "address.port")  # the rest of it within one family and protocol


def _rank(endpoint: EndpointInfo) -> tuple[bool, bool, bool, int]:
    return (endpoint.ready, endpoint.serving, endpoint.local, -endpoint.tier)


def _is_withdrawn(endpoint: EndpointInfo) -> bool:
    return endpoint.weight == 0 or endpoint.override is BackendState.MAINTENANCE


def _may_fall_back(endpoint: EndpointInfo) -> bool:
    """KEP-1669: terminating and still serving; and neither the operator nor a health check excludes it."""
    return (
        can_serve(endpoint)
        and endpoint_state(endpoint) is BackendState.TERMINATING
        and not _is_withdrawn(endpoint)
        and endpoint.override is not BackendState.QUARANTINED
    )


def _is_stale(endpoint: EndpointInfo) -> bool:
    """Whether flows must leave it: UDP has no end that a client detects. Source: kube-proxy's conntrack/cleanup.go (behaviour)."""
    return endpoint.address.protocol is L4Type.UDP and not (endpoint.ready or endpoint.serving)


Predicate = Callable[[EndpointInfo], bool]


def _topology(active: list[EndpointInfo], node_name: str, zone: str) -> Predicate:
    """Return which endpoints are near: by node hints, else by zone hints.

    Hints count only if all active endpoints have some and one of them is for this node or zone.
    """
    if node_name and _hinted(active, node_name, lambda endpoint: endpoint.node_hints):
        return lambda endpoint: _names(endpoint, endpoint.node_hints, node_name)
    if zone and _hinted(active, zone, lambda endpoint: endpoint.zone_hints):
        return lambda endpoint: _names(endpoint, endpoint.zone_hints, zone)
    return _everywhere


def _is_local(endpoint: EndpointInfo) -> bool:
    return endpoint.local


def _lowest_tiers(
    usable: list[EndpointInfo], ordered: Sequence[EndpointInfo], belongs: Predicate, tier_min: TierMin
) -> list[EndpointInfo]:
    """Return the usable endpoints of the lowest tier that has some, and of the next ones as long as a tier has too few.

    The percentage is of the endpoints of a tier that belong to the set, usable or not.
    """
    tiers = {endpoint.tier for endpoint in usable}
    if len(tiers) < 2:
        return usable
    last = 0
    for last in sorted(tiers):
        whole = sum(endpoint.tier == last and belongs(endpoint) for endpoint in ordered)
        if sum(endpoint.tier == last for endpoint in usable) >= tier_min.of(whole):
            break
    return [endpoint for endpoint in usable if endpoint.tier <= last]


def _everywhere(_: EndpointInfo) -> bool:
    return True


def _hinted(active: list[EndpointInfo], here: str, hints: Callable[[EndpointInfo], tuple[str, ...]]) -> bool:
    return all(map(hints, active)) and any(here in hints(endpoint) for endpoint in active)


def _names(endpoint: EndpointInfo, hints: tuple[str, ...], here: str) -> bool:
    # The controller sets hints for ready endpoints only: a terminating one without a hint may have had one for this node.
    return here in hints or not (hints or endpoint.ready)


def _arrange(ordered: list[EndpointInfo], selectable: list[EndpointInfo], belongs: Predicate) -> EndpointSet:
    """Sort all endpoints into the four groups; they are in slot order and stay so inside a group."""
    if len(selectable) == len(ordered):
        return EndpointSet(tuple(selectable))
    chosen = {endpoint.address for endpoint in selectable}
    serving: list[EndpointInfo] = []
    not_serving: list[EndpointInfo] = []
    quarantined: list[EndpointInfo] = []
    slotless: list[EndpointInfo] = []
    filtered: list[EndpointInfo] = []
    for endpoint in ordered:
        if endpoint.address in chosen or (chosen and _is_stale(endpoint)):
            continue
        state = endpoint_state(endpoint) if belongs(endpoint) else None
        if state is BackendState.TERMINATING:
            (serving if endpoint.serving else not_serving).append(endpoint)
        elif state is BackendState.QUARANTINED:
            quarantined.append(endpoint)
        elif state is BackendState.MAINTENANCE:
            slotless.append(endpoint)
        else:
            filtered.append(endpoint)
    return EndpointSet(tuple(selectable), tuple(serving + not_serving + quarantined), tuple(slotless), tuple(filtered))
