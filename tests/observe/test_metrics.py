"""The Prometheus text: read back by an independent parser, prometheus-client's."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from msgspec.structs import replace
from prometheus_client.parser import text_string_to_metric_families

from lbagent.maps.reasons import Reason, label
from lbagent.model.address import L3n4Addr
from lbagent.model.backend import Backend, BackendState
from lbagent.model.histogram import Histogram
from lbagent.model.service import SVC, ServiceName, SVCTrafficPolicy, SVCType
from lbagent.model.state import State
from lbagent.objects.records import ObjectChange
from lbagent.observe.apilb_metrics import APILB_METRICS, ApilbSample, ServerSample
from lbagent.observe.kube_proxy_metrics import KUBE_PROXY_METRICS, KubeProxySample
from lbagent.observe.metrics import ANNOUNCE_METRICS, Snapshot, SourceSample, every_metric, families, render
from lbagent.sync.sync_record import SyncRecord

TEXT = Path(__file__).with_name("exposition.txt")
ONE = Backend(1, L3n4Addr.parse("10.0.0.1:80"))
TWO = Backend(2, L3n4Addr.parse("[fd00::2]:80/UDP"), BackendState.MAINTENANCE)
FRONTEND = L3n4Addr.parse("10.96.0.1:80")
STATE = State(
    9,
    (
        SVC(L3n4Addr.parse("10.96.0.1:0/ANY"), name=ServiceName("shop", "web"), wildcard=True),
        SVC(FRONTEND, 7, ServiceName("shop", "web"), port_name="http", selectable=(ONE,), slotless=(TWO,)),
    ),
)
STATES = {BackendState.ACTIVE: 1, BackendState.MAINTENANCE: 1}


def _parsed(**more: Any) -> dict[str, dict[tuple[tuple[str, str], ...], float]]:
    given: dict[str, Any] = {"version": "1.0", "ready": True, "state": STATE, "states": STATES} | more
    snapshot = Snapshot(**given)
    out: dict[str, dict[tuple[tuple[str, str], ...], float]] = {}
    for family in text_string_to_metric_families("".join(render(snapshot))):
        assert family.documentation
        for sample in family.samples:
            series = out.setdefault(sample.name, {})
            key = tuple(sorted(sample.labels.items()))
            assert key not in series, f"{sample.name}{key} twice"
            series[key] = sample.value
    return out


def whole() -> Snapshot:
    """Return a snapshot in which every metric has a sample."""
    record = SyncRecord()
    record.queued_at, record.synced_at = 12.5, 11
    return Snapshot(
        version="1.0",
        ready=True,
        state=STATE,
        states=STATES,
        reasons={label(Reason.FWD_NEW): (1, 2)},
        services={7: (10, 1000)},
        backends={1: (6, 600), 2: (4, 400)},
        live_flows={1: 3},
        draining={"10.0.0.1:80/TCP": 2},
        maps={"lb4_service": (1, 2)},
        snat_ports=9,
        snat_addresses={4: 2},
        snat_reclaimed=4,
        failing=1,
        restored=2,
        conflicts=3,
        sync_duration_s=0.25,
        syncs=4,
        sync_errors=5,
        map_writes=6,
        sources=(SourceSample("folder /etc/lb", True, 1, 2, 3, False, 4),),
        conditions={"device-missing": 1},
        severities={"fault": 1},
        devices={"eth0": True},
        send_errors={"eth0": 3},
        bgp_sessions={"192.0.2.1": True},
        started_at=1.5,
        resident_bytes=4096,
        cpu_s=0.5,
        kube_proxy=KubeProxySample(record, {("healthz", 200): 1, ("livez", 200): 2}),
        announced={("10.0.0.1", "l2"): True},
        takeovers=2,
        apilb=ApilbSample((ServerSample("p", "lb", "a:1", True, 1, {"ok": 2, "timeout": 1}),), Histogram((0.1,)), 5),
    )


def test_the_whole_text() -> None:
    """Names, types, labels, texts and order stay: dashboards and scrapers have them."""
    assert "".join(render(whole())) == TEXT.read_text()


def test_every_metric_is_once_in_the_tables() -> None:
    names = [metric.name for metric in every_metric()]
    assert sorted(set(names)) == sorted(names)
    assert names == [family.name for family in families(whole())]
    assert names == re.findall(r"^# TYPE (\S+) ", TEXT.read_text(), re.MULTILINE)


def test_metrics_stand_with_their_subject() -> None:
    assert {metric.name for metric in ANNOUNCE_METRICS} == {
        "lbagent_bgp_session_up",
        "lbagent_vip_announced",
        "lbagent_vip_takeovers_total",
    }
    assert all(metric.name.startswith("lbagent_apilb_") for metric in APILB_METRICS)
    assert all(metric.name.startswith("kubeproxy_") for metric in KUBE_PROXY_METRICS)


def test_agent_and_state() -> None:
    parsed = _parsed(
        resident_bytes=50 << 20, cpu_s=1.25, started_at=1.7e9, failing=3, conflicts=2, restored=5, sync_duration_s=0.004
    )
    assert parsed["lbagent_ready"] == {(): 1}
    assert parsed["lbagent_build_info"] == {(("version", "1.0"),): 1}
    assert parsed["lbagent_generation"] == {(): 9}
    assert parsed["lbagent_services"] == {(): 1}
    assert parsed["lbagent_frontends"] == {(): 1}
    assert parsed["lbagent_failing_frontends"] == {(): 3}
    assert parsed["lbagent_conflicts"] == {(): 2}
    assert parsed["lbagent_restored_frontends"] == {(): 5}
    assert parsed["lbagent_sync_duration_seconds"] == {(): 0.004}
    assert parsed["process_resident_memory_bytes"] == {(): 52428800}
    assert parsed["process_cpu_seconds_total"] == {(): 1.25}
    assert parsed["lbagent_backends"] == {
        (("state", "active"),): 1,
        (("state", "terminating"),): 0,
        (("state", "quarantined"),): 0,
        (("state", "maintenance"),): 1,
    }


def test_packets_by_reason() -> None:
    parsed = _parsed(reasons={label(Reason.FWD_ESTABLISHED): (2**40, 2**50), label(Reason.DROP_NO_BACKEND): (1, 60)})
    assert parsed["lbagent_packets_total"] == {
        (("reason", "fwd_established"),): 2**40,
        (("reason", "drop_no_backend"),): 1,
    }
    assert parsed["lbagent_bytes_total"][("reason", "fwd_established"),] == 2**50


def test_services_and_backends() -> None:
    """Labels name what an operator knows; ids without a row in the State (being removed) are not shown."""
    parsed = _parsed(
        services={7: (10, 1000), 99: (1, 1)}, backends={1: (6, 600), 2: (4, 400), 99: (1, 1)}, live_flows={1: 3}
    )
    labels = (("frontend", "10.96.0.1:80/TCP"), ("name", "web"), ("namespace", "shop"), ("port_name", "http"))
    assert parsed["lbagent_service_packets_total"] == {labels: 10}
    assert parsed["lbagent_service_bytes_total"] == {labels: 1000}
    assert parsed["lbagent_backend_packets_total"] == {
        (("backend", "10.0.0.1:80/TCP"),): 6,
        (("backend", "[fd00::2]:80/UDP"),): 4,
    }
    assert parsed["lbagent_backend_flows"] == {(("backend", "10.0.0.1:80/TCP"),): 3}
    assert "lbagent_backend_draining_flows" not in parsed


def test_flows_of_backends_that_are_drained() -> None:
    parsed = _parsed(draining={"10.0.0.1:80/TCP": 2})
    assert parsed["lbagent_backend_draining_flows"] == {(("backend", "10.0.0.1:80/TCP"),): 2}


def test_maps_sources_devices() -> None:
    parsed = _parsed(
        maps={"lb4_service": (5, 100)},
        sources=(SourceSample('folder "x"\\y', True, 7, 1, 2, False),),
        devices={"eth0": True, "eth1": False},
    )
    assert parsed["lbagent_map_entries"] == {(("map", "lb4_service"),): 5}
    assert parsed["lbagent_map_max_entries"] == {(("map", "lb4_service"),): 100}
    assert list(parsed["lbagent_source_warnings"].values()) == [2]
    assert list(parsed["lbagent_source_trusted"].values()) == [0]
    assert parsed["lbagent_source_objects"] == {(("source", 'folder "x"\\y'),): 7}
    assert parsed["lbagent_device_attached"] == {(("device", "eth0"),): 1, (("device", "eth1"),): 0}


def test_nothing_known_yet() -> None:
    """An agent that has just started: no per-service lines, no empty families."""
    parsed = _parsed(ready=False, state=State())
    assert parsed["lbagent_ready"] == {(): 0}
    assert not any(name.startswith(("lbagent_service_p", "lbagent_backend_", "lbagent_map_e")) for name in parsed)


def test_pieces_stay_small() -> None:
    """Ten thousand services come in pieces, so that the event loop gets air."""
    services = tuple(
        SVC(L3n4Addr(bytes([10, 96, i >> 8, i & 255]), 80), i + 1, ServiceName("shop", f"web-{i}"))
        for i in range(10_000)
    )
    counters = {i + 1: (i, i) for i in range(10_000)}
    pieces = list(render(Snapshot(version="1.0", ready=True, state=State(1, services), services=counters)))
    assert max(map(len, pieces)) < 128 * 1024
    assert sum(piece.count("lbagent_service_packets_total{") for piece in pieces) == 10_000


def test_a16_metrics_with_kube_proxys_names() -> None:
    record = SyncRecord()
    record.queued([ObjectChange("Service", "a/b", None, None), ObjectChange("EndpointSlice", "a/b", None, None)], 1)
    record.durations.observe(0.0015)
    record.programming.observe(0.3)
    record.queued_at, record.synced_at = 12.5, 11
    local, policy = SVC(FRONTEND, 7, ServiceName("shop", "web"), port_name="http"), SVCTrafficPolicy.LOCAL
    inside = replace(local, int_traffic_policy=policy, no_local_backend=True)
    outside = replace(
        inside, frontend=L3n4Addr.parse("[fd00::1]:80"), type=SVCType.NODE_PORT, ext_traffic_policy=policy
    )
    state = State(1, (inside, replace(inside, frontend=L3n4Addr.parse("10.96.0.2:80")), outside, local))
    codes = {("healthz", 200): 3, ("healthz", 503): 1, ("livez", 200): 2}
    parsed = _parsed(kube_proxy=KubeProxySample(record, codes), state=state)
    rules = "kubeproxy_sync_proxy_rules_"
    assert parsed[f"{rules}service_changes_total"] == parsed[f"{rules}service_changes_pending"] == {(): 1}
    assert parsed[f"{rules}endpoint_changes_total"] == parsed[f"{rules}endpoint_changes_pending"] == {(): 1}
    assert (parsed[f"{rules}last_queued_timestamp_seconds"], parsed[f"{rules}last_timestamp_seconds"]) == (
        {(): 12.5},
        {(): 11},
    )
    buckets = parsed[f"{rules}duration_seconds_bucket"]
    assert (buckets[("le", "0.001"),], buckets[("le", "0.002"),], buckets[("le", "+Inf"),]) == (0, 1, 1)
    assert parsed["kubeproxy_network_programming_duration_seconds_sum"] == {(): 0.3}
    assert parsed["kubeproxy_network_programming_duration_seconds_count"] == {(): 1}
    without = parsed[f"{rules}no_local_endpoints_total"]
    assert {key: value for key, value in without.items() if value} == {
        (("ip_family", "IPv4"), ("traffic_policy", "internal")): 1,
        (("ip_family", "IPv6"), ("traffic_policy", "external")): 1,
    }
    assert parsed["kubeproxy_proxy_healthz_total"] == {(("code", "200"),): 3, (("code", "503"),): 1}
    assert parsed["kubeproxy_proxy_livez_total"] == {(("code", "200"),): 2}
