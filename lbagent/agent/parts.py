"""The parts of the running agent: each is built with what it needs, and bound to the rows that show it (api/capabilities)."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, NamedTuple, cast

from msgspec.structs import replace

from lbagent.agent.core_parts import CoreParts
from lbagent.agent.layer_settings import resolve_options
from lbagent.agent.migration import Migration
from lbagent.api.agent_status import AgentStatus
from lbagent.api.backend_requests import BackendRequests
from lbagent.api.capabilities import (
    backend_checks,
    bgp,
    data_planes,
    explain,
    generations,
    kube_proxy,
    metrics,
    migration_requests,
    native_pools,
    node_backends,
    nodes,
    other_proxy,
    sampling,
    second_list,
    services,
    status,
    summary,
    sync,
    traffic,
    vips,
)
from lbagent.api.capabilities.kube_proxy import ProxyProgress
from lbagent.api.capabilities.sync import SyncParts
from lbagent.api.capabilities.traffic import PlaneReading
from lbagent.api.capability import Bound, bind
from lbagent.api.checked_backends import CheckedBackends
from lbagent.api.drains import Drains
from lbagent.api.explain_requests import ExplainRequests
from lbagent.api.listed_services import ServedServices
from lbagent.api.metrics_text import MetricsText
from lbagent.api.node_summary import NodeSummary
from lbagent.api.object_differences import VerifiedPlanes
from lbagent.api.operator_states import OperatorStates
from lbagent.checks.condition_monitor import ConditionMonitor
from lbagent.checks.table import current_texts, running_checks
from lbagent.healthz.node_servers import NodeServers
from lbagent.model.address import L3n4Addr
from lbagent.resolve import Options
from lbagent.sync.object_verification import ObjectVerification
from lbagent.targets.data_plane import SampledPlane, ShownState
from lbagent.targets.explanation import ExplainingPlane
from lbagent.targets.renderers import chosen

if TYPE_CHECKING:
    from lbagent.agent.announcing import Announcing
    from lbagent.announce.announcer import Announcer
    from lbagent.apilb.native.pool_rows import NativePools
    from lbagent.config import Config
    from lbagent.liveness.node_liveness import NodeLiveness
    from lbagent.targets.comparison.comparing_plane import ComparingPlane


class CheckedAgent:
    """What checks of the agent read (checks/running_agent.py)."""

    def __init__(
        self,
        core: CoreParts,
        node_servers: NodeServers,
        announcer: Announcer | None,
        verification: ObjectVerification,
        liveness: NodeLiveness | None,
    ) -> None:
        self._in_force = core.in_force
        self.sources, self.loop, self.plane, self.owners = core.sources, core.loop, core.plane, core.owners
        self.translating, self.health = core.translating, core.health
        self.node_servers, self.announcer, self.verification = node_servers, announcer, verification
        self.liveness = liveness

    @property
    def config(self) -> Config:
        """The settings in force."""
        return self._in_force.config

    @property
    def problems(self) -> Mapping[str, str]:
        """Why single settings are not in force."""
        return self._in_force.problems


class Parts(NamedTuple):
    """The parts that the agent starts: `announcing` with --announce, `native` with --apilb, `liveness` with --node-liveness."""

    core: CoreParts
    migration: Migration
    node_servers: NodeServers
    states: OperatorStates
    drains: Drains
    status: AgentStatus
    announcing: Announcing | None
    native: NativePools | None
    verification: ObjectVerification
    liveness: NodeLiveness | None


def build_parts(
    core: CoreParts,
    requests: Migration,
    announcing: Announcing | None,
    native: NativePools | None,
    liveness: NodeLiveness | None = None,
) -> Parts:
    """Build what serves requests and looks after the agent."""
    config, loop, plane, sources = core.in_force.config, core.loop, core.shown, core.sources

    def why_not_ready() -> str:
        return agent_status.why_not_ready

    node_servers = NodeServers(
        config,
        loop,
        plane,
        core.translating,
        sources,
        lambda: loop.local_node().node_port_addresses,
        core.events,
        why_not_ready,
    )
    states = OperatorStates(
        plane,
        core.translating,
        loop,
        sources,
        core.operator,
        state_dir=config.state_dir,
        node_name=config.name_of_node,
        events=core.events,
        failed=core.health.failed,
    )
    drains = Drains(
        core.operator,
        lambda: plane.current_state,
        plane.count_flows,
        lambda: plane.sweeps,
        lambda: _failing_backends(plane),
    )
    verification = ObjectVerification(
        loop,
        sources,
        lambda: core.in_force.config.verify_every,
        {each.name: each.families for each in chosen(config)},
    )
    checked = CheckedAgent(core, node_servers, announcing.announcer if announcing else None, verification, liveness)
    agent_status = AgentStatus(
        config.name_of_node,
        plane,
        core.translating,
        loop,
        sources,
        drains,
        ConditionMonitor(running_checks(checked, core.planes)),
        lambda: current_texts(checked, "state-dir-unusable", "announcing-failed", "setting-not-in-force"),
    )
    return Parts(core, requests, node_servers, states, drains, agent_status, announcing, native, verification, liveness)


def _failing_backends(plane: ShownState) -> Collection[L3n4Addr]:
    """Return the backends of frontends whose last write failed: the maps may still give them new flows."""
    frontends = (plane.current_state.by_frontend.get(frontend) for frontend in plane.failing)
    return {backend.address for svc in frontends if svc is not None for backend in svc.backends}


def _explain_requests(core: CoreParts) -> list[ExplainRequests]:
    """Return the requests of the first data plane that can explain; none where none can."""

    def options() -> Options:
        return replace(resolve_options(core.in_force.config, core.plane.network), keep_existing=False)

    return [ExplainRequests(each, options) for each in core.planes if isinstance(each, ExplainingPlane)][:1]


def capabilities(parts: Parts) -> list[Bound]:
    """Return what this agent can do, each with the part that has its values, in the order of /metrics."""
    in_force, loop, plane = parts.core.in_force, parts.core.loop, parts.core.shown
    codes = parts.node_servers.health.codes
    bound = [
        bind(status.CAPABILITY, parts.status),
        bind(sync.CAPABILITY, SyncParts(plane, loop, parts.core.sources)),
        bind(generations.CAPABILITY, parts.core.history),
        bind(data_planes.CAPABILITY, loop.runners),
        bind(second_list.CAPABILITY, VerifiedPlanes(parts.verification, loop.runners)),
        bind(kube_proxy.CAPABILITY, ProxyProgress(loop.record, codes, lambda: plane.state.services)),
        bind(traffic.CAPABILITY, plane),
    ]
    if in_force.config.shadow:
        bound.append(bind(other_proxy.CAPABILITY, cast("ComparingPlane", parts.core.plane).compared))
    bound.append(bind(migration_requests.CAPABILITY, parts.migration))
    if parts.announcing is not None:
        bound.append(bind(bgp.CAPABILITY, parts.announcing.speaker))
        bound.append(bind(vips.CAPABILITY, parts.announcing.announcer))
    if parts.liveness is not None:
        bound.append(bind(nodes.CAPABILITY, parts.liveness))
    if parts.native is not None:
        bound.append(bind(native_pools.CAPABILITY, parts.native))
    bound.append(bind(services.CAPABILITY, ServedServices(plane, lambda: in_force.config.external_clusterip)))
    health = parts.core.health
    checked = CheckedBackends(health.results, lambda: loop.checked, lambda: loop.panics, health.passive.times_out)
    backends = BackendRequests(plane, parts.states, parts.drains, checked, parts.native)
    bound.append(bind(node_backends.CAPABILITY, backends))
    bound.append(bind(backend_checks.CAPABILITY, checked))
    bound += [bind(explain.CAPABILITY, requests) for requests in _explain_requests(parts.core)]
    sampled = [each.sampling for each in parts.core.planes if isinstance(each, SampledPlane)][:1]
    bound += [bind(sampling.CAPABILITY, streams) for streams in sampled]
    node = NodeSummary(parts.status.now, lambda: PlaneReading(plane), parts.core.history.newest)
    return [*bound, bind(summary.CAPABILITY, node), bind(metrics.CAPABILITY, MetricsText(bound))]
