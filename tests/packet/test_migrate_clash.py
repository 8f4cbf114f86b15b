"""While the flow table gets another size: two flows whose replies could not be told apart, the first one in either table."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.packet.caller import Caller
from tests.packet.craft import Family
from tests.packet.harness import SMALL
from tests.packet.test_clock import caller
from tests.packet.test_migrate import GROWN, Change, changes


@pytest.fixture(scope="module")
def loaded_growing_change() -> Iterator[Change]:
    """A change to larger tables."""
    yield from changes(SMALL, GROWN)


@pytest.mark.parametrize("opened", ["before", "meanwhile"])
@pytest.mark.parametrize("moved", [False, True], ids=["not_yet_moved", "moved"])
def test_the_second_flow_has_a_snat_port(
    loaded_growing_change: Change, fam: Family, hook: str, opened: str, *, moved: bool
) -> None:
    """One client port asks two frontends of one local backend."""
    change = loaded_growing_change
    change.reset()
    first = caller(change.world, fam, hook, local=True)
    second = Caller(change.world, change.world.service(fam, fam.vip2, 80, backends=first.service.backends), hook=hook)
    if opened == "meanwhile":
        change.begin()
    first.establish()
    change.begin()
    if moved:
        change.all()
    second.establish()
    assert first.source == first.endpoint
    assert second.source[0] == fam.node
    for each in (first, second):
        assert each.stays()
        assert each.is_answered()
