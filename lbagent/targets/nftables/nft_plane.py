"""NftPlane: nftables as the data plane of a node. What is in the table continues to serve without the agent.

The table of an earlier agent is taken over: the first pass changes what differs. While a source has given no complete list,
nothing of it is removed.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

from msgspec.structs import replace

from lbagent.config import Config
from lbagent.errors import LbError, Unsupported
from lbagent.model.address import L3n4Addr
from lbagent.model.check import CheckGroup
from lbagent.model.cooperative import run_cooperatively
from lbagent.model.family import Family
from lbagent.model.service import ServiceName
from lbagent.model.state import State, names_changed, next_generation
from lbagent.net.paths import is_pod_device
from lbagent.net.snapshot import NodeNetwork
from lbagent.render.renderer_types import Difference
from lbagent.sync.target_protocol import Desired, Provenance
from lbagent.targets.data_plane import Counters, Feature, Flow, FlowCounts, sessions_of
from lbagent.targets.forwarding_checks import FORWARDING_OFF
from lbagent.targets.nftables.chains import TableSettings
from lbagent.targets.nftables.nft_settings import other_ports, table_settings
from lbagent.targets.nftables.nft_table import unavailable_reason
from lbagent.targets.nftables.nft_writer import NftWriter
from lbagent.targets.nftables.node_place import NodePlace
from lbagent.targets.nftables.table_lock import TableLock
from lbagent.targets.one_family import OneFamily
from lbagent.targets.plain_plane import PlainPlane

_FLOWS_AT_ONCE = 256
log = logging.getLogger(__name__)


class NotAvailable(Unsupported):
    """Why nftables cannot be used here, with exit code 77."""

    def __init__(self, reason: str) -> None:
        super().__init__("nftables")
        self.args = (f"--renderer nftables is not available: {reason}",)


class NftPlane(PlainPlane):
    """Puts each State in force in a table of nftables."""

    name = "nftables"

    def __init__(self, config: Config, settings: Mapping[str, str], features: frozenset[Feature]) -> None:
        super().__init__(config)
        self.features = features
        self._settings = settings
        self._part = OneFamily(table_settings(settings, config).families)
        self.needs_facts = config.egress_snat == "on"
        self._nodes: frozenset[bytes] = frozenset()  # addresses of all nodes of the cluster, with --egress-snat
        self._writer: NftWriter | None = None
        self._lock: TableLock | None = None
        self._place: NodePlace | None = None  # that no write has used yet
        self._found = False  # the table of an earlier agent is there, and no complete State has replaced it
        self._was_there = True  # something was there before `open`
        self._live: Mapping[int, int] = {}  # connections by backend id, when they were counted last
        self._warned = ""
        self._beside_bpf: tuple[int, int] | None = None
        self._left_to_bpf = False
        self.taking_over: Callable[[], str] = lambda: ""  # from which data plane, for the status

    @property
    def writer(self) -> NftWriter:
        """What writes the table, from `open` to `close`."""
        assert self._writer is not None
        return self._writer

    # --- life ---

    async def open(self, require: Callable[[], None]) -> Mapping[str, str]:
        """Look for the table of an earlier agent. Raises NotAvailable, Conflict, NotOurs, OSError."""
        if reason := unavailable_reason():
            raise NotAvailable(reason)
        require()
        place = NodePlace(self.config.name_of_node, self.config.pod_device)
        settings = self._table_settings()
        lock = TableLock(settings.table)
        lock.take()
        self._lock, self._writer = lock, NftWriter(settings, place)
        self._found = self._was_there = self._writer.table.exists()
        return {}

    def close(self) -> None:
        """Close the sockets; the table continues to serve."""
        if self._writer is not None:
            self._writer.close()
            self._writer = None
        if self._lock is not None:
            self._lock.release()
            self._lock = None

    def take_back(self) -> None:
        """Remove the table, where an earlier agent left none."""
        if self._writer is not None and not self._was_there:
            self._writer.table.remove()

    async def reconfigure(self, config: Config) -> dict[str, str]:
        """Take over a configuration: the rules are written again."""
        self.config = config
        self.needs_facts = config.egress_snat == "on"
        if self._writer is not None:
            self._writer.reconfigure(self._table_settings())
            self._network_changed(self.network)
            self.wake.set()
        return {}

    def _table_settings(self) -> TableSettings:
        settings = table_settings(self._settings, self.config)
        return replace(settings, beside_bpf=self._beside_bpf, left_to_bpf=self._left_to_bpf)

    def leave_to_bpf(self, snat_ports: tuple[int, int] | None = None) -> None:
        """Translate what is from before alone, from the next write on; bpf has these source ports, None: none of netfilter's."""
        self._left_to_bpf, self._beside_bpf = True, other_ports(*snat_ports) if snat_ports else None
        self._write_again()

    def share_with_bpf(self, snat_ports: tuple[int, int] | None) -> None:
        """Leave connections that are open, and source ports, to bpf, which has flows from before; None: not any more."""
        self._left_to_bpf, self._beside_bpf = False, other_ports(*snat_ports) if snat_ports else None
        self._write_again()

    def _write_again(self) -> None:
        if self._writer is not None:
            self._writer.reconfigure(self._table_settings())
            self.wake.set()

    def _network_changed(self, network: NodeNetwork) -> None:
        super()._network_changed(network)
        if self._take_place():
            self.wake.set()

    def _take_place(self) -> bool:
        """Return whether the place of the node is another one, which the next write uses."""
        nodes = self._nodes.union(self.config.node_addresses) if self.needs_facts else None
        place = NodePlace(self.config.name_of_node, self.config.pod_device, self.network, nodes=nodes)
        if self._writer is None:
            return False
        known = self._place or self._writer.place
        if (place.signature, place.devices, place.nodes) == (known.signature, known.devices, known.nodes):
            return False
        self._place = place
        return True

    # --- the State ---

    @property
    def retains(self) -> bool:  # type: ignore[override]
        """Whether it holds what an earlier agent left."""
        return self._found

    @property
    def retained(self) -> int:  # type: ignore[override]
        """Frontends that stay as an earlier agent left them."""
        return self._writer.kept if self._writer is not None else 0

    def retry_at(self) -> float | None:
        """Return when a frontend is tried again that found no id, or one that was removed is refused no longer."""
        due = self._writer.due() if self._writer is not None else None
        return min((at for at in (super().retry_at(), due) if at is not None), default=None)

    async def reconcile(self, desired: Desired) -> None:
        """Give ids, and write the State. While a source is not complete, the plane is not ready and removes nothing."""
        began = time.monotonic()
        desired = self._part.of(desired)
        self.wanted = desired.state
        assigned = await run_cooperatively(self._ids.assigning(desired.state), time.monotonic)
        self._failures.written(self.failing.keys() - {frontend for frontend, _ in self._ids.errors})
        self._failures.failed(self._ids.errors, began)
        state = State(next_generation(self.state, assigned), assigned.services, assigned.delta)
        kept = self._kept(desired)
        self.writer.leave_alone(desired.left_alone)
        if desired.facts is not None:
            self._nodes = desired.facts.addresses_of_nodes
            self._take_place()
        try:
            await self._write(state, kept)
        except OSError as error:
            raise LbError(f"nftables: {error.strerror or error}") from error
        except LbError:
            self.counts.errors += 1
            raise
        self.state = state
        self.counts.syncs += 1
        self.counts.writes = self.writer.transactions
        self.counts.last_duration_s = time.monotonic() - began
        if kept is None:
            self._found = False
            self.ready.set()
        self.first_pass.set()
        async with self._changed:
            self._changed.notify_all()

    async def _write(self, state: State, kept: frozenset[ServiceName] | None) -> None:
        place, self._place = self._place, None
        if place is not None:
            if place.signature != self.writer.place.signature:
                self.writer.move(place)
            else:
                self.writer.place = place
        await self.writer.write(state, kept, names_changed(self.state, state))

    def _kept(self, desired: Desired) -> frozenset[ServiceName] | None:
        """Return the Services that stay as an earlier agent left them, beside what no object names; None: nothing has to."""
        provenance = desired.provenance if self._found else None
        if provenance is None or not provenance.untrusted:
            self.waiting = self._warned = ""
            return None
        sources = ", ".join(provenance.untrusted)
        self.waiting = f"{sources} has given no complete list yet: nothing is removed until it has"
        if self.waiting != self._warned:
            self._warned = self.waiting
            log.warning("nothing is removed yet", extra={"reason": self.waiting})
        return frozenset(
            name for name in desired.state.by_name if _is_partial(str(name), desired.state, name, provenance)
        )

    async def watch(self) -> None:
        """Check periodically whether another program changed the table, and have it repaired."""
        while True:
            await asyncio.sleep(self.config.resync_interval)
            await self.ready.wait()
            try:
                # what differed is compared again: the metric is that of the last comparison
                is_due = await self.writer.is_touched() or self.difference_count
                found = await self.repair() if is_due else ()
            except (LbError, OSError) as error:
                log.error("the table could not be compared", extra={"error": str(error)})
                continue
            for difference in found:
                log.warning("the table was changed by another process", extra={"difference": str(difference)})
            with suppress(OSError):  # the metrics keep the last count
                await self.count_flows()

    # --- what it shows ---

    def problems(self) -> Sequence[str]:
        """Return what of Services is not served, one sentence each."""
        if self._writer is None:
            return ()
        taking_over = [text] if (text := self.taking_over()) else []
        return taking_over + [f"Service {name}: {reason}" for name, reason in self._writer.rules.unsupported()]

    def checks(self) -> CheckGroup[Any]:
        """Return the check of the kernel's forwarding."""
        return CheckGroup((FORWARDING_OFF,), _ForwardingNode(self))

    async def count_flows(self) -> FlowCounts:
        """Count the connections that conntrack has, by backend. Raises OSError."""
        backends = {address: backend.id for address, backend in self.state.backends.items()}
        found = await asyncio.to_thread(self._live_backends)
        self.sweeps += 1
        self._live = Counter(backends[address] for address in found if address in backends)
        return FlowCounts(self._live)

    def counters(self, *, backends: bool = True) -> Counters:
        """Return the connections, as they were counted last, and those that were ended."""
        conntrack = self.writer.conntrack
        return Counters(
            live_flows=self._live if backends else {},
            sessions=sessions_of(self.state, self._live),
            sessions_deleted={protocol.name.lower(): count for protocol, count in conntrack.deleted.items()},
            session_delete_errors=conntrack.errors,
        )

    def _live_backends(self) -> list[L3n4Addr]:
        return [each.backend for each in self.writer.conntrack.connections() if each.is_live]

    def flows(self) -> Iterator[Sequence[Flow]]:
        """Yield the connections that conntrack has of frontends. Raises OSError."""
        known, some = self.state.by_frontend, []
        for each in self.writer.conntrack.connections():
            if each.frontend in known:
                mode = "snat" if each.snat_port else "local"
                some.append(Flow(each.client, each.frontend, each.backend, each.state, mode, each.snat_port))
            if len(some) >= _FLOWS_AT_ONCE:
                yield some
                some = []
        yield some

    async def verify(self) -> Sequence[Difference]:
        """Return in what the table differs from what was written. Raises NotOurs, OSError."""
        found = await self.writer.differences()
        self.difference_count = len(found)
        return found

    async def repair(self) -> Sequence[Difference]:
        """Have the table compared and written again, where it differs."""
        if found := await self.verify():
            self.writer.lose_sync()
            self.wake.set()
        return found


class _ForwardingNode:
    """What the check of forwarding reads."""

    def __init__(self, plane: NftPlane) -> None:
        self._plane = plane

    @property
    def forwarding_families(self) -> Collection[Family]:
        """The families with a backend beyond this node's own sockets."""
        network = self._plane.network
        return {address.family for address in self._plane.state.backends if not network.is_own(address.address)}

    @property
    def devices(self) -> Sequence[str]:
        """The devices of pods; those of clients are not named."""
        patterns = self._plane.config.pod_device
        return [link.name for link in self._plane.network.links.values() if is_pod_device(link.name, patterns)]


def _is_partial(text: str, state: State, name: ServiceName, provenance: Provenance) -> bool:
    """Return whether a Service's endpoints may still come from a source that is not complete."""
    if text not in provenance.services_of_unlisted or text in provenance.services_with_endpoints:
        return False
    return not any(row.backends for row in state.by_name[name])
