"""While the flow table gets another size: two flows with ambiguous replies, the first one in either table."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import pytest

from tests.packet.caller import Caller
from tests.packet.craft import Family
from tests.packet.harness import SMALL
from tests.packet.test_clock import caller
from tests.packet.test_migrate import GROWN, Change, changes
from tests.packet.world import XDP


@pytest.fixture(scope="module")
def loaded_growing_change() -> Iterator[Change]:
    """A change to larger tables."""
    yield from changes(SMALL, GROWN)


@pytest.mark.parametrize("opened", ["before", "meanwhile"])
@pytest.mark.parametrize("moved", [False, True], ids=["not_yet_moved", "moved"])
def test_the_second_flow_has_a_snat_port(
    loaded_growing_change: Change, fam: Family, hook: str, opened: str, *, moved: bool
) -> None:
    """One client port uses two frontends of one local backend."""
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


@pytest.fixture(scope="module")
def loaded_two_old_buckets() -> Iterator[Change]:
    """A change from a table of two buckets."""
    yield from changes(dataclasses.replace(SMALL, flow4=8, flow6=8), SMALL)


def test_a_flow_in_the_second_bucket_is_told_apart_as_well(loaded_two_old_buckets: Change, fam: Family) -> None:
    """Six entries are taken, so a client's flow lies in either bucket of the old table."""
    for n in range(24):
        change = loaded_two_old_buckets
        change.reset()
        first = caller(change.world, fam, XDP, local=True)
        for other in range(6):
            dataclasses.replace(first, port=40000 + 10 * n + other).establish()
        second = Caller(change.world, change.world.service(fam, fam.vip2, 80, backends=first.service.backends))
        talks = [dataclasses.replace(talk, port=50000 + n) for talk in (first, second)]
        talks[0].establish()
        change.begin()
        talks[1].send("S")
        assert (talks[0].source, talks[1].source[0]) == (talks[0].endpoint, fam.node), n
