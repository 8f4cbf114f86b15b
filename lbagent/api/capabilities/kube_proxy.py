"""Metrics that mean what kube-proxy's of the same name mean, so that its dashboards and alerts go on. Source: pkg/proxy/metrics.

One sync is of both IP families, so that times have no label `ip_family`. The maps are written as a whole: there is no partial sync.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from lbagent.api.capability import Capability
from lbagent.observe.metric import LabelledValues, Metric

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from lbagent.model.service import SVC
    from lbagent.sync.sync_record import SyncRecord

PREFIX = "kubeproxy_sync_proxy_rules_"


class ProxyProgress(NamedTuple):
    """The values. `codes`: answers by (healthz or livez, status); `services` returns those of the State in the maps."""

    record: SyncRecord
    codes: Mapping[tuple[str, int], int]
    services: Callable[[], Iterable[SVC]]


def _no_local_endpoints(services: Iterable[SVC]) -> LabelledValues:
    from lbagent.model.kinds import SVCTrafficPolicy, SVCType

    found: dict[tuple[str, str], set[object]] = {
        (f"IPv{n}", way): set() for n in (4, 6) for way in ("internal", "external")
    }
    for svc in services:
        if not svc.no_local_backend:
            continue
        is_inside = svc.type is SVCType.CLUSTER_IP
        policy = svc.int_traffic_policy if is_inside else svc.ext_traffic_policy
        if policy is SVCTrafficPolicy.LOCAL:
            key = (f"IPv{svc.frontend.family}", "internal" if is_inside else "external")
            found[key].add((svc.name, svc.port_name, svc.frontend.protocol))
    return [(key, len(ports)) for key, ports in found.items()]


def _answers(sample: ProxyProgress, path: str) -> LabelledValues:
    return (((str(code),), number) for (of, code), number in sorted(sample.codes.items()) if of == path)


METRICS: tuple[Metric[ProxyProgress], ...] = (
    Metric(
        "kubeproxy_network_programming_duration_seconds",
        "histogram",
        "Seconds from a change of endpoints, as its controller noted it, until the maps had it.",
        lambda sample: sample.record.programming,
    ),
    Metric(
        f"{PREFIX}duration_seconds", "histogram", "Seconds that a sync took.", lambda sample: sample.record.durations
    ),
    Metric(
        f"{PREFIX}last_timestamp_seconds",
        "gauge",
        "The last sync, in seconds since the epoch.",
        lambda sample: sample.record.synced_at,
    ),
    Metric(
        f"{PREFIX}last_queued_timestamp_seconds",
        "gauge",
        "When a sync was queued last, in seconds since the epoch.",
        lambda sample: sample.record.queued_at,
    ),
    Metric(
        f"{PREFIX}endpoint_changes_pending",
        "gauge",
        "Changes of EndpointSlices that are not in the maps yet.",
        lambda sample: sample.record.pending["EndpointSlice"],
    ),
    Metric(
        f"{PREFIX}endpoint_changes_total",
        "counter",
        "Changes of EndpointSlices that were queued.",
        lambda sample: sample.record.changes["EndpointSlice"],
    ),
    Metric(
        f"{PREFIX}service_changes_pending",
        "gauge",
        "Changes of Services that are not in the maps yet.",
        lambda sample: sample.record.pending["Service"],
    ),
    Metric(
        f"{PREFIX}service_changes_total",
        "counter",
        "Changes of Services that were queued.",
        lambda sample: sample.record.changes["Service"],
    ),
    Metric(
        f"{PREFIX}no_local_endpoints_total",
        "gauge",
        "Service ports with a Local policy that have endpoints, and none on this node.",
        lambda sample: _no_local_endpoints(sample.services()),
        ("ip_family", "traffic_policy"),
    ),
    Metric(
        "kubeproxy_proxy_healthz_total",
        "counter",
        "Answers at /healthz, by status.",
        lambda sample: _answers(sample, "healthz"),
        ("code",),
    ),
    Metric(
        "kubeproxy_proxy_livez_total",
        "counter",
        "Answers at /livez, by status.",
        lambda sample: _answers(sample, "livez"),
        ("code",),
    ),
)
CAPABILITY: Capability[ProxyProgress] = Capability(metrics=METRICS)
