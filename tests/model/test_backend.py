"""Backend states and transitions. Expected values: the table of cilium pkg/loadbalancer with one exception of lbagent."""

from __future__ import annotations

import pytest

from lbagent.errors import InvalidTransition
from lbagent.model.address import L3n4Addr
from lbagent.model.backend import (
    DEFAULT_BACKEND_WEIGHT,
    Backend,
    BackendState,
    is_valid_backend_state,
    is_valid_state_transition,
)

STATES = list(BackendState)
# rows old, columns new, in the order active, terminating, quarantined, maintenance, invalid
TABLE = {
    "ACTIVE": "TTTTF",
    "TERMINATING": "FTFFF",
    "QUARANTINED": "TTTFF",
    "MAINTENANCE": "TTFTF",  # cilium has F at terminating: such a backend could never be removed gracefully
    "INVALID": "FFFFT",
}


def test_numbers_are_the_seeds() -> None:
    """Numbers 0-4 in the seed's order."""
    assert {state.name: int(state) for state in STATES} == {
        "ACTIVE": 0,
        "TERMINATING": 1,
        "QUARANTINED": 2,
        "MAINTENANCE": 3,
        "INVALID": 4,
    }


@pytest.mark.parametrize("old", STATES)
@pytest.mark.parametrize("new", STATES)
def test_transition_table(old: BackendState, new: BackendState) -> None:
    """Every cell of the table, by all three functions."""
    allowed = TABLE[old.name][new] == "T"
    assert old.can_become(new) is allowed
    assert is_valid_state_transition(old, new) is allowed
    backend = Backend(address=L3n4Addr.parse("10.0.0.1:80"), state=old)
    if allowed:
        assert backend.with_state(new).state is new
        assert backend.state is old
    else:
        with pytest.raises(InvalidTransition) as caught:
            backend.with_state(new)
        assert caught.value.exit_code == 4
        assert old.name.lower() in str(caught.value)
        assert new.name.lower() in str(caught.value)
        assert "10.0.0.1:80/TCP" in str(caught.value)


@pytest.mark.parametrize(
    ("text", "state"),
    [
        ("active", BackendState.ACTIVE),
        ("", BackendState.ACTIVE),
        ("Terminating", BackendState.TERMINATING),
        ("QUARANTINED", BackendState.QUARANTINED),
        ("maintenance", BackendState.MAINTENANCE),
    ],
)
def test_words(text: str, state: BackendState) -> None:
    """Words in any case; none at all is active."""
    assert BackendState.parse(text) is state
    assert BackendState.is_valid(text) is is_valid_backend_state(text) is True
    assert str(state) == state.text == f"{state}" == (text.lower() or "active")


@pytest.mark.parametrize("text", ["invalid", "down", "active ", "0"])
def test_unknown_words(text: str) -> None:
    """An unknown word is a ValueError that ends a command with exit code 2."""
    assert BackendState.is_valid(text) is is_valid_backend_state(text) is False
    with pytest.raises(ValueError, match="active, terminating, quarantined, maintenance") as caught:
        BackendState.parse(text)
    assert getattr(caught.value, "exit_code", None) == 2


def test_flags() -> None:
    """The flags byte is the number 0-3; an unknown value reads as active; INVALID is never written."""
    assert [state.to_flags() for state in STATES[:4]] == [0, 1, 2, 3]
    assert [BackendState.from_flags(flags) for flags in (0, 1, 2, 3, 4, 255)] == [*STATES[:4], STATES[0], STATES[0]]
    with pytest.raises(ValueError, match="invalid"):
        BackendState.INVALID.to_flags()
    assert BackendState.INVALID.text == ""


def test_defaults() -> None:
    """A backend without any setting is active with weight 100."""
    backend = Backend(address=L3n4Addr.parse("10.0.0.1:80"))
    assert (backend.id, backend.state, backend.weight, DEFAULT_BACKEND_WEIGHT) == (0, BackendState.ACTIVE, 100, 100)
    assert backend.with_state(BackendState.ACTIVE) is backend
