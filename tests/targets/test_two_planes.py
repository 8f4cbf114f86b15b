"""`--renderer bpf=family=ipv4 --renderer nftables=family=ipv6`: each family has its own data plane, on real packets."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator
from functools import partial

import pytest

from tests.e2e.cluster import DNS, WEB, Cluster
from tests.lab import traffic
from tests.lab.netns import wait_for
from tests.lab.topology import Lab

pytestmark = [pytest.mark.root, pytest.mark.bpf]
_number = itertools.count()
ALL = {"b1", "b2", "b3"}
SPLIT = ("--renderer", "nftables=family=ipv6", "--renderer", "bpf=family=ipv4")


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    if os.geteuid() != 0:
        pytest.skip("needs root: sudo make test")
    with Lab(tag=f"two{next(_number)}-") as lab:
        lab.serve_all()
        lab.node.ip("route add default via 10.77.0.2", "route add default via fd77::2")  # as nodes have
        made = Cluster(lab, "tc", (*SPLIT, "--node-ip", "10.77.0.1", "--node-ip", "fd77::1"))
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
            assert {ask().backend for _ in range(40)} == ALL


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
