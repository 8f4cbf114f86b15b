"""The Prometheus text: read back by an independent parser, prometheus-client's."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import islice
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple, cast

import pytest
from msgspec.structs import replace
from prometheus_client.parser import text_string_to_metric_families

import lbagent
from lbagent.announce.vip_rows import VipRow
from lbagent.api.capabilities import (
    CAPABILITIES,
    backend_checks,
    bgp,
    capability,
    data_planes,
    every_capability,
    kube_proxy,
    native_pools,
    node_backends,
    nodes,
    other_proxy,
    second_list,
    services,
    status,
    sync,
    traffic,
    vips,
)
from lbagent.api.capabilities.kube_proxy import ProxyProgress
from lbagent.api.capabilities.sync import SyncParts
from lbagent.api.capability import Bound, bind
from lbagent.api.checked_backends import CheckedBackends
from lbagent.api.client import AgentClient
from lbagent.api.metrics_text import MetricsText, every_metric
from lbagent.api.object_differences import VerifiedPlanes
from lbagent.apilb.native.pool_rows import ApilbSample, ServerSample
from lbagent.maps.reasons import Reason, label
from lbagent.model.address import L3n4Addr
from lbagent.model.backend import Backend, BackendState
from lbagent.model.family import Family
from lbagent.model.handshakes import Handshakes
from lbagent.model.histogram import Histogram
from lbagent.model.message import Message
from lbagent.model.service import SVC, ServiceName, SVCTrafficPolicy, SVCType
from lbagent.model.state import State
from lbagent.objects.records import ObjectChange
from lbagent.probes.backend_check import BackendCheck, CheckedService
from lbagent.probes.checker import Health
from lbagent.probes.probe_spec import ProbeSpec
from lbagent.sources.backend_health import BackendHealth
from lbagent.sync.sync_record import SyncRecord
from lbagent.targets.data_plane import Counters, Counts, SelfTestResult
from tests.api.serving import Agent, served

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


IS_SET: Any = SimpleNamespace(is_set=lambda: True)


class Source(NamedTuple):
    """What metrics read of a source."""

    name: str = "folder /etc/lb"
    objects: int = 0
    errors: int = 0
    warnings: int = 0
    trusted: bool = True
    held: int = 0

    @property
    def synced(self) -> Any:
        return SimpleNamespace(is_set=lambda: True)

    def problems(self) -> list[Message]:
        return [Message("bad")] * self.errors + [Message("odd", warning=True)] * self.warnings


def bound(
    *,
    ready: bool = True,
    state: State = STATE,
    states: Mapping[BackendState, int] = STATES,
    counters: Counters = Counters(),  # noqa: B008 - it is frozen
    counts: Counts | None = None,
    draining: Mapping[str, int] = {},
    usage: Mapping[str, tuple[int, int]] = {},
    failing: int = 0,
    restored: int = 0,
    conflicts: int = 0,
    sources: Sequence[Source] = (),
    devices: Mapping[str, bool] = {},
    started_at: float = 0.0,
    progress: ProxyProgress | None = None,
) -> list[Bound]:
    """Bind the rows of an agent that announces nothing and has no native pools to parts with these values."""
    plane: Any = SimpleNamespace(
        state=state,
        counts=counts or Counts(),
        failing=dict.fromkeys(range(failing)),
        retained=restored,
        usage=lambda: usage,
        counters=lambda backends: counters,
        backend_count=lambda: len(state.backends),
        backend_states=lambda: states,
        devices_attached=lambda: devices,
    )
    inbox = SimpleNamespace(counts={source.name: SimpleNamespace(objects=source.objects) for source in sources})
    loop: Any = SimpleNamespace(
        messages=[Message("contested")] * conflicts + [Message("odd", warning=True)], inbox=inbox
    )
    conditions = SimpleNamespace(counts=lambda: {"device-missing": 1}, severities=lambda: {"fault": 1})
    agent: Any = SimpleNamespace(ready=ready, started=ready, started_at=started_at, conditions=conditions)
    requests: Any = SimpleNamespace(flows_left=lambda most: dict(islice(draining.items(), most)))
    part: Any = SimpleNamespace()
    rows = [bind(status.CAPABILITY, agent), bind(sync.CAPABILITY, SyncParts(plane, loop, cast("Any", sources)))]
    runners: list[Any] = [
        SimpleNamespace(
            target=SimpleNamespace(
                name=name, ready=is_ready, difference_count=differences, self_test=SelfTestResult("", 1)
            ),
            failure=failure,
            failures=failures,
            applied_s=0.5,
            object_differences=found_again,
        )
        for name, is_ready, failure, failures, differences, found_again in (
            ("bpf", IS_SET, None, 0, 2, 3),
            ("mine", IS_SET, "it failed", 3, 0, 0),
        )
    ]
    rows.append(bind(data_planes.CAPABILITY, runners))
    verification: Any = SimpleNamespace(success_shown=1234.5)
    rows.append(bind(second_list.CAPABILITY, VerifiedPlanes(verification, runners)))
    if progress is not None:
        rows.append(bind(kube_proxy.CAPABILITY, progress._replace(services=lambda: state.services)))
    rows.append(bind(traffic.CAPABILITY, plane))
    return [*rows, bind(services.CAPABILITY, part), bind(node_backends.CAPABILITY, requests)]


def _text(rows: list[Bound]) -> str:
    return "".join(MetricsText(rows).pieces())


def _parsed(**given: Any) -> dict[str, dict[tuple[tuple[str, str], ...], float]]:
    out: dict[str, dict[tuple[tuple[str, str], ...], float]] = {}
    for family in text_string_to_metric_families(_text(bound(**given))):
        assert family.documentation
        for sample in family.samples:
            series = out.setdefault(sample.name, {})
            key = tuple(sorted(sample.labels.items()))
            assert key not in series, f"{sample.name}{key} twice"
            series[key] = sample.value
    return out


@pytest.fixture
def whole(monkeypatch: pytest.MonkeyPatch) -> list[Bound]:
    """Return rows of which every metric has a sample."""
    record = SyncRecord()
    record.queued_at, record.synced_at = 12.5, 11
    monkeypatch.setattr(lbagent, "__version__", "1.0")
    monkeypatch.setattr(status, "_resident_bytes", lambda: 4096)
    monkeypatch.setattr(status, "_cpu_s", lambda: 0.5)
    monkeypatch.setattr(vips, "_rows", lambda _: [VipRow("10.0.0.1", "p", "l2", "announced", "n1", [], "")])
    rows = bound(
        counters=Counters(
            reasons={label(Reason.FWD_NEW): (1, 2)},
            services={7: (10, 1000)},
            backends={1: (6, 600), 2: (4, 400)},
            live_flows={1: 3},
            handshakes={1: Handshakes((2, *[0] * 14, 1, 1), sum_us=5_000_000, refused=3, lost=2, again=1)},
            new_flows={7: 12},
            snat_use=0.25,
            snat_ports=9,
            snat_addresses={Family.IPV4: 2},
            snat_reclaimed=4,
            events=(11, 12),
            sessions={"tcp": 3},
            sessions_deleted={"tcp": 5, "udp": 6},
            session_delete_errors=1,
            send_errors={"eth0": 3},
        ),
        counts=Counts(syncs=4, errors=5, writes=6, last_duration_s=0.25),
        draining={"10.0.0.1:80/TCP": 2},
        usage={"lb4_service": (1, 2)},
        failing=1,
        restored=2,
        conflicts=3,
        sources=(Source(objects=1, errors=2, warnings=3, trusted=False, held=4),),
        devices={"eth0": True},
        started_at=1.5,
        progress=ProxyProgress(record, {("healthz", 200): 1, ("livez", 200): 2}, tuple),
    )
    pools = ApilbSample((ServerSample("p", "lb", "a:1", True, 1, {"ok": 2, "timeout": 1}),), Histogram((0.1,)), 5)
    speaker: Any = SimpleNamespace(sessions_up={"192.0.2.1": True})
    announcer: Any = SimpleNamespace(takeovers=2)
    liveness: Any = SimpleNamespace(
        observed=frozenset({"n2", "n3"}), dead=frozenset({"n3", "n4"}), missed=lambda: frozenset({"n3"}), is_panic=False
    )
    native: Any = SimpleNamespace(sample=lambda: pools)
    compared: Any = SimpleNamespace(totals=Counter(same=7, differs=1))
    on = [
        bind(other_proxy.CAPABILITY, compared),
        bind(bgp.CAPABILITY, speaker),
        bind(vips.CAPABILITY, announcer),
        bind(nodes.CAPABILITY, liveness),
        bind(native_pools.CAPABILITY, native),
    ]
    results = [
        BackendHealth("a/b", L3n4Addr.parse("10.0.0.1:80/TCP"), "tcp", Health(False, 1.5, "connection refused", True))
    ]
    checks = CheckedBackends(
        lambda: results, lambda: {"a/b": _CHECKED}, lambda: {"a/b"}, lambda: [(("a/b", "10.0.0.1:80/TCP"), 2)]
    )
    return [*rows[:6], *on, *rows[6:], bind(backend_checks.CAPABILITY, checks)]


_CHECKED = CheckedService(BackendCheck(ProbeSpec()), ((L3n4Addr.parse("10.0.0.1:80/TCP"), None),))


def test_with_many_backends_the_metrics_have_no_single_checks() -> None:
    many = replace(_CHECKED, backends=_CHECKED.backends * 5001)
    result = BackendHealth("a/b", _CHECKED.backends[0][0], "tcp", Health(True, 1.5, "connected"))
    checks = CheckedBackends(lambda: [result], lambda: {"a/b": many}, tuple)
    text = _text([bind(backend_checks.CAPABILITY, checks)])
    assert 'lbagent_health_panic{service="a/b"} 0' in text
    assert "lbagent_backend_check_up{" not in text


def test_the_whole_text(whole: list[Bound], tmp_path: Path) -> None:
    """Names, types, labels, texts and order stay: dashboards and scrapers have them."""
    agent, path = Agent(), str(tmp_path / "agent.sock")
    agent.pieces = MetricsText(whole).pieces()
    with served(agent, path):
        assert AgentClient(path).metrics() == TEXT.read_text()


def test_every_metric_is_once_in_the_tables(whole: list[Bound]) -> None:
    names = [metric.name for metric in every_metric(every_capability())]
    assert sorted(set(names)) == sorted(names)
    assert [each for each, _ in whole] == [
        each for each in every_capability() if each.metrics or each is services.CAPABILITY
    ]
    assert names == re.findall(r"^# TYPE (\S+) ", TEXT.read_text(), re.MULTILINE)


def test_metrics_stand_with_their_subject() -> None:
    names = {file: {metric.name for metric in capability(file).metrics} for file in CAPABILITIES}
    assert names["bgp"] | names["vips"] == {
        "lbagent_bgp_session_up",
        "lbagent_vip_announced",
        "lbagent_vip_takeovers_total",
    }
    assert all(name.startswith("lbagent_apilb_") for name in names["native_pools"])
    assert all(name.startswith("kubeproxy_") for name in names["kube_proxy"])


def test_agent_and_state(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lbagent, "__version__", "1.0")
    monkeypatch.setattr(status, "_resident_bytes", lambda: 50 << 20)
    monkeypatch.setattr(status, "_cpu_s", lambda: 1.25)
    parsed = _parsed(started_at=1.7e9, failing=3, conflicts=2, restored=5, counts=Counts(last_duration_s=0.004))
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
    reasons = {label(Reason.FWD_ESTABLISHED): (2**40, 2**50), label(Reason.DROP_NO_BACKEND): (1, 60)}
    parsed = _parsed(counters=Counters(reasons=reasons))
    assert parsed["lbagent_packets_total"] == {
        (("reason", "fwd_established"),): 2**40,
        (("reason", "drop_no_backend"),): 1,
    }
    assert parsed["lbagent_bytes_total"][("reason", "fwd_established"),] == 2**50


def test_services_and_backends() -> None:
    """Labels name what an operator knows; ids without a row in the State (being removed) are not shown."""
    of_backends = {1: (6, 600), 2: (4, 400), 99: (1, 1)}
    counters = Counters(services={7: (10, 1000), 99: (1, 1)}, backends=of_backends, live_flows={1: 3})
    parsed = _parsed(counters=counters)
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
        usage={"lb4_service": (5, 100)},
        sources=(Source('folder "x"\\y', 7, 1, 2, False),),
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
    counters = Counters(services={i + 1: (i, i) for i in range(10_000)})
    pieces = list(MetricsText(bound(state=State(1, services), counters=counters)).pieces())
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
    parsed = _parsed(progress=ProxyProgress(record, codes, tuple), state=state)
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
