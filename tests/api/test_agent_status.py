"""What the status reports of each target."""

from __future__ import annotations

import asyncio

from lbagent.api.agent_status import problems_of_targets, target_status
from lbagent.maps.memory_maps import MemoryMaps
from lbagent.model.state import State
from lbagent.targets.bpf.bpf_target import BpfTarget
from lbagent.testing.snapshot_target import SnapshotTarget
from tests.sync.rig import SMALL, FixedPaths, ListSource, endpoints, make_loop, running, service


class Full(SnapshotTarget):
    """A renderer without room."""

    async def write(self, state: State) -> None:
        raise OSError(28, f"No space left on device for generation {state.generation}")


async def test_each_target_has_its_own_readiness_and_error() -> None:
    source, bpf, other = ListSource(), BpfTarget.open(MemoryMaps(SMALL), FixedPaths(), "me"), Full("nft")
    loop = make_loop([source], bpf, other)
    first, second = loop.runners
    async with running(loop):
        await asyncio.sleep(0.01)
        assert not target_status(first).ready
        assert list(problems_of_targets(loop.runners, [bpf])) == []
        source.first_list(service(1), endpoints(1, 1, 2))
        await loop.settled()
        good, bad = target_status(first), target_status(second)
        assert (good.name, good.ready, good.in_sync, good.generation, good.failing, good.error) == (
            "bpf",
            True,
            True,
            1,
            0,
            "",
        )
        assert (bad.name, bad.ready, bad.in_sync, bad.generation) == ("nft", False, False, 0)
        assert "No space left" in bad.error
        for serving in ([bpf], [bpf, other]):
            assert [text.split(":")[0] for text in problems_of_targets(loop.runners, serving)] == ["target nft"]


async def test_frontends_that_fail_are_counted() -> None:
    source, bpf = ListSource(), BpfTarget.open(MemoryMaps(SMALL), FixedPaths(), "me")
    loop = make_loop([source], bpf)
    async with running(loop):
        source.first_list(service(1), endpoints(1, 1), service(2), endpoints(2, *range(1, 255)))  # of 256 slots
        await loop.settled()
        found = target_status(loop.runners[0])
        assert (found.ready, found.in_sync, found.failing) == (True, False, 1)
        assert "lb4_service" in found.error
