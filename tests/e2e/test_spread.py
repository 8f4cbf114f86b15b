"""Requests reach every backend, in both families, over TCP and UDP, in every attach mode."""

from __future__ import annotations

import pytest

from tests.e2e.cluster import DNS, VIP4, VIP6, WEB, Cluster
from tests.lab import traffic

BACKENDS = {"b1", "b2", "b3"}


@pytest.mark.parametrize("vip", WEB)
def test_http_reaches_every_backend(served: Cluster, vip: str) -> None:
    counts = served.http(600, [vip])
    assert set(counts) == BACKENDS
    assert sum(counts.values()) == 600
    assert all(120 < n < 280 for n in counts.values()), counts  # 200 each; seven standard deviations


@pytest.mark.parametrize("vip", DNS)
def test_udp_reaches_every_backend(served: Cluster, vip: str) -> None:
    counts = served.ask_dns(90, [vip])
    assert set(counts) == BACKENDS
    assert sum(counts.values()) == 90


@pytest.mark.parametrize(("vip", "own"), [(VIP4, "10.77.0.2"), (VIP6, "fd77::2")])
def test_a_pod_of_this_node_sees_the_client_and_a_remote_one_the_node(served: Cluster, vip: str, own: str) -> None:
    with served.client.entered():
        answers = {traffic.http_get(vip, 80) for _ in range(60)}
    seen = {answer.backend: answer.client for answer in answers}
    assert seen["b3"] == own
    assert seen["b1"] in ("10.77.1.1", "fd77:1::1")
    assert seen["b2"] in ("10.77.2.1", "fd77:2::1")


@pytest.mark.parametrize("vip", DNS)
def test_one_udp_source_port_stays_with_its_backend(served: Cluster, vip: str) -> None:
    with served.client.entered():
        answers = {traffic.dns_ask(vip, 53, source_port=40053).backend for _ in range(20)}
    assert len(answers) == 1


@pytest.mark.parametrize("vip", WEB)
def test_a_large_body_arrives_whole(served: Cluster, vip: str) -> None:
    with served.client.entered():
        for _ in range(6):
            with traffic.connect(vip, 80) as sock:
                assert len(traffic.request(sock, "/bytes?n=1000000")) == 1_000_000


def test_maglev_spreads_as_well(served: Cluster) -> None:
    served.serve(served.web(algorithm="maglev"))
    counts = served.http(90)
    assert set(counts) == BACKENDS
    assert any(line.startswith("MAGLEV:") for line in served.agent.dump())


def test_session_affinity_keeps_a_client_with_one_backend(served: Cluster) -> None:
    affinity = {"sessionAffinity": "ClientIP", "sessionAffinityConfig": {"clientIP": {"timeoutSeconds": 600}}}
    served.web(spec=affinity).write(served.folder)
    from tests.lab.netns import wait_for

    wait_for(lambda: any("AFFTimeout=600" in line for line in served.agent.dump()), "affinity in the maps")
    assert len(served.http(30, [VIP4])) == 1
    assert len(served.http(30, [VIP6])) == 1
