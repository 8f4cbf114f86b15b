"""Which data planes decide whether the agent is ready."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from lbagent.agent.core_parts import CoreParts
from lbagent.api.agent_status import AgentStatus


def plane(name: str, *, is_ready: bool) -> SimpleNamespace:
    ready = asyncio.Event()
    if is_ready:
        ready.set()
    return SimpleNamespace(name=name, ready=ready)


@pytest.mark.parametrize(
    ("planes", "is_ready"),
    [
        ({"bpf": True}, True),
        ({"bpf": False}, False),
        ({"bpf": True, "nftables": True}, True),
        ({"bpf": True, "nftables": False}, False),
        ({"bpf": False, "nftables": True}, False),
        ({"bpf": True, "record": False}, True),  # it translates nothing
        ({"none": False}, False),
    ],
)
def test_ready_means_that_all_that_translate_are(planes: dict[str, bool], is_ready: bool) -> None:
    made = [plane(name, is_ready=value) for name, value in planes.items()]
    unused = cast("Any", None)
    core = CoreParts(unused, unused, (), (), unused, cast("Any", made), made[0], unused, unused, unused)
    status = AgentStatus("n1", core.plane, core.translating, unused, (), unused, unused, tuple)
    assert not status.ready  # it has not started
    status.started = True
    assert status.ready is is_ready
