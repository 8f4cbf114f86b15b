"""Metrics that mean what kube-proxy's of the same name mean, so that its dashboards and alerts go on. Source: pkg/proxy/metrics.

One sync is of both IP families, so that times have no label `ip_family`. The maps are written as a whole: there is no partial sync.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from msgspec import Struct

from lbagent.model.kinds import SVCTrafficPolicy, SVCType
from lbagent.model.service import SVC
from lbagent.observe.exposition import HistogramFamily, Labels, MetricFamily
from lbagent.sync.sync_record import SyncRecord

PREFIX = "kubeproxy_sync_proxy_rules_"


class KubeProxySample(Struct, frozen=True):
    """What is known besides the State. `codes`: answers by (healthz or livez, status)."""

    record: SyncRecord
    codes: Mapping[tuple[str, int], int] = {}


def families(sample: KubeProxySample, services: Iterable[SVC]) -> Iterator[MetricFamily | HistogramFamily]:
    """Yield every metric with a name of kube-proxy's."""
    record = sample.record
    yield HistogramFamily(
        "kubeproxy_network_programming_duration_seconds",
        "Seconds from a change of endpoints, as its controller noted it, until the maps had it.",
        record.programming,
    )
    yield HistogramFamily(f"{PREFIX}duration_seconds", "Seconds that a sync took.", record.durations)
    yield _gauge("last_timestamp_seconds", "The last sync, in seconds since the epoch.", record.synced_at)
    yield _gauge(
        "last_queued_timestamp_seconds", "When a sync was queued last, in seconds since the epoch.", record.queued_at
    )
    for kind, name, what in (("EndpointSlice", "endpoint", "EndpointSlices"), ("Service", "service", "Services")):
        yield _gauge(
            f"{name}_changes_pending", f"Changes of {what} that are not in the maps yet.", record.pending[kind]
        )
        text = f"Changes of {what} that were queued."
        yield MetricFamily(f"{PREFIX}{name}_changes_total", "counter", text, [((), record.changes[kind])])
    yield MetricFamily(
        f"{PREFIX}no_local_endpoints_total",
        "gauge",
        "Service ports with a Local policy that have endpoints, and none on this node.",
        _no_local_endpoints(services),
    )
    for path in ("healthz", "livez"):
        samples = [
            ((("code", str(code)),), number) for (of, code), number in sorted(sample.codes.items()) if of == path
        ]
        yield MetricFamily(f"kubeproxy_proxy_{path}_total", "counter", f"Answers at /{path}, by status.", samples)


def _gauge(name: str, text: str, value: float) -> MetricFamily:
    return MetricFamily(PREFIX + name, "gauge", text, [((), value)])


def _no_local_endpoints(services: Iterable[SVC]) -> list[tuple[Labels, float]]:
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
    return [((("ip_family", family), ("traffic_policy", way)), len(ports)) for (family, way), ports in found.items()]
