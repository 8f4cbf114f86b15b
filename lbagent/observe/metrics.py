"""Every metric of the agent, made from a snapshot at each scrape: nothing is counted in Python per packet.

To add a metric: its row into the table of its subject below, its value into `Snapshot` where it is not there (agent/facade.py
fills it). `python -m tests.docs.tables` writes its line into docs/operations.md. exposition.py writes the text.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Generic, NamedTuple, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from lbagent.model.backend import BackendState
from lbagent.model.family import Family
from lbagent.model.state import State
from lbagent.observe import exposition
from lbagent.observe.apilb_metrics import APILB_METRICS, ApilbSample
from lbagent.observe.exposition import HistogramFamily, Metric, MetricFamily, Subject
from lbagent.observe.kube_proxy_metrics import KUBE_PROXY_METRICS, KubeProxySample
from lbagent.targets.data_plane import Traffic

PAGE = os.sysconf("SC_PAGE_SIZE")
MapUse = tuple[int, int]  # entries in use, most entries
Value = TypeVar("Value")
SERVICE_LABELS = ("namespace", "name", "port_name", "frontend")


class SourceSample(Struct, frozen=True, gc=False):
    """One source of objects."""

    name: str
    synced: bool
    objects: int
    messages: int  # errors: something was left out or kept as it was
    warnings: int = 0
    trusted: bool = True
    held: int = 0


class Snapshot(Struct, frozen=True, kw_only=True):
    """Everything the agent knows at one moment. Fill what there is; an empty mapping writes no lines."""

    version: str
    ready: bool
    state: State  # as it is in the maps, with ids
    states: Mapping[BackendState, int] = {}  # backends in each
    reasons: Mapping[str, Traffic] = {}  # by its word
    services: Mapping[int, Traffic] = {}  # by service id
    backends: Mapping[int, Traffic] = {}  # by backend id
    live_flows: Mapping[int, int] = {}  # by backend id, at the last sweep
    draining: Mapping[str, int] = {}  # flows that are left, by the address of a backend that is drained
    maps: Mapping[str, MapUse] = {}  # by map
    snat_ports: int = 0  # of each remote backend, with each source address
    snat_addresses: Mapping[Family, int] = {}  # extra SNAT addresses that the node has
    snat_reclaimed: int = 0  # taken from flows that were not established
    failing: int = 0  # frontends whose last write failed
    restored: int = 0  # frontends that stay as the maps had them: no object names them, and a source is missing
    conflicts: int = 0  # what objects that are good alone refuse each other
    sync_duration_s: float = 0.0  # the last one
    syncs: int = 0
    sync_errors: int = 0
    map_writes: int = 0
    sources: tuple[SourceSample, ...] = ()
    conditions: Mapping[str, int] = {}  # how many hold, by name
    severities: Mapping[str, int] = {}  # the same, by severity
    devices: Mapping[str, bool] = {}  # by name: whether it takes traffic
    send_errors: Mapping[str, int] = {}  # by device: frames that XDP sent and it did not take
    bgp_sessions: Mapping[str, bool] = {}  # by peer: whether it is established
    started_at: float = 0.0  # seconds since the epoch
    resident_bytes: int = 0
    cpu_s: float = 0.0
    kube_proxy: KubeProxySample | None = None
    announced: Mapping[tuple[str, str], bool] = {}  # by address and mode: whether this node announces it
    takeovers: int | None = None  # None: this agent announces nothing
    apilb: ApilbSample | None = None  # with --apilb


Labelled = Iterator[tuple[tuple[str, ...], float]]


def resident_bytes() -> int:
    """Return how much memory this process has."""
    with open("/proc/self/statm", encoding="ascii") as stream:
        return int(stream.read().split()[1]) * PAGE


def _by_word(values: Mapping[str, float]) -> Labelled:
    """Yield values by the one label that is their key."""
    return (((word,), value) for word, value in values.items())


def _frontends(state: State) -> int:
    return sum(1 for svc in state.services if not svc.wildcard)


def _backends_by_state(s: Snapshot) -> Labelled:
    return (((state.text,), s.states.get(state, 0)) for state in BackendState if state is not BackendState.INVALID)


def _service_samples(s: Snapshot, at: int) -> Labelled:
    for svc in s.state.services if s.services else ():
        counter = s.services.get(svc.id)
        if counter is not None and not svc.wildcard:
            yield (svc.name.namespace, svc.name.name, svc.port_name, svc.frontend.with_protocol()), counter[at]


def _backend_samples(s: Snapshot, values: Mapping[int, Value], number: Callable[[Value], float]) -> Labelled:
    for address, backend in s.state.backends.items() if values else ():  # the index is made where it is needed
        value = values.get(backend.id)
        if value is not None:
            yield (address.with_protocol(),), number(value)


AGENT_METRICS: tuple[Metric[Snapshot], ...] = (
    Metric("lbagent_build_info", "gauge", "Always 1.", lambda s: [((s.version,), 1)], ("version",)),
    Metric("lbagent_ready", "gauge", "Whether the first full state is in the kernel.", lambda s: s.ready),
    Metric(
        "lbagent_condition",
        "gauge",
        "Conditions that hold now, by name; `lbagent status` says which and what to do.",
        lambda s: _by_word(s.conditions),
        ("name",),
    ),
    Metric(
        "lbagent_conditions",
        "gauge",
        "Conditions that hold now, by severity: degraded (of objects) or fault (of the node).",
        lambda s: _by_word(s.severities),
        ("severity",),
    ),
    Metric("process_resident_memory_bytes", "gauge", "Resident memory of the agent.", lambda s: s.resident_bytes),
    Metric("process_cpu_seconds_total", "counter", "CPU time used, in seconds.", lambda s: s.cpu_s),
    Metric(
        "process_start_time_seconds",
        "gauge",
        "Start of the agent, in seconds since the epoch.",
        lambda s: s.started_at,
    ),
)
SYNC_METRICS: tuple[Metric[Snapshot], ...] = (
    Metric("lbagent_generation", "gauge", "Generation of the state that is in the maps.", lambda s: s.state.generation),
    Metric("lbagent_services", "gauge", "Services served.", lambda s: len({svc.name for svc in s.state.services})),
    Metric("lbagent_frontends", "gauge", "Frontend rows, wildcards not counted.", lambda s: _frontends(s.state)),
    Metric("lbagent_failing_frontends", "gauge", "Frontends whose last write failed.", lambda s: s.failing),
    Metric(
        "lbagent_restored_frontends",
        "gauge",
        "Frontends that no object names, served as they were found in the maps.",
        lambda s: s.restored,
    ),
    Metric(
        "lbagent_conflicts",
        "gauge",
        "Frontends that could not be made: contested by another object, or without a node address.",
        lambda s: s.conflicts,
    ),
    Metric("lbagent_syncs_total", "counter", "Plans that were applied.", lambda s: s.syncs),
    Metric("lbagent_sync_errors_total", "counter", "Writes that failed; each is tried again.", lambda s: s.sync_errors),
    Metric(
        "lbagent_sync_duration_seconds",
        "gauge",
        "Seconds that the last plan took to be in the kernel.",
        lambda s: s.sync_duration_s,
    ),
    Metric("lbagent_map_writes_total", "counter", "Map entries that were written or removed.", lambda s: s.map_writes),
    Metric(
        "lbagent_source_synced",
        "gauge",
        "Whether the source has given its first list.",
        lambda s: (((x.name,), x.synced) for x in s.sources),
        ("source",),
    ),
    Metric(
        "lbagent_source_objects",
        "gauge",
        "Objects that the source holds.",
        lambda s: (((x.name,), x.objects) for x in s.sources),
        ("source",),
    ),
    Metric(
        "lbagent_source_messages",
        "gauge",
        "Objects or fields that are refused now.",
        lambda s: (((x.name,), x.messages) for x in s.sources),
        ("source",),
    ),
    Metric(
        "lbagent_source_warnings",
        "gauge",
        "Annotations and objects that have no effect now.",
        lambda s: (((x.name,), x.warnings) for x in s.sources),
        ("source",),
    ),
    Metric(
        "lbagent_source_trusted",
        "gauge",
        "Whether objects that are not in the last list count as deleted.",
        lambda s: (((x.name,), x.trusted) for x in s.sources),
        ("source",),
    ),
    Metric(
        "lbagent_source_held_objects",
        "gauge",
        "Objects that the last list lacks and that are kept until that is confirmed.",
        lambda s: (((x.name,), x.held) for x in s.sources),
        ("source",),
    ),
    Metric("lbagent_backends", "gauge", "Backends, by state.", _backends_by_state, ("state",)),
)
DATAPATH_METRICS: tuple[Metric[Snapshot], ...] = (
    Metric(
        "lbagent_packets_total",
        "counter",
        "Packets, by reason of their verdict.",
        lambda s: (((reason,), packets) for reason, (packets, _) in s.reasons.items()),
        ("reason",),
    ),
    Metric(
        "lbagent_bytes_total",
        "counter",
        "Bytes, by reason of their verdict.",
        lambda s: (((reason,), size) for reason, (_, size) in s.reasons.items()),
        ("reason",),
    ),
    Metric(
        "lbagent_map_entries",
        "gauge",
        "Entries of the map in use.",
        lambda s: (((name,), used) for name, (used, _) in s.maps.items()),
        ("map",),
    ),
    Metric(
        "lbagent_map_max_entries",
        "gauge",
        "Entries that the map can hold.",
        lambda s: (((name,), size) for name, (_, size) in s.maps.items()),
        ("map",),
    ),
    Metric(
        "lbagent_snat_ports",
        "gauge",
        "SNAT ports that each remote backend has, with each source address of the node.",
        lambda s: s.snat_ports,
    ),
    Metric(
        "lbagent_snat_further_addresses",
        "gauge",
        "Addresses of --snat-address that the node has: each gives a remote backend as many SNAT ports again.",
        lambda s: (((f"ipv{family}",), count) for family, count in s.snat_addresses.items()),
        ("family",),
    ),
    Metric(
        "lbagent_snat_reclaimed_total",
        "counter",
        "SNAT ports that new flows took from flows that were not established.",
        lambda s: s.snat_reclaimed,
    ),
    Metric(
        "lbagent_device_attached",
        "gauge",
        "Whether programs are attached to the device.",
        lambda s: _by_word(s.devices),
        ("device",),
    ),
    Metric(
        "lbagent_xdp_send_errors_total",
        "counter",
        "Frames that XDP sent and the device did not take.",
        lambda s: _by_word(s.send_errors),
        ("device",),
    ),
)
ANNOUNCE_METRICS: tuple[Metric[Snapshot], ...] = (
    Metric(
        "lbagent_bgp_session_up",
        "gauge",
        "Whether the BGP session with the router is established.",
        lambda s: _by_word(s.bgp_sessions),
        ("peer",),
    ),
    Metric(
        "lbagent_vip_announced",
        "gauge",
        "Whether this node announces the address.",
        lambda s: s.announced.items(),
        ("address", "mode"),
    ),
    Metric(
        "lbagent_vip_takeovers_total",
        "counter",
        "Addresses that this node took over from one that had died.",
        lambda s: s.takeovers,
    ),
)
SERVICE_METRICS: tuple[Metric[Snapshot], ...] = (
    Metric(
        "lbagent_service_packets_total",
        "counter",
        "Packets to and from a frontend.",
        lambda s: _service_samples(s, 0),
        SERVICE_LABELS,
    ),
    Metric(
        "lbagent_service_bytes_total",
        "counter",
        "Bytes to and from a frontend.",
        lambda s: _service_samples(s, 1),
        SERVICE_LABELS,
    ),
)
BACKEND_METRICS: tuple[Metric[Snapshot], ...] = (
    Metric(
        "lbagent_backend_packets_total",
        "counter",
        "Packets to and from a backend.",
        lambda s: _backend_samples(s, s.backends, lambda counter: counter[0]),
        ("backend",),
    ),
    Metric(
        "lbagent_backend_bytes_total",
        "counter",
        "Bytes to and from a backend.",
        lambda s: _backend_samples(s, s.backends, lambda counter: counter[1]),
        ("backend",),
    ),
    Metric(
        "lbagent_backend_flows",
        "gauge",
        "Live flows to a backend, counted by the last sweep.",
        lambda s: _backend_samples(s, s.live_flows, float),
        ("backend",),
    ),
    Metric(
        "lbagent_backend_draining_flows",
        "gauge",
        "Flows that are left to a backend that is drained.",
        lambda s: _by_word(s.draining),
        ("backend",),
    ),
)


class Table(NamedTuple, Generic[Subject]):
    """The metrics of one subject, and where in a snapshot it is; None: the agent has none."""

    metrics: Sequence[Metric[Subject]]
    subject: Callable[[Snapshot], Subject | None]

    def families(self, snapshot: Snapshot) -> Iterator[MetricFamily | HistogramFamily]:
        """Yield the metrics with their samples."""
        subject = self.subject(snapshot)
        if subject is not None:
            for metric in self.metrics:
                yield metric.family(subject)


def _whole(snapshot: Snapshot) -> Snapshot:
    return snapshot


def _kube_proxy(snapshot: Snapshot) -> KubeProxySample | None:
    return replace(snapshot.kube_proxy, services=snapshot.state.services) if snapshot.kube_proxy else None


TABLES: tuple[Table[Any], ...] = (  # in the order of the text, the small ones first
    Table(AGENT_METRICS, _whole),
    Table(SYNC_METRICS, _whole),
    Table(KUBE_PROXY_METRICS, _kube_proxy),
    Table(DATAPATH_METRICS, _whole),
    Table(ANNOUNCE_METRICS, _whole),
    Table(APILB_METRICS, lambda s: s.apilb),
    Table(SERVICE_METRICS, _whole),
    Table(BACKEND_METRICS, _whole),
)


def every_metric() -> Iterator[Metric[Any]]:
    """Yield the rows of all tables."""
    return (metric for table in TABLES for metric in table.metrics)


def families(snapshot: Snapshot) -> Iterator[MetricFamily | HistogramFamily]:
    """Yield every metric of the agent with its samples."""
    return (family for table in TABLES for family in table.families(snapshot))


def render(snapshot: Snapshot) -> Iterator[str]:
    """Yield the text of every metric in pieces; those without a sample are left out."""
    return exposition.render(families(snapshot))
