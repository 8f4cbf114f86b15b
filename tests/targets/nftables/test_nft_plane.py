"""NftPlane: the order of a start, readiness, what an earlier agent left, what it shows."""

from __future__ import annotations

import asyncio

import pytest

from lbagent.config import Config
from lbagent.errors import Conflict, KernelError, Unsupported
from lbagent.model.service import SVC, ServiceName
from lbagent.model.state import State
from lbagent.sync.target_protocol import Desired, Provenance
from lbagent.targets.nftables import nft_plane, nft_removal, nft_table, nft_writer
from lbagent.targets.nftables.nft_plane import NftPlane
from lbagent.targets.nftables.nft_renderer import FEATURES
from lbagent.targets.nftables.nft_table import NotOurs
from lbagent.targets.nftables.table_lock import TableLock
from tests.targets.nftables.fake_tables import FakeNfTables, Table
from tests.targets.nftables.made import row, wildcard
from tests.targets.nftables.test_nft_writer import NoConnections
from tests.targets.test_renderer_plane import eventually

ROWS = (row("10.96.0.1:80", "10.0.0.1:80", "10.0.0.2:80"), wildcard("10.96.0.1"))
OTHER_ROW = row("10.96.0.2:80", "10.0.0.3:80", name=ServiceName("default", "other"))
NAME = "lbagent-test"  # the lock is of the whole network namespace


@pytest.fixture
def kernel(monkeypatch: pytest.MonkeyPatch) -> FakeNfTables:
    made = FakeNfTables()
    monkeypatch.setattr(nft_table, "NfTables", lambda: made)
    monkeypatch.setattr(nft_writer, "Conntrack", NoConnections)
    monkeypatch.setattr(nft_plane, "unavailable_reason", lambda: "")
    return made


def plane(**settings: object) -> NftPlane:
    return NftPlane(Config(node_name="here", **settings), {"table": NAME}, FEATURES)  # type: ignore[arg-type]


def desired(*rows: SVC, untrusted: tuple[str, ...] = (), unlisted: tuple[str, ...] = ()) -> Desired:
    provenance = Provenance(untrusted, unlisted, frozenset(), {}) if untrusted else None
    return Desired(State(0, rows), provenance)


async def opened(made: NftPlane) -> NftPlane:
    await made.open(lambda: None)
    return made


async def test_a_state_is_in_force(kernel: FakeNfTables) -> None:
    made = await opened(plane())
    await made.reconcile(desired(*ROWS))
    assert made.ready.is_set()
    assert made.first_pass.is_set()
    assert [svc.id for svc in made.state.services if not svc.wildcard] == [1]
    assert kernel.tables[NAME].elements["frontends4"]
    assert made.counts.writes == made.writer.transactions > 0
    assert await made.verify() == []
    assert made.status().frontends == 1
    made.close()
    assert kernel.tables[NAME]  # it continues to serve


async def test_a_generation_comes_with_each_change(kernel: FakeNfTables) -> None:
    made = await opened(plane())
    await made.reconcile(desired(*ROWS))
    first = made.generation
    await made.reconcile(desired(*ROWS))
    assert made.generation == first
    changed = asyncio.ensure_future(made.changed_from(first))
    await asyncio.sleep(0)
    await made.reconcile(desired(*ROWS, OTHER_ROW))
    assert await changed == made.generation > first
    made.close()


async def test_an_error_is_raised_and_the_next_pass_puts_it_right(kernel: FakeNfTables) -> None:
    made = await opened(plane())
    kernel.fail_at = 2
    with pytest.raises(KernelError):
        await made.reconcile(desired(*ROWS))
    assert not made.ready.is_set()
    assert made.counts.errors == 1
    await made.reconcile(desired(*ROWS))
    assert await made.verify() == []
    made.close()


async def test_nothing_is_removed_before_the_sources_are_complete(kernel: FakeNfTables) -> None:
    first = await opened(plane())
    await first.reconcile(desired(*ROWS, OTHER_ROW))
    first.close()
    second = await opened(plane())
    assert second.retains
    await second.reconcile(desired(row("10.96.0.1:80"), untrusted=("kube",), unlisted=("default/web",)))
    assert not second.ready.is_set()
    assert second.first_pass.is_set()
    assert second.waiting == "kube has given no complete list yet: nothing is removed until it has"
    assert second.retained == 2
    assert len(kernel.tables[NAME].elements["backends4"]) == 3
    await second.reconcile(desired(*ROWS))
    assert second.ready.is_set()
    assert not second.waiting
    assert not second.retains
    assert len(kernel.tables[NAME].elements["backends4"]) == 2
    second.close()


async def test_two_agents_on_one_table(kernel: FakeNfTables) -> None:
    first = await opened(plane())
    with pytest.raises(Conflict, match=r"an agent already serves with table inet lbagent-test \(pid \d+\)") as found:
        await plane().open(lambda: None)
    assert found.value.exit_code == 4
    first.close()
    (await opened(plane())).close()


async def test_another_programs_table(kernel: FakeNfTables) -> None:
    kernel.tables[NAME] = Table("")
    made = plane()
    with pytest.raises(NotOurs, match="table inet lbagent-test is not lbagent's"):
        await made.open(lambda: None)
    made.close()


async def test_without_rights(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nft_plane, "unavailable_reason", lambda: "no rights")
    with pytest.raises(Unsupported, match="nftables is not available: no rights") as found:
        await plane().open(lambda: None)
    assert found.value.exit_code == 77


@pytest.mark.parametrize("was_there", [False, True])
async def test_a_first_start_that_failed_takes_back_what_it_made(kernel: FakeNfTables, was_there: bool) -> None:
    if was_there:
        before = await opened(plane())
        await before.reconcile(desired(*ROWS))
        before.close()
    made = await opened(plane())
    await made.reconcile(desired(*ROWS))
    made.take_back()
    made.close()
    assert (NAME in kernel.tables) is was_there


async def test_new_settings_are_in_the_rules_with_the_next_pass(kernel: FakeNfTables) -> None:
    made = await opened(plane())
    await made.reconcile(desired(*ROWS))
    count = len(kernel.tables[NAME].rules["prerouting"])
    await made.reconfigure(Config(node_name="here", pod_device=("pod*",)))
    assert made.wake.is_set()
    await made.reconcile(desired(*ROWS))
    assert len(kernel.tables[NAME].rules["prerouting"]) == count + 1
    assert await made.verify() == []
    made.close()


async def test_a_removed_frontend_is_due_again(kernel: FakeNfTables) -> None:
    made = await opened(plane())
    await made.reconcile(desired(*ROWS, OTHER_ROW))
    assert made.retry_at() is None
    await made.reconcile(desired(*ROWS))
    assert made.retry_at() is not None
    made.close()


async def test_what_is_not_served_is_a_problem(kernel: FakeNfTables) -> None:
    made = await opened(plane())
    await made.reconcile(desired(row("127.0.0.1:80", "10.0.0.1:80", loopback_hostport=True)))
    (text,) = made.problems()
    assert text.startswith("Service default/web: 127.0.0.1:80/TCP is not served")
    made.close()


async def test_drift_is_put_right(kernel: FakeNfTables, caplog: pytest.LogCaptureFixture) -> None:
    made = await opened(plane(resync_interval=1))
    await made.reconcile(desired(*ROWS))
    made.wake.clear()
    kernel.tables[NAME].elements["backends4"].clear()
    kernel.number += 1
    async with asyncio.timeout(10):
        watching = asyncio.ensure_future(made.watch())
        await made.wake.wait()
    watching.cancel()
    assert "default/web 10.96.0.1:80/TCP: missing: backends4" in str(caplog.records[0].__dict__["difference"])
    await made.reconcile(desired(*ROWS))
    assert await made.verify() == []
    made.close()


async def test_drift_before_a_change_of_the_agent_is_put_right(kernel: FakeNfTables) -> None:
    """A change of one Service compares nothing else: what another program did before it is still to be found."""
    made = await opened(plane(resync_interval=1))
    await made.reconcile(desired(*ROWS))
    kernel.tables[NAME].elements["backends4"].clear()
    kernel.number += 1
    await made.reconcile(desired(*ROWS, OTHER_ROW))
    made.wake.clear()
    async with asyncio.timeout(10):
        watching = asyncio.ensure_future(made.watch())
        await made.wake.wait()
    watching.cancel()
    await made.reconcile(desired(*ROWS, OTHER_ROW))
    assert len(kernel.tables[NAME].elements["backends4"]) == 3
    assert await made.verify() == []
    made.close()


async def test_rules_that_another_program_changed_stay_a_difference_when_a_chain_comes(kernel: FakeNfTables) -> None:
    made = await opened(plane())
    await made.reconcile(desired(*ROWS))
    kernel.tables[NAME].rules["postrouting"].clear()
    backends = [f"10.0.1.{number}:80" for number in range(1, 8)]  # seven slots: a chain that no other Service has
    await made.reconcile(desired(*ROWS, row("10.96.0.9:80", *backends, name=OTHER_ROW.name)))
    assert list(map(str, await made.verify())) == ["differs: the rules of chain postrouting were changed"]
    made.close()


async def test_the_count_of_differences_is_0_after_a_repair(kernel: FakeNfTables) -> None:
    made = await opened(plane(resync_interval=1))
    await made.reconcile(desired(*ROWS))
    made.wake.clear()
    kernel.tables[NAME].elements["backends4"].clear()
    kernel.number += 1
    async with asyncio.timeout(10):
        watching = asyncio.ensure_future(made.watch())
        await made.wake.wait()
        assert made.difference_count == 2
        await made.reconcile(desired(*ROWS))
        await eventually(lambda: made.difference_count == 0)
    watching.cancel()
    made.close()


async def test_a_dormant_table_is_a_difference_and_repaired(kernel: FakeNfTables) -> None:
    made = await opened(plane())
    await made.reconcile(desired(*ROWS))
    kernel.tables[NAME].is_dormant = True
    text = f"differs: table inet {NAME} is dormant: its chains have no effect"
    assert list(map(str, await made.repair())) == [text]
    await made.reconcile(desired(*ROWS))
    assert await made.verify() == []
    made.close()


async def test_cleanup_and_status_without_an_agent(kernel: FakeNfTables) -> None:
    config = Config(renderer=(f"nftables=table={NAME}",))
    assert nft_removal.remove(config, lambda: None) == []
    assert nft_removal.left_serving(config) == []
    made = await opened(plane())
    await made.reconcile(desired(*ROWS))
    with pytest.raises(Conflict):
        nft_removal.remove(config, lambda: None)
    made.close()
    assert nft_removal.left_serving(config) == [("nftables", f"table inet {NAME}, 1 frontends")]
    called: list[int] = []
    assert nft_removal.remove(config, lambda: called.append(1)) == [f"removed table inet {NAME}"]
    assert called == [1]
    assert NAME not in kernel.tables
    kernel.tables[NAME] = Table("")
    assert nft_removal.remove(config, lambda: None) == []
    assert NAME in kernel.tables
    TableLock(NAME).release()
