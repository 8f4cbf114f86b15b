"""No sequence of Service, pool, write and restart events gives an address twice, or moves one without a request.

The API server is a dictionary; the book gets its changes later, in order, as by a watch, and a status is written later than
its decision. The controller may die at any time.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
from msgspec.structs import replace

from lbagent.cloud.builtin.address_book import AddressBook
from lbagent.model.address import parse_ip
from lbagent.model.family import Family
from lbagent.objects.records import Balancer, Node, ObjectChange, ObjectSnapshot, Service
from lbagent.pools.read_pools import PoolsFile, parse_pools

FILES = [
    "",
    "pools: [{name: a, addresses: [10.0.0.1-10.0.0.2]}]",
    "pools: [{name: a, addresses: [10.0.0.2-10.0.0.3]}, {name: b, addresses: [10.1.0.1]}]",
]
ADDRESSES = ["10.0.0.1", "10.0.0.2", "10.0.0.3", "10.1.0.1", "10.9.9.9"]


def pools(index: int) -> PoolsFile:
    return parse_pools(FILES[index], "f")


class Watching:
    """A book and the Services that it has read."""

    def __init__(self, addresses: str) -> None:
        self.book = AddressBook(parse_pools(f"pools: [{{name: a, addresses: [{addresses}]}}]", "f"))
        self.services: dict[str, Service] = {}

    def put(self, name: str, created: float, *held: str, wish: str = "") -> None:
        """Read a Service with this status."""
        balancer = Balancer(
            families=(Family.IPV4,), uid=name, load_balancer_ip=wish, status=tuple(parse_ip(text) for text in held)
        )
        new = Service("n", name, created=created, type="LoadBalancer", balancer=balancer)
        old, self.services[new.key] = self.services.get(new.key), new
        self.book.note(ObjectChange("Service", new.key, old, new))

    def has(self, name: str) -> list[str]:
        found = self.book.look(ObjectSnapshot(services=self.services))[f"n/{name}"]
        return [".".join(map(str, address)) for address in found.addresses]


def test_an_older_service_that_comes_later_does_not_get_what_is_on_its_way() -> None:
    one = Watching("10.0.0.1-10.0.0.2")
    one.put("young", 3.0)
    assert one.has("young") == ["10.0.0.1"]  # no status has it yet
    one.put("old", 1.0)
    assert one.has("old") == ["10.0.0.2"]
    assert one.has("young") == ["10.0.0.1"]


def test_what_a_service_gives_up_is_free_when_its_status_says_so() -> None:
    one = Watching("10.0.0.1-10.0.0.2")
    one.put("a", 1.0, "10.0.0.1")
    assert one.has("a") == ["10.0.0.1"]
    one.put("a", 1.0, "10.0.0.1", wish="10.0.0.2")
    assert one.has("a") == ["10.0.0.2"]
    one.put("b", 2.0)
    assert one.has("b") == []
    one.put("c", 3.0)
    assert (one.has("a"), one.has("b")) == (["10.0.0.2"], [])
    one.put("a", 1.0, "10.0.0.2", wish="10.0.0.2")
    assert (one.has("b"), one.has("c")) == (["10.0.0.1"], [])


def test_a_status_that_was_emptied_is_still_the_services() -> None:
    one = Watching("10.0.0.1-10.0.0.2")
    one.put("a", 2.0, "10.0.0.1")
    assert one.has("a") == ["10.0.0.1"]
    one.put("a", 2.0)
    one.put("b", 1.0)
    assert (one.has("a"), one.has("b")) == (["10.0.0.1"], ["10.0.0.2"])


def test_a_status_that_another_program_wrote_is_what_the_service_has() -> None:
    one = Watching("10.0.0.1-10.0.0.2")
    one.put("a", 1.0, "10.0.0.1")
    assert one.has("a") == ["10.0.0.1"]
    one.put("a", 1.0, "10.9.9.9")
    one.put("b", 2.0)
    assert (one.has("a"), one.has("b")) == (["10.9.9.9"], ["10.0.0.1"])


def test_what_a_server_from_a_backup_says_is_another_s_address_is_not_kept() -> None:
    """The status of `a` is empty again, as before it got the address of `b`: `b` is restored, with its address."""
    one = Watching("10.0.0.1-10.0.0.2")
    one.put("a", 1.0, "10.0.0.1")
    assert one.has("a") == ["10.0.0.1"]
    one.put("a", 1.0)
    one.put("b", 2.0, "10.0.0.1")
    assert (one.has("a"), one.has("b")) == (["10.0.0.2"], ["10.0.0.1"])


def test_what_is_on_its_way_goes_to_no_other_service_though_its_own_was_given_another_one() -> None:
    """During a write the pools change, and a request can be met that could not before."""
    one = Watching("10.0.0.1-10.0.0.2")
    one.put("a", 1.0)
    assert one.has("a") == ["10.0.0.1"]
    one.put("a", 1.0, wish="10.1.0.1")
    assert one.has("a") == ["10.0.0.1"]
    one.book.use(parse_pools("pools: [{name: a, addresses: [10.0.0.1-10.0.0.2, 10.1.0.1]}]", "f"))
    one.put("b", 2.0)
    assert (one.has("a"), one.has("b")) == (["10.1.0.1"], ["10.0.0.2"])
    one.put("c", 3.0)
    assert one.has("c") == []
    one.put("a", 1.0, "10.1.0.1", wish="10.1.0.1")
    assert one.has("c") == ["10.0.0.1"]


def test_a_status_from_a_backup_is_what_the_service_has() -> None:
    """It was empty, the write of the next address was under way, and its earlier address is restored."""
    one = Watching("10.0.0.1-10.0.0.3")
    one.put("b", 1.0, "10.0.0.1")
    one.put("a", 2.0)
    assert one.has("a") == ["10.0.0.2"]
    one.put("a", 2.0, "10.0.0.3")
    assert one.has("a") == ["10.0.0.3"]


def test_another_service_of_the_same_name_inherits_nothing() -> None:
    one = Watching("10.0.0.1-10.0.0.2")
    one.put("a", 2.0)
    assert one.has("a") == ["10.0.0.1"]
    one.put("b", 1.0)
    assert one.has("b") == ["10.0.0.2"]
    (old,) = (each for each in one.services.values() if each.name == "a")
    del one.services["n/a"]
    one.book.note(ObjectChange("Service", "n/a", old, None))
    one.put("c", 1.0)
    assert one.has("c") == ["10.0.0.1"]


class Server:
    """The server's objects, those that the controller has read, and the requests under way."""

    def __init__(self) -> None:
        self.there: dict[str, Service] = {}  # what the server has
        self.versions: dict[str, int] = {}
        self.seen: dict[str, tuple[int, Service]] = {}  # what the controller has read
        self.log: list[tuple[str, int, Service | None]] = []  # of the watch, not read yet
        self.nodes: dict[str, Node] = {}
        self.count = 0
        self.writes: list[tuple[str, int, tuple[bytes, ...]]] = []  # decided, under way: key, version, addresses
        self.file = pools(1)
        self.book = AddressBook(self.file)
        self.wished: set[str] = set()
        self.ever_wished: set[str] = set()
        self.backup: tuple[dict[str, Service], set[str]] = ({}, set())

    # --- the server ---

    def put(self, key: str, service: Service | None) -> None:
        self.count += 1
        if service is None:
            del self.there[key]
        else:
            self.there[key] = service
            self.versions[key] = self.count
        self.log.append((key, self.count, service))

    def create(self, name: str, created: int) -> None:
        key = f"n/{name}"
        if key not in self.there:
            balancer = Balancer(families=(Family.IPV4,), uid=str(self.count))
            self.put(key, Service("n", name, created=float(created), type="LoadBalancer", balancer=balancer))

    def delete(self, name: str) -> None:
        if (key := f"n/{name}") in self.there:
            self.put(key, None)
            self.wished.discard(key)

    def wish(self, name: str, text: str) -> None:
        service = self.there.get(key := f"n/{name}")
        if service and service.balancer:
            self.put(key, replace(service, balancer=replace(service.balancer, load_balancer_ip=text)))
            self.wished.add(key)
            self.ever_wished.add(key)

    def empty(self, name: str) -> None:
        """Another program empties a status that was written."""
        service = self.there.get(key := f"n/{name}")
        seen = self.seen.get(key)
        if service and service.balancer and service.balancer.status and seen and seen[1] == service:
            self.put(key, replace(service, balancer=replace(service.balancer, status=())))

    def save(self) -> None:
        """Make a backup, replacing the last one."""
        self.backup = dict(self.there), set(self.wished)

    def restore(self) -> None:
        """Restore the backup: Services and statuses change. Requests end; the controller lists again."""
        self.log.clear()
        self.writes.clear()
        self.there, wished = dict(self.backup[0]), self.backup[1]
        self.wished |= wished | self.ever_wished  # one that was met already may be under way
        self.count += 1
        self.versions = dict.fromkeys(self.there, self.count)
        for key in sorted(self.seen.keys() | self.there.keys()):
            old = self.seen.pop(key, (0, None))[1]
            if key in self.there:
                self.seen[key] = (self.count, self.there[key])
            self.book.note(ObjectChange("Service", key, old, self.there.get(key)))

    def edit(self, index: int) -> None:
        self.file = pools(index)
        self.book.use(self.file)

    def add_node(self, text: str) -> None:
        node = Node("n1", internal_ips=(parse_ip(text),))
        if not any(parse_ip(text) in each.balancer.status for each in self.there.values() if each.balancer):
            old, self.nodes["n1"] = self.nodes.get("n1"), node
            self.book.note(ObjectChange("Node", "n1", old, node))

    # --- the controller ---

    def watch(self, count: int) -> None:
        """Read the next changes, in order."""
        for _ in range(min(count, len(self.log))):
            self.see(*self.log.pop(0))

    def ensure_all(self) -> None:
        """Read everything, and decide for each Service."""
        self.watch(99)
        for key in list(self.seen):
            self.ensure(key.removeprefix("n/"))

    def see(self, key: str, version: int, service: Service | None) -> None:
        old = self.seen.get(key)
        if old and old[0] >= version:
            return
        if service is None:
            self.seen.pop(key, None)
        else:
            self.seen[key] = (version, service)
        self.book.note(ObjectChange("Service", key, old[1] if old else None, service))

    def ensure(self, name: str) -> None:
        """Decide for one Service; the write is under way."""
        if (key := f"n/{name}") not in self.seen or any(each[0] == key for each in self.writes):
            return
        services = {each: service for each, (_, service) in self.seen.items()}
        found = self.book.look(ObjectSnapshot(services=services, nodes=self.nodes)).get(key)
        version, service = self.seen[key]
        if found and found.addresses and service.balancer and found.addresses != service.balancer.status:
            self.writes.append((key, version, found.addresses))

    def arrive(self, index: int) -> None:
        """A write arrives; one for another version is refused. Its answer is read at once."""
        if not self.writes:
            return
        key, version, addresses = self.writes.pop(index % len(self.writes))
        service = self.there.get(key)
        if service is None or service.balancer is None or self.versions[key] != version:
            return
        held = service.balancer.status
        assert not held or key in self.wished, (key, held, addresses)
        self.put(key, replace(service, balancer=replace(service.balancer, status=addresses)))
        self.see(key, self.count, self.there[key])

    def die(self) -> None:
        """Another controller starts: it lists everything, and writes under way are lost."""
        self.book = AddressBook(self.file)
        self.log.clear()
        self.writes.clear()
        self.seen = {key: (self.versions[key], service) for key, service in self.there.items()}
        for key, (_, service) in self.seen.items():
            self.book.note(ObjectChange("Service", key, None, service))

    def no_address_is_there_twice(self) -> None:
        held: list[Any] = [address for each in self.there.values() if each.balancer for address in each.balancer.status]
        assert len(held) == len(set(held)), self.there


WALKS, STEPS = 60, 60


def steps(server: Server, rng: random.Random) -> list[tuple[int, Callable[[], None]]]:
    """Return the possible next events, with their weights."""
    name = rng.choice("abcd")
    return [
        (6, lambda: server.create(name, rng.randint(1, 3))),
        (2, lambda: server.delete(name)),
        (2, lambda: server.wish(name, rng.choice(["", *ADDRESSES]))),
        (2, lambda: server.empty(name)),
        (1, lambda: server.edit(rng.randrange(len(FILES)))),
        (1, lambda: server.add_node(rng.choice(ADDRESSES))),
        (3, lambda: server.watch(rng.choice([1, 9]))),
        (3, lambda: server.ensure(name)),
        (6, server.ensure_all),
        (6, lambda: server.arrive(rng.randint(0, 3))),
        (1, server.die),
        (2, server.save),
        (2, server.restore),
    ]


@pytest.mark.long
@pytest.mark.parametrize("seed", range(10))
def test_any_order(seed: int) -> None:
    """Random walks, the same each time."""
    rng = random.Random(seed)
    for _ in range(WALKS):
        server = Server()
        for _ in range(STEPS):
            weights, choices = zip(*steps(server, rng), strict=True)
            rng.choices(choices, weights)[0]()
            server.no_address_is_there_twice()


def test_a_new_service_is_looked_at_without_all_the_others() -> None:
    one = Watching("10.0.0.1-10.0.0.9")
    one.put("old", 1.0)
    assert one.has("old") == ["10.0.0.1"]
    one.put("old", 1.0)  # it got its finalizer
    assert one.book.is_current("n/old")
    one.put("new", 2.0)
    assert one.book.is_current("n/old")
    assert not one.book.is_current("n/new")
    assert one.has("new") == ["10.0.0.2"]
    assert one.book.is_current("n/new")


def test_new_services_are_served_without_a_look_at_the_others_as_long_as_none_lacks_anything(monkeypatch) -> None:
    one = Watching("10.0.0.1-10.0.0.3")
    looks: list[int] = []
    anew = one.book._allocate_anew
    monkeypatch.setattr(
        one.book, "_allocate_anew", lambda objects: looks.append(len(objects.services)) or anew(objects)
    )
    one.put("a", 5.0)
    assert one.has("a") == ["10.0.0.1"]
    for number, name in enumerate("cb"):
        one.put(name, 4.0 - number)
    assert (one.has("b"), one.has("c")) == (["10.0.0.2"], ["10.0.0.3"]), "the older one is asked first"
    one.put("d", 1.0)
    assert one.has("d") == []
    assert looks == [1]
    one.put("e", 9.0)
    assert (one.has("d"), one.has("e"), looks) == ([], [], [1, 5])
    one.book.note(ObjectChange("Service", "n/a", one.services.pop("n/a"), None))
    assert (one.has("d"), one.has("e"), looks) == (["10.0.0.1"], [], [1, 5, 4])


@pytest.mark.parametrize("change", ["status", "wish", "other", "external"])
def test_what_may_change_what_others_have_makes_it_look_at_all(change: str) -> None:
    one = Watching("10.0.0.1-10.0.0.9")
    one.put("old", 1.0)
    assert one.has("old") == ["10.0.0.1"]
    if change == "wish":
        one.put("old", 1.0, wish="10.0.0.5")
    elif change == "external":
        other = replace(one.services["n/old"], name="other", balancer=None, external_ips=(parse_ip("10.0.0.2"),))
        one.book.note(ObjectChange("Service", other.key, None, other))
        new = replace(other, name="new", balancer=one.services["n/old"].balancer)
        assert not one.book.is_current("n/old")
        one.services |= {other.key: other}
        one.has("old")
        one.book.note(ObjectChange("Service", new.key, None, new))
    else:
        one.put("old" if change == "status" else "found", 1.0, "10.0.0.7")
    assert not one.book.is_current("n/old")
