"""The agent as the API and the metrics see it."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

import lbagent
from lbagent.agent.drains import Drains
from lbagent.agent.operator_states import OperatorStates
from lbagent.api.agent_api import SetBy
from lbagent.api.target_rows import problems_of_targets, target_status
from lbagent.api.types import (
    ApilbRow,
    BgpPeerRow,
    ConditionStatus,
    DrainRow,
    FailingService,
    MapUsage,
    SourceStatus,
    Status,
    VipAnswer,
    VipRow,
)
from lbagent.apilb.native import pool_rows
from lbagent.checks.table import current_texts
from lbagent.config import options
from lbagent.errors import TimedOut
from lbagent.model.address import L3n4Addr
from lbagent.model.backend import BackendState
from lbagent.model.fair_share import guard_of
from lbagent.model.state import State
from lbagent.observe import metrics
from lbagent.observe.kube_proxy_metrics import KubeProxySample
from lbagent.targets.data_plane import EgressOf, FlowCounts

if TYPE_CHECKING:
    from lbagent.agent.components import AgentComponents
    from lbagent.announce.announcer import Announcer
    from lbagent.model.message import Message
    from lbagent.objects.source import Source

MAX_BACKEND_SERIES = 5000  # beyond it a scrape would cost more than it tells: `backend list` has them all
MAX_SHOWN_FAILING = 100
MAX_SHOWN_DRAINS = 1000  # in `status`: `backend list` has them all
MAX_SHOWN_MESSAGES = 1000  # of a source


class AgentFacade:
    """Implements api.agent_api.AgentApi, and what api/api_routes.py names, over the agent's components."""

    def __init__(self, components: AgentComponents) -> None:
        self._components = components
        self._started_at = time.time()
        self._counted = (State(), 0)  # a State and how many Services it has
        self._operator_states = OperatorStates(components)
        self.drain_follower = Drains(
            components.operator,
            lambda: components.plane.current_state,
            self.count_flows,
            lambda: components.plane.sweeps,
            self._failing_backends,
        )

    def state(self) -> State:
        """Return the State that is in the maps; before the first pass what an earlier agent left there."""
        return self._components.plane.current_state

    def external_clusterip(self) -> bool:
        """Return whether sources outside the node reach ClusterIPs."""
        return self._components.config.external_clusterip

    async def wait_change(self, generation: int, timeout_s: float) -> int:
        """Return the generation in the maps as soon as it differs, at the latest after `timeout_s`."""
        plane = self._components.plane
        try:
            async with asyncio.timeout(timeout_s):
                return await plane.changed_from(generation)
        except TimeoutError:
            return plane.generation

    async def verify(self) -> Sequence[str]:
        """Return in what the maps differ from what was written and is wanted. Raises KernelError, and TimedOut before the start."""
        plane = self._components.plane
        if not plane.first_pass.is_set():
            raise TimedOut("the agent has written no state yet; `lbagent status` says what it waits for")
        return await plane.verify()

    async def count_flows(self) -> FlowCounts:
        """Count live flows now; where that takes long or fails, return the last counts with their age."""
        return await self._components.plane.count_flows()

    def backend_egress(self) -> EgressOf:
        """Return a function that returns, as of now, how packets get to a backend."""
        return self._components.plane.egress_paths()

    # --- states that the operator sets (operator_states.py) ---

    def backends_of_pod(self, pod: str) -> Sequence[L3n4Addr]:
        """Return the backends of a Pod that are in the maps. Raises NotFound when it has none."""
        return self._operator_states.backends_of_pod(pod)

    async def states_set(self) -> Mapping[L3n4Addr, SetBy]:
        """Return what set the state of each backend whose state was set."""
        return await self._operator_states.states_set()

    def set_by_operator(self) -> Collection[L3n4Addr]:
        """Return the addresses for which the operator set a state, also those that no service has."""
        return self._components.operator.addresses

    async def set_state(
        self,
        addresses: Sequence[L3n4Addr],
        state: BackendState,
        *,
        pods: Sequence[str] = (),
        spare_last: bool = False,
    ) -> None:
        """Write the state the operator sets and return when it is in the maps."""
        await self._operator_states.set_state(addresses, state, pods, spare_last=spare_last)

    async def clear_state(self, addresses: Sequence[L3n4Addr], *, pods: Sequence[str] = ()) -> list[str]:
        """Forget the state the operator set and return when it is in the maps."""
        return await self._operator_states.clear_state(addresses, pods)

    async def start_drain(
        self,
        addresses: Sequence[L3n4Addr],
        timeout_s: float,
        *,
        pods: Sequence[str] = (),
        further: Sequence[L3n4Addr] = (),
        spare_last: bool = False,
    ) -> None:
        """Set maintenance and drain these backends and `further` ones (drains.py)."""
        of_pods = [address for pod in pods for address in self.backends_of_pod(pod)]
        drains = self.drain_follower.begun(dict.fromkeys((*addresses, *of_pods, *further)), timeout_s)
        await self._operator_states.set_state(
            addresses, BackendState.MAINTENANCE, pods, spare_last=spare_last, drains=drains
        )
        await self.drain_follower.check()

    def drains(self) -> Sequence[DrainRow]:
        """Return the drains as they were at the last count."""
        return self.drain_follower.rows()

    async def check_drains(self) -> Sequence[DrainRow]:
        """Count flows and return the drains."""
        await self.drain_follower.check()
        return self.drains()

    def _failing_backends(self) -> Collection[L3n4Addr]:
        """Return the backends of frontends whose last write failed: the maps may still give them new flows."""
        plane = self._components.plane
        rows = (plane.current_state.by_frontend.get(frontend) for frontend in plane.failing)
        return {backend.address for svc in rows if svc is not None for backend in svc.backends}

    # --- how the agent is ---

    def status(self) -> Status:
        """Return how the agent is, now."""
        components, state, shown = self._components, self._components.plane.state, self._components.plane.status()
        return Status(
            ready=components.ready,
            version=lbagent.__version__,
            pid=os.getpid(),
            node=components.config.name_of_node,
            started_at=self._started_at,
            generation=state.generation,
            services=self._count_services(state),
            frontends=shown.frontends,
            backends=shown.backends,
            attach=shown.attach,
            bpffs=shown.bpffs,
            artifact=shown.artifact,
            sweeps=shown.sweeps,
            sources=self._sources(),
            targets=[target_status(runner) for runner in components.loop.runners],
            devices=shown.devices,
            cgroups=shown.cgroups,
            outputs=shown.outputs,
            maps=[self._map_usage(name, used, size) for name, (used, size) in sorted(shown.usage.items())],
            drains=self.drain_follower.rows()[:MAX_SHOWN_DRAINS],
            failing=self._failing(state),
            conditions=self._conditions(),
            problems=self._problems(),
        )

    def _map_usage(self, name: str, used: int, size: int) -> MapUsage:
        full = size and used >= guard_of(size)
        return MapUsage(name, used, size, self._components.plane.largest_namespaces(name) if full else {})

    def _count_services(self, state: State) -> int:
        """Return how many Services a State has: counted once, as probes ask each moment."""
        if self._counted[0] is not state:
            self._counted = (state, len({svc.name for svc in state.services}))
        return self._counted[1]

    def _sources(self) -> list[SourceStatus]:
        counts = self._components.loop.inbox.counts
        return [
            SourceStatus(
                source.name,
                source.synced.is_set(),
                counts[source.name].objects,
                counts[source.name].generation,
                _shown(source.problems()),
            )
            for source in self._components.sources
        ]

    def _sample(self, source: Source) -> metrics.SourceSample:
        messages = source.problems()
        refused = sum(not message.warning for message in messages)
        objects = self._components.loop.inbox.counts[source.name].objects
        return metrics.SourceSample(
            source.name, source.synced.is_set(), objects, refused, len(messages) - refused, source.trusted, source.held
        )

    def _conditions(self) -> list[ConditionStatus]:
        monitor = self._components.conditions
        return [
            ConditionStatus(
                each.name,
                each.subject,
                each.text,
                each.remedy,
                standing.since,
                each.mended,
                each.severity.value,
            )
            for standing in (monitor.standing if monitor else ())
            for each in (standing.condition,)
        ]

    def _failing(self, state: State) -> list[FailingService]:
        now = time.monotonic()
        out = []
        for frontend, failure in list(self._components.plane.failing.items())[:MAX_SHOWN_FAILING]:
            svc = state.by_frontend.get(frontend) or self._components.plane.wanted.by_frontend.get(frontend)
            owner = str(svc.name) if svc else ""
            out.append(
                FailingService(
                    frontend.map_text(),
                    owner,
                    str(failure.error),
                    max(0.0, failure.retry_at - now),
                )
            )
        return out

    def _problems(self) -> list[str]:
        components = self._components
        out = [text for text in (components.loop.waiting, components.plane.waiting) if text]
        out += [str(message) for message in components.loop.messages]
        out += problems_of_targets(components.loop.runners, components.plane)
        out += components.plane.problems()
        more = len(components.plane.failing) - MAX_SHOWN_FAILING
        if more > 0:
            out.append(f"{more} more frontends are failing")
        return out + current_texts(components, "state-dir-unusable", "announcing-failed", "setting-not-in-force")

    def vips(self) -> Sequence[VipRow]:
        """Return the addresses that are to be announced."""
        from lbagent.announce.vip_rows import require_announcer, vip_rows

        return vip_rows(require_announcer(self._components.announcer))

    def why_vip(self, name: str) -> VipAnswer:
        """Return why an address, or the addresses of a Service, are announced or not."""
        from lbagent.announce.vip_rows import require_announcer, why

        return why(require_announcer(self._components.announcer), name)

    async def bgp_peers(self) -> Sequence[BgpPeerRow]:
        """Return the BGP sessions of this node, asked of BIRD now."""
        from lbagent.announce.vip_rows import require_announcer

        require_announcer(self._components.announcer)
        speaker = self._components.speaker
        return await speaker.peers() if speaker else []

    async def apilb(self) -> Sequence[ApilbRow]:
        """Return the instances of native mode that this host has."""
        return await pool_rows.rows(self._components.native)

    def settings(self) -> Mapping[str, object]:
        """Return the configuration in force, by key."""
        config = self._components.config
        return {option.key: getattr(config, option.field) for option in options()}

    def metrics(self) -> Iterable[str]:
        """Yield the Prometheus text."""
        components, plane = self._components, self._components.plane
        state, counts = plane.state, plane.counts
        counted = plane.counters(backends=plane.backend_count() <= MAX_BACKEND_SERIES)
        times = os.times()
        yield from metrics.render(
            metrics.Snapshot(
                version=lbagent.__version__,
                ready=components.ready,
                state=state,
                states=plane.backend_states(),
                reasons=counted.reasons,
                services=counted.services,
                backends=counted.backends,
                snat_reclaimed=counted.snat_reclaimed,
                snat_ports=counted.snat_ports,
                snat_addresses=counted.snat_addresses,
                live_flows=counted.live_flows,
                draining=self.drain_follower.flows_left(MAX_BACKEND_SERIES),
                maps=plane.usage(),
                conditions=components.conditions.counts() if components.conditions else {},
                severities=components.conditions.severities() if components.conditions else {},
                failing=len(components.plane.failing),
                restored=plane.retained,
                conflicts=sum(not message.warning for message in components.loop.messages),
                sync_duration_s=counts.last_duration_s,
                syncs=counts.syncs,
                sync_errors=counts.errors,
                map_writes=counts.writes,
                sources=tuple(map(self._sample, components.sources)),
                devices=plane.devices_attached(),
                send_errors=counted.send_errors,
                bgp_sessions=components.speaker.sessions_up if components.speaker else {},
                started_at=self._started_at,
                resident_bytes=metrics.resident_bytes(),
                cpu_s=times.user + times.system,
                kube_proxy=_kube_proxy_sample(components),
                announced=_announced_vips(components.announcer),
                takeovers=components.announcer.takeovers if components.announcer else None,
                apilb=pool_rows.sample(components.native),
            )
        )


def _kube_proxy_sample(components: AgentComponents) -> KubeProxySample:
    servers = components.node_servers
    return KubeProxySample(components.loop.record, servers.health.codes if servers else {})


def _announced_vips(announcer: Announcer | None) -> Mapping[tuple[str, str], bool]:
    if announcer is None:
        return {}
    from lbagent.announce.vip_rows import announced_vips  # an agent without --announce has no use for it in memory

    return announced_vips(announcer)


def _shown(messages: Sequence[Message]) -> list[str]:
    """Return what is wrong, at most `MAX_SHOWN_MESSAGES` lines of it."""
    more = len(messages) - MAX_SHOWN_MESSAGES
    texts = [str(message) for message in messages[:MAX_SHOWN_MESSAGES]]
    return [*texts, f"{more} more messages"] if more > 0 else texts
