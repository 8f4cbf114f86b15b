"""The parts of the running agent: each is built with what it needs, and bound to the rows that show it (api/capabilities)."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, NamedTuple, cast

from lbagent.agent.core_parts import CoreParts
from lbagent.agent.migration import Migration
from lbagent.api.agent_status import AgentStatus
from lbagent.api.backend_requests import BackendRequests
from lbagent.api.capabilities import (
    bgp,
    data_planes,
    kube_proxy,
    metrics,
    migration_requests,
    native_pools,
    node_backends,
    other_proxy,
    services,
    status,
    sync,
    traffic,
    vips,
)
from lbagent.api.capabilities.kube_proxy import ProxyProgress
from lbagent.api.capabilities.sync import SyncParts
from lbagent.api.capability import Bound, bind
from lbagent.api.drains import Drains
from lbagent.api.listed_services import ServedServices
from lbagent.api.metrics_text import MetricsText
from lbagent.api.operator_states import OperatorStates
from lbagent.checks.condition_monitor import ConditionMonitor
from lbagent.checks.table import current_texts, running_checks
from lbagent.healthz.node_servers import NodeServers
from lbagent.model.address import L3n4Addr
from lbagent.targets.data_plane import DataPlane

if TYPE_CHECKING:
    from lbagent.agent.announcing import Announcing
    from lbagent.announce.announcer import Announcer
    from lbagent.apilb.native.pool_rows import NativePools
    from lbagent.config import Config
    from lbagent.targets.comparison.comparing_plane import ComparingPlane


class CheckedAgent:
    """What checks of the agent read (checks/running_agent.py)."""

    def __init__(self, core: CoreParts, node_servers: NodeServers, announcer: Announcer | None) -> None:
        self._in_force = core.in_force
        self.sources, self.loop, self.plane, self.owners = core.sources, core.loop, core.plane, core.owners
        self.node_servers, self.announcer = node_servers, announcer

    @property
    def config(self) -> Config:
        """The settings in force."""
        return self._in_force.config

    @property
    def problems(self) -> Mapping[str, str]:
        """Why single settings are not in force."""
        return self._in_force.problems


class Parts(NamedTuple):
    """The parts that the agent starts. `announcing` is there with --announce, `native` with --apilb."""

    core: CoreParts
    migration: Migration
    node_servers: NodeServers
    states: OperatorStates
    drains: Drains
    status: AgentStatus
    announcing: Announcing | None
    native: NativePools | None


def build_parts(
    core: CoreParts, requests: Migration, announcing: Announcing | None, native: NativePools | None
) -> Parts:
    """Build what serves requests and looks after the agent."""
    config, loop, plane, sources = core.in_force.config, core.loop, core.plane, core.sources

    def is_ready() -> bool:
        return agent_status.ready

    node_servers = NodeServers(
        config, loop, plane, sources, lambda: loop.local_node().node_port_addresses, core.events, is_ready
    )
    states = OperatorStates(
        plane,
        loop,
        sources,
        core.operator,
        state_dir=config.state_dir,
        node_name=config.name_of_node,
        events=core.events,
    )
    drains = Drains(
        core.operator,
        lambda: plane.current_state,
        plane.count_flows,
        lambda: plane.sweeps,
        lambda: _failing_backends(plane),
    )
    checked = CheckedAgent(core, node_servers, announcing.announcer if announcing else None)
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
    return Parts(core, requests, node_servers, states, drains, agent_status, announcing, native)


def _failing_backends(plane: DataPlane) -> Collection[L3n4Addr]:
    """Return the backends of frontends whose last write failed: the maps may still give them new flows."""
    frontends = (plane.current_state.by_frontend.get(frontend) for frontend in plane.failing)
    return {backend.address for svc in frontends if svc is not None for backend in svc.backends}


def capabilities(parts: Parts) -> list[Bound]:
    """Return what this agent can do, each with the part that has its values, in the order of /metrics."""
    in_force, loop, plane = parts.core.in_force, parts.core.loop, parts.core.plane
    codes = parts.node_servers.health.codes
    bound = [
        bind(status.CAPABILITY, parts.status),
        bind(sync.CAPABILITY, SyncParts(plane, loop, parts.core.sources)),
        bind(data_planes.CAPABILITY, loop.runners),
        bind(kube_proxy.CAPABILITY, ProxyProgress(loop.record, codes, lambda: plane.state.services)),
        bind(traffic.CAPABILITY, plane),
    ]
    if in_force.config.shadow:
        bound.append(bind(other_proxy.CAPABILITY, cast("ComparingPlane", plane).compared))
    bound.append(bind(migration_requests.CAPABILITY, parts.migration))
    if parts.announcing is not None:
        bound.append(bind(bgp.CAPABILITY, parts.announcing.speaker))
        bound.append(bind(vips.CAPABILITY, parts.announcing.announcer))
    if parts.native is not None:
        bound.append(bind(native_pools.CAPABILITY, parts.native))
    bound.append(bind(services.CAPABILITY, ServedServices(plane, lambda: in_force.config.external_clusterip)))
    bound.append(bind(node_backends.CAPABILITY, BackendRequests(plane, parts.states, parts.drains)))
    return [*bound, bind(metrics.CAPABILITY, MetricsText(bound))]
