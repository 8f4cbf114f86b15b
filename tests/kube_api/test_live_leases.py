"""The Leases of nodes by a real API server: how agents find each other and publish suspicions, and what they write."""

from __future__ import annotations

import asyncio
import base64
import contextlib
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from lbagent.kube.kube_client import KubeClient
from lbagent.kube.kube_settings import KubeSettings
from lbagent.liveness.key_secret import fill_key_secret
from lbagent.liveness.live_leases import LiveLeases
from tests.kube_api.announcing_nodes import LEASES, take_rights
from tests.kube_api.cluster import Cluster, manifest
from tests.kube_api.following import TIMING
from tests.kube_api.proxy import Proxy

pytestmark = [pytest.mark.root]
LIVE = f"{LEASES}?labelSelector=lbagent.io/lease=live"
SECRETS = "/api/v1/namespaces/kube-system/secrets"
LONG = "a" * 60 + "." + "b" * 60 + "." + "c" * 60  # longer than the key of an annotation may be


@pytest.fixture
def own_leases(cluster: Cluster) -> Iterator[Cluster]:
    """A cluster with the nodes a and b, whose Leases are deleted at the end."""
    for name in ("a", "b"):
        cluster.add_node(name)
    yield cluster
    for name in ("a", "b"):
        cluster.plane.send("DELETE", f"/api/v1/nodes/{name}")
    for item in cluster.plane.ask("GET", LIVE)["items"]:
        cluster.plane.send("DELETE", f"{LEASES}/{item['metadata']['name']}")


def lease(cluster: Cluster, node: str) -> dict[str, Any]:
    return dict(cluster.plane.ask("GET", f"{LEASES}/lbagent-live-{node}"))


@contextlib.asynccontextmanager
async def joined(config: Path, *nodes: str) -> AsyncIterator[list[LiveLeases]]:
    """These nodes' Leases, each with the address 10.0.0.N, when each node has read all of them."""
    found = [
        LiveLeases(KubeClient(KubeSettings(kubeconfig=str(config), node_name=node)), node, timing=TIMING)
        for node in nodes
    ]
    tasks = [asyncio.create_task(each.run()) for each in found]
    try:
        await until(lambda: all(each.is_listed for each in found))
        for number, each in enumerate(found):
            each.publish([f"10.0.0.{number + 1}"], each.suspected_by_this_node())
        await until(lambda: all(set(nodes) <= each.nodes.keys() for each in found))
        yield found
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def until(condition: Callable[[], Any], within_s: float = 30.0) -> None:
    async with asyncio.timeout(within_s):
        while not condition():  # noqa: ASYNC110 - nothing tells
            await asyncio.sleep(0.01)


async def test_nodes_find_each_other_and_the_suspicions_of_others(own_leases: Cluster, config: Path) -> None:
    async with joined(config, "a", "b", LONG) as (a, b, long):
        assert b.nodes["a"] == ("10.0.0.1",)
        owner = lease(own_leases, "a")["metadata"]["ownerReferences"]
        assert [(each["kind"], each["name"]) for each in owner] == [("Node", "a")]
        assert "ownerReferences" not in lease(own_leases, LONG)["metadata"], "it has no Node object"
        a.publish(["10.0.0.1"], frozenset({"b"}))
        long.publish(["10.0.0.3"], frozenset({"b"}))
        await until(lambda: b.suspicions.get("b") == {"a", LONG})
        a.publish(["10.0.0.1"], frozenset())
        await until(lambda: b.suspicions.get("b") == {LONG})
        long.publish(["10.0.0.3"], frozenset())
        await until(lambda: not b.suspicions)
        b.publish(["10.0.0.9", "fd00::9"], frozenset())  # its address has changed
        await until(lambda: a.nodes["b"] == ("10.0.0.9", "fd00::9"))


async def test_a_suspicion_outlives_the_agent_and_is_its_own_again(own_leases: Cluster, config: Path) -> None:
    async with joined(config, "a", "b") as (a, b):
        a.publish(["10.0.0.1"], frozenset({"b"}))
        await until(lambda: b.suspicions)
    async with joined(config, "a", "b") as (a, b):
        assert a.suspected_by_this_node() == {"b"}
        assert b.suspicions == {"b": {"a"}}


async def test_an_own_lease_that_is_deleted_is_created_again(own_leases: Cluster, config: Path) -> None:
    async with joined(config, "a", "b") as (a, b):
        uid = lease(own_leases, "b")["metadata"]["uid"]
        own_leases.plane.send("DELETE", f"{LEASES}/lbagent-live-b")
        await until(lambda: own_leases.plane.send("GET", f"{LEASES}/lbagent-live-b")[0] == 200)
        assert lease(own_leases, "b")["metadata"]["uid"] != uid
        await until(lambda: "b" in a.nodes and "b" in b.nodes)


async def test_while_nothing_happens_nothing_is_written(own_leases: Cluster, config: Path) -> None:
    async with joined(config, "a", "b") as (a, b):
        await asyncio.sleep(1)
        before = own_leases.plane.ask("GET", LIVE)
        writes = len(own_leases.plane.requests())
        for _ in range(30):
            a.publish(["10.0.0.1"], frozenset())
            b.publish(["10.0.0.2"], frozenset())
            await asyncio.sleep(0.1)
        verbs = [each.verb for each in own_leases.plane.requests()[writes:] if each.resource == "leases"]
        assert not {"create", "update", "patch"} & set(verbs)
        versions = [
            {item["metadata"]["name"]: item["metadata"]["resourceVersion"] for item in found["items"]}
            for found in (before, own_leases.plane.ask("GET", LIVE))
        ]
        assert versions[0] == versions[1]


async def test_a_suspicion_that_cannot_be_published_is_known(own_leases: Cluster, proxy: Proxy, config: Path) -> None:
    """By refused connections, and by a server that is silent."""
    async with joined(config, "a", "b") as (a, b):
        for is_refusing in (True, False):
            proxy.is_refusing = is_refusing
            proxy.cut() if is_refusing else proxy.stall()
            a.publish(["10.0.0.1"], frozenset({"b"}))
            assert not a.unpublished
            await until(lambda: a.unpublished == {"b"}, 3)
            proxy.is_refusing = False
            proxy.flow()
            await until(lambda: not a.unpublished and b.suspicions == {"b": {"a"}})
            a.publish(["10.0.0.1"], frozenset())
            await until(lambda: not b.suspicions)


async def test_the_first_agent_writes_the_key_and_no_other_changes_it(own_leases: Cluster, config: Path) -> None:
    plane = own_leases.plane
    clients = [KubeClient(KubeSettings(kubeconfig=str(config), node_name=name)) for name in ("a", "b", "c")]
    try:
        assert not await fill_key_secret(clients[0]), "no Secret: the key comes from elsewhere"
        body = {
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": {"name": "lbagent-liveness", "namespace": "kube-system"},
        }
        plane.ask("POST", SECRETS, body)
        assert await asyncio.gather(*map(fill_key_secret, clients)) == [True, True, True]
        key = plane.ask("GET", f"{SECRETS}/lbagent-liveness")["data"]["key"]
        assert len(base64.b64decode(base64.b64decode(key))) == 32
        assert await fill_key_secret(clients[1])
        assert plane.ask("GET", f"{SECRETS}/lbagent-liveness")["data"]["key"] == key
    finally:
        plane.send("DELETE", f"{SECRETS}/lbagent-liveness")
        for client in clients:
            await client.close()


ROLE = "/apis/rbac.authorization.k8s.io/v1/namespaces/kube-system/roles/lbagent-liveness"
(RULES,) = [
    obj["rules"] for obj in manifest() if obj["metadata"]["name"] == "lbagent-liveness" and obj["kind"] == "Role"
]


@pytest.mark.parametrize("verb", sorted({*RULES[0]["verbs"]} - {"list"}))  # this server streams lists
async def test_each_right_is_needed_and_one_that_is_missing_is_a_fault(
    own_leases: Cluster, config: Path, verb: str
) -> None:
    """By the shipped role alone: no other one that tests give may add it."""
    plane = own_leases.plane
    take_rights(own_leases)
    role = plane.ask("GET", ROLE)
    fewer = [RULES[0] | {"verbs": [each for each in RULES[0]["verbs"] if each != verb]}]
    plane.ask("PUT", ROLE, role | {"rules": fewer})
    leases = LiveLeases(KubeClient(KubeSettings(kubeconfig=str(config), node_name="a")), "a", timing=TIMING)
    task = asyncio.create_task(leases.run())

    def takes_part() -> bool:
        leases.publish(["10.0.0.1"], frozenset())
        return "a" in leases.nodes

    try:
        await until(lambda: not takes_part() and "403" in leases.failure)
        plane.ask("PUT", ROLE, plane.ask("GET", ROLE) | {"rules": RULES})
        await until(lambda: takes_part() and not leases.failure)
    finally:
        plane.ask("PUT", ROLE, plane.ask("GET", ROLE) | {"rules": RULES})
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
