"""Each reason has a sentence and advice; `vip why` shows the advice of every refusal."""

from __future__ import annotations

import pytest

from lbagent.announce.announce_refusal import AnnounceRefusal, RefusalReason


@pytest.mark.parametrize("reason", list(RefusalReason))
def test_a_reason_has_a_sentence_and_advice(reason: RefusalReason) -> None:
    assert str(AnnounceRefusal(reason, "eth0"))
    assert "{" not in str(AnnounceRefusal(reason, "eth0"))
    assert reason.advice or reason is RefusalReason.NO_SESSION


def test_the_detail_stands_in_the_sentence() -> None:
    assert str(AnnounceRefusal(RefusalReason.NO_CARRIER, "eth0, eth1")) == "eth0, eth1 has no carrier"
    assert str(AnnounceRefusal(RefusalReason.NO_SESSION, "bird printed {0}")) == "bird printed {0}"
    assert str(AnnounceRefusal(RefusalReason.CORDONED)) == "the node is cordoned"
