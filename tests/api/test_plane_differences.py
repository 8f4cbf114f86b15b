"""Differences of several data planes in one answer: one that cannot be compared hides none of the others."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, cast

import pytest

from lbagent.api import plane_differences
from lbagent.errors import LbError, NotFound, TimedOut
from lbagent.render.renderer_types import Difference

STALE = Difference("stale", "a route", "shop/web", "10.96.0.1:80/TCP")


class Plane:
    """A data plane in which something differs, or that raises."""

    def __init__(self, name: str, found: Sequence[Difference] = (), error: Exception | None = None) -> None:
        self.name = name
        self.first_pass = asyncio.Event()
        self.first_pass.set()
        self._found, self._error = found, error

    async def verify(self) -> Sequence[Difference]:
        if self._error is not None:
            raise self._error
        return self._found

    async def repair(self) -> Sequence[Difference]:
        found, self._found = await self.verify(), ()
        return found


def runners(*planes: Plane) -> Any:
    return cast("Any", [SimpleNamespace(target=plane) for plane in planes])


def rows(found: Sequence[plane_differences.DifferenceRow]) -> list[tuple[str, str, str, bool]]:
    return [(row.renderer, row.kind, row.detail, row.repaired) for row in found]


@pytest.mark.parametrize("error", [LbError("verify raised KeyError"), OSError(5, "Input/output error")])
async def test_one_that_raises(error: Exception) -> None:
    planes = runners(Plane("mine", error=error), Plane("bpf", [STALE]))
    fault = ("mine", "differs", f"it cannot be compared: {error}", False)
    assert rows(await plane_differences.differences(planes, "")) == [fault, ("bpf", "stale", "a route", False)]
    assert rows(await plane_differences.repair(planes, "")) == [fault, ("bpf", "stale", "a route", True)]


async def test_one_without_a_state() -> None:
    waiting = Plane("mine")
    waiting.first_pass.clear()
    text = "it cannot be compared: mine has no state in force yet; `lbagent status` shows what it waits for"
    found = await plane_differences.differences(runners(waiting, Plane("bpf", [STALE])), "")
    assert rows(found) == [("mine", "differs", text, False), ("bpf", "stale", "a route", False)]
    with pytest.raises(TimedOut):
        await plane_differences.differences(runners(waiting, Plane("bpf")), "mine")


async def test_the_only_one_raises_as_it_is() -> None:
    with pytest.raises(LbError, match="gone"):
        await plane_differences.differences(runners(Plane("bpf", error=LbError("gone"))), "")
    with pytest.raises(NotFound, match=r"renderer 'nftables' is none of this agent's: it has bpf"):
        await plane_differences.repair(runners(Plane("bpf")), "nftables")
