"""NftWriter over tables in memory: any sequence of changes and errors ends with the wanted table, and no packet meets half of one."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lbagent.errors import KernelError
from lbagent.model.service import SVC, ServiceName
from lbagent.net.conntrack import Connection, Ended
from lbagent.targets.nftables import nft_table, nft_writer
from lbagent.targets.nftables.chains import TableSettings
from lbagent.targets.nftables.map_specs import MARKER
from lbagent.targets.nftables.nf_tables import NEW_ELEMENT, Message
from lbagent.targets.nftables.nft_writer import NftWriter
from lbagent.targets.nftables.node_place import NodePlace
from tests.targets.nftables.fake_tables import FakeNfTables, Table
from tests.targets.nftables.made import WEB, row, wildcard
from tests.targets.nftables.test_rule_set import NAMES, assert_whole, states

OTHER = ServiceName("default", "other")
ROWS = (row("10.96.0.1:80", "10.0.0.1:80", "10.0.0.2:80"), wildcard("10.96.0.1"))
OTHER_ROW = row("10.96.0.2:80", "10.0.0.3:80", name=OTHER)


class NoConnections:
    """Remembers which connections ended."""

    def __init__(self) -> None:
        self.ended: set[Ended] = set()

    def end(self, gone: set[Ended]) -> int:
        self.ended |= gone
        return len(gone)

    def connections(self) -> Iterator[Connection]:
        return iter(())

    def close(self) -> None:
        pass


def made(kernel: FakeNfTables, place: NodePlace | None = None) -> tuple[NftWriter, NoConnections]:
    """Return a writer over these tables, and the connections that it ends."""
    connections = NoConnections()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(nft_table, "NfTables", lambda: kernel)
        patch.setattr(nft_writer, "Conntrack", lambda: connections)
        return NftWriter(TableSettings(), place or NodePlace("here", ())), connections


def write(writer: NftWriter, *rows: SVC, kept: frozenset[ServiceName] | None = None) -> None:
    found: dict[ServiceName, list[SVC]] = {}
    for each in rows:
        found.setdefault(each.name, []).append(each)
    asyncio.run(writer.write(found, kept))


def differences(writer: NftWriter) -> list[str]:
    return [str(each) for each in asyncio.run(writer.differences())]


@given(st.lists(st.tuples(states, st.integers(0, 4)), min_size=2, max_size=4))
@settings(deadline=None, max_examples=25)
def test_any_changes_and_errors_end_with_the_wanted_table(sequence: list[tuple[Sequence[Sequence[SVC]], int]]) -> None:
    kernel = FakeNfTables()
    writer, _ = made(kernel)
    for state, fail_at in sequence:
        services = {name: rows for name, rows in zip(NAMES, state, strict=True) if rows}
        kernel.fail_at = fail_at
        try:
            asyncio.run(writer.write(services))
        except KernelError:
            kernel.fail_at = 0
            asyncio.run(writer.write(services))
        kernel.fail_at = 0
        assert differences(writer) == []
        table = kernel.tables["lbagent"]
        assert table.rules.keys() >= writer.rules.chains().keys()
        assert_whole(table.elements, set(table.rules))
    with pytest.MonkeyPatch.context() as later:  # chains without a use stay for a while
        later.setattr("lbagent.targets.nftables.nft_writer.time.monotonic", lambda: 1e12)
        asyncio.run(writer.write(services))
    assert differences(writer) == []
    assert table.rules.keys() == writer.rules.chains().keys()
    assert_whole(table.elements, set(table.rules))


@given(states, states)
@settings(deadline=None, max_examples=25)
def test_each_transaction_leaves_a_whole_table(one: Sequence[Sequence[SVC]], two: Sequence[Sequence[SVC]]) -> None:
    kernel = FakeNfTables()
    writer, _ = made(kernel)
    transact = kernel.transact

    def checked(messages: object) -> None:
        transact(messages)  # type: ignore[arg-type]
        for table in kernel.tables.values():
            assert_whole(table.elements, set(table.rules))

    kernel.transact = checked  # type: ignore[method-assign, assignment]
    for state in (one, two):
        asyncio.run(writer.write({name: rows for name, rows in zip(NAMES, state, strict=True) if rows}))
    assert differences(writer) == []


@given(states, states)
@settings(deadline=None, max_examples=25)
def test_the_next_agent_changes_only_what_differs(one: Sequence[Sequence[SVC]], two: Sequence[Sequence[SVC]]) -> None:
    kernel = FakeNfTables()
    first, _ = made(kernel)
    asyncio.run(first.write({name: rows for name, rows in zip(NAMES, one, strict=True) if rows}))
    second, _ = made(kernel)
    asyncio.run(second.write({name: rows for name, rows in zip(NAMES, two, strict=True) if rows}))
    assert differences(second) == []
    third, _ = made(kernel)
    kernel.transactions.clear()
    asyncio.run(third.write({name: rows for name, rows in zip(NAMES, two, strict=True) if rows}))
    assert differences(third) == []
    assert not [message for messages in kernel.transactions for message in messages if message.kind == NEW_ELEMENT]


def test_an_unchanged_state_writes_nothing() -> None:
    kernel = FakeNfTables()
    writer, _ = made(kernel)
    write(writer, *ROWS)
    kernel.transactions.clear()
    write(writer, *ROWS)
    assert kernel.transactions == []


def test_a_change_touches_its_own_elements() -> None:
    kernel = FakeNfTables()
    writer, _ = made(kernel)
    write(writer, *ROWS, OTHER_ROW)
    kernel.transactions.clear()
    write(writer, *ROWS, row("10.96.0.2:80", "10.0.0.4:80", name=OTHER))
    (messages,) = kernel.transactions
    assert len(messages) == 2  # the slot's old element and its new one
    assert all("backends4" in message.what for message in messages)


def test_a_node_that_changes_its_addresses() -> None:
    kernel = FakeNfTables()
    writer, _ = made(kernel)
    write(writer, *ROWS)
    assert kernel.tables["lbagent"].elements["local4"] == {}
    writer.move(NodePlace("here", (), node_ips=[bytes((10, 0, 0, 1))]))
    write(writer, *ROWS)
    assert set(kernel.tables["lbagent"].elements["local4"]) == {bytes((10, 0, 0, 1))}
    assert differences(writer) == []


@pytest.mark.parametrize("steps", range(8))
def test_a_node_that_changes_its_addresses_in_a_write_that_is_cancelled(
    steps: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After so many turns of the event loop."""
    monkeypatch.setattr(nft_writer, "_BETWEEN_YIELDS", 1)
    kernel = FakeNfTables()
    writer, _ = made(kernel)
    write(writer, *ROWS, OTHER_ROW)
    writer.move(NodePlace("here", (), node_ips=[bytes((10, 0, 0, 1))]))

    async def cancelled() -> None:
        found: dict[ServiceName, list[SVC]] = {}
        for each in (*ROWS, OTHER_ROW):
            found.setdefault(each.name, []).append(each)
        task = asyncio.ensure_future(writer.write(found))
        for _ in range(steps):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    asyncio.run(cancelled())
    write(writer, *ROWS, OTHER_ROW)
    fresh = FakeNfTables()
    write(made(fresh, writer.place)[0], *ROWS, OTHER_ROW)
    assert kernel.tables["lbagent"].elements == fresh.tables["lbagent"].elements


def test_connections_end_with_their_backend_also_that_of_an_earlier_agent() -> None:
    kernel = FakeNfTables()
    first, _ = made(kernel)
    write(first, *ROWS, OTHER_ROW)
    second, ended = made(kernel)
    write(second, *ROWS)
    assert {str(each.backend) for each in ended.ended} == {"10.0.0.3:80"}
    write(second, row("10.96.0.1:80", "10.0.0.1:80"), wildcard("10.96.0.1"))
    assert {str(each.backend) for each in ended.ended} == {"10.0.0.3:80", "10.0.0.2:80"}


def test_services_of_an_incomplete_source_stay() -> None:
    kernel = FakeNfTables()
    first, _ = made(kernel)
    write(first, *ROWS, OTHER_ROW)
    left = {name: dict(found) for name, found in kernel.tables["lbagent"].elements.items()}
    second, ended = made(kernel)
    write(second, row("10.96.0.1:80"), wildcard("10.96.0.1"), kept=frozenset({WEB}))
    assert kernel.tables["lbagent"].elements == left
    assert second.kept == 2
    assert not ended.ended
    write(second, *ROWS)
    assert second.kept == 0
    assert differences(second) == []


def test_a_table_of_another_form_stays_while_a_source_is_not_complete() -> None:
    kernel = FakeNfTables()
    kernel.tables["lbagent"] = Table("lbagent 0")
    writer, _ = made(kernel)
    write(writer, *ROWS, kept=frozenset())
    assert kernel.tables["lbagent"].comment == "lbagent 0"
    write(writer, *ROWS)
    assert kernel.tables["lbagent"].comment == MARKER
    assert differences(writer) == []


def test_what_is_not_served_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    writer, _ = made(FakeNfTables())
    loopback = row("127.0.0.1:80", "10.0.0.1:80", loopback_hostport=True)
    for _ in range(2):
        write(writer, *ROWS, loopback)
    (record,) = caplog.records
    assert record.message == "nftables does not do all of a Service"
    assert record.__dict__["service"] == "default/web"


def test_a_change_of_another_program_is_noticed() -> None:
    kernel = FakeNfTables()
    writer, _ = made(kernel)
    write(writer, *ROWS)
    assert not asyncio.run(writer.is_touched())
    kernel.number += 1
    assert asyncio.run(writer.is_touched())
    write(writer, *ROWS, OTHER_ROW)
    assert asyncio.run(writer.is_touched()), "a change of one Service compares nothing else"
    assert differences(writer) == []
    assert not asyncio.run(writer.is_touched()), "everything was compared"


def test_a_change_of_another_program_during_a_write_is_noticed() -> None:
    kernel = FakeNfTables()
    writer, _ = made(kernel)
    write(writer, *ROWS)
    transact = kernel.transact

    def beside(messages: Sequence[Message]) -> None:
        transact(messages)
        kernel.number += 1

    kernel.transact = beside  # type: ignore[method-assign]
    write(writer, *ROWS, OTHER_ROW)
    assert asyncio.run(writer.is_touched())


def test_a_comparison_that_is_asked_for_during_a_write_is_made() -> None:
    kernel = FakeNfTables()
    writer, _ = made(kernel)
    write(writer, *ROWS)
    transact = kernel.transact

    def losing(messages: object) -> None:
        transact(messages)  # type: ignore[arg-type]
        writer.lose_sync()

    kernel.transact = losing  # type: ignore[method-assign, assignment]
    write(writer, *ROWS, OTHER_ROW)
    kernel.transact = transact  # type: ignore[method-assign]
    kernel.tables["lbagent"].elements["backends4"].clear()
    write(writer, *ROWS, OTHER_ROW)
    assert differences(writer) == []
