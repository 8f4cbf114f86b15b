"""Answers that no decoder accepts: the last objects stay, the fault is reported, and the next good answer is used."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import msgspec
import pytest
from aiohttp import web

from lbagent.errors import LbError
from lbagent.kube.leases import LeaseCache, lease_of
from lbagent.kube.object_cache import UnreadableAnswer, metadata_of
from lbagent.kube.reflector import Reflector, error_of, events_of, page_of
from lbagent.kube.resources import Resource
from lbagent.objects.decode.decode_object import decode_json, decode_object
from lbagent.objects.records import Origin
from tests.kube.api_server import ApiServer
from tests.kube.cluster import STREAMS_OR_PAGES, Follower, following, service, serving, shop

DEPTH = 5000  # Python's decoders end at a thousand levels
DEEP = b'{"a":' * DEPTH + b"1" + b"}" * DEPTH
NOT_UTF8 = b'"\xff"'
BAD = {"deep": DEEP, "bytes": NOT_UTF8}
bad = pytest.mark.parametrize("value", BAD.values(), ids=BAD)


@pytest.fixture(params=STREAMS_OR_PAGES)
async def api(request) -> AsyncIterator[ApiServer]:
    async with serving(shop(4), streams=request.param) as server:
        yield server


@pytest.fixture
async def follower(api: ApiServer, tmp_path: Path) -> AsyncIterator[Follower]:
    async with following(api, tmp_path) as found:
        yield found


def in_events(api: ApiServer, value: bytes) -> None:
    """Put a value into every event of a Service from now on."""

    def spoil(lines: list[bytes]) -> list[bytes]:
        return [
            line.replace(b'{"type"', b'{"x": ' + value + b', "type"') if b'"Service"' in line else line
            for line in lines
        ]

    api.mangle = spoil


def in_metadata(api: ApiServer, value: bytes) -> None:
    def spoil(lines: list[bytes]) -> list[bytes]:
        return [
            line.replace(b'"metadata": {', b'"metadata": {"annotations": {"a": ' + value + b"}, ")
            if b'"Service"' in line
            else line
            for line in lines
        ]

    api.mangle = spoil


def in_error_events(api: ApiServer, value: bytes) -> None:
    """End every watch of a Service with an ERROR event that has the value as its message."""
    error = b'{"type": "ERROR", "object": {"code": 500, "message": ' + value + b"}}\n"
    api.mangle = lambda lines: [error if b'"Service"' in line else line for line in lines]


@pytest.mark.parametrize(
    ("spoil", "value"),
    [
        (in_events, DEEP),  # bytes of a field that is not read are no fault
        (in_metadata, DEEP),
        (in_metadata, NOT_UTF8),
        (in_error_events, DEEP),
        (in_error_events, NOT_UTF8),
    ],
)
async def test_events(
    follower: Follower, api: ApiServer, spoil: Callable[[ApiServer, bytes], None], value: bytes
) -> None:
    before = dict(follower.known)
    spoil(api, value)
    await api.put(service("new", "10.96.7.2"))
    if api.streams_lists:
        await follower.until(lambda: "services" in follower.texts)
        assert "nested too deeply" in follower.texts or "UTF-8" in follower.texts
    else:  # pages are good: what the event did not give comes with them
        await follower.until(lambda: "default/new" in follower.names("Service"))
    assert follower.known.items() >= before.items()
    assert not follower.deleted
    api.mangle = lambda lines: lines
    await follower.converges()
    await follower.until(lambda: not follower.texts)
    assert not follower.deleted


@bad
async def test_pages(api: ApiServer, tmp_path: Path, value: bytes) -> None:
    api.streams_lists = False
    async with following(api, tmp_path) as follower:
        before = dict(follower.known)

        def page() -> web.Response:
            api.answers.append(page)
            text = b'{"kind": "ServiceList", "metadata": {"resourceVersion": "9"}, "items": [' + value + b"]}"
            return web.Response(body=text)

        api.answers.append(page)
        api.compact()
        api.cut()
        await follower.until(lambda: "services" in follower.texts)
        assert follower.known == before
        api.answers.clear()
        await api.put(service("new", "10.96.7.2"))
        await follower.converges()
        await follower.until(lambda: not follower.texts)


async def test_an_exception_that_nothing_foresees_is_logged_and_the_resource_goes_on(
    follower: Follower, api: ApiServer, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Whatever a future decoder raises: the real objects come with the next answer."""
    good = Reflector._take_event

    def fail(_self: Reflector, _event: object) -> None:
        raise ZeroDivisionError("no such number")

    monkeypatch.setattr(Reflector, "_take_event", fail)
    caplog.set_level(logging.ERROR)
    await api.put(service("new", "10.96.7.2"))
    await follower.until(lambda: any(record.exc_info for record in caplog.records))
    for number in range(3):
        await api.put(service(f"new-{number}", "10.96.7.3"))
    monkeypatch.setattr(Reflector, "_take_event", good)
    await follower.converges()
    records = [each for each in caplog.records if each.exc_info]
    assert {each.__dict__["resource"] for each in records} == {"services"}
    assert "no such number" in str(records[0].exc_info)


async def test_a_listener_that_fails_ends_the_source_with_its_error(api: ApiServer, tmp_path: Path) -> None:
    """A listener gets missed changes only after a new start: such an error is not retried."""
    with pytest.raises(AssertionError, match="another exception of the source"):
        async with following(api, tmp_path) as follower:

            def fail(_changes: object) -> None:
                raise KeyError("a listener")

            follower.source._on_change = fail
            await api.put(service("new", "10.96.7.2"))
            assert follower.task is not None
            done, _ = await asyncio.wait({follower.task}, timeout=10)
            assert done
            assert isinstance(follower.task.exception(), BaseExceptionGroup)
            assert "a listener" in repr(follower.task.exception())
            raise AssertionError("another exception of the source")  # leaves the block before its own check


def raw(value: bytes) -> bytes:
    return b'{"metadata": {"name": "a", "resourceVersion": "5", "annotations": {"a": ' + value + b"}}}"


@bad
def test_each_decoder_of_the_source(value: bytes) -> None:
    for read in (
        page_of,
        metadata_of,
        lease_of,
        lambda text: error_of(msgspec.Raw(text)),
        lambda text: [*events_of([text])],
    ):
        with pytest.raises(UnreadableAnswer) as caught:
            read(value)  # type: ignore[operator]
        assert isinstance(caught.value, LbError)
    decoded = decode_json("Service", raw(value), Origin(source="kube"))
    assert decoded.obj is None
    assert "not JSON" in str(decoded.messages[0])
    found = decode_object(raw(value), Origin(source="kube"))
    assert found.obj is None
    assert "not JSON" in str(found.messages[0])
    cache = LeaseCache(Resource("Lease", "/leases", "leases"))
    lease = b'{"metadata": {"name": "a", "namespace": "n"}, "spec": {"holderIdentity": ' + value + b"}}"
    meta = metadata_of(json.dumps({"metadata": {"name": "a", "namespace": "n", "resourceVersion": "5"}}).encode())
    cache.put(lease, meta)
    assert cache.lease("n/a") is None
