"""What is read back of the maps as Services, and which of it stays beside the objects of trusted sources: rules without a loop."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from msgspec.structs import replace

from lbagent.maps.consistency import check
from lbagent.maps.dump import dump
from lbagent.model.address import L3n4Addr
from lbagent.model.flags import ServiceFlags
from lbagent.model.service import CIDR, SVC, Algorithm, ServiceName
from lbagent.model.state import State
from lbagent.sync.target_protocol import Provenance
from lbagent.targets.bpf.retention import Retention, restored_state
from tests.targets.bpf import plans
from tests.targets.bpf.plans import ACTIVE, MAINTENANCE, QUARANTINED, TERMINATING, Node, states
from tests.targets.bpf.test_plan_order import copy_of


@pytest.mark.long
@settings(max_examples=80, deadline=None, suppress_health_check=list(HealthCheck))
@given(states())
def test_what_is_read_back_as_services_is_what_is_there(services):
    """All that the maps have of a frontend survives: as a State it needs no write, except for backends that rest."""
    start = Node()
    start.serve(*services)
    before = dump(start.maps)
    node = Node(copy_of(start.maps))
    node.restart()
    node.shadow.keep_unreferenced()
    found = restored_state(node.shadow, "me")
    assert {svc.frontend for svc in found.services} == {svc.frontend for svc in services}
    for svc in found.services:
        old = start.state.by_frontend[svc.frontend]
        assert (svc.id, svc.flags, svc.algorithm, svc.wildcard, svc.no_local_backend and bool(svc.id)) == (
            old.id, old.flags, old.algorithm, old.wildcard, old.no_local_backend,
        )  # fmt: skip
        assert [b.address for b in svc.selectable] == [b.address for b in old.selectable]
        assert [b.address for b in svc.unselectable] == [b.address for b in old.unselectable]
        assert svc.affinity_timeout_s == old.affinity_timeout_s
    node.want(*found.services)
    done = node.sync()
    assert done.complete
    assert {name for name in done.written if not name.endswith(("_path", "lb_filter"))} == set(), done.written
    assert dump(node.maps) == before


def known_to(*services, whole: bool = False) -> Provenance:
    """Return the provenance of services of which an untrusted source may hold a part (or, `whole`, none)."""
    names = () if whole else tuple(str(svc.name) for svc in services)
    return Provenance(("folder",), names, (), {})


def kept(*found, overrides=None, known=(), whole: bool = False) -> dict[str, SVC]:
    """Return what a State of `known` services becomes beside what was found in the maps."""
    held = Retention({svc.frontend: svc for svc in found}, ("folder",))
    provenance = replace(known_to(*known, whole=whole), overrides=overrides or {})
    return {str(svc.frontend): svc for svc in held.add_to(State(1, tuple(known)), provenance).services}


def texts(backends) -> list[str]:
    return [str(backend.address) for backend in backends]


def test_the_reason_names_sources_and_what_is_kept() -> None:
    held = Retention({}, ("folder", "other"))
    assert held.reason == "folder, other has given no complete list yet: nothing is removed until it has"
    held.sources, held.kept = (), 2
    assert held.reason == (
        "the maps could not be read again: nothing is removed until they can;"
        " 2 frontends that no object names stay as they are in the maps"
    )


def test_a_service_known_whole_takes_both_its_rows_with_it() -> None:
    """The row of the other scope is one of its own, and goes where it needs none any more."""
    outer = plans.service("10.96.0.1:80", plans.backend("10.244.1.1:80"), name=ServiceName("default", "web"))
    inner = plans.service("10.96.0.1:80/i", plans.backend("10.244.1.2:80"))
    other = plans.service("10.96.0.2:80/i", plans.backend("10.244.1.2:80"))
    assert kept(outer, inner, other, known=[outer], whole=True).keys() == {"10.96.0.1:80", "10.96.0.2:80/i"}
    assert kept(outer, inner, known=[outer]).keys() == {"10.96.0.1:80", "10.96.0.1:80/i"}


def test_terminating_backends_stand_behind_active_ones_and_before_nothing() -> None:
    name = ServiceName("default", "web")
    dying = [plans.backend(f"10.244.1.{n}:80", plans.TERMINATING) for n in (3, 1)]
    active = plans.backend("10.244.1.2:80")
    (svc,) = kept(
        plans.service("10.96.0.1:80", dying[0]), known=[plans.service("10.96.0.1:80", dying[1], name=name)]
    ).values()
    assert texts(svc.selectable) == ["10.244.1.1:80", "10.244.1.3:80"], "the only ones there are, by address"
    assert svc.unselectable == ()
    (svc,) = kept(
        plans.service("10.96.0.1:80", active), known=[plans.service("10.96.0.1:80", dying[1], name=name)]
    ).values()
    assert (texts(svc.selectable), texts(svc.unselectable)) == (["10.244.1.2:80"], ["10.244.1.1:80"])


@pytest.mark.parametrize(
    ("states", "selectable", "unselectable", "slotless"),
    [
        ((TERMINATING, MAINTENANCE), [1], [], [2]),
        ((TERMINATING, ACTIVE), [2], [1], []),
        ((QUARANTINED, ACTIVE), [2], [1], []),
        ((MAINTENANCE, MAINTENANCE), [], [], [1, 2]),
    ],
)
def test_states_the_operator_sets_for_what_is_kept(states, selectable, unselectable, slotless) -> None:
    found = plans.service("10.96.0.1:80", plans.backend("10.244.1.1:80"), plans.backend("10.244.1.2:80"))
    overrides = {backend.address: state for backend, state in zip(found.selectable, states, strict=True)}
    (svc,) = kept(found, overrides=overrides).values()
    for group, numbers in ((svc.selectable, selectable), (svc.unselectable, unselectable), (svc.slotless, slotless)):
        assert texts(group) == [f"10.244.1.{n}:80" for n in numbers]
    assert {backend.address: backend.state for backend in svc.backends} == overrides


def test_slots_without_a_master_are_no_service_and_the_time_of_affinity_is_no_port() -> None:
    node = Node()
    node.serve(
        plans.service(
            "10.96.0.1:80", plans.backend("10.244.1.1:80"), session_affinity=True, session_affinity_timeout_s=60
        )
    )
    stray = bytes((10, 96, 9, 9, 0, 80, 1, 0, 6, 0, 0, 0))
    node.maps.put_many("lb4_service", [(stray, (1).to_bytes(4, "little") + bytes(8))])
    node.restart()
    (svc,) = restored_state(node.shadow, "me").services
    assert str(svc.frontend) == "10.96.0.1:80"
    assert (svc.session_affinity_timeout_s, svc.l7_lb_proxy_port) == (60, 0)


def test_a_slot_of_a_backend_that_has_no_row_names_none() -> None:
    node = Node()
    resting = [plans.backend(f"10.244.1.{n}:80", QUARANTINED) for n in (3, 4)]
    active = [plans.backend(f"10.244.1.{n}:80") for n in (1, 2)]
    node.serve(plans.service("10.96.0.1:80", *active, unselectable=tuple(resting)))
    node.maps.delete_many("lb4_backend", [number.to_bytes(4, "little") for number in (1, 3)])
    node.restart()
    (svc,) = restored_state(node.shadow, "me").services
    assert texts(svc.selectable) == ["10.244.1.2:80"]
    assert texts(svc.unselectable) == ["10.244.1.4:80"]


def test_what_is_read_back_is_on_its_node_and_has_no_time_it_was_not_given() -> None:
    """`plans.paths` says that the odd one is on this node."""
    node = Node()
    node.serve(plans.service("10.96.0.1:80", *[plans.backend(f"10.244.1.{n}:80") for n in (1, 2)]))
    node.restart()
    (svc,) = restored_state(node.shadow, "me").services
    assert [(backend.local, backend.node_name) for backend in svc.selectable] == [(True, "me"), (False, "?")]
    assert (svc.session_affinity, svc.session_affinity_timeout_s, svc.l7_lb_proxy_port) == (False, 0, 0)


def test_wildcard_rows_that_are_kept_are_not_counted() -> None:
    found = [
        plans.service("10.96.0.1:80"),
        plans.service("10.96.0.2:80"),
        SVC(L3n4Addr.parse("10.96.0.1:0/NONE"), wildcard=True),
    ]
    held = Retention({svc.frontend: svc for svc in found}, ("folder",))
    assert len(held.add_to(State(1, ()), known_to()).services) == 3
    assert held.kept == 2
    assert "2 frontends" in held.reason


def test_groups_of_what_is_kept_stay_groups() -> None:
    name = ServiceName("default", "web")
    found = plans.service(
        "10.96.0.1:80",
        plans.backend("10.244.1.1:80"),
        unselectable=(plans.backend("10.244.1.2:80", QUARANTINED),),
        slotless=(plans.backend("10.244.1.3:80", MAINTENANCE),),
    )
    (svc,) = kept(found, known=[plans.service("10.96.0.1:80", plans.backend("10.244.1.4:80"), name=name)]).values()
    assert texts(svc.selectable) == ["10.244.1.1:80", "10.244.1.4:80"]
    assert texts(svc.unselectable) == ["10.244.1.2:80"]
    assert texts(svc.slotless) == ["10.244.1.3:80"]


def test_what_needs_no_rest_and_no_override_is_the_object_it_was() -> None:
    """Then the plan needs no look at it."""
    one, two = plans.backend("10.244.1.2:80"), plans.backend("10.244.1.1:80")
    found = plans.service("10.96.0.1:80", one, two)
    known = plans.service("10.96.0.1:80", one, two, name=ServiceName("default", "web"))
    assert kept(found, known=[known])["10.96.0.1:80"] is known
    assert kept(found)["10.96.0.1:80"] is found
    elsewhere = {L3n4Addr.parse("10.9.9.9:80"): MAINTENANCE}
    assert kept(found, overrides=elsewhere)["10.96.0.1:80"] is found


def test_a_table_is_kept_while_its_backends_are_the_same_and_made_anew_when_not() -> None:
    """The weights are not in the maps, so another table than the one found would move flows for nothing."""
    node = Node()
    heavy, light = plans.backend("10.244.1.1:80"), plans.backend("10.244.1.2:80", weight=7)
    node.serve(plans.service("10.96.0.1:80", heavy, light, algorithm=Algorithm.MAGLEV))
    before = node.maps.maglev("lb4_maglev")
    node.restart()
    (found,) = restored_state(node.shadow, "me").services
    node.serve(found)
    assert node.maps.maglev("lb4_maglev") == before
    node.restart()
    (found,) = restored_state(node.shadow, "me").services
    resting = kept(found, overrides={light.address: MAINTENANCE})["10.96.0.1:80"]
    node.serve(resting)
    (table,) = node.maps.maglev("lb4_maglev").values()
    assert set(memoryview(table).cast("I")) == {1}
    assert check(node.maps, settled=True) == []


@pytest.mark.parametrize(
    ("flag", "field"),
    [
        (ServiceFlags.SESSION_AFFINITY, "session_affinity"),
        (ServiceFlags.SOURCE_RANGE_DENY, "source_ranges_deny"),
        (ServiceFlags.SOURCE_RANGE, "check_source_range"),
        (ServiceFlags.LOOPBACK, "loopback_hostport"),
        (ServiceFlags.FORWARDING_DSR, "forwarding_dsr"),
    ],
)
def test_flags_are_read_back_each_by_itself(flag, field) -> None:
    fields = {"session_affinity", "source_ranges_deny", "check_source_range", "loopback_hostport", "forwarding_dsr"}
    node = Node()
    node.serve(plans.service("10.96.0.1:80", flags=flag))
    node.restart()
    (svc,) = restored_state(node.shadow, "me").services
    assert {name for name in fields if getattr(svc, name)} == {field}


def test_the_port_of_a_proxy_is_no_time_and_an_unknown_algorithm_is_random() -> None:
    node = Node()
    flags = ServiceFlags.ROUTABLE | ServiceFlags.L7_LOAD_BALANCER
    node.serve(plans.service("10.96.0.1:80", flags=flags, l7_lb_proxy_port=9000, session_affinity=True))
    ((key, master),) = node.maps.items("lb4_service")
    node.maps.put_many("lb4_service", [(key, master[:3] + b"\x63" + master[4:])])
    node.restart()
    (svc,) = restored_state(node.shadow, "me").services
    assert (svc.session_affinity, svc.session_affinity_timeout_s, svc.l7_lb_proxy_port) == (True, 0, 9000)
    assert svc.algorithm is Algorithm.RANDOM
    assert restored_state(node.shadow, "me").generation == 0


def test_source_ranges_are_read_back_in_order() -> None:
    node = Node()
    ranges = tuple(map(CIDR.parse, ("10.1.0.0/16", "10.0.0.0/8")))
    node.serve(plans.service("10.96.0.1:80", source_ranges=ranges, flags=ServiceFlags.SOURCE_RANGE))
    node.restart()
    (svc,) = restored_state(node.shadow, "me").services
    assert [str(found) for found in svc.source_ranges] == ["10.0.0.0/8", "10.1.0.0/16"]
