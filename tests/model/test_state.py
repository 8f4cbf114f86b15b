"""State: the indexes of a snapshot."""

from __future__ import annotations

from lbagent.model.address import L3n4Addr
from lbagent.model.backend import Backend, BackendState
from lbagent.model.service import SVC, ServiceName
from lbagent.model.state import State, StateDelta, common_prefix_and_suffix, names_changed, next_generation

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
    """The indexes built so far do not count."""
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


def rows(*numbers: int) -> tuple[SVC, ...]:
    return tuple(SVC(L3n4Addr.parse(f"10.96.0.{number}:80")) for number in numbers)


def test_states_are_equal_when_they_say_the_same() -> None:
    assert State(1, rows(1, 2)) == State(1, rows(1, 2))
    assert State(1, rows(1)) != State(1, rows(2))
    assert State(1, rows(1)) != State(2, rows(1))
    assert not State(1, rows(1)) != State(1, rows(1))  # noqa: SIM202 - `!=` is a method of its own
    assert not State(1, rows(1)) == State(2, rows(1))  # noqa: SIM201
    assert not State(1, rows(1)) == State(1, rows(2))  # noqa: SIM201
    assert State(1, rows(1)) != 7
    assert State(1, rows(1)).__eq__(7) is NotImplemented
    assert repr(State(7, rows(1, 2))) == "State(generation=7, 2 frontends)"
    assert hash(State(1, rows(1))) == hash(State(1, rows(1))) != hash(State(1, rows(2)))


def test_an_index_is_made_once() -> None:
    state = _state()
    assert state.by_frontend is state.by_frontend
    assert state.by_name is state.by_name
    assert state.backends is state.backends


def test_of_several_rows_the_most_alive_state_of_a_backend_counts() -> None:
    frontends = (L3n4Addr.parse("10.96.0.1:80"), L3n4Addr.parse("10.96.0.2:80"), L3n4Addr.parse("10.96.0.3:80"))
    states = (BackendState.TERMINATING, BackendState.ACTIVE, BackendState.MAINTENANCE)
    state = State(
        1,
        tuple(
            SVC(frontend, selectable=(Backend(address=ONE, state=each),))
            for frontend, each in zip(frontends, states, strict=True)
        ),
    )
    assert state.backends[ONE].state is BackendState.ACTIVE


def test_of_rows_with_one_state_the_first_is_the_backend() -> None:
    first, second = Backend(address=ONE, weight=1), Backend(address=ONE, weight=2)
    state = State(
        1, tuple(SVC(svc.frontend, selectable=(each,)) for svc, each in zip(rows(1, 2), (first, second), strict=True))
    )
    assert state.backends == {ONE: first}


def test_what_two_states_have_in_common_at_both_ends() -> None:
    a, b, c, d, e = rows(1, 2, 3, 4, 5)
    assert common_prefix_and_suffix([a, b, c, d], [e, b, c, d]) == (0, 3)
    assert common_prefix_and_suffix([a, b, c, d], [a, b, e, d]) == (2, 1)
    assert common_prefix_and_suffix([a, b], [a, b, b]) == (2, 0)
    assert common_prefix_and_suffix([a, a], [a]) == (1, 0)
    assert common_prefix_and_suffix([], [a]) == (0, 0)
    old, new = (a, b), (c, b)
    assert common_prefix_and_suffix(old, new, StateDelta(old, new, 7, 8)) == (7, 8), "it is believed"
    assert common_prefix_and_suffix(old, new, StateDelta(old, (c, b, a)[:2], 7, 8)) == (0, 1), "it is of others"
    assert common_prefix_and_suffix(old, new, StateDelta((c, b), new, 7, 8)) == (0, 1), "its `before` is of others"


def test_a_generation_is_new_when_a_service_is() -> None:
    a, b, c, d = rows(1, 2, 3, 4)
    (equal,) = rows(2)
    assert next_generation(State(5, (a, b, c)), State(0, (a, equal, c))) == 5
    assert next_generation(State(5, (a, b, c)), State(0, (a, d, c))) == 6
    assert next_generation(State(5, (a, b, c)), State(0, (a, c))) == 6
    assert next_generation(State(5, (a, b)), State(0, (a, b, c))) == 6
    assert next_generation(State(5, ()), State(0, ())) == 5


def test_the_names_of_services_that_changed() -> None:
    """Also of one whose frontends are another object and equal, of one that came and of one that went; with and without a delta."""

    def frontend(number: int) -> SVC:
        return SVC(L3n4Addr.parse(f"10.96.0.{number}:80"), 0, ServiceName("shop", f"s{number}"))

    one, two, three, four = (frontend(number) for number in (1, 2, 3, 4))
    old = State(1, (one, two, three))
    assert names_changed(old, State(2, old.services)) == set()
    assert names_changed(old, State(2, (one, frontend(2), three))) == {two.name}
    assert names_changed(old, State(2, (one, three))) == {two.name}
    assert names_changed(old, State(2, (one, two, three, four))) == {four.name}
    after = (one, frontend(2), three)
    assert names_changed(old, State(2, after, StateDelta(old.services, after, 1, 1))) == {two.name}
