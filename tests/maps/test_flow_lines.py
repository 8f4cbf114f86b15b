"""The JSON objects of flows, their filters and counts, over tables whose entries have random fields."""

from __future__ import annotations

import ipaddress
import json
from collections import Counter
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lbagent.maps.flow_counts import count_by, count_flows
from lbagent.maps.flow_filter import flow_filter
from lbagent.maps.flow_layout import FLOW
from lbagent.maps.flow_lines import FlowLines
from lbagent.maps.flow_reader import count, count_live, raw_flows
from lbagent.maps.flow_settings import FlowSettings
from lbagent.maps.layout import PATH
from lbagent.maps.map_names import family_map
from lbagent.maps.memory_maps import MemoryMaps
from lbagent.model.family import Family
from tests.maps.flow_table import maps_with, swapped, words

FAMILIES = pytest.mark.parametrize("family", Family, ids=str)
SETTINGS = FlowSettings(
    seeds=(1, 2), jiffies_shift=8, tick_s=1.024, timeout_new=60, timeout_tcp=8000, timeout_udp=120, timeout_closing=20
)
NOW = 100  # younger entries wrapped: last seen 65,500 is 136 ticks ago
STATES, PROTOCOLS = ("new", "established", "closing", "mid"), ("TCP", "UDP", "SCTP")
BACKENDS = {7: 8080, 8: 8081, 300: 9000}  # id -> port
NAMES = {3: "shop/web", 4: "shop/api"}


def address(family: Family, number: int) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
    if family is Family.IPV4:
        return ipaddress.IPv4Address("10.9.0.0") + number
    return ipaddress.IPv6Address("2001:db8:7::") + number


@st.composite
def flow_fields(draw: st.DrawFn) -> dict[str, Any]:
    return {
        "client": draw(st.integers(1, 6)), "port": draw(st.integers(1, 65535)), "vip": draw(st.integers(20, 23)),
        "vip_port": draw(st.sampled_from([53, 80, 443])), "l4": draw(st.integers(0, 2)), "state": draw(st.integers(0, 3)),
        "backend": draw(st.sampled_from([0, *BACKENDS])), "service": draw(st.sampled_from([0, 3, 4, 9])),
        "snat": draw(st.sampled_from([0, 1025, 29999, 258])), "seen": draw(st.sampled_from([0, 50, 99, 100, 65500])),
        "bgen": draw(st.sampled_from([5, 6, 0x85])),
    }  # fmt: skip


def filled(family: Family, flows: list[dict[str, Any]]) -> MemoryMaps:
    entries = {}
    for number, each in enumerate(flows):
        client, vip = (int.from_bytes(address(family, each[name]).packed, "little") for name in ("client", "vip"))
        given = {
            "generation": 5, "value_generation": 5, "l4": each["l4"], "client_port": swapped(each["port"]),
            "vip_port": swapped(each["vip_port"]), "state": each["state"], "backend": each["backend"],
            "backend_generation": each["bgen"], "forward": swapped(each["snat"]), "service": each["service"],
            "last_seen": each["seen"], "client_hop": 7,
        }  # fmt: skip
        if family is Family.IPV4:
            given |= {"vip_generation": 5, "client": client, "vip": vip}
        else:
            low = (1 << 64) - 1
            given |= {"client": client & low, "client_end": client >> 64, "vip": vip & low, "vip_end": vip >> 64}
        entries[3 * number] = words(FLOW[family], **given)
    maps = maps_with(family, entries)
    record = PATH[family]
    for ident, port in BACKENDS.items():
        raw = (address(family, 1000 + ident).packed, address(family, 99).packed, port.to_bytes(2, "big"), 5, 1, 0, 1500)
        data = record.pack(*raw) if family is Family.IPV4 else record.pack(*raw, b"")
        with maps.window(family_map(family, "path"), ident * record.size, record.size) as view:
            view[:] = data
    return maps


def expected(family: Family, each: dict[str, Any]) -> dict[str, Any]:
    """Return the object of a flow; generation 6 is another backend's, 0x85 that of a flow that lost its backend."""

    def host(number: int) -> str:
        text = str(address(family, number))
        return f"[{text}]" if family is Family.IPV6 else text

    l4, is_known = PROTOCOLS[each["l4"]], each["backend"] and each["bgen"] != 6
    ages = {0: 100, 50: 50, 99: 1, 100: 0, 65500: 136}
    limit = {"new": 60, "mid": 60, "closing": 20, "established": 120 if l4 == "UDP" else 8000}[STATES[each["state"]]]
    return {
        "family": f"ipv{family}", "protocol": l4, "client": f"{host(each['client'])}:{each['port']}",
        "frontend": f"{host(each['vip'])}:{each['vip_port']}/{l4}", "service": NAMES.get(each["service"]),
        "backend": f"{host(1000 + each['backend'])}:{BACKENDS[each['backend']]}/TCP" if is_known else None,
        "backend_id": each["backend"] if is_known else None, "mode": "snat" if each["snat"] else "local",
        "snat": f"{host(99)}:{each['snat']}" if each["snat"] and is_known else None, "state": STATES[each["state"]],
        "idle_s": round(ages[each["seen"]] * 1.024), "expires_in_s": round(max(0, limit - ages[each["seen"]]) * 1.024), "spilled": False,
    }  # fmt: skip


def texts_of(maps: MemoryMaps) -> FlowLines:
    return FlowLines(maps, SETTINGS, NOW, lambda ident, _: NAMES.get(ident))


def objects(maps: MemoryMaps, family: Family, **filters: Any) -> list[dict[str, Any]]:
    texts, found = texts_of(maps), []
    select, lines_of = texts.selects(flow_filter(**filters), family), texts.lines_of(family)
    for piece in raw_flows(maps, family):
        found += map(json.loads, lines_of(piece if select is None else filter(select, piece)))
    return found


@pytest.mark.long
@FAMILIES
@settings(deadline=None)
@given(data=st.data())
def test_each_flow_is_an_object_with_its_fields(family: Family, data: st.DataObject) -> None:
    flows = data.draw(st.lists(flow_fields(), max_size=12))
    found = objects(filled(family, flows), family)
    assert found == [expected(family, each) for each in flows]
    assert [list(each) for each in found] == [list(expected(family, each)) for each in flows], "in this order"


@pytest.mark.long
@FAMILIES
@settings(deadline=None)
@given(data=st.data())
def test_filters_select_by_the_fields_that_are_shown(family: Family, data: st.DataObject) -> None:
    raw = data.draw(st.lists(flow_fields(), min_size=1, max_size=12))
    flows = [expected(family, each) for each in raw]
    maps = filled(family, raw)
    one = data.draw(st.sampled_from(flows))
    frontend, client = one["frontend"], one["client"]
    cases: list[tuple[dict[str, Any], Any]] = [
        ({"client": client}, lambda row: row["client"] == client),
        ({"client": client.rpartition(":")[0]}, lambda row: row["client"].rpartition(":")[0] == client.rpartition(":")[0]),
        ({"client": f"{address(family, 4)}/{family.address_bytes * 8 - 1}"}, lambda row: row["client"].rpartition(":")[0].strip("[]")[-1] in "45"),
        ({"frontend": frontend}, lambda row: row["frontend"] == frontend),
        ({"frontend": frontend.rpartition("/")[0]}, lambda row: row["frontend"].rpartition("/")[0] == frontend.rpartition("/")[0]),
        ({"proto": one["protocol"].lower()}, lambda row: row["protocol"] == one["protocol"]),
        ({"state": one["state"]}, lambda row: row["state"] == one["state"]),
        ({"service": "shop/web"}, lambda row: row["service"] == "shop/web"),
        ({"idle_over_s": 51.5}, lambda row: row["idle_s"] > 52),
        ({"state": "new", "proto": "udp"}, lambda row: row["state"] == "new" and row["protocol"] == "UDP"),
    ]  # fmt: skip
    if backend := one["backend"]:
        cases.append(({"backend": backend}, lambda row: row["backend"] == backend))
    for filters, is_wanted in cases:
        assert objects(maps, family, **filters) == [row for row in flows if is_wanted(row)], filters


@pytest.mark.long
@FAMILIES
@settings(deadline=None)
@given(data=st.data())
def test_counts(family: Family, data: st.DataObject) -> None:
    """Closing flows are left out unless a filter selects them, those without a backend always."""
    raw = data.draw(st.lists(flow_fields(), max_size=12))
    maps = filled(family, raw)
    texts = texts_of(maps)
    rows = [expected(family, each) for each in raw if each["backend"] and each["state"] != 2]
    assert count_flows(maps, texts, flow_filter()) == count_live(maps, family) == len(rows)
    assert sum(count(maps, family).values()) == len(rows)
    closing = [each for each in raw if each["backend"] and each["state"] == 2]
    assert count_flows(maps, texts, flow_filter(state="closing")) == len(closing)
    assert count_flows(maps, texts, flow_filter(proto="udp")) == sum(row["protocol"] == "UDP" for row in rows)
    keys = {
        "service": lambda row: row["service"], "backend": lambda row: row["backend"], "state": lambda row: row["state"],
        "proto": lambda row: row["protocol"], "client": lambda row: row["client"].rpartition(":")[0].strip("[]"),
    }  # fmt: skip
    for by, key in keys.items():
        assert count_by(maps, texts, flow_filter(), by, []) == Counter(map(key, rows)), by


@FAMILIES
def test_a_reader_without_a_clock_shows_no_ages(family: Family) -> None:
    maps = filled(family, [{"client": 1, "port": 2, "vip": 20, "vip_port": 80, "l4": 0, "state": 1, "backend": 7, "service": 3, "snat": 0, "seen": 5, "bgen": 5}])  # fmt: skip
    texts = FlowLines(maps, SETTINGS, None, lambda *_: None)
    (line,) = texts.lines_of(family)(next(iter(raw_flows(maps, family))))
    row = json.loads(line)
    assert (row["idle_s"], row["expires_in_s"], row["service"]) == (None, None, None)
