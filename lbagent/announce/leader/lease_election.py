"""The Leases by which nodes agree on a leader for each address: read by one watch, written when a leader changes.

A node is alive while it renews `lbagent-node-NODE`; this Lease names the networks that the node reaches, its MAC addresses and
the addresses that its programs do not serve (maintenance). Other nodes read there which node may announce an address, and whether
a frame is from a node. `lbagent-vip-ADDRESS` names the leader of an address, and is not renewed. The server rejects a write if
another node has written since (resourceVersion).
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from http import HTTPStatus
from ipaddress import ip_address

import msgspec

from lbagent.announce.l2.reach import is_within
from lbagent.announce.l2.vip_machine import is_overdue
from lbagent.announce.leader.node_lives import NodeLives
from lbagent.errors import LbError
from lbagent.kube.kube_client import ApiError, KubeClient
from lbagent.kube.kube_settings import KubeTiming
from lbagent.kube.leases import LABEL, NAMESPACE, Lease, LeaseCache, Leases, LeaseSpec, lease_of
from lbagent.kube.object_cache import Draft, metadata_of
from lbagent.kube.reflector import Reflector
from lbagent.kube.resources import Resource
from lbagent.model.address import format_ip, parse_ip
from lbagent.model.rendezvous import preferred_node
from lbagent.objects.records import ObjectChange

log = logging.getLogger(__name__)
NODE, VIP = "node", "vip"  # values of LABEL
NETWORKS, MACS = "lbagent.io/networks", "lbagent.io/macs"  # annotations of a node's Lease, words
WITHHELD = "lbagent.io/withheld-addresses"  # the same: addresses that its programs do not serve
ANOTHER_NODE = "another node"
NODE_PREFIX, VIP_PREFIX = "lbagent-node-", "lbagent-vip-"
RENEW_PARTS = 0.5  # of the duration, between two renewals: with 2 s one write per second and node
LEASE_RETRY_DELAY_S = 0.3
MAX_WITHHELD = 4096  # addresses in an annotation: 164 kB of the 256 kB that an object may have
FORGET_NODE_S = 600.0  # a node's Lease is deleted so long after it expired


class _Published(msgspec.Struct, frozen=True):
    networks: str
    macs: str
    withheld: str


class LeaseElection:
    """Follows and writes the Leases of one node. `on_change` is called with the names of those that have changed."""

    def __init__(
        self,
        client: KubeClient,
        node: str,
        duration_s: float,
        *,
        timing: KubeTiming | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._client, self._node, self.duration_s, self._clock = client, node, duration_s, clock
        self._leases = Leases(client, NAMESPACE)
        resource = Resource(
            "Lease", self._leases.path, "leases.coordination.k8s.io", label_selector=f"{LABEL} in ({NODE},{VIP})"
        )
        self._cache = LeaseCache(resource)
        self._reflector = Reflector(
            client, resource, timing or KubeTiming(), self._cache, on_list=self._take_list, on_changes=self._take
        )
        self._lives = NodeLives(node, duration_s)
        self._published: _Published | None = None
        self._publish = asyncio.Event()
        self._is_written = asyncio.Event()  # this node's Lease holds what was published last
        self._own: Lease | None = None  # as it was written last
        self._annotations: dict[str, dict[str, str]] = {}  # of nodes
        self._networks: dict[str, tuple[str, ...]] = {}
        self._withheld: dict[str, frozenset[str]] = {}
        self._nodes_by_mac: dict[bytes, str] = {}
        self._reaching: dict[bytes, frozenset[str]] = {}  # of live nodes
        self._alive: frozenset[str] = frozenset()
        self._alive_at = float("nan")  # when that was found
        self._failure = ""
        self.on_change: Callable[[Collection[str]], None] = lambda _names: None
        self._changes = 0  # of what nodes reach

    # --- what is known ---

    def is_fresh(self, now: float) -> bool:
        """Return whether the Leases read are as on the server."""
        return self._lives.is_fresh(now)

    def set_dead_nodes(self, nodes: frozenset[str]) -> None:
        """Treat the Leases of these nodes as expired: their observers agree that they are dead."""
        self._lives.dead = nodes
        self._alive_at = float("nan")

    def dead_s(self, node: str, now: float) -> float:
        """Return how long ago a node's Lease expired; negative while it is valid."""
        return self._lives.dead_s(node, now)

    def state(self, now: float) -> tuple[object, ...]:
        """Return the inputs that all addresses share; when they change, every address is decided again."""
        return self.is_fresh(now), self._lives.state(now, is_overdue), self._changes

    def next_end(self, now: float, before_s: float) -> float:
        """Return when a node's Lease expires next, or is `before_s` from that, unless it is renewed."""
        return self._lives.next_end(now, before_s)

    def holder(self, address: bytes) -> str:
        """Return the node that leads for an address, '' for none."""
        return _holder(self._cache.lease(f"{NAMESPACE}/{vip_lease(address)}"))

    def nodes_reaching(self, address: bytes, now: float) -> frozenset[str]:
        """Return the live nodes that reach the network of an address and do not withhold it."""
        if now != self._alive_at:  # all addresses are decided at one moment
            self._alive_at, alive = now, frozenset(self._lives.alive(now))
            if alive != self._alive:
                self._alive = alive
                self._reaching.clear()
        found = self._reaching.get(address)
        if found is None:
            found = frozenset(node for node in self._alive if self._reaches(node, address))
            self._reaching[address] = found
        return found

    def _reaches(self, node: str, address: bytes) -> bool:
        return is_within(address, self._networks.get(node, ())) and (
            format_ip(address) not in self._withheld.get(node, ())
        )

    def node_of(self, mac: bytes) -> str:
        """Return the other node that has a MAC address, '' for a foreign host; until the Leases are read any host may be a node."""
        return self._nodes_by_mac.get(mac, "" if self._annotations else ANOTHER_NODE)

    def is_alive(self, mac: bytes, now: float) -> bool:
        """Return whether the other node that has a MAC address is alive."""
        node = self._nodes_by_mac.get(mac, "")
        return bool(node) and self.dead_s(node, now) < 0

    @property
    def failure(self) -> str:
        """The present failure, '' for none."""
        unread = self._reflector.failure
        return self._failure or (str(unread.message) if unread else "")

    # --- writing ---

    def publish(self, networks: Iterable[str], macs: Iterable[bytes], withheld: Iterable[bytes] = ()) -> None:
        """Publish what this node reaches, and the addresses that its programs do not serve; the first call makes it alive."""
        words = _Published(
            " ".join(sorted(networks)),
            " ".join(sorted(mac.hex(":") for mac in macs)),
            " ".join(map(format_ip, sorted(withheld)[:MAX_WITHHELD])),
        )
        if words != self._published:
            self._published = words
            self._is_written.clear()
            self._publish.set()

    async def until_published(self) -> None:
        """Wait until this node's Lease holds what was published last, at most for the duration of a Lease."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self.duration_s):
                await self._is_written.wait()

    async def write_holder(self, address: bytes, node: str) -> bool:
        """Name a node as the leader of an address; return whether that is written. Raises nothing."""
        name = vip_lease(address)
        lease = self._cache.lease(f"{NAMESPACE}/{name}")
        try:
            async with asyncio.timeout(self.duration_s):
                if lease is None:
                    spec = LeaseSpec(lease_transitions=-1).held_by(node, self.duration_s)
                    raw = await self._leases.create(name, spec, silence_s=self.duration_s, labels={LABEL: VIP})
                else:
                    spec = lease.spec.held_by(node, self.duration_s)
                    raw = await self._leases.replace(lease, spec, silence_s=self.duration_s)
            self._absorb(raw)
        except (LbError, TimeoutError) as error:
            self._log_failure(error)
            return False
        return True

    async def forget(self, address: bytes) -> None:
        """Delete the Lease of an address that is not announced any more. Raises nothing."""
        await self.remove(vip_lease(address))

    async def remove(self, name: str) -> None:
        """Delete a Lease. Raises nothing."""
        with contextlib.suppress(LbError, TimeoutError):
            async with asyncio.timeout(self.duration_s):
                await self._client.delete(f"{self._leases.path}/{name}", silence_s=self.duration_s)

    def leftovers(self, wanted: Collection[bytes], now: float, grace_s: float) -> list[str]:
        """Return the Leases that this node must delete for a dead node: of addresses that are not announced, and the node's own.

        Their holders have been dead for `grace_s`, nodes for FORGET_NODE_S; a node that returns creates its Lease again.
        """
        names, alive = {vip_lease(address) for address in wanted}, frozenset(self._lives.alive(now))
        found = (key.rpartition("/")[2] for key in self._cache.keys)
        left = (name for name in found if name not in names and self._is_left(name, now, grace_s))
        return [name for name in left if preferred_node(name.encode(), alive) == self._node]

    def _is_left(self, name: str, now: float, grace_s: float) -> bool:
        if name.startswith(NODE_PREFIX):
            return self.dead_s(name.removeprefix(NODE_PREFIX), now) >= FORGET_NODE_S
        lease = self._cache.lease(f"{NAMESPACE}/{name}")
        return name.startswith(VIP_PREFIX) and bool(lease) and self.dead_s(_holder(lease), now) >= grace_s

    def _absorb(self, raw: bytes) -> None:
        """Store the server's answer; the watch delivers it later."""
        change = self._cache.put(raw, metadata_of(raw))
        if change is not None:
            self._take([change])

    # --- running ---

    async def run(self) -> None:
        """Watch the Leases and renew this node's own until cancelled."""
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._reflector.run())
                tasks.create_task(self._renew())
        finally:
            await self._client.close()

    async def _renew(self) -> None:
        await self._publish.wait()
        while True:
            began = self._clock()
            self._publish.clear()
            done = await self._renew_once()
            pause_s = self.duration_s * RENEW_PARTS - (self._clock() - began) if done else LEASE_RETRY_DELAY_S
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(max(0.05, pause_s)):
                    await self._publish.wait()

    async def _renew_once(self) -> bool:
        try:
            await self._client.connect()  # the first time takes seconds
            async with asyncio.timeout(self.duration_s):
                await self._write_own()
        except (LbError, TimeoutError) as error:
            self._own = None
            self._log_failure(error)
            return False
        if self._failure:
            log.info("Leases are written again")
        self._failure = ""
        return True

    async def _write_own(self) -> None:
        published, name = self._published, NODE_PREFIX + self._node
        assert published is not None
        annotations = {NETWORKS: published.networks, MACS: published.macs, WITHHELD: published.withheld}
        own = self._own or await self._leases.get(name, silence_s=self.duration_s)
        if own is None:
            spec = LeaseSpec(lease_transitions=-1).held_by(self._node, self.duration_s)
            raw = await self._leases.create(
                name, spec, silence_s=self.duration_s, labels={LABEL: NODE}, annotations=annotations
            )
        else:
            spec = own.spec.held_by(self._node, self.duration_s)
            raw = await self._leases.replace(own, spec, silence_s=self.duration_s, annotations=annotations)
        self._own = lease_of(raw)
        if published is self._published:
            self._is_written.set()

    def _log_failure(self, error: BaseException) -> None:
        text = str(error) or "no answer in time"
        is_race = isinstance(error, ApiError) and error.status == HTTPStatus.CONFLICT
        if not is_race and text != self._failure:
            log.warning("a Lease cannot be written; what is announced stays announced", extra={"error": text})
            self._failure = text

    # --- changes from the server ---

    def _take_list(self, reflector: Reflector, draft: Draft) -> None:
        self._take(reflector.cache.accept(draft))

    def _take(self, changes: Sequence[ObjectChange]) -> None:
        now = self._clock()
        for change in changes:
            name = change.key.rpartition("/")[2]
            if name.startswith(NODE_PREFIX):
                node = name.removeprefix(NODE_PREFIX)
                self._take_node(node, self._cache.lease(change.key), now)
        if changes:
            self.on_change([change.key.rpartition("/")[2] for change in changes])

    def _take_node(self, node: str, lease: Lease | None, now: float) -> None:
        self._alive_at = float("nan")
        if lease is None:
            self._lives.forget(node)
        else:
            self._lives.see(node, lease.spec.renew_time or "", lease.spec.lease_duration_seconds or 1, now)
        annotations = lease.annotations if lease else {}
        if self._annotations.get(node) == annotations:
            return
        self._annotations[node] = annotations
        networks = tuple(annotations.get(NETWORKS, "").split())
        self._networks[node] = networks
        self._withheld[node] = frozenset(annotations.get(WITHHELD, "").split())
        self._changes += 1
        self._reaching.clear()
        self._nodes_by_mac = {mac: name for mac, name in self._nodes_by_mac.items() if name != node}
        if node != self._node:
            self._nodes_by_mac |= dict.fromkeys(_macs(annotations.get(MACS, "").split()), node)


def _holder(lease: Lease | None) -> str:
    return (lease.spec.holder_identity or "") if lease else ""


def _macs(words: Collection[str]) -> list[bytes]:
    found = []
    for word in words:
        with contextlib.suppress(ValueError):
            found.append(bytes.fromhex(word.replace(":", "")))
    return found


@functools.lru_cache(maxsize=4096)
def vip_lease(address: bytes) -> str:
    """Return the name of an address's Lease: IPv6 in full, dashes for colons."""
    return VIP_PREFIX + ip_address(format_ip(address)).exploded.replace(":", "-")


@functools.lru_cache(maxsize=4096)
def vip_of_lease(name: str) -> bytes:
    """Return the address whose leader a Lease names, b'' for another Lease."""
    head, found, text = name.partition(VIP_PREFIX)
    with contextlib.suppress(ValueError):
        return parse_ip(text.replace("-", ":")) if found and not head else b""
    return b""
