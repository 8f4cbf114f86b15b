"""What the data plane counts: packets and bytes, tables, SNAT ports, devices. Nothing is counted here."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, TypeVar

from lbagent.api.capability import Capability
from lbagent.observe.metric import LabelledHistograms, LabelledValues, Metric, by_word

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from lbagent.targets.data_plane import Counters, ShownPlane, Usage

MAX_BACKEND_SERIES = 5000  # beyond it a scrape would cost more than it tells: `backend list` has them all
MAX_BACKEND_HISTOGRAMS = 500  # with more backends, none has one
SERVICE_LABELS = ("namespace", "name", "port_name", "frontend")
Value = TypeVar("Value")


class PlaneReading:
    """The data plane at one scrape: what several metrics need is read once."""

    def __init__(self, plane: ShownPlane) -> None:
        self.plane, self.state = plane, plane.state

    @cached_property
    def counters(self) -> Counters:
        """What it counted."""
        return self.plane.counters(backends=self.plane.backend_count() <= MAX_BACKEND_SERIES)

    @cached_property
    def usage(self) -> Mapping[str, Usage]:
        """How full each table is."""
        return self.plane.usage()


def _of_services(x: PlaneReading, at: int) -> LabelledValues:
    """Yield packets (0) or bytes (1) of each frontend in force."""
    counted = x.counters.services
    for svc in x.state.services if counted else ():
        counter = counted.get(svc.id)
        if counter is not None and not svc.wildcard:
            yield (svc.name.namespace, svc.name.name, svc.port_name, svc.frontend.with_protocol()), counter[at]


def _of_backends(x: PlaneReading, values: Mapping[int, Value], number: Callable[[Value], float]) -> LabelledValues:
    """Yield the values of the backends in force, which are given by id."""
    for address, backend in x.state.backends.items() if values else ():  # the index is made where it is needed
        value = values.get(backend.id)
        if value is not None:
            yield (address.with_protocol(),), number(value)


def _of_new_flows(x: PlaneReading) -> LabelledValues:
    counted = x.counters.new_flows
    for svc in x.state.services if counted else ():
        if svc.id in counted and not svc.wildcard:
            labels = (svc.name.namespace, svc.name.name, svc.port_name, svc.frontend.with_protocol())
            yield labels, counted[svc.id]


def _histograms(x: PlaneReading) -> LabelledHistograms:
    """Yield the histogram of each backend of which a handshake was timed: nineteen series each."""
    found = x.counters.handshakes
    if len(found) > MAX_BACKEND_HISTOGRAMS:
        return
    from lbagent.model.handshakes import BOUNDS_US
    from lbagent.model.histogram import Histogram

    bounds = [us / 1e6 for us in BOUNDS_US]
    for address, backend in x.state.backends.items() if found else ():
        if each := found.get(backend.id):
            yield (address.with_protocol(),), Histogram.of(bounds, each.buckets, each.sum_us / 1e6)


def _handshake_results(x: PlaneReading) -> LabelledValues:
    found = x.counters.handshakes
    for address, backend in x.state.backends.items() if found else ():
        if each := found.get(backend.id):
            name = address.with_protocol()
            yield (name, "done"), each.done
            yield (name, "refused"), each.refused
            yield (name, "timeout"), each.lost


def _connects(x: PlaneReading) -> LabelledValues:
    words = {"done": "established", "timeout": "unanswered"}
    for (name, result), count in _handshake_results(x):
        if result in words:
            yield (name, words[result]), count


METRICS: tuple[Metric[PlaneReading], ...] = (
    Metric(
        "lbagent_packets_total",
        "counter",
        "Packets, by reason of their verdict.",
        lambda x: (((reason,), packets) for reason, (packets, _) in x.counters.reasons.items()),
        ("reason",),
    ),
    Metric(
        "lbagent_bytes_total",
        "counter",
        "Bytes, by reason of their verdict.",
        lambda x: (((reason,), size) for reason, (_, size) in x.counters.reasons.items()),
        ("reason",),
    ),
    Metric(
        "lbagent_map_entries",
        "gauge",
        "Entries of the map in use.",
        lambda x: (((name,), used) for name, (used, _) in x.usage.items()),
        ("map",),
    ),
    Metric(
        "lbagent_map_max_entries",
        "gauge",
        "Entries that the map can hold.",
        lambda x: (((name,), size) for name, (_, size) in x.usage.items()),
        ("map",),
    ),
    Metric(
        "lbagent_snat_ports",
        "gauge",
        "SNAT ports that each remote backend has, with each source address of the node.",
        lambda x: x.counters.snat_ports,
    ),
    Metric(
        "lbagent_snat_further_addresses",
        "gauge",
        "Addresses of --snat-address that the node has: each gives a remote backend as many SNAT ports again.",
        lambda x: (((f"ipv{family}",), count) for family, count in x.counters.snat_addresses.items()),
        ("family",),
    ),
    Metric(
        "lbagent_snat_reclaimed_total",
        "counter",
        "SNAT ports that new flows took from flows that were not established.",
        lambda x: x.counters.snat_reclaimed,
    ),
    Metric(
        "lbagent_events_total",
        "counter",
        "Events in the event rings, for the command monitor: new flows and refusals.",
        lambda x: x.counters.events[0],
    ),
    Metric(
        "lbagent_events_lost_total",
        "counter",
        "Refusals that --event-rate left out of the event rings.",
        lambda x: x.counters.events[1],
    ),
    Metric(
        "lbagent_sessions",
        "gauge",
        "Live flows, by protocol, as they were counted last.",
        lambda x: by_word(x.counters.sessions),
        ("protocol",),
    ),
    Metric(
        "lbagent_sessions_deleted_total",
        "counter",
        "Connections that nftables' data plane deleted from connection tracking because their backend is gone.",
        lambda x: by_word(x.counters.sessions_deleted),
        ("protocol",),
    ),
    Metric(
        "lbagent_session_delete_errors_total",
        "counter",
        "Connections that could not be deleted.",
        lambda x: x.counters.session_delete_errors,
    ),
    Metric(
        "lbagent_stale_backends",
        "gauge",
        "Backends that are gone from the slices of their Services, and kept for their flows.",
        lambda x: x.counters.stale_backends,
    ),
    Metric(
        "lbagent_stale_backends_evicted_total",
        "counter",
        "Such backends whose flows ended early, because their ids were needed.",
        lambda x: x.counters.stale_backends_evicted,
    ),
    Metric(
        "lbagent_device_attached",
        "gauge",
        "Whether programs are attached to the device.",
        lambda x: by_word(x.plane.devices_attached()),
        ("device",),
    ),
    Metric(
        "lbagent_xdp_send_errors_total",
        "counter",
        "Frames that XDP sent and the device did not take.",
        lambda x: by_word(x.counters.send_errors),
        ("device",),
    ),
    Metric(
        "lbagent_service_packets_total",
        "counter",
        "Packets to and from a frontend.",
        lambda x: _of_services(x, 0),
        SERVICE_LABELS,
        is_large=True,
    ),
    Metric(
        "lbagent_service_bytes_total",
        "counter",
        "Bytes to and from a frontend.",
        lambda x: _of_services(x, 1),
        SERVICE_LABELS,
        is_large=True,
    ),
    Metric(
        "lbagent_backend_packets_total",
        "counter",
        "Packets to and from a backend.",
        lambda x: _of_backends(x, x.counters.backends, lambda counter: counter[0]),
        ("backend",),
        is_large=True,
    ),
    Metric(
        "lbagent_backend_bytes_total",
        "counter",
        "Bytes to and from a backend.",
        lambda x: _of_backends(x, x.counters.backends, lambda counter: counter[1]),
        ("backend",),
        is_large=True,
    ),
    Metric(
        "lbagent_backend_flows",
        "gauge",
        "Live flows to a backend, counted by the last sweep.",
        lambda x: _of_backends(x, x.counters.live_flows, float),
        ("backend",),
        is_large=True,
    ),
)
HANDSHAKE_METRICS: tuple[Metric[PlaneReading], ...] = (
    Metric(
        "lbagent_flows",
        "gauge",
        "Live flows, as they were counted last.",
        lambda x: sum(x.counters.sessions.values()),
    ),
    Metric(
        "lbagent_snat_ports_use_ratio",
        "gauge",
        "Part of its SNAT ports that the fullest backend uses, by the last sweep.",
        lambda x: x.counters.snat_use,
    ),
    Metric(
        "lbagent_service_new_flows_total",
        "counter",
        "Flows of the frontend that began.",
        _of_new_flows,
        SERVICE_LABELS,
        is_large=True,
    ),
    Metric(
        "lbagent_backend_handshake_seconds",
        "histogram",
        "Time from the client's SYN to the backend's SYN-ACK, of one of --handshake-sample new flows; for up to 500 backends.",
        _histograms,
        ("backend",),
        is_large=True,
    ),
    Metric(
        "lbagent_backend_handshakes_total",
        "counter",
        "The same handshakes by result: done, refused (RST), timeout (no answer for ten seconds).",
        _handshake_results,
        ("backend", "result"),
        is_large=True,
    ),
    Metric(
        "lbagent_backend_connects_total",
        "counter",
        "Whether the backend answered in these handshakes: established, unanswered. A refusal is neither.",
        _connects,
        ("backend", "result"),
        is_large=True,
    ),
    Metric(
        "lbagent_backend_syn_retransmits_total",
        "counter",
        "SYNs of these handshakes that came again.",
        lambda x: _of_backends(x, x.counters.handshakes, lambda each: each.again),
        ("backend",),
        is_large=True,
    ),
)
CAPABILITY: Capability[ShownPlane] = Capability(metrics=(*METRICS, *HANDSHAKE_METRICS), subject=PlaneReading)
