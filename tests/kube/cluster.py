"""Objects for an API server, and a source that follows it with short pauses."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

from lbagent.kube.kube_settings import KubeSettings, KubeTiming
from lbagent.objects.records import EndpointSlice, KubeObject, ObjectChange, Service
from lbagent.sources.kube.source import KubeSource
from tests.kube.api_server import ApiServer, Obj

NODE = "node-1"
QUICK = KubeTiming(
    first_pause_s=0.02,
    max_pause_s=0.2,
    healthy_s=0.5,
    silence_s=0.6,
    list_silence_s=0.6,
    alive_s=0.1,
    standing_s=0.3,
    first_list_s=10.0,
    optional_s=10.0,
    watch_s=(300, 600),
    absent_s=0.3,
    page=3,
)
# how a server gives lists; the older way is left out of short runs
STREAMS_OR_PAGES = [pytest.param(True, id="streams"), pytest.param(False, id="pages", marks=pytest.mark.long)]
PROXY_NAME, HEADLESS = "service.kubernetes.io/service-proxy-name", "service.kubernetes.io/headless"
LABELS = f"!{PROXY_NAME}"


def service(name: str, vip: str = "10.96.0.1", namespace: str = "default", **more: Any) -> Obj:
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": name, "namespace": namespace, **more},
        "spec": {"type": "ClusterIP", "clusterIPs": [vip], "ports": [{"port": 80, "protocol": "TCP"}]},
    }


def slice_of(name: str, *addresses: str, namespace: str = "default", labels: dict[str, str] | None = None) -> Obj:
    return {
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": {
            "name": f"{name}-x",
            "namespace": namespace,
            "labels": {"kubernetes.io/service-name": name, **(labels or {})},
        },
        "addressType": "IPv4",
        "ports": [{"name": "", "port": 8080, "protocol": "TCP"}],
        "endpoints": [{"addresses": [address], "conditions": {"ready": True}} for address in addresses],
    }


def node(name: str = NODE, zone: str = "a") -> Obj:
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": {"topology.kubernetes.io/zone": zone}},
        "status": {"addresses": [{"type": "InternalIP", "address": "192.0.2.1"}]},
    }


def pod(name: str, on: str = NODE, **annotations: str) -> Obj:
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": "default", "annotations": annotations},
        "spec": {"nodeName": on, "containers": [{"ports": [{"containerPort": 80, "hostPort": 8080}]}]},
        "status": {"phase": "Running", "podIPs": [{"ip": "10.244.0.9"}]},
    }


def backend_state(name: str, address: str, state: str = "maintenance") -> Obj:
    return {
        "apiVersion": "lbagent.io/v1alpha1",
        "kind": "BackendState",
        "metadata": {"name": name},
        "spec": {"address": address, "state": state},
    }


def shop(count: int) -> list[Obj]:
    """Services with a slice each, and the Service that every cluster has."""
    objs = [service("kubernetes", "10.96.0.1"), slice_of("kubernetes", "192.0.2.9")]
    for number in range(count - 1):
        objs += [
            service(f"web-{number}", f"10.96.1.{number}"),
            slice_of(f"web-{number}", f"10.244.1.{number + 1}"),
        ]
    return objs


def kubeconfig(folder: Path, port: int, **user: str) -> str:
    path = folder / "kubeconfig"
    text = {
        "current-context": "here",
        "contexts": [{"name": "here", "context": {"cluster": "c", "user": "u"}}],
        "clusters": [{"name": "c", "cluster": {"server": f"http://127.0.0.1:{port}"}}],
        "users": [{"name": "u", "user": user}],
    }
    path.write_text(yaml.safe_dump(text))
    return str(path)


def essence(obj: KubeObject | Obj) -> Any:
    """Identifies the version of an object, for a record and for the API's form."""
    if isinstance(obj, Service):
        return tuple(socket.inet_ntoa(each) for each in obj.cluster_ips)
    if isinstance(obj, EndpointSlice):
        return tuple(socket.inet_ntoa(each.address) for each in obj.endpoints)
    if isinstance(obj, dict) and obj["kind"] == "Service":
        return tuple(obj["spec"]["clusterIPs"])
    if isinstance(obj, dict) and obj["kind"] == "EndpointSlice":
        return tuple(each["addresses"][0] for each in obj["endpoints"])
    return None


class Follower:
    """A running KubeSource, and the objects of a listener after the reported changes."""

    def __init__(self, source: KubeSource, api: ApiServer) -> None:
        self.source, self.api = source, api
        self.known: dict[tuple[str, str], KubeObject] = {}
        self.deleted: set[str] = set()  # keys that were deleted at any time
        self.calls = 0
        self.task: asyncio.Task[None] | None = None

    def __call__(self, changes: Sequence[ObjectChange]) -> None:
        self.calls += 1
        for change in changes:
            assert self.known.get((change.kind, change.key)) == change.old
            assert change.old != change.new
            if change.new is None:
                del self.known[change.kind, change.key]
                self.deleted.add(change.key)
            else:
                assert change.new.key == change.key
                self.known[change.kind, change.key] = change.new

    @property
    def view(self) -> dict[tuple[str, str], Any]:
        return {key: essence(obj) for key, obj in self.known.items()}

    @property
    def wanted(self) -> dict[tuple[str, str], Any]:
        """The objects of a fresh list."""
        found = {}
        selectors: dict[str, dict[str, str]] = {
            "Service": {"labelSelector": LABELS},
            "EndpointSlice": {"labelSelector": f"{LABELS},!{HEADLESS}"},
            "Node": {"fieldSelector": f"metadata.name={NODE}"},
            "Pod": {"fieldSelector": f"spec.nodeName={NODE}"},
            "ServiceCIDR": {},
            "BackendState": {},
        }
        for kind, query in selectors.items():
            if kind in self.api.installed:
                found |= {(kind, key): essence(obj) for key, obj in self.api.listed(kind, query).items()}
        return found

    def names(self, kind: str) -> list[str]:
        return sorted(key for each, key in self.known if each == kind)

    @property
    def texts(self) -> str:
        return "\n".join(map(str, self.source.problems()))

    async def until(self, condition: Callable[[], bool], within_s: float = 60.0) -> None:
        async with asyncio.timeout(within_s):
            while not condition():
                assert self.task is None or not self.task.done(), self.task.exception()
                await asyncio.sleep(0.005)

    async def converges(self, within_s: float = 60.0) -> None:
        """Wait until it has the objects of a fresh list, and so has the snapshot."""
        try:
            await self.until(lambda: self.view == self.wanted, within_s)
        except TimeoutError:
            assert self.view == self.wanted
        snapshot = self.source.snapshot()
        for kind, key in self.known:
            assert snapshot.of_kind(kind)[key] == self.known[kind, key]


@asynccontextmanager
async def serving(objs: Iterable[Obj] = (), *, streams: bool = True) -> AsyncIterator[ApiServer]:
    """An API server with this node and some objects."""
    api = ApiServer()
    api.streams_lists = streams
    await api.change([node(), *objs])
    await api.start()
    try:
        yield api
    finally:
        await api.stop()


@asynccontextmanager
async def following(
    api: ApiServer,
    folder: Path,
    *,
    resumes: bool = False,
    synced: bool = True,
    user: dict[str, str] | None = None,
    **settings: Any,
) -> AsyncIterator[Follower]:
    """Run a source on a server; with `synced`, until its first lists are there."""
    given = {"node_name": NODE, "timing": QUICK, "state_dir": str(folder / "state")} | settings
    source = KubeSource(KubeSettings(kubeconfig=kubeconfig(folder, api.port, **(user or {})), **given))
    if resumes:
        source.resume()
    follower = Follower(source, api)
    task = follower.task = asyncio.create_task(source.run(follower))
    try:
        if synced:
            done, _ = await asyncio.wait(
                {task, asyncio.create_task(source.synced.wait())}, timeout=10, return_when=asyncio.FIRST_COMPLETED
            )
            assert task not in done, task.exception()
            assert source.synced.is_set()
        yield follower
        assert not task.done(), task.exception()
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
