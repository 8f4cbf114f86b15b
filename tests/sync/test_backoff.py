"""Pauses grow twofold up to a limit and lie within a tenth of that; each failure in a row waits for the next one."""

from __future__ import annotations

from itertools import islice

import pytest

from lbagent.errors import LbError
from lbagent.sync.backoff import delays, failed_again


@pytest.mark.parametrize(("drawn", "share"), [(0.0, 0.9), (0.25, 0.95), (0.5, 1.0), (1.0, 1.1)])
def test_pauses_double_up_to_the_limit(drawn: float, share: float) -> None:
    found = list(islice(delays(1.0, 6.0, lambda: drawn), 5))
    assert found == pytest.approx([share * pause for pause in (1, 2, 4, 6, 6)])


def test_the_usual_pauses() -> None:
    assert list(islice(delays(rng=lambda: 0.5), 11))[:3] == pytest.approx([0.1, 0.2, 0.4])
    assert max(islice(delays(rng=lambda: 0.5), 20)) == pytest.approx(30)


def test_each_failure_in_a_row_waits_longer() -> None:
    first = failed_again(None, LbError("one"), 50.0, lambda: delays(1.0, 9.0, lambda: 0.5))
    assert first.retry_at == pytest.approx(51)
    second = failed_again(first, LbError("two"), 60.0, lambda: delays(5.0))
    assert (str(second.error), second.retry_at) == ("two", pytest.approx(62))
    again = failed_again(None, LbError("after a success"), 70.0, lambda: delays(1.0, 9.0, lambda: 0.5))
    assert again.retry_at == pytest.approx(71)
