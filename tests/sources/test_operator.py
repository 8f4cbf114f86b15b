"""The operator's states survive the agent, or are not set at all."""

from __future__ import annotations

import asyncio
import os

import pytest

from lbagent.errors import LbError
from lbagent.model.address import L3n4Addr
from lbagent.model.backend import BackendState
from lbagent.sources.operator import FILE, KeptDrain, OperatorSource

ONE, TWO = L3n4Addr.parse("10.0.0.1:80/TCP"), L3n4Addr.parse("[fd00::1]:53/UDP")


async def running(source):
    told = []
    task = asyncio.create_task(source.run(told.append))
    await asyncio.wait_for(source.synced.wait(), 5)
    return task, told


async def test_it_survives_a_restart(tmp_path):
    source = OperatorSource(str(tmp_path / "state"))
    task, told = await running(source)
    await source.set_states([ONE, TWO], BackendState.MAINTENANCE)
    assert {(c.key, c.old, c.new.state) for c in told[-1]} == {
        ("10.0.0.1:80/TCP", None, BackendState.MAINTENANCE), ("[fd00::1]:53/UDP", None, BackendState.MAINTENANCE)
    }  # fmt: skip
    task.cancel()
    again = OperatorSource(str(tmp_path / "state"))
    task, told = await running(again)
    assert {c.new.address for c in told[0]} == {ONE, TWO}
    assert again.state_of(ONE) is BackendState.MAINTENANCE
    await again.set_states([ONE], BackendState.ACTIVE)
    await again.forget([TWO])
    assert told[-1][0].new is None
    task.cancel()
    assert OperatorSource(str(tmp_path / "state")).snapshot().backend_states.keys() == {"10.0.0.1:80/TCP"}


async def test_saying_it_twice_is_one_change(tmp_path):
    source = OperatorSource(str(tmp_path))
    task, told = await running(source)
    await source.set_states([ONE], BackendState.MAINTENANCE)
    await source.set_states([ONE], BackendState.MAINTENANCE)
    assert len(told) == 2  # the first list, which is empty, and the change
    task.cancel()


async def test_what_cannot_be_written_is_not_done(tmp_path):
    (tmp_path / "state").write_text("a file where the directory should be")
    source = OperatorSource(str(tmp_path / "state"))
    task, told = await running(source)
    with pytest.raises(LbError, match="cannot be written.*nothing was changed"):
        await source.set_states([ONE], BackendState.MAINTENANCE)
    assert source.state_of(ONE) is None
    assert told == [[]]
    task.cancel()


async def test_a_broken_file_is_said_and_put_aside(tmp_path):
    (tmp_path / FILE).write_text('{"apiVersion": "v1", "kind": "List", "items": [')
    source = OperatorSource(str(tmp_path))
    assert len(source.problems()) == 1
    assert FILE in str(source.problems()[0])
    await source.set_states([ONE], BackendState.MAINTENANCE)
    assert (tmp_path / f"{FILE}.broken").read_text().endswith("[")
    assert OperatorSource(str(tmp_path)).state_of(ONE) is BackendState.MAINTENANCE


async def test_a_draft_that_was_never_renamed_does_not_count(tmp_path):
    source = OperatorSource(str(tmp_path))
    await source.set_states([ONE], BackendState.MAINTENANCE)
    (tmp_path / f"{FILE}.new").write_text("half of it")
    assert OperatorSource(str(tmp_path)).state_of(ONE) is BackendState.MAINTENANCE
    assert os.stat(tmp_path / FILE).st_mode & 0o777 == 0o600


async def test_many_at_once_keep_all(tmp_path):
    source = OperatorSource(str(tmp_path))
    addresses = [L3n4Addr(bytes((10, 0, 0, n)), 80) for n in range(1, 21)]
    await asyncio.gather(*(source.set_states([address], BackendState.MAINTENANCE) for address in addresses))
    assert len(OperatorSource(str(tmp_path)).snapshot().backend_states) == 20


POD = "shop/web-0"


async def test_the_word_on_a_pod_survives_a_restart(tmp_path):
    source = OperatorSource(str(tmp_path))
    task, told = await running(source)
    await source.set_states([], BackendState.MAINTENANCE, pods=[POD])
    ((change,),) = told[1:]
    assert (change.kind, change.key, change.new.pod, change.new.address) == (
        "BackendState", "pod/shop/web-0", POD, None
    )  # fmt: skip
    task.cancel()
    (again,) = OperatorSource(str(tmp_path)).snapshot().backend_states.values()
    assert again == change.new
    assert again.origin.source == "operator"
    assert (tmp_path / FILE).read_text().count('"ref": "pod/shop/web-0"') == 1


async def test_the_newer_word_on_a_pod_ends_that_on_its_backends(tmp_path):
    source = OperatorSource(str(tmp_path))
    await source.set_states([ONE, TWO], BackendState.ACTIVE)
    await source.set_states([], BackendState.MAINTENANCE, pods=[POD], backends_of_pods=[ONE])
    assert source.snapshot().backend_states.keys() == {"pod/shop/web-0", "[fd00::1]:53/UDP"}
    await source.set_states([ONE], BackendState.ACTIVE)  # an address beats the Pod behind it: the Pod's word stays
    assert source.snapshot().backend_states.keys() == {"pod/shop/web-0", "[fd00::1]:53/UDP", "10.0.0.1:80/TCP"}


async def test_every_object_is_the_operators(tmp_path):
    source = OperatorSource(str(tmp_path))
    source.resume()
    await source.set_states([ONE], BackendState.MAINTENANCE, pods=[POD])
    for each in (source, OperatorSource(str(tmp_path))):
        assert {state.origin.source for state in each.snapshot().backend_states.values()} == {"operator"}


async def test_since_when_a_state_is_set(tmp_path, monkeypatch):
    source = OperatorSource(str(tmp_path))
    monkeypatch.setattr("time.time", lambda: 1795294126.7)
    await source.set_states([ONE], BackendState.MAINTENANCE)
    monkeypatch.setattr("time.time", lambda: 1795294999.0)
    await source.set_states([ONE, TWO], BackendState.MAINTENANCE)  # the first one is set already
    for each in (source, OperatorSource(str(tmp_path))):
        created = {name: state.created for name, state in each.snapshot().backend_states.items()}
        assert created == {"10.0.0.1:80/TCP": 1795294126.0, "[fd00::1]:53/UDP": 1795294999.0}
    await source.set_states([ONE], BackendState.ACTIVE)
    assert source.snapshot().backend_states["10.0.0.1:80/TCP"].created == 1795294999.0


async def test_what_was_set_is_forgotten(tmp_path):
    source = OperatorSource(str(tmp_path))
    task, told = await running(source)
    await source.set_states([ONE, TWO], BackendState.ACTIVE, pods=[POD])
    assert await source.forget([TWO], [POD]) == ["[fd00::1]:53/UDP", "pod/shop/web-0"]
    assert {change.new for change in told[-1]} == {None}
    assert await source.forget([TWO], [POD]) == []
    assert list(source.addresses) == [ONE]
    assert source.has_state("10.0.0.1:80/TCP")
    assert OperatorSource(str(tmp_path)).snapshot().backend_states.keys() == {"10.0.0.1:80/TCP"}
    task.cancel()


DRAIN = KeptDrain(address="10.0.0.1:80/TCP", since=1795294126.5, deadline=1795294426.5, flows_at_start=12)


async def test_a_drain_is_kept_with_the_state_that_it_sets(tmp_path):
    source = OperatorSource(str(tmp_path))
    task, told = await running(source)
    await source.set_states([ONE], BackendState.MAINTENANCE, drains=[DRAIN])
    again = OperatorSource(str(tmp_path))
    assert again.drains == {"10.0.0.1:80/TCP": DRAIN}
    assert again.state_of(ONE) is BackendState.MAINTENANCE
    assert again.problems() == []
    await source.set_states([ONE], BackendState.ACTIVE)
    again = OperatorSource(str(tmp_path))
    assert (again.drains, again.state_of(ONE)) == ({}, BackendState.ACTIVE)
    assert "drains" not in (tmp_path / FILE).read_text()
    assert len(told) == 3
    task.cancel()


async def test_the_drain_of_a_pods_backend_ends_with_the_pods_state(tmp_path):
    source = OperatorSource(str(tmp_path))
    await source.set_states([], BackendState.MAINTENANCE, pods=[POD], backends_of_pods=[ONE], drains=[DRAIN])
    assert await source.forget([ONE], [POD]) == ["pod/shop/web-0", "10.0.0.1:80/TCP"]
    await source.set_states([], BackendState.MAINTENANCE, pods=[POD], backends_of_pods=[ONE], drains=[DRAIN])
    await source.set_states([], BackendState.ACTIVE, pods=[POD], backends_of_pods=[ONE])
    assert source.drains == {}


@pytest.mark.parametrize(
    "drains", ["7", '[{"address": "10.0.0.1:80"}]', '[{"address": "x", "since": 1, "deadline": 2}]']
)
async def test_drains_that_cannot_be_read_are_said_and_the_states_hold(tmp_path, drains):
    source = OperatorSource(str(tmp_path))
    await source.set_states([ONE], BackendState.MAINTENANCE, drains=[DRAIN])
    text = (tmp_path / FILE).read_text()
    (tmp_path / FILE).write_text(text[: text.index('"drains":')] + f'"drains": {drains}}}')
    again = OperatorSource(str(tmp_path))
    assert (again.drains, again.state_of(ONE)) == ({}, BackendState.MAINTENANCE)
    (problem,) = again.problems()
    assert f"{FILE}: drains: " in str(problem)
