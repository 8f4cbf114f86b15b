"""State: the indexes of a snapshot."""

from __future__ import annotations

from lbagent.model.address import L3n4Addr
from lbagent.model.backend import Backend, BackendState
from lbagent.model.service import SVC, ServiceName
from lbagent.model.state import State, StateDelta, next_generation

WEB, DNS = ServiceName("shop", "web"), ServiceName("kube-system", "dns")
ONE, TWO = L3n4Addr.parse("10.0.0.1:80"), L3n4Addr.parse("10.0.0.2:80")


def _state() -> State:
    return State(
        7,
        (
            SVC(
                L3n4Addr.parse("10.96.0.9:80"),
                name=WEB,
                unselectable=(Backend(address=TWO, state=BackendState.TERMINATING),),
            ),
            SVC(L3n4Addr.parse("10.96.0.1:53/UDP"), name=DNS, selectable=(Backend(address=ONE),)),
            SVC(L3n4Addr.parse("10.96.0.9:443"), name=WEB, selectable=(Backend(address=ONE), Backend(address=TWO))),
        ),
    )


def test_indexes() -> None:
    """By frontend with protocol and scope, by name in dump order."""
    state = _state()
    assert state.by_frontend[L3n4Addr.parse("10.96.0.1:53/UDP")].name == DNS
    assert L3n4Addr.parse("10.96.0.1:53/TCP") not in state.by_frontend
    assert [str(svc.frontend) for svc in state.by_name[WEB]] == ["10.96.0.9:80", "10.96.0.9:443"]


def test_a_shared_backend_is_one_and_most_alive() -> None:
    """Terminating in one service and active in the other: active; order of first use."""
    backends = _state().backends
    assert list(backends) == [TWO, ONE]
    assert backends[TWO].state is BackendState.ACTIVE


def test_equality_is_contents() -> None:
    """Which index was asked for does not count."""
    one, two = _state(), _state()
    assert one.by_frontend
    assert one.backends
    assert one == two
    assert hash(one) == hash(two)
    assert one != State(8, one.services)
    assert State() != object()


def test_a_generation_is_a_state_that_is_not_equal() -> None:
    last = _state()
    same = State(0, tuple(_state().services))
    assert next_generation(last, same) == 7
    assert next_generation(last, State(0, last.services[1:])) == 8
    assert next_generation(last, State(0, (*last.services[:2], same.services[0]))) == 8
    ends = (*last.services[:1], same.services[2], last.services[2])
    assert next_generation(last, State(0, ends, StateDelta(last.services, ends, 1, 1))) == 8
