"""Numbers of extra SNAT addresses: an address keeps its own as long as it is wanted."""

from __future__ import annotations

import pytest

from lbagent.model.extra_snat_sources import ExtraSnatSources, extra_snat_stride

A, B, C, D, E = (bytes((10, 0, 0, n)) for n in range(1, 6))
SIX = bytes(15) + b"\1"


def test_new_addresses_get_free_numbers() -> None:
    """In the order in which they are given; a repetition has no effect."""
    found = ExtraSnatSources().renumbered([A, SIX, B, A])
    assert found == ExtraSnatSources((A, B), (SIX,))
    assert list(found.of_width(4)) == [(1, A), (2, B)]
    assert list(found.of_width(16)) == [(1, SIX)]
    assert list(found.of_width(0)) == []
    assert found.addresses() == (A, B, SIX)


def test_an_address_keeps_its_number() -> None:
    """In any order, and independent of other addresses."""
    before = ExtraSnatSources((A, B, C), ())
    assert before.renumbered([C, A]) == ExtraSnatSources((A, b"", C))
    assert before.renumbered([C, A]).renumbered([D, C]) == ExtraSnatSources((D, b"", C))
    assert before.renumbered([A]) == ExtraSnatSources((A,))
    assert before.renumbered([]) == ExtraSnatSources()


def test_too_many_addresses() -> None:
    """Four of a family have a number."""
    assert ExtraSnatSources().renumbered([A, B, C, D]).ipv4 == (A, B, C, D)
    with pytest.raises(ValueError, match="5 addresses"):
        ExtraSnatSources().renumbered([A, B, C, D, E])


def test_each_address_has_its_part_of_the_ids() -> None:
    """A fifth of the ids for backends, the rest for four addresses of each."""
    assert extra_snat_stride(1024) == 204
    assert 4 * extra_snat_stride(1024) + extra_snat_stride(1024) - 1 < 1024
