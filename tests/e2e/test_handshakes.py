"""What the flows tell of backends: times and results of handshakes, new flows, and a backend that refuses."""

from __future__ import annotations

import contextlib
import re
import socket
from collections.abc import Callable

import pytest

from tests.e2e.cluster import VIP4, WEB, Cluster
from tests.lab.netns import wait_for
from tests.lab.topology import HTTP_PORT

CLOSED_PORT = 9  # no server of the laboratory listens there


def series(cluster: Cluster) -> dict[str, float]:
    """Return the samples of /metrics by name and labels."""
    lines = cluster.agent.cli("metrics").stdout.splitlines()
    return {line.rpartition(" ")[0]: float(line.rpartition(" ")[2]) for line in lines if not line.startswith("#")}


def total(cluster: Cluster, name: str, *words: str) -> float:
    """Return the sum of the series of a metric that have these words."""
    found = series(cluster)
    return sum(v for key, v in found.items() if key.split("{")[0] == name and all(word in key for word in words))


@pytest.mark.parametrize("attach", ["xdp", "tc"])
def test_handshakes_of_served_and_refusing_backends(fresh: Callable[..., Cluster], attach: str) -> None:
    cluster = fresh(attach, "--handshake-sample", "1", "--sweep-interval", "2")
    cluster.web().write(cluster.folder)
    cluster.agent.start()
    assert sum(cluster.http(180).values()) == 180  # of 90 requests, each backend gets one (1e-15 is left)
    assert total(cluster, "lbagent_service_new_flows_total", 'name="web"') == 180
    assert total(cluster, "lbagent_backend_handshakes_total", 'result="done"') == 180
    assert total(cluster, "lbagent_backend_handshakes_total", 'result="refused"') == 0
    assert total(cluster, "lbagent_backend_handshake_seconds_count") == 180
    assert 0 < total(cluster, "lbagent_backend_handshake_seconds_sum") < 18
    backends = {key for key in series(cluster) if key.startswith("lbagent_backend_handshake_seconds_count")}
    assert len(backends) == 6  # three servers, two families
    wait_for(lambda: total(cluster, "lbagent_snat_ports_use_ratio") > 0, "a count of flows")
    assert total(cluster, "lbagent_snat_ports_use_ratio") < 0.01
    wait_for(lambda: total(cluster, "lbagent_flows") == 0, "the end of all: their entries keep the ports for some time")
    server = f"{cluster.lab.backends['b2'].ipv4}:{HTTP_PORT}/TCP"
    found = cluster.agent.json("backend", "get", server)
    assert (found["address"], found["state"], found["services"]) == (server, "active", ["e2e/web"])
    assert found["frontends"] == [
        {"frontend": f"{VIP4}:80/TCP", "scope": "external", "service": "e2e/web", "selectable": True}
    ]
    assert found["packets"] > 0
    tcp = found["tcp"]
    assert 0 < tcp["handshake_p50_us"] <= tcp["handshake_p99_us"] < 1_000_000
    assert (tcp["refused"], tcp["timeout"], tcp["syn_retransmits"], tcp["failing"]) == (0, 0, 0, 0)
    assert tcp["done"] == sum(each["count"] for each in tcp["handshakes"]) > 0
    assert [each["le_us"] for each in tcp["handshakes"]] == [*(2**n for n in range(6, 22)), None]
    text = cluster.agent.cli("backend", "get", server.removesuffix("/TCP")).stdout
    assert text.splitlines()[0] == f"{server}  active"
    assert "#" in text
    wide = cluster.agent.cli("backend", "list", "-o", "wide").stdout.splitlines()
    assert wide[0].split()[-6:-4] == ["P50", "P99"] or {"P50", "P99", "REFUSED", "TIMEOUT"} <= set(wide[0].split())
    (row,) = (each for each in cluster.agent.json("backend", "list") if each["address"] == server)
    assert row["tcp"] == {key: tcp[key] for key in ("handshake_p50_us", "handshake_p99_us", "refused", "timeout")}
    for wrong, code in (("192.0.2.9:80", 3), ("10.0.0.300:80", 2), ("pod/a/b", 2)):
        assert cluster.agent.cli("backend", "get", wrong, check=False).returncode == code, wrong
    assert "backend-refuses" not in cluster.agent.cli("status", "-o", "json").stdout

    endpoint = f"{cluster.lab.backends['b1'].ipv4}:{CLOSED_PORT}/TCP"
    cluster.web("b1").write(cluster.folder)
    text = (cluster.folder / "web.yaml").read_text()
    (cluster.folder / "web.yaml").write_text(re.sub(rf"\b{HTTP_PORT}\b", str(CLOSED_PORT), text))
    wait_for(lambda: endpoint in cluster.agent.cli("backend", "list").stdout, "the backend without a server")
    with cluster.client.entered():
        for address in (VIP4, VIP4, VIP4):
            with contextlib.suppress(ConnectionRefusedError):
                socket.create_connection((address, 80), 3).close()
                pytest.fail("no server is there")
    assert total(cluster, "lbagent_backend_handshakes_total", endpoint, 'result="refused"') == 3
    status = wait_for(lambda: _line(cluster, "refused or did not answer"), "the line of status", 20)
    assert f"backend {endpoint} refused or did not answer its last 3 handshakes" in status
    assert "of 3 it refused 3 and did not answer 0" in status
    refusing = cluster.agent.cli("backend", "get", endpoint).stdout
    assert "0 done, 3 refused, 0 without an answer" in refusing
    assert "the last 3 were refused or not answered" in refusing
    assert cluster.agent.cli("status").returncode == 0  # degraded: of objects
    cluster.serve(cluster.web())
    assert sum(cluster.http(12, WEB[:1]).values()) == 12
    wait_for(lambda: not _line(cluster, "refused or did not answer"), "its end", 20)


def _line(cluster: Cluster, words: str) -> str:
    """Return the line of status with these words, '' without one."""
    lines = cluster.agent.cli("status", check=False).stdout.splitlines()
    return next((line for line in lines if words in line), "")
