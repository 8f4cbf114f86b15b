"""What a user of the model imports from `lbagent.model` itself, and what its constructors take at the edge."""

from ipaddress import ip_address

import pytest

from lbagent import model
from lbagent.model import Backend, BackendState, InvalidTransition, L3n4Addr, L4Type, Scope

DESIGN = (
    "L4Type L4Addr Scope L3n4Addr BackendState is_valid_state_transition is_valid_backend_state Backend InvalidTransition "
    "DEFAULT_BACKEND_WEIGHT SVC ServiceName SVCType SVCTrafficPolicy SVCNatPolicy SvcFlagParam ServiceFlags ALL_PROTOCOLS State"
)


@pytest.mark.parametrize("name", DESIGN.split())
def test_the_nouns_of_the_model_are_importable_from_the_package(name: str) -> None:
    assert name in model.__all__
    assert getattr(model, name) is not None


@pytest.mark.parametrize("address", ["10.0.0.1", ip_address("10.0.0.1"), "::ffff:10.0.0.1", b"\x0a\x00\x00\x01"])
def test_an_address_is_one_key_in_whatever_form_it_is_given(address: object) -> None:
    made = L3n4Addr(address, 53, "udp", Scope.INTERNAL)  # type: ignore[arg-type]
    assert made == L3n4Addr.parse("10.0.0.1:53/UDP/i")
    assert made.hash_key() == L3n4Addr.parse("10.0.0.1:53/UDP/i").hash_key()
    assert made.protocol is L4Type.UDP
    assert made.with_protocol() == "10.0.0.1:53/UDP/i"


def test_an_address_that_is_none_is_refused() -> None:
    with pytest.raises(ValueError, match="host"):
        L3n4Addr("host", 80)  # type: ignore[arg-type]
    for address, port in ((b"abc", 80), (b"abcd", 65536), (b"abcd", -1)):
        with pytest.raises(ValueError, match=r"4 or 16 bytes and a port of 0-65535"):
            L3n4Addr(address, port)
    with pytest.raises(ValueError, match="GRE"):
        L3n4Addr(b"\x0a\x00\x00\x01", 80, "GRE")  # type: ignore[arg-type]


def test_a_refused_transition_is_caught_by_the_name_of_the_model() -> None:
    backend = Backend(address=L3n4Addr("fd00::1", 80), state=BackendState.QUARANTINED)  # type: ignore[arg-type]
    with pytest.raises(InvalidTransition, match=r"quarantined.*maintenance"):
        backend.with_state(BackendState.MAINTENANCE)


def test_a_backend_is_made_in_the_order_of_its_fields() -> None:
    address = L3n4Addr.parse("10.0.0.1:80")
    assert Backend(7, address, BackendState.QUARANTINED) == Backend(
        address=address, id=7, state=BackendState.QUARANTINED
    )
    assert (Backend(address=address).id, Backend(address=address).weight) == (0, 100)
