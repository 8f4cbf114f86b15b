"""`lbagent status`: how the agent is, now. The field names are a contract: scripts read them."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from itertools import islice

from msgspec import Struct, field

import lbagent
from lbagent.api.drains import DrainRow, Drains
from lbagent.checks.condition_monitor import ConditionMonitor
from lbagent.model.fair_share import guard_of
from lbagent.model.message import Message
from lbagent.model.state import State
from lbagent.objects.source import Source
from lbagent.sync.loop import SyncLoop
from lbagent.sync.runner import TargetRunner
from lbagent.sync.target_protocol import Target
from lbagent.targets.data_plane import CgroupStatus, DeviceStatus, OutputStatus, ShownPlane, self_tests

MAX_SHOWN_FAILING = 100
MAX_SHOWN_DRAINS = 1000  # `backend list` has them all
MAX_SHOWN_EXCLUDED = 1000
MAX_SHOWN_MESSAGES = 1000  # of a source


class SourceStatus(Struct):
    """One source of objects."""

    name: str  # the folder, the operator's file
    synced: bool  # the first full list was read
    objects: int
    generation: int = 0  # how often its objects changed
    messages: list[str] = field(default_factory=list)  # what it refused, with file, object and field


class TargetStatus(Struct):
    """One place where the State is made true: a data plane (`bpf`)."""

    name: str
    ready: bool  # the first full State is in force
    in_sync: bool  # the latest State is in force, whole
    generation: int  # of the State in force
    failing: int = 0  # frontends whose last write failed
    waiting: str = ""  # why it is not ready
    error: str = ""  # what fails now


class MapUsage(Struct, gc=False):
    """How full a map is. `namespaces`: those that use most of it, where it is at least 80 % full."""

    name: str
    used: int
    size: int
    namespaces: dict[str, int] = {}


class FailingService(Struct, gc=False):
    """A frontend whose last write failed: what was written before keeps serving."""

    frontend: str
    service: str  # NAMESPACE/NAME
    error: str
    retry_in_s: float = 0.0


class ConditionStatus(Struct):
    """Something that is wrong now, or (`mended`) that was wrong a moment ago and that the agent has put right."""

    name: str  # the word of lbagent_condition
    subject: str  # the device, map, address, ... it is about
    text: str  # what is so
    remedy: str = ""  # what to do
    since: float = 0.0  # seconds since the epoch
    mended: bool = False
    severity: str = (
        "fault"  # degraded: of objects that anyone may write; fault: of the node, `lbagent status` ends with 1
    )


class Status(Struct):
    """How the agent is. `ready`: the first full State is in the kernel, of each family, and no self-test fails."""

    ready: bool
    version: str
    pid: int
    node: str
    started_at: float  # seconds since the epoch
    generation: int  # of the State that is in the maps
    services: int
    frontends: int
    backends: int
    attach: str = ""  # the --attach word
    bpffs: str = ""
    artifact: str = ""  # hash of the loaded programs
    sweeps: int = 0  # finished sweeps of the flow tables; a drain waits for one that began after it
    sources: list[SourceStatus] = field(default_factory=list)
    targets: list[TargetStatus] = field(default_factory=list)
    devices: Sequence[DeviceStatus] = field(default_factory=list)
    cgroups: Sequence[CgroupStatus] = field(default_factory=list)  # with --socket-lb: one
    outputs: Sequence[OutputStatus] = field(default_factory=list)
    maps: list[MapUsage] = field(default_factory=list)
    drains: list[DrainRow] = field(default_factory=list)  # those that go on first
    failing: list[FailingService] = field(default_factory=list)
    conditions: list[ConditionStatus] = field(default_factory=list)  # what is wrong now
    problems: list[str] = field(default_factory=list)  # sentences a person should look at; some are conditions, too
    excluded: list[str] = field(
        default_factory=list
    )  # frontends that are left alone, and by which setting or annotation


class AgentStatus:
    """Makes the status. `started`: packets meet the State in force."""

    def __init__(
        self,
        node_name: str,
        plane: ShownPlane,
        translating: Sequence[Target],
        loop: SyncLoop,
        sources: Sequence[Source],
        drains: Drains,
        conditions: ConditionMonitor,
        problem_texts: Callable[[], Sequence[str]],
    ) -> None:
        """The agent is ready when all of `translating` are, whose States `plane` shows.

        `problem_texts` returns the current findings of checks that `problems` of the status has.
        """
        self._node_name = node_name
        self._plane, self._loop, self._sources, self._drains = plane, loop, sources, drains
        self._translating, self._problem_texts = translating, problem_texts
        self._counted = (State(), 0)  # a State and how many Services it has
        self.conditions = conditions
        self.started = False
        self.started_at = time.time()

    @property
    def ready(self) -> bool:
        """Whether the first full State is in force in each data plane that translates, packets meet it, and no self-test failed."""
        return self._serves and not any(each.fault for each in self_tests(self._translating))

    @property
    def _serves(self) -> bool:
        return self.started and all(plane.ready.is_set() for plane in self._translating)

    @property
    def why_not_ready(self) -> str:
        """Why `/readyz` answers 503; empty if it answers 200: `ready`, and each self-test has run."""
        if not self._serves:
            return self._loop.waiting or self._plane.waiting or "the first full State is not in force yet"
        tests = self_tests(self._translating)
        if fault := next((each.fault for each in tests if each.fault), ""):
            return f"self-test: {fault}"
        return "" if all(each.runs for each in tests) else "the self-test has not run yet"

    def now(self) -> Status:
        """Return how the agent is."""
        state, shown = self._plane.state, self._plane.status()
        return Status(
            ready=self.ready,
            version=lbagent.__version__,
            pid=os.getpid(),
            node=self._node_name,
            started_at=self.started_at,
            generation=state.generation,
            services=self._count_services(state),
            frontends=shown.frontends,
            backends=shown.backends,
            attach=shown.attach,
            bpffs=shown.bpffs,
            artifact=shown.artifact,
            sweeps=shown.sweeps,
            sources=self._source_statuses(),
            targets=[target_status(runner) for runner in self._loop.runners],
            devices=shown.devices,
            cgroups=shown.cgroups,
            outputs=shown.outputs,
            maps=[self._map_usage(name, used, size) for name, (used, size) in sorted(shown.usage.items())],
            drains=self._drains.rows()[:MAX_SHOWN_DRAINS],
            failing=self._failing(state),
            conditions=[
                ConditionStatus(
                    each.name, each.subject, each.text, each.remedy, standing.since, each.mended, each.severity.value
                )
                for standing in self.conditions.standing
                for each in (standing.condition,)
            ],
            problems=self._problems(),
            excluded=list(islice(self._loop.excluded(), MAX_SHOWN_EXCLUDED)),
        )

    def _map_usage(self, name: str, used: int, size: int) -> MapUsage:
        full = size and used >= guard_of(size)
        return MapUsage(name, used, size, self._plane.largest_namespaces(name) if full else {})

    def _count_services(self, state: State) -> int:
        """Return how many Services a State has: counted once, as probes ask each moment."""
        if self._counted[0] is not state:
            self._counted = (state, len({svc.name for svc in state.services}))
        return self._counted[1]

    def _source_statuses(self) -> list[SourceStatus]:
        counts = self._loop.inbox.counts
        return [
            SourceStatus(
                source.name,
                source.synced.is_set(),
                counts[source.name].objects,
                counts[source.name].generation,
                _shown(source.problems()),
            )
            for source in self._sources
        ]

    def _failing(self, state: State) -> list[FailingService]:
        now = time.monotonic()
        out = []
        for frontend, failure in list(self._plane.failing.items())[:MAX_SHOWN_FAILING]:
            svc = state.by_frontend.get(frontend) or self._plane.wanted.by_frontend.get(frontend)
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
        loop, plane = self._loop, self._plane
        out = [text for text in (loop.waiting, plane.waiting) if text]
        out += [str(message) for message in loop.messages]
        out += problems_of_targets(loop.runners, self._translating)
        out += plane.problems()
        more = len(plane.failing) - MAX_SHOWN_FAILING
        if more > 0:
            out.append(f"{more} more frontends are failing")
        return [*out, *self._problem_texts()]


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


def problems_of_targets(runners: Iterable[TargetRunner], serving: Collection[Target]) -> Iterator[str]:
    """Yield what is wrong with the targets. Single frontends, and what a target waits for, of `serving` have their own lines."""
    for runner in runners:
        if problem := runner.whole_error if runner.target in serving else runner.problem:
            yield f"target {runner.target.name}: {problem}"


def _shown(messages: Sequence[Message]) -> list[str]:
    """Return what is wrong, at most `MAX_SHOWN_MESSAGES` lines of it."""
    more = len(messages) - MAX_SHOWN_MESSAGES
    texts = [str(message) for message in messages[:MAX_SHOWN_MESSAGES]]
    return [*texts, f"{more} more messages"] if more > 0 else texts
