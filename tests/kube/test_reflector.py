"""A reflector and an API server with every kind of fault: its objects are those of a fresh list, for few requests."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, suppress
from pathlib import Path

import msgspec
import pytest
from aiohttp import web

from lbagent.kube.reflector import error_of, is_version_too_large
from tests.kube.api_server import ApiServer, status
from tests.kube.cluster import (
    HEADLESS,
    NODE,
    PROXY_NAME,
    STREAMS_OR_PAGES,
    Follower,
    backend_state,
    following,
    node,
    pod,
    service,
    serving,
    shop,
    slice_of,
)


@pytest.fixture(params=STREAMS_OR_PAGES)
async def api(request) -> AsyncIterator[ApiServer]:
    async with serving(shop(8), streams=request.param) as server:
        yield server


@pytest.fixture
async def follower(api: ApiServer, tmp_path: Path) -> AsyncIterator[Follower]:
    async with following(api, tmp_path) as found:
        await found.until(lambda: watching(api))
        yield found


def watching(api: ApiServer) -> bool:
    """Whether all four resources that are there are watched."""
    begun = {
        each["resource"] for each in api.seen if "watch" in each and (api.streams_lists or "resourceVersion" in each)
    }
    return begun >= {"services", "endpointslices", "nodes", "pods"}


OPTIONAL = (
    "backendstates",
    "localredirectpolicies",
    "ciliumlocalredirectpolicies",
)  # their definitions are not installed


def lists(api: ApiServer, name: str = "") -> int:
    """How many lists were begun, in pages or as a stream. One of a single object reads the server's version."""
    return sum(
        name in ("", each["resource"])
        and (each.get("limit", "1") != "1" or "sendInitialEvents" in each)
        and "continue" not in each
        for each in api.seen
        if each["resource"] not in OPTIONAL
    )


async def test_the_first_list_has_every_object_once(follower: Follower, api: ApiServer) -> None:
    assert follower.view == follower.wanted
    assert len(follower.names("Service")) == 8
    assert follower.source.trusted
    assert follower.texts == ""
    if not api.streams_lists:
        pages = [each for each in api.seen if each["resource"] == "services" and "limit" in each]
        assert [("continue" in each, each["limit"]) for each in pages] == [(False, "3"), (True, "3"), (True, "3")]


async def test_selectors_are_the_servers_work(follower: Follower, api: ApiServer) -> None:
    queries = {each["resource"]: (each.get("labelSelector"), each.get("fieldSelector")) for each in api.seen}
    assert queries["services"] == ("!service.kubernetes.io/service-proxy-name", None)
    assert queries["endpointslices"] == (
        "!service.kubernetes.io/service-proxy-name,!service.kubernetes.io/headless",
        None,
    )
    assert queries["nodes"] == (None, "metadata.name=node-1")
    assert queries["pods"] == (None, "spec.nodeName=node-1")
    await api.change(
        [pod("here"), pod("elsewhere", "node-2"), node("node-2"), slice_of("h", "10.0.0.1", labels={HEADLESS: ""})]
    )
    await api.put(service("last", "10.96.9.9"))
    await follower.converges()
    assert follower.names("Pod") == ["default/here"]
    assert follower.names("Node") == [NODE]


async def test_events(follower: Follower, api: ApiServer) -> None:
    await api.put(service("new", "10.96.2.1"))
    await follower.converges()
    await api.put(service("new", "10.96.2.2"))
    await follower.converges()
    await api.delete("Service", "default/new")
    await follower.converges()
    await api.put(service("web-0", "10.96.2.3", labels={PROXY_NAME: "another"}))
    await follower.until(lambda: "default/web-0" not in follower.names("Service"))
    await api.put(service("web-0", "10.96.2.3"))
    await follower.converges()
    assert lists(api) == (5 if api.streams_lists else 10)  # that it streams no lists is found once for each resource


async def test_a_bookmark_is_where_the_next_watch_begins(follower: Follower, api: ApiServer) -> None:
    before = lists(api)
    for _ in range(5):
        await api.put(pod("elsewhere", "node-2"))  # a watch of this node does not get it
    await api.bookmark()
    await asyncio.sleep(0.1)
    api.compact()
    api.cut()
    await api.put(service("after", "10.96.3.1"))
    await follower.converges()
    assert lists(api) == before


async def test_without_a_bookmark_the_history_is_gone_and_a_new_list_is_compared(
    follower: Follower, api: ApiServer
) -> None:
    api.is_silent = True
    await api.put(service("new", "10.96.3.1"))
    await api.delete("Service", "default/web-1")
    api.compact()
    api.is_silent = False
    api.cut()
    await follower.converges()


# --- faults: each is done, then objects change, and all must be as a fresh list ---


async def reset_in_the_middle_of_an_event(api: ApiServer, _follower: Follower) -> None:
    def half(lines: list[bytes]) -> list[bytes]:
        api.mangle = lambda lines: lines
        asyncio.get_running_loop().call_later(0.02, api.cut)
        return [*lines[:-1], lines[-1][: len(lines[-1]) // 2]]

    api.mangle = half


async def stall(api: ApiServer, _follower: Follower) -> None:
    api.is_silent = True
    asyncio.get_running_loop().call_later(0.3, setattr, api, "is_silent", False)


async def half_open(api: ApiServer, _follower: Follower) -> None:
    """Longer than a connection may be silent, for those there are and for the next ones."""
    api.is_silent = True
    asyncio.get_running_loop().call_later(1.5, setattr, api, "is_silent", False)


async def gone_in_a_watch(api: ApiServer, _follower: Follower) -> None:
    api.cut()
    api.version += 1  # no object has this one
    api.compact()


async def gone_while_pages_are_read(api: ApiServer, follower: Follower) -> None:
    await gone_in_a_watch(api, follower)
    api.expire_pages = 2


async def too_many_requests(api: ApiServer, _follower: Follower) -> None:
    api.cut()
    for _ in range(5):
        api.answers.append(web.json_response(status(429, "slow down"), status=429, headers={"Retry-After": "1"}))


async def a_burst_of_500(api: ApiServer, _follower: Follower) -> None:
    api.cut()
    for _ in range(15):
        api.answers.append(web.Response(status=500, text="internal error"))


async def not_an_answer(api: ApiServer, follower: Follower) -> None:
    """A proxy's page with status 200, and JSON that is something else."""
    await gone_in_a_watch(api, follower)
    for text in ("<html>please log in</html>", "{}", '{"kind":"Status"}', "[]", '{"kind": "ServiceList", "items": []}'):
        api.answers.append(web.Response(text=text))


async def a_stale_list(api: ApiServer, follower: Follower) -> None:
    """An API server whose cache is behind answers the list that follows a 410."""
    old = {kind: (api.version, dict(api.objects[kind])) for kind in ("Service", "EndpointSlice")}
    await api.change([service("fresh", "10.96.5.5"), slice_of("fresh", "10.244.5.5")])
    await follower.converges()
    api.stale = old
    await gone_in_a_watch(api, follower)


async def events_twice_and_in_another_order(api: ApiServer, _follower: Follower) -> None:
    def mangle(lines: list[bytes]) -> list[bytes]:
        out = lines * 2
        random.Random(4).shuffle(out)
        return out

    api.mangle = mangle


async def restart(api: ApiServer, _follower: Follower) -> None:
    await api.stop()
    await asyncio.sleep(0.3)
    await api.start()


FAULTS = [
    reset_in_the_middle_of_an_event,
    stall,
    half_open,
    gone_in_a_watch,
    gone_while_pages_are_read,
    too_many_requests,
    a_burst_of_500,
    not_an_answer,
    a_stale_list,
    events_twice_and_in_another_order,
    restart,
]
MOST_REQUESTS = 60  # in the two seconds that the longest fault takes, of four resources with pauses of 0.02 to 0.2 s


@pytest.mark.long
@pytest.mark.parametrize("fault", FAULTS)
async def test_after_a_fault_it_holds_what_a_fresh_list_holds(fault, follower: Follower, api: ApiServer) -> None:
    before = sum(api.requests.values()) - api.requests["watch backendstates"] - api.requests["list backendstates"]
    await fault(api, follower)
    await api.change(
        [service("web-0", "10.96.7.1"), service("new", "10.96.7.2"), slice_of("web-1", "10.244.7.1", "10.244.7.2")],
        [("Service", "default/web-2"), ("EndpointSlice", "default/web-2-x")],
    )
    await api.change([service("new", "10.96.7.3")], [("Service", "default/web-3")])
    await follower.until(lambda: not api.answers and not api.is_silent)
    await follower.converges()
    await follower.until(lambda: follower.source.trusted)
    await follower.until(lambda: not follower.texts)
    assert follower.deleted <= {
        "default/web-2",
        "default/web-2-x",
        "default/web-3",
    }  # nothing else was away for a moment
    after = sum(api.requests.values()) - api.requests["watch backendstates"] - api.requests["list backendstates"]
    assert after - before <= MOST_REQUESTS
    await api.put(service("later", "10.96.7.9"))
    await follower.converges()


async def test_pages_that_expired_count_for_nothing(tmp_path: Path) -> None:
    """Objects of the first page may be gone when everything is listed again."""
    async with serving(shop(8), streams=False) as api, following(api, tmp_path) as follower:
        await follower.until(lambda: watching(api))
        await gone_while_pages_are_read(api, follower)
        api.on_expired = lambda: api.objects["Service"].pop("default/kubernetes", None)
        await follower.until(lambda: not api.expire_pages)
        await follower.converges()
        assert "default/kubernetes" not in follower.names("Service")


@pytest.mark.long
async def test_retry_after_is_kept(follower: Follower, api: ApiServer) -> None:
    began, told = time.monotonic(), len(api.seen)
    await too_many_requests(api, follower)
    await follower.until(lambda: not api.answers)
    asked = len(api.seen)
    await api.put(service("new", "10.96.7.2"))
    await asyncio.sleep(max(0.0, began + 0.9 - time.monotonic()))
    assert len([each for each in api.seen[asked:] if each["resource"] not in OPTIONAL]) == 0
    assert asked > told
    await follower.converges()


@pytest.mark.long
async def test_a_server_that_ends_every_watch_at_once_is_not_asked_without_pauses(
    follower: Follower, api: ApiServer
) -> None:
    def empty() -> web.Response:
        api.answers.append(empty)
        return web.Response(text="")

    api.answers.append(empty)
    api.cut()
    before = len(api.seen)
    await asyncio.sleep(1.5)
    assert len(api.seen) - before <= 7 * (1.5 / 0.2 + 6)  # seven resources, each soon at the longest pause
    api.answers.clear()
    await api.put(service("new", "10.96.7.2"))
    await follower.converges()


@pytest.mark.parametrize("tells", [True, False])
async def test_a_server_that_went_back_is_seen(follower: Follower, api: ApiServer, tells: bool) -> None:
    """Its state is an older one, and no connection broke: its bookmarks have lower versions, or none comes any more."""
    api.version = 500
    for entries in api.history.values():
        entries.clear()
    api.objects["Service"].pop("default/web-4")
    if tells:
        await api.bookmark()
    await follower.converges()


async def test_a_server_that_went_back_while_a_connection_broke_is_asked(follower: Follower, api: ApiServer) -> None:
    """Each resource requests the next server's version, with a list of one object, and no more once it is trusted."""
    before = len(api.seen)
    api.cut()
    await follower.until(lambda: len([each for each in api.seen[before:] if each.get("watch")]) >= 4)
    asked = [each for each in api.seen[before:] if each.get("limit") == "1"]
    assert len(asked) == len({each["resource"] for each in asked}) >= 4
    assert all("resourceVersion" not in each for each in asked)  # 0 would be whatever the server has at hand


async def test_a_watch_that_ends_by_itself_goes_on(follower: Follower, api: ApiServer) -> None:
    seen = [each for each in api.seen if each.get("watch")]
    assert all(300 <= int(each["timeoutSeconds"]) <= 600 for each in seen)
    assert all(each["allowWatchBookmarks"] == "true" for each in seen)


@pytest.mark.long
async def test_a_resource_that_is_not_installed_is_asked_for_again_rarely(follower: Follower, api: ApiServer) -> None:
    assert 1 <= api.requests["watch backendstates"] + api.requests["list backendstates"] <= 3
    assert follower.source.trusted
    await api.put(backend_state("one", "10.244.1.1:8080/TCP"))
    api.installed.add("BackendState")
    await follower.until(lambda: follower.names("BackendState") == ["one"])
    api.installed.remove("BackendState")  # a server that has just begun may not know it yet
    api.cut()
    await asyncio.sleep(0.05)
    assert follower.names("BackendState") == ["one"]
    await follower.until(lambda: follower.names("BackendState") == [])
    assert follower.source.trusted


async def test_a_pod_says_no_weight_that_only_its_node_would_read(follower: Follower, api: ApiServer) -> None:
    await api.put(pod("here", **{"lbagent.io/weight": "7"}))
    await follower.converges()
    assert follower.known["Pod", "default/here"].weight is None


async def test_what_is_faulty_keeps_its_last_good_value(follower: Follower, api: ApiServer) -> None:
    good = service("odd", "10.96.8.1")
    await api.put(good)
    await follower.converges()
    bad = {**good, "spec": {**good["spec"], "ports": [{"port": 80000}], "clusterIPs": "?"}}
    await api.put(bad)
    await follower.until(lambda: "default/odd" in follower.texts)
    assert "kept" in follower.texts
    found = follower.known["Service", "default/odd"]
    assert [port.port for port in found.ports] == [80]
    await api.put(good)
    await follower.until(lambda: follower.texts == "")


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
async def test_a_storm(api: ApiServer, tmp_path: Path, seed: int) -> None:
    """Objects change at random while faults come at random; when it is calm, all is as a fresh list."""
    rng = random.Random(seed)
    async with AsyncExitStack() as stack:
        follower = await stack.enter_async_context(following(api, tmp_path))
        for step in range(120):
            name = f"s-{rng.randrange(12)}"
            if rng.random() < 0.3 and f"default/{name}" in api.objects["Service"]:
                await api.delete("Service", f"default/{name}")
            else:
                await api.change([service(name, f"10.96.9.{step}"), slice_of(name, f"10.244.9.{step + 1}")])
            if rng.random() < 0.15:
                fault = rng.choice([each for each in FAULTS if each not in (a_stale_list, half_open, restart)])
                with suppress(ConnectionError):
                    await fault(api, follower)
            await asyncio.sleep(rng.random() * 0.02)
        api.mangle, api.is_silent, api.expire_pages = (lambda lines: lines), False, 0
        api.answers.clear()
        await api.put(service("last", "10.96.10.1"))
        await follower.converges()


# --- answers of the server ---


@pytest.mark.parametrize(
    ("body", "is_too_large"),
    [
        ('{"code": 504, "message": "x", "details": {"causes": [{"reason": "ResourceVersionTooLarge"}]}}', True),
        ('{"code": 504, "message": "Too large resource version: 9, current: 8"}', True),  # a server that names no cause
        ('{"code": 504, "message": "Timeout", "details": {"causes": [{"reason": "FieldValueInvalid"}]}}', False),
        ('{"code": 504, "details": {"causes": null}}', False),
        ('{"code": 504, "details": null}', False),
    ],
)
def test_a_server_that_is_behind_names_the_cause(body: str, is_too_large: bool) -> None:
    assert is_version_too_large(error_of(msgspec.Raw(body.encode()))) is is_too_large
