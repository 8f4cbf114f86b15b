"""Another API server behind the same address, and the end of an outage."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest
from msgspec.structs import replace

from lbagent.kube.kube_client import KubeClient
from lbagent.kube.kube_settings import KubeSettings, KubeTiming
from lbagent.kube.object_cache import ObjectCache
from lbagent.kube.reflector import Reflector
from lbagent.kube.resources import resources
from lbagent.kube.server_contact import ServerContact
from lbagent.kube.server_history import ServerHistory
from tests.kube.api_server import NAMESPACE, ApiServer, Obj
from tests.kube.cluster import (
    NODE,
    QUICK,
    STREAMS_OR_PAGES,
    following,
    kubeconfig,
    node,
    service,
    serving,
    shop,
    slice_of,
)

STATE = ("version", "objects", "history", "compacted", "uid", "_pages")


class Switch:
    """A proxy before several servers: it forwards the one address to one of them."""

    def __init__(self, api: ApiServer) -> None:
        self._api = api
        self._parked: dict[str, dict[str, object]] = {}

    async def add(self, uid: str, objs: Iterable[Obj], version: int) -> None:
        """Start another server, which is not behind the address yet."""
        other = ApiServer()
        other.version, other.uid = version, uid
        await other.change(objs)
        self._parked[uid] = {name: getattr(other, name) for name in STATE}

    def to(self, uid: str, *, cuts: bool = True) -> None:
        """Lead to a server. Without `cuts` watches end as after their time, in good order."""
        self._parked[self._api.uid] = {name: getattr(self._api, name) for name in STATE}
        for name, value in self._parked.pop(uid).items():
            setattr(self._api, name, value)
        self._api.cut()


@pytest.mark.parametrize("streams", STREAMS_OR_PAGES)
@pytest.mark.parametrize("version", [1, 1018, 5000], ids=["older", "near", "newer"])
async def test_nothing_of_another_server_is_left(tmp_path: Path, streams: bool, version: int) -> None:
    """A -> B -> A. A Service created in B is gone, and every Service is equal to that of A."""
    async with serving(shop(24), streams=streams) as api:
        switch = Switch(api)
        await switch.add("two", [node(), service("kubernetes", "10.96.0.1")], version)
        async with following(api, tmp_path) as follower:
            await follower.until(lambda: follower.view == follower.wanted)
            switch.to("two")
            await api.change([service("of-b", "10.96.8.8"), slice_of("of-b", "10.244.8.8")])
            await follower.until(lambda: "default/of-b" in follower.names("Service"))
            switch.to("one")
            await follower.converges()
            assert "default/of-b" not in follower.names("Service")
            await follower.until(lambda: follower.source.trusted)
            assert not follower.source.held


async def test_an_object_with_the_same_name_and_version_is_read_again(tmp_path: Path) -> None:
    """resourceVersion 1003 of one server and of the other: two objects."""
    async with serving([service("web", "10.96.1.1"), service("b", "10.96.1.2")]) as api:
        switch = Switch(api)
        await switch.add("two", [node(), service("web", "10.96.9.9"), service("b", "10.96.1.2")], 1000)
        async with following(api, tmp_path) as follower:
            first = api.objects["Service"]["default/web"]["metadata"]["resourceVersion"]
            switch.to("two")
            assert api.objects["Service"]["default/web"]["metadata"]["resourceVersion"] == first
            await follower.converges()


async def test_without_the_right_to_read_the_namespace_it_follows_and_says_so_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    async with serving(shop(4)) as api:
        api.forbidden.add(("get", "namespaces"))
        async with following(api, tmp_path) as follower:
            for number in range(3):
                api.cut()
                await api.put(service("new", f"10.96.7.{number}"))
                await follower.converges()
            await follower.until(lambda: follower.source.trusted and not follower.texts)
            assert caplog.text.count("get the namespace kube-system") == 1
            reads = len(api.namespace_queries)
            api.forbidden.clear()
            api.cut()
            await follower.until(lambda: len(api.namespace_queries) > reads)
            await follower.converges()


async def test_the_uid_comes_from_the_servers_cache(tmp_path: Path) -> None:
    async with serving() as api:
        client = KubeClient(KubeSettings(kubeconfig=kubeconfig(tmp_path, api.port), node_name=NODE))
        try:
            assert await ServerHistory(client, 5.0).read_uid() == "one"
            assert api.namespace_queries == [{"resourceVersion": "0"}]
            assert NAMESPACE == "/api/v1/namespaces/kube-system"
        finally:
            await client.close()


# --- the end of an outage ---

SLEEPY = replace(QUICK, first_pause_s=600.0, max_pause_s=600.0, wake_spread_s=0.05)  # no pause ends by itself here


def client_of(api: ApiServer, folder: Path, contact: ServerContact | None = None) -> KubeClient:
    return KubeClient(KubeSettings(kubeconfig=kubeconfig(folder, api.port), node_name=NODE), contact)


def reflector_of(client: KubeClient, timing: KubeTiming) -> Reflector:
    resource = resources(NODE)[0]
    cache = ObjectCache(resource)

    return Reflector(
        client,
        resource,
        timing,
        cache,
        on_list=lambda one, draft: one.cache.accept(draft) and None,
        on_changes=lambda _: None,
    )


async def until(condition: Callable[[], bool]) -> None:
    while not condition():  # noqa: ASYNC110 - a condition of another object
        await asyncio.sleep(0.01)


async def ask(client: KubeClient) -> None:
    async with client.get("/api/v1/nodes", {}, silence_s=5.0) as answer:
        await answer.read()


async def test_a_request_that_succeeds_ends_the_pauses_of_an_outage(tmp_path: Path) -> None:
    """The other client is that of the Leases: it shares the contact alone."""
    async with serving(shop(4)) as api:
        client = client_of(api, tmp_path)
        other = client_of(api, tmp_path, client.contact)
        reflector = reflector_of(client, SLEEPY)
        await api.stop()
        task = asyncio.create_task(reflector.run())
        try:
            async with asyncio.timeout(20):
                await until(lambda: reflector.failure is not None)
                await api.start()
                assert not api.requests
                await ask(other)
                await reflector.listed.wait()
            assert len(reflector.cache.keys) == 4
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            await client.close()
            await other.close()


async def test_a_resource_that_goes_on_failing_is_not_asked_for_more_often(tmp_path: Path) -> None:
    """Other requests succeed all the time; its own pauses end early once in the longest pause."""
    async with serving(shop(4)) as api:
        client = client_of(api, tmp_path)
        reflector = reflector_of(client, SLEEPY)
        api.broken["services"] = 500
        task = asyncio.create_task(reflector.run())
        try:
            async with asyncio.timeout(20):
                await until(lambda: api.requests["watch services"] == 1)
                while api.requests["watch services"] < 2:
                    await ask(client)
            for _ in range(30):
                await ask(client)
                await asyncio.sleep(0.01)
            assert api.requests["watch services"] == 2
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            await client.close()


async def test_retry_after_is_kept_whoever_succeeds(tmp_path: Path) -> None:
    async with serving(shop(4)) as api:
        client = client_of(api, tmp_path)
        reflector = reflector_of(client, SLEEPY)
        api.initializing.add("services")
        task = asyncio.create_task(reflector.run())
        try:
            async with asyncio.timeout(20):
                await until(lambda: api.requests["watch services"] == 1)
            for _ in range(30):
                await ask(client)
                await asyncio.sleep(0.01)
            assert api.requests["watch services"] == 1
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            await client.close()
