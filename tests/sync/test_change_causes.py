"""Causes as an operator reads them."""

from __future__ import annotations

import pytest

from lbagent.model.address import L3n4Addr
from lbagent.model.backend import BackendState
from lbagent.objects.records import OPERATOR, FailedChecks, ObjectChange, Origin, Service, StateOverride
from lbagent.sync.change_causes import MAX_CHARACTERS, ChangeCauses, cause_of

WEB = Service("shop", "web", Origin("/etc/lb/web.yaml", 0, 1, "folder"))
API = Service("shop", "api", Origin("/etc/lb/web.yaml", 1, 20, "folder"))
CART = Service("shop", "cart", Origin("/etc/lb/cart.yaml", 0, 3, "folder"))
OF_KUBE = Service("shop", "web", Origin(source="kube"))


def override(state: BackendState, *, pod: str = "") -> StateOverride:
    origin = Origin(source=OPERATOR)
    if pod:
        return StateOverride(f"pod/{pod}", None, state, origin, pod=pod)
    return StateOverride("10.0.0.1:8080/TCP", L3n4Addr.parse("10.0.0.1:8080/TCP"), state, origin)


def failed(*numbers: int) -> FailedChecks:
    backends = frozenset(L3n4Addr.parse(f"10.0.0.{number}:80/TCP") for number in numbers)
    return FailedChecks("shop/web", backends, Origin(source="health"))


def change(old: object, new: object, kind: str = "Service") -> ObjectChange:
    key = (new or old).key  # type: ignore[attr-defined]
    return ObjectChange(kind, key, old, new)  # type: ignore[arg-type]


MAINTENANCE = override(BackendState.MAINTENANCE)
CASES = {
    "": [],
    "/etc/lb/web.yaml:1 Service shop/web": [change(None, WEB)],
    "/etc/lb/web.yaml:1 Service shop/web deleted": [change(WEB, None)],
    "/etc/lb/web.yaml:1 Service shop/web, Service shop/api, /etc/lb/cart.yaml:3 Service shop/cart": [
        change(None, WEB),
        change(None, API),
        change(None, CART),
    ],
    "Service shop/web": [change(None, OF_KUBE)],
    "health check of shop/web: 10.0.0.1:80/TCP down": [change(None, failed(1), "FailedChecks")],
    "health check of shop/web: 10.0.0.1:80/TCP up": [change(failed(1), None, "FailedChecks")],
    "health check of shop/web: 10.0.0.2:80/TCP down; 10.0.0.1:80/TCP up": [
        change(failed(1), failed(2), "FailedChecks")
    ],
    "health check of shop/web: 10.0.0.1:80/TCP, 10.0.0.2:80/TCP, 10.0.0.3:80/TCP, 10.0.0.4:80/TCP and 2 more down": [
        change(None, failed(1, 2, 3, 4, 5, 6), "FailedChecks")
    ],
    "Service shop/web, Service shop/web, Service shop/web, Service shop/web and 5 more": [change(None, OF_KUBE)] * 9,
    "set-state 10.0.0.1:8080/TCP maintenance": [change(None, MAINTENANCE, "BackendState")],
    "set-state pod/shop/web-0 active": [change(None, override(BackendState.ACTIVE, pod="shop/web-0"), "BackendState")],
    "clear-state 10.0.0.1:8080/TCP": [change(MAINTENANCE, None, "BackendState")],
}


@pytest.mark.parametrize(("text", "changes"), CASES.items())
def test_cause(text: str, changes: list[ObjectChange]) -> None:
    assert cause_of(changes) == text


def test_a_long_name_is_cut() -> None:
    long = Service("shop", "web", Origin("/" + "x" * 4000, 0, 1))
    assert len(cause_of([change(None, long)])) == MAX_CHARACTERS


def test_states_that_a_target_skipped_are_named_too() -> None:
    causes = ChangeCauses()
    for number in range(1, 6):
        causes.add(number, f"change {number}")
    assert causes.between(1, 4) == "change 2; change 3; change 4"
    assert causes.between(4, 4) == ""
    causes.add(6, "change 5")
    assert causes.between(4, 6) == "change 5"
