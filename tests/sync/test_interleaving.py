"""Any event may occur in the middle of a pass, and none is lost."""

from __future__ import annotations

import asyncio
import random

import pytest

from lbagent.maps.consistency import check
from lbagent.maps.dump import dump
from lbagent.maps.memory_maps import MemoryMaps
from lbagent.model import cooperative
from lbagent.resolve import Options, Resolver
from lbagent.sync import backoff, failures
from lbagent.testing.faulty_maps import FaultyMaps, fail_often
from tests.sync.rig import SMALL, ListSource, endpoints, make, running, service


@pytest.mark.parametrize("seed", range(6))
async def test_what_is_told_in_the_middle_of_a_pass_arrives(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Objects, drift reports, new options, checks of the maps, and failing writes, in any step of any pass."""
    monkeypatch.setattr(cooperative, "SLICE_S", 0.0)
    monkeypatch.setattr(failures, "delays", lambda: backoff.delays(0.001, 0.01))
    rng = random.Random(seed)
    inner = MemoryMaps(SMALL)
    maps = FaultyMaps(inner)
    if seed % 2:
        maps.before = fail_often(0.05, seed)
    source = ListSource()
    loop, target, _ = make(maps, source)

    async def tell() -> None:
        for _ in range(300):
            for _ in range(rng.randrange(6)):
                await asyncio.sleep(0)
            number, kind = rng.randrange(1, 7), rng.randrange(12)
            if kind < 7:
                source.put(endpoints(number, *rng.sample(range(1, 9), rng.randrange(5))))
            elif kind < 9:
                source.put(service(number, affinity_timeout_s=rng.choice((0, 60))))
            elif kind == 9:
                target.paths_changed()
            elif kind == 10:
                target.shadow.invalidate(list(target.shadow.frontends)[:2])
                target.wake.set()
            else:
                loop.replace_resolver(Resolver(Options("me", keep_existing=True)))
            assert check(inner) == []

    async def look() -> None:
        for _ in range(10):
            if not maps.before:
                assert await target.resync() == []
            await asyncio.sleep(0)

    async with running(loop):
        source.first_list(*[o for n in range(1, 7) for o in (service(n), endpoints(n, 1, 2, 3))])
        await asyncio.gather(tell(), look())
        maps.before = None
        async with asyncio.timeout(10):
            await loop.settled()
            while target.failing or target.error:
                await asyncio.sleep(0.005)
                await loop.settled()
    assert check(inner, settled=True) == []
    fresh = MemoryMaps(SMALL)
    again = ListSource()
    expected, _, _ = make(fresh, again)
    async with running(expected):
        again.first_list(*source.objects.values())  # type: ignore[arg-type]
        await expected.settled()
    assert frontends(dump(inner)) == frontends(dump(fresh))


def frontends(lines: list[str]) -> list[str]:
    """The contents of each frontend, without ids."""
    return sorted(line.split(" ", 2)[2] for line in lines if line.startswith("SVC") and "SLOT=0" in line)
