"""Passive health checks: which rows of unanswered flows put a backend out, for how long, and what does not."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from lbagent.model.address import L3n4Addr
from lbagent.objects.decode.decode_health_check import parse_health_check
from lbagent.probes.backend_check import CheckedService
from lbagent.probes.passive_checks import PassiveChecks, WaitingHandshake

B1, B2, B3 = (L3n4Addr.parse(f"10.0.0.{n}:80/TCP") for n in (1, 2, 3))
WEB = "ns/web"


class Flows:
    """Flows in a world whose seconds are counted here; `others_answer`: B2 answers one each second."""

    def __init__(self, *, others_answer: bool = True) -> None:
        self.services = {
            WEB: CheckedService(parse_health_check("passive"), tuple((each, None) for each in (B1, B2, B3)))
        }
        self.checks = PassiveChecks()
        self.now = 1000.0
        self.others_answer = others_answer
        self.waiting: list[WaitingHandshake] = []
        self.counts = {B1: 0, B2: 0, B3: 0}
        self.changes = 0
        self.numbers = 0
        self.second()

    def waiting_handshakes(self, services: Mapping[str, CheckedService]) -> Sequence[WaitingHandshake]:
        return list(self.waiting)

    def answered_handshakes(self, services: Mapping[str, CheckedService]) -> Mapping[L3n4Addr, int]:
        return dict(self.counts)

    def repeat(self, *clients: int, backend: L3n4Addr = B1) -> None:
        """Flows of these clients, just repeated."""
        for client in clients:
            self.numbers += 1
            self.waiting.append(WaitingHandshake(self.numbers, self.now, WEB, backend, client))

    def second(self, count: int = 1) -> None:
        for _ in range(count):
            self.now += 1.0
            self.counts[B2] += self.others_answer
            self.changes += self.checks.look(self.services, self, self.now)

    @property
    def out(self) -> set[L3n4Addr]:
        return {backend for backend, _ in self.checks.down(WEB)}


def test_five_flows_of_three_clients_put_a_backend_out_for_ten_seconds() -> None:
    flows = Flows()
    flows.repeat(1, 2, 3, 1, 1)
    flows.second(3)
    assert flows.out == set()  # three seconds have not passed since it was seen
    flows.second()
    assert flows.out == {B1}
    assert flows.changes == 1
    ((_, text),) = flows.checks.down(WEB)
    assert "5 flows" in text
    assert "3 clients" in text
    assert not flows.checks.health(WEB, B1).up
    assert flows.checks.health(WEB, B2).up
    flows.waiting.clear()
    flows.second(9)
    assert flows.out == {B1}
    flows.second()
    assert flows.out == set()
    assert flows.changes == 2


def test_four_flows_or_two_clients_are_too_few() -> None:
    flows = Flows()
    flows.repeat(1, 2, 3, 4)
    flows.second(30)
    assert flows.out == set()
    flows = Flows()
    flows.repeat(*[1, 2] * 10)
    flows.second(30)
    assert flows.out == set()


def test_one_answer_ends_the_row() -> None:
    flows = Flows()
    flows.repeat(1, 2, 3, 4)
    flows.second(5)
    flows.counts[B1] += 1
    flows.second()
    flows.repeat(5, 6, 7, 8)
    flows.second(6)
    assert flows.out == set()
    flows.repeat(9)
    flows.second(6)
    assert flows.out == {B1}


def test_an_answer_before_three_seconds_is_one() -> None:
    flows = Flows()
    flows.repeat(1, 2, 3, 4, 5)
    flows.second(2)
    flows.waiting.clear()
    flows.second(10)
    assert flows.out == set()


def test_where_no_other_backend_answers_this_node_is_the_more_probable_cause() -> None:
    flows = Flows(others_answer=False)
    flows.repeat(1, 2, 3, 4, 5)
    flows.second(10)
    assert flows.out == set()
    flows.others_answer = True
    flows.second()
    assert flows.out == {B1}


def test_the_time_out_doubles_to_five_minutes() -> None:
    flows = Flows()
    lengths = []
    for _ in range(7):
        flows.repeat(1, 2, 3, 4, 5)
        while not flows.out:
            flows.second()
        flows.waiting.clear()
        began = flows.now
        while flows.out:
            flows.second()
        lengths.append(flows.now - began)
    assert lengths == [10, 20, 40, 80, 160, 300, 300]


def out_for(flows: Flows) -> float:
    """Put B1 out, wait for its return, and return how long it was out."""
    flows.repeat(1, 2, 3, 4, 5)
    flows.second(4)
    assert flows.out == {B1}
    flows.waiting.clear()
    began = flows.now
    while flows.out:
        flows.second()
    return flows.now - began


def test_a_good_time_ends_the_doubling_and_silence_is_no_good_time() -> None:
    flows = Flows()
    assert out_for(flows) == 10
    flows.second(700)  # no client came
    assert out_for(flows) == 20
    flows.counts[B1] += 1
    flows.second(500)
    assert out_for(flows) == 40
    flows.counts[B1] += 1
    flows.second(700)
    assert out_for(flows) == 10


def test_flows_from_before_the_time_out_do_not_put_it_out_again() -> None:
    """They are known as unanswered when it returns, and their clients go on to repeat."""
    flows = Flows()
    flows.repeat(*range(20))
    flows.second(4)
    assert flows.out == {B1}
    flows.repeat(*range(20, 40))
    flows.second(10)
    assert flows.out == set()
    flows.second(20)
    assert flows.out == set()


def test_a_backend_that_left_the_service_is_forgotten() -> None:
    flows = Flows()
    flows.repeat(1, 2, 3, 4, 5)
    flows.second(4)
    flows.services = {WEB: CheckedService(parse_health_check("passive"), ((B2, None),))}
    flows.second()
    assert flows.out == set()
    flows.services = {}
    flows.waiting.clear()
    flows.second()
    assert flows.checks.health(WEB, B1).up
