"""The agent as the API and the metrics see it."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import lbagent
from lbagent.agent.device_keeper import unattached_outputs
from lbagent.agent.snat_ports import short_of_ports
from lbagent.api.types import DeviceStatus, FailingService, MapUsage, SourceStatus, Status, TargetStatus
from lbagent.errors import NotFound
from lbagent.maps.lbmaps import backend_counter, service_counter
from lbagent.maps.reasons import Event, Reason
from lbagent.model.address import L3n4Addr
from lbagent.model.backend import BackendState
from lbagent.model.state import State
from lbagent.observe import metrics
from lbagent.resolve.pod_backends import backends_of_pod

if TYPE_CHECKING:
    from lbagent.agent.components import AgentComponents
    from lbagent.objects.records import Message
    from lbagent.objects.source import Source
    from lbagent.sync.runner import TargetRunner
    from lbagent.sync.target.bpf_target import BpfTarget

MAX_BACKEND_SERIES = 5000  # beyond it a scrape would cost more than it tells: `backend list` has them all
MAX_SHOWN_FAILING = 100
MAX_SHOWN_MESSAGES = 1000  # of a source
PAGE = os.sysconf("SC_PAGE_SIZE")


class AgentFacade:
    """Implements api.agent_api.AgentApi over the agent's components."""

    def __init__(self, components: AgentComponents) -> None:
        self._components = components
        self._started_at = time.time()

    def state(self) -> State:
        """Return the State that is in the maps; before the first pass what an earlier agent left there."""
        return self._components.bpf.current_state

    def live_flows(self) -> Mapping[int, int] | None:
        """Return live flows by backend id as of the last sweep."""
        return self._components.sweeper.live if self._components.sweeper else None

    def backends_of_pod(self, pod: str) -> Sequence[L3n4Addr]:
        """Return the backends of a Pod that are in the maps. Raises NotFound when it has none."""
        known = self.state().backends
        snapshots = (source.snapshot() for source in self._components.sources)
        found = [address for address in backends_of_pod(snapshots, pod) if address in known]
        if not found:
            raise NotFound(f"no service has a backend of the Pod {pod}; nothing was changed")
        return found

    async def set_state(self, addresses: Sequence[L3n4Addr], state: BackendState, *, pods: Sequence[str] = ()) -> None:
        """Write the state the operator sets and return when it is in the maps. Raises NotFound, InvalidTransition."""
        known = self.state().backends
        of_pods = [address for pod in pods for address in self.backends_of_pod(pod)]
        for address in (*addresses, *of_pods):
            backend = known.get(address)
            if backend is None:
                raise NotFound(f"no service has a backend {address.with_protocol()}; nothing was changed")
            backend.with_state(state)
        await self._components.operator.set_states(addresses, state, pods=pods, backends_of_pods=of_pods)
        await self._components.loop.settled(self._components.bpf)
        failing = self._components.bpf.failing
        wanted = {*addresses, *of_pods}
        for frontend, failure in failing.items():
            svc = self.state().by_frontend.get(frontend)
            if svc is not None and any(backend.address in wanted for backend in svc.backends):
                raise failure.error

    async def wait_change(self, generation: int, timeout_s: float) -> int:
        """Return the generation in the maps as soon as it differs, at the latest after `timeout_s`."""
        bpf = self._components.bpf
        try:
            async with asyncio.timeout(timeout_s):
                return await bpf.changed_from(generation)
        except TimeoutError:
            return bpf.generation

    def status(self) -> Status:
        """Return how the agent is, now."""
        components, state = self._components, self._components.bpf.state
        usage = self._usage()  # also of what an earlier agent left, without an index
        return Status(
            ready=components.ready,
            version=lbagent.__version__,
            pid=os.getpid(),
            node=components.config.name_of_node,
            started_at=self._started_at,
            generation=state.generation,
            services=len({svc.name for svc in state.services}),
            frontends=components.bpf.frontends,
            backends=usage["lb4_backend"][0] + usage["lb6_backend"][0],
            attach=components.config.attach,
            bpffs=components.config.bpffs,
            artifact=components.datapath.key if components.datapath else "",
            sweeps=components.sweeper.sweeps if components.sweeper else 0,
            sources=self._sources(),
            targets=[target_status(runner) for runner in components.loop.runners],
            devices=self._devices(),
            maps=[MapUsage(name, used, size) for name, (used, size) in sorted(usage.items())],
            failing=self._failing(state),
            problems=self._problems(),
        )

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
            source.name, source.synced.is_set(), objects, refused, len(messages) - refused, source.trusted
        )

    def _devices(self) -> list[DeviceStatus]:
        keeper = self._components.devices
        if keeper is None:
            return []
        hooks: dict[str, list[str]] = {name: [] for name in self._components.config.device}
        for attachment in keeper.attached:
            hooks.setdefault(attachment.target.name, []).append(str(attachment.hook))
        out = []
        for name, words in hooks.items():
            link = self._components.network.network.by_name(name)
            out.append(DeviceStatus(name, link.index if link else 0, words, keeper.problems.get(name, "")))
        return out

    def _usage(self) -> dict[str, tuple[int, int]]:
        usage = self._components.bpf.usage()
        usage["lb_nexthop"] = (self._components.network.table.used, self._components.network.table.capacity)
        if self._components.sweeper:
            usage |= self._components.sweeper.usage()
        return usage

    def _failing(self, state: State) -> list[FailingService]:
        now = time.monotonic()
        out = []
        for frontend, failure in list(self._components.bpf.failing.items())[:MAX_SHOWN_FAILING]:
            svc = state.by_frontend.get(frontend) or self._components.bpf.wanted.by_frontend.get(frontend)
            owner = str(svc.name) if svc else ""
            out.append(
                FailingService(
                    frontend.with_protocol().replace("/NONE", "/ANY"),
                    owner,
                    str(failure.error),
                    max(0.0, failure.retry_at - now),
                )
            )
        return out

    def _problems(self) -> list[str]:
        components = self._components
        out = [text for text in (components.loop.waiting, components.bpf.waiting) if text]
        out += [str(message) for message in components.loop.messages]
        out += problems_of_targets(components.loop.runners, components.bpf)
        if components.devices:
            out += [text for name, text in components.devices.problems.items() if name not in components.config.device]
            attached = {item.target.name for item in components.devices.attached}
            for name in unattached_outputs(components.network.network, components.network.finder.outputs, attached):
                out.append(
                    f"remote backends are reached through {name}, where no program is attached: their replies are not"
                    f" translated; add --device {name}"
                )
        more = len(components.bpf.failing) - MAX_SHOWN_FAILING
        if more > 0:
            out.append(f"{more} more frontends are failing")
        if components.sweeper:
            out += components.sweeper.problems()
            ports = _ports(components.config.snat_port_range)
            out += short_of_ports(components.bpf.state, components.sweeper.live or {}, ports)
        if reason := unwritable(components.config.state_dir):
            folder = components.config.state_dir
            out.append(f"--state-dir {folder} {reason}: set-state is refused, and no copies of good manifests are kept")
        return out + components.problems

    def metrics(self) -> Iterable[str]:
        """Yield the Prometheus text."""
        components, state = self._components, self._components.bpf.state
        counters = components.maps.counters
        services = [svc.id for svc in state.services if svc.id]
        backends = (
            [] if components.bpf.backends > MAX_BACKEND_SERIES else [backend.id for backend in state.backends.values()]
        )
        times = os.times()
        counts = components.bpf.counts
        yield from metrics.render(
            metrics.Snapshot(
                version=lbagent.__version__,
                ready=components.ready,
                state=state,
                states=components.bpf.backend_states(),
                reasons=dict(zip(_REASONS, counters(_REASONS), strict=True)),
                services=dict(zip(services, counters([service_counter(i) for i in services]), strict=True)),
                backends=dict(zip(backends, counters([backend_counter(i) for i in backends]), strict=True)),
                snat_reclaimed=counters([Event.SNAT_RECLAIMED])[0][0],
                snat_ports=_ports(components.config.snat_port_range),
                live_flows={} if not backends else self.live_flows() or {},
                maps=self._usage(),
                failing=len(components.bpf.failing),
                restored=components.bpf.retained,
                conflicts=sum(not message.warning for message in components.loop.messages),
                sync_duration_s=counts.last_duration_s,
                syncs=counts.syncs,
                sync_errors=counts.errors,
                map_writes=counts.writes,
                sources=tuple(map(self._sample, components.sources)),
                devices={device.name: bool(device.hooks) and not device.problem for device in self._devices()},
                started_at=self._started_at,
                resident_bytes=_resident_bytes(),
                cpu_s=times.user + times.system,
            )
        )


def target_status(runner: TargetRunner) -> TargetStatus:
    """Return how a target is, now."""
    target = runner.target
    return TargetStatus(
        target.name,
        target.ready.is_set(),
        runner.in_sync,
        target.generation,
        len(target.failing),
        target.waiting,
        runner.error,
    )


def problems_of_targets(runners: Iterable[TargetRunner], bpf: BpfTarget) -> Iterator[str]:
    """Yield what is wrong with the targets that have no lines of their own in the status."""
    for runner in runners:
        text = runner.error or runner.target.waiting
        if text and runner.target is not bpf:
            yield f"target {runner.target.name}: {text}"


def _shown(messages: Sequence[Message]) -> list[str]:
    """Return what is wrong, at most `MAX_SHOWN_MESSAGES` lines of it."""
    more = len(messages) - MAX_SHOWN_MESSAGES
    texts = [str(message) for message in messages[:MAX_SHOWN_MESSAGES]]
    return [*texts, f"{more} more messages"] if more > 0 else texts


def unwritable(folder: str) -> str:
    """Return why nothing can be written below a folder that may not be there yet; '' when it can."""
    path = os.path.abspath(folder)
    while not os.path.lexists(path):
        path = os.path.dirname(path)
    if not os.path.isdir(path):
        return f"cannot be used ({path} is not a folder)"
    return "" if os.access(path, os.W_OK | os.X_OK) else f"cannot be written ({path})"


_REASONS = [reason for reason in Reason if reason]


def _ports(first_and_last: tuple[int, int]) -> int:
    first, last = first_and_last
    return last - first + 1


def _resident_bytes() -> int:
    with open("/proc/self/statm", encoding="ascii") as stream:
        return int(stream.read().split()[1]) * PAGE
