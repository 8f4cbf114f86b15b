"""Rules of a Service about new flows: limits, rate, the less loaded of two backends, slow start of a new one."""

from __future__ import annotations

import struct
import time
from collections import Counter

import pytest

from lbagent.maps.layout import PathFlag
from lbagent.maps.reasons import Reason
from tests.packet import expect
from tests.packet.clock import Clock
from tests.packet.craft import Family
from tests.packet.plain_frames import plain
from tests.packet.world import MAGLEV, RANDOM, TCP, UDP, XDP, BackendRow, Outcome, World

LEAST_CONN = 3
RULES = 0x80  # in the algorithm's byte of a master entry
RECORD = 64  # bytes of a record of lb_rules
NUMBER = 5


@pytest.fixture
def ruled(world: World) -> World:
    """Return the world without any rules or counts."""
    for name in ("lb_rules_of", "lb_rules", "lb_backend_flows"):
        world.clear(name)
    return world


def client(fam: Family, n: int) -> tuple[str, int]:
    """Return the n-th client's address and port."""
    base = f"198.51.{n >> 8}.{n & 255}" if fam.version == 4 else f"2001:db8:100::{n:x}"
    return base, 20000 + n * 7


def remotes(world: World, fam: Family, count: int, proto: int = TCP) -> list[BackendRow]:
    """Enter remote backends."""
    return [world.backend(fam, fam.remote(n), 8080, proto) for n in range(1, count + 1)]


def rules(
    world: World, *ids: int, flows: int = 0, each: int = 0, rate: int = 0, slow: int = 0, reject: bool = False, weighted: bool = False
) -> None:  # fmt: skip
    """Write the rules of a Service with frontends of these ids."""
    for ident in ids:
        with world.maps.window("lb_rules_of", ident * 2, 2) as view:
            view[:] = struct.pack("=H", NUMBER)
    interval = 1_000_000_000 // rate if rate else 0
    with world.maps.window("lb_rules", NUMBER * RECORD, 24) as view:
        view[:] = struct.pack("=IIQII", flows, each, interval, slow, reject | weighted << 1)


def live(world: World) -> int:
    """Return how many flows the programs counted."""
    with world.maps.window("lb_rules", NUMBER * RECORD + 24, 24) as view:
        base, opened, closed = struct.unpack("=qqq", bytes(view))
    return base + opened - closed


def live_of(world: World, row: BackendRow) -> int:
    """Return the same of a backend."""
    with world.maps.window("lb_backend_flows", row.id * 16, 12) as view:
        count, base = struct.unpack("=qi", bytes(view))
    return count + base


def weigh(world: World, row: BackendRow, weight: int, since: int = 0) -> None:
    """Write weight and start of a backend."""
    with world.maps.window("lb_backend_flows", row.id * 16 + 12, 4) as view:
        view[:] = struct.pack("=HH", weight, since)


def begin(world: World, hook: str, fam: Family, n: int, proto: int = TCP, port: int = 80, flags: str = "S") -> Outcome:
    """Send the first packet of the n-th client."""
    return world.run(hook, plain(fam, proto, *client(fam, n), fam.vip, port, flags))


def test_max_flows_is_exact_and_over_all_frontends(ruled: World, fam: Family, hook: str) -> None:
    """Ten flows, over two ports: each further one is dropped, and known flows, repeated SYNs included, go on."""
    backends = remotes(ruled, fam, 3)
    one = ruled.service(fam, fam.vip, 80, TCP, backends, algorithm=RANDOM | RULES)
    two = ruled.service(fam, fam.vip, 81, TCP, backends, algorithm=RANDOM | RULES)
    rules(ruled, one.id, two.id, flows=10)
    outs = [begin(ruled, hook, fam, n, port=80 + n % 2) for n in range(10)]
    assert all(out.forwarded for out in outs)
    assert live(ruled) == 10
    assert sum(live_of(ruled, row) for row in backends) == 10
    for n in range(10, 14):
        out = begin(ruled, hook, fam, n, port=80 + n % 2)
        assert out.dropped, out
        assert out.counted == {Reason.DROP_FLOW_LIMIT: 1}
    for n in range(10):
        again = begin(ruled, hook, fam, n, port=80 + n % 2)
        assert again.counted == {Reason.FWD_ESTABLISHED: 1}
        assert expect.destination(again) == expect.destination(outs[n])
    assert live(ruled) == 10


def test_a_service_without_rules_beside_it_is_not_counted(ruled: World, fam: Family, hook: str) -> None:
    """The flows of another Service to the same backends change no count."""
    backends = remotes(ruled, fam, 2)
    one = ruled.service(fam, fam.vip, 80, TCP, backends, algorithm=RANDOM | RULES)
    ruled.service(fam, fam.vip, 81, TCP, backends)
    rules(ruled, one.id, flows=1)
    assert all(begin(ruled, hook, fam, n, port=81).forwarded for n in range(5))
    assert live(ruled) == 0
    assert begin(ruled, hook, fam, 9).forwarded
    assert begin(ruled, hook, fam, 10).dropped


def test_a_range_of_ports_with_rules(ruled: World, fam: Family, hook: str) -> None:
    """The slots of a range are those of its key, and each flow counts, whatever its port."""
    backends = [ruled.backend(fam, fam.remote(n), 0) for n in range(1, 5)]
    row = ruled.service(fam, fam.vip, 10000, TCP, backends, algorithm=RANDOM | RULES, last_port=10063)
    rules(ruled, row.id, each=2)
    ends = [expect.destination(begin(ruled, hook, fam, n, port=10000 + n)) for n in range(8)]
    assert [port for _, port in ends] == list(range(10000, 10008))
    assert Counter(address for address, _ in ends) == dict.fromkeys((each.address for each in backends), 2)
    assert begin(ruled, hook, fam, 9, port=10063).counted == {Reason.DROP_FLOW_LIMIT: 1}


def test_a_full_backend_is_passed_over(ruled: World, fam: Family, hook: str) -> None:
    """Three flows for each of four backends: the twelfth finds the last place, the next ones none."""
    backends = remotes(ruled, fam, 4)
    row = ruled.service(fam, fam.vip, 80, TCP, backends, algorithm=RANDOM | RULES)
    rules(ruled, row.id, each=3)
    outs = [begin(ruled, hook, fam, n) for n in range(12)]
    assert Counter(map(expect.destination, outs)) == dict.fromkeys((each.endpoint for each in backends), 3)
    assert begin(ruled, hook, fam, 12).counted == {Reason.DROP_FLOW_LIMIT: 1}


@pytest.mark.parametrize("algorithm", [RANDOM, LEAST_CONN], ids=["random", "least-conn"])
def test_one_place_among_many_full_backends_is_found(ruled: World, fam: Family, algorithm: int) -> None:
    """Of 200 backends one is not full: each of 20 clients gets it, wherever its search begins."""
    backends = remotes(ruled, fam, 200)
    row = ruled.service(fam, fam.vip, 80, TCP, backends, algorithm=algorithm | RULES)
    rules(ruled, row.id, each=30)
    for full in backends:
        with ruled.maps.window("lb_backend_flows", full.id * 16 + 8, 4) as view:
            view[:] = struct.pack("=i", 0 if full is backends[137] else 30)
    outs = [begin(ruled, XDP, fam, n) for n in range(20)]
    assert {expect.destination(out) for out in outs} == {backends[137].endpoint}


def test_a_flow_that_ends_makes_room_at_once(ruled: World, fam: Family, hook: str) -> None:
    """After the second FIN, and after a RST of the client, the next client is let in."""
    backends = remotes(ruled, fam, 1)
    row = ruled.service(fam, fam.vip, 80, TCP, backends, algorithm=RANDOM | RULES)
    rules(ruled, row.id, flows=2)
    for n in range(2):
        assert begin(ruled, hook, fam, n, flags="A").forwarded  # from the middle of a connection
    assert begin(ruled, hook, fam, 2).dropped
    assert live(ruled) == 2
    out = begin(ruled, hook, fam, 0, flags="A")
    snat = expect.source(out)
    reply = plain(fam, TCP, *backends[0].endpoint, *snat, flags="A")
    assert ruled.run(hook, reply).forwarded  # established: in the middle the backend's segment proves it
    begin(ruled, hook, fam, 0, flags="R")
    assert live(ruled) == 1
    assert live_of(ruled, backends[0]) == 1
    assert begin(ruled, hook, fam, 2).forwarded
    assert begin(ruled, hook, fam, 3).dropped


def test_a_flow_that_ended_opens_again_within_the_limit(ruled: World, fam: Family, hook: str) -> None:
    """The SYN of a client port whose flow has ended is a new flow: refused while the Service is full."""
    backends = remotes(ruled, fam, 1)
    row = ruled.service(fam, fam.vip, 80, TCP, backends, algorithm=RANDOM | RULES)
    rules(ruled, row.id, flows=1)
    out = begin(ruled, hook, fam, 0, flags="A")
    ruled.run(hook, plain(fam, TCP, *backends[0].endpoint, *expect.source(out), flags="A"))
    begin(ruled, hook, fam, 0, flags="R")
    assert begin(ruled, hook, fam, 1).forwarded
    assert begin(ruled, hook, fam, 0).counted == {Reason.DROP_FLOW_LIMIT: 1}
    rules(ruled, row.id, flows=2)
    assert begin(ruled, hook, fam, 0).forwarded
    assert live(ruled) == 2


def test_a_refused_flow_makes_room(ruled: World, fam: Family, hook: str) -> None:
    """A backend's RST to a SYN ends the flow for the count; a SYN that comes again counts again."""
    backends = remotes(ruled, fam, 1)
    row = ruled.service(fam, fam.vip, 80, TCP, backends, algorithm=RANDOM | RULES)
    rules(ruled, row.id, flows=5)
    out = begin(ruled, hook, fam, 0)
    assert live(ruled) == 1
    ruled.run(hook, plain(fam, TCP, *backends[0].endpoint, *expect.source(out), flags="RA"))
    assert live(ruled) == 0
    assert begin(ruled, hook, fam, 0).forwarded
    assert live(ruled) == 1
    assert live_of(ruled, backends[0]) == 1


def test_new_flow_rate_admits_a_burst_and_no_more(ruled: World, fam: Family, hook: str) -> None:
    """A bucket of 20: 20 at once, then 20 a second; known flows are not limited."""
    backends = remotes(ruled, fam, 2, UDP)
    row = ruled.service(fam, fam.vip, 80, UDP, backends, algorithm=RANDOM | RULES)
    rules(ruled, row.id, rate=20)
    began = time.monotonic()
    outs = [begin(ruled, hook, fam, n, UDP) for n in range(60)]
    more = 1 + 20 * (time.monotonic() - began)
    let_in = sum(out.forwarded for out in outs)
    assert 20 <= let_in <= 20 + more
    assert {reason for out in outs if out.dropped for reason in out.counted} == {Reason.DROP_FLOW_RATE}
    assert all(begin(ruled, hook, fam, n, UDP).forwarded for n in range(20))


@pytest.mark.parametrize("proto", [TCP, UDP], ids=["tcp", "udp"])
def test_over_limit_reject_answers_under_the_same_name(ruled: World, fam: Family, hook: str, proto: int) -> None:
    """A RST or a port unreachable goes back to the client."""
    row = ruled.service(fam, fam.vip, 80, proto, remotes(ruled, fam, 1, proto), algorithm=RANDOM | RULES)
    rules(ruled, row.id, flows=1, reject=True)
    assert begin(ruled, hook, fam, 0, proto).forwarded
    out = begin(ruled, hook, fam, 1, proto)
    assert out.forwarded
    assert out.counted == {Reason.DROP_FLOW_LIMIT: 1}


def test_least_conn_takes_the_less_loaded_of_two(ruled: World, fam: Family, hook: str) -> None:
    """Two backends, one with 50 flows already: the next 50 all go to the other one, then both get as many."""
    backends = remotes(ruled, fam, 2)
    row = ruled.service(fam, fam.vip, 80, TCP, backends, algorithm=LEAST_CONN | RULES)
    rules(ruled, row.id)
    with ruled.maps.window("lb_backend_flows", backends[0].id * 16 + 8, 4) as view:
        view[:] = struct.pack("=i", 50)
    found = Counter(expect.destination(begin(ruled, hook, fam, n)) for n in range(40))
    assert found[backends[1].endpoint] >= 38, (
        found
    )  # with one chance of 32 both draws are one backend, several times in a row
    for n in range(40, 200):
        begin(ruled, hook, fam, n)
    counts = [live_of(ruled, each) for each in backends]
    assert abs(counts[0] - counts[1]) <= 6, counts


def test_least_conn_respects_weights(ruled: World, fam: Family) -> None:
    """Ten backends, one with five times the weight of each other one: it has five of 14 parts, also where it is drawn seldom."""
    backends = remotes(ruled, fam, 10)
    row = ruled.service(fam, fam.vip, 80, TCP, backends, algorithm=LEAST_CONN | RULES)
    weights = [500, *[100] * 9]
    for each, weight in zip(backends, weights, strict=True):
        weigh(ruled, each, weight)
    size = ruled.sizes.maglev_size
    ids = [each.id for each, weight in zip(backends, weights, strict=True) for _ in range(weight // 100)]
    ruled.maglev(row, [ids[n % len(ids)] for n in range(size)])
    rules(ruled, row.id, weighted=True)
    found = Counter(expect.destination(begin(ruled, XDP, fam, n)) for n in range(420))
    assert 130 <= found[backends[0].endpoint] <= 170, found  # 150
    assert all(22 <= found[each.endpoint] <= 40 for each in backends[1:]), found  # 30


@pytest.mark.parametrize("algorithm", [RANDOM, LEAST_CONN], ids=["random", "least-conn"])
def test_a_new_backend_starts_slowly(ruled: World, fam: Family, algorithm: int) -> None:
    """One of four just became usable: it gets about a tenth of its share, and not the flows that it has too few of."""
    backends = remotes(ruled, fam, 4)
    row = ruled.service(fam, fam.vip, 80, TCP, backends, algorithm=algorithm | RULES)
    rules(ruled, row.id, slow=3600)
    weigh(ruled, backends[2], 100, Clock.START & 0xFFFF)  # the clock stands still
    for each in (backends[0], backends[1], backends[3]):
        weigh(ruled, each, 100)
    found = Counter(expect.destination(begin(ruled, XDP, fam, n)) for n in range(400))
    assert 2 <= found[backends[2].endpoint] <= 40, found  # a tenth of 100, or twice that where it wins each comparison
    rules(ruled, row.id, slow=0)
    found = Counter(expect.destination(begin(ruled, XDP, fam, n)) for n in range(400, 800))
    assert found[backends[2].endpoint] >= 70, found


def test_maglev_with_a_limit_passes_over_a_full_backend(ruled: World, fam: Family) -> None:
    """Every entry of the table names one backend, which may have two flows: the third goes to the other one."""
    backends = remotes(ruled, fam, 2)
    row = ruled.service(fam, fam.vip, 80, TCP, backends, algorithm=MAGLEV | RULES)
    ruled.maglev(row, [backends[0].id] * ruled.sizes.maglev_size)
    rules(ruled, row.id, each=2)
    found = [expect.destination(begin(ruled, XDP, fam, n)) for n in range(4)]
    assert found == [backends[0].endpoint] * 2 + [backends[1].endpoint] * 2
    assert begin(ruled, XDP, fam, 4).counted == {Reason.DROP_FLOW_LIMIT: 1}


def test_a_full_backend_loses_its_affinity_to_the_next_flow(ruled: World, fam: Family) -> None:
    """A client's second flow goes elsewhere once its backend is full, and its third follows the second."""
    backends = remotes(ruled, fam, 2)
    row = ruled.service(fam, fam.vip, 80, TCP, backends, algorithm=RANDOM | RULES, affinity_s=100)
    rules(ruled, row.id, each=2)
    address, _ = client(fam, 1)
    outs = [ruled.run(XDP, plain(fam, TCP, address, 5000 + n, fam.vip, 80)) for n in range(4)]
    found = [expect.destination(out) for out in outs]
    assert found[0] == found[1] != found[2] == found[3]


def test_a_flow_whose_backend_rests_moves_also_when_all_is_full(ruled: World, fam: Family) -> None:
    """A repeated SYN whose backend takes no new flows moves to another one: the limits concern new flows alone."""
    backends = remotes(ruled, fam, 2)
    row = ruled.service(fam, fam.vip, 80, TCP, backends[:1], algorithm=RANDOM | RULES)
    rules(ruled, row.id, flows=1, each=1)
    assert begin(ruled, XDP, fam, 0).forwarded
    ruled.slot(row, 1, target=backends[1].id)
    ruled.path_flags(backends[0], clear=PathFlag.SELECTABLE)
    out = begin(ruled, XDP, fam, 0)
    assert out.counted == {Reason.FWD_RESELECTED: 1}
    assert expect.destination(out) == backends[1].endpoint
    assert live(ruled) == 1
    assert (live_of(ruled, backends[0]), live_of(ruled, backends[1])) == (0, 1)
