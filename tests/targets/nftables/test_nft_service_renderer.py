"""The table behind the calls of the renderer API: the suites that every renderer passes, in a namespace."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from lbagent.render import ServiceRenderer
from lbagent.targets.nftables import nft_renderer
from lbagent.testing.renderer import RendererSuite, TortureSuite
from tests.lab.netns import Namespace


@pytest.fixture(scope="module", autouse=True)
def space() -> Iterator[Namespace]:
    made = Namespace("nftcalls")
    try:
        yield made
    finally:
        made.delete()


@pytest.fixture(autouse=True)
def _inside(space: Namespace) -> Iterator[None]:
    """The test's thread lives in the namespace; the table of one test is not there in the next."""
    with space.entered():
        yield
        import asyncio

        asyncio.run(nft_renderer.factory({}).close(keep=False))


class TestCalls(RendererSuite):
    def make_renderer(self) -> ServiceRenderer:
        return nft_renderer.factory({})


class TestTorture(TortureSuite):
    def make_renderer(self) -> ServiceRenderer:
        return nft_renderer.factory({})
