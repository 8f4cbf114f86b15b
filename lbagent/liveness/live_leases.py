"""The Leases by which the agents of a cluster find each other and publish suspicions: `lbagent-live-NODE`, one for each node.

A node's own agent creates its Lease, with the node's addresses; it belongs to the Node object and is deleted with it. An observer
that suspects the node adds an annotation of its own, and removes it when the node answers again. Each write is a merge patch of
one annotation, so writers do not conflict. While nothing happens nothing is written.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import logging
from collections.abc import Callable, Mapping, Sequence
from http import HTTPStatus
from typing import Any

import msgspec
from msgspec import Struct

from lbagent.decoding_errors import DECODING_ERRORS
from lbagent.errors import LbError
from lbagent.kube.kube_client import ApiError, KubeClient
from lbagent.kube.kube_settings import KubeTiming, own_namespace
from lbagent.kube.leases import LABEL, Leases, LeaseSpec
from lbagent.kube.object_cache import CachedObject, Draft, ObjectCache, ObjectMeta, metadata_of
from lbagent.kube.object_uid import uid_of
from lbagent.kube.reflector import Reflector
from lbagent.kube.resources import NODES, Resource
from lbagent.model.address import parse_ip
from lbagent.objects.records import ObjectChange

log = logging.getLogger(__name__)
LIVE = "live"  # the value of LABEL
PREFIX = "lbagent-live-"
ADDRESSES = "lbagent.io/addresses"  # annotation: the addresses of the node, words
SUSPECTED = "suspected.lbagent.io/"  # prefix of the annotations of observers; the value is the observer's name
WRITE_TIMEOUT_S = 1.0
WRITE_RETRY_DELAY_S = 0.5
MAX_WRITE_RETRY_DELAY_S = 10.0


class _LiveMeta(Struct):
    annotations: dict[str, str] | None = None


class _LiveLease(Struct):
    metadata: _LiveMeta


class NodeLease(Struct, frozen=True, gc=False):
    """What the Lease of a node has: its addresses, and the observers that suspect it."""

    addresses: tuple[str, ...] = ()
    suspected_by: frozenset[str] = frozenset()


_LIVE_LEASE = msgspec.json.Decoder(_LiveLease)


class LiveCache(ObjectCache):
    """Leases of nodes in the cache of a reflector, without the rest of their metadata: there are 1,000."""

    def _decode(self, raw: msgspec.Raw | bytes, meta: ObjectMeta, known: CachedObject | None) -> CachedObject:
        del known
        try:
            annotations = _LIVE_LEASE.decode(raw).metadata.annotations or {}
        except DECODING_ERRORS:
            return CachedObject(meta.resourceVersion, None)
        observers = frozenset(name for key, name in annotations.items() if key == _annotation(name))
        addresses = tuple(filter(_is_address, annotations.get(ADDRESSES, "").split()))
        found: object = NodeLease(addresses, observers)
        return CachedObject(meta.resourceVersion, found)  # type: ignore[arg-type]


class LiveLeases:
    """Follows the Leases of all nodes, and writes the suspicions of one. `on_change` is called when Leases have changed."""

    def __init__(self, client: KubeClient, node: str, *, timing: KubeTiming | None = None) -> None:
        self._client, self._node = client, node
        self._leases = Leases(client, own_namespace())
        resource = Resource("Lease", self._leases.path, "leases.coordination.k8s.io", label_selector=f"{LABEL}={LIVE}")
        self._cache = LiveCache(resource)
        self._reflector = Reflector(
            client, resource, timing or KubeTiming(), self._cache, on_list=self._take_list, on_changes=self._take
        )
        self._addresses: dict[str, tuple[str, ...]] = {}
        self._suspicions: dict[str, frozenset[str]] = {}
        self._own_addresses: tuple[str, ...] = ()
        self._suspects: frozenset[str] = frozenset()
        self._is_known = False  # what this node publishes was given since the Leases were read
        self._unpublished: frozenset[str] = frozenset()
        self._write = asyncio.Event()
        self._failure = ""
        self.on_change: Callable[[], None] = lambda: None

    # --- what is read ---

    @property
    def is_listed(self) -> bool:
        """Whether the Leases were read."""
        return self._reflector.listed.is_set()

    @property
    def nodes(self) -> Mapping[str, tuple[str, ...]]:
        """The addresses of each node with an agent that takes part."""
        return self._addresses

    @property
    def suspicions(self) -> Mapping[str, frozenset[str]]:
        """The observers that suspect each node, without the nodes that none suspects."""
        return self._suspicions

    def suspected_by_this_node(self) -> frozenset[str]:
        """Return the nodes that this one suspects, as published."""
        return frozenset(node for node, observers in self._suspicions.items() if self._node in observers)

    @property
    def unpublished(self) -> frozenset[str]:
        """The suspicions of this node that the API server did not take."""
        return self._unpublished - self.suspected_by_this_node()  # a write may have arrived whose answer did not

    @property
    def failure(self) -> str:
        """The present failure, '' for none."""
        unread = self._reflector.failure
        return self._failure or (str(unread.message) if unread else "")

    # --- what is written ---

    def publish(self, addresses: Sequence[str], suspects: frozenset[str]) -> None:
        """Publish the addresses of this node and the nodes that it suspects. Returns at once."""
        self._unpublished &= suspects
        self._own_addresses, self._suspects = tuple(addresses), suspects
        self._is_known = self.is_listed
        if self._due():
            self._write.set()

    def _due(self) -> list[str]:
        """Return the nodes whose Leases must be written."""
        if not self._is_known:
            return []
        own = self._addresses.get(self._node)
        due = [self._node] if self._own_addresses and own != self._own_addresses else []
        return due + sorted((self._suspects ^ self.suspected_by_this_node()) & self._addresses.keys())

    async def run(self) -> None:
        """Follow and write until cancelled."""
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._reflector.run())
                tasks.create_task(self._write_all())
        finally:
            await self._client.close()

    async def _write_all(self) -> None:
        await self._connect()
        delay_s = WRITE_RETRY_DELAY_S
        while True:
            await self._write.wait()
            self._write.clear()
            if not await self._write_due():
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(delay_s):
                        await self._write.wait()
                delay_s = min(2 * delay_s, MAX_WRITE_RETRY_DELAY_S)
                self._write.set()
            else:
                delay_s = WRITE_RETRY_DELAY_S

    async def _write_due(self) -> bool:
        """Write what differs; return whether the server took all of it. A server that does not answer is asked once."""
        is_done = True
        for node in self._due():
            try:
                async with asyncio.timeout(WRITE_TIMEOUT_S):
                    await self._write_one(node)
            except (LbError, TimeoutError) as error:
                is_done = False
                self._log_failure(error)
                is_away = not isinstance(error, ApiError)
                self._unpublished |= self._suspects.intersection(self._due() if is_away else [node])
                self.on_change()
                if is_away:
                    break
        if is_done and self._failure:
            log.info("Leases of nodes are written again")
            self._failure = ""
        return is_done

    async def _connect(self) -> None:
        """Load the client, which takes longer than a write may."""
        while True:
            with contextlib.suppress(LbError):
                await self._client.connect()
                return
            await asyncio.sleep(WRITE_RETRY_DELAY_S)

    async def _write_one(self, node: str) -> None:
        """Write what differs in one Lease. Raises LbError."""
        raw = await (self._write_own() if node == self._node else self._write_suspicion(node))
        self._unpublished -= {node}
        change = self._cache.put(raw, metadata_of(raw))
        self._take([change] if change else [])

    async def _write_own(self) -> bytes:
        annotations = {ADDRESSES: " ".join(self._own_addresses)}
        path = f"{self._leases.path}/{PREFIX}{self._node}"
        try:
            patch = {"metadata": {"annotations": annotations, "labels": {LABEL: LIVE}}}
            return await self._client.patch(path, patch, silence_s=WRITE_TIMEOUT_S)
        except ApiError as error:
            if error.status != HTTPStatus.NOT_FOUND:
                raise
        return await self._leases.create(
            PREFIX + self._node,
            LeaseSpec(holder_identity=self._node),
            silence_s=WRITE_TIMEOUT_S,
            labels={LABEL: LIVE},
            annotations=annotations,
            **await self._owner(),
        )

    async def _owner(self) -> dict[str, Any]:
        """Return the reference to this node's Node object, with which the server deletes the Lease."""
        try:
            uid = await uid_of(self._client, NODES, self._node, silence_s=WRITE_TIMEOUT_S)
        except DECODING_ERRORS:
            uid = ""
        if not uid:
            return {}
        reference = {"apiVersion": "v1", "kind": "Node", "name": self._node, "uid": uid}
        return {"ownerReferences": [reference]}

    async def _write_suspicion(self, node: str) -> bytes:
        value = self._node if node in self._suspects else None
        patch = {"metadata": {"annotations": {_annotation(self._node): value}}}
        return await self._client.patch(f"{self._leases.path}/{PREFIX}{node}", patch, silence_s=WRITE_TIMEOUT_S)

    def _log_failure(self, error: BaseException) -> None:
        text = str(error) or "no answer in time"
        if text != self._failure:
            log.warning("a Lease of a node cannot be written", extra={"error": text})
            self._failure = text

    # --- changes from the server ---

    def _take_list(self, reflector: Reflector, draft: Draft) -> None:
        changes = reflector.cache.accept(draft)
        reflector.listed.set()
        self._take(changes)

    def _take(self, changes: Sequence[ObjectChange]) -> None:
        for change in changes:
            name = change.key.rpartition("/")[2]
            if name.startswith(PREFIX):
                new: object = change.new
                self._take_node(name.removeprefix(PREFIX), new if isinstance(new, NodeLease) else NodeLease())
        if self._due():
            self._write.set()
        self.on_change()

    def _take_node(self, node: str, lease: NodeLease) -> None:
        self._addresses.pop(node, None)
        self._suspicions.pop(node, None)
        if lease.addresses:
            self._addresses[node] = lease.addresses
        if lease.suspected_by:
            self._suspicions[node] = lease.suspected_by


def _is_address(text: str) -> bool:
    try:
        parse_ip(text)
    except ValueError:
        return False
    return True


def _annotation(observer: str) -> str:
    """Return the key of an observer's annotation: a name of a node may be longer than a key."""
    return SUSPECTED + hashlib.blake2b(observer.encode(), digest_size=8).hexdigest()
