"""The suites that every renderer passes, over tables in memory: without rights, and with each transaction checked."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from lbagent.render import ServiceRenderer
from lbagent.targets.nftables import nft_renderer, nft_table, nft_writer
from lbagent.testing.renderer import RendererSuite, TortureSuite
from tests.targets.nftables.fake_tables import FakeNfTables
from tests.targets.nftables.test_nft_writer import NoConnections

SETTINGS = {"table": "lbagent-calls"}  # the lock is of the whole network namespace


@pytest.fixture(scope="module", autouse=True)
def _kernel() -> Iterator[None]:
    """It is there before the suites' own `setup_method`."""
    kernel = FakeNfTables()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(nft_table, "NfTables", lambda: kernel)
        patch.setattr(nft_writer, "Conntrack", NoConnections)
        yield


class TestCalls(RendererSuite):
    def make_renderer(self) -> ServiceRenderer:
        return nft_renderer.factory(SETTINGS)


@pytest.mark.slow
class TestTorture(TortureSuite):
    def make_renderer(self) -> ServiceRenderer:
        return nft_renderer.factory(SETTINGS)
