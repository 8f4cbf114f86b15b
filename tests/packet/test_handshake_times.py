"""Handshakes are timed from the client's SYN to the backend's answer, and their results counted, by backend."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from lbagent.bpf.load.program_settings import ProgramSettings
from lbagent.maps import backend_tcp
from lbagent.maps.layout import HANDSHAKE_LOST_NS, HANDSHAKES, LB_HANDSHAKE, LB_TCP
from lbagent.model.handshakes import Handshakes
from tests.packet import craft, expect
from tests.packet.clock import TimedWorld, open_timed_world
from tests.packet.craft import Family
from tests.packet.test_handshake import Numbered
from tests.packet.world import TCP, UDP, World

SECOND = 1_000_000_000


@pytest.fixture(scope="module")
def loaded() -> Iterator[TimedWorld]:
    """Programs that time every handshake."""
    with open_timed_world(ProgramSettings(handshake_sample=1)) as timed:
        yield timed


@pytest.fixture
def timed(loaded: TimedWorld) -> TimedWorld:
    """Return them with nothing in the maps."""
    loaded.reset()
    for name in ("lb_handshake", "lb_tcp", "lb_new_flows"):
        loaded.world.clear(name)
    return loaded


@pytest.fixture(params=[False, True], ids=["remote", "local"])
def talk(timed: TimedWorld, fam: Family, hook: str, request: pytest.FixtureRequest) -> Numbered:
    """A service with one backend, remote (SNAT) or local."""
    return Numbered(timed.world, fam, hook, TCP, local=bool(request.param))


def found(talk: Numbered) -> Handshakes:
    """Return what is known of the backend."""
    return backend_tcp.read_handshakes(talk.world.maps, [talk.backend.id])[0]


def in_bucket(number: int) -> tuple[int, ...]:
    """Return buckets with one handshake in this one."""
    return tuple(int(n == number) for n in range(17))


@pytest.mark.parametrize(
    ("us", "bucket"),
    [(0, 0), (64, 0), (65, 1), (128, 1), (129, 2), (1000, 4), (1 << 20, 14), (1 << 21, 15), ((1 << 21) + 1, 16)],
)
def test_the_time_from_syn_to_syn_ack(timed: TimedWorld, talk: Numbered, us: int, bucket: int) -> None:
    """The bounds are 2^6 to 2^21 us; the last bucket has none."""
    talk.from_client("S", seq=77)
    timed.clock.pass_ns(us * 1000 + 999)
    talk.from_backend("SA", seq=1, ack=78)
    assert found(talk) == Handshakes(in_bucket(bucket), sum_us=us)
    timed.clock.pass_ns(SECOND)
    talk.from_backend("SA", seq=1, ack=78)  # repeated: it has been counted
    talk.from_client("A", seq=78, ack=2)
    talk.from_backend("R", seq=2)  # of a connection
    assert found(talk) == Handshakes(in_bucket(bucket), sum_us=us)


def test_refused(timed: TimedWorld, talk: Numbered) -> None:
    talk.from_client("S", seq=77)
    talk.from_backend("RA", ack=78)
    assert found(talk) == Handshakes(refused=1, failing=1)
    talk.from_backend("RA", ack=78)
    assert found(talk).refused == 1


def test_syns_that_come_again(timed: TimedWorld, talk: Numbered) -> None:
    """They count until the backend answers; the time is from the first one."""
    for _ in range(3):
        talk.from_client("S", seq=77)
        timed.clock.pass_ns(SECOND // 2)
    talk.from_backend("SA", seq=1, ack=78)
    talk.from_client("S", seq=77)
    assert found(talk) == Handshakes(in_bucket(15), sum_us=1_500_000, again=2)


def test_what_is_no_answer(timed: TimedWorld, talk: Numbered) -> None:
    """A bare ACK, data or a SYN without ACK of the backend, and anything of the client."""
    talk.from_client("S", seq=77)
    talk.from_backend("A", seq=5, ack=78)
    talk.from_backend("S", seq=5)
    talk.from_client("R", seq=78)
    talk.from_client("SA", seq=78)
    assert found(talk) == Handshakes()


def test_no_answer_is_lost_after_ten_seconds(timed: TimedWorld, talk: Numbered) -> None:
    maps = talk.world.maps
    talk.from_client("S", seq=77)
    began = timed.clock.ns
    assert backend_tcp.count_lost(maps, began + HANDSHAKE_LOST_NS) == 0
    assert backend_tcp.count_lost(maps, began + HANDSHAKE_LOST_NS + 1) == 1
    assert backend_tcp.count_lost(maps, began + 2 * HANDSHAKE_LOST_NS) == 0
    assert found(talk) == Handshakes(lost=1, failing=1)
    talk.from_backend("SA", seq=1, ack=78)  # too late
    assert found(talk) == Handshakes(lost=1, failing=1)


def test_one_that_is_done_ends_the_row_of_failures(timed: TimedWorld, talk: Numbered) -> None:
    for number in range(4):
        frame = craft.frame(craft.tcp(talk.fam, talk.fam.client, 41000 + number, talk.fam.vip, 80, "S", seq=77))
        out = talk.world.run(talk.hook, frame)
        talk.source = expect.source(out)
        talk.from_backend("SA" if number == 3 else "RA", seq=1, ack=78)
        assert backend_tcp.failing(talk.world.maps) == ({talk.backend.id: 3} if number == 2 else {})
    assert (found(talk).refused, found(talk).done, found(talk).failing) == (3, 1, 0)


def test_a_repeated_syn_is_known_with_its_service_and_client(timed: TimedWorld, talk: Numbered) -> None:
    """What passive checks read: the same client has the same number, each other one another."""
    maps, clients = talk.world.maps, []
    for number, client in enumerate((talk.fam.client, talk.fam.client, talk.fam.client2)):
        frame = craft.frame(craft.tcp(talk.fam, client, 41000 + number, talk.fam.vip, 80, "S", seq=77))
        began = timed.clock.ns
        talk.world.run(talk.hook, frame)
        assert len(backend_tcp.repeated(maps)) == number
        timed.clock.pass_ns(SECOND)
        talk.world.run(talk.hook, frame)
        (each,) = [one for one in backend_tcp.repeated(maps) if one.began_ns == began]
        assert (each.backend, each.service) == (talk.backend.id, talk.world.services[0].id)
        clients.append(each.client)
        timed.clock.pass_ns(SECOND)
    assert clients[0] == clients[1] != clients[2]
    assert all(client < 1 << 26 for client in clients)
    assert backend_tcp.count_lost(maps, timed.clock.ns + HANDSHAKE_LOST_NS) == 3
    assert backend_tcp.repeated(maps) == []
    assert found(talk).lost == 3


def test_an_answered_handshake_is_not_among_the_repeated_ones(timed: TimedWorld, talk: Numbered) -> None:
    for _ in range(2):
        talk.from_client("S", seq=77)
        timed.clock.pass_ns(SECOND)
    assert len(backend_tcp.repeated(talk.world.maps)) == 1
    talk.from_backend("SA", seq=1, ack=78)
    assert backend_tcp.repeated(talk.world.maps) == []


def test_a_handshake_that_waits_keeps_its_place(timed: TimedWorld, talk: Numbered) -> None:
    """Each that began also ends, though others select its place; one that no agent removed gives way."""
    world = talk.world
    talk.from_client("S", seq=77)
    with world.maps.window("lb_handshake", 0, HANDSHAKES * LB_HANDSHAKE.size) as view, view.cast("Q") as cells:
        (at,) = (n for n in range(HANDSHAKES) if cells[n * 3 + 1])
        number, backend = cells[at * 3], cells[at * 3 + 2]
        assert (cells[at * 3 + 1], backend & 0xFFFFF) == (timed.clock.ns, talk.backend.id)
        cells[at * 3] = number ^ 2  # another flow's
        for age, stays in ((2 * HANDSHAKE_LOST_NS - 1, True), (2 * HANDSHAKE_LOST_NS, False)):
            cells[at * 3 + 1] = timed.clock.ns - age
            world.forget_flows()
            talk.from_client("S", seq=77)
            assert cells[at * 3] == (number ^ 2 if stays else number)
    assert found(talk) == Handshakes()


def test_an_answer_of_another_backend_does_not_end_it(timed: TimedWorld, talk: Numbered) -> None:
    talk.from_client("S", seq=77)
    with talk.world.maps.window("lb_handshake", 0, HANDSHAKES * LB_HANDSHAKE.size) as view, view.cast("Q") as cells:
        (at,) = (n for n in range(HANDSHAKES) if cells[n * 3 + 1])
        cells[at * 3 + 2] += 1
    talk.from_backend("SA", seq=1, ack=78)
    assert found(talk) == Handshakes()


@pytest.mark.parametrize("sample", [0, 8])
def test_one_of_so_many(fam: Family, sample: int) -> None:
    """Of 4,000 flows about one in eight; with 0 none, and nothing is written."""
    with open_timed_world(ProgramSettings(handshake_sample=sample)) as timed:
        world = timed.world
        backend = world.backend(fam, fam.remote(1), 8080, TCP)
        world.service(fam, fam.vip, 80, TCP, [backend])
        for number in range(4000):
            frame = craft.frame(craft.tcp(fam, fam.client, 1024 + number, fam.vip, 80, "S"))
            world.run("xdp", frame)
        with world.maps.window("lb_handshake", 0, HANDSHAKES * LB_HANDSHAKE.size) as view, view.cast("Q") as cells:
            used = sum(1 for n in range(HANDSHAKES) if cells[n * 3 + 1])
        assert used == 0 if sample == 0 else 390 < used < 560


def test_new_flows_of_a_service(timed: TimedWorld, fam: Family, hook: str) -> None:
    """TCP and UDP: the first packet of a flow, not further ones, nor a SYN that comes again, nor one that is refused."""
    world = timed.world
    services = []
    for proto, port in ((TCP, 80), (UDP, 53)):
        backend = world.backend(fam, fam.remote(1), 8080, proto)
        services.append(world.service(fam, fam.vip, port, proto, [backend]))
    empty = world.service(fam, fam.vip, 81, TCP, [])
    for number in range(5):
        for flags in ("S", "S"):
            world.run(hook, craft.frame(craft.segment(fam, TCP, fam.client, 40000 + number, fam.vip, 80, flags)))
        world.run(hook, craft.frame(craft.segment(fam, TCP, fam.client, 40000 + number, fam.vip, 81, "S")))
    for _ in range(3):
        world.run(hook, craft.frame(craft.segment(fam, UDP, fam.client, 40000, fam.vip, 53, "")))
    idents = [services[0].id, services[1].id, empty.id]
    assert backend_tcp.read_new_flows(world.maps, idents) == [5, 1, 0]


def test_a_new_backend_with_an_old_id_begins_at_zero(timed: TimedWorld, talk: Numbered) -> None:
    talk.from_client("S", seq=77)
    talk.from_backend("RA", ack=78)
    maps: World = talk.world
    assert found(talk).refused == 1
    from lbagent.maps.lbmaps import backend_counter, service_counter

    maps.maps.zero_counters([backend_counter(talk.backend.id), service_counter(talk.service.id)])
    assert found(talk) == Handshakes()
    assert backend_tcp.read_new_flows(maps.maps, [talk.service.id]) == [0]
    assert LB_TCP.size == 96
