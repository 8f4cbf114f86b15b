"""While the source ranges of a frontend change: a client that both rules admit is always admitted, one that neither admits never is."""

from __future__ import annotations

from dataclasses import replace
from ipaddress import ip_address, ip_network

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lbagent.errors import KernelError
from lbagent.maps.consistency import check
from lbagent.maps.kernel_maps import KernelMaps
from lbagent.maps.memory_maps import MemoryMaps
from lbagent.model.flags import ServiceFlags
from lbagent.model.service import CIDR
from lbagent.testing.faulty_maps import FaultyMaps, Killed, fail_at, fail_often
from tests.maps.conftest import private_bpffs
from tests.targets.bpf.plans import SMALL, Node, backend, backends_of, service, wanted_of
from tests.targets.bpf.test_plan_order import copy_of

NETS = {
    4: ["0.0.0.0/0", "10.0.0.0/8", "10.1.0.0/16", "10.1.2.0/24", "10.1.2.3/32", "192.168.0.0/16"],
    6: ["::/0", "fd00::/8", "fd00:1::/32", "fd00:1::1/128", "2001:db8::/32"],
}
CLIENTS = {
    4: ["9.9.9.9", "10.0.0.1", "10.1.0.1", "10.1.2.1", "10.1.2.3", "192.168.0.1"],
    6: ["2001:db9::1", "2001:db8::1", "fd00::1", "fd00:1::1", "fd00:1::2"],
}
VIP = {4: "203.0.113.1:80", 6: "[2001:db8::1]:80"}
RELAXED = settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))


@st.composite
def rules(draw, family: int):
    """Draw (mode, ranges)."""
    mode = draw(st.sampled_from(("off", "allow", "deny")))
    return mode, () if mode == "off" else tuple(draw(st.lists(st.sampled_from(NETS[family]), unique=True)))


worlds = st.sampled_from((4, 6)).flatmap(
    lambda family: st.tuples(st.just(family), st.lists(rules(family), min_size=2, max_size=4))
)


def lets_in(rule, client: str) -> bool:
    """Say what a rule means."""
    mode, nets = rule
    listed = any(ip_address(client) in ip_network(net) for net in nets)
    return mode == "off" or listed is (mode == "allow")


def frontend(family: int, rule, host: int = 1):
    mode, nets = rule
    flags = ServiceFlags.ROUTABLE
    if mode != "off":
        flags |= ServiceFlags.SOURCE_RANGE | (ServiceFlags.SOURCE_RANGE_DENY if mode == "deny" else 0)
    address = f"10.244.1.{host}:8080" if family == 4 else f"[fd00:1::{host}]:8080"
    return service(
        VIP[family], backend(address), flags=flags, check_source_range=mode != "off",
        source_ranges_deny=mode == "deny", source_ranges=tuple(map(CIDR.parse, nets)),
    )  # fmt: skip


def admitted(maps, family: int, client: str) -> bool | None:
    """Say what the program does, from the bytes (bpf/include/service/service.h); None without a master."""
    size, digit = (4, "4") if family == 4 else (16, "6")
    address, port = VIP[family].rsplit(":", 1)
    key = ip_address(address.strip("[]")).packed + int(port).to_bytes(2, "big") + bytes((0, 0, 6, 0, 0, 0))
    master = maps.get(f"lb{digit}_service", key)
    if master is None:
        return None
    flags, ident = master[8] | master[9] << 8, master[6:8]
    if not flags & 0x80:
        return True
    best, value = -1, b""
    for entry, found in maps.items(f"lb{digit}_source_range"):
        bits = int.from_bytes(entry[:4], "little") - 32
        net = ip_network((entry[8 : 8 + size], bits))
        if entry[4:6] == ident and bits > best and ip_address(client) in net:
            best, value = bits, found
    if best >= 0 and value[0] >= 2:
        return value[0] == 2
    return (best >= 0) is not bool(flags & 0x4000)


class Door(FaultyMaps):
    """Maps that are asked after every write who is let in: as before or as wanted, and changed once at most."""

    def __init__(self, inner, family: int, new, **more):
        super().__init__(inner, after=self.look, **more)
        self.family, self.new = family, new
        self.was = {client: admitted(inner, family, client) for client in CLIENTS[family]}

    def look(self, number: int, name: str) -> None:
        for client in CLIENTS[self.family]:
            now, wanted = admitted(self.inner, self.family, client), lets_in(self.new, client)
            if self.was[client] is not None:
                assert now in (self.was[client], wanted), f"{client} at write {number} ({name})"
            elif now is not None:
                assert now is wanted, f"{client} at write {number} ({name}): a new frontend"
            self.was[client] = now
        assert check(self.inner) == []


@pytest.mark.long
@RELAXED
@given(worlds)
def test_no_client_is_admitted_or_refused_for_a_moment(world):
    family, sequence = world
    node = Node()
    for rule in sequence:
        node.want(frontend(family, rule))
        inner = node.maps
        node.maps = Door(inner, family, rule)
        assert node.sync().complete
        node.maps = inner
        assert {c: admitted(inner, family, c) for c in CLIENTS[family]} == {
            c: lets_in(rule, c) for c in CLIENTS[family]
        }
        assert check(inner, settled=True) == []
        listed = [value for name in ("lb4_source_range", "lb6_source_range") for _, value in inner.items(name)]
        assert listed == [b"\1"] * len(rule[1]), "what is in force says no more than before"
    restarted = Node(node.maps)
    restarted.restart()
    restarted.want(frontend(family, sequence[-1]))
    assert restarted.sync().entries == 0


@pytest.mark.long
@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
@given(worlds)
def test_a_kill_at_any_write_opens_and_closes_nothing(world):
    """Killed on the way from the first rule to the second, the next start continues to the last of the world."""
    family, (first, second, *rest) = world
    third = rest[-1] if rest else second
    start = Node()
    start.serve(frontend(family, first))
    number, killed = 0, True
    while killed:
        node = Node(copy_of(start.maps))
        node.restart()
        node.serve(frontend(family, first))
        node.want(frontend(family, second))
        inner = node.maps
        node.maps = Door(inner, family, second, before=fail_at(number, Killed()))
        try:
            node.sync()
            killed = False
        except Killed:
            number += 1
        reborn = Node(inner)
        reborn.restart()
        reborn.want(frontend(family, third))
        reborn.maps = Door(inner, family, third)
        assert reborn.sync().complete
        assert all(admitted(inner, family, client) is lets_in(third, client) for client in CLIENTS[family])
        assert check(inner, settled=True) == []


@pytest.mark.long
@RELAXED
@given(worlds, st.integers(0, 1 << 30))
def test_failing_writes_open_and_close_nothing(world, seed):
    family, sequence = world
    node = Node()
    node.serve(frontend(family, sequence[0]))
    fails = fail_often(0.2, seed)
    for turn, rule in enumerate(sequence[1:]):
        node.want(frontend(family, rule, host=1 + turn % 2))
        inner = node.maps
        node.maps = Door(inner, family, rule, before=fails)
        for _ in range(200):
            if node.sync().complete:
                break
        else:
            pytest.fail("it never converged")
        node.maps = inner
    assert check(node.maps, settled=True) == []


class ClosedDoor(Door):
    """A Door that may refuse clients for a moment: of a full map."""

    def look(self, number: int, name: str) -> None:
        for client in CLIENTS[self.family]:
            if admitted(self.inner, self.family, client):
                allowed = self.was[client] or lets_in(self.new, client)
                assert allowed, f"{client} at write {number} ({name})"
        assert check(self.inner) == []


def of_size(ranges: int) -> Node:
    return Node(MemoryMaps(replace(SMALL, source_ranges=ranges)))


@pytest.mark.long
@RELAXED
@given(worlds, st.integers(0, 5))
def test_in_a_small_map_no_client_is_admitted_that_no_rule_admits(world, room):
    """What does not fit admits fewer clients; a rule that fits is in force at once."""
    family, sequence = world
    node = of_size(room)
    node.serve(frontend(family, ("off", ())))
    for rule in sequence:
        node.want(frontend(family, rule))
        inner = node.maps
        node.maps = ClosedDoor(inner, family, rule)
        done = node.sync()
        node.maps = inner
        assert done.complete == (len(rule[1]) <= room)
        for client in CLIENTS[family]:
            if done.complete:
                assert admitted(inner, family, client) is lets_in(rule, client)
            elif admitted(inner, family, client):
                assert lets_in(rule, client)
        assert check(inner, settled=True) == []
        assert {name: number for name, number in node.shadow.used.items() if name.endswith("_range") and number} == {
            name: len(inner.items(name)) for name in ("lb4_source_range", "lb6_source_range") if inner.items(name)
        }


@pytest.mark.long
@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
@given(worlds, st.integers(0, 4))
def test_a_kill_in_a_small_map_admits_no_client_that_no_rule_admits(world, room):
    family, (first, second, *rest) = world
    third = rest[-1] if rest else second
    start = of_size(room)
    start.serve(frontend(family, ("off", ())))
    start.want(frontend(family, first))
    start.sync()
    number, killed = 0, True
    while killed:
        node = Node(copy_of(start.maps))
        node.restart()
        node.want(frontend(family, second))
        inner = node.maps
        node.maps = ClosedDoor(inner, family, second, before=fail_at(number, Killed()))
        try:
            node.sync()
            killed = False
        except Killed:
            number += 1
        reborn = Node(inner)
        reborn.restart()
        reborn.want(frontend(family, third))
        reborn.maps = ClosedDoor(inner, family, third)
        done = reborn.sync()
        for client in CLIENTS[family]:
            assert not admitted(inner, family, client) or lets_in(third, client)
            assert not done.complete or admitted(inner, family, client) is lets_in(third, client)
        assert check(inner, settled=True) == []


def test_an_open_service_that_gets_ranges_is_closed_although_none_fits():
    node = of_size(1)
    other = service("203.0.113.2:80", source_ranges=(CIDR.parse("10.0.0.0/8"),), flags=0xC0)
    node.serve(other, frontend(4, ("off", ())))
    wanted = frontend(4, ("allow", ("192.168.0.0/16",)), host=2)
    node.want(other, wanted)
    (error,) = node.sync().failed.values()
    assert str(error) == (
        "map lb4_source_range is full: 1 of 1 entries used, 1 more needed; raise --max-source-ranges;"
        " the frontend admits 0 of its 1 source ranges; it refuses clients of 192.168.0.0/16 until these fit"
    )
    assert [admitted(node.maps, 4, client) for client in CLIENTS[4]] == [False] * len(CLIENTS[4])
    assert backends_of(node.maps, wanted.frontend) == wanted_of(wanted), "the backend of the same update"
    node.restart()
    node.want(other, wanted)
    assert list(node.sync().failed) == [wanted.frontend]
    assert not admitted(node.maps, 4, "192.168.0.1")
    node.want(wanted)
    assert list(node.sync().failed) == [wanted.frontend], "the range of the other Service leaves last"
    assert node.sync().complete
    assert admitted(node.maps, 4, "192.168.0.1")
    assert not admitted(node.maps, 4, "10.0.0.1")


def test_in_a_full_map_a_removed_network_is_refused_and_others_are_swapped():
    node = of_size(2)
    node.serve(frontend(4, ("allow", ("10.1.0.0/16", "192.168.0.0/16"))))
    node.serve(frontend(4, ("allow", ("10.1.0.0/16", "10.0.0.0/8")), host=2))
    assert not admitted(node.maps, 4, "192.168.0.1")
    assert admitted(node.maps, 4, "10.0.0.1")
    node.want(frontend(4, ("allow", ("192.168.0.0/16", "10.1.2.0/24", "10.1.2.3/32"))))
    (error,) = node.sync().failed.values()
    assert "admits 2 of its 3 source ranges; it refuses clients of 10.1.2.3/32" in str(error)
    assert [admitted(node.maps, 4, client) for client in CLIENTS[4]] == [False, False, False, True, True, True]


def test_a_list_of_refused_networks_that_does_not_fit_refuses_all_clients():
    node = of_size(2)
    node.serve(frontend(4, ("deny", ("10.1.0.0/16", "192.168.0.0/16"))))
    assert admitted(node.maps, 4, "9.9.9.9")
    node.want(frontend(4, ("deny", ("10.1.0.0/16", "192.168.0.0/16", "10.0.0.0/8"))))
    (error,) = node.sync().failed.values()
    assert "refuses all clients until the 3 source ranges that it refuses fit" in str(error)
    assert [admitted(node.maps, 4, client) for client in CLIENTS[4]] == [False] * len(CLIENTS[4])
    node.serve(frontend(4, ("deny", ("10.1.0.0/16", "192.168.0.0/16"))))
    rule = "deny", ("10.0.0.0/8", "192.168.0.0/16")
    node.want(frontend(4, rule))
    inner = node.maps
    node.maps = ClosedDoor(inner, 4, rule)
    assert node.sync().complete, "one range is replaced by a wider one"
    node.maps = inner
    assert admitted(node.maps, 4, "9.9.9.9")
    assert not admitted(node.maps, 4, "10.1.0.1")


def test_a_full_map_changes_nothing_of_the_rules():
    node = Node()
    node.serve(frontend(4, ("allow", ("10.0.0.0/8",))))
    node.want(frontend(4, ("deny", ("192.168.0.0/16",))))
    inner = node.maps
    for number in range(1, 12):
        node.maps = Door(
            inner, 4, ("deny", ("192.168.0.0/16",)), before=fail_at(number, KernelError("update", 7, "a map"))
        )
        node.sync()
    node.maps = inner
    assert node.sync().complete
    assert check(inner, settled=True) == []


@pytest.mark.root
@pytest.mark.bpf
@pytest.mark.parametrize("family", [4, 6])
def test_the_kernels_maps_take_the_same_way(family):
    one, two, three = NETS[family][1], NETS[family][3], NETS[family][0]
    rules = [
        ("allow", (one,)),
        ("deny", (two, one)),
        ("allow", (two, three)),
        ("deny", (three,)),
        ("off", ()),
        ("deny", ()),
        ("allow", (one, two)),
    ]
    with private_bpffs() as path, KernelMaps.open(path, SMALL) as maps:
        node = Node(maps)
        for rule in rules:
            node.want(frontend(family, rule))
            node.maps = Door(maps, family, rule)
            assert node.sync().complete
            node.maps = maps
            assert all(admitted(maps, family, client) is lets_in(rule, client) for client in CLIENTS[family])
            assert check(maps, settled=True) == []


@pytest.mark.root
@pytest.mark.bpf
@pytest.mark.parametrize("family", [4, 6])
def test_a_full_map_of_the_kernel_takes_one_range_in_place_of_another(family):
    _, wide, middle, narrow, *_ = NETS[family]
    rules = [
        ("allow", (wide, narrow)),
        ("allow", (middle, narrow)),
        ("deny", (wide, narrow)),
        ("deny", (middle, narrow)),
        ("allow", (wide, middle)),
    ]
    with private_bpffs() as path, KernelMaps.open(path, replace(SMALL, source_ranges=2)) as maps:
        node = Node(maps)
        for rule in rules:
            node.want(frontend(family, rule))
            node.maps = ClosedDoor(maps, family, rule)
            assert node.sync().complete
            node.maps = maps
            assert all(admitted(maps, family, client) is lets_in(rule, client) for client in CLIENTS[family])
            assert check(maps, settled=True) == []


@pytest.mark.parametrize("family", [4, 6])
@pytest.mark.parametrize(
    "sequence",
    [
        [("allow", (1,)), ("allow", (2,))],  # the wider one goes, the narrower comes
        [("allow", (0, 1)), ("deny", (2,))],
        [("deny", (0, 2)), ("allow", (1,))],
        [("allow", (1,)), ("deny", (1,)), ("allow", (1,))],
        [("off", ()), ("allow", (2,)), ("off", ()), ("deny", (1,))],
        [("allow", ()), ("deny", ())],
    ],
)
def test_rules_that_follow_each_other(family, sequence):
    node = Node()
    for mode, numbers in sequence:
        rule = mode, tuple(NETS[family][number] for number in numbers)
        node.want(frontend(family, rule))
        inner = node.maps
        node.maps = Door(inner, family, rule)
        assert node.sync().complete
        node.maps = inner
        assert check(inner, settled=True) == []
        assert [admitted(inner, family, client) for client in CLIENTS[family]] == [
            lets_in(rule, client) for client in CLIENTS[family]
        ]


def test_ranges_that_a_kill_left_without_a_master_let_nobody_in():
    """They came for a rule that is not wanted any more: they go before a master asks for them."""
    node = Node()
    node.serve(frontend(4, ("allow", ("10.0.0.0/8",))))
    (master,) = [key for key, _ in node.maps.items("lb4_service") if key[6:8] == bytes(2)]
    node.maps.delete_many("lb4_service", [master])
    node.restart()
    rule = "allow", ("192.168.0.0/16",)
    node.want(frontend(4, rule))
    inner = node.maps
    node.maps = Door(inner, 4, rule)
    assert node.sync().complete
    assert check(inner, settled=True) == []


def test_a_list_that_does_not_change_is_not_written_again():
    node = Node()
    node.serve(frontend(4, ("allow", ("10.0.0.0/8", "192.168.0.0/16"))))
    done = node.serve(frontend(4, ("allow", ("10.0.0.0/8", "192.168.0.0/16")), host=2))
    assert done.written["lb4_source_range"] == 0
    done = node.serve(frontend(4, ("allow", ("10.0.0.0/8", "10.1.0.0/16")), host=2))
    assert done.written["lb4_source_range"] == 2


def test_a_list_that_turns_round_is_written_twice_and_no_other_entry():
    node = Node()
    node.serve(frontend(4, ("allow", ("10.0.0.0/8", "192.168.0.0/16"))))
    done = node.serve(frontend(4, ("deny", ("10.0.0.0/8", "10.1.0.0/16"))))
    # what was listed says what it means (2), what shall be says it too (2), one goes (1), what is listed is plain again (2)
    assert done.written["lb4_source_range"] == 7


def test_a_rule_that_comes_or_goes_is_written_once():
    node = Node()
    node.serve(frontend(4, ("off", ())))
    for mode in ("deny", "allow"):
        assert node.serve(frontend(4, (mode, ("10.0.0.0/8", "10.1.0.0/16")))).written["lb4_source_range"] == 2
        assert node.serve(frontend(4, ("off", ()))).written["lb4_source_range"] == 2


@pytest.mark.parametrize("number", range(8))
def test_a_start_goes_on_where_a_list_that_turns_round_was_left(number):
    node = Node()
    node.serve(frontend(4, ("allow", ("10.0.0.0/8", "192.168.0.0/16"))))
    rule = "deny", ("10.0.0.0/8", "10.1.0.0/16")
    inner = node.maps
    node.want(frontend(4, rule))
    node.maps = FaultyMaps(inner, before=fail_at(number, Killed()))
    with pytest.raises(Killed):
        node.sync()
    node.maps = inner
    node.restart()
    node.want(frontend(4, rule))
    node.maps = Door(inner, 4, rule)
    assert node.sync().complete
    node.maps = inner
    assert check(inner, settled=True) == []
    assert [admitted(inner, 4, client) for client in CLIENTS[4]] == [lets_in(rule, client) for client in CLIENTS[4]]
