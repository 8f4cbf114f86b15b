"""What counts as the same decision, and what is kept of others: without a kernel."""

from __future__ import annotations

from msgspec.structs import replace

from lbagent.model.address import L3n4Addr, Scope
from lbagent.model.backend import Backend
from lbagent.model.service import CIDR, SVC, ServiceName, SVCType
from lbagent.model.state import State
from lbagent.targets.comparison.compared_flows import MAX_EXAMPLES, ComparedFlows
from lbagent.targets.comparison.conntrack_events import NewConnection
from lbagent.targets.comparison.expected_backends import CHANGE_S, ExpectedBackends

VIP = L3n4Addr.parse("10.96.0.1:80")
ONE, TWO = L3n4Addr.parse("10.244.1.1:8080"), L3n4Addr.parse("10.244.2.1:8080")
POD, OUTSIDE = L3n4Addr.parse("10.244.1.9:40000"), L3n4Addr.parse("192.0.2.7:40000")


def row(*backends: L3n4Addr, frontend: L3n4Addr = VIP, **more: object) -> SVC:
    selectable = tuple(Backend(number, address) for number, address in enumerate(backends, 1))
    return SVC(frontend, 1, ServiceName("shop", "web"), selectable=selectable, **more)  # type: ignore[arg-type]


def compared(rows: list[SVC], *flows: tuple[L3n4Addr, L3n4Addr], age_s: float = 60.0) -> ComparedFlows:
    """Compare flows (client, who answers) with frontends that have been there so long."""
    expected, found = ExpectedBackends(lambda address: address == POD.address), ComparedFlows()
    expected.take(State(1, tuple(rows)), 0.0)
    for client, answering in flows:
        found.add(NewConnection(client, VIP, answering), expected, age_s)
    return found


def test_a_backend_of_the_service_is_the_same() -> None:
    report = compared([row(ONE, TWO)], (OUTSIDE, ONE), (OUTSIDE, TWO)).report()
    assert (report.flows, report.same, report.differs, report.unknown) == (2, 2, 0, 0)
    assert [(each.service, each.frontend, each.flows) for each in report.services] == [
        ("shop/web", "10.96.0.1:80/TCP", 2)
    ]


def test_another_backend_is_an_example() -> None:
    (service,) = compared([row(ONE)], (OUTSIDE, TWO), (OUTSIDE, ONE)).report().services
    assert (service.flows, service.same, service.differs) == (2, 1, 1)
    (example,) = service.examples
    assert (example.client, example.frontend) == ("192.0.2.7:40000/TCP", "10.96.0.1:80/TCP")
    assert (example.got, example.expected) == ("10.244.2.1:8080/TCP", ["10.244.1.1:8080/TCP"])
    assert example.why == "another backend answers"


def test_what_no_program_translated_differs() -> None:
    (service,) = compared([row(ONE)], (OUTSIDE, VIP)).report().services
    assert (service.examples[0].got, service.examples[0].why) == ("", "no program translated it")


def test_a_service_without_a_backend_expects_no_connection() -> None:
    (service,) = compared([row()], (OUTSIDE, ONE)).report().services
    assert (service.examples[0].expected, service.examples[0].why) == ([], "no backend takes new flows")


def test_source_ranges_count() -> None:
    ranges = (CIDR.parse("192.0.2.0/24"),)
    allowed = row(ONE, source_ranges=ranges, check_source_range=True)
    assert compared([allowed], (OUTSIDE, ONE)).report().same == 1
    assert compared([allowed], (L3n4Addr.parse("198.51.100.1:4000"), ONE)).report().differs == 1
    denied = replace(allowed, source_ranges_deny=True)
    (service,) = compared([denied], (OUTSIDE, ONE)).report().services
    assert service.examples[0].why == "its source ranges refuse the client"


def test_pods_have_a_row_of_their_own() -> None:
    rows = [row(ONE), row(TWO, frontend=VIP.with_scope(Scope.INTERNAL))]
    report = compared(rows, (OUTSIDE, ONE), (POD, TWO), (POD, ONE), (OUTSIDE, TWO)).report()
    assert (report.same, report.differs) == (2, 2)
    (service,) = report.services
    assert [(each.client, each.expected) for each in service.examples] == [
        ("10.244.1.9:40000/TCP", ["10.244.2.1:8080/TCP"]),
        ("192.0.2.7:40000/TCP", ["10.244.1.1:8080/TCP"]),
    ]


def test_only_what_changed_is_unknown_for_a_while() -> None:
    """A backend that left, and one that came: for CHANGE_S. A frontend that is the same object is compared at once."""
    other = L3n4Addr.parse("10.96.0.2:80")
    same, expected, found = row(ONE, frontend=other), ExpectedBackends(lambda _: False), ComparedFlows()
    expected.take(State(1, (row(ONE), same)), 0.0)
    expected.take(State(2, (row(TWO), same)), 100.0)
    for now, frontend, answering in (
        (101.0, VIP, ONE),  # it had that backend a moment ago
        (101.0, VIP, TWO),
        (101.0, other, TWO),
        (100.0 + CHANGE_S + 0.1, VIP, ONE),
    ):
        found.add(NewConnection(OUTSIDE, frontend, answering), expected, now)
    report = found.report()
    assert (report.unknown, report.same, report.differs) == (1, 1, 2)
    assert {each.frontend: each.differs for each in report.services} == {
        "10.96.0.1:80/TCP": 1,
        "10.96.0.2:80/TCP": 1,
    }
    expected.take(State(3, (same,)), 200.0)
    found.add(NewConnection(OUTSIDE, VIP, TWO), expected, 201.0)
    assert found.report().flows == 4, "it is no frontend any more"


def test_frontends_with_differences_come_first() -> None:
    other = L3n4Addr.parse("10.96.0.2:80")
    expected, found = ExpectedBackends(lambda _: False), ComparedFlows()
    expected.take(State(1, (row(ONE), row(ONE, frontend=other))), 0.0)
    for frontend, answering in ((VIP, ONE), (other, TWO), (other, TWO)):
        found.add(NewConnection(OUTSIDE, frontend, answering), expected, 60.0)
    assert [(each.frontend, each.differs) for each in found.report().services] == [
        ("10.96.0.2:80/TCP", 2),
        ("10.96.0.1:80/TCP", 0),
    ]


def test_a_change_a_moment_ago_is_not_held_against_the_proxy() -> None:
    assert compared([row(ONE)], (OUTSIDE, TWO), age_s=CHANGE_S - 0.1).report().unknown == 1
    assert compared([row(ONE)], (OUTSIDE, TWO), age_s=CHANGE_S + 0.1).report().differs == 1


def test_other_addresses_are_not_counted() -> None:
    found = compared([row(ONE)])
    expected = ExpectedBackends(lambda _: False)
    expected.take(State(1, (row(ONE),)), 0.0)
    found.add(NewConnection(OUTSIDE, ONE, ONE), expected, 60.0)
    found.add(NewConnection(OUTSIDE, L3n4Addr.parse("10.96.0.1:80/UDP"), ONE), expected, 60.0)
    assert found.report().flows == 0


def test_examples_are_bounded_and_a_reset_begins_again() -> None:
    found = compared([row(ONE)], *[(OUTSIDE, TWO)] * 50)
    (service,) = found.report().services
    assert (service.differs, len(service.examples)) == (50, MAX_EXAMPLES)
    found.lose()
    assert (found.report().unknown, found.lost) == (1, 1)
    found.reset()
    assert (found.report().flows, found.report().services, found.lost) == (0, [], 0)
    assert dict(found.totals) == {"differs": 50, "unknown": 1}, "a metric does not go back"


def test_a_local_redirect_is_for_what_is_inside() -> None:
    """Its own pods skip it, and at an address without a Service nothing is expected of others."""
    inside = VIP.with_scope(Scope.INTERNAL)
    redirect = row(TWO, frontend=inside, type=SVCType.LOCAL_REDIRECT)
    assert compared([row(ONE), redirect], (POD, TWO), (OUTSIDE, ONE)).report().same == 2
    ranges = (CIDR.parse("10.244.1.9/32"),)
    skipped = replace(redirect, source_ranges=ranges, source_ranges_deny=True, check_source_range=True)
    assert compared([row(ONE), skipped], (POD, ONE)).report().same == 1
    passing = row(type=SVCType.LOCAL_REDIRECT, loopback_hostport=True)
    assert compared([passing, redirect], (OUTSIDE, VIP)).report().differs == 0
