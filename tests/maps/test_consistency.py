"""The walker sees what is broken."""

import struct

import pytest

from lbagent.maps import prefilter
from lbagent.maps.consistency import check, without_master
from lbagent.model.service import Algorithm
from tests.sync.target.plans import Node, backend, service


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
    breaks(node, "local backend 1: the prefilter does not ask for datagrams that clients send to it directly")


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
    assert without_master(node.maps) == []
    masters = [key for key, _ in node.maps.items("lb4_service") if key[6:8] == bytes(2)]
    node.maps.delete_many("lb4_service", masters)
    assert without_master(node.maps) == [
        f"10.96.0.{number}:80/TCP: slot 0 is missing, so no packet finds it" for number in (1, 2)
    ]
