"""The dump of rows written as bytes, compared line by line with the contract."""

import struct

from lbagent.maps.dump import dump


def ip(text: str) -> bytes:
    return bytes(map(int, text.split(".")))


def slot_key(address: bytes, port: int, slot: int, proto: int, scope: int = 0) -> bytes:
    return address + struct.pack(">H", port) + struct.pack("=H", slot) + bytes((proto, scope, 0, 0))


def value(target: int, ident: int, count: int = 0, qcount: int = 0, flags: int = 0) -> bytes:
    return (
        struct.pack("=IH", target, count)
        + struct.pack(">H", ident)
        + bytes((flags & 255, flags >> 8))
        + struct.pack("=H", qcount)
    )


RANDOM, MAGLEV, LEAST_CONN = 1 << 24, 2 << 24, 3 << 24
VIP, VIP2 = ip("10.96.0.1"), ip("10.96.0.2")
VIP6 = bytes.fromhex("fd00000000000000000000000000000a")


def lines(maps, kind: str) -> list[str]:
    return [line for line in dump(maps) if line.startswith(kind + ":")]


def test_services_by_id_scope_and_slot(maps):
    maps.put_many(
        "lb4_service",
        [
            (slot_key(VIP, 80, 10, 6), value(4, 1)),
            (slot_key(VIP, 80, 2, 6), value(2, 1)),
            (slot_key(VIP, 80, 1, 6), value(1, 1)),
            (slot_key(VIP, 80, 0, 6), value(RANDOM, 1, 2)),
            (slot_key(VIP, 0, 0, 0), value(RANDOM, 0)),
            (slot_key(VIP2, 443, 0, 6, 1), value(LEAST_CONN | 600, 10, 0, 3, 0x2064)),
            (slot_key(VIP2, 443, 0, 6), value(MAGLEV | 10800, 9, 2, 1, 0x20 | 0x10 | 0x40 | 0x80)),
        ],
    )
    maps.put_many("lb6_service", [(slot_key(VIP6, 53, 0, 17), value(RANDOM, 2))])
    assert lines(maps, "SVC") == [
        "SVC: ID=0 ADDR=10.96.0.1:0/ANY SLOT=0 LBALG=random AFFTimeout=0 COUNT=0 QCOUNT=0 FLAGS=ClusterIP+non-routable",
        "SVC: ID=1 ADDR=10.96.0.1:80/TCP SLOT=0 LBALG=random AFFTimeout=0 COUNT=2 QCOUNT=0 FLAGS=ClusterIP+non-routable",
        "SVC: ID=1 ADDR=10.96.0.1:80/TCP SLOT=1 BEID=1 COUNT=0 QCOUNT=0 FLAGS=ClusterIP+non-routable",
        "SVC: ID=1 ADDR=10.96.0.1:80/TCP SLOT=2 BEID=2 COUNT=0 QCOUNT=0 FLAGS=ClusterIP+non-routable",
        "SVC: ID=1 ADDR=10.96.0.1:80/TCP SLOT=10 BEID=4 COUNT=0 QCOUNT=0 FLAGS=ClusterIP+non-routable",
        "SVC: ID=2 ADDR=[fd00::a]:53/UDP SLOT=0 LBALG=random AFFTimeout=0 COUNT=0 QCOUNT=0 FLAGS=ClusterIP+non-routable",
        (
            "SVC: ID=9 ADDR=10.96.0.2:443/TCP SLOT=0 LBALG=maglev AFFTimeout=10800 COUNT=2 QCOUNT=1"
            " FLAGS=LoadBalancer+sessionAffinity+check source-range"
        ),
        (
            "SVC: ID=10 ADDR=10.96.0.2:443/TCP/i SLOT=0 LBALG=least-conn AFFTimeout=600 COUNT=0 QCOUNT=3"
            " FLAGS=LoadBalancer+Local+two-scopes"
        ),
    ]


def test_a_service_of_an_l7_proxy_shows_its_port(maps):
    maps.put_many("lb4_service", [(slot_key(VIP, 80, 0, 6), value(RANDOM | 15001, 1, 0, 0, 0x0440))])
    assert lines(maps, "SVC") == [
        "SVC: ID=1 ADDR=10.96.0.1:80/TCP SLOT=0 LBALG=random L7Proxy=15001 COUNT=0 QCOUNT=0 FLAGS=ClusterIP+l7-load-balancer"
    ]


def test_backends_by_number(maps):
    def row(address: bytes, port: int, proto: int, state: int) -> bytes:
        return address + struct.pack(">H", port) + bytes((proto, state, 0, 0, 0, 0))

    maps.put_many(
        "lb4_backend",
        [
            (struct.pack("=I", 10), row(ip("10.244.1.1"), 80, 6, 0)),
            (struct.pack("=I", 9), row(ip("10.244.1.2"), 53, 17, 1)),
            (struct.pack("=I", 2), row(ip("10.244.1.3"), 80, 6, 3)),
        ],
    )
    maps.put_many("lb6_backend", [(struct.pack("=I", 3), row(VIP6, 8080, 6, 2))])
    assert lines(maps, "BE") == [
        "BE: ID=2 ADDR=10.244.1.3:80/TCP STATE=maintenance",
        "BE: ID=3 ADDR=[fd00::a]:8080/TCP STATE=quarantined",
        "BE: ID=9 ADDR=10.244.1.2:53/UDP STATE=terminating",
        "BE: ID=10 ADDR=10.244.1.1:80/TCP STATE=active",
    ]


def test_the_other_kinds(maps):
    maps.put_many(
        "lb4_reverse_nat", [(struct.pack("=I", 10), VIP + b"\0\x50\6\0"), (struct.pack("=I", 2), VIP + b"\1\xbb\6\x81")]
    )
    maps.put_many("lb6_reverse_nat", [(struct.pack("=I", 3), VIP6 + b"\0\x35\x11\0" + bytes(4))])
    maps.put_many(
        "lb_affinity_match",
        [
            (struct.pack("=I", backend) + struct.pack(">H", service) + bytes(2), b"\1")
            for service, backend in ((10, 2), (2, 11), (2, 3))
        ],
    )
    maps.set_maglev("lb4_maglev", {2: struct.pack("=251I", *[11] * 250, 3), 10: struct.pack("=251I", *[3] * 251)})
    for bits, network in ((8, "10.0.0.0"), (0, "0.0.0.0"), (24, "9.1.2.0")):
        maps.put_many("lb4_source_range", [(struct.pack("=I", 32 + bits) + b"\0\2\0\0" + ip(network), b"\1")])
    maps.put_many("lb6_source_range", [(struct.pack("=I", 32 + 8) + b"\0\3\0\0" + b"\xfd" + bytes(15), b"\1")])
    assert dump(maps) == [
        "REV: ID=2 ADDR=10.96.0.1:443",
        "REV: ID=3 ADDR=[fd00::a]:53",
        "REV: ID=10 ADDR=10.96.0.1:80",
        "AFF: ID=2 BEID=3",
        "AFF: ID=2 BEID=11",
        "AFF: ID=10 BEID=2",
        "MAGLEV: ID=2 INNER=[3(1), 11(250)]",
        "MAGLEV: ID=10 INNER=[3(251)]",
        "SRCRANGE: ID=2 CIDR=0.0.0.0/0",
        "SRCRANGE: ID=2 CIDR=9.1.2.0/24",
        "SRCRANGE: ID=2 CIDR=10.0.0.0/8",
        "SRCRANGE: ID=3 CIDR=fd00::/8",
    ]


def test_empty_maps_have_no_lines(maps):
    assert dump(maps) == []
