"""`verify` finds each inconsistency."""

import struct

import pytest

from lbagent.maps import backend_codec, prefilter
from lbagent.maps.consistency import check, without_master
from lbagent.model.backend import BackendState
from lbagent.model.extra_snat_sources import ExtraSnatAddress
from lbagent.model.service import CIDR, Algorithm
from tests.targets.bpf.plans import Node, backend, service


@pytest.fixture
def node():
    found = Node()
    found.serve(
        service(
            "10.96.0.1:80", backend("10.244.1.11:80"), backend("10.244.1.12:80"), session_affinity=True, flags=0x50
        ),
        service("10.96.0.2:80", backend("10.244.1.12:80"), algorithm=Algorithm.MAGLEV),
    )
    assert check(found.maps, settled=True) == []
    return found


def slot(number: int) -> bytes:
    return bytes((10, 96, 0, 1, 0, 80)) + number.to_bytes(2, "little") + bytes((6, 0, 0, 0))


def ident(number: int) -> bytes:
    return struct.pack("=I", number)


def breaks(node, sentence: str, *, settled: bool = False) -> None:
    found = check(node.maps, settled=settled)
    assert any(sentence in line for line in found), found
    assert settled is False or not any(sentence in line for line in check(node.maps))


def test_a_missing_slot(node):
    node.maps.delete_many("lb4_service", [slot(2)])
    breaks(node, "10.96.0.1:80/TCP: slot 2 of 2 selectable ones is missing")


def test_a_missing_backend(node):
    node.maps.delete_many("lb4_backend", [ident(1)])
    breaks(node, "slot 1: backend 1 does not exist")


@pytest.mark.parametrize(
    ("meta", "sentence"),
    [
        (bytes((0, 80, 0, 0, 0, 0, 0, 0)), "backend 1 has no live path"),
        (bytes((0, 81, 0, 3, 0, 0, 0, 0)), "the path of backend 1 leads elsewhere"),
        (bytes((0, 80, 0, 1, 0, 0, 0, 0)), "backend 1, whose path record takes no new flow"),
    ],
)
def test_a_path_that_does_not_fit(node, meta, sentence):
    node.maps.store("lb4_path", [(16 + 8, meta)])
    breaks(node, sentence)


def test_a_reverse_row_of_another(node):
    node.maps.put_many("lb4_reverse_nat", [(ident(1), bytes((10, 96, 0, 2, 0, 80, 6, 0)))])
    breaks(node, "service 1 has no reverse NAT row of its own")


def test_a_missing_table_and_a_table_with_a_stranger(node):
    node.maps.set_maglev("lb4_maglev", {2: struct.pack("=251I", *[99] * 251)})
    breaks(node, "maglev table of service 2: backend 99 does not exist")
    node.maps.delete_maglev("lb4_maglev", [2])
    breaks(node, "service 2 selects by maglev and has no table")


def test_a_clear_filter(node):
    with node.maps.window("lb_filter", 0, 384 * 1024) as view:
        view[:] = bytes(384 * 1024)
    breaks(node, "10.96.0.1:80/TCP: the prefilter passes its packets untouched")
    breaks(node, "local backend 1: the prefilter passes its replies untouched")


def test_a_pod_with_udp_that_the_filter_does_not_ask_for():
    node = Node()
    node.serve(service("10.96.0.1:53/UDP", backend("10.244.1.1:53/UDP")))
    bit = prefilter.direct_bit(bytes((10, 244, 1, 1)))
    with node.maps.window("lb_filter", bit >> 6 << 3, 8) as view:
        view[:] = bytes(8)
    breaks(node, "local backend 1: the prefilter lacks the bit for packets that clients send to it directly")


def test_leftovers_are_wrong_only_when_settled(node):
    value = node.maps.get("lb4_service", slot(1))
    node.maps.put_many("lb4_service", [(slot(7), value)])
    breaks(node, "1 slots beyond 2", settled=True)
    node.maps.put_many("lb_affinity_match", [(ident(1) + b"\0\2\0\0", b"\1")])
    breaks(node, "affinity matches of service 2 are not its backends", settled=True)
    node.maps.put_many("lb4_reverse_nat", [(ident(9), bytes((10, 96, 0, 9, 0, 80, 6, 0)))])
    breaks(node, "reverse NAT row of service 9, which does not exist", settled=True)


def test_what_is_left_over_is_named_when_all_is_settled():
    node = Node()
    node.serve(service("10.96.0.1:80", backend("10.244.1.2:80"), backend("10.244.1.4:80")))
    rows = node.maps.items("lb4_backend")
    node.maps.delete_many("lb4_service", [key for key, _ in node.maps.items("lb4_service")])
    node.maps.delete_many("lb4_backend", [rows[0][0]])
    with node.maps.window("lb4_path", 0, 64) as view:
        view[2 * 16 :] = bytes(32)  # of backend 2
    assert check(node.maps) == []
    found = check(node.maps, settled=True)
    assert "path of backend 1, which does not exist" in found
    assert "backend 2 has no live path" in found
    assert "reverse NAT row of service 1, which does not exist" in found


def test_frontends_without_a_master_are_named():
    node = Node()
    node.serve(service("10.96.0.1:80", backend("10.244.1.2:80")), service("10.96.0.2:80"))
    assert list(map(str, without_master(node.maps))) == []
    masters = [key for key, _ in node.maps.items("lb4_service") if key[6:8] == bytes(2)]
    node.maps.delete_many("lb4_service", masters)
    assert list(map(str, without_master(node.maps))) == [
        f"10.96.0.{number}:80/TCP: slot 0 is missing, so no packet finds it" for number in (1, 2)
    ]


# --- what is right ---


def test_every_kind_of_frontend_holds_together():
    """Two families and scopes, groups of backends, proxies, ranges, and a wildcard row beside them."""
    node = Node()
    groups = {
        "unselectable": (backend("10.244.1.13:80", BackendState.TERMINATING),),
        "slotless": (backend("10.244.1.15:80", BackendState.MAINTENANCE),),
    }
    node.serve(
        service("10.96.0.1:0/NONE", flags=0, wildcard=True),
        service("10.96.0.1:80", backend("10.244.1.11:80"), backend("10.244.1.12:80"), session_affinity=True, **groups),
        service("10.96.0.1:80/i", backend("10.244.1.12:80"), source_ranges=(CIDR.parse("10.0.0.0/8"),)),
        service("[fd00::1]:80", backend("[fd00:1::2]:80"), algorithm=Algorithm.MAGLEV),
        service("10.96.0.2:80", algorithm=Algorithm.MAGLEV),
        service(
            "10.96.0.3:80", backend("10.244.1.14:80"), algorithm=Algorithm.MAGLEV, flags=0x0440, l7_lb_proxy_port=1
        ),
    )
    node.maps.delete_maglev("lb4_maglev", [5])  # the flows of a proxy are selected by nothing
    assert check(node.maps, settled=True) == []
    assert list(map(str, without_master(node.maps))) == []


def master(number: int) -> bytes:
    return bytes((10, 96, 0, number, 0, 80, 0, 0, 6, 0, 0, 0))


def test_a_frontend_without_a_master_is_being_written_or_taken_away(node):
    node.maps.delete_many("lb4_service", [master(1), slot(2)])
    with node.maps.window("lb_filter", 0, 128 * 1024 * 2) as view:
        bits = prefilter.vip_bit(bytes((10, 96, 0, 2))), prefilter.direct_bit(bytes((10, 244, 1, 11)))
        kept = {bit >> 3: view[bit >> 3] for bit in bits}
        view[:] = bytes(len(view))
        for at, value in kept.items():
            view[at] = value
    assert check(node.maps) == []
    found = check(node.maps, settled=True)
    assert "10.96.0.1:80/TCP: slots without a master" in found
    assert [line for line in found if "affinity matches" in line] == []


def test_a_local_backend_that_is_gone_needs_no_filter(node):
    node.serve()
    node.want(service("10.96.0.1:80", backend("10.244.1.11:80")))
    node.sync()
    node.maps.delete_many("lb4_service", [key for key, _ in node.maps.items("lb4_service")])
    node.maps.delete_many("lb4_backend", [key for key, _ in node.maps.items("lb4_backend")])
    with node.maps.window("lb_filter", 0, 384 * 1024) as view:
        view[:] = bytes(384 * 1024)
    assert check(node.maps) == []


# --- what is wrong ---


def test_the_last_slot_counts(node):
    """Of those that take new flows, and of those behind them."""
    node.maps.store("lb4_path", [(2 * 16 + 8, bytes((0, 80, 0, 1, 0, 0, 0, 0)))])
    breaks(node, "slot 2: a new flow may select backend 2, whose path record takes no new flow")
    other = Node()
    going = backend("10.244.1.13:80", BackendState.TERMINATING)
    other.serve(service("10.96.0.1:80", backend("10.244.1.11:80"), unselectable=(going,)))
    assert check(other.maps) == []
    other.maps.delete_many("lb4_service", [slot(2)])
    breaks(other, "10.96.0.1:80/TCP: slot 2 of 1 selectable ones is missing")


def test_a_missing_reverse_row(node):
    node.maps.put_many("lb4_reverse_nat", [(ident(1), bytes(8))])
    breaks(node, "service 1 has no reverse NAT row of its own")


def test_slots_beyond_those_behind_the_selectable_ones():
    node = Node()
    going = backend("10.244.1.13:80", BackendState.TERMINATING)
    node.serve(service("10.96.0.1:80", backend("10.244.1.11:80"), unselectable=(going,)))
    assert check(node.maps, settled=True) == []
    node.maps.put_many("lb4_service", [(slot(3), node.maps.get("lb4_service", slot(2)))])
    breaks(node, "10.96.0.1:80/TCP: 1 slots beyond 2", settled=True)


def test_an_affinity_match_of_a_backend_behind_the_selectable_ones():
    node = Node()
    going = backend("10.244.1.13:80", BackendState.TERMINATING)
    node.serve(service("10.96.0.1:80", backend("10.244.1.11:80"), unselectable=(going,), session_affinity=True))
    assert check(node.maps, settled=True) == []
    node.maps.put_many("lb_affinity_match", [(ident(2) + b"\0\1\0\0", b"\1")])
    breaks(node, "affinity matches of service 1 are not its backends", settled=True)


def test_ranges_tables_and_matches_of_no_service(node):
    node.maps.put_many("lb4_source_range", [(struct.pack("=I", 40) + b"\0\x09\0\0" + bytes((10, 0, 0, 0)), b"\1")])
    node.maps.set_maglev("lb4_maglev", {8: node.maps.maglev("lb4_maglev")[2]})
    node.maps.put_many("lb_affinity_match", [(ident(1) + b"\0\x07\0\0", b"\1")])
    for sentence in ("source range of service 9", "maglev table of service 8", "affinity match of service 7"):
        breaks(node, f"{sentence}, which does not exist", settled=True)


@pytest.mark.parametrize("verdict", [2, 3])
@pytest.mark.parametrize(("family", "address"), [(4, bytes((10, 0, 0, 0))), (6, b"\xfd" + bytes(15))])
def test_a_change_of_rules_that_broke_off(node, family, address, verdict):
    """2 lets in and 3 keeps out by itself, while a service turns from one kind of list to the other."""
    name = f"lb{family}_source_range"
    node.maps.put_many(name, [(struct.pack("=I", 40) + b"\0\1\0\0" + address, b"\1")])
    assert check(node.maps, settled=True) == []
    node.maps.put_many(name, [(struct.pack("=I", 40) + b"\0\1\0\0" + address, bytes((verdict,)))])
    breaks(node, f"1 entries of {name} are left over from an interrupted change of rules", settled=True)


# --- extra SNAT addresses ---

STRIDE = 256 // 5
SOURCE = ExtraSnatAddress(2, bytes((192, 168, 0, 77)))


def write_path(node, ident: int, record: bytes) -> None:
    node.maps.store("lb4_path", [(ident * 16 + at, record[at : at + 8]) for at in (0, 8)])


def extra_snat_record(node, ident: int) -> bytes:
    with node.maps.window("lb4_path", 16 * ident, 16) as view:
        return backend_codec.extra_snat_value(bytes(view), SOURCE, 0)


def test_the_path_of_a_extra_snat_source_address_belongs_to_its_backend(node):
    write_path(node, 1 + 2 * STRIDE, extra_snat_record(node, 1))
    assert check(node.maps, settled=True) == []


@pytest.mark.parametrize("at", [1 + STRIDE, 3 + 2 * STRIDE, 2 + 2 * STRIDE])
def test_a_path_of_a_extra_snat_source_address_that_belongs_to_none(node, at):
    """It lies where that of another number or of another backend would be."""
    write_path(node, at, extra_snat_record(node, 1))
    sentence = f"path {at} of extra SNAT address 2, whose backend does not exist"
    breaks(node, sentence, settled=True)
    assert f"path of backend {at}, which does not exist" not in check(node.maps, settled=True)


def test_a_extra_snat_path_is_no_backend_of_another(node):
    """What lies two strides before it is an extra SNAT path itself."""
    record = extra_snat_record(node, 1)
    write_path(node, 1 + 2 * STRIDE, record)
    write_path(node, 1 + 4 * STRIDE, record)
    breaks(node, f"path {1 + 4 * STRIDE} of extra SNAT address 2, whose backend does not exist", settled=True)


@pytest.mark.parametrize(("at", "byte"), [(3, 99), (9, 81), (11, 1 | 2 | 16)])
def test_a_extra_snat_path_to_another_address_port_or_protocol(node, at, byte):
    record = bytearray(extra_snat_record(node, 1))
    record[at] = byte
    write_path(node, 1 + 2 * STRIDE, bytes(record))
    breaks(node, f"path {1 + 2 * STRIDE} of extra SNAT address 2, whose backend does not exist", settled=True)
