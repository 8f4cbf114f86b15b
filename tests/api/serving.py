"""A real ApiServer on a real socket in a thread of its own, over a small in-memory agent."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

from msgspec.structs import replace

from lbagent.announce.bgp.speaker import BgpPeerRow
from lbagent.api.agent_status import MapUsage, SourceStatus, Status
from lbagent.api.backend_requests import BackendRequests
from lbagent.api.capabilities import (
    bgp,
    data_planes,
    generations,
    metrics,
    node_backends,
    services,
    status,
    summary,
    sync,
)
from lbagent.api.capabilities.sync import SyncParts
from lbagent.api.capability import Bound, bind
from lbagent.api.drains import DrainRow, Drains
from lbagent.api.listed_services import ServedServices
from lbagent.api.named_backends import services_left_empty
from lbagent.api.node_summary import NodeSummary
from lbagent.api.operator_states import SetBy
from lbagent.api.server import ApiServer
from lbagent.apilb.native.server_check import ServerCheck
from lbagent.errors import LastBackend, LbError, NotFound
from lbagent.model.address import L3n4Addr, Scope
from lbagent.model.backend import Backend, BackendState
from lbagent.model.cooperative import run_whole
from lbagent.model.flags import ServiceFlags
from lbagent.model.handshakes import Handshakes
from lbagent.model.service import SVC, Algorithm, ServiceName, SVCTrafficPolicy, SVCType
from lbagent.model.state import State
from lbagent.render.renderer_types import Difference
from lbagent.sources.operator import KeptDrain
from lbagent.sync.generation_history import PastGeneration
from lbagent.targets.data_plane import Counters, EgressOf, EgressPath, FlowCounts


def example_state() -> State:
    """Two services: one with three frontends and backends of every state, one IPv6 without any backend."""
    one = Backend(1, L3n4Addr.parse("10.0.0.9:8080"), node_name="n1", zone="a", local=True)
    two = Backend(2, L3n4Addr.parse("10.0.0.10:8080"), node_name="n2", zone="b")
    three = Backend(3, L3n4Addr.parse("10.0.0.11:8080"), BackendState.TERMINATING, node_name="n2")
    dns = Backend(4, L3n4Addr.parse("10.0.0.53:53/UDP"), BackendState.MAINTENANCE, weight=0)
    web, name = ServiceName("shop", "web"), ServiceName("kube-system", "dns")
    cluster_ip = L3n4Addr.parse("10.96.0.10:80")
    return State(
        3,
        (
            SVC(replace(cluster_ip, port=0), name=web, wildcard=True),
            SVC(
                cluster_ip,
                1,
                web,
                port_name="http",
                selectable=(one, two),
                unselectable=(three,),
                flags=ServiceFlags(0),
            ),
            SVC(
                L3n4Addr.parse("192.0.2.10:80"),
                10,
                web,
                port_name="http",
                type=SVCType.LOAD_BALANCER,
                ext_traffic_policy=SVCTrafficPolicy.LOCAL,
                selectable=(one,),
                algorithm=Algorithm.MAGLEV,
                session_affinity=True,
                session_affinity_timeout_s=60,
                flags=ServiceFlags.parse("LoadBalancer, Local, two-scopes, sessionAffinity"),
            ),
            SVC(
                L3n4Addr.parse("192.0.2.10:80").with_scope(Scope.INTERNAL),
                11,
                web,
                port_name="http",
                type=SVCType.LOAD_BALANCER,
            ),
            SVC(L3n4Addr.parse("[fd00::a]:53/UDP"), 2, name, port_name="dns", slotless=(dns,)),
        ),
    )


class KeptDrains:
    """A DrainStore that keeps them in memory."""

    def __init__(self) -> None:
        self.drains: dict[str, KeptDrain] = {}

    async def update_drains(self, drains: Iterable[KeptDrain], forgotten: Collection[str] = ()) -> None:
        self.drains |= {drain.address: drain for drain in drains}
        for name in forgotten:
            del self.drains[name]


class Agent:
    """The parts of an agent that holds a State and nothing else: a data plane, states of backends, a status."""

    def __init__(self) -> None:
        self.current = example_state()
        self.ready = True
        self.flows: Mapping[int, int] | None = {1: 5}
        self.flows_age_s = 0.0
        self.set_by: dict[L3n4Addr, SetBy] = {}
        self.timed: dict[int, Handshakes] = {}  # by backend id
        self.ways: dict[int, EgressPath] = {}  # by backend id
        self.clusterips_are_reached = False
        self.pieces: Iterable[str] = ["lbagent_ready 1\n", "lbagent_generation 3\n"]
        self.problems: list[str] = []
        self.name = "bpf"  # of the data plane
        self.differences: list[Difference] = []
        self.history: list[PastGeneration] = []
        self.flows_ended: list[str] = []
        self.counters = Counters(backends={1: (7, 700)})
        self.folder_source = False  # its one source is a folder
        self.repairs = True  # `repair` repairs
        self.comparison_error = ""
        self.said_pods: list[str] = []
        self.pods: dict[str, list[L3n4Addr]] = {
            "shop/web-0": [L3n4Addr.parse("10.0.0.9:8080/TCP"), L3n4Addr.parse("10.0.0.10:8080/TCP")]
        }
        self.checks: dict[str, list[ServerCheck]] = {}  # of native pools, by address
        self.bpffs = ""
        self.peers: list[BgpPeerRow] = []
        self.changed = asyncio.Event()
        self.loop: asyncio.AbstractEventLoop | None = None  # the loop in which `wait_change` waits
        self.kept_drains = KeptDrains()
        self.swept = 0  # finished sweeps, and how many there were when the drains were checked last
        self.swept_at_check = 0
        self.drain_follower = _Drains(self)
        self.first_pass = asyncio.Event()
        self.first_pass.set()

    def settable(self) -> Mapping[L3n4Addr, Backend]:
        return self.current.backends

    @property
    def current_state(self) -> State:
        return self.current

    @property
    def state(self) -> State:
        return self.current

    @property
    def generation(self) -> int:
        return self.current.generation

    def status(self) -> Status:
        return Status(
            ready=self.ready,
            version="1.2.3",
            pid=4711,
            node="n1",
            started_at=0.0,
            generation=self.current.generation,
            services=2,
            frontends=4,
            backends=4,
            bpffs=self.bpffs,
            sweeps=self.swept,
            sources=[
                SourceStatus("folder" if self.folder_source else "folder /etc/lb", True, 7, 1, ["a.yaml:3: spec: bad"])
            ],
            maps=[MapUsage("lb4_service", 3, 100)],
            drains=list(self.drains()),
            problems=self.problems,
        )

    async def count_flows(self) -> FlowCounts:
        return FlowCounts(self.flows, self.flows_age_s)

    def backend_egress(self) -> EgressOf:
        return lambda backend: self.ways.get(backend.id, EgressPath())

    async def states_set(self) -> Mapping[L3n4Addr, SetBy]:
        return self.set_by

    @property
    def addresses(self) -> Collection[L3n4Addr]:
        return list(self.set_by)

    def backends_of_pod(self, pod: str) -> Sequence[L3n4Addr]:
        if pod not in self.pods:
            raise NotFound(f"no service has a backend of the Pod {pod}; nothing was changed")
        return self.pods[pod]

    async def pods_of(self, addresses: Collection[L3n4Addr]) -> Mapping[L3n4Addr, str]:
        return {each: pod for pod, backends in self.pods.items() for each in backends if each in addresses}

    def checks_of(self, address: L3n4Addr) -> list[ServerCheck]:
        return self.checks.get(address.with_protocol(), [])

    async def set_state(
        self,
        addresses: Sequence[L3n4Addr],
        state: BackendState,
        pods: Sequence[str] = (),
        *,
        spare_last: bool = False,
        drains: Sequence[KeptDrain] = (),
    ) -> None:
        known = self.current.backends
        self.said_pods += pods
        addresses = [*addresses, *(address for pod in pods for address in self.backends_of_pod(pod))]
        for address in addresses:
            if address not in known:
                raise NotFound(f"no backend {address.with_protocol()}; nothing was changed")
        new = {address: known[address].with_state(state) for address in addresses}
        if spare_last and state is not BackendState.ACTIVE:
            left = run_whole(services_left_empty(self.current, addresses))
            if left:
                raise LastBackend(f"no backend would be left to {', '.join(left)}")
        services = tuple(
            replace(
                svc,
                selectable=tuple(new.get(b.address, b) for b in svc.selectable),
                unselectable=tuple(new.get(b.address, b) for b in svc.unselectable),
                slotless=tuple(new.get(b.address, b) for b in svc.slotless),
            )
            for svc in self.current.services
        )
        self.advance(services)
        self.kept_drains.drains |= {drain.address: drain for drain in drains}

    async def end_flows(self, addresses: Sequence[L3n4Addr]) -> None:
        self.flows_ended += [address.with_protocol() for address in addresses]

    def drains(self) -> Sequence[DrainRow]:
        return self.drain_follower.rows()

    async def clear_state(self, addresses: Sequence[L3n4Addr], pods: Sequence[str] = ()) -> list[str]:
        for address in addresses:
            if address not in self.current.backends and address not in self.set_by:
                raise NotFound(f"no service has a backend {address.with_protocol()}; nothing was changed")
        named = [*addresses, *(address for pod in pods for address in self.pods.get(pod, ()))]
        return [address.with_protocol() for address in named if self.set_by.pop(address, None)]

    def advance(self, services: tuple[SVC, ...]) -> None:
        """Apply the next generation; from any thread."""
        self.current = State(self.current.generation + 1, services)
        if self.loop is not None:
            self.loop.call_soon_threadsafe(self._wake)

    def _wake(self) -> None:
        self.changed.set()
        self.changed = asyncio.Event()

    async def changed_from(self, generation: int) -> int:
        self.loop = asyncio.get_running_loop()
        while self.current.generation == generation:
            await self.changed.wait()
        return self.current.generation

    async def verify(self) -> Sequence[Difference]:
        if self.comparison_error:
            raise LbError(self.comparison_error)
        return self.differences

    async def repair(self) -> Sequence[Difference]:
        found = self.differences
        if self.repairs:
            self.differences = []
        return found

    def newest(self, count: int) -> list[PastGeneration]:
        """Return the history, as GenerationHistory does."""
        return self.history[: count or None]

    def capabilities(self) -> list[Bound]:
        """Bind the rows to this agent."""
        view = cast("Any", _View(self))
        return [
            bind(status.CAPABILITY, view),
            bind(sync.CAPABILITY, SyncParts(view, view, ())),
            bind(generations.CAPABILITY, cast("Any", SimpleNamespace(newest=self.newest))),
            bind(data_planes.CAPABILITY, cast("Any", [SimpleNamespace(target=view, object_differences=0)])),
            bind(bgp.CAPABILITY, view),
            bind(services.CAPABILITY, ServedServices(view, lambda: self.clusterips_are_reached)),
            bind(node_backends.CAPABILITY, BackendRequests(view, view, self.drain_follower, native=view)),
            bind(summary.CAPABILITY, NodeSummary(self.status, self._reading, self.newest)),
            bind(metrics.CAPABILITY, view),
        ]

    def _reading(self) -> Any:
        return SimpleNamespace(state=self.state, counters=self.counters)


class _Drains(Drains):
    """Drains of an agent that counts by its status."""

    def __init__(self, agent: Agent) -> None:
        super().__init__(agent.kept_drains, lambda: agent.current, agent.count_flows, lambda: agent.swept_at_check)
        self._agent = agent

    async def check(self) -> None:
        self._agent.swept_at_check = self._agent.status().sweeps
        await super().check()


class _View:
    """The same by the names of the agent's parts."""

    def __init__(self, agent: Agent) -> None:
        self._agent = agent

    def __getattr__(self, name: str) -> Any:
        return getattr(self._agent, name)

    def counters(self, *, backends: bool = True) -> Counters:
        """Those that a test gave."""
        counted = self._agent.counters
        return counted if backends else replace(counted, backends={})

    def handshakes(self, backends: Sequence[int]) -> dict[int, Handshakes]:
        """Those that a test gave."""
        return {ident: each for ident, each in self.timed.items() if ident in backends}

    def egress_paths(self) -> EgressOf:
        return self._agent.backend_egress()

    def now(self) -> Status:
        return self._agent.status()

    def pieces(self) -> Iterable[str]:
        return self._agent.pieces

    async def peers(self) -> Sequence[BgpPeerRow]:
        return self._agent.peers


@contextlib.contextmanager
def served(
    agent: Agent,
    path: Path | str,
    metrics_address: str = "",
    server: type[ApiServer] = ApiServer,
    ui_hosts: Sequence[str] | None = None,
) -> Iterator[ApiServer]:
    """Serve until the end of the block; the loop runs in a thread, so that blocking clients can be used."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    running = server(agent.capabilities(), lambda: {"node-name": "n1"}, str(path), metrics_address, ui_hosts)
    try:
        asyncio.run_coroutine_threadsafe(running.start(), loop).result(10)
        yield running
    finally:
        asyncio.run_coroutine_threadsafe(running.close(), loop).result(10)
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()
