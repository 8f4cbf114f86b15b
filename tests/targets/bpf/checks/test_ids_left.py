"""Ids that run out are named, with the namespaces that have most; so is what a map is full of."""

from __future__ import annotations

from types import SimpleNamespace as Some

from lbagent.model.address import L3n4Addr
from lbagent.model.backend import Backend
from lbagent.model.service import CIDR, SVC, ServiceName
from lbagent.model.state import State
from lbagent.targets.bpf.namespace_use import BACKEND_IDS, SERVICE_IDS, largest_namespaces
from tests.checks.looking import Look

check_ids = Look("map-nearly-full")


def svc(frontend: str, namespace: str, *backends: str, **more: object) -> SVC:
    members = tuple(Backend(number, L3n4Addr.parse(text)) for number, text in enumerate(backends, 1))
    return SVC(L3n4Addr.parse(frontend), 1, ServiceName(namespace, "x"), selectable=members, **more)  # type: ignore[arg-type]


def test_ids_of_which_80_percent_are_in_use() -> None:
    used = {BACKEND_IDS: (79, 100), SERVICE_IDS: (80, 100)}
    most = {"id_usage": lambda: used, "largest_namespaces": lambda name: {"shop": 70, name: 9}}
    components = Some(usage=dict, **most)
    (found,) = check_ids(components)
    assert (found.name, found.subject) == ("map-nearly-full", "service ids")
    assert found.text == "80 of 100 service ids are in use (80%), most of them by namespace: shop 70, service ids 9"
    assert "--max-frontends-per-service" in found.remedy
    used[BACKEND_IDS] = (100, 100)
    assert "--max-backends" in check_ids(components)[0].remedy
    used.update(dict.fromkeys(used, (0, 100)))
    assert check_ids(components) == []


def test_the_namespaces_that_use_most_of_a_table() -> None:
    """A backend counts once in each namespace, in a map of its family alone; a wildcard row has no id, but an entry."""
    shared = "10.0.0.1:80"
    rows = (
        svc("10.96.0.1:80", "a", shared, "10.0.0.2:80"),
        svc("10.96.0.2:80", "a", shared, source_ranges=(CIDR.parse("10.0.0.0/8"),)),
        svc("10.96.0.3:80", "b", shared),
        svc("[fd00::1]:80", "c", "[fd01::1]:80", "[fd01::2]:80"),
        SVC(L3n4Addr.parse("10.96.0.1:0/NONE"), 0, ServiceName("a", "x"), wildcard=True),
        svc("10.96.0.4:80", "d"),
    )
    state = State(1, rows)
    assert largest_namespaces(state.services, BACKEND_IDS) == {"a": 2, "c": 2, "b": 1}
    assert largest_namespaces(state.services, "lb4_backend") == {"a": 2, "b": 1}
    assert largest_namespaces(state.services, "lb6_backend") == {"c": 2}
    assert largest_namespaces(state.services, SERVICE_IDS) == {"a": 2, "b": 1, "c": 1}
    assert largest_namespaces(state.services, "lb4_service") == {"a": 6, "b": 2, "d": 1}
    assert largest_namespaces(state.services, "lb4_source_range") == {"a": 1}
    assert largest_namespaces(state.services, "lb4_flow") == {}
