"""Every metric of the agent, made from a snapshot at each scrape: nothing is counted in Python per packet.

To add a metric: its value into `Snapshot` (agent/facade.py fills it), its family into one of the functions below, its line
into docs/operations.md. exposition.py writes the text.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from typing import Literal

from msgspec import Struct

from lbagent.model.backend import BackendState
from lbagent.model.family import Family
from lbagent.model.state import State
from lbagent.observe import apilb_metrics, exposition, kube_proxy_metrics
from lbagent.observe.apilb_metrics import ApilbSample
from lbagent.observe.exposition import HistogramFamily, Labels, MetricFamily
from lbagent.observe.kube_proxy_metrics import KubeProxySample
from lbagent.targets.data_plane import Traffic

PAGE = os.sysconf("SC_PAGE_SIZE")
MapUse = tuple[int, int]  # entries in use, most entries


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
    snat_addresses: Mapping[Family, int] = {}  # further source addresses that the node has
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


def render(snapshot: Snapshot) -> Iterator[str]:
    """Yield the text of every metric in pieces; families without a sample are left out."""
    return exposition.render(families(snapshot))


def families(snapshot: Snapshot) -> Iterator[MetricFamily | HistogramFamily]:
    """Yield every metric of the agent, the small ones first."""
    yield from _agent(snapshot)
    yield from _sync(snapshot)
    if snapshot.kube_proxy is not None:
        yield from kube_proxy_metrics.families(snapshot.kube_proxy, snapshot.state.services)
    yield from _datapath(snapshot)
    yield from _announcing(snapshot)
    if snapshot.apilb is not None:
        yield from apilb_metrics.families(snapshot.apilb)
    yield from _per_service(snapshot)
    yield from _per_backend(snapshot)


def _one(name: str, kind: Literal["counter", "gauge"], text: str, value: float) -> MetricFamily:
    return MetricFamily(name, kind, text, [((), value)])


def _agent(s: Snapshot) -> Iterator[MetricFamily]:
    yield MetricFamily("lbagent_build_info", "gauge", "Always 1.", [((("version", s.version),), 1)])
    yield _one("lbagent_ready", "gauge", "Whether the first full state is in the kernel.", s.ready)
    by_name = [((("name", name),), number) for name, number in s.conditions.items()]
    text = "Conditions that hold now, by name; `lbagent status` says which and what to do."
    yield MetricFamily("lbagent_condition", "gauge", text, by_name)
    by_severity = [((("severity", severity),), number) for severity, number in s.severities.items()]
    text = "Conditions that hold now, by severity: degraded (of objects) or fault (of the node)."
    yield MetricFamily("lbagent_conditions", "gauge", text, by_severity)
    yield _one("process_resident_memory_bytes", "gauge", "Resident memory of the agent.", s.resident_bytes)
    yield _one("process_cpu_seconds_total", "counter", "CPU time used, in seconds.", s.cpu_s)
    yield _one("process_start_time_seconds", "gauge", "Start of the agent, in seconds since the epoch.", s.started_at)


def _sync(s: Snapshot) -> Iterator[MetricFamily]:
    yield _one("lbagent_generation", "gauge", "Generation of the state that is in the maps.", s.state.generation)
    yield _one("lbagent_services", "gauge", "Services served.", len({svc.name for svc in s.state.services}))
    yield _one("lbagent_frontends", "gauge", "Frontend rows, wildcards not counted.", _frontends(s.state))
    yield _one("lbagent_failing_frontends", "gauge", "Frontends whose last write failed.", s.failing)
    yield _one(
        "lbagent_restored_frontends",
        "gauge",
        "Frontends that no object names, served as they were found in the maps.",
        s.restored,
    )
    yield _one(
        "lbagent_conflicts",
        "gauge",
        "Frontends that could not be made: contested by another object, or without a node address.",
        s.conflicts,
    )
    yield _one("lbagent_syncs_total", "counter", "Plans that were applied.", s.syncs)
    yield _one("lbagent_sync_errors_total", "counter", "Writes that failed; each is tried again.", s.sync_errors)
    yield _one(
        "lbagent_sync_duration_seconds",
        "gauge",
        "Seconds that the last plan took to be in the kernel.",
        s.sync_duration_s,
    )
    yield _one("lbagent_map_writes_total", "counter", "Map entries that were written or removed.", s.map_writes)
    named = [((("source", source.name),), source) for source in s.sources]
    yield MetricFamily(
        "lbagent_source_synced",
        "gauge",
        "Whether the source has given its first list.",
        [(n, x.synced) for n, x in named],
    )
    yield MetricFamily(
        "lbagent_source_objects", "gauge", "Objects that the source holds.", [(n, x.objects) for n, x in named]
    )
    yield MetricFamily(
        "lbagent_source_messages",
        "gauge",
        "Objects or fields that are refused now.",
        [(n, x.messages) for n, x in named],
    )
    yield MetricFamily(
        "lbagent_source_warnings",
        "gauge",
        "Annotations and objects that have no effect now.",
        [(n, x.warnings) for n, x in named],
    )
    yield MetricFamily(
        "lbagent_source_trusted",
        "gauge",
        "Whether objects that are not in the last list count as deleted.",
        [(n, x.trusted) for n, x in named],
    )
    yield MetricFamily(
        "lbagent_source_held_objects",
        "gauge",
        "Objects that the last list lacks and that are kept until that is confirmed.",
        [(n, x.held) for n, x in named],
    )
    by_state = [((("state", x.text),), s.states.get(x, 0)) for x in BackendState if x is not BackendState.INVALID]
    yield MetricFamily("lbagent_backends", "gauge", "Backends, by state.", by_state)


def _datapath(s: Snapshot) -> Iterator[MetricFamily]:
    by_reason = [((("reason", reason),), counter) for reason, counter in s.reasons.items()]
    yield MetricFamily(
        "lbagent_packets_total", "counter", "Packets, by reason of their verdict.", [(n, c[0]) for n, c in by_reason]
    )
    yield MetricFamily(
        "lbagent_bytes_total", "counter", "Bytes, by reason of their verdict.", [(n, c[1]) for n, c in by_reason]
    )
    by_map = [((("map", name),), usage) for name, usage in s.maps.items()]
    yield MetricFamily("lbagent_map_entries", "gauge", "Entries of the map in use.", [(n, c[0]) for n, c in by_map])
    yield MetricFamily(
        "lbagent_map_max_entries", "gauge", "Entries that the map can hold.", [(n, c[1]) for n, c in by_map]
    )
    yield _one(
        "lbagent_snat_ports",
        "gauge",
        "SNAT ports that each remote backend has, with each source address of the node.",
        s.snat_ports,
    )
    yield MetricFamily(
        "lbagent_snat_further_addresses",
        "gauge",
        "Addresses of --snat-address that the node has: each gives a remote backend as many SNAT ports again.",
        [((("family", f"ipv{family}"),), count) for family, count in s.snat_addresses.items()],
    )
    yield _one(
        "lbagent_snat_reclaimed_total",
        "counter",
        "SNAT ports that new flows took from flows that were not established.",
        s.snat_reclaimed,
    )
    yield MetricFamily(
        "lbagent_device_attached",
        "gauge",
        "Whether programs are attached to the device.",
        [((("device", name),), up) for name, up in s.devices.items()],
    )
    yield MetricFamily(
        "lbagent_xdp_send_errors_total",
        "counter",
        "Frames that XDP sent and the device did not take.",
        [((("device", name),), count) for name, count in s.send_errors.items()],
    )
    yield MetricFamily(
        "lbagent_bgp_session_up",
        "gauge",
        "Whether the BGP session with the router is established.",
        [((("peer", peer),), up) for peer, up in s.bgp_sessions.items()],
    )


def resident_bytes() -> int:
    """Return how much memory this process has."""
    with open("/proc/self/statm", encoding="ascii") as stream:
        return int(stream.read().split()[1]) * PAGE


def _announcing(s: Snapshot) -> Iterator[MetricFamily]:
    if s.takeovers is None:
        return
    labelled = [((("address", address), ("mode", mode)), here) for (address, mode), here in s.announced.items()]
    yield MetricFamily("lbagent_vip_announced", "gauge", "Whether this node announces the address.", labelled)
    text = "Addresses that this node took over from one that had died."
    yield _one("lbagent_vip_takeovers_total", "counter", text, s.takeovers)


def _per_service(s: Snapshot) -> Iterator[MetricFamily]:
    if not s.services:
        return
    for name, at, text in (("packets", 0, "Packets"), ("bytes", 1, "Bytes")):
        yield MetricFamily(
            f"lbagent_service_{name}_total", "counter", f"{text} to and from a frontend.", _service_samples(s, at)
        )


def _service_samples(s: Snapshot, at: int) -> Iterator[tuple[Labels, float]]:
    for svc in s.state.services:
        counter = s.services.get(svc.id)
        if counter is not None and not svc.wildcard:
            labels = (
                ("namespace", svc.name.namespace),
                ("name", svc.name.name),
                ("port_name", svc.port_name),
                ("frontend", svc.frontend.with_protocol()),
            )
            yield labels, counter[at]


def _per_backend(s: Snapshot) -> Iterator[MetricFamily]:
    if s.backends:
        for name, at, text in (("packets", 0, "Packets"), ("bytes", 1, "Bytes")):
            counters = {number: counter[at] for number, counter in s.backends.items()}
            yield MetricFamily(
                f"lbagent_backend_{name}_total",
                "counter",
                f"{text} to and from a backend.",
                _backend_samples(s, counters),
            )
    if s.live_flows:
        yield MetricFamily(
            "lbagent_backend_flows",
            "gauge",
            "Live flows to a backend, counted by the last sweep.",
            _backend_samples(s, s.live_flows),
        )
    if s.draining:
        yield MetricFamily(
            "lbagent_backend_draining_flows",
            "gauge",
            "Flows that are left to a backend that is drained.",
            [((("backend", address),), flows) for address, flows in s.draining.items()],
        )


def _backend_samples(s: Snapshot, values: Mapping[int, int]) -> Iterator[tuple[Labels, float]]:
    for address, backend in s.state.backends.items():
        value = values.get(backend.id)
        if value is not None:
            yield (("backend", address.with_protocol()),), value


def _frontends(state: State) -> int:
    return sum(1 for svc in state.services if not svc.wildcard)
