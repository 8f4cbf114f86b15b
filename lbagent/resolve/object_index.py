"""Indexes of all objects for resolve, and the Services that a change concerns."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

from lbagent.model.message import Message
from lbagent.objects.records import (
    Endpoints,
    EndpointSlice,
    FailedChecks,
    LocalRedirect,
    Node,
    ObjectChange,
    Pod,
    Service,
    StateOverride,
)
from lbagent.resolve import mismatches
from lbagent.resolve.frontends import LocalNode
from lbagent.resolve.host_ports import is_relevant
from lbagent.resolve.overrides import Contradiction, Overrides, rank_overrides
from lbagent.resolve.placement import AddressOnNode, Placement, claims_of, contradiction_messages


class ObjectIndex:
    """The objects, indexed for resolve, and the changes since its last run.

    `dirty` are keys of Services to build again; `all_dirty` when this node changed; `pods_dirty` when HostPort frontends may
    have, `redirects_dirty` when local redirects or their Pods may have.
    """

    def __init__(self, node_name: str, sources: Sequence[str] = ()) -> None:
        """`sources` are their names in the order in which their BackendStates win."""
        self._here = node_name
        self._sources = sources
        self.services: dict[str, Service] = {}
        self.pods: dict[str, Pod] = {}  # those with a weight, or with hostPorts on this node
        self._pods_here: dict[str, Pod] = {}  # those of this node
        self.redirects: dict[tuple[str, str], LocalRedirect] = {}  # by kind and key
        self.failed_checks: dict[str, FailedChecks] = {}  # by service key
        self.with_node_ports: set[str] = set()
        self.dirty: set[str] = set()
        self.all_dirty = False
        self.pods_dirty = False
        self.redirects_dirty = False
        self._slices: dict[str, dict[str, EndpointSlice]] = {}  # by service key, then by slice key
        self._endpoints: dict[str, Endpoints] = {}
        self._all_overrides: dict[str, StateOverride] = {}  # also those of other nodes
        self._ranked: tuple[Overrides, list[Contradiction]] | None = None  # None: to be ranked again
        self._placement = Placement()
        self._placement_messages: list[Message] | None = []  # None: to be made again
        self._orphans: set[str] = set()  # keys of missing Services that slices refer to
        self._orphan_messages: list[Message] | None = []  # None: to be made again
        self._node: Node | None = None
        self._weight_by_ip: dict[bytes, int] = {}
        self._stale_addresses: set[bytes] = set()  # a BackendState or a Pod's weight of theirs has changed
        self._stale_pods: set[str] = set()  # the same by the Pod's key
        self._stale_nodes: set[str] = set()  # nodes that died, or live again

    def update(self, change: ObjectChange) -> None:
        """Store a change of one object."""
        key, old, new = change.key, change.old, change.new
        match new or old:
            case Service():
                self._service(key, new)
            case EndpointSlice():
                self._slice(key, old, new)
            case Endpoints():
                self._legacy_endpoints(key, old, new)
            case Pod():
                self._pod(key, new)
            case Node() if key == self._here:
                self._node, before = new if isinstance(new, Node) else None, self._node
                self.all_dirty |= _node_facts(before) != _node_facts(self._node)
            case StateOverride():
                self._override(key, new)
            case LocalRedirect() as redirect:
                if isinstance(new, LocalRedirect):
                    self.redirects[redirect.kind, key] = new
                else:
                    self.redirects.pop((redirect.kind, key), None)
                self.redirects_dirty = True
            case FailedChecks():
                _put(self.failed_checks, key, new)
                self.dirty.add(key)

    def nodes_changed(self, nodes: Collection[str]) -> None:
        """Record that nodes died, or live again."""
        self._stale_nodes.update(nodes)

    def _service(self, key: str, new: object) -> None:
        if (key in self.services) != (new is not None):
            self._orphan_messages = None
        _put(self.services, key, new)
        self._note_orphan(key)
        self.dirty.add(key)
        if isinstance(new, Service) and not new.ignored and any(port.node_port for port in new.ports):
            self.with_node_ports.add(key)
        else:
            self.with_node_ports.discard(key)

    def _slice(self, key: str, old: object, new: object) -> None:
        self._place(_claims(old), _claims(new))
        for piece in (old, new):
            if isinstance(piece, EndpointSlice):
                self.dirty.add(piece.service_key)
                had_slices = piece.service_key in self._slices
                of_service = self._slices.setdefault(piece.service_key, {})
                _put(of_service, key, piece if piece is new else None)
                if not of_service:
                    del self._slices[piece.service_key]
                if not had_slices or not of_service:
                    self._orphan_messages = None
                self._note_orphan(piece.service_key)
                if had_slices != bool(of_service):  # its Endpoints count only while it has no slice
                    endpoints = _claims(self._endpoints.get(piece.service_key))
                    self._place(*((endpoints, ()) if of_service else ((), endpoints)))

    def _legacy_endpoints(self, key: str, old: object, new: object) -> None:
        if key not in self._slices:
            self._place(_claims(old), _claims(new))
        _put(self._endpoints, key, new)
        self._orphan_messages = None
        self._note_orphan(key)
        self.dirty.add(key)

    def _note_orphan(self, key: str) -> None:
        if key not in self.services and (key in self._slices or key in self._endpoints):
            self._orphans.add(key)
        else:
            self._orphans.discard(key)

    def _place(self, old: Iterable[AddressOnNode], new: Iterable[AddressOnNode]) -> None:
        changed = self._placement.update(old, new)
        self._stale_addresses |= changed
        if changed or self._placement.decided:
            self._placement_messages = None

    def _pod(self, key: str, new: object) -> None:
        old = self.pods.get(key)
        pod = new if isinstance(new, Pod) else None
        self._pod_here(key, pod)
        if pod is not None and pod.weight is None and not is_relevant(pod, self._here):
            pod = None
        _put(self.pods, key, pod)
        self._place(self._claims_of_pod(old), self._claims_of_pod(pod))
        if (old and is_relevant(old, self._here)) or (pod and is_relevant(pod, self._here)):
            self.pods_dirty = True
        if _weight_facts(old) != _weight_facts(pod):
            self._stale_pods.add(key)
            self._stale_addresses.update(ip for each in (old, pod) if each for ip in each.ips)

    def _pod_here(self, key: str, pod: Pod | None) -> None:
        known = key in self._pods_here
        _put(self._pods_here, key, pod if pod is not None and pod.node == self._here != "" else None)
        if self.redirects and (known or key in self._pods_here):
            self.redirects_dirty = True

    def _claims_of_pod(self, pod: Pod | None) -> Iterable[AddressOnNode]:
        """Return the places of a Pod with HostPort frontends on this node."""
        return ((ip, pod.node) for ip in pod.ips) if pod and is_relevant(pod, self._here) else ()

    def _override(self, key: str, new: object) -> None:
        for each in (self._all_overrides.get(key), new):
            if isinstance(each, StateOverride):
                if each.address is not None:
                    self._stale_addresses.add(each.address.address)
                else:
                    self._stale_pods.add(each.pod)
        _put(self._all_overrides, key, new)
        self._ranked = None
        self.pods_dirty = True

    @property
    def is_changed(self) -> bool:
        """Whether anything changed since `forget_changes`."""
        stale = self._stale_addresses or self._stale_pods or self._stale_nodes
        return bool(self.dirty or self.all_dirty or self.pods_dirty or self.redirects_dirty or stale)

    def refresh(self) -> None:
        """Compute the common results of many changes: weights by address, and the Services whose endpoints they concern."""
        self._weight_by_ip = {
            ip: pod.weight
            for _, pod in sorted(self.pods.items(), reverse=True)
            if pod.weight is not None and not pod.host_network and not pod.finished
            for ip in pod.ips
        }
        addresses, pods, nodes = self._stale_addresses, self._stale_pods, self._stale_nodes
        if addresses or pods or nodes:
            for service, piece in self._each_slice():
                if any(
                    endpoint.address in addresses or endpoint.pod in pods or endpoint.node in nodes
                    for endpoint in piece.endpoints
                ):
                    self.dirty.add(service)
        if self.all_dirty:
            self.dirty |= self.services.keys()

    def forget_changes(self) -> None:
        """Reset the changes: the State includes them."""
        self.dirty, self.all_dirty, self.pods_dirty, self.redirects_dirty = set(), False, False, False
        self._stale_addresses, self._stale_pods, self._stale_nodes = set(), set(), set()

    # --- the interface for resolve ---

    def slices_of(self, key: str) -> Iterable[EndpointSlice]:
        """Return the slices of a Service; those of its Endpoints when it has none."""
        slices = self._slices.get(key)
        if slices:
            return slices.values()
        endpoints = self._endpoints.get(key)
        return endpoints.slices if endpoints else ()

    def local_node(self, node_ips: tuple[bytes, ...]) -> LocalNode:
        """Return this node; a given `node_ips` takes precedence over the Node object's InternalIPs."""
        node = self._node
        return LocalNode(self._here, node_ips or (node.internal_ips if node else ()), node.zone if node else "")

    def overrides(self) -> Overrides:
        """Return the states that the operator and health checks set for backends on this node."""
        return self._rank_overrides()[0]

    def contradictions(self) -> list[Contradiction]:
        """Return the BackendStates without effect because another one, of another source or file, applies."""
        return self._rank_overrides()[1]

    def _rank_overrides(self) -> tuple[Overrides, list[Contradiction]]:
        if self._ranked is None:
            here = (each for each in self._all_overrides.values() if not each.node or each.node == self._here)
            self._ranked = rank_overrides(here, self._sources)
        return self._ranked

    @property
    def nodes(self) -> Mapping[bytes, str]:
        """The node of each address with different objects; '' where they contradict each other."""
        return self._placement.decided

    def placement_messages(self) -> list[Message]:
        """Return a warning for each address that objects place on different nodes."""
        if self._placement_messages is None:
            contested = self._placement.contested
            slices = (piece for _, piece in self._each_slice()) if contested else ()
            self._placement_messages = contradiction_messages(contested, slices)
        return self._placement_messages

    def orphan_messages(self) -> list[Message]:
        """Return an error for each slice of a file without its Service while one with nearly its name lacks slices."""
        if self._orphan_messages is None:
            found = {key: [each for each in self.slices_of(key) if each.origin.file] for key in self._orphans}
            orphans = {key: pieces for key, pieces in found.items() if pieces}
            lonely = {
                key
                for key, service in (self.services.items() if orphans else ())
                if not service.ignored and key not in self._slices and key not in self._endpoints
            }
            self._orphan_messages = mismatches.orphan_messages(orphans, self.services, lonely)
        return self._orphan_messages

    def weight_of_pod(self, pod_key: str, address: bytes) -> int | None:
        """Return the weight of an endpoint's Pod: the one that it refers to, else the one that has its address."""
        if not self.pods:
            return None
        if pod_key:
            pod = self.pods.get(pod_key)
            return pod.weight if pod else None
        return self._weight_by_ip.get(address)

    def relevant_pods(self) -> list[Pod]:
        """Return the Pods that have HostPort frontends on this node."""
        return [pod for pod in self.pods.values() if is_relevant(pod, self._here)]

    def pods_here(self) -> list[Pod]:
        """Return the Pods of this node that run."""
        return [pod for pod in self._pods_here.values() if not pod.finished]

    def _each_slice(self) -> Iterator[tuple[str, EndpointSlice]]:
        for service, slices in self._slices.items():
            for piece in slices.values():
                yield service, piece
        for service, endpoints in self._endpoints.items():
            for piece in endpoints.slices if service not in self._slices else ():
                yield service, piece


def _claims(obj: object) -> Iterable[AddressOnNode]:
    """Return the places of the endpoints in an object, or None."""
    match obj:
        case EndpointSlice():
            return claims_of(obj)
        case Endpoints():
            return [claim for piece in obj.slices for claim in claims_of(piece)]
    return ()


def _weight_facts(pod: Pod | None) -> object:
    return (pod.weight, pod.ips, pod.finished, pod.host_network) if pod and pod.weight is not None else None


def _node_facts(node: Node | None) -> object:
    return (node.internal_ips, node.zone) if node else None


def _put(where: dict[str, Any], key: str, value: object) -> None:
    if value is None:
        where.pop(key, None)
    else:
        where[key] = value
