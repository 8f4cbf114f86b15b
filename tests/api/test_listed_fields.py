"""The lists: each word once, of the type that its row says, and as a column where it has one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from lbagent.announce.bgp.speaker import BgpPeerRow
from lbagent.announce.vip_rows import VipRow
from lbagent.api.capabilities import every_capability
from lbagent.api.capabilities.bgp import PEERS
from lbagent.api.capabilities.generations import GENERATIONS
from lbagent.api.capabilities.node_backends import BACKENDS
from lbagent.api.capabilities.services import MEMBERS, SERVICES
from lbagent.api.capabilities.vips import VIPS
from lbagent.api.capability import BOOLEAN, NUMBER, OBJECT, ROWS, TEXT, TEXTS, ListedFields
from lbagent.api.checked_backends import CheckRow
from lbagent.api.drains import DrainRow
from lbagent.api.listed_backends import listed_backends
from lbagent.api.listed_services import listed_services
from lbagent.api.operator_states import SetBy
from lbagent.api.used_backends import backends_used
from lbagent.cli.output import columns_of
from lbagent.model.address import L3n4Addr
from lbagent.model.backend import Backend, BackendState
from lbagent.model.cooperative import run_whole
from lbagent.model.handshakes import Handshakes
from lbagent.model.service import RESTORED
from lbagent.sync.generation_history import PastGeneration
from lbagent.targets.data_plane import EgressPath, FlowCounts
from tests.api.serving import example_state
from tests.sync.generations import generation

LISTS = (SERVICES, MEMBERS, BACKENDS, VIPS, PEERS, GENERATIONS)
DNS = L3n4Addr.parse("10.0.0.53:53/UDP")
IS_OF_KIND: dict[str, Callable[[Any], bool]] = {
    NUMBER: lambda value: isinstance(value, int | float) and not isinstance(value, bool),
    TEXT: lambda value: isinstance(value, str),
    BOOLEAN: lambda value: isinstance(value, bool),
    TEXTS: lambda value: isinstance(value, list) and all(isinstance(each, str) for each in value),
    ROWS: lambda value: isinstance(value, list) and all(isinstance(each, dict) for each in value),
    OBJECT: lambda value: isinstance(value, dict),
}


def items(listed: ListedFields[Any]) -> list[Any]:
    """Return items of which each optional word is in one."""
    state = example_state()
    if listed is SERVICES:
        ranges = ("192.0.2.0/24",)
        return list(listed_services(state)) + [
            msgspec.structs.replace(
                each,
                svc=msgspec.structs.replace(
                    each.svc,
                    check_source_range=True,
                    source_ranges=ranges,
                    name=RESTORED,
                    stale_flows_s=30,
                    l7_lb_proxy_port=15001,
                    slotless=(Backend(9, DNS, BackendState.TERMINATING, gone=True),),
                ),
            )
            for each in listed_services(state)
        ]
    if listed is BACKENDS:
        drain = DrainRow(
            state="draining",
            since=1.0,
            timeout_s=60.0,
            remaining_s=5.0,
            flows=2,
            flows_at_start=3,
            counted=True,
            address=DNS.with_protocol(),
        )
        set_by = {DNS: SetBy(BackendState.MAINTENANCE, "operator", 1.5)}
        used = run_whole(backends_used(state))
        used = [(msgspec.structs.replace(used[0][0], gone=True), used[0][1]), *used[1:]]
        return list(
            listed_backends(
                used,
                FlowCounts({1: 5}, 2.0),
                set_by,
                lambda _: EgressPath("tc", "eth0", "old"),
                [drain],
                {1: Handshakes(refused=1)},
                {DNS: CheckRow("udp", "down", 1.5, "port unreachable")},
            )
        )
    if listed is VIPS:
        return [VipRow("10.0.0.1", "p", "l2", "announced", "n1", ["shop/web"], "")]
    if listed is GENERATIONS:
        return [generation(7, "Service shop/web")]
    return [BgpPeerRow("192.0.2.1", 64513, "active", "off", 0, "it refuses connections")]


def rows(listed: ListedFields[Any]) -> list[dict[str, Any]]:
    if listed is MEMBERS:
        return [member for row in rows(SERVICES) for member in row["backends"]]
    return msgspec.json.decode(msgspec.json.encode(list(map(listed.row, items(listed)))), type=list[dict[str, Any]])


@pytest.mark.parametrize("listed", LISTS, ids=lambda listed: listed.record)
def test_values_are_of_the_kind_that_the_row_says(listed: ListedFields[Any]) -> None:
    seen = set()
    for row in rows(listed):
        for field in listed.fields:
            if field.key in row:
                seen.add(field.key)
                assert IS_OF_KIND[field.kind](row[field.key]), field.key
        assert {field.key for field in listed.fields if field.key and not field.optional} <= set(row)
        in_order = sorted(listed.fields, key=lambda field: field.optional)
        assert list(row) == [field.key for field in in_order if field.key in row]
    assert seen == {field.key for field in listed.fields if field.key}


@pytest.mark.parametrize("listed", LISTS, ids=lambda listed: listed.record)
def test_each_word_is_there_once(listed: ListedFields[Any]) -> None:
    keys = [field.key for field in listed.fields if field.key]
    titles = [field.title for field in listed.fields if field.title]
    assert len(set(keys)) == len(keys)
    assert len(set(titles)) == len(titles)
    assert set(listed.columns) <= set(titles)
    assert all(field.value or (field.title and field.cell) for field in listed.fields)
    assert all(field.meaning for field in listed.fields)


def test_these_are_all_lists() -> None:
    of_routes = {
        route.record.record
        for row in every_capability()
        for route in row.routes
        if isinstance(route.record, ListedFields)
    }
    assert of_routes | {MEMBERS.record} == {listed.record for listed in LISTS}


def test_records_are_shown_whole() -> None:
    for listed, record in ((VIPS, VipRow), (PEERS, BgpPeerRow), (GENERATIONS, PastGeneration)):
        assert tuple(field.key for field in listed.fields) == record.__struct_fields__


def test_a_new_word_is_the_last_column() -> None:
    """Where `columns` of the list does not name it."""
    new = VIPS.fields[0].replaced(key="new", title="NEW")
    listed = ListedFields("VipRow", (*VIPS.fields, new), VIPS.columns)
    assert [each.title for each in listed.shown][-2:] == ["REASON", "NEW"]


def test_columns_that_some_rows_need() -> None:
    """WAY, DRAIN, GONE, SET-BY and SINCE are shown where a row has something to say, and `always` to one that watches."""

    def narrow(*given: dict[str, Any], always: bool = False) -> list[str]:
        columns = columns_of(BACKENDS, given, always=always)
        return [column.header for column in columns if not column.wide][8:]

    assert narrow({"way": "xdp"}) == []
    assert narrow({"way": "tc", "way_reason": "old"}) == ["WAY"]
    assert narrow({"drain": {"state": "draining"}}, {"set_by": "operator"}) == ["DRAIN", "SET-BY", "SINCE"]
    assert narrow(always=True) == ["WAY", "DRAIN", "GONE", "SET-BY", "SINCE"]
