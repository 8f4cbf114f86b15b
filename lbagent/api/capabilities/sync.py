"""From the sources into the data plane: `verify`, the generation that is in force, and what became of the objects."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from lbagent.api.capability import Capability, Route
from lbagent.observe.metric import LabelledValues, Metric

if TYPE_CHECKING:
    from collections.abc import Coroutine, Sequence
    from typing import Any

    from lbagent.api.sync_answers import Differences, Generation
    from lbagent.model.state import State
    from lbagent.objects.source import Source
    from lbagent.sync.loop import SyncLoop
    from lbagent.targets.data_plane import ShownPlane


class SyncParts(NamedTuple):
    """The serving data plane, and the loop and the sources that its States come from."""

    plane: ShownPlane
    loop: SyncLoop
    sources: Sequence[Source]

    @property
    def state(self) -> State:
        """The State in force."""
        return self.plane.state


def _verify(parts: SyncParts) -> Coroutine[Any, Any, Differences]:
    from lbagent.api.sync_answers import verify

    return verify(parts.plane)


def _wait_change(parts: SyncParts, generation: str, timeout_s: str) -> Coroutine[Any, Any, Generation]:
    from lbagent.api.sync_answers import wait_change

    return wait_change(parts.plane, generation, timeout_s)


def _frontends(parts: SyncParts) -> int:
    return sum(1 for svc in parts.state.services if not svc.wildcard)


def _messages(parts: SyncParts, *, warning: bool) -> LabelledValues:
    for source in parts.sources:
        yield (source.name,), sum(message.warning is warning for message in source.problems())


def _backends_by_state(parts: SyncParts) -> LabelledValues:
    from lbagent.model.backend import BackendState

    found = parts.plane.backend_states()
    return (((state.text,), found.get(state, 0)) for state in BackendState if state is not BackendState.INVALID)


METRICS: tuple[Metric[SyncParts], ...] = (
    Metric("lbagent_generation", "gauge", "Generation of the state that is in the maps.", lambda x: x.state.generation),
    Metric("lbagent_services", "gauge", "Services served.", lambda x: len({svc.name for svc in x.state.services})),
    Metric("lbagent_frontends", "gauge", "Frontend rows, wildcards not counted.", _frontends),
    Metric("lbagent_failing_frontends", "gauge", "Frontends whose last write failed.", lambda x: len(x.plane.failing)),
    Metric(
        "lbagent_restored_frontends",
        "gauge",
        "Frontends that no object names, served as they were found in the maps.",
        lambda x: x.plane.retained,
    ),
    Metric(
        "lbagent_conflicts",
        "gauge",
        "Frontends that could not be made: contested by another object, or without a node address.",
        lambda x: sum(not message.warning for message in x.loop.messages),
    ),
    Metric("lbagent_syncs_total", "counter", "Plans that were applied.", lambda x: x.plane.counts.syncs),
    Metric(
        "lbagent_sync_errors_total",
        "counter",
        "Writes that failed; each is tried again.",
        lambda x: x.plane.counts.errors,
    ),
    Metric(
        "lbagent_sync_duration_seconds",
        "gauge",
        "Seconds that the last plan took to be in the kernel.",
        lambda x: x.plane.counts.last_duration_s,
    ),
    Metric(
        "lbagent_map_writes_total",
        "counter",
        "Map entries that were written or removed.",
        lambda x: x.plane.counts.writes,
    ),
    Metric(
        "lbagent_source_synced",
        "gauge",
        "Whether the source has given its first list.",
        lambda x: (((source.name,), source.synced.is_set()) for source in x.sources),
        ("source",),
    ),
    Metric(
        "lbagent_source_objects",
        "gauge",
        "Objects that the source holds.",
        lambda x: (((source.name,), x.loop.inbox.counts[source.name].objects) for source in x.sources),
        ("source",),
    ),
    Metric(
        "lbagent_source_messages",
        "gauge",
        "Objects or fields that are refused now.",
        lambda x: _messages(x, warning=False),
        ("source",),
    ),
    Metric(
        "lbagent_source_warnings",
        "gauge",
        "Annotations and objects that have no effect now.",
        lambda x: _messages(x, warning=True),
        ("source",),
    ),
    Metric(
        "lbagent_source_trusted",
        "gauge",
        "Whether objects that are not in the last list count as deleted.",
        lambda x: (((source.name,), source.trusted) for source in x.sources),
        ("source",),
    ),
    Metric(
        "lbagent_source_held_objects",
        "gauge",
        "Objects that the last list lacks and that are kept until that is confirmed.",
        lambda x: (((source.name,), source.held) for source in x.sources),
        ("source",),
    ),
    Metric("lbagent_backends", "gauge", "Backends, by state.", _backends_by_state, ("state",)),
)
CAPABILITY: Capability[SyncParts] = Capability(
    routes=(
        Route(
            "verify",
            "GET",
            "/v1/verify",
            "lbagent.api.sync_answers:Differences",
            "one sentence for each difference of the maps from what the agent wrote and wants; empty when there is none",
            _verify,
        ),
        Route(
            "wait_change",
            "GET",
            "/v1/wait",
            "lbagent.api.sync_answers:Generation",
            "the generation in the maps as soon as it differs from `?generation=N`, at the latest after `?timeout_s=S` seconds "
            "(60 at most)",
            _wait_change,
            query=(("generation", "0"), ("timeout_s", "30")),
        ),
    ),
    metrics=METRICS,
)
