"""`--renderer bpf=family=ipv4 --renderer nftables=family=ipv6`: each family has its own data plane, on real packets."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import subprocess
from collections.abc import Iterator
from functools import partial

import pytest

from tests.e2e.cluster import DNS, WEB, Cluster
from tests.lab import traffic
from tests.lab.manifests import Manifest
from tests.lab.netns import wait_for
from tests.lab.topology import HTTP_PORT, Lab

pytestmark = [pytest.mark.root, pytest.mark.bpf]
_number = itertools.count()
ALL = {"b1", "b2", "b3"}
SOON = ("--timeout-closing", "1", "--sweep-interval", "2")  # the end of drains
SPLIT = ("--renderer", "nftables=family=ipv6", "--renderer", "bpf=family=ipv4")


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    if os.geteuid() != 0:
        pytest.skip("needs root: sudo make test")
    with Lab(tag=f"two{next(_number)}-") as lab:
        lab.serve_all()
        lab.node.ip("route add default via 10.77.0.2", "route add default via fd77::2")  # as nodes have
        made = Cluster(lab, "tc", (*SPLIT, "--node-ip", "10.77.0.1", "--node-ip", "fd77::1", *SOON))
        made.web().write(made.folder)
        made.dns().write(made.folder)
        made.agent.start()
        wait_for(lambda: all(each["in_sync"] for each in made.agent.json("status")["targets"]), "both data planes")
        yield made


@pytest.mark.parametrize("who", ["outside", "pod"])
@pytest.mark.parametrize(("web", "dns"), list(zip(WEB, DNS, strict=True)), ids=["ipv4", "ipv6"])
def test_both_families_are_served(cluster: Cluster, who: str, web: str, dns: str) -> None:
    place = cluster.client if who == "outside" else cluster.lab.namespaces["b3"]
    for ask in (partial(traffic.http_get, web, 80), partial(traffic.dns_ask, dns, 53)):
        with place.entered():
            assert {ask().backend for _ in range(60)} == ALL


def test_each_frontend_is_in_one_data_plane(cluster: Cluster) -> None:
    assert [each["name"] for each in cluster.agent.json("status")["targets"]] == ["bpf", "nftables"]
    maps = cluster.agent.cli("map", "dump").stdout
    table = cluster.lab.node.call(os.popen, "nft list table inet lbagent").read()
    for four, six in (WEB, DNS):
        assert (f"{four}:" in maps, f"[{six}]:" in maps) == (True, False)
        assert (f"{four} ." in table, f"{six} ." in table) == (False, True)


def test_a_change_reaches_both(cluster: Cluster) -> None:
    cluster.web("b1").write(cluster.folder)
    for web in WEB:
        with cluster.client.entered():
            wait_for(lambda web=web: {_answering(web) for _ in range(10)} == {"b1"}, "the one backend that is left")
            assert {traffic.http_get(web, 80).backend for _ in range(10)} == {"b1"}
    cluster.web().write(cluster.folder)


def _answering(web: str) -> str:
    """Return the backend that answers one request; nothing if the backend was removed during it, which resets its connections."""
    try:
        return traffic.http_get(web, 80).backend
    except ConnectionResetError:
        return ""


# --- one view of both ---


def backends(cluster: Cluster, version: int) -> dict[str, dict[str, object]]:
    """Return the rows of the backends of `web`, of a family, by name."""
    known = {(b.ipv6 if version == 6 else b.ipv4): name for name, b in cluster.lab.backends.items()}
    rows = cluster.agent.json("backend", "list")
    return {
        known[address]: row
        for row in rows
        if row["address"].endswith(f":{HTTP_PORT}/TCP")
        and (address := row["address"].rpartition(":")[0].strip("[]")) in known
    }


def test_lists_have_both_families(cluster: Cluster) -> None:
    frontends = cluster.agent.json("svc", "list")
    assert {row["frontend"] for row in frontends} >= {f"{WEB[0]}:80/TCP", f"[{WEB[1]}]:80/TCP"}
    for rows in (frontends, cluster.agent.json("backend", "list")):
        ids = [row["id"] for row in rows]
        assert len(set(ids)) == len(ids)
    assert set(backends(cluster, 4)) == set(backends(cluster, 6)) == ALL
    status = cluster.agent.json("status")
    assert (status["frontends"], status["backends"]) == (4, 12)


def test_metrics_count_both(cluster: Cluster) -> None:
    assert "\nlbagent_frontends 4\n" in cluster.agent.api.metrics()
    with cluster.client.entered():
        opened = [traffic.connect(web, 80) for web in WEB for _ in range(3)]
    names = {traffic.request(sock).decode().split()[0] for sock in opened}

    def are_counted() -> bool:
        flows = [sum(int(str(row["flows"])) for row in backends(cluster, version).values()) for version in (4, 6)]
        text = cluster.agent.api.metrics()
        rows = [row for version in (4, 6) for row in backends(cluster, version).values() if row["flows"]]
        return min(flows) >= 3 and all(f'lbagent_backend_flows{{backend="{row["address"]}"}}' in text for row in rows)

    wait_for(are_counted, f"flows of {names} of both families", 30)
    for sock in opened:
        sock.close()


@pytest.mark.parametrize("version", [4, 6])
def test_states_reach_the_data_plane_of_the_family(cluster: Cluster, version: int) -> None:
    row = backends(cluster, version)["b1"]
    ask = partial(traffic.http_get, WEB[version == 6], 80)
    cluster.agent.cli("backend", "set-state", "maintenance", str(row["address"]))
    try:
        assert backends(cluster, version)["b1"]["state"] == "maintenance"
        assert backends(cluster, 10 - version)["b1"]["state"] == "active"
        with cluster.client.entered():
            assert {ask().backend for _ in range(60)} == ALL - {"b1"}
    finally:
        cluster.agent.cli("backend", "clear-state", str(row["address"]))
    with cluster.client.entered():
        assert {ask().backend for _ in range(60)} == ALL


@pytest.mark.parametrize("version", [4, 6])
def test_a_drain_ends_with_the_last_connection(cluster: Cluster, version: int) -> None:
    row = backends(cluster, version)["b2"]
    with cluster.client.entered():
        opened = [traffic.connect(WEB[version == 6], 80) for _ in range(60)]
    names = [traffic.request(sock).decode().split()[0] for sock in opened]
    assert "b2" in names
    try:
        done = cluster.agent.cli("backend", "drain", str(row["address"]), "--timeout", "1s", check=False)
        assert done.returncode == 6, done.stdout + done.stderr
        for sock in opened:
            sock.close()
        done = cluster.agent.cli("backend", "drain", str(row["address"]), "--timeout", "60s", check=False)
        assert done.returncode == 0, done.stdout + done.stderr
    finally:
        cluster.agent.cli("backend", "clear-state", str(row["address"]))


def test_a_health_check_node_port_of_the_second_family(cluster: Cluster) -> None:
    manifest = Manifest(
        "local6",
        ("fd00:96::66",),
        [each for each in cluster.endpoints("b3") if ":" in each.address],
        spec={
            "type": "LoadBalancer",
            "externalTrafficPolicy": "Local",
            "healthCheckNodePort": 31066,
            "ipFamilies": ["IPv6"],
        },
    )
    manifest.write(cluster.folder)

    def answers() -> bool:
        with contextlib.suppress(OSError), cluster.client.entered(), traffic.connect("fd77::1", 31066) as sock:
            sock.sendall(b"GET / HTTP/1.0\r\n\r\n")
            return b" 200" in sock.recv(100).split(b"\r\n")[0]
        return False

    wait_for(answers, "the port", 5)


def test_the_data_plane_that_fails_is_named(cluster: Cluster) -> None:
    """A table of another program has the name of lbagent's, so that no rule of IPv6 can be written."""
    taken = "delete table inet lbagent; add table inet lbagent"
    cluster.lab.node.call(subprocess.run, ["nft", taken], check=True)
    try:
        cluster.web("b1").write(cluster.folder)

        def is_named() -> bool:
            found = json.loads(cluster.agent.cli("status", "-o", "json", check=False).stdout)
            conditions = {(each["name"], each["subject"]) for each in found["conditions"]}
            named = [
                text for text in found["problems"] if text.startswith("target nftables: table inet lbagent is not")
            ]
            return bool(named) and ("target-failed", "nftables") in conditions

        wait_for(is_named, "the failure", 30)
        assert cluster.agent.cli("status", check=False).returncode == 1
        assert not any("target bpf" in text for text in cluster.agent.json("status")["problems"])
        with cluster.client.entered():
            wait_for(lambda: {_answering(WEB[0]) for _ in range(10)} == {"b1"}, "the change of IPv4")
    finally:
        cluster.lab.node.call(subprocess.run, ["nft", "delete table inet lbagent"], check=True)
        cluster.web().write(cluster.folder)
    wait_for(lambda: cluster.agent.cli("status", check=False).returncode == 0, "the repair", 60)
    with cluster.client.entered():
        assert {traffic.http_get(WEB[1], 80).backend for _ in range(60)} == ALL
