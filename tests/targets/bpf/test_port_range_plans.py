"""Plans of frontends with a range of ports: prefixes, their order, a restart, a full map."""

from __future__ import annotations

import pytest

from lbagent.maps import backend_codec, frontend_codec
from lbagent.maps.consistency import check
from lbagent.maps.dump import dump
from lbagent.model.address import L3n4Addr, Scope
from lbagent.targets.bpf.drift import drift
from lbagent.testing.faulty_maps import FaultyMaps
from tests.targets.bpf.plans import Node, backend, service
from tests.targets.bpf.test_capacity import limit, node_with, refused

FOUR = service("192.0.2.1:10000-19999/UDP", backend("10.244.1.11:0/UDP"), backend("10.244.1.12:0/UDP"))
SIX = service("[2001:db8::1]:10000-19999", backend("[fd00:1::2]:0"))
INSIDE = service("192.0.2.1:10000-19999/UDP/i", backend("10.244.1.11:0/UDP"))


def served(node: Node, port: int, name: str = "lb4_port_range") -> set[str]:
    """Return the ranges that the longest prefix of a port leads to and that have a master."""
    found = []
    for key, value in node.maps.items(name):
        bits = int.from_bytes(key[:4], "little") - 32 - 8 * (len(key) - 12)
        if (int.from_bytes(key[-4:-2], "big") ^ port) >> 16 - bits == 0:
            found.append((bits, frontend_codec.port_range_frontend(key, value)))
    best = [each for bits, each in found if bits == max(found)[0]]
    digit = name[2]
    return {
        each.with_protocol()
        for each in best
        if node.maps.get(f"lb{digit}_service", frontend_codec.service_key(each, 0))
    }


def test_entries() -> None:
    node = Node()
    node.serve(FOUR, INSIDE, SIX)
    assert check(node.maps, settled=True) == []
    assert len(node.maps.items("lb4_port_range")) <= 20
    assert len(node.maps.items("lb6_port_range")) <= 20
    assert node.shadow.pressure()["lb4_port_range"][0] == len(node.maps.items("lb4_port_range"))
    for port, is_there in ((9999, False), (10000, True), (15000, True), (19999, True), (20000, False)):
        assert bool(served(node, port)) is is_there, port
    assert "SVC: ID=1 ADDR=192.0.2.1:10000-19999/UDP SLOT=1 BEID=1 COUNT=0 QCOUNT=0 FLAGS=ClusterIP" in dump(node.maps)
    assert "REV: ID=3 ADDR=[2001:db8::1]:10000-19999" in dump(node.maps)
    assert list(filter(None, drift(node.maps, node.shadow))) == []
    with node.maps.window("lb4_path", 16, 16) as view:
        raw = bytes(view)
    record = backend_codec.path_of(raw)
    assert (record.live, record.keeps_port, record.port) == (True, True, 0)
    assert not raw[11] & 1, "the quick path takes the backend for gone"
    node.serve()
    for name in node.maps.specs:
        assert node.maps.items(name) == [], name
    assert {used for used, _ in node.shadow.pressure().values()} == {0}


def test_a_restart_with_nothing_to_change_writes_nothing() -> None:
    node = Node()
    node.serve(FOUR, INSIDE, SIX)
    pressure = node.shadow.pressure()
    found = node.restart()
    assert dict(found.service_ids)[FOUR.frontend] == 1
    assert node.shadow.pressure() == pressure
    assert not node.shadow.orphans
    assert dict(node.serve(FOUR, INSIDE, SIX).written) == {}
    node.restart()
    node.serve()
    for name in node.maps.specs:
        assert node.maps.items(name) == [], name


def test_entries_without_a_frontend_leave_at_the_next_start() -> None:
    node = Node()
    node.serve(FOUR)
    lost = L3n4Addr.parse("192.0.2.9:5-6")
    rows = [(key, frontend_codec.port_range_value(lost)) for key in frontend_codec.port_range_keys(lost)]
    node.maps.put_many("lb4_port_range", rows)
    before = len(node.maps.items("lb4_port_range"))
    assert any("lb4_port_range" in each.detail for each in drift(node.maps, node.shadow) if each)
    node.restart()
    node.serve(FOUR)
    assert len(node.maps.items("lb4_port_range")) == before - len(rows)


@pytest.mark.parametrize("new", ["192.0.2.1:10000-29999/UDP", "192.0.2.1:10000-16000/UDP", "192.0.2.1:9000-25000/UDP"])
def test_a_port_of_both_ranges_is_served_at_each_moment(new: str) -> None:
    """Prefixes of the new range come when it has its master, those of the old one leave behind them."""
    node = Node()
    node.serve(FOUR)
    real, seen = node.maps, []
    node.maps = FaultyMaps(
        real, after=lambda *_: seen.append((served(node_of(real), 10000), served(node_of(real), 15999)))
    )
    node.serve(service(new, backend("10.244.1.11:0/UDP")))
    node.maps = real
    assert all(first and last for first, last in seen)
    assert served(node, 10000) == {new}
    assert check(node.maps, settled=True) == []
    found = L3n4Addr.parse(new)
    assert {key for key, _ in node.maps.items("lb4_port_range")} == frontend_codec.port_range_keys(found)


def node_of(maps: object) -> Node:
    node = Node.__new__(Node)
    node.maps = maps  # type: ignore[assignment]
    return node


def test_a_full_map_refuses_the_new_range_and_serves_the_rest() -> None:
    needed = len(frontend_codec.port_range_keys(FOUR.frontend))
    node = node_with(lb4_port_range=needed + 3)
    node.serve(FOUR)
    error = refused(node, FOUR, service("192.0.2.2:10000-19999/UDP"), service("192.0.2.3:80"))
    assert f"lb4_port_range is full: {needed} of {needed + 3} entries used, {needed} more needed" in error
    assert "192.0.2.2:10000-19999/UDP is left out; everything already written keeps serving" in error
    assert {str(each) for each in node.shadow.frontends} == {"192.0.2.1:10000-19999", "192.0.2.3:80"}
    assert check(node.maps) == []
    limit(node, lb4_port_range=1 << 10)
    node.serve(FOUR, service("192.0.2.2:10000-19999/UDP"), service("192.0.2.3:80"))


def test_texts() -> None:
    for text in ("10.96.0.1:1-65535/TCP", "[fd00::1]:5-6/UDP/i"):
        found = L3n4Addr.parse(text)
        assert found.with_protocol() == text
        assert (
            frontend_codec.frontend_of(frontend_codec.split_service_key(frontend_codec.service_key(found, 7))[0])
            == found
        )
        assert found.hash_key() != found.with_scope(Scope(1 - found.scope)).hash_key()
    for wrong in ("10.96.0.1:6-5", "10.96.0.1:0-5", "10.96.0.1:5-", "10.96.0.1:5-70000", "10.96.0.1:5-5"):
        with pytest.raises(ValueError):
            L3n4Addr.parse(wrong)
