"""Two data planes of one family each, read as one."""

from __future__ import annotations

import asyncio

from lbagent.config import Config
from lbagent.errors import LbError
from lbagent.model.address import L3n4Addr
from lbagent.model.backend import Backend, BackendState
from lbagent.model.service import SVC, ServiceName
from lbagent.model.state import State
from lbagent.sync.backoff import Failure
from lbagent.sync.target_protocol import Desired
from lbagent.targets.data_plane import Counts
from lbagent.targets.joined_plane import JoinedPlane
from lbagent.targets.none.none_renderer import NonePlane

FOUR, SIX = L3n4Addr.parse("10.96.0.1:80"), L3n4Addr.parse("[fd00::1]:80")


def row(frontend: L3n4Addr, *backends: str) -> SVC:
    made = tuple(Backend(0, L3n4Addr.parse(text)) for text in backends)
    return SVC(frontend, 0, ServiceName("shop", "web"), selectable=made)


def planes() -> tuple[NonePlane, NonePlane, JoinedPlane]:
    one, other = NonePlane(Config()), NonePlane(Config())
    other.number_above()
    return one, other, JoinedPlane([one, other])


async def give(plane: NonePlane, generation: int, *rows: SVC) -> None:
    await plane.reconcile(Desired(State(generation, rows)))


async def test_the_state_has_the_frontends_of_both_with_different_ids() -> None:
    one, other, joined = planes()
    await give(one, 1, row(FOUR, "10.0.0.1:80", "10.0.0.2:80"))
    await give(other, 1, row(SIX, "[fd00:1::1]:80"))
    assert set(joined.state.by_frontend) == {FOUR, SIX}
    assert len({svc.id for svc in joined.state.services}) == 2
    assert len({backend.id for backend in joined.state.backends.values()}) == 3
    assert joined.state is joined.state  # made once
    assert joined.backend_states() == {BackendState.ACTIVE: 3}
    shown = joined.status()
    assert (shown.frontends, shown.backends, joined.backend_count()) == (2, 3, 3)


async def test_a_change_of_either_is_a_change() -> None:
    one, other, joined = planes()
    for plane, frontend in ((one, FOUR), (other, SIX)):
        before = joined.generation
        waiting = asyncio.create_task(joined.changed_from(before))
        await asyncio.sleep(0)
        await give(plane, 1, row(frontend, "10.0.0.1:80" if plane is one else "[fd00:1::1]:80"))
        assert await asyncio.wait_for(waiting, 3) > before


async def test_counts_and_failures_are_those_of_both() -> None:
    one, other, joined = planes()
    one.counts, other.counts = Counts(1, 2, 3, 0.5), Counts(10, 20, 30, 0.25)
    assert joined.counts == Counts(11, 22, 33, 0.5)
    refused = {FOUR: LbError("no id"), SIX: LbError("no id either")}
    for plane, frontend in ((one, FOUR), (other, SIX)):
        plane.failing[frontend] = Failure(refused[frontend], 1.0, iter(()))  # type: ignore[index]
    assert {frontend: failure.error for frontend, failure in joined.failing.items()} == refused


async def test_a_sweep_counts_when_both_have_counted_since() -> None:
    """As `drain` reads it: a number that is higher by one contains a count of each that began later."""
    one, other, joined = planes()
    await one.count_flows()  # began before
    before = joined.sweeps
    for _ in range(5):
        await one.count_flows()
        assert joined.sweeps == before
    for expected in (0, 1, 1, 2):
        for plane in (one, other):
            await plane.count_flows()
        assert joined.sweeps == before + expected
