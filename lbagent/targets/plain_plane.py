"""PlainPlane: a data plane that holds nothing in the kernel. It needs no rights and finds nothing of an earlier agent.

A subclass gives `write`, which takes each State as a whole. Ids are assigned as for BPF, so that `svc list` and `backend list` show
the same rows. The node's network is read by netlink, which any user may do.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Collection, Coroutine, Iterator, Mapping, Sequence

from lbagent.config import Config
from lbagent.model.address import L3n4Addr
from lbagent.model.backend import Backend, BackendState
from lbagent.model.check import CheckGroup
from lbagent.model.cooperative import run_cooperatively
from lbagent.model.family import Family
from lbagent.model.handshakes import Handshakes
from lbagent.model.ids import BACKEND_ID_LIMIT, SERVICE_ID_LIMIT, IdAllocator, IdAssigner
from lbagent.model.state import State, next_generation
from lbagent.net.snapshot import EMPTY, NodeNetwork
from lbagent.render.renderer_types import Difference
from lbagent.sync.backoff import Failure
from lbagent.sync.failures import Failures
from lbagent.sync.target_protocol import Desired
from lbagent.targets.data_plane import (
    Counters,
    Counts,
    EgressOf,
    EgressPath,
    Feature,
    Flow,
    FlowCounts,
    FrontendOf,
    OnNetwork,
    PlaneStatus,
    Usage,
)


class PlainPlane:
    """Takes each State, gives ids, and has nothing to count or to show but the State."""

    name = ""
    features: frozenset[Feature] = frozenset()
    needs_facts = False
    waiting, error, retains = "", "", False
    restored = retained = sweeps = 0
    is_unfinished = False

    def __init__(self, config: Config) -> None:
        self.config = config
        self.ready, self.wake, self.first_pass = asyncio.Event(), asyncio.Event(), asyncio.Event()
        self.state = self.wanted = State()
        self.counts = Counts()
        self.network: NodeNetwork = EMPTY
        self.on_network: OnNetwork = lambda _network: None
        self._changed = asyncio.Condition()
        self._failures = Failures()  # frontends that found no id
        self._ids = IdAssigner(IdAllocator(limit=SERVICE_ID_LIMIT), IdAllocator())

    def number_above(self) -> None:
        """Give ids above those of BPF, before the first State: another data plane of the agent has these."""
        services = IdAllocator[L3n4Addr](SERVICE_ID_LIMIT, 2 * SERVICE_ID_LIMIT)
        self._ids = IdAssigner(services, IdAllocator(BACKEND_ID_LIMIT, 2 * BACKEND_ID_LIMIT))

    async def write(self, desired: Desired) -> None:
        """Put a State, which has ids, in force. Raises LbError, OSError: it is called again."""

    # --- life ---

    def replace_proxy(self) -> None:
        """One transaction, or none, puts everything in force."""

    async def open(self, require: Callable[[], None]) -> Mapping[str, str]:
        """Create nothing."""
        require()
        return {}

    async def start(self, group: asyncio.TaskGroup) -> None:
        """Read the node's network, and follow it. Raises KernelError."""
        from lbagent.net.netlink import NetworkWatcher

        watcher = NetworkWatcher()
        self._network_changed(await watcher.start())
        group.create_task(self._follow(watcher.run(self._network_changed), watcher.close))

    async def _follow(self, following: Coroutine[None, None, None], close: Callable[[], None]) -> None:
        try:
            await following
        finally:
            close()

    async def serve(self, group: asyncio.TaskGroup) -> None:
        """Nothing is attached."""

    def check(self, config: Config) -> None:
        """Any configuration can be used."""

    async def reconfigure(self, config: Config) -> dict[str, str]:
        """Take over a configuration."""
        self.config = config
        return {}

    def close(self) -> None:
        """Nothing is open."""

    def take_back(self) -> None:
        """Nothing was made."""

    def _network_changed(self, network: NodeNetwork) -> None:
        self.network = network
        self.on_network(network)

    # --- the State ---

    @property
    def generation(self) -> int:
        """Counter of the States in force."""
        return self.state.generation

    @property
    def current_state(self) -> State:
        """The State in force."""
        return self.state

    @property
    def failing(self) -> Mapping[L3n4Addr, Failure]:
        """Frontends that found no id."""
        return self._failures.frontends

    def retry_at(self) -> float | None:
        """Return when a frontend that found no id is tried again."""
        return self._failures.retry_at()

    def restored_backends(self) -> Collection[L3n4Addr]:
        """Hold nothing from before."""
        return ()

    def restored_inside_rows(self) -> Collection[L3n4Addr]:
        """Hold nothing from before."""
        return ()

    async def reconcile(self, desired: Desired) -> None:
        """Give ids, and write the State."""
        began = time.monotonic()
        self.wanted = desired.state
        assigned = await run_cooperatively(self._ids.assigning(desired.state), time.monotonic)
        self._failures.written(self.failing.keys() - {frontend for frontend, _ in self._ids.errors})
        self._failures.failed(self._ids.errors, began)
        state = State(next_generation(self.state, assigned), assigned.services, assigned.delta)
        await self.write(Desired(state, desired.provenance, desired.facts))
        self.state = state
        self.counts.syncs += 1
        self.counts.last_duration_s = time.monotonic() - began
        self.ready.set()
        self.first_pass.set()
        async with self._changed:
            self._changed.notify_all()

    async def watch(self) -> None:
        """Nothing changes it from outside."""

    async def changed_from(self, generation: int) -> int:
        """Return the generation in force as soon as it differs."""
        async with self._changed:
            await self._changed.wait_for(lambda: self.state.generation != generation)
        return self.state.generation

    # --- what it shows ---

    def status(self) -> PlaneStatus:
        """Return what the State has."""
        frontends = sum(not svc.wildcard for svc in self.state.services)
        return PlaneStatus(frontends=frontends, backends=len(self.state.backends), sweeps=self.sweeps)

    def problems(self) -> Sequence[str]:
        """Nothing else can be wrong."""
        return ()

    def checks(self) -> CheckGroup[None]:
        """There is nothing to check."""
        return CheckGroup((), None)

    def usage(self) -> Mapping[str, Usage]:
        """There are no tables."""
        return {}

    def largest_namespaces(self, table: str) -> dict[str, int]:
        """There are no tables."""
        del table
        return {}

    def backend_states(self) -> Mapping[BackendState, int]:
        """Return how many backends are in which state."""
        return Counter(backend.state for backend in self.state.backends.values())

    def backend_count(self) -> int:
        """Return how many backends the frontends have."""
        return len(self.state.backends)

    def devices_attached(self) -> dict[str, bool]:
        """Nothing is attached."""
        return {}

    def handshakes(self, backends: Sequence[int]) -> Mapping[int, Handshakes]:
        """No handshake is timed."""
        del backends
        return {}

    def egress_paths(self) -> EgressOf:
        """No packet is sent."""

        def egress_of(backend: Backend) -> EgressPath:
            del backend
            return EgressPath()

        return egress_of

    def counters(self, *, backends: bool = True) -> Counters:
        """Nothing is counted."""
        del backends
        return Counters()

    async def count_flows(self) -> FlowCounts:
        """There are no flows."""
        self.sweeps += 1
        return FlowCounts({})

    def flows(self) -> Iterator[Sequence[Flow]]:
        """There are no flows."""
        return iter(())

    def frontends_of_sockets(self, family: Family) -> FrontendOf:
        """No socket gets a backend."""
        del family
        return lambda _cookie, _backend: None

    difference_count = 0

    async def verify(self) -> Sequence[Difference]:
        """Nothing can differ."""
        return ()

    async def repair(self) -> Sequence[Difference]:
        """Nothing can differ."""
        return ()
