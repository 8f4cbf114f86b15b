"""A second list finds what a watch did not send; what is on its way is not missed."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from msgspec.structs import replace

from lbagent.errors import TimedOut
from lbagent.objects.source import Missed
from tests.kube.cluster import QUICK, STREAMS_OR_PAGES, following, node, pod, service, serving, shop, slice_of

FAST = replace(QUICK, silence_s=20.0, catch_up_s=0.3, reread_s=2.0)


@pytest.fixture(params=STREAMS_OR_PAGES)
async def api(request):
    async with serving(shop(8), streams=request.param) as server:
        yield server


async def watched(follower) -> None:
    """Wait until a change of each kind arrives by the watch."""
    await follower.api.change([service("begun", "10.96.9.9"), slice_of("begun", "10.244.9.9"), pod("begun")])
    await follower.converges()


async def test_nothing_is_missed_of_a_watch_that_lives(api, tmp_path: Path) -> None:
    async with following(api, tmp_path, timing=FAST) as one:
        await watched(one)
        calls = one.calls
        assert await one.source.find_missed() == Missed()
        assert one.calls == calls  # nothing was applied


async def test_changes_that_a_silent_watch_lost(api, tmp_path: Path) -> None:
    async with following(api, tmp_path, timing=FAST) as one:
        await watched(one)
        api.deaf.add("EndpointSlice")
        await api.change(
            [slice_of("web-1", "10.244.1.2", "10.244.8.8"), slice_of("web-new", "10.244.7.7")],
            [("EndpointSlice", "default/web-2-x")],
        )
        await api.put(service("alive", "10.96.1.99"))  # the other watches live
        await one.until(lambda: "default/alive" in one.names("Service"))
        found = await one.source.find_missed()
        assert found.places == ("endpointslices.discovery.k8s.io",)
        assert {(each.key, each.old is None, each.new is None) for each in found.changes} == {
            ("default/web-1-x", False, False),
            ("default/web-new-x", True, False),
            ("default/web-2-x", False, True),
        }
        assert one.view != one.wanted  # nothing was applied
        await api.bookmark()
        await asyncio.sleep(0.1)
        assert (await one.source.find_missed()).places == (
            "endpointslices.discovery.k8s.io",
        )  # a bookmark says no event was sent

        for _ in range(5):  # the watch of this server stays deaf, the list helps
            one.source.list_again(found.places)
            await asyncio.sleep(0)
        await one.converges()
        assert await one.source.find_missed() == Missed()
        assert one.source.trusted
        api.deaf.clear()
        await api.put(slice_of("web-3", "10.244.6.6"))
        one.source.list_again(found.places)
        await one.converges()


async def test_a_change_on_its_way_is_not_missed(api, tmp_path: Path) -> None:
    async with following(api, tmp_path, timing=replace(FAST, catch_up_s=5.0)) as one:
        await watched(one)
        stop = asyncio.Event()

        async def churn() -> None:
            number = 0
            while not stop.is_set():
                number += 1
                await api.change([slice_of("web-1", f"10.244.5.{number % 250 + 1}")])
                await api.change([service(f"brief-{number}", "10.96.5.5")])
                await api.delete("Service", f"default/brief-{number}")
                await asyncio.sleep(0.005)

        task = asyncio.create_task(churn())
        try:
            for _ in range(10):
                assert await one.source.find_missed() == Missed()
        finally:
            stop.set()
            await task


async def test_a_watch_that_lags_has_time_to_catch_up(api, tmp_path: Path) -> None:
    async with following(api, tmp_path, timing=replace(FAST, catch_up_s=5.0)) as one:
        await watched(one)
        api.lag_s = 0.5
        await api.change([slice_of("web-1", "10.244.5.5")], [("Service", "default/web-2")])
        assert await one.source.find_missed() == Missed()
        assert one.view == one.wanted
        api.lag_s = 10.0  # and nothing else comes, no bookmark either
        await api.change([slice_of("web-1", "10.244.5.6")])
        one.source._settings = replace(one.source._settings, timing=FAST)  # type: ignore[attr-defined]
        assert (await one.source.find_missed()).places == ("endpointslices.discovery.k8s.io",)


async def test_a_watch_that_is_behind_and_sends_has_missed_nothing(api, tmp_path: Path) -> None:
    async with following(api, tmp_path, timing=replace(FAST, reread_s=20.0)) as one:
        await watched(one)
        api.between_s = FAST.catch_up_s / 3
        for number in range(1, 13):  # the last one comes after four times that time
            await api.change([slice_of("web-1", f"10.244.5.{number}")])
        assert await one.source.find_missed() == Missed()
        assert one.view == one.wanted


async def test_a_list_that_lacks_too_much_is_missed_and_removes_nothing(api, tmp_path: Path) -> None:
    """The guard of deletions holds for a second list, too."""
    await api.change([service(f"more-{number}", f"10.96.3.{number}") for number in range(30)])
    async with following(api, tmp_path, timing=FAST) as one:
        await watched(one)
        api.deaf.add("Service")
        await api.change([], [("Service", f"default/more-{number}") for number in range(30)])
        found = await one.source.find_missed()
        assert found == Missed((), ("services",))


async def test_an_api_server_that_does_not_answer(api, tmp_path: Path) -> None:
    async with following(api, tmp_path, timing=FAST) as one:
        await watched(one)
        api.is_silent = True
        with pytest.raises(TimedOut, match="the API server does not list its objects") as caught:
            await one.source.find_missed()
        assert caught.value.exit_code == 6
        assert "\n" not in str(caught.value)


async def test_an_optional_resource_without_permission_is_left_out(api, tmp_path: Path) -> None:
    async with following(api, tmp_path, timing=FAST) as one:
        await watched(one)
        api.forbidden.add(("list", "servicecidrs"))
        assert await one.source.find_missed() == Missed()
        api.forbidden.add(("list", "services"))
        with pytest.raises(TimedOut, match="services"):
            await one.source.find_missed()


async def test_another_server_is_listed_and_not_compared(api, tmp_path: Path) -> None:
    async with following(api, tmp_path, timing=FAST) as one:
        await watched(one)
        api.replace([node(), *shop(3)])
        api.uid = "another"
        with pytest.raises(TimedOut, match="another API server"):
            await one.source.find_missed()
        await one.converges()
