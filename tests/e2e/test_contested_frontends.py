"""Services that claim the frontends of another one: which one gets requests, before and after a restart, and what is reported."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.cluster import VIP4, Cluster
from tests.lab import traffic
from tests.lab.manifests import Manifest, put
from tests.lab.netns import wait_for

pytestmark = pytest.mark.early

INGRESS, NODE = "203.0.113.7", "10.77.0.1"
JANUARY, FEBRUARY = "2024-01-01T00:00:00Z", "2024-02-01T00:00:00Z"


def write(folder: Path, manifest: Manifest, *, created: str = "", ingress: str = "", **spec: Any) -> None:
    """Write a manifest of IPv4, with an age and an ingress address."""
    first, *slices = manifest.objects()
    first["spec"] |= spec
    if not manifest.vips[0]:
        del first["spec"]["clusterIP"], first["spec"]["clusterIPs"]
    if created:
        first["metadata"]["creationTimestamp"] = created
    if ingress:
        first["status"] = {"loadBalancer": {"ingress": [{"ip": ingress}]}}
    put(folder, f"{manifest.name}.json", json.dumps({"apiVersion": "v1", "kind": "List", "items": [first, *slices]}))


def service(made: Cluster, name: str, backend: str, vip: str, namespace: str = "t") -> Manifest:
    endpoints = [each for each in made.endpoints(backend) if ":" not in each.address]
    return Manifest(name, (vip,), endpoints, namespace=namespace)


def wait_owners(made: Cluster, owners: Mapping[str, str]) -> None:
    """Wait until the maps give each address to its Service: a contest is shown when the objects are read, before maps are written."""

    def served() -> bool:
        return all({row["name"] for row in made.agent.api.services(vip=vip)} == {name} for vip, name in owners.items())

    wait_for(served, f"the frontends of {owners}")


def contests(made: Cluster) -> dict[str, str]:
    found = made.agent.api.status()["conditions"]
    return {each["subject"]: each["text"] for each in found if each["name"] == "frontend-contested"}


@pytest.fixture(params=["xdp", "tc"])
def evil(fresh: Callable[..., Cluster], request: pytest.FixtureRequest) -> Iterator[Cluster]:
    """An older Service of another namespace claims, by externalIPs, every address that the others will get."""
    made = fresh(request.param, "--node-ip", NODE)
    made.client.ip(f"route add {INGRESS} via {NODE}")
    claimed = [VIP4, INGRESS, NODE]
    write(made.folder, service(made, "evil", "b1", "10.96.0.66", "evil"), created=JANUARY, externalIPs=claimed)
    made.agent.start()
    return made


def test_externalips_take_no_traffic_of_other_services(evil: Cluster) -> None:
    made = evil
    assert set(made.http(10, [INGRESS])) == {"b1"}, "it is served while nothing else has the address"
    write(made.folder, service(made, "good", "b2", VIP4), created=FEBRUARY)
    write(made.folder, service(made, "vip", "b2", "10.96.0.70"), created=FEBRUARY, type="LoadBalancer", ingress=INGRESS)
    port = [{"name": "p", "protocol": "TCP", "port": 80, "nodePort": 80, "targetPort": "p"}]
    write(made.folder, service(made, "node", "b2", "10.96.0.71"), created=FEBRUARY, type="NodePort", ports=port)

    pairs = {f"evil/evil t/{name}" for name in ("good", "vip", "node")}
    wait_for(lambda: contests(made).keys() == pairs, "the contests")
    wait_owners(made, {f"{VIP4}:80": "good", f"{INGRESS}:80": "vip", f"{NODE}:80": "node"})

    def check() -> None:
        for address in (VIP4, INGRESS, NODE):
            assert set(made.http(20, [address])) == {"b2"}, address
        assert set(made.http(10, ["10.96.0.66"])) == {"b1"}, "the loser keeps its other frontends"

    check()
    held = "is held by Service t/good as its ClusterIP: it precedes any externalIP"
    assert contests(made)["evil/evil t/good"] == f"a claim of Service evil/evil is not served: {VIP4}:80/TCP {held}"
    shown = made.agent.cli("status", check=False)
    assert shown.returncode == 1
    text = contests(made)["evil/evil t/good"]
    (line,) = [each for each in shown.stdout.splitlines() if text in each]
    assert line.startswith("fault")

    assert made.agent.stop() == 0
    check()
    made.agent.start()
    check()
    (made.folder / "evil.json").unlink()
    wait_for(lambda: not contests(made), "the end of the contests")


def test_a_copied_manifest_takes_nothing_from_the_service_that_is_served(fresh: Callable[..., Cluster]) -> None:
    """Neither has a creationTimestamp, and the copy's name sorts first: no request reaches it, also over restarts."""
    made = fresh("tc")
    web, copy = service(made, "web", "b2", VIP4), service(made, "a-copy", "b1", VIP4)
    write(made.folder, web)
    made.agent.start()
    served = "is served by Service t/web (not both have a creationTimestamp to compare)"
    with traffic.Load(made.client, [partial(traffic.http_get, VIP4, 80)], 2, 0.002) as load:
        write(made.folder, copy)
        wait_for(lambda: contests(made), "the contest")
        load.wait_more(50)
        assert contests(made) == {
            "t/a-copy t/web": f"a claim of Service t/a-copy is not served: {VIP4}:80/TCP {served}"
        }
        made.agent.kill()
        made.agent.start()
        load.wait_more(50)
        assert made.agent.stop() == 0
        (made.folder / "a-copy.json").unlink()
        made.agent.start()
        assert made.agent.stop() == 0
        write(made.folder, copy)  # while no agent runs
        made.agent.start()
        wait_for(lambda: contests(made), "the contest after the restart")
        load.wait_more(50)
    assert not load.tally.failures
    assert set(load.tally.answered) == {"b2"}

    (made.folder / "web.json").unlink()
    made.wait_backends(copy)
    assert set(made.http(10, [VIP4])) == {"b1"}
    wait_for(lambda: not contests(made), "the end of the contest")
    write(made.folder, web)
    wait_for(lambda: contests(made).keys() == {"t/web t/a-copy"}, "the contest of the one that came back")
    assert set(made.http(20, [VIP4])) == {"b1"}, "now the copy is the one that is served"
