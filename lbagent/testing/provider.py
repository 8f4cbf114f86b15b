"""The tests that every provider of load balancers must pass.

A plug-in's package runs them with pytest:

    from lbagent.testing.provider import ProviderSuite
    class TestMine(ProviderSuite):
        def make_provider(self): return mine.factory("color: blue")

They need only pytest; no API server, and no event loop of the plug-in.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, NamedTuple

from lbagent.cloud.controller.watched_objects import WatchedNode, WatchedService, watched
from lbagent.cloud.provider import (
    CloudProvider,
    Clusters,
    Ingress,
    Instances,
    InstancesV2,
    LoadBalancer,
    LoadBalancerStatus,
    Node,
    Routes,
    Service,
    Zones,
    same_ingress,
)
from lbagent.kube.kube_client import KubeClient
from lbagent.objects.decode.decode_object import decode_json
from lbagent.objects.records import NOWHERE, KubeObject, ObjectChange, ObjectSnapshot

CLUSTER = "kubernetes"
UIDS = "{:08d}-0000-4000-8000-000000000000"
PARTS: dict[str, type[Any]] = {
    "load_balancer": LoadBalancer,
    "instances": Instances,
    "instances_v2": InstancesV2,
    "zones": Zones,
    "clusters": Clusters,
    "routes": Routes,
}


class WrittenEvent(NamedTuple):
    """An Event that a provider wrote."""

    service: str
    reason: str
    text: str
    warning: bool


class FakeCluster:
    """A cluster in memory, which a provider gets as its client_builder."""

    lb_class = ""
    cluster_name = CLUSTER
    node_name = ""

    def __init__(self, nodes: Sequence[str] = ("n1", "n2")) -> None:
        self.events: list[WrittenEvent] = []
        self.synced: list[str] = []  # keys of Services for which the provider queued a sync
        self._services: dict[str, WatchedService] = {}
        self._manifests: dict[str, dict[str, Any]] = {}
        self._nodes: dict[str, WatchedNode] = {}
        self._followers: list[Callable[[Sequence[ObjectChange]], None]] = []
        for index, name in enumerate(nodes):
            address = {"type": "InternalIP", "address": f"192.0.2.{index + 101}"}
            node = _decoded("Node", {"metadata": {"name": name}, "status": {"addresses": [address]}})
            assert isinstance(node, WatchedNode)
            self._nodes[name] = node

    # --- what a provider calls ---

    def client(self) -> KubeClient:
        """There is no API server."""
        raise AssertionError("the cluster of the tests has no API server")

    def snapshot(self) -> ObjectSnapshot:
        """Return every object."""
        return ObjectSnapshot(services=dict(self._services), nodes=dict(self._nodes))

    def follow(self, on_changes: Callable[[Sequence[ObjectChange]], None]) -> None:
        """Register a function that gets changes."""
        self._followers.append(on_changes)

    def sync(self, key: str) -> None:
        """Record the call."""
        self.synced.append(key)

    def write_event(self, service: Service, reason: str, text: str, *, warning: bool) -> None:
        """Record the call."""
        self.events.append(WrittenEvent(service.key, reason, text, warning))

    # --- called by the tests ---

    @property
    def nodes(self) -> list[Node]:
        """The nodes, as a provider gets them."""
        return [node.record for node in self._nodes.values()]

    def add(self, manifest: dict[str, Any]) -> Service:
        """Add or replace a Service; return it as a provider gets it."""
        new = _decoded("Service", manifest)
        assert isinstance(new, WatchedService), "the manifest is no Service"
        old, self._services[new.key] = self._services.get(new.key), new
        self._manifests[new.key] = manifest
        self._tell(ObjectChange("Service", new.key, old, new))
        return new.record

    def set_status(self, service: Service, status: LoadBalancerStatus | None) -> Service:
        """Write a status to a Service, None to remove it; return the new Service."""
        entries = [_ingress(each) for each in status.ingress] if status else []
        ingress = [{key: value for key, value in entry.items() if value} for entry in entries]
        return self.add(self._manifests[service.key] | {"status": {"loadBalancer": {"ingress": ingress}}})

    def remove(self, service: Service) -> None:
        """Remove a Service."""
        self._tell(ObjectChange("Service", service.key, self._services.pop(service.key), None))

    def _tell(self, change: ObjectChange) -> None:
        for each in self._followers:
            each([change])


def _decoded(kind: str, manifest: dict[str, Any]) -> KubeObject | None:
    raw = json.dumps(manifest).encode()
    return watched(decode_json(kind, raw, NOWHERE).obj, raw)


def _ingress(entry: Ingress) -> dict[str, Any]:
    ports = [{"port": port.port, "protocol": port.protocol, "error": port.error or None} for port in entry.ports]
    return {"ip": entry.ip, "hostname": entry.hostname, "ipMode": entry.ip_mode, "ports": ports}


class ProviderSuite:
    """Subclass it and define `make_provider`; `annotations` has those that a Service of this provider needs."""

    annotations: dict[str, str] = {}  # noqa: RUF012 - a subclass replaces it
    nodes: tuple[str, ...] = ("n1", "n2")

    def make_provider(self) -> CloudProvider:
        """Return a new provider."""
        raise NotImplementedError

    def manifest(self, number: int) -> dict[str, Any]:
        """Return a Service of the provider; a different one for each number."""
        return {
            "metadata": {
                "name": f"web-{number}",
                "namespace": "shop",
                "uid": UIDS.format(number),
                "annotations": self.annotations,
                "creationTimestamp": f"2026-01-01T00:00:{number:02d}Z",
            },
            "spec": {
                "type": "LoadBalancer",
                "clusterIP": f"10.96.0.{number}",
                "clusterIPs": [f"10.96.0.{number}"],
                "ipFamilies": ["IPv4"],
                "ports": [
                    {"name": "http", "protocol": "TCP", "port": 80, "targetPort": 8080, "nodePort": 30000 + number}
                ],
            },
        }

    # --- tests ---

    def test_it_says_what_it_is(self) -> None:
        """A name, and parts that implement the API, or None."""
        provider = self.make_provider()
        assert isinstance(provider.name, str)
        assert provider.name
        for name, kind in PARTS.items():
            part = getattr(provider, name)()
            assert part is None or isinstance(part, kind), name

    def test_a_balancer_comes_and_goes(self) -> None:
        """An ensured balancer exists, and a deleted one does not."""

        async def check(cluster: FakeCluster, balancers: LoadBalancer) -> None:
            service = cluster.add(self.manifest(1))
            assert await balancers.get(CLUSTER, service) is None
            status = await balancers.ensure(CLUSTER, service, cluster.nodes)
            assert isinstance(status, LoadBalancerStatus)
            service = cluster.set_status(service, status)
            found = await balancers.get(CLUSTER, service)
            assert found is not None
            assert same_ingress(found, status)
            await balancers.ensure_deleted(CLUSTER, service)
            assert await balancers.get(CLUSTER, cluster.set_status(service, None)) is None

        self._run(check)

    def test_a_second_ensure_changes_nothing(self) -> None:
        """Also when the status of the first call was not written, and when nodes change."""

        async def check(cluster: FakeCluster, balancers: LoadBalancer) -> None:
            service = cluster.add(self.manifest(1))
            first = await balancers.ensure(CLUSTER, service, cluster.nodes)
            assert same_ingress(await balancers.ensure(CLUSTER, service, cluster.nodes), first)
            service = cluster.set_status(service, first)
            assert same_ingress(await balancers.ensure(CLUSTER, service, cluster.nodes), first)
            await balancers.update(CLUSTER, service, cluster.nodes[:1])
            assert same_ingress(await balancers.ensure(CLUSTER, service, cluster.nodes[:1]), first)

        self._run(check)

    def test_deleting_what_is_not_there_is_no_error(self) -> None:
        """Once, twice, and for an unknown Service."""

        async def check(cluster: FakeCluster, balancers: LoadBalancer) -> None:
            service = cluster.add(self.manifest(1))
            await balancers.ensure_deleted(CLUSTER, service)
            service = cluster.set_status(service, await balancers.ensure(CLUSTER, service, cluster.nodes))
            for _ in range(2):
                await balancers.ensure_deleted(CLUSTER, service)
            cluster.remove(service)
            await balancers.ensure_deleted(CLUSTER, service)

        self._run(check)

    def test_services_do_not_disturb_one_another(self) -> None:
        """Three at once; one is deleted, the others do not change."""

        async def check(cluster: FakeCluster, balancers: LoadBalancer) -> None:
            services = [cluster.add(self.manifest(number)) for number in (1, 2, 3)]
            made = [balancers.ensure(CLUSTER, service, cluster.nodes) for service in services]
            given = await asyncio.gather(*made)
            services = [cluster.set_status(*pair) for pair in zip(services, given, strict=True)]
            await balancers.ensure_deleted(CLUSTER, services[0])
            cluster.remove(services[0])
            for service, status in zip(services[1:], given[1:], strict=True):
                assert same_ingress(await balancers.ensure(CLUSTER, service, cluster.nodes), status)

        self._run(check)

    def test_names(self) -> None:
        """A name is the same each time, and unique to the Service."""

        async def check(cluster: FakeCluster, balancers: LoadBalancer) -> None:
            one, two = (cluster.add(self.manifest(number)) for number in (1, 2))
            assert balancers.name(CLUSTER, one) == balancers.name(CLUSTER, one)
            assert balancers.name(CLUSTER, one) != balancers.name(CLUSTER, two)

        self._run(check)

    def test_machines(self) -> None:
        """The data of a machine has the right types, and is the same twice."""

        async def check(machines: InstancesV2, node: Node) -> None:
            assert isinstance(await machines.exists(node), bool)
            assert isinstance(await machines.is_shut_down(node), bool)
            found = await machines.metadata(node)
            assert found == await machines.metadata(node)
            if found is not None:
                assert "://" in found.provider_id
                assert all(kind and address for kind, address in found.addresses)

        async def run() -> None:
            provider, cluster, stop = self.make_provider(), FakeCluster(self.nodes), asyncio.Event()
            machines = provider.instances_v2()
            if machines is not None:
                await provider.initialize(cluster, stop)
                for node in cluster.nodes:
                    await check(machines, node)
                stop.set()

        asyncio.run(run())

    def _run(self, check: Callable[[FakeCluster, LoadBalancer], Awaitable[None]]) -> None:
        async def run() -> None:
            provider, cluster, stop = self.make_provider(), FakeCluster(self.nodes), asyncio.Event()
            balancers = provider.load_balancer()
            if balancers is None:
                return
            await provider.initialize(cluster, stop)
            try:
                await check(cluster, balancers)
            finally:
                stop.set()

        asyncio.run(run())
