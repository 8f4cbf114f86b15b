"""The source's interface for the agent: synced, trusted, messages, and which deletions take effect."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator

import pytest
from aiohttp import web
from msgspec.structs import replace

from lbagent.errors import NotFound
from lbagent.kube.kube_settings import KubeSettings
from lbagent.sources.kube import deletion_guard
from lbagent.sources.kube.source import KubeSource
from tests.kube.api_server import ApiServer, status
from tests.kube.cluster import (
    NODE,
    QUICK,
    STREAMS_OR_PAGES,
    backend_state,
    following,
    kubeconfig,
    node,
    service,
    serving,
    shop,
    slice_of,
)


@pytest.fixture(params=STREAMS_OR_PAGES)
async def api(request) -> AsyncIterator[ApiServer]:
    async with serving(shop(24), streams=request.param) as server:
        yield server


def forbid(api: ApiServer, name: str) -> None:
    api.forbidden |= {("list", name), ("watch", name)}


# --- the first lists ---


@pytest.mark.parametrize("name", ["services", "endpointslices", "nodes", "pods"])
async def test_nothing_is_given_before_every_resource_was_listed(api, tmp_path, name) -> None:
    forbid(api, name)
    async with following(api, tmp_path, synced=False) as follower:
        await follower.until(lambda: "not allowed" in follower.texts)
        await asyncio.sleep(0.5)
        assert (follower.source.synced.is_set(), follower.source.trusted) == (False, False)
        assert follower.known == {}
        assert follower.source.snapshot().services == {}
        api.forbidden.clear()
        await follower.converges()
        assert (follower.source.synced.is_set(), follower.source.trusted, follower.texts) == (True, True, "")


async def test_what_is_forbidden_is_said_once_with_verb_and_resource(api, tmp_path, caplog) -> None:
    forbid(api, "endpointslices")
    with caplog.at_level(logging.INFO):
        async with following(api, tmp_path, synced=False) as follower:
            asked = "watch endpointslices"
            await follower.until(lambda: api.requests[asked] >= 5)
            assert "watch endpointslices.discovery.k8s.io: it is not allowed (403 Forbidden" in follower.texts
            assert "allow this user the verbs list and watch on endpointslices.discovery.k8s.io" in follower.texts
            said = [record for record in caplog.records if record.message == "the Kubernetes API failed"]
            assert len(said) == 1
            assert "endpointslices" in said[0].error  # type: ignore[attr-defined]


async def test_backend_states_may_be_forbidden(api, tmp_path) -> None:
    api.installed.add("BackendState")
    forbid(api, "backendstates")
    async with following(api, tmp_path) as follower:
        await follower.until(lambda: "backendstates.lbagent.io" in follower.texts)
        assert follower.source.trusted
        assert all(message.warning for message in follower.source.problems())


@pytest.mark.long
@pytest.mark.parametrize("lasts", [False, True])
async def test_a_resource_whose_definition_is_new_is_given_time(api, tmp_path, caplog, lasts) -> None:
    """The server answers 429 for a second or so: that is no error unless it lasts, and no request comes before its Retry-After."""
    api.installed.add("BackendState")
    api.initializing = {"backendstates"}
    timing = replace(QUICK, standing_s=0.5 if lasts else 30.0)
    with caplog.at_level(logging.INFO):
        async with following(api, tmp_path, synced=False, timing=timing) as follower:
            await follower.until(lambda: api.requests["watch backendstates"] + api.requests["list backendstates"] >= 2)
            await follower.until(lambda: ("backendstates" in follower.texts) == lasts)
            errors = [record.error for record in caplog.records if record.levelno >= logging.ERROR]  # type: ignore[attr-defined]
            assert len(errors) == lasts
            assert all("429" in each and "backendstates" in each for each in errors)
            asked = [record for record in caplog.records if record.message == "the Kubernetes API requests a pause"]
            assert [(record.levelno, record.resource) for record in asked] == [
                (logging.INFO, "backendstates.lbagent.io")
            ]  # type: ignore[attr-defined]
            assert "storage is (re)initializing" in asked[0].answer  # type: ignore[attr-defined]
            api.initializing.clear()
            await follower.converges()
            await follower.until(lambda: follower.source.trusted and follower.texts == "")


@pytest.mark.long
@pytest.mark.parametrize("code", [429, 500, 503, 0], ids=str)
@pytest.mark.parametrize("resumes", [False, True])
@pytest.mark.parametrize("name", ["backendstates", "servicecidrs"])
async def test_an_optional_resource_that_fails_for_ever_is_waited_for_a_while(
    api, tmp_path, caplog, code, resumes, name
) -> None:
    """All other objects are reported without it, `status` shows it, and it is used when it arrives. 0: no answer for it."""
    api.installed.add("BackendState")
    await api.put(backend_state("one", "10.244.1.1:8080/TCP"))
    api.broken = {name: code}
    with caplog.at_level(logging.WARNING):
        async with following(api, tmp_path, resumes=resumes, timing=replace(QUICK, optional_s=0.1)) as follower:
            assert follower.source.trusted
            assert follower.names("Service") == sorted(api.objects["Service"])
            said = [record.resource for record in caplog.records if "optional" in record.message]  # type: ignore[attr-defined]
            assert [each.split(".")[0] for each in said] == [name]
            await follower.until(
                lambda: f"{name}." in follower.texts and "objects of the API are not read" in follower.texts
            )
            assert all(message.warning for message in follower.source.problems())
            api.broken = {}
            await follower.converges()
            await follower.until(lambda: follower.texts == "")
            assert follower.names("BackendState") == ["one"]


async def test_what_every_server_has_is_waited_for(api, tmp_path) -> None:
    api.broken = {"endpointslices": 503}
    async with following(api, tmp_path, synced=False, timing=replace(QUICK, optional_s=0.1)) as follower:
        await follower.until(lambda: "endpointslices" in follower.texts)
        await asyncio.sleep(0.5)
        assert not follower.source.synced.is_set()


@pytest.mark.long
async def test_a_server_that_is_away_at_the_start(api, tmp_path) -> None:
    """An agent with empty maps waits; one that continues from its maps is synced soon, untrusted, and reports all objects later."""
    await api.stop()
    soon = replace(QUICK, first_list_s=0.4)
    async with (
        following(api, tmp_path, synced=False) as fresh,
        following(api, tmp_path, resumes=True, timing=soon) as follower,
    ):
        assert (follower.source.trusted, follower.known) == (False, {})
        await follower.until(lambda: "the API server does not answer" in follower.texts)
        assert str(api.port) in follower.texts
        await asyncio.sleep(0.5)
        assert not fresh.source.synced.is_set()
        assert "the API server does not answer" in fresh.texts
        await api.start()
        await follower.converges()
        await fresh.converges()
        assert (follower.source.trusted, fresh.source.trusted) == (True, True)


async def test_a_server_that_is_slow_at_the_start_is_not_a_bad_list(api, tmp_path, monkeypatch) -> None:
    """An agent that continues from its maps reports that it waits for lists, and no deletions."""
    monkeypatch.setattr(deletion_guard, "DELAY_S", 0.01)
    file = tmp_path / "state" / deletion_guard.FILE
    async with following(api, tmp_path) as follower:
        await follower.until(file.exists)
    api.is_silent = True
    async with following(api, tmp_path, resumes=True, timing=replace(QUICK, first_list_s=0.1)) as follower:
        (only,) = follower.source.problems()
        assert "has not listed everything yet" in str(only)
        assert not follower.source.listed
        assert "max-delete-ratio" not in follower.source.remedy
        api.is_silent = False
        await follower.until(lambda: follower.source.trusted and follower.texts == "")


async def test_a_server_that_goes_away_later_changes_nothing(api, tmp_path) -> None:
    async with following(api, tmp_path) as follower:
        before = dict(follower.known)
        await api.stop()
        await follower.until(lambda: not follower.source.trusted)
        assert follower.known == before
        await follower.until(
            lambda: all(name in follower.texts for name in ("services", "endpointslices", "nodes", "pods"))
        )
        (only,) = follower.source.problems()
        assert follower.source.distrust == only
        assert "all that was read before stays as it is" in str(only)
        assert "max-delete-ratio" not in follower.source.remedy
        calls = follower.calls
        await api.start()
        await follower.until(lambda: follower.source.trusted and follower.texts == "")
        assert follower.calls > calls  # readers of `trusted` are notified
        assert follower.known == before


# --- the name of the node ---


async def test_a_node_that_is_not_there_ends_the_agent_and_names_those_that_are(api, tmp_path) -> None:
    await api.change([node("node-2"), node("node-3")])
    source = KubeSource(KubeSettings(kubeconfig=kubeconfig(tmp_path, api.port), node_name="nod-1", timing=QUICK))
    with pytest.raises(ExceptionGroup) as caught:
        await asyncio.wait_for(source.run(lambda _changes: None), 10)
    (error,) = caught.value.exceptions
    assert isinstance(error, NotFound)
    assert error.exit_code == 3
    assert "no node 'nod-1'; it has node-1, node-2, node-3" in str(error)


async def test_a_node_that_registers_while_the_agent_begins_is_there(tmp_path) -> None:
    """It comes between the list of its own Node and the one of all Nodes."""
    async with serving(shop(3)) as api:
        await api.delete("Node", NODE)
        api.stale["Node"] = api.version, {name: node(name) for name in (NODE, "node-2")}  # what the next list holds
        async with following(api, tmp_path) as follower:
            assert not api.stale
            await api.put(node())
            await follower.converges()


async def test_a_server_without_nodes_says_nothing_about_names(api, tmp_path) -> None:
    await api.delete("Node", NODE)
    async with following(api, tmp_path) as follower:
        assert follower.source.trusted
        await api.put(node())
        await follower.converges()
        await api.delete("Node", NODE)
        await follower.converges()


# --- lists that lack too much ---


@pytest.mark.parametrize(
    "left", [[], [service("kubernetes"), slice_of("kubernetes", "192.0.2.9")]], ids=["empty", "new"]
)
async def test_a_server_replaced_by_another_empties_nothing(api, tmp_path, left) -> None:
    async with following(api, tmp_path) as follower:
        before = dict(follower.known)
        api.replace([node(), *left])
        await follower.until(lambda: follower.source.held >= 46)
        assert not follower.source.trusted
        assert follower.names("Service") == sorted(key for kind, key in before if kind == "Service")
        assert f"{24 - len(left) // 2} of 24 services, " in follower.texts
        assert "are not in the API server's list any more" in follower.texts
        assert "--max-delete-ratio" in follower.source.remedy
        await api.put(service("web-3", "10.96.8.3"))  # it comes back, one by one
        await follower.until(lambda: follower.view["Service", "default/web-3"] == ("10.96.8.3",))
        await api.put(service("other", "10.96.8.4"))
        await follower.until(lambda: ("Service", "default/other") in follower.known)
        api.compact()
        api.cut()  # another list that lacks the same
        await api.put(service("third", "10.96.8.5"))
        await follower.until(lambda: ("Service", "default/third") in follower.known)
        assert ("Service", "default/web-5") in follower.known
        follower.source.set_max_delete_ratio(100)
        await follower.converges()
        await follower.until(lambda: follower.source.trusted)
        assert (follower.source.held, follower.texts) == (0, "")


async def test_a_list_that_is_whole_again_lets_go(api, tmp_path) -> None:
    async with following(api, tmp_path) as follower:
        objs = [obj for kind in api.objects for obj in api.objects[kind].values()]
        api.replace([node()])
        await follower.until(lambda: follower.source.held > 0)
        api.replace(objs, version=5000)
        await follower.until(lambda: follower.source.trusted)
        await follower.converges()


async def test_a_part_of_the_services_may_go_between_two_lists(api, tmp_path) -> None:
    async with following(api, tmp_path) as follower:
        gone = [f"default/web-{number}" for number in range(11)]
        objs = [
            obj for kind in api.objects for key, obj in api.objects[kind].items() if key.removesuffix("-x") not in gone
        ]
        api.replace(objs, version=5000)
        await follower.converges()
        assert follower.source.held == 0


async def test_what_a_watch_says_was_deleted_was_deleted(api, tmp_path) -> None:
    async with following(api, tmp_path) as follower:
        gone = [(kind, key) for kind in ("Service", "EndpointSlice") for key in api.objects[kind]]
        await api.change([], gone)
        await follower.converges()
        assert follower.names("Service") == []
        assert follower.source.trusted


async def test_a_restarted_agent_knows_how_many_services_there_were(api, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(deletion_guard, "DELAY_S", 0.01)
    file = tmp_path / "state" / deletion_guard.FILE
    async with following(api, tmp_path) as follower:
        await follower.until(lambda: file.exists() and len(json.loads(file.read_text())) == 24)
        await api.put(service("one-more", "10.96.8.8"))
        await follower.until(lambda: len(json.loads(file.read_text())) == 25)
    assert "default/one-more" in json.loads(file.read_text())
    api.replace([node(), service("kubernetes"), slice_of("kubernetes", "192.0.2.9")])
    async with following(api, tmp_path, resumes=True) as follower:
        assert follower.names("Service") == ["default/kubernetes"]
        assert (follower.source.trusted, follower.source.listed) == (False, True)
        assert follower.source.held == 24
        assert "24 of 25 services of an earlier agent" in follower.texts
    async with following(api, tmp_path, resumes=True) as follower:  # and the next one too
        assert not follower.source.trusted
        follower.source.set_max_delete_ratio(100)
        assert follower.source.trusted
        await follower.until(lambda: json.loads(file.read_text()) == ["default/kubernetes"])
    async with following(api, tmp_path, resumes=True) as follower:
        assert follower.source.trusted


async def test_a_fresh_agent_remembers_nothing(api, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(deletion_guard, "DELAY_S", 0.01)
    file = tmp_path / "state" / deletion_guard.FILE
    async with following(api, tmp_path) as follower:
        await follower.until(file.exists)
    api.replace([node(), service("kubernetes")])
    async with following(api, tmp_path) as follower:
        assert follower.source.trusted


@pytest.mark.parametrize("text", [None, "", "{", '{"a": 1}', "[1]"])
async def test_a_restarted_agent_without_a_memory_does_not_believe_that_there_is_no_service(
    api, tmp_path, text
) -> None:
    if text is not None:
        (tmp_path / "state").mkdir()
        (tmp_path / "state" / deletion_guard.FILE).write_text(text)
    api.replace([node()])
    async with following(api, tmp_path, resumes=True) as follower:
        assert not follower.source.trusted
        assert "no Service at all" in follower.texts
        await api.put(service("kubernetes"))
        await follower.until(lambda: follower.source.trusted)


# --- credentials ---


async def test_a_token_that_was_rotated_is_read_again(api, tmp_path) -> None:
    token = tmp_path / "token"
    token.write_text("first")
    api.tokens = {"first"}
    async with following(api, tmp_path, user={"tokenFile": str(token)}) as follower:
        token.write_text("second")
        api.tokens = {"second"}
        api.cut()
        await api.put(service("new", "10.96.8.9"))
        await follower.converges()
        await follower.until(lambda: follower.texts == "")


async def test_a_token_that_is_refused_is_said(api, tmp_path) -> None:
    api.tokens = {"right"}
    async with following(api, tmp_path, synced=False, user={"token": "wrong"}) as follower:
        await follower.until(lambda: "the credentials are refused (401 Unauthorized" in follower.texts)
        kubeconfig(tmp_path, api.port, token="right")
        await follower.converges()


@pytest.mark.long
async def test_credentials_that_cannot_be_used_are_said(api, tmp_path) -> None:
    async with following(api, tmp_path) as follower:
        before = dict(follower.known)
        path = tmp_path / "kubeconfig"
        good = path.read_text()
        for text in (
            "",
            "a: [",
            good.replace("http:", "https:") + "\n- x",
            good.replace("current-context: here", "a: b"),
        ):
            path.write_text(text)
            api.answers.append(web.json_response(status(401), status=401))
            api.cut()
            await asyncio.sleep(0.2)
        assert follower.known == before
        path.write_text(good)
        await follower.until(lambda: follower.source.trusted)


async def test_a_cancelled_source_leaves_nothing_open(api, tmp_path) -> None:
    async with following(api, tmp_path) as follower:
        await follower.converges()
    await asyncio.sleep(0.1)
    assert all(transport.is_closing() for transport in api._transports)
    others = [task for task in asyncio.all_tasks() if "lbagent" in str(task.get_coro())]
    assert others == []
