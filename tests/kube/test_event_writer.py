"""Events: their number, their contents, and that their failures affect nothing else."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from lbagent.kube import event_writer
from lbagent.kube.event_writer import BURST, MAX_WAITING, REFILL_S, EventLimits, EventWriter
from lbagent.kube.kube_client import ApiError, ServerUnreachable
from lbagent.objects.object_event import ObjectEvent

AT = "2026-01-01T00:00:00Z"
ABOUT_POD = ObjectEvent("Pod", "shop/web-0", "BackendStateSet", "a sentence")


class Api:
    """The client's methods that an EventWriter uses."""

    is_busy = True

    def __init__(self) -> None:
        self.there = {"web-0": "uid-1"}
        self.asked: list[tuple[str, Any]] = []
        self.written: list[tuple[str, dict[str, Any]]] = []
        self.failures: list[Exception] = []

    @asynccontextmanager
    async def get(self, path: str, query: Any, *, silence_s: float) -> AsyncIterator[Any]:
        self.asked.append((path, query))
        uid = self.there.get(query["fieldSelector"].removeprefix("metadata.name="))

        class Answer:
            async def read(self) -> bytes:
                return msgspec.json.encode({"items": [{"metadata": {"uid": uid}}] if uid else []})

        yield Answer()

    async def post(self, path: str, body: dict[str, Any], *, silence_s: float) -> None:
        if self.failures:
            raise self.failures.pop(0)
        self.written.append((path, body))


@pytest.fixture
def api() -> Api:
    return Api()


@pytest.fixture
async def writer(api: Api, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[EventWriter]:
    monkeypatch.setattr(event_writer, "EVENT_RETRY_DELAY_S", 0.01)
    one = EventWriter(api, "node-1", clock=lambda: 0.0)  # type: ignore[arg-type]
    task = asyncio.create_task(one.run())
    yield one
    assert not task.done(), task.exception()
    task.cancel()


async def until(condition: Any) -> None:
    async with asyncio.timeout(5):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.005)


async def test_an_event_names_its_object_as_kubectl_looks_for_it(writer: EventWriter, api: Api) -> None:
    writer.write(ABOUT_POD)
    await until(lambda: api.written)
    assert api.asked == [("/api/v1/namespaces/shop/pods", {"fieldSelector": "metadata.name=web-0"})]
    path, body = api.written[0]
    assert path == "/api/v1/namespaces/shop/events"
    about = {"apiVersion": "v1", "kind": "Pod", "namespace": "shop", "name": "web-0", "uid": "uid-1"}
    assert body["involvedObject"] == about
    assert (body["type"], body["reason"], body["message"]) == ("Normal", "BackendStateSet", "a sentence")
    assert body["source"] == {"component": "lbagent", "host": "node-1"}
    assert body["metadata"] == {"generateName": "web-0.", "namespace": "shop"}


async def test_a_node_is_known_by_its_name(writer: EventWriter, api: Api) -> None:
    writer.write(ObjectEvent("Node", "node-1", "DeletionsHeld", "x" * 2000, warning=True))
    await until(lambda: api.written)
    path, body = api.written[0]
    assert path == "/api/v1/namespaces/default/events"
    assert body["involvedObject"] == {"apiVersion": "v1", "kind": "Node", "name": "node-1", "uid": "node-1"}
    assert body["type"] == "Warning"
    assert len(body["message"]) == 1024
    assert not api.asked


async def test_what_the_api_does_not_have_gets_none(writer: EventWriter, api: Api) -> None:
    writer.write(ObjectEvent("Service", "shop/of-a-folder", "Tried", "a sentence"))
    writer.write(ObjectEvent("EndpointSlice", "shop/web-x", "Tried", "a sentence"))
    writer.write(ABOUT_POD)
    await until(lambda: api.written)
    assert [body["involvedObject"]["name"] for _, body in api.written] == ["web-0"]


async def test_a_burst_and_then_a_trickle(writer: EventWriter, api: Api, caplog: pytest.LogCaptureFixture) -> None:
    for _ in range(MAX_WAITING + 7):
        writer.write(ABOUT_POD)
    await until(lambda: len(api.written) == BURST)
    await asyncio.sleep(0.05)
    assert len(api.written) == BURST
    assert writer.left_out == 7
    assert caplog.text.count("too many Events") == 1
    assert REFILL_S > 5


@pytest.mark.parametrize("failure", [ServerUnreachable("gone"), ApiError(503), ApiError(429, "", 0.0)])
async def test_a_failure_that_passes_is_tried_again(writer: EventWriter, api: Api, failure: Exception) -> None:
    api.failures = [failure, failure]
    writer.write(ABOUT_POD)
    await until(lambda: api.written)


@pytest.mark.parametrize("failure", [ApiError(403, "events is forbidden"), ApiError(404), RuntimeError("a mistake")])
async def test_a_failure_that_stays_is_said_once_and_costs_this_event_alone(
    writer: EventWriter, api: Api, failure: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    api.failures = [failure, failure]
    for _ in range(3):
        writer.write(ABOUT_POD)
    await until(lambda: api.written)
    assert not api.failures
    assert len(api.written) == 1
    assert caplog.text.count("create events") == 1


class CountingApi(Api):
    """An API that keeps Events by name."""

    def __init__(self) -> None:
        super().__init__()
        self.kept: dict[str, int] = {}

    async def post(self, path: str, body: dict[str, Any], *, silence_s: float) -> None:
        name = body["metadata"]["name"]
        if name in self.kept:
            raise ApiError(409)
        self.kept[name] = body["count"]
        await super().post(path, body, silence_s=silence_s)

    async def patch(self, path: str, body: dict[str, Any], *, silence_s: float) -> None:
        name = path.rpartition("/")[2]
        if name not in self.kept:
            raise ApiError(404)
        self.kept[name] = body["count"]

    @asynccontextmanager
    async def get(self, path: str, query: Any, *, silence_s: float) -> AsyncIterator[Any]:
        count = self.kept[path.rpartition("/")[2]]

        class Answer:
            async def read(self) -> bytes:
                return msgspec.json.encode({"count": count})

        yield Answer()


async def test_the_same_sentence_is_counted_also_after_a_restart_and_when_the_server_forgot_it() -> None:
    api = CountingApi()
    about = ObjectEvent("Service", "shop/web", "Tried", "a sentence", warning=True, uid="u")
    for times in ((3, [3]), (2, [5])):
        one = EventWriter(api, "n", component="c", limits=EventLimits(9, 1.0, 9), counts=True)  # type: ignore[arg-type]
        for _ in range(times[0]):
            await one._write(about, AT)
        assert list(api.kept.values()) == times[1]
    await one._write(replace(about, text="another"), AT)
    await one._write(replace(about, uid="other"), AT)
    assert sorted(api.kept.values()) == [1, 1, 5]
    api.kept.clear()
    await one._write(about, AT)
    assert list(api.kept.values()) == [1]
    assert {body["source"]["component"] for _, body in api.written} == {"c"}


async def busy_writer(api: Api, waiting: int) -> list[tuple[str, dict[str, Any]]]:
    """Return what is written within 0.15 s of ten Events while work continues; at most `waiting` of them may wait."""
    limits = EventLimits(100, 1.0, waiting)
    one = EventWriter(api, "n", limits=limits, is_busy=lambda: api.is_busy)  # type: ignore[arg-type]
    task = asyncio.create_task(one.run())
    for number in range(10):
        one.write(ObjectEvent("Node", f"n{number}", "R", "t"))
    await asyncio.sleep(0.15)
    found = list(api.written)
    api.is_busy = False
    await until(lambda: len(api.written) == 10)
    task.cancel()
    return found


async def test_while_there_is_work_events_come_one_by_one_and_then_all(api: Api) -> None:
    assert 1 <= len(await busy_writer(api, 100)) <= 2
    assert [body["involvedObject"]["name"] for _, body in api.written] == [f"n{number}" for number in range(10)]


async def test_no_event_is_left_out_for_the_works_sake(api: Api) -> None:
    assert len(await busy_writer(api, 12)) >= 4, "of ten that wait four come at once: then half of twelve wait"


async def test_an_event_says_when_it_was_told_of(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    one = EventWriter(api, "n", clock=lambda: 0.0)  # type: ignore[arg-type]
    monkeypatch.setattr(event_writer, "_now_text", lambda: AT)
    one.write(ABOUT_POD)
    monkeypatch.setattr(event_writer, "_now_text", lambda: "later")
    task = asyncio.create_task(one.run())
    await until(lambda: api.written)
    assert (api.written[0][1]["firstTimestamp"], api.written[0][1]["lastTimestamp"]) == (AT, AT)
    task.cancel()
